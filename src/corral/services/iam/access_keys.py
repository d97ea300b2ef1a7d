"""Access keys of users."""

from __future__ import annotations

from base64 import b32encode, b64encode
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.access_key import ACTIVE, INACTIVE, AccessKey
from corral.operations.encryption import encrypt
from corral.operations.pagination import among
from corral.operations.stored_resources import Params
from corral.services.iam import errors
from corral.services.iam.style import PAGES
from corral.services.iam.users import named_user
from corral.store import Store

KEYS_MAX = 2  # of a user
NEVER = "N/A"  # the service and the region of a key that has not been used


def create_access_key(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Create an access key. Only this response has its secret key."""
    user = named_user(tx, params, caller)["UserName"]
    if tx.store.access_keys.count(user) >= KEYS_MAX:
        raise errors.LimitExceededException(f"Cannot exceed quota for AccessKeysPerUser: {KEYS_MAX}")
    key_id = "AKIA" + b32encode(bytes.fromhex(tx.ids.hex32())).decode()[:16]
    secret_key = b64encode(bytes.fromhex(tx.ids.hex32() + tx.ids.hex32())).decode()[:40]
    key = AccessKey(key_id, user, encrypt(tx.settings.secrets_key, secret_key, key_id), ACTIVE, tx.now_s)
    tx.store.access_keys.add(key)
    return {"AccessKey": {**_metadata(key), "SecretAccessKey": secret_key}}


def list_access_keys(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    user = named_user(tx, params, caller)["UserName"]
    found, token = PAGES.page(params, among({key.id: _metadata(key) for key in tx.store.access_keys.of_user(user)}))
    return {"AccessKeyMetadata": found, **token}


def update_access_key(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    key, status = _key(tx, params, caller), params["Status"]
    if status not in (ACTIVE, INACTIVE):
        raise errors.InvalidInputException(f"Corral does not serve the status {status}: use {ACTIVE} or {INACTIVE}.")
    tx.store.access_keys.set_status(key, status)
    return {}


def delete_access_key(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    tx.store.access_keys.drop(_key(tx, params, caller))
    return {}


def get_access_key_last_used(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    key = tx.store.access_keys.get(params["AccessKeyId"])
    if key is None:
        raise errors.AccessDenied(
            f"User: {caller.principal.arn} is not authorized to perform: iam:GetAccessKeyLastUsed on resource: access key "
            f"{params['AccessKeyId']}"
        )
    use = tx.store.access_keys.last_use(key)
    last: dict[str, Any] = {"ServiceName": NEVER, "Region": NEVER}
    if use is not None:
        last = {"LastUsedDate": use.at_s, "ServiceName": use.service, "Region": use.region}
    return {"UserName": key.user, "AccessKeyLastUsed": last}


def _key(tx: Tx[Store], params: Params, caller: Caller) -> AccessKey:
    """Return the access key that a request names. It must belong to the user of the request."""
    user, key = named_user(tx, params, caller)["UserName"], tx.store.access_keys.get(params["AccessKeyId"])
    if key is None or key.user != user:
        raise errors.NoSuchEntityException(f"The Access Key with id {params['AccessKeyId']} cannot be found.")
    return key


def _metadata(key: AccessKey) -> dict[str, Any]:
    return {"UserName": key.user, "AccessKeyId": key.id, "Status": key.status, "CreateDate": key.created_at_s}
