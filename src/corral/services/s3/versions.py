"""Adds and removes object versions and delete markers. The result depends on the versioning state of the bucket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.objects.preconditions import etag_matches
from corral.model.blob import GARBAGE
from corral.model.objects import ENABLED, NULL, NUMBER_DIGITS, Bucket, MultipartUpload, ObjectVersion
from corral.services.s3.errors import condition_not_accepted, conditional_conflict, no_such_key, precondition_failed
from corral.services.s3.notifications import BY_REQUEST, object_created, object_removed
from corral.store import Store

# The detail of an upload that has the number of the key's version when the upload was created; 0 if the key did not exist.
KEY_VERSION = "KeyVersion"


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
    part_writers: Iterable[str | None] = (),
) -> ObjectVersion:
    """Add a version, which becomes the latest version of its key. If versioning is not enabled, it replaces the version `null`.

    The caller must have added one reference to the content for this version, by `add_content` or `refer_to`. If the version
    completes an upload, it takes over the upload's reference, and `part_writers` are the writers of its parts.
    """
    writers = _one_for_each_role([caller.writer, *part_writers])
    version = _add(tx, bucket, key, content=content, size=size, etag=etag, details=details, upload_id=upload_id, writers=writers)
    object_created(tx, bucket, version, event_name, caller)
    return version


def add_marker(tx: Tx[Store], bucket: Bucket, key: str, caller: Caller, cause: str = BY_REQUEST) -> ObjectVersion:
    marker = _add(tx, bucket, key, content=None, size=0, etag="", details={}, upload_id=None)
    object_removed(tx, bucket, marker, "DeleteMarkerCreated", caller, cause)
    return marker


def remove(tx: Tx[Store], bucket: Bucket, version: ObjectVersion, caller: Caller, cause: str = BY_REQUEST) -> None:
    """Delete the version permanently."""
    wake_blob_gc(tx, tx.store.objects.drop_version(bucket.id, version))
    object_removed(tx, bucket, version, "Delete", caller, cause)


def check_write(tx: Tx[Store], bucket: Bucket, key: str, params: Mapping[str, Any], upload: MultipartUpload | None = None) -> None:
    """Raise an error if the current object does not match the request's If-Match or If-None-Match.

    If the request completes an upload, the key must also not have changed since the upload was created.
    """
    if_match, if_none_match = params.get("IfMatch"), params.get("IfNoneMatch")
    if if_match is None and if_none_match is None:
        return
    if if_match is not None and if_none_match is not None:
        raise condition_not_accepted("If-Match,If-None-Match", "Multiple conditional request headers present in the request")
    header, value = ("If-Match", if_match) if if_match is not None else ("If-None-Match", if_none_match)
    if (value == "*") is (header == "If-Match"):  # a write accepts an ETag in If-Match, and * in If-None-Match
        raise condition_not_accepted(header)
    found = current(tx, bucket, key)
    if header == "If-Match" and found is None:
        raise no_such_key(key)
    if found is not None and (header == "If-None-Match" or not etag_matches(str(value), found.etag)):
        raise precondition_failed(header)
    number = found.number if found is not None else 0
    if upload is not None and upload.details.get(KEY_VERSION, number) != number:
        raise conditional_conflict(header, key)


def current(tx: Tx[Store], bucket: Bucket, key: str) -> ObjectVersion | None:
    """The current version of a key. None if the key does not exist, or if a delete marker hides it."""
    latest = tx.store.objects.latest(bucket.id, key)
    return latest if latest is not None and not latest.is_marker else None


def _one_for_each_role(writers: Iterable[str | None]) -> tuple[str, ...]:
    """Return one `Caller.writer` for each role and owner. The sessions of a role have the same permissions."""
    return tuple({(writer.split("/")[0], *writer.split("/")[2:]): writer for writer in writers if writer is not None}.values())


def wake_blob_gc(tx: Tx[Store], has_garbage: bool) -> None:
    """If files have become unused (`has_garbage`), wake the code that deletes them (`server/blob_gc.py`) after the commit."""
    if has_garbage:
        tx.changed(GARBAGE)


def _add(
    tx: Tx[Store],
    bucket: Bucket,
    key: str,
    *,
    content: int | None,
    size: int,
    etag: str,
    details: Mapping[str, Any],
    upload_id: str | None,
    writers: tuple[str, ...] = (),
) -> ObjectVersion:
    number, version_id = tx.store.objects.next_number(), NULL
    if bucket.versioning == ENABLED:
        version_id = f"{number:0{NUMBER_DIGITS}x}{tx.ids.hex32()[NUMBER_DIGITS:]}"
    else:
        replaced = tx.store.objects.version(bucket.id, key, NULL)
        if replaced is not None:
            wake_blob_gc(tx, tx.store.objects.drop_version(bucket.id, replaced))
    version = ObjectVersion(number, key, version_id, True, content, size, etag, tx.wall_s, details, upload_id, writers)
    tx.store.objects.add_version(bucket.id, version, is_first=not bucket.versioning)  # without versioning, this is the only version
    return version
