"""Names of buckets, keys and owners, and finding what they name."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from corral.core import Tx
from corral.errors import ApiError
from corral.model.objects import NULL, Bucket, Version
from corral.services.caller import Caller
from corral.services.s3.errors import (
    AccessDenied,
    InvalidBucketName,
    KeyTooLongError,
    MethodNotAllowed,
    NoSuchBucket,
    NoSuchVersion,
    no_such_key,
)
from corral.store import Store

KEY_MAX_BYTES = 1024
PAGE_MAX = 1_000

_NAME = re.compile(r"(?=.{3,63}$)[a-z0-9][a-z0-9-]*(?:\.[a-z0-9][a-z0-9-]*)*")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_RESERVED_STARTS = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_ENDS = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def check_bucket_name(name: str) -> None:
    is_name = _NAME.fullmatch(name) and not _ADDRESS.fullmatch(name) and "-." not in name and not name.endswith("-")
    if not is_name or name.startswith(_RESERVED_STARTS) or name.endswith(_RESERVED_ENDS):
        raise InvalidBucketName("The specified bucket is not valid.", BucketName=name)


def check_key(key: str) -> None:
    size = len(key.encode())
    if size > KEY_MAX_BYTES:
        raise KeyTooLongError("Your key is too long", Size=size, MaxSizeAllowed=KEY_MAX_BYTES)


def existing_bucket(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Bucket:
    """The bucket that a request names, if it is its sender's idea of whose it is."""
    bucket = tx.store.buckets.get(params["Bucket"])
    if bucket is None:
        raise NoSuchBucket("The specified bucket does not exist", BucketName=params["Bucket"])
    if params.get("ExpectedBucketOwner", caller.account) != caller.account:
        raise AccessDenied("Access Denied")
    return bucket


def existing_version(tx: Tx[Store], bucket: Bucket, key: str, version_id: str | None) -> Version:
    """The version that is asked for, or the latest one; a delete marker is neither."""
    if version_id is None:
        latest = tx.store.objects.latest(bucket.id, key)
        if latest is None or latest.is_marker:
            raise _about_marker(no_such_key(key), latest)
        return latest
    found = tx.store.objects.version(bucket.id, key, version_id)
    if found is None:
        raise NoSuchVersion("The specified version does not exist.", Key=key, VersionId=version_id)
    if found.is_marker:
        message = "The specified method is not allowed against this resource."
        raise _about_marker(MethodNotAllowed(message, ResourceType="DeleteMarker"), found)
    return found


def shown_id(bucket: Bucket, version: Version) -> dict[str, str]:
    """`VersionId`, where the bucket has or had versions."""
    return {"VersionId": version.id} if bucket.versioning or version.id != NULL else {}


def limit_of(params: dict[str, Any], member: str) -> int:
    """How many a page may hold."""
    limit: int = params.get(member, PAGE_MAX)
    return min(limit, PAGE_MAX)


def owner(caller: Caller) -> dict[str, str]:
    """The account as S3 names it: by something long that says nothing."""
    return {"ID": sha256(f"corral/{caller.account}".encode()).hexdigest()}


def quoted(etag: str) -> str:
    return f'"{etag}"'


def location(tx: Tx[Store], bucket: Bucket, key: str) -> str:
    return f"{tx.settings.endpoint_url}/{bucket.name}/{quote(key)}"


def _about_marker(error: ApiError, version: Version | None) -> ApiError:
    if version is not None:
        error.headers = {"x-amz-delete-marker": "true", "x-amz-version-id": version.id}
    return error
