"""Blobs: bytes in files, such as the content of S3 objects and image layers.

The server streams the bytes directly between the client and the file. Database transactions only handle the name of the blob.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

MD5 = "MD5"  # S3 needs this digest for ETags; its other checksums are in `blobs.checksums`
GARBAGE = "blobs:garbage"  # a transaction reports a change of this key if it removes the last reference to a blob


class StoredBlob(Struct, frozen=True):
    """A complete blob on disk that no row refers to yet."""

    blob: str
    size: int
    digests: Mapping[str, bytes]  # algorithm → digest


class Slice(Struct, frozen=True):
    """A range of bytes of a blob. The handler of a request returns a response body as a tuple of slices."""

    blob: str
    start: int
    size: int


class Admission(Struct, frozen=True):
    """How to receive the body of a request. A service decides this after it has read the head of the request."""

    algorithms: frozenset[str]  # digests to compute
    source: tuple[Slice, ...] | None = None  # None: receive a body; otherwise copy these bytes instead
    params: Mapping[str, Any] = field(default_factory=dict)  # additional parameters for the handler
    min_bytes: int = 0  # limits for a file in a form upload, whose size is not known in advance
    max_bytes: int = 0
