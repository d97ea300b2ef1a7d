"""The permissions that operations of CloudTrail need. They have no resources."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission
from corral.core.transactions import Tx
from corral.decide.policies.policy import NO_RESOURCE
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    return [Permission(f"cloudtrail:{operation}", NO_RESOURCE)]
