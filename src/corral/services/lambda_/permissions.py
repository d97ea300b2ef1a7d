"""The permissions that operations of Lambda need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, read_object, request_tags
from corral.core.transactions import Tx
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the function, and to read the objects with its code."""
    given = params.get("FunctionName") or params.get("Resource") or ""
    name = given.removesuffix(":$LATEST").rpartition(":")[2]
    arns = [f"arn:aws:lambda:{caller.region}:{caller.account}:function:{name}"] if name else []
    needed = on_resources(f"lambda:{'InvokeFunction' if operation == 'Invoke' else operation}", arns, request_tags(params))
    source = params.get("Code", params)
    if source.get("S3Bucket"):
        needed.append(read_object(source["S3Bucket"], source.get("S3Key", ""), source.get("S3ObjectVersion")))
    return needed


def gives_host(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> bool:
    """Every function runs as a process of this machine."""
    return True
