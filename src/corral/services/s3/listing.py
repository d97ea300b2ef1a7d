"""Listings: objects, the old and the new way, and versions."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from corral.core import Tx
from corral.model.objects import NULL, Page, Version
from corral.services.caller import Caller
from corral.services.pagination import Pagination
from corral.services.s3.details import STANDARD
from corral.services.s3.digests import kept
from corral.services.s3.errors import InvalidArgument
from corral.services.s3.naming import existing_bucket, limit_of, owner, quoted
from corral.services.s3.versions import number_in
from corral.store import Store

PAGES = Pagination(InvalidArgument, "MaxKeys", "ContinuationToken", "NextContinuationToken")
ENCODED = ("Delimiter", "KeyMarker", "Marker", "NextKeyMarker", "NextMarker", "Prefix", "StartAfter")


def list_objects(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, limit = existing_bucket(tx, params, caller), limit_of(params, "MaxKeys")
    delimiter, marker = params.get("Delimiter", ""), params.get("Marker", "")
    page = tx.store.objects.objects(bucket.id, prefix=params.get("Prefix", ""), delimiter=delimiter, after=marker, limit=limit)
    more = page.more and limit > 0
    return encoded(
        params,
        {
            **echoed(bucket.name, params, limit, more=more),
            "Marker": marker,
            **({"NextMarker": name_of(page.found[-1])} if more and delimiter else {}),
            "Contents": [_shown(version) | {"Owner": owner(caller)} for version in page.found if isinstance(version, Version)],
            **common_prefixes(page),
        },
    )


def list_objects_v2(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, limit = existing_bucket(tx, params, caller), limit_of(params, "MaxKeys")
    token, delimiter = params.get("ContinuationToken"), params.get("Delimiter", "")
    if token == "":
        raise InvalidArgument("The continuation token provided is incorrect", ArgumentName="continuation-token")
    after = PAGES.after(params) if token is not None else params.get("StartAfter", "")
    page = tx.store.objects.objects(bucket.id, prefix=params.get("Prefix", ""), delimiter=delimiter, after=after, limit=limit)
    whose = {"Owner": owner(caller)} if params.get("FetchOwner") else {}
    more = page.more and limit > 0
    return encoded(
        params,
        {
            **echoed(bucket.name, params, limit, more=more),
            **{name: params[name] for name in ("ContinuationToken", "StartAfter") if name in params},
            **PAGES.more(name_of(page.found[-1]) if more else None),
            "KeyCount": len(page.found),
            "Contents": [_shown(version) | whose for version in page.found if isinstance(version, Version)],
            **common_prefixes(page),
        },
    )


def list_object_versions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, limit = existing_bucket(tx, params, caller), limit_of(params, "MaxKeys")
    key, version_id = params.get("KeyMarker", ""), params.get("VersionIdMarker")
    if version_id is not None and not key:
        raise InvalidArgument("A version-id marker cannot be specified without a key marker.", ArgumentName="version-id-marker")
    page = tx.store.objects.versions(
        bucket.id,
        prefix=params.get("Prefix", ""),
        delimiter=params.get("Delimiter", ""),
        after=key,
        before_number=_number(tx, bucket.id, key, version_id) if version_id else None,
        limit=limit,
    )
    found = [version for version in page.found if isinstance(version, Version)]
    more, last = page.more and limit > 0, page.found[-1] if page.found else ""
    return encoded(
        params,
        {
            **echoed(bucket.name, params, limit, more=more),
            "KeyMarker": key,
            "VersionIdMarker": version_id or "",
            **({"NextKeyMarker": name_of(last)} if more else {}),
            **({"NextVersionIdMarker": _marker(last)} if more and isinstance(last, Version) else {}),
            "Versions": [_shown(version) | _as_version(version, caller) for version in found if not version.is_marker],
            "DeleteMarkers": [
                {"Key": version.key, "LastModified": int(version.modified_at_s), **_as_version(version, caller)}
                for version in found
                if version.is_marker
            ],
            **common_prefixes(page),
        },
    )


# What listings have in common, those of uploads too.


def echoed(
    bucket_name: str, params: dict[str, Any], limit: int, *, more: bool, name: str = "Name", most: str = "MaxKeys"
) -> dict[str, Any]:
    """What every listing says of itself."""
    return {
        name: bucket_name,
        "Prefix": params.get("Prefix", ""),
        most: limit,
        "IsTruncated": more,
        **{member: params[member] for member in ("Delimiter", "EncodingType") if member in params},
    }


def common_prefixes(page: Page[Any]) -> dict[str, Any]:
    found = [{"Prefix": prefix} for prefix in page.found if isinstance(prefix, str)]
    return {"CommonPrefixes": found} if found else {}


def name_of(found: Any) -> str:
    """The text to go on after."""
    return found if isinstance(found, str) else str(found.key)


def encoded(params: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Names as a URL would have them, for clients that ask: XML cannot hold every character that a key can."""
    kind = params.get("EncodingType")
    if kind is None:
        return result
    if kind != "url":
        raise InvalidArgument("Invalid Encoding Method specified in Request", ArgumentName="encoding-type", ArgumentValue=kind)
    for name in ENCODED:
        if name in result:
            result[name] = quote(result[name])
    for kind in ("Contents", "Versions", "DeleteMarkers", "Uploads"):
        for each in result.get(kind, ()):
            each["Key"] = quote(each["Key"])
    for each in result.get("CommonPrefixes", ()):
        each["Prefix"] = quote(each["Prefix"])
    return result


def _shown(version: Version) -> dict[str, Any]:
    checksums = kept(version.details)
    algorithms = [name.removeprefix("Checksum") for name in checksums if name != "ChecksumType"]
    return {
        "Key": version.key,
        "LastModified": int(version.modified_at_s),
        "ETag": quoted(version.etag),
        **({"ChecksumAlgorithm": algorithms, "ChecksumType": checksums["ChecksumType"]} if algorithms else {}),
        "Size": version.size,
        "StorageClass": version.details.get("StorageClass", STANDARD),
    }


def _as_version(version: Version, caller: Caller) -> dict[str, Any]:
    return {"VersionId": version.id, "IsLatest": version.latest, "Owner": owner(caller)}


def _marker(version: Version) -> str:
    """A version's id says how old it is, even when it is gone by the next page; that of a null version has to be told."""
    return version.id if version.id != NULL else f"{NULL}.{version.number}"


def _number(tx: Tx[Store], bucket_id: int, key: str, marker: str) -> int:
    name, _, digits = marker.partition(".")
    if name == NULL and digits.isdecimal():
        return int(digits)
    found = tx.store.objects.version(bucket_id, key, marker)
    number = found.number if found is not None else number_in(marker)
    if number is None:
        raise InvalidArgument("Invalid version id specified", ArgumentName="version-id-marker", ArgumentValue=marker)
    return number
