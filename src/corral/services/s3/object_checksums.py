"""Checksums of objects: read them from requests, verify them against bodies, and add them to responses."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from corral.blobs.checksums import ALGORITHMS, CHECKSUM_HEADERS, checksum_text
from corral.model.blob import MD5, StoredBlob
from corral.services.s3.errors import InvalidDigest, InvalidRequest, bad_checksum, bad_content_md5, unsupported

DEFAULT_ALGORITHM = "CRC64NVME"  # used if the request has no checksum
FULL_OBJECT = "FULL_OBJECT"
COMPOSITE = "COMPOSITE"
_MEMBERS = {algorithm: f"Checksum{algorithm}" for algorithm in ALGORITHMS}
_STORED_MEMBERS = ("ChecksumType", *_MEMBERS.values())
_UNSUPPORTED = {f"Checksum{algorithm}": algorithm for algorithm in ("SHA512", "MD5", "XXHASH64", "XXHASH3", "XXHASH128")}
_CHECKSUMS = frozenset({"ChecksumAlgorithm", "Trailers", "ContentMD5", *_UNSUPPORTED, *_MEMBERS.values()})
_DIGEST_BYTES = {"CRC32": 4, "CRC32C": 4, "CRC64NVME": 8, "SHA1": 20, "SHA256": 32}
_MD5_BYTES = 16


def checksum_member(algorithm: str) -> str:
    return _MEMBERS[algorithm]


def given_checksums(params: Mapping[str, Any]) -> dict[str, str]:
    """The checksums that are members of a request, by algorithm."""
    if _CHECKSUMS.isdisjoint(params):
        return {}
    return {algorithm: params[member] for algorithm, member in _MEMBERS.items() if member in params}


def announced_algorithms(params: Mapping[str, Any]) -> frozenset[str]:
    """The algorithms of the checksums that the request has in its headers or will send in its trailers."""
    if _CHECKSUMS.isdisjoint(params):
        return frozenset()
    named = params.get("ChecksumAlgorithm")
    for member, algorithm in _UNSUPPORTED.items():
        if member in params or named == algorithm:
            raise unsupported("x-amz-checksum-algorithm", f"Corral supports {', '.join(ALGORITHMS)}, not {algorithm}")
    given = given_checksums(params)
    for algorithm, text in given.items():
        if len(decoded_digest(text)) != _DIGEST_BYTES[algorithm]:
            raise InvalidRequest(f"Value for x-amz-checksum-{algorithm.lower()} header is invalid.")
    if len(given) > 1:
        raise InvalidRequest("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
    trailing = {CHECKSUM_HEADERS[name] for name in params.get("Trailers", ()) if name in CHECKSUM_HEADERS}
    if named is not None and named not in {*given, *trailing}:
        raise InvalidRequest(
            "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found."
        )
    if "ContentMD5" in params and len(decoded_digest(params["ContentMD5"])) != _MD5_BYTES:
        raise InvalidDigest("The Content-MD5 you specified was invalid.", **{"Content-MD5": params["ContentMD5"]})
    return frozenset({*given, *trailing})


def required_digests(algorithms: frozenset[str], params: Mapping[str, Any], *, md5: bool) -> frozenset[str]:
    """The digests to compute while a body arrives.

    These are the announced checksums or the default one. MD5 is added if the ETag or Content-MD5 needs it.
    """
    return (algorithms or frozenset({DEFAULT_ALGORITHM})) | ({MD5} if md5 or "ContentMD5" in params else frozenset())


def verify_digests(params: Mapping[str, Any], blob: StoredBlob) -> dict[str, str]:
    """Compare the digests in the request with the digests of the stored body. Returns the checksums to store, by algorithm."""
    found = {algorithm: checksum_text(digest) for algorithm, digest in blob.digests.items()}
    md5 = found.pop(MD5, None)
    if params.get("ContentMD5", md5) != md5:
        raise bad_content_md5(ExpectedDigest=params["ContentMD5"], CalculatedDigest=md5)
    for algorithm, text in given_checksums(params).items():
        if found[algorithm] != text:
            raise bad_checksum(algorithm)
    return found


def checksum_members(checksums: Mapping[str, str], checksum_type: str | None = None) -> dict[str, str]:
    members = {_MEMBERS[algorithm]: text for algorithm, text in checksums.items()}
    return {**members, "ChecksumType": checksum_type} if checksum_type and members else members


def stored_checksums(details: Mapping[str, Any]) -> dict[str, str]:
    return {name: details[name] for name in _STORED_MEMBERS if name in details}


def stored_algorithms(details: Mapping[str, Any]) -> frozenset[str]:
    """The algorithms for which a version has a checksum."""
    return frozenset(algorithm for algorithm, member in _MEMBERS.items() if member in details)


def decoded_digest(text: str) -> bytes:
    """Decode a digest from base64. The result is empty if the text is not valid base64."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""
