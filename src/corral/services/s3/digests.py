"""Checksums: which one a body should have, whether it has it, and how it is shown."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from corral.blobs.checksums import ALGORITHMS, HEADERS, checksum_text
from corral.model.blob import MD5, Arrived
from corral.services.s3.errors import BadDigest, InvalidDigest, InvalidRequest, unsupported

DEFAULT = "CRC64NVME"  # of what came without any
FULL_OBJECT = "FULL_OBJECT"
COMPOSITE = "COMPOSITE"
_MEMBERS = {algorithm: f"Checksum{algorithm}" for algorithm in ALGORITHMS}
_KEPT = ("ChecksumType", *_MEMBERS.values())
_UNKNOWN = {f"Checksum{algorithm}": algorithm for algorithm in ("SHA512", "MD5", "XXHASH64", "XXHASH3", "XXHASH128")}
_SIZES = {"CRC32": 4, "CRC32C": 4, "CRC64NVME": 8, "SHA1": 20, "SHA256": 32}


def member_of(algorithm: str) -> str:
    return _MEMBERS[algorithm]


def stated(params: Mapping[str, Any]) -> dict[str, str]:
    """The checksums that a request gives, by algorithm."""
    return {algorithm: params[member] for algorithm, member in _MEMBERS.items() if member in params}


def announced(params: Mapping[str, Any]) -> frozenset[str]:
    """The algorithms that a request has a checksum of, in its head or in the trailers that it announces."""
    named = params.get("ChecksumAlgorithm")
    for member, algorithm in _UNKNOWN.items():
        if member in params or named == algorithm:
            raise unsupported("x-amz-checksum-algorithm", f"Corral knows {', '.join(ALGORITHMS)}, not {algorithm}")
    given = stated(params)
    for algorithm, text in given.items():
        if len(decoded(text)) != _SIZES[algorithm]:
            raise InvalidRequest(f"Value for x-amz-checksum-{algorithm.lower()} header is invalid.")
    if len(given) > 1:
        raise InvalidRequest("Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
    trailing = {HEADERS[name] for name in params.get("Trailers", ()) if name in HEADERS}
    if named is not None and named not in {*given, *trailing}:
        raise InvalidRequest(
            "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found."
        )
    if "ContentMD5" in params and len(decoded(params["ContentMD5"])) != 16:
        raise InvalidDigest("The Content-MD5 you specified was invalid.", **{"Content-MD5": params["ContentMD5"]})
    return frozenset({*given, *trailing})


def wanted(algorithms: frozenset[str], params: Mapping[str, Any], *, md5: bool) -> frozenset[str]:
    """The digests of a body that has checksums of these algorithms: a body without any gets one; MD5 may be its ETag."""
    return (algorithms or frozenset({DEFAULT})) | ({MD5} if md5 or "ContentMD5" in params else frozenset())


def check_arrived(params: Mapping[str, Any], arrived: Arrived) -> dict[str, str]:
    """Compare what the request says with what has come; the checksums to keep, by algorithm."""
    found = {algorithm: checksum_text(digest) for algorithm, digest in arrived.digests.items()}
    md5 = found.pop(MD5, None)
    if params.get("ContentMD5", md5) != md5:
        message = "The Content-MD5 you specified did not match what we received."
        raise BadDigest(message, ExpectedDigest=params["ContentMD5"], CalculatedDigest=md5)
    for algorithm, text in stated(params).items():
        if found[algorithm] != text:
            raise BadDigest(f"The {algorithm} you specified did not match the calculated checksum.")
    return found


def shown(checksums: Mapping[str, str], kind: str | None = None) -> dict[str, str]:
    """As members of answers."""
    members = {_MEMBERS[algorithm]: text for algorithm, text in checksums.items()}
    return {**members, "ChecksumType": kind} if kind and members else members


def kept(details: Mapping[str, Any]) -> dict[str, str]:
    """The members that the details of a version have of it."""
    return {name: details[name] for name in _KEPT if name in details}


def algorithms_of(details: Mapping[str, Any]) -> frozenset[str]:
    """Those of which a version has a checksum."""
    return frozenset(algorithm for algorithm, member in _MEMBERS.items() if member in details)


def decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""
