"""ECS resource types of CloudFormation templates: AWS::ECS::CapacityProvider."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.cloudformation.resource_types import Properties, TemplateType
from corral.services.ecs import capacity_providers
from corral.services.ecs.lookup import arn
from corral.services.ecs.tags import tag_resource, untag_resource
from corral.store import Store


def _camel(value: Any) -> Any:
    """Convert template properties to ECS parameters, whose names begin with a lower-case letter."""
    if isinstance(value, dict):
        return {name[0].lower() + name[1:]: _camel(inner) for name, inner in value.items()}
    return [_camel(inner) for inner in value] if isinstance(value, list) else value


def _create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    return str(capacity_providers.create_capacity_provider(tx, _camel(dict(properties)), caller)["capacityProvider"]["name"])


def _attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    return {}


def _update(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    request = _camel(dict(new))
    group = {name: value for name, value in request["autoScalingGroupProvider"].items() if name != "autoScalingGroupArn"}
    capacity_providers.update_capacity_provider(tx, {"name": identity, "autoScalingGroupProvider": group}, caller)
    resource = arn(caller.account, caller.region, f"capacity-provider/{identity}")
    new_keys = [tag["Key"] for tag in new.get("Tags", [])]
    removed = [tag["Key"] for tag in old.get("Tags", []) if tag["Key"] not in new_keys]
    untag_resource(tx, {"resourceArn": resource, "tagKeys": removed}, caller)
    tag_resource(tx, {"resourceArn": resource, "tags": request.get("tags", [])}, caller)


def _delete(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    capacity_providers.delete_capacity_provider(tx, {"capacityProvider": identity}, caller)


TEMPLATE_TYPES = (TemplateType("AWS::ECS::CapacityProvider", _create, _attributes, _update, _delete, "Name"),)
