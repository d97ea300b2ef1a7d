"""Blobs: bytes that are streamed to and from a file, and never pass through the core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

MD5 = "MD5"  # a digest that is not one of S3's checksums, which are in `blobs.checksums`
GARBAGE = "blobs:garbage"  # the key that a transaction marks as changed when it leaves blobs without references


class StoredBlob(Struct, frozen=True):
    """A complete blob on disk that no row refers to yet."""

    blob: str
    size: int
    digests: Mapping[str, bytes]  # by algorithm


class Slice(Struct, frozen=True):
    """A range of bytes of a blob. A handler returns a streamed body as a tuple of slices."""

    blob: str
    start: int
    size: int


class Admission(Struct, frozen=True):
    """How to receive the body of a request. A service decides this from the head of the request."""

    algorithms: frozenset[str]  # digests to compute
    source: tuple[Slice, ...] | None = None  # copy these bytes instead of receiving a body
    params: Mapping[str, Any] = field(default_factory=dict)  # parameters to add for the handler
    min_bytes: int = 0  # bounds of the file of a form, which has no Content-Length
    max_bytes: int = 0
