"""ECR resource types of CloudFormation templates: the registry policy."""

from __future__ import annotations

from typing import Any

import orjson

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.cloudformation.resource_types import Properties, TemplateType
from corral.services.ecr.registry_settings import delete_registry_policy, get_registry_policy, put_registry_policy
from corral.store import Store


def _create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    text = properties["PolicyText"]
    request = {"policyText": text if isinstance(text, str) else orjson.dumps(text).decode()}
    return str(put_registry_policy(tx, request, caller)["registryId"])


def _update(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    _create(tx, caller, new)


def _attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    return {"RegistryId": get_registry_policy(tx, {}, caller)["registryId"]}


def _delete(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    delete_registry_policy(tx, {}, caller)


TEMPLATE_TYPES = (TemplateType("AWS::ECR::RegistryPolicy", _create, _attributes, _update, _delete),)
