"""Blobs: bytes that stream into a file and out of it, and never pass through the core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MD5 = "MD5"  # a digest that is no checksum of S3's; those are in `blobs.checksums`


@dataclass(frozen=True, slots=True)
class Arrived:
    """A blob that is on disk, whole and under its name, and that no row refers to yet."""

    blob: str
    size: int
    digests: Mapping[str, bytes]  # by algorithm


@dataclass(frozen=True, slots=True)
class Slice:
    """Some bytes of a blob. What a handler answers as a body that streams is a tuple of these."""

    blob: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Admission:
    """What is to be known of a body before it is taken in: a service says so when it has seen the head of a request."""

    algorithms: frozenset[str]  # digests that are wanted
    source: tuple[Slice, ...] | None = None  # the bytes are not in the request: they are those of other blobs
    params: Mapping[str, Any] = field(default_factory=dict)  # what was found out on the way; the handler gets it too
    least_bytes: int = 0  # of the file of a form, whose size nobody has said
    most_bytes: int = 0
