"""Versions of secrets, and their staging labels: AWSCURRENT, AWSPREVIOUS, AWSPENDING and labels of users."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.secret import SecretVersion, StoredSecret
from corral.operations.encryption import CannotDecrypt, decrypt, encrypt
from corral.operations.pagination import Pagination, among
from corral.services.secretsmanager import errors
from corral.services.secretsmanager.secret_names import change, find, named
from corral.store import Store

CURRENT, PREVIOUS, PENDING = "AWSCURRENT", "AWSPREVIOUS", "AWSPENDING"
VERSIONS_MAX = 100
STAGES_MAX = 20  # staging labels of all versions of a secret together
DEFAULT_KEY = "DefaultEncryptionKey"
PAGES = Pagination(errors.InvalidNextTokenException, "MaxResults", "NextToken", "NextToken", default=100, largest=100)
Value = str | bytes


def given_token(params: dict[str, Any], error: type[ApiError] = errors.InvalidRequestException) -> str:
    if not params.get("ClientRequestToken"):
        raise error("You must provide a ClientRequestToken value. We recommend a UUID-type value.")
    return str(params["ClientRequestToken"])


def given_value(params: dict[str, Any]) -> Value | None:
    """Return the value in a request. Raise an error if the request has two."""
    text, data = params.get("SecretString"), params.get("SecretBinary")
    if text is not None and data is not None:
        raise errors.InvalidParameterException(
            "You can't specify both a binary secret value and a string secret value in the same secret."
        )
    return data if text is None else text


def put_secret_value(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret, token, value = find(tx, caller, params["SecretId"]), given_token(params), given_value(params)
    if value is None:
        raise errors.InvalidRequestException("You must provide either SecretString or SecretBinary.")
    version = add_version(tx, caller, secret, token, value, params.get("VersionStages") or (CURRENT,))
    return {**named(caller, secret), "VersionId": version.id, "VersionStages": list(version.stages)}


def add_version(
    tx: Tx[Store], caller: Caller, secret: StoredSecret, token: str, value: Value, stages: Iterable[str] = (CURRENT,)
) -> SecretVersion:
    """Add a version with staging labels, which its other versions lose. If the version exists with this value, change nothing."""
    versions = tx.store.secrets.versions(secret.region, secret.name)
    known = next((each for each in versions if each.id == token), None)
    if known is not None:
        if value_of(tx, caller, secret, known) != value:
            raise errors.ResourceExistsException(
                f"You can't use ClientRequestToken {token} because that value is already in use for a version of secret "
                f"{secret.arn(caller.account)}."
            )
        return known
    text, is_binary = (value, False) if isinstance(value, str) else (b64encode(value).decode(), True)
    after = with_stages(versions, token, {*stages} if versions else {*stages, CURRENT})
    added = SecretVersion(
        region=secret.region,
        secret=secret.name,
        id=token,
        number=versions[-1].number + 1 if versions else 1,
        value=encrypt(tx.settings.secrets_key, text, _context(caller, secret, token)),
        is_binary=is_binary,
        created_at_s=tx.now_s,
        accessed_at_s=None,
        stages=tuple(sorted(after[token])),
    )
    tx.store.secrets.add_version(added)
    _set_stages(tx, versions, after)
    deprecated = [each for each in versions if not after[each.id]]
    for version in deprecated[: max(0, len(versions) + 1 - VERSIONS_MAX)]:
        tx.store.secrets.drop_version(version)
    change(tx, secret)
    return added


def value_of(tx: Tx[Store], caller: Caller, secret: StoredSecret, version: SecretVersion) -> Value:
    try:
        text = decrypt(tx.settings.secrets_key, version.value, _context(caller, secret, version.id))
    except CannotDecrypt:
        raise errors.DecryptionFailure(
            "Secrets Manager can't decrypt the protected secret text using the provided KMS key: the value was encrypted with "
            "another key than the one in secrets.json of the data folder. Restore that file, or put the value again."
        ) from None
    return b64decode(text) if version.is_binary else text


def _context(caller: Caller, secret: StoredSecret, version_id: str) -> str:
    return f"{secret.arn(caller.account)}/{version_id}"


def find_version(versions: Iterable[SecretVersion], version_id: str | None, stage: str | None) -> SecretVersion:
    """Return the version with an id or a staging label. Without both, it is the version with AWSCURRENT."""
    if version_id is None:
        stage = stage or CURRENT
        found = next((each for each in versions if stage in each.stages), None)
        if found is None:
            raise errors.ResourceNotFoundException(
                f"Secrets Manager can't find the specified secret value for staging label: {stage}"
            )
        return found
    found = next((each for each in versions if each.id == version_id), None)
    if found is None:
        raise errors.ResourceNotFoundException(f"Secrets Manager can't find the specified secret value for VersionId: {version_id}")
    if stage is not None and stage not in found.stages:
        raise errors.InvalidRequestException("You provided a VersionStage that is not associated to the provided VersionId.")
    return found


def list_secret_version_ids(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret = find(tx, caller, params["SecretId"], with_deleted=True)
    shown = {
        f"{version.number:012}": _description(secret, version)
        for version in tx.store.secrets.versions(secret.region, secret.name)
        if version.stages or params.get("IncludeDeprecated")
    }
    page, token = PAGES.page(params, among(shown))
    return {**named(caller, secret), "Versions": page, **token}


def _description(secret: StoredSecret, version: SecretVersion) -> dict[str, Any]:
    return {
        "VersionId": version.id,
        "VersionStages": list(version.stages) or None,
        "LastAccessedDate": version.accessed_at_s,
        "CreatedDate": version.created_at_s,
        "KmsKeyIds": [secret.details.get("KmsKeyId", DEFAULT_KEY)],
    }


# Staging labels


def update_secret_version_stage(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret, stage = find(tx, caller, params["SecretId"]), params["VersionStage"]
    source, target = params.get("RemoveFromVersionId"), params.get("MoveToVersionId")
    if source is None and target is None:
        raise errors.InvalidParameterException("You must specify RemoveFromVersionId, MoveToVersionId, or both.")
    versions = tx.store.secrets.versions(secret.region, secret.name)
    for version_id in (source, target):
        if version_id is not None:
            find_version(versions, version_id, None)
    holder = next((each.id for each in versions if stage in each.stages), None)
    if target is None:
        if stage == CURRENT:
            raise errors.InvalidParameterException(
                f"You can only move staging label {CURRENT} to a different secret version. It can't be completely removed."
            )
        if holder != source:
            raise errors.InvalidParameterException(f"Staging label {stage} isn't attached to version {source}.")
        after = {each.id: {*each.stages} - {stage} for each in versions}
    else:
        if holder not in (None, target, source):
            wrong = "can't be empty" if source is None else f"can't be {source}"
            raise errors.InvalidParameterException(
                f"The parameter RemoveFromVersionId {wrong}. Staging label {stage} is currently attached to version {holder}, so "
                "you must explicitly reference that version in RemoveFromVersionId."
            )
        after = with_stages(versions, target, {stage})
    _set_stages(tx, versions, after)
    change(tx, secret)
    return named(caller, secret)


def with_stages(versions: Iterable[SecretVersion], target: str, added: set[str]) -> dict[str, set[str]]:
    """Return the staging labels of each version after the version `target`, which may be new, gets some labels.

    Only one version can have a label. If AWSCURRENT moves, the version that had it gets AWSPREVIOUS. It also loses AWSPENDING,
    because its rotation is over.
    """
    before = {each.id: set(each.stages) for each in versions}
    after = {id: stages - added for id, stages in before.items()}
    after[target] = before.get(target, set()) | added
    if CURRENT in added:
        for id, stages in before.items():
            if CURRENT in stages and id != target:
                after = {each: left - {PREVIOUS} for each, left in after.items()}
                after[id] = (after[id] | {PREVIOUS}) - {PENDING}
    return after


def _set_stages(tx: Tx[Store], versions: Iterable[SecretVersion], after: dict[str, set[str]]) -> None:
    if sum(map(len, after.values())) > STAGES_MAX:
        raise errors.LimitExceededException(f"A secret can have at most {STAGES_MAX} staging labels attached to its versions.")
    for version in versions:
        if after[version.id] != set(version.stages):
            tx.store.secrets.set_stages(version, tuple(sorted(after[version.id])))
