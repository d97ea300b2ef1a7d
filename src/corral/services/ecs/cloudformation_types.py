"""ECS's capacity providers in CloudFormation templates."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.cloudformation_types import Properties, TemplateType
from corral.services.ecs import providers
from corral.services.ecs.naming import arn
from corral.services.ecs.tags import tag_resource, untag_resource
from corral.store import Store


def _camel(value: Any) -> Any:
    """Properties as a request of ECS, whose members begin with a small letter."""
    if isinstance(value, dict):
        return {name[0].lower() + name[1:]: _camel(inner) for name, inner in value.items()}
    return [_camel(inner) for inner in value] if isinstance(value, list) else value


def _create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    return str(providers.create_capacity_provider(tx, _camel(dict(properties)), caller)["capacityProvider"]["name"])


def _attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    return {}


def _update(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    request = _camel(dict(new))
    group = {name: value for name, value in request["autoScalingGroupProvider"].items() if name != "autoScalingGroupArn"}
    providers.update_capacity_provider(tx, {"name": identity, "autoScalingGroupProvider": group}, caller)
    resource = arn(caller.account, caller.region, f"capacity-provider/{identity}")
    gone = [tag["Key"] for tag in old.get("Tags", []) if tag["Key"] not in [kept["Key"] for kept in new.get("Tags", [])]]
    untag_resource(tx, {"resourceArn": resource, "tagKeys": gone}, caller)
    tag_resource(tx, {"resourceArn": resource, "tags": request.get("tags", [])}, caller)


def _delete(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    providers.delete_capacity_provider(tx, {"capacityProvider": identity}, caller)


TEMPLATE_TYPES = (TemplateType("AWS::ECS::CapacityProvider", _create, _attributes, _update, _delete, "Name"),)
