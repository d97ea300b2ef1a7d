"""Functions that find the bucket and the version that a request names, and the response members that identify both."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from urllib.parse import quote

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.http_dates import http_date
from corral.model.objects import NULL, Bucket, ObjectVersion, number_in
from corral.model.principal import acting_service
from corral.model.private_environment import BUCKET
from corral.model.shipped_folder import BUCKET as SHIPPED_FOLDERS
from corral.services.s3.errors import (
    AccessDenied,
    KeyTooLongError,
    MethodNotAllowed,
    NoSuchBucket,
    invalid_version_id,
    no_such_key,
    no_such_version,
)
from corral.store import Store

KEY_MAX_BYTES = 1024
PAGE_MAX = 1_000
S3 = "s3.amazonaws.com"
PRIVATE = {BUCKET: "the environment variables", SHIPPED_FOLDERS: "the folders"}


def existing_bucket(tx: Tx[Store], params: dict[str, Any], caller: Caller, *, puts_object: bool = False) -> Bucket:
    """The bucket that a request names. If the request has an `ExpectedBucketOwner`, the caller's account must match.

    The buckets PRIVATE are private: they have what `corral run` stores. Every caller may put an object there, but only the root
    user may do anything else.
    """
    bucket = tx.store.buckets.get(params["Bucket"])
    if bucket is None:
        raise NoSuchBucket("The specified bucket does not exist", BucketName=params["Bucket"])
    if params.get("ExpectedBucketOwner", caller.account) != caller.account:
        raise AccessDenied("Access Denied")
    if bucket.name in PRIVATE and not puts_object and not caller.is_root:
        raise AccessDenied(
            f"Only the root user can access the bucket {bucket.name}, which contains {PRIVATE[bucket.name]} of runs."
        )
    return bucket


def own_caller(tx: Tx[Store], bucket: Bucket) -> Caller:
    """Return the caller of a change that S3 itself makes, for example an expiry. S3 acts for the owner of the bucket."""
    principal = acting_service(tx.settings.account, S3, bucket.owner)
    return Caller(tx.settings.account, bucket.region, principal, request_id=tx.ids.uuid(), source_ip=S3)


def existing_version(
    tx: Tx[Store], bucket: Bucket, key: str, version_id: str | None, *, marker_hides_key: bool = True
) -> ObjectVersion:
    """The version with this id, or the latest version. Raises an error if the version is a delete marker.

    With `marker_hides_key`, a key whose latest version is a delete marker does not exist.
    """
    if version_id is None:
        latest = tx.store.objects.latest(bucket.id, key)
        if latest is not None and latest.is_marker and not marker_hides_key:
            raise _marker_not_allowed(latest)
        return _existing(latest, key)
    found = tx.store.objects.version(bucket.id, key, version_id)
    if found is None:
        raise no_such_version(key, version_id) if is_version_id(version_id) else invalid_version_id(version_id)
    if found.is_marker:
        raise _marker_not_allowed(found)
    return found


def is_version_id(text: str) -> bool:
    """Whether a text has the format of a version id. The version may not exist."""
    return text == NULL or number_in(text) is not None


def _marker_not_allowed(marker: ObjectVersion) -> ApiError:
    message = "The specified method is not allowed against this resource."
    error = _with_marker_headers(MethodNotAllowed(message, ResourceType="DeleteMarker"), marker)
    error.headers |= {"Allow": "DELETE", "Last-Modified": http_date(int(marker.modified_at_s))}
    return error


def existing_version_with_blob(tx: Tx[Store], bucket: Bucket, key: str, version_id: str | None) -> tuple[ObjectVersion, str | None]:
    """Return the same as `existing_version`, and the blob (file) that has all bytes of the version.

    The blob is None if the request names a version, or if the object has several parts.
    """
    if version_id is not None:
        return existing_version(tx, bucket, key, version_id), None
    version, blob = tx.store.objects.latest_with_blob(bucket.id, key) or (None, None)
    return _existing(version, key), blob


def _existing(latest: ObjectVersion | None, key: str) -> ObjectVersion:
    if latest is None or latest.is_marker:
        raise _with_marker_headers(no_such_key(key), latest)
    return latest


def check_key(key: str) -> None:
    size = len(key.encode())
    if size > KEY_MAX_BYTES:
        raise KeyTooLongError("Your key is too long", Size=size, MaxSizeAllowed=KEY_MAX_BYTES)


def page_limit(params: dict[str, Any], member: str) -> int:
    """The maximum number of entries in one page of a listing."""
    limit: int = params.get(member, PAGE_MAX)
    return min(limit, PAGE_MAX)


def version_id_member(bucket: Bucket, version: ObjectVersion) -> dict[str, str]:
    """The response member `VersionId`. Empty if versioning was never enabled for the bucket."""
    return {"VersionId": version.id} if bucket.versioning or version.id != NULL else {}


def new_version_id_member(version: ObjectVersion) -> dict[str, str]:
    """The response member `VersionId` of a request that has created a version. Empty unless versioning is enabled."""
    return {"VersionId": version.id} if version.id != NULL else {}


def owner(caller: Caller) -> dict[str, str]:
    """The canonical user id of the account. It is a hash, so it does not reveal the account number."""
    return {"ID": sha256(f"corral/{caller.account}".encode()).hexdigest()}


def bucket_arn(name: str) -> str:
    return f"arn:aws:s3:::{name}"


def quoted(etag: str) -> str:
    return f'"{etag}"'


def location(tx: Tx[Store], caller: Caller, bucket: Bucket, key: str) -> str:
    url = caller.endpoint_url if caller.secure else tx.settings.endpoint_url
    return f"{url.replace(f'//{bucket.name}.', '//', 1)}/{bucket.name}/{quote(key)}"


def _with_marker_headers(error: ApiError, version: ObjectVersion | None) -> ApiError:
    if version is not None:
        error.headers = {"x-amz-delete-marker": "true", "x-amz-version-id": version.id}
    return error
