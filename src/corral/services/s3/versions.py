"""Versions come and go by the rules of their bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core import Tx
from corral.decide.preconditions import matches
from corral.model.objects import ENABLED, NULL, Bucket, Version
from corral.services.caller import Caller
from corral.services.s3.contents import thrown_away
from corral.services.s3.errors import no_such_key, precondition_failed, unsupported
from corral.services.s3.events import BY_REQUEST, object_created, object_removed
from corral.store import Store

NUMBER_DIGITS = 12  # a version's id begins with its number, so that a listing goes on where a deleted one was


def add(
    tx: Tx[Store],
    bucket: Bucket,
    key: str,
    *,
    content: int,
    size: int,
    etag: str,
    details: Mapping[str, Any],
    event_name: str,
    caller: Caller,
    upload_id: str | None = None,
) -> Version:
    """A new version, which is the latest; without versioning it takes the place of the one before.

    It takes a reference to its content with it: that of `add_content` or `refer_to`, or of an upload that ends.
    """
    version = _new(tx, bucket, key, content=content, size=size, etag=etag, details=details, upload_id=upload_id)
    object_created(tx, bucket, version, event_name, caller)
    return version


def add_marker(tx: Tx[Store], bucket: Bucket, key: str, caller: Caller, cause: str = BY_REQUEST) -> Version:
    marker = _new(tx, bucket, key, content=None, size=0, etag="", details={}, upload_id=None)
    object_removed(tx, bucket, marker, "DeleteMarkerCreated", caller, cause)
    return marker


def remove(tx: Tx[Store], bucket: Bucket, version: Version, caller: Caller, cause: str = BY_REQUEST) -> None:
    """For good."""
    thrown_away(tx, tx.store.objects.drop_version(bucket.id, version))
    object_removed(tx, bucket, version, "Delete", caller, cause)


def check_write(tx: Tx[Store], bucket: Bucket, key: str, params: Mapping[str, Any]) -> None:
    """Conditions on what the new object would take the place of."""
    if_match, if_none_match = params.get("IfMatch"), params.get("IfNoneMatch")
    if if_match is None and if_none_match is None:
        return
    if if_none_match not in (None, "*"):
        raise unsupported("If-None-Match", "a write may only ask that there be nothing, with *")
    latest = tx.store.objects.latest(bucket.id, key)
    if latest is not None and latest.is_marker:
        latest = None
    if if_none_match is not None and latest is not None:
        raise precondition_failed("If-None-Match")
    if if_match is not None:
        if latest is None:
            raise no_such_key(key)
        if not matches(if_match, latest.etag):
            raise precondition_failed("If-Match")


def number_in(version_id: str) -> int | None:
    """The number that an id of ours begins with."""
    try:
        return int(version_id[:NUMBER_DIGITS], 16) if len(version_id) == 32 else None
    except ValueError:
        return None


def _new(
    tx: Tx[Store],
    bucket: Bucket,
    key: str,
    *,
    content: int | None,
    size: int,
    etag: str,
    details: Mapping[str, Any],
    upload_id: str | None,
) -> Version:
    number, version_id = tx.store.objects.next_number(), NULL
    if bucket.versioning == ENABLED:
        version_id = f"{number:0{NUMBER_DIGITS}x}{tx.ids.hex32()[NUMBER_DIGITS:]}"
    else:
        replaced = tx.store.objects.version(bucket.id, key, NULL)
        if replaced is not None:
            thrown_away(tx, tx.store.objects.drop_version(bucket.id, replaced))
    version = Version(number, key, version_id, True, content, size, etag, tx.now_s, details, upload_id)
    tx.store.objects.add_version(bucket.id, version, is_first=not bucket.versioning)  # without versioning there is no other one
    return version
