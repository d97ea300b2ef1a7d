"""Objects deleted: one, or up to a thousand."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.decide.preconditions import matches
from corral.errors import ApiError
from corral.model.objects import Bucket
from corral.services.caller import Caller
from corral.services.s3 import versions
from corral.services.s3.errors import no_such_key, precondition_failed
from corral.services.s3.naming import check_key, existing_bucket
from corral.store import Store

AT_ONCE = 100  # about 5 ms of work


def delete_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    conditions = _conditions(params, "IfMatch", "IfMatchLastModifiedTime", "IfMatchSize")
    return _delete(tx, bucket, params["Key"], params.get("VersionId"), conditions, caller)


def in_pieces(params: dict[str, Any]) -> list[dict[str, Any]]:
    """A thousand keys would keep everybody else waiting: a command has some of them. S3 promises nothing of all or none."""
    wanted = params["Delete"]["Objects"]
    some = (wanted[at : at + AT_ONCE] for at in range(0, len(wanted), AT_ONCE))
    return [{**params, "Delete": {**params["Delete"], "Objects": each}} for each in some]


def delete_objects(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    wanted = params["Delete"]["Objects"]
    deleted, errors = [], []
    for each in wanted:
        named = {name: each[name] for name in ("Key", "VersionId") if name in each}
        try:
            check_key(each["Key"])
            done = _delete(
                tx, bucket, each["Key"], each.get("VersionId"), _conditions(each, "ETag", "LastModifiedTime", "Size"), caller
            )
        except ApiError as refusal:
            errors.append({**named, "Code": refusal.code, "Message": refusal.message})
            continue
        if done.get("DeleteMarker"):
            done["DeleteMarkerVersionId"] = done["VersionId"]
        deleted.append({**{name: value for name, value in done.items() if name != "VersionId"}, **named})
    quiet = params["Delete"].get("Quiet", False)
    return {**({"Deleted": deleted} if not quiet else {}), **({"Errors": errors} if errors else {})}


def _conditions(given: dict[str, Any], etag: str, modified: str, size: str) -> dict[str, Any]:
    names = {"etag": etag, "modified_s": modified, "size": size}
    return {kind: given[name] for kind, name in names.items() if name in given}


def _delete(
    tx: Tx[Store], bucket: Bucket, key: str, version_id: str | None, conditions: dict[str, Any], caller: Caller
) -> dict[str, Any]:
    """What is not there was deleted too: S3 says so, and every client relies on it."""
    if version_id is None:
        found = tx.store.objects.latest(bucket.id, key)
    else:
        found = tx.store.objects.version(bucket.id, key, version_id)
    if conditions:
        if found is None or found.is_marker:
            raise no_such_key(key)
        if not (
            matches(conditions.get("etag", "*"), found.etag)
            and conditions.get("modified_s", int(found.modified_at_s)) == int(found.modified_at_s)
            and conditions.get("size", found.size) == found.size
        ):
            raise precondition_failed("If-Match")
    if version_id is None and bucket.versioning:
        marker = versions.add_marker(tx, bucket, key, caller)
        return {"DeleteMarker": True, "VersionId": marker.id}
    if found is not None:
        versions.remove(tx, bucket, found, caller)
    said: dict[str, Any] = {"VersionId": version_id} if version_id is not None else {}
    return said | ({"DeleteMarker": True} if found is not None and found.is_marker else {})
