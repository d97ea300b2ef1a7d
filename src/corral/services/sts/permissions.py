"""The permissions that operations of STS need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, assume_role_context, role_arn
from corral.core.transactions import Tx
from corral.decide.policies.policy import NO_RESOURCE
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    if operation != "AssumeRole":
        return [Permission(f"sts:{operation}", NO_RESOURCE)]
    return [Permission("sts:AssumeRole", role_arn(tx, caller, params["RoleArn"]), assume_role_context(params))]
