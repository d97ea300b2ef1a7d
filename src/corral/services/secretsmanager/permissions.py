"""The permissions that operations of Secrets Manager need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.core.transactions import Tx
from corral.services.secretsmanager.secret_names import arn_for_permission
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """Return the permissions. BatchGetSecretValue itself checks the permission to read each secret."""
    given = params.get("SecretId") or (params.get("Name") if operation == "CreateSecret" else None)
    arns = [arn_for_permission(tx, caller, given)] if given else []
    context = request_tags(params)
    needed = on_resources(f"secretsmanager:{operation}", arns, context)
    if operation == "CreateSecret" and params.get("Tags"):
        needed += on_resources("secretsmanager:TagResource", arns, context)
    if operation == "BatchGetSecretValue" and params.get("Filters"):
        needed += on_resources("secretsmanager:ListSecrets", (), context)
    return needed
