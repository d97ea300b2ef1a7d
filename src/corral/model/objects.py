"""Buckets, versions of objects, their parts, and uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
NULL = "null"  # the id of a version that was made while its bucket kept none
ENABLED = "Enabled"
SUSPENDED = "Suspended"
BUCKET_ENCRYPTION = "BucketEncryption"  # the document of a bucket that says what holds for its objects


@dataclass(frozen=True, slots=True)
class Bucket:
    id: int
    name: str
    region: str
    created_at_s: float
    versioning: str  # "" (never), ENABLED or SUSPENDED
    has_lifecycle: bool = False  # rules
    has_notifications: bool = False
    encryption: Mapping[str, Any] | None = None  # the document that says what holds for its objects, if it was told


@dataclass(frozen=True, slots=True)
class Version:
    """One version of an object, or a delete marker."""

    number: int  # grows: of two versions of a key the newer one has the larger
    key: str
    id: str  # what the client calls it
    latest: bool
    content: int | None  # whose parts are the bytes; None: a delete marker
    size: int
    etag: str  # without quotes
    modified_at_s: float
    details: Mapping[str, Any]  # members of GetObject's answer that are kept as they came; `Tags`: name → value
    upload_id: str | None = None  # of the upload in parts that made it

    @property
    def is_marker(self) -> bool:
        return self.content is None


@dataclass(frozen=True, slots=True)
class Part:
    """One blob of a content: the only one, or a part of an upload."""

    number: int
    blob: str
    size: int
    etag: str  # MD5, hex
    checksums: Mapping[str, str]  # by algorithm, as headers carry them
    modified_at_s: float


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload in parts that is neither completed nor aborted."""

    number: int  # of two uploads for a key the newer one has the larger; also the content that its parts are in
    id: str
    bucket_id: int
    key: str
    initiated_at_s: float
    details: Mapping[str, Any]  # the new object's, and `ChecksumAlgorithm` and `ChecksumType`


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a listing: what it found in order, common prefixes (which are texts) among it, and whether there is more."""

    found: list[T | str]
    more: bool
