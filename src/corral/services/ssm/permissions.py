"""The permissions that operations of Systems Manager need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.core.transactions import Tx
from corral.services.secretsmanager.references import of_parameter
from corral.services.secretsmanager.secret_names import arn_for_permission
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
    arns = [arn(caller.account, each.region, each.name) for each in found]
    secrets = [each for name in names if (each := of_parameter(name)) is not None]
    return [
        *on_resources(f"ssm:{operation}", arns, request_tags(params)),
        *(Permission("secretsmanager:GetSecretValue", arn_for_permission(tx, caller, each.secret_id)) for each in secrets),
    ]
