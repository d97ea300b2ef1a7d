"""Names and ARNs of secrets, and functions that find a secret."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.secret import StoredSecret, secret_arn
from corral.services.secretsmanager import errors
from corral.store import Store

SUFFIX_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
SUFFIX_LENGTH = 6
ARN_PREFIX = "arn:"
FULL = re.compile(rf"(.+)-([A-Za-z0-9]{{{SUFFIX_LENGTH}}})")  # the last part of a full ARN: the name and the suffix


def new_suffix(tx: Tx[Any]) -> str:
    number, suffix = int(tx.ids.hex32(), 16), ""
    for _ in range(SUFFIX_LENGTH):
        number, at = divmod(number, len(SUFFIX_CHARACTERS))
        suffix += SUFFIX_CHARACTERS[at]
    return suffix


def look_up(tx: Tx[Store], caller: Caller, secret_id: str) -> StoredSecret | None:
    """Return the secret with a name, an ARN or a partial ARN, which lacks the suffix.

    As on AWS, an ARN that ends with a hyphen and six characters counts as a full ARN. So a name that ends like this cannot be found
    by its partial ARN.
    """
    if not secret_id.startswith(ARN_PREFIX):
        return tx.store.secrets.get(caller.region, secret_id)
    parts = secret_id.split(":", 6)
    if len(parts) != 7 or parts[2:6] != ["secretsmanager", caller.region, caller.account, "secret"]:
        return None
    full = FULL.fullmatch(parts[6])
    found = tx.store.secrets.get(caller.region, full[1] if full else parts[6])
    return found if found is not None and (full is None or found.suffix == full[2]) else None


def find(tx: Tx[Store], caller: Caller, secret_id: str, *, with_deleted: bool = False) -> StoredSecret:
    """Return a secret. Raise AWS's error if it does not exist, or if it is scheduled for deletion."""
    found = look_up(tx, caller, secret_id)
    if found is None:
        raise errors.ResourceNotFoundException("Secrets Manager can't find the specified secret.")
    if found.delete_at_s is not None and not with_deleted:
        raise marked_for_deletion()
    return found


def marked_for_deletion() -> ApiError:
    return errors.InvalidRequestException("You can't perform this operation on the secret because it was marked for deletion.")


def named(caller: Caller, secret: StoredSecret) -> dict[str, Any]:
    """The members with which most responses name the secret."""
    return {"ARN": secret.arn(caller.account), "Name": secret.name}


def arn_for_permission(tx: Tx[Store], caller: Caller, secret_id: str) -> str:
    """Return the ARN of the secret that a handler will find. If there is none, return the form that its ARN would have."""
    found = look_up(tx, caller, secret_id)
    if found is not None:
        return found.arn(caller.account)
    return secret_id if secret_id.startswith(ARN_PREFIX) else secret_arn(caller.account, caller.region, f"{secret_id}-??????")


def change(tx: Tx[Store], secret: StoredSecret, **members: Any) -> StoredSecret:
    """Store a secret with other values of some members, and the time of the change."""
    changed = replace(secret, changed_at_s=tx.now_s, **members)
    tx.store.secrets.put(changed)
    return changed
