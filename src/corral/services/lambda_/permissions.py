"""The permissions that operations of Lambda need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, read_object, request_tags
from corral.core.transactions import Tx
from corral.services.lambda_.names import MAPPING, SERVICE, function_arn, mapping_arn
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the function, and to read the objects with its code."""
    if operation.endswith(("EventSourceMapping", "EventSourceMappings")):
        return _on_mapping(tx, caller, operation, params)
    given = params.get("FunctionName") or params.get("Resource") or ""
    name = given.removesuffix(":$LATEST").rpartition(":")[2]
    arns = [function_arn(caller.region, caller.account, name)] if name else []
    if f":{MAPPING}:" in given:
        arns = [mapping_arn(caller.region, caller.account, name)]
    needed = on_resources(f"lambda:{'InvokeFunction' if operation == 'Invoke' else operation}", arns, request_tags(params))
    source = params.get("Code", params)
    if source.get("S3Bucket"):
        needed.append(read_object(source["S3Bucket"], source.get("S3Key", ""), source.get("S3ObjectVersion")))
    return needed


def _on_mapping(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission on an event source mapping. A policy can name its function in the condition lambda:FunctionArn."""
    arns, functions, context = [], list[str](), request_tags(params)
    if "UUID" in params:
        arns = [mapping_arn(caller.region, caller.account, params["UUID"])]
        found = tx.store.stored.get(SERVICE, MAPPING, caller.region, params["UUID"])
        functions = [found["FunctionArn"]] if found is not None else []
    if params.get("FunctionName") and not operation.startswith("List"):
        name = params["FunctionName"].removesuffix(":$LATEST").rpartition(":")[2]
        functions = [function_arn(caller.region, caller.account, name)]
    if functions:
        context = {**context, "lambda:functionarn": tuple(functions)}
    return on_resources(f"lambda:{operation}", arns, context)


def gives_host(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> bool:
    """Every function runs as a process of this machine."""
    return True
