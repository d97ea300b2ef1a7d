"""S3 buckets, object versions, the parts of their content, and multipart uploads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")
NULL = "null"  # the id of a version that was created without versioning
# A version id has 32 hexadecimal digits. It begins with the version's number, which has this many of them. So a listing can
# continue after a version that has been deleted meanwhile.
NUMBER_DIGITS = 12
_VERSION_ID = re.compile(r"[0-9a-f]{32}")
ENABLED = "Enabled"
SUSPENDED = "Suspended"
# Kinds of documents that a client can attach to a bucket. Only the kinds that change the effect of requests on objects are here.
BUCKET_ENCRYPTION = "BucketEncryption"
BUCKET_LIFECYCLE = "BucketLifecycleConfiguration"
BUCKET_NOTIFICATION = "BucketNotificationConfiguration"
BUCKET_POLICY = "BucketPolicy"
STORAGE_CLASSES = (
    "STANDARD", "REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER", "DEEP_ARCHIVE", "GLACIER_IR",
    "EXPRESS_ONEZONE",
)  # fmt: skip
SSE_METHODS = ("AES256", "aws:kms", "aws:kms:dsse")


def number_in(version_id: str) -> int | None:
    """The version number in a version id; None if the id has another format."""
    return int(version_id[:NUMBER_DIGITS], 16) if _VERSION_ID.fullmatch(version_id) else None


class Bucket(Struct, frozen=True):
    id: int
    name: str
    region: str
    created_at_s: float
    owner: str  # see `model/principal.py`
    versioning: str  # ENABLED, SUSPENDED, or "" if versioning was never enabled
    has_lifecycle: bool = False
    has_notifications: bool = False
    encryption: Mapping[str, Any] | None = None  # the bucket's document BUCKET_ENCRYPTION, if it has one
    policy: str | None = None  # the bucket's document BUCKET_POLICY, if it has one


class ObjectVersion(Struct, frozen=True):
    number: int  # the newer of two versions has the larger number
    key: str
    id: str  # the VersionId that clients use
    latest: bool
    content: int | None  # the id of the content, whose parts hold the bytes; None: a delete marker
    size: int
    etag: str  # without quotes
    modified_at_s: float
    details: Mapping[str, Any]  # members of GetObject's response that are stored; also `Tags`: name → value
    upload_id: str | None = None  # the multipart upload that created it
    # `Caller.writer` of the caller that created the version, and of those that uploaded its parts; one for each role. Without those
    # that are None.
    writers: tuple[str, ...] = ()

    @property
    def is_marker(self) -> bool:
        return self.content is None


class ContentPart(Struct, frozen=True):
    """One blob of an object's content: the whole content, or one part of a multipart upload."""

    number: int
    blob: str
    size: int
    etag: str  # MD5 in hexadecimal digits
    checksums: Mapping[str, str]  # algorithm → checksum in base64, as in HTTP headers
    modified_at_s: float
    writer: str | None = None  # only of a part of a multipart upload: `Caller.writer` of the caller that uploaded it


class MultipartUpload(Struct, frozen=True):
    """A multipart upload that is neither completed nor aborted."""

    number: int  # the id of the content to which its parts belong; the newer of two uploads has the larger number
    id: str
    bucket_id: int
    key: str
    initiated_at_s: float
    details: Mapping[str, Any]  # the details of the new object, and `ChecksumAlgorithm` and `ChecksumType`


class ListingPage(Struct, Generic[T], frozen=True):
    """A page of a listing, sorted by key. A common prefix is a string; all other items are of type T."""

    found: list[T | str]
    more: bool
