"""Digests of bytes, fed piece by piece: S3's checksums, how those of parts become one of the whole, and MD5, its ETag.

CRCs come from anycrc: carry-less multiplication at 12 GB/s on one core of a Neoverse N1, six times zlib's crc32 there, in
wheels of half a megabyte. awscrt is as fast, but botocore imports it wherever it is installed, which costs every command
100 ms. SHA-1 and SHA-256 are hashlib's. MD5 is by cryptography's own OpenSSL: a third faster than hashlib's where the
system's is older, and MD5 is what a large put waits for.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from typing import Any, Protocol

from corral.model.blob import MD5

_CRC_MODELS = {"CRC32": "CRC32", "CRC32C": "CRC32C", "CRC64NVME": "CRC64-NVME"}
_CRC_BYTES = {"CRC32": 4, "CRC32C": 4, "CRC64NVME": 8}
_HASHES = {"SHA1": "sha1", "SHA256": "sha256"}
ALGORITHMS = (*_CRC_MODELS, *_HASHES)  # those that S3 names as checksums
SLOWEST_FIRST = (MD5, "SHA1", "SHA256")  # beside them the CRCs cost nothing
HEADERS = {f"x-amz-checksum-{algorithm.lower()}": algorithm for algorithm in ALGORITHMS}


class Checksum(Protocol):
    """A running checksum; hashlib's objects are such."""

    def update(self, data: bytes, /) -> None:
        """Take in the next bytes."""

    def digest(self) -> bytes:
        """The checksum of all that was taken in."""


class _Crc:
    __slots__ = ("_model", "_size", "_value")

    def __init__(self, algorithm: str) -> None:
        self._model = _crc_model(algorithm)
        self._size = _CRC_BYTES[algorithm]
        self._value = 0

    def update(self, data: bytes) -> None:
        self._value = self._model.calc(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size, "big")


class _Md5:
    __slots__ = ("_hash",)

    def __init__(self) -> None:
        from cryptography.hazmat.primitives import hashes  # here, because it takes a while, and an idle Corral has no use for it

        self._hash = hashes.Hash(hashes.MD5())

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    def digest(self) -> bytes:
        return self._hash.finalize()  # nobody asks twice


def checksum(algorithm: str) -> Checksum:
    """A fresh one of ALGORITHMS, or MD5."""
    if algorithm == MD5:
        return _Md5()
    return _Crc(algorithm) if algorithm in _CRC_MODELS else hashlib.new(_HASHES[algorithm])


def digest_of(algorithm: str, data: bytes) -> bytes:
    """Of what is there as a whole, and small."""
    if algorithm == MD5:  # to begin the fast one takes longer than this
        return hashlib.md5(data, usedforsecurity=False).digest()
    running = checksum(algorithm)
    running.update(data)
    return running.digest()


def checksum_text(digest: bytes) -> str:
    """As headers and trailers carry it."""
    return b64encode(digest).decode("ascii")


def composite(algorithm: str, digests: Iterable[bytes]) -> str:
    """Of an upload in parts: the checksum of the parts' checksums, and how many there were."""
    parts = list(digests)
    whole = checksum(algorithm)
    whole.update(b"".join(parts))
    return f"{checksum_text(whole.digest())}-{len(parts)}"


def full_object(algorithm: str, parts: Iterable[tuple[bytes, int]]) -> bytes:
    """Of the same upload as if it had come in one piece, from each part's CRC and size; hashes cannot do that."""
    model = _crc_model(algorithm)
    value = 0
    for digest, size in parts:
        value = model.combine(value, int.from_bytes(digest, "big"), size)
    return value.to_bytes(_CRC_BYTES[algorithm], "big")


@cache
def _crc_model(algorithm: str) -> Any:
    import anycrc  # only who stores objects needs it

    return anycrc.Model(_CRC_MODELS[algorithm])
