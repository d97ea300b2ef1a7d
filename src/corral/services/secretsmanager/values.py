"""GetSecretValue and BatchGetSecretValue, the only operations that return values."""

from __future__ import annotations

from typing import Any

from corral.access.authorization import may
from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.secret import SecretVersion, StoredSecret
from corral.services.secretsmanager import errors
from corral.services.secretsmanager.listing import filtered
from corral.services.secretsmanager.permissions import needed_permissions
from corral.services.secretsmanager.secret_names import find, named
from corral.services.secretsmanager.versions import find_version, value_of
from corral.store import Store

DAY_S = 86_400
BATCH_MAX = 20


def get_secret_value(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret = find(tx, caller, params["SecretId"])
    versions = tx.store.secrets.versions(secret.region, secret.name)
    version = find_version(versions, params.get("VersionId"), params.get("VersionStage"))
    value = value_of(tx, caller, secret, version)
    _note_access(tx, secret, version)
    return {
        **named(caller, secret),
        "VersionId": version.id,
        "SecretBinary" if version.is_binary else "SecretString": value,
        "VersionStages": list(version.stages) or None,
        "CreatedDate": version.created_at_s,
    }


def _note_access(tx: Tx[Store], secret: StoredSecret, version: SecretVersion) -> None:
    """Record the day (UTC) of an access, as AWS does. So only the first read of a day writes."""
    day_s = tx.steps.steady_s(tx.wall_s // DAY_S * DAY_S)
    if version.accessed_at_s is None or day_s - version.accessed_at_s >= DAY_S / 2:
        tx.store.secrets.set_accessed(version, day_s)


def batch_get_secret_value(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return the values of several secrets. `Errors` has the secrets that the caller cannot or may not read."""
    given = params.get("SecretIdList")
    if (given is None) == (params.get("Filters") is None):
        raise errors.InvalidParameterException("You must include Filters or SecretIdList, but not both.")
    if given is not None and params.get("MaxResults") is not None:
        raise errors.InvalidParameterException("To use MaxResults, you must also use Filters.")
    token: dict[str, Any] = {}
    if given is None:
        page, token = filtered(tx, {"MaxResults": BATCH_MAX, **params}, caller)
        given = [secret.arn(caller.account) for secret in page]
    found, failed = list[dict[str, Any]](), list[dict[str, Any]]()
    for secret_id in dict.fromkeys(given):
        try:
            [permission] = needed_permissions(tx, caller, "GetSecretValue", {"SecretId": secret_id})
            if not may(tx, caller, permission):
                who, what = caller.principal.arn, f"{permission.action} on resource: {permission.resource}"
                raise errors.AccessDeniedException(f"User: {who} is not authorized to perform: {what}")
            found.append(get_secret_value(tx, {"SecretId": secret_id}, caller))
        except ApiError as error:
            failed.append({"SecretId": secret_id, "ErrorCode": error.code, "Message": error.message})
    return {"SecretValues": found, "Errors": failed, **token}
