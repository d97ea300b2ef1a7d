"""Buckets, object versions, the parts of their content, and multipart uploads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")
NULL = "null"  # the id of a version that was created without versioning
ENABLED = "Enabled"
SUSPENDED = "Suspended"
# Kinds of bucket documents that change how requests on objects behave.
BUCKET_ENCRYPTION = "BucketEncryption"
BUCKET_LIFECYCLE = "BucketLifecycleConfiguration"
BUCKET_NOTIFICATION = "BucketNotificationConfiguration"
STORAGE_CLASSES = (
    "STANDARD", "REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER", "DEEP_ARCHIVE", "GLACIER_IR",
    "EXPRESS_ONEZONE",
)  # fmt: skip
SSE_METHODS = ("AES256", "aws:kms", "aws:kms:dsse")


class Bucket(Struct, frozen=True):
    id: int
    name: str
    region: str
    created_at_s: float
    versioning: str  # "" (never), ENABLED or SUSPENDED
    has_lifecycle: bool = False
    has_notifications: bool = False
    encryption: Mapping[str, Any] | None = None  # the BUCKET_ENCRYPTION document, if it has one


class ObjectVersion(Struct, frozen=True):
    """One version of an object, or a delete marker."""

    number: int  # increases: the newer of two versions has the larger number
    key: str
    id: str  # the VersionId that clients use
    latest: bool
    content: int | None  # its parts are the bytes; None: a delete marker
    size: int
    etag: str  # without quotes
    modified_at_s: float
    details: Mapping[str, Any]  # stored members of GetObject's response; `Tags`: name → value
    upload_id: str | None = None  # the multipart upload that created it

    @property
    def is_marker(self) -> bool:
        return self.content is None


class ContentPart(Struct, frozen=True):
    """One blob of a content: the whole content, or one part of a multipart upload."""

    number: int
    blob: str
    size: int
    etag: str  # MD5, hex
    checksums: Mapping[str, str]  # by algorithm, in base64 as in headers
    modified_at_s: float


class MultipartUpload(Struct, frozen=True):
    """A multipart upload that is neither completed nor aborted."""

    number: int  # the content of its parts; the newer of two uploads has the larger number
    id: str
    bucket_id: int
    key: str
    initiated_at_s: float
    details: Mapping[str, Any]  # those of the new object, and `ChecksumAlgorithm` and `ChecksumType`


class ListingPage(Struct, Generic[T], frozen=True):
    """A page of a listing, in order. Common prefixes are strings."""

    found: list[T | str]
    more: bool
