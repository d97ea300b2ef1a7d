"""Access keys of users."""

from __future__ import annotations

from base64 import b32encode, b64encode
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.access_key import ACTIVE, AccessKey
from corral.operations.encryption import encrypt
from corral.operations.stored_resources import Params
from corral.services.iam import errors
from corral.services.iam.users import named_user
from corral.store import Store

KEYS_MAX = 2  # of a user


def create_access_key(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Create an access key. Only this response has its secret key."""
    user = named_user(tx, params, caller)["UserName"]
    if len(tx.store.access_keys.of_user(user)) >= KEYS_MAX:
        raise errors.LimitExceededException(f"Cannot exceed quota for AccessKeysPerUser: {KEYS_MAX}")
    key_id = "AKIA" + b32encode(bytes.fromhex(tx.ids.hex32())).decode()[:16]
    secret_key = b64encode(bytes.fromhex(tx.ids.hex32() + tx.ids.hex32())).decode()[:40]
    key = AccessKey(key_id, user, encrypt(tx.settings.secrets_key, secret_key, key_id), ACTIVE, tx.now_s)
    tx.store.access_keys.add(key)
    return {
        "AccessKey": {
            "UserName": user,
            "AccessKeyId": key_id,
            "Status": ACTIVE,
            "SecretAccessKey": secret_key,
            "CreateDate": tx.now_s,
        }
    }
