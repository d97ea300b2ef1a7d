"""ListObjects, ListObjectsV2 and ListObjectVersions, and functions that they share with ListMultipartUploads."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.numbers import whole_number
from corral.model.objects import NULL, ListingPage, ObjectVersion, number_in
from corral.operations.pagination import Pagination
from corral.services.s3.errors import InvalidArgument
from corral.services.s3.lookup import existing_bucket, owner, page_limit, quoted
from corral.services.s3.object_checksums import stored_checksums
from corral.services.s3.object_details import STANDARD
from corral.store import Store

PAGES = Pagination(InvalidArgument, "MaxKeys", "ContinuationToken", "NextContinuationToken")
ENCODED_MEMBERS = ("Delimiter", "KeyMarker", "Marker", "NextKeyMarker", "NextMarker", "Prefix", "StartAfter")


def list_objects(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, limit = existing_bucket(tx, params, caller), page_limit(params, "MaxKeys")
    delimiter, marker = params.get("Delimiter", ""), params.get("Marker", "")
    page = tx.store.objects.objects(bucket.id, prefix=params.get("Prefix", ""), delimiter=delimiter, after=marker, limit=limit)
    more = page.more and limit > 0
    return url_encoded(
        params,
        {
            **request_echo(bucket.name, params, limit, more=more),
            "Marker": marker,
            **({"NextMarker": name_of(page.found[-1])} if more and delimiter else {}),
            "Contents": [
                _listed_object(version) | {"Owner": owner(caller)} for version in page.found if isinstance(version, ObjectVersion)
            ],
            **common_prefixes(page),
        },
    )


def list_objects_v2(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, limit = existing_bucket(tx, params, caller), page_limit(params, "MaxKeys")
    token, delimiter = params.get("ContinuationToken"), params.get("Delimiter", "")
    try:
        after = PAGES.after(params) if token else params.get("StartAfter", "")
    except InvalidArgument:
        token = ""
    if token == "":
        raise InvalidArgument("The continuation token provided is incorrect", ArgumentName="continuation-token")
    page = tx.store.objects.objects(bucket.id, prefix=params.get("Prefix", ""), delimiter=delimiter, after=after, limit=limit)
    whose = {"Owner": owner(caller)} if params.get("FetchOwner") else {}
    more = page.more and limit > 0
    return url_encoded(
        params,
        {
            **request_echo(bucket.name, params, limit, more=more),
            **{name: params[name] for name in ("ContinuationToken", "StartAfter") if name in params},
            **PAGES.more(name_of(page.found[-1]) if more else None),
            "KeyCount": len(page.found),
            "Contents": [_listed_object(version) | whose for version in page.found if isinstance(version, ObjectVersion)],
            **common_prefixes(page),
        },
    )


def list_object_versions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, limit = existing_bucket(tx, params, caller), page_limit(params, "MaxKeys")
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
    found = [version for version in page.found if isinstance(version, ObjectVersion)]
    more, last = page.more and limit > 0, page.found[-1] if page.found else ""
    return url_encoded(
        params,
        {
            **request_echo(bucket.name, params, limit, more=more),
            "KeyMarker": key,
            "VersionIdMarker": version_id or "",
            **({"NextKeyMarker": name_of(last)} if more else {}),
            **({"NextVersionIdMarker": _marker(last)} if more and isinstance(last, ObjectVersion) else {}),
            "Versions": [_listed_object(version) | _version_members(version, caller) for version in found if not version.is_marker],
            "DeleteMarkers": [
                {"Key": version.key, "LastModified": version.modified_at_s // 1, **_version_members(version, caller)}
                for version in found
                if version.is_marker
            ],
            **common_prefixes(page),
        },
    )


# Functions that all listings share


def request_echo(
    bucket_name: str, params: dict[str, Any], limit: int, *, more: bool, bucket_member: str = "Name", limit_member: str = "MaxKeys"
) -> dict[str, Any]:
    """The response members that repeat parameters of the request."""
    return {
        bucket_member: bucket_name,
        "Prefix": params.get("Prefix", ""),
        limit_member: limit,
        "IsTruncated": more,
        **{member: params[member] for member in ("Delimiter", "EncodingType") if member in params},
    }


def common_prefixes(page: ListingPage[Any]) -> dict[str, Any]:
    found = [{"Prefix": prefix} for prefix in page.found if isinstance(prefix, str)]
    return {"CommonPrefixes": found} if found else {}


def name_of(found: Any) -> str:
    """The key of a version or upload, or the common prefix itself. The next page starts after this name."""
    return found if isinstance(found, str) else str(found.key)


def url_encoded(params: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """The result. If the client requests it, names are URL-encoded, because XML cannot represent every character of a key."""
    if "EncodingType" not in params:  # the value was checked before: it can only be "url"
        return result
    for name in ENCODED_MEMBERS:
        if name in result:
            result[name] = quote(result[name])
    for member in ("Contents", "Versions", "DeleteMarkers", "Uploads"):
        for each in result.get(member, ()):
            each["Key"] = quote(each["Key"])
    for each in result.get("CommonPrefixes", ()):
        each["Prefix"] = quote(each["Prefix"])
    return result


def _listed_object(version: ObjectVersion) -> dict[str, Any]:
    checksums = stored_checksums(version.details)
    algorithms = [name.removeprefix("Checksum") for name in checksums if name != "ChecksumType"]
    return {
        "Key": version.key,
        "LastModified": version.modified_at_s // 1,
        "ETag": quoted(version.etag),
        **({"ChecksumAlgorithm": algorithms, "ChecksumType": checksums["ChecksumType"]} if algorithms else {}),
        "Size": version.size,
        "StorageClass": version.details.get("StorageClass", STANDARD),
    }


def _version_members(version: ObjectVersion, caller: Caller) -> dict[str, Any]:
    return {"VersionId": version.id, "IsLatest": version.latest, "Owner": owner(caller)}


def _marker(version: ObjectVersion) -> str:
    """The VersionIdMarker of a version, which contains the version's number.

    The id of a null version does not contain the number, so the number is appended.
    """
    return version.id if version.id != NULL else f"{NULL}.{version.number}"


def _number(tx: Tx[Store], bucket_id: int, key: str, marker: str) -> int:
    name, _, digits = marker.partition(".")
    if name == NULL and (number_of_null := whole_number(digits)) is not None:
        return number_of_null
    found = tx.store.objects.version(bucket_id, key, marker)
    number = found.number if found is not None else number_in(marker)
    if number is None:
        raise InvalidArgument("Invalid version id specified", ArgumentName="version-id-marker", ArgumentValue=marker)
    return number
