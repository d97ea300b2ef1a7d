"""The permissions that operations of EC2 need. The resources of a request are not derived."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, pass_profile, request_tags
from corral.core.transactions import Tx
from corral.decide.policies.policy import UNKNOWN_RESOURCE
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission for the operation, and the permission to pass the role of the instance profile that the request names."""
    profile = params.get("IamInstanceProfile") or {}
    return [
        Permission(f"ec2:{operation}", UNKNOWN_RESOURCE, request_tags(params)),
        *pass_profile(tx, caller, profile.get("Name") or profile.get("Arn", "")),
    ]
