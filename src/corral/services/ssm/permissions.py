"""The permissions that operations of Systems Manager need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.core.transactions import Tx
from corral.services.ssm.parameter_names import arn, parse_reference
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    if operation == "GetParametersByPath":
        names = [params.get("Path", "/").rstrip("/") or "/*"]
    elif operation in ("AddTagsToResource", "RemoveTagsFromResource", "ListTagsForResource"):
        names = [params.get("ResourceId", "")]
    else:
        names = [*params.get("Names", ()), *([params["Name"]] if params.get("Name") else ())]
    found = [parse_reference(caller, name) for name in names]
    return on_resources(f"ssm:{operation}", [arn(caller.account, each.region, each.name) for each in found], request_tags(params))
