"""Create, describe, update, delete and restore secrets, and change their tags."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.secret import StoredSecret, secret_arn
from corral.services.secretsmanager import errors
from corral.services.secretsmanager.descriptions import TAG_RULES, description
from corral.services.secretsmanager.secret_names import ARN_PREFIX, change, find, look_up, marked_for_deletion, named, new_suffix
from corral.services.secretsmanager.versions import add_version, given_token, given_value
from corral.store import Store

DAY_S = 86_400.0
WINDOW_DAYS = 30
WINDOWS_DAYS = range(7, 31)
REPLICATION = ("AddReplicaRegions", "CrossAccountPrimaryARN")


def create_secret(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    token, value, name = given_token(params), given_value(params), params["Name"]
    for member in REPLICATION:
        if params.get(member):
            raise errors.InvalidRequestException(f"Corral does not replicate secrets: omit {member}.")
    existing = tx.store.secrets.get(caller.region, name)
    if existing is not None:
        return _created_before(tx, caller, existing, token, value)
    secret = StoredSecret(
        region=caller.region,
        name=name,
        suffix=new_suffix(tx),
        owner=caller.owner,
        created_at_s=tx.now_s,
        changed_at_s=tx.now_s,
        accessed_at_s=None,
        delete_at_s=None,
        details=_details(params),
        tags=TAG_RULES.read(params["Tags"]) if params.get("Tags") else None,
        policy="",
    )
    tx.store.secrets.add(secret)
    return _with_version(tx, caller, secret, token, value)


def _details(params: dict[str, Any]) -> dict[str, Any]:
    return {member: params[member] for member in ("Description", "KmsKeyId", "Type") if params.get(member)}


def _with_version(tx: Tx[Store], caller: Caller, secret: StoredSecret, token: str, value: str | bytes | None) -> dict[str, Any]:
    if value is None:
        return named(caller, secret)
    return {**named(caller, secret), "VersionId": add_version(tx, caller, secret, token, value).id}


def _created_before(tx: Tx[Store], caller: Caller, secret: StoredSecret, token: str, value: str | bytes | None) -> dict[str, Any]:
    """Return the response of an equal earlier request. Raise an error if the request is another one."""
    if secret.delete_at_s is not None:
        raise errors.InvalidRequestException(
            "You can't create this secret because a secret with this name is already scheduled for deletion."
        )
    known = {each.id for each in tx.store.secrets.versions(secret.region, secret.name)}
    if value is None or token not in known:
        raise errors.ResourceExistsException(f"The operation failed because the secret {secret.name} already exists.")
    return _with_version(tx, caller, secret, token, value)


def describe_secret(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return description(tx, caller, find(tx, caller, params["SecretId"], with_deleted=True))


def update_secret(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret, token, value = find(tx, caller, params["SecretId"]), given_token(params), given_value(params)
    given = {member: params[member] for member in ("Description", "KmsKeyId", "Type") if member in params}
    details = {member: each for member, each in (secret.details | given).items() if each != ""}
    return _with_version(tx, caller, change(tx, secret, details=details), token, value)


def delete_secret(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    days, is_forced = params.get("RecoveryWindowInDays"), params.get("ForceDeleteWithoutRecovery", False)
    if is_forced and days is not None:
        raise errors.InvalidParameterException("You can't use ForceDeleteWithoutRecovery in conjunction with RecoveryWindowInDays.")
    if days is not None and days not in WINDOWS_DAYS:
        raise errors.InvalidParameterException("The RecoveryWindowInDays value must be between 7 and 30 days (inclusive).")
    if is_forced:
        found = look_up(tx, caller, params["SecretId"])
        if found is None:  # as on AWS, this is no error
            return {**_named_as_given(tx, caller, params["SecretId"]), "DeletionDate": tx.now_s}
        tx.store.secrets.drop(found.region, found.name)
        return {**named(caller, found), "DeletionDate": tx.now_s}
    secret = find(tx, caller, params["SecretId"], with_deleted=True)
    if secret.delete_at_s is not None:
        raise marked_for_deletion()
    delete_at_s = tx.now_s + (WINDOW_DAYS if days is None else days) * DAY_S
    change(tx, secret, delete_at_s=delete_at_s)
    tx.due(_key(secret), delete_at_s)
    return {**named(caller, secret), "DeletionDate": delete_at_s}


def _named_as_given(tx: Tx[Store], caller: Caller, secret_id: str) -> dict[str, Any]:
    if secret_id.startswith(ARN_PREFIX):
        return {"ARN": secret_id, "Name": secret_id.split(":", 6)[-1]}
    return {"ARN": secret_arn(caller.account, caller.region, f"{secret_id}-{new_suffix(tx)}"), "Name": secret_id}


def _key(secret: StoredSecret) -> str:
    return f"secret:{secret.region}/{secret.name}"


def delete_if_due(tx: Tx[Store], region: str, name: str) -> None:
    """Delete a secret whose recovery window is over."""
    secret = tx.store.secrets.get(region, name)
    if secret is None or secret.delete_at_s is None:
        return
    if secret.delete_at_s > tx.now_s:
        tx.due(_key(secret), secret.delete_at_s)
        return
    tx.store.secrets.drop(region, name)


def restore_secret(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret = find(tx, caller, params["SecretId"], with_deleted=True)
    if secret.delete_at_s is not None:
        change(tx, secret, delete_at_s=None)
    return named(caller, secret)


# Tags


def tag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret = find(tx, caller, params["SecretId"])
    change(tx, secret, tags=TAG_RULES.merge(secret.tags or {}, TAG_RULES.read(params["Tags"])))
    return {}


def untag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret = find(tx, caller, params["SecretId"])
    change(tx, secret, tags=TAG_RULES.remove(secret.tags or {}, params["TagKeys"]) if secret.tags is not None else None)
    return {}
