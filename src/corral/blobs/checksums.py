"""Computes S3's checksums and MD5 piece by piece. Also computes the checksum of an object from the checksums of its parts.

The library for CRCs is anycrc. It processes 12 GB/s on one core of a Neoverse N1, which is six times as fast as zlib's crc32. Its
wheel has half a megabyte. awscrt is equally fast, but botocore imports awscrt if it is installed. With this import, every `corral`
command would take 100 ms longer. SHA-1 and SHA-256 use hashlib. MD5 uses the cryptography package, because its OpenSSL can be a
third faster than the system's OpenSSL. The speed matters, because the response to a large PutObject waits for the MD5.
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
SLOWEST_FIRST = (MD5, "SHA1", "SHA256")  # CRCs are not listed, because they are much faster
CHECKSUM_HEADERS = {f"x-amz-checksum-{algorithm.lower()}": algorithm for algorithm in ALGORITHMS}


class Checksum(Protocol):
    """A checksum that is computed piece by piece. hashlib's objects have the same methods."""

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
        from cryptography.hazmat.primitives import hashes  # imported here, because the import is slow, and few servers need it

        self._hash = hashes.Hash(hashes.MD5())

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    def digest(self) -> bytes:
        return self._hash.finalize()  # `finalize` can be called only once


def checksum(algorithm: str) -> Checksum:
    """Start a new checksum. `algorithm` is one of ALGORITHMS, or MD5."""
    if algorithm == MD5:
        return _Md5()
    return _Crc(algorithm) if algorithm in _CRC_MODELS else hashlib.new(_HASHES[algorithm])


def digest_of(algorithm: str, data: bytes) -> bytes:
    """Return the digest of a small body."""
    if algorithm == MD5:  # `_Md5` is faster for large bodies, but creating it takes longer than this call
        return hashlib.md5(data, usedforsecurity=False).digest()
    running = checksum(algorithm)
    running.update(data)
    return running.digest()


def checksum_text(digest: bytes) -> str:
    """Encode a digest in base64, as headers and trailers contain it."""
    return b64encode(digest).decode("ascii")


def composite(algorithm: str, digests: Iterable[bytes]) -> str:
    """Return the composite checksum of a multipart upload: a checksum of the parts' checksums, a hyphen, the number of parts."""
    parts = list(digests)
    whole = checksum(algorithm)
    whole.update(b"".join(parts))
    return f"{checksum_text(whole.digest())}-{len(parts)}"


def full_object(algorithm: str, parts: Iterable[tuple[bytes, int]]) -> bytes:
    """Compute the CRC of a whole object from the CRC and the size of each part. This is possible for CRCs only, not for hashes."""
    model = _crc_model(algorithm)
    value = 0
    for digest, size in parts:
        value = model.combine(value, int.from_bytes(digest, "big"), size)
    return value.to_bytes(_CRC_BYTES[algorithm], "big")


@cache
def _crc_model(algorithm: str) -> Any:
    import anycrc  # imported here, because only a server that stores objects needs it

    return anycrc.Model(_CRC_MODELS[algorithm])
