"""Objects: put, read, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core import Tx
from corral.decide.byte_range import Unsatisfiable, span_of
from corral.decide.preconditions import Conditions, failed
from corral.model.blob import Admission, Arrived
from corral.model.objects import Bucket, Part, Version
from corral.services.caller import Caller
from corral.services.s3 import digests, encryption, versions
from corral.services.s3.details import STANDARD, details_of, shown_headers
from corral.services.s3.errors import (
    EntityTooLarge,
    InvalidArgument,
    InvalidPartNumber,
    InvalidRange,
    InvalidRequest,
    MissingContentLength,
    NotModified,
    precondition_failed,
)
from corral.services.s3.lifecycle import expiration
from corral.services.s3.naming import PAGE_MAX, check_key, existing_bucket, existing_version, quoted, shown_id
from corral.store import Store

PUT_MAX_BYTES = 5 * 1024**3
DETAILS = "Details"  # among the parameters: what admission has found that the new object keeps
OVERRIDES = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Expires")


def admit_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Admission:
    """Everything that can be refused before the body has come."""
    bucket = existing_bucket(tx, params, caller)
    check_key(params["Key"])
    check_size(params)
    versions.check_write(tx, bucket, params["Key"], params)
    return admission(details_of(bucket, params), params)


def admission(details: dict[str, Any], params: dict[str, Any]) -> Admission:
    """The bytes of a new object, of which these are the details."""
    algorithms = digests.wanted(digests.announced(params), params, md5=encryption.has_md5(details))
    return Admission(algorithms, params={DETAILS: details})


def put_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    version = store_object(tx, bucket, params["Key"], params["Body"], params, caller, event_name="Put")
    return {
        "ETag": quoted(version.etag),
        **shown_id(bucket, version),
        **digests.kept(version.details),
        **encryption.shown(version.details),
        **expiration(tx, bucket, version),
    }


def store_object(
    tx: Tx[Store], bucket: Bucket, key: str, arrived: Arrived, params: dict[str, Any], caller: Caller, *, event_name: str
) -> Version:
    """A new object of one blob; `params` are PutObject's, wherever they came from, and what `admission` has added."""
    checksums = digests.check_arrived(params, arrived)
    versions.check_write(tx, bucket, key, params)
    part = part_of(tx, 1, arrived, checksums, params[DETAILS])
    return versions.add(
        tx,
        bucket,
        key,
        content=tx.store.objects.add_content(part),
        size=part.size,
        etag=part.etag,
        details=params[DETAILS] | digests.shown(checksums, digests.FULL_OBJECT),
        event_name=event_name,
        caller=caller,
    )


def part_of(tx: Tx[Store], number: int, arrived: Arrived, checksums: dict[str, str], details: Mapping[str, Any]) -> Part:
    return Part(number, arrived.blob, arrived.size, encryption.etag_of(tx, arrived, details), checksums, tx.now_s)


def check_size(params: dict[str, Any]) -> None:
    size = params.get("ContentLength")
    if size is None:
        raise MissingContentLength("You must provide the Content-Length HTTP header.")
    if size > PUT_MAX_BYTES:
        message = "Your proposed upload exceeds the maximum allowed size"
        raise EntityTooLarge(message, ProposedSize=size, MaxSizeAllowed=PUT_MAX_BYTES)


def get_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    version = existing_version(tx, bucket, params["Key"], params.get("VersionId"))
    first, size, said = _asked_for(tx, bucket, version, params)
    assert version.content is not None
    return said | {"Body": tx.store.objects.slices(version.content, first, size) or b""}


def head_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    version = existing_version(tx, bucket, params["Key"], params.get("VersionId"))
    return _asked_for(tx, bucket, version, params)[2]


def get_object_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    version = existing_version(tx, bucket, params["Key"], params.get("VersionId"))
    wanted, checksums = set(params["ObjectAttributes"]), digests.kept(version.details)
    if not wanted <= {"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"}:
        raise InvalidArgument("Invalid attribute name specified.")
    return {
        "LastModified": int(version.modified_at_s),
        **shown_id(bucket, version),
        **({"ETag": version.etag} if "ETag" in wanted else {}),
        **({"Checksum": checksums} if "Checksum" in wanted and checksums else {}),
        **({"ObjectParts": _parts(tx, version, params)} if "ObjectParts" in wanted and is_in_parts(version) else {}),
        **({"StorageClass": version.details.get("StorageClass", STANDARD)} if "StorageClass" in wanted else {}),
        **({"ObjectSize": version.size} if "ObjectSize" in wanted else {}),
    }


def is_in_parts(version: Version) -> bool:
    return "-" in version.etag


def check_read(version: Version, conditions: Conditions, *, not_modified: bool = True) -> None:
    """Raise if a condition does not hold; a copy's are all PreconditionFailed."""
    header = failed(conditions, version.etag, version.modified_at_s)
    if header is None:
        return
    if not_modified and header in ("If-None-Match", "If-Modified-Since"):
        refusal = NotModified("Not Modified")
        refusal.headers = {"ETag": quoted(version.etag)}
        raise refusal
    raise precondition_failed(header)


def _asked_for(tx: Tx[Store], bucket: Bucket, version: Version, params: dict[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """(first, size) of the bytes that are asked for, and everything that is said of them."""
    conditions = Conditions(
        params.get("IfMatch"), params.get("IfNoneMatch"), params.get("IfModifiedSince"), params.get("IfUnmodifiedSince")
    )
    check_read(version, conditions)
    said = {
        **shown_headers(version),
        "LastModified": int(version.modified_at_s),
        "ETag": quoted(version.etag),
        "AcceptRanges": "bytes",
        **shown_id(bucket, version),
        **expiration(tx, bucket, version),
    }
    said |= {name: params[f"Response{name}"] for name in OVERRIDES if f"Response{name}" in params}
    span = _span(tx, version, params, said)
    if span is None:
        if params.get("ChecksumMode") == "ENABLED":
            said |= digests.kept(version.details)
        return 0, version.size, said | {"ContentLength": version.size}
    first, size = span
    if size:
        said["ContentRange"] = f"bytes {first}-{first + size - 1}/{version.size}"
    return first, size, said | {"ContentLength": size}


def _span(tx: Tx[Store], version: Version, params: dict[str, Any], said: dict[str, Any]) -> tuple[int, int] | None:
    number, header = params.get("PartNumber"), params.get("Range")
    if number is not None:
        if header is not None:
            raise InvalidRequest("Cannot specify both Range header and partNumber query parameter")
        return _span_of_part(tx, version, number, params, said)
    if header is None:
        return None
    try:
        return span_of(header, version.size)
    except Unsatisfiable:
        raise InvalidRange("The requested range is not satisfiable", RangeRequested=header, ActualObjectSize=version.size) from None


def _span_of_part(tx: Tx[Store], version: Version, number: int, params: dict[str, Any], said: dict[str, Any]) -> tuple[int, int]:
    assert version.content is not None
    parts = tx.store.objects.parts(version.content)
    if not 1 <= number <= len(parts):
        raise InvalidPartNumber(
            "The requested partnumber is not satisfiable", PartNumberRequested=number, ActualPartCount=len(parts)
        )
    if is_in_parts(version):
        said["PartsCount"] = len(parts)
        if params.get("ChecksumMode") == "ENABLED":
            said |= digests.shown(parts[number - 1].checksums, version.details.get("ChecksumType"))
    return sum(part.size for part in parts[: number - 1]), parts[number - 1].size


def _parts(tx: Tx[Store], version: Version, params: dict[str, Any]) -> dict[str, Any]:
    assert version.content is not None
    after, limit = int(params.get("PartNumberMarker", 0)), min(params.get("MaxParts", PAGE_MAX), PAGE_MAX)
    found = tx.store.objects.parts(version.content, after=after, limit=limit + 1)
    page = found[:limit]
    return {
        "TotalPartsCount": tx.store.objects.part_count(version.content),
        "PartNumberMarker": after,
        "NextPartNumberMarker": page[-1].number if page else 0,
        "MaxParts": limit,
        "IsTruncated": len(found) > limit,
        "Parts": [{"PartNumber": part.number, "Size": part.size, **digests.shown(part.checksums)} for part in page],
    }
