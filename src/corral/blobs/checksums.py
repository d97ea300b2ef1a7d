"""S3's checksums and MD5, computed piece by piece, and the checksum of an object from the checksums of its parts.

CRCs come from anycrc: 12 GB/s by carry-less multiplication on one core of a Neoverse N1, six times zlib's crc32, in a wheel of
half a megabyte. awscrt is as fast, but botocore imports it wherever it is installed, which costs every command 100 ms. SHA-1 and
SHA-256 come from hashlib. MD5 comes from cryptography, because its OpenSSL is a third faster than an older one of the system,
and a large put waits for its MD5.
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
ALGORITHMS = (*_CRC_MODELS, *_HASHES)  # the checksums of S3 that Corral supports
SLOWEST_FIRST = (MD5, "SHA1", "SHA256")  # a CRC costs almost nothing in comparison
CHECKSUM_HEADERS = {f"x-amz-checksum-{algorithm.lower()}": algorithm for algorithm in ALGORITHMS}


class Checksum(Protocol):
    """A running checksum, such as an object of hashlib."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


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
        from cryptography.hazmat.primitives import hashes  # imported late: slow, and an idle server does not need it

        self._hash = hashes.Hash(hashes.MD5())

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    def digest(self) -> bytes:
        return self._hash.finalize()  # can be called only once


def checksum(algorithm: str) -> Checksum:
    """A new running checksum of one of ALGORITHMS, or MD5."""
    if algorithm == MD5:
        return _Md5()
    return _Crc(algorithm) if algorithm in _CRC_MODELS else hashlib.new(_HASHES[algorithm])


def digest_of(algorithm: str, data: bytes) -> bytes:
    """The digest of a small body in memory."""
    if algorithm == MD5:  # for a small body, creating the faster object takes longer than this call
        return hashlib.md5(data, usedforsecurity=False).digest()
    running = checksum(algorithm)
    running.update(data)
    return running.digest()


def checksum_text(digest: bytes) -> str:
    """The digest in base64, as in headers and trailers."""
    return b64encode(digest).decode("ascii")


def composite(algorithm: str, digests: Iterable[bytes]) -> str:
    """The composite checksum of a multipart upload: the checksum of the checksums of its parts, and the number of parts."""
    parts = list(digests)
    whole = checksum(algorithm)
    whole.update(b"".join(parts))
    return f"{checksum_text(whole.digest())}-{len(parts)}"


def full_object(algorithm: str, parts: Iterable[tuple[bytes, int]]) -> bytes:
    """The checksum of the whole object from the CRC and the size of each part. Works for CRCs only, not for hashes."""
    model = _crc_model(algorithm)
    value = 0
    for digest, size in parts:
        value = model.combine(value, int.from_bytes(digest, "big"), size)
    return value.to_bytes(_CRC_BYTES[algorithm], "big")


@cache
def _crc_model(algorithm: str) -> Any:
    import anycrc  # imported late: only a server that stores objects needs it

    return anycrc.Model(_CRC_MODELS[algorithm])
