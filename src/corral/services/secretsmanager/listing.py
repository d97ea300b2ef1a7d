"""ListSecrets: filters, sort keys and pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.secret import StoredSecret
from corral.services.secretsmanager import errors
from corral.services.secretsmanager.descriptions import description
from corral.services.secretsmanager.versions import PAGES
from corral.store import Store

SCAN_CHUNK = 100  # secrets read at a time
SCANNED_MAX = 1_000  # secrets read for one request; a page can therefore be short and still have a next token
NOT = "!"  # a value with this prefix excludes the secrets that the rest of the value matches


def list_secrets(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    page, token = filtered(tx, params, caller)
    return {"SecretList": [_entry(tx, caller, secret) for secret in page], **token}


def _entry(tx: Tx[Store], caller: Caller, secret: StoredSecret) -> dict[str, Any]:
    shown = description(tx, caller, secret)
    stages = shown.pop("VersionIdsToStages")
    return {**shown, "SecretVersionsToStages": stages}


def filtered(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[list[StoredSecret], dict[str, Any]]:
    """Return a page of the secrets that match the filters of a request, and the members of the response about the next page."""
    limit = PAGES.limit_of(params) or PAGES.largest
    filters = [_checked(each) for each in params.get("Filters") or ()]
    sort, descending = params.get("SortBy", "created-date"), params.get("SortOrder") == "desc"
    after, found = PAGES.position(params, lambda text: _position(text, sort)), list[StoredSecret]()
    last: tuple[str | float, str] | None = None
    for _ in range(0, SCANNED_MAX, SCAN_CHUNK):
        scanned = tx.store.secrets.listed(
            caller.region, sort, after, SCAN_CHUNK, descending=descending,
            with_deleted=bool(params.get("IncludePlannedDeletion")),
        )  # fmt: skip
        for value, secret in scanned:
            if all(_matches(secret, key, values) for key, values in filters):
                if len(found) == limit:
                    return found, PAGES.more(orjson.dumps(last).decode())
                found.append(secret)
                last = (value, secret.name)
        if len(scanned) < SCAN_CHUNK:
            return found, {}
        after = (scanned[-1][0], scanned[-1][1].name)
    return found, PAGES.more(orjson.dumps(after).decode())


def _position(text: str, sort: str) -> tuple[str | float, str] | None:
    if not text:
        return None
    given = orjson.loads(text)
    match given:
        case [value, str(name)] if isinstance(value, str if sort == "name" else float | int):
            return value, name
    raise ValueError


def _checked(given: dict[str, Any]) -> tuple[str, list[str]]:
    if not given.get("Key"):
        raise errors.InvalidParameterException("Invalid filter key")
    if not given.get("Values"):
        raise errors.InvalidParameterException(f"Invalid filter values for key: {given['Key']}")
    return given["Key"], given["Values"]


def _matches(secret: StoredSecret, key: str, values: Iterable[str]) -> bool:
    """Return whether a secret matches one of the values, and none of those with an exclamation mark."""
    excluded = [value[1:] for value in values if value.startswith(NOT)]
    wanted = [value for value in values if not value.startswith(NOT)]
    if any(_has(secret, key, value) for value in excluded):
        return False
    return not wanted or any(_has(secret, key, value) for value in wanted)


def _has(secret: StoredSecret, key: str, value: str) -> bool:
    tags, about = secret.tags or {}, secret.details.get("Description", "")
    match key:
        case "name":
            return secret.name.startswith(value)
        case "description":
            return any(word.startswith(value.lower()) for word in (about.lower(), *about.lower().split()))
        case "tag-key":
            return any(each.startswith(value) for each in tags)
        case "tag-value":
            return any(each.startswith(value) for each in tags.values())
        case "all":
            texts = [text.lower() for text in (secret.name, about, *tags, *tags.values())]
            return all(any(word in text for text in texts) for word in value.lower().split())
    return False  # primary-region and owning-service: Corral has no replicas, and no service owns a secret
