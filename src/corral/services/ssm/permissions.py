"""The permissions that operations of Systems Manager need, and the facts about parameters that policies can test."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags, request_values, with_tags
from corral.access.resources import ResourceFacts
from corral.core.transactions import Tx
from corral.operations.listings import Listed
from corral.services.secretsmanager.references import of_parameter
from corral.services.secretsmanager.secret_names import arn_for_permission
from corral.services.ssm.parameter_names import arn, latest, parse_reference
from corral.services.ssm.public_parameters import is_public
from corral.store import Store

# Operation → its condition keys, and the members of the request that have their values
KEYS = {
    "GetParametersByPath": {"ssm:recursive": "Recursive"},
    "PutParameter": {"ssm:overwrite": "Overwrite", "ssm:policies": "Policies"},
}
OF_PARAMETER = ":parameter/"


def _owner(tx: Tx[Store], caller: Caller, params: Params, element: Params) -> str | None:
    """The owner of a parameter. Those that AWS publishes have none."""
    return None if is_public(element["Name"]) else tx.store.parameters.owner(caller.region, element["Name"]) or ""


LISTED = {operation: Listed(("Parameters",), _owner) for operation in ("DescribeParameters", "GetParametersByPath")}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    if operation == "ResumeSession":
        session = f"arn:aws:ssm:{caller.region}:{caller.account}:session/{params.get('SessionId', '')}"
        return on_resources("ssm:ResumeSession", [session], {})
    if operation == "GetParametersByPath":
        names = [params.get("Path", "/").rstrip("/") or "/*"]
    elif operation in ("AddTagsToResource", "RemoveTagsFromResource", "ListTagsForResource"):
        names = [params.get("ResourceId", "")]
    else:
        names = [*params.get("Names", ()), *([params["Name"]] if params.get("Name") else ())]
    found = [parse_reference(caller, name) for name in names]
    arns = [arn(caller.account, each.region, each.name) for each in found]
    secrets = [each for name in names if (each := of_parameter(name)) is not None]
    context = {**request_tags(params), **request_values(params, KEYS.get(operation, {}))}
    needed = on_resources(f"ssm:{operation}", arns, context)
    if operation == "PutParameter":
        needed += with_tags("ssm:AddTagsToResource", arns, params)
    return [
        *needed,
        *(Permission("secretsmanager:GetSecretValue", arn_for_permission(tx, caller, each.secret_id)) for each in secrets),
    ]


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    place, found, name = permission.resource.partition(OF_PARAMETER)
    region = place.split(":")[3] if found else ""
    parameter = latest(tx, region, f"/{name}") if found else None
    if parameter is None:
        return ResourceFacts()
    parameters = tx.store.parameters
    return ResourceFacts(parameters.owner(region, parameter.name), parameters.tags(region, parameter.name) or {})
