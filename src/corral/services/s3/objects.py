"""Operations on objects: put, get, head, attributes and delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.objects.byte_range import Unsatisfiable, span_of
from corral.decide.objects.preconditions import Conditions, etag_matches, failed_condition
from corral.fleet.limits import why_too_large
from corral.fleet.private_environments import keep_uploaded_object
from corral.model.blob import Admission, Slice, StoredBlob
from corral.model.objects import Bucket, ContentPart, ObjectVersion
from corral.model.private_environment import BUCKET, OBJECT_MAX_BYTES
from corral.model.shipped_folder import BUCKET as SHIPPED_FOLDERS
from corral.model.shipped_folder import PART_MAX_BYTES, sha256_text
from corral.services.s3 import versions
from corral.services.s3.errors import (
    AccessDenied,
    InvalidArgument,
    InvalidPartNumber,
    InvalidRange,
    InvalidRequest,
    MissingContentLength,
    NotModified,
    QuotaExceeded,
    entity_too_large,
    invalid_version_id,
    no_such_key,
    no_such_version,
    precondition_failed,
)
from corral.services.s3.lifecycle import expiration_member
from corral.services.s3.lookup import (
    PRIVATE,
    check_key,
    existing_bucket,
    existing_version,
    existing_version_with_blob,
    is_version_id,
    new_version_id_member,
    page_limit,
    quoted,
    version_id_member,
)
from corral.services.s3.notifications import absent_key_deleted
from corral.services.s3.object_checksums import (
    FULL_OBJECT,
    announced_algorithms,
    checksum_members,
    required_digests,
    stored_checksums,
    verify_digests,
)
from corral.services.s3.object_details import (
    HEADER_MEMBERS,
    STANDARD,
    details_from_request,
    encryption_members,
    etag_is_md5,
    header_members,
    new_etag,
)
from corral.store import Store

PUT_MAX_BYTES = 5 * 1024**3
DELETE_BATCH_KEYS = 100  # keys that one transaction deletes; this takes about 5 ms
DETAILS = "Details"  # a parameter that `admission` adds: the details of the new object


def admit_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Admission:
    """Check PutObject before the body arrives."""
    bucket = existing_bucket(tx, params, caller, puts_object=True)
    check_key(params["Key"])
    check_size(params)
    _check_shipped(bucket, params)
    versions.check_write(tx, bucket, params["Key"], params)
    check_room(tx, bucket, params["ContentLength"])
    _check_private(tx, bucket, params["ContentLength"], caller)
    return admission(details_from_request(bucket, params), params)


def admission(details: dict[str, Any], params: dict[str, Any]) -> Admission:
    """Admit the body of a new object. The result contains the digests to compute and the details for the handler."""
    algorithms = required_digests(announced_algorithms(params), params, md5=etag_is_md5(details))
    return Admission(algorithms, params={DETAILS: details})


def put_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller, puts_object=True)
    _check_shipped(bucket, params)
    if bucket.name == BUCKET:
        if not caller.is_root and tx.store.objects.latest(bucket.id, params["Key"]) is not None:
            raise AccessDenied("Only the root user can replace the environment variables of a run.")
        keep_uploaded_object(tx, params["Key"], caller)
    version = store_object(tx, bucket, params["Key"], params["Body"], params, caller, event_name="Put")
    return {
        "ETag": quoted(version.etag),
        **new_version_id_member(version),
        **stored_checksums(version.details),
        **encryption_members(version.details),
        **expiration_member(tx, bucket, version),
    }


def _check_shipped(bucket: Bucket, params: dict[str, Any]) -> None:
    """Refuse an object in the bucket of shipped folders whose key does not prove its content: other runs may use it."""
    if bucket.name == SHIPPED_FOLDERS and (params.get("ChecksumSHA256") or "") != sha256_text(params["Key"]):
        raise AccessDenied(
            f"The key of an object of the bucket {SHIPPED_FOLDERS} is the SHA-256 of its content, in hexadecimal digits: send it "
            "as x-amz-checksum-sha256, too."
        )


def _check_private(tx: Tx[Store], bucket: Bucket, size: int, caller: Caller) -> None:
    """Refuse large objects in the buckets of `corral run`, and those of callers who may not store more bytes.

    Every caller may put objects there, and they count for the owner of the buckets, who is the root user.
    """
    if bucket.name not in PRIVATE or caller.is_root:
        return
    most = OBJECT_MAX_BYTES if bucket.name == BUCKET else PART_MAX_BYTES
    if size > most:
        raise entity_too_large(most, ProposedSize=size)
    if tx.store.limits.of and (why := why_too_large(tx, caller.owner, size)) is not None:
        raise QuotaExceeded(why)


def store_object(
    tx: Tx[Store], bucket: Bucket, key: str, blob: StoredBlob, params: dict[str, Any], caller: Caller, *, event_name: str
) -> ObjectVersion:
    """Store an object that consists of one file (blob).

    `params` are the parameters of PutObject and those that `admission` added. For a form, they are the parameters of the equivalent
    PutObject.
    """
    checksums = verify_digests(params, blob)
    versions.check_write(tx, bucket, key, params)
    check_room(tx, bucket, blob.size)
    part = new_part(tx, 1, blob, checksums, params[DETAILS])
    return versions.add(
        tx,
        bucket,
        key,
        content=tx.store.objects.add_content(part),
        size=part.size,
        etag=part.etag,
        details=params[DETAILS] | checksum_members(checksums, FULL_OBJECT),
        event_name=event_name,
        caller=caller,
    )


def new_part(
    tx: Tx[Store],
    number: int,
    blob: StoredBlob,
    checksums: dict[str, str],
    details: Mapping[str, Any],
    writer: str | None = None,
) -> ContentPart:
    return ContentPart(number, blob.blob, blob.size, new_etag(tx, blob, details), checksums, tx.wall_s, writer)


def check_room(tx: Tx[Store], bucket: Bucket, more_bytes: int) -> None:
    """Refuse more bytes than the owner of a bucket may store (`fleet/limits.py`)."""
    if tx.store.limits.of and (why := why_too_large(tx, bucket.owner, more_bytes)) is not None:
        raise QuotaExceeded(why)


def check_size(params: dict[str, Any]) -> None:
    size = params.get("ContentLength")
    if size is None:
        raise MissingContentLength("You must provide the Content-Length HTTP header.")
    if size > PUT_MAX_BYTES:
        raise entity_too_large(PUT_MAX_BYTES, ProposedSize=size)


def get_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return an object.

    This function runs without a snapshot (see `CallRunner.run`): each SQL statement can see another commit. Still, the parts of the
    version that it finds exist until it returns. Parts never change, and no removal of unused files can begin meanwhile, because
    the event loop runs this function and also begins each removal.
    """
    bucket = existing_bucket(tx, params, caller)
    version, blob = existing_version_with_blob(tx, bucket, params["Key"], params.get("VersionId"))
    first, size, response = _response(tx, bucket, version, params)
    assert version.content is not None
    if blob is not None and size:
        response["Body"] = (Slice(blob, first, size),)
    else:
        response["Body"] = tx.store.objects.slices(version.content, first, size) or b""
    return response


def head_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    version = existing_version(tx, bucket, params["Key"], params.get("VersionId"))
    return _response(tx, bucket, version, params)[2]


def get_object_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    version = existing_version(tx, bucket, params["Key"], params.get("VersionId"))
    requested, checksums = set(params["ObjectAttributes"]), stored_checksums(version.details)
    if not requested <= {"ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"}:
        raise InvalidArgument("Invalid attribute name specified.", ArgumentName="x-amz-object-attributes")
    return {
        "LastModified": int(version.modified_at_s),
        **version_id_member(bucket, version),
        **({"ETag": version.etag} if "ETag" in requested else {}),
        **({"Checksum": checksums} if "Checksum" in requested and checksums else {}),
        **({"ObjectParts": _parts(tx, version, params)} if "ObjectParts" in requested and is_multipart(version) else {}),
        **({"StorageClass": version.details.get("StorageClass", STANDARD)} if "StorageClass" in requested else {}),
        **({"ObjectSize": version.size} if "ObjectSize" in requested else {}),
    }


def is_multipart(version: ObjectVersion) -> bool:
    return "-" in version.etag


def check_read(tx: Tx[Store], version: ObjectVersion, conditions: Conditions, header_prefix: str = "") -> None:
    """Raise an error if a condition does not hold. With a header prefix (copies), the error is always PreconditionFailed."""
    header = failed_condition(conditions, version.etag, version.modified_at_s, tx.wall_s)
    if header is None:
        return
    if not header_prefix and header in ("If-None-Match", "If-Modified-Since"):
        refusal = NotModified("Not Modified")
        refusal.headers = {"ETag": quoted(version.etag)}
        raise refusal
    raise precondition_failed(header_prefix + header)


def _response(tx: Tx[Store], bucket: Bucket, version: ObjectVersion, params: dict[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """The offset and the number of the requested bytes, and the members of the response."""
    conditions = Conditions(
        params.get("IfMatch"), params.get("IfNoneMatch"), params.get("IfModifiedSince"), params.get("IfUnmodifiedSince")
    )
    check_read(tx, version, conditions)
    response = {
        **header_members(version),
        "LastModified": int(version.modified_at_s),
        "ETag": quoted(version.etag),
        "AcceptRanges": "bytes",
        **version_id_member(bucket, version),
        **expiration_member(tx, bucket, version),
    }
    response |= {name: params[f"Response{name}"] for name in HEADER_MEMBERS if f"Response{name}" in params}
    span = _span(tx, version, params, response)
    first, size = span or (0, version.size)
    if size == version.size and params.get("ChecksumMode") == "ENABLED" and "PartNumber" not in params:
        response |= stored_checksums(version.details)
    if span is not None and size:
        response["ContentRange"] = f"bytes {first}-{first + size - 1}/{version.size}"
    response["ContentLength"] = size
    return first, size, response


def _span(tx: Tx[Store], version: ObjectVersion, params: dict[str, Any], response: dict[str, Any]) -> tuple[int, int] | None:
    number, header = params.get("PartNumber"), params.get("Range")
    if number is not None:
        if header is not None:
            raise InvalidRequest("Cannot specify both Range header and partNumber query parameter")
        return _span_of_part(tx, version, number, params, response)
    if header is None:
        return None
    try:
        return span_of(header, version.size)
    except Unsatisfiable:
        raise InvalidRange("The requested range is not satisfiable", RangeRequested=header, ActualObjectSize=version.size) from None


def _span_of_part(
    tx: Tx[Store], version: ObjectVersion, number: int, params: dict[str, Any], response: dict[str, Any]
) -> tuple[int, int]:
    assert version.content is not None
    parts = tx.store.objects.parts(version.content)
    if not 1 <= number <= len(parts):
        raise InvalidPartNumber(
            "The requested partnumber is not satisfiable", PartNumberRequested=number, ActualPartCount=len(parts)
        )
    if is_multipart(version):
        response["PartsCount"] = len(parts)
        if params.get("ChecksumMode") == "ENABLED":
            response |= checksum_members(parts[number - 1].checksums, version.details.get("ChecksumType"))
    return sum(part.size for part in parts[: number - 1]), parts[number - 1].size


def _parts(tx: Tx[Store], version: ObjectVersion, params: dict[str, Any]) -> dict[str, Any]:
    assert version.content is not None
    after, limit = int(params.get("PartNumberMarker", 0)), page_limit(params, "MaxParts")
    found = tx.store.objects.parts(version.content, after=after, limit=limit + 1)
    page = found[:limit]
    return {
        "TotalPartsCount": tx.store.objects.part_count(version.content),
        "PartNumberMarker": after,
        "NextPartNumberMarker": page[-1].number if page else 0,
        "MaxParts": limit,
        "IsTruncated": len(found) > limit,
        "Parts": [{"PartNumber": part.number, "Size": part.size, **checksum_members(part.checksums)} for part in page],
    }


# Delete


def delete_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, version_id = existing_bucket(tx, params, caller), params.get("VersionId")
    _check_governance(params)
    if version_id is not None and not is_version_id(version_id):
        raise invalid_version_id(version_id)
    conditions = _conditions(params, "IfMatch", "IfMatchLastModifiedTime", "IfMatchSize")
    return _delete(tx, bucket, params["Key"], version_id, conditions, caller)[0]


def delete_batches(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Split a DeleteObjects request into smaller ones, because a transaction with 1000 keys would delay other requests.

    The split is allowed, because S3 does not promise that DeleteObjects is atomic.
    """
    requested = params["Delete"]["Objects"]
    batches = (requested[at : at + DELETE_BATCH_KEYS] for at in range(0, len(requested), DELETE_BATCH_KEYS))
    return [{**params, "Delete": {**params["Delete"], "Objects": each}} for each in batches]


def delete_objects(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    _check_governance(params)
    requested = params["Delete"]["Objects"]
    deleted, errors = [], []
    for each in requested:
        named = {name: each[name] for name in ("Key", "VersionId") if name in each}
        try:
            check_key(each["Key"])
            if caller.is_restricted:
                _check_delete(tx, bucket, each, caller)
            if "VersionId" in each and not is_version_id(each["VersionId"]):
                raise no_such_version(each["Key"], each["VersionId"])
            done, found = _delete(
                tx, bucket, each["Key"], each.get("VersionId"), _conditions(each, "ETag", "LastModifiedTime", "Size"), caller
            )
            if not found and "VersionId" not in each and not bucket.versioning:
                absent_key_deleted(tx, bucket, each["Key"], caller)
        except ApiError as refusal:
            errors.append({**named, "Code": refusal.code, "Message": refusal.message})
            continue
        if done.get("DeleteMarker"):
            done["DeleteMarkerVersionId"] = done["VersionId"]
        deleted.append({**{name: value for name, value in done.items() if name != "VersionId"}, **named})
    quiet = params["Delete"].get("Quiet", False)
    return {**({"Deleted": deleted} if not quiet else {}), **({"Errors": errors} if errors else {})}


def _check_governance(params: dict[str, Any]) -> None:
    header = "x-amz-bypass-governance-retention"
    if "BypassGovernanceRetention" in params:
        raise InvalidArgument(f"{header} is only applicable to Object Lock enabled buckets.", ArgumentName=header)


def _check_delete(tx: Tx[Store], bucket: Bucket, named: dict[str, Any], caller: Caller) -> None:
    """Raise AccessDenied if a policy of the caller's role denies the deletion of this key.

    The keys of DeleteObjects are in its body, so the server cannot check them before the body arrives. It can check the key of
    DeleteObject earlier, because this key is in the URL.
    """
    from corral.access.authorization import refusal  # imported only here: few callers need it
    from corral.access.principals import policies_of_caller
    from corral.services.s3.permissions import needed_permissions

    needed = needed_permissions(tx, caller, "DeleteObject", {**named, "Bucket": bucket.name})
    if (why := refusal(tx, caller, policies_of_caller(tx, caller), needed, is_open=caller.confined)) is not None:
        raise AccessDenied(why)


def _conditions(given: dict[str, Any], etag: str, modified: str, size: str) -> dict[str, Any]:
    names = {"etag": etag, "modified_s": modified, "size": size}
    return {kind: given[name] for kind, name in names.items() if name in given}


def _delete(
    tx: Tx[Store], bucket: Bucket, key: str, version_id: str | None, conditions: dict[str, Any], caller: Caller
) -> tuple[dict[str, Any], bool]:
    """Delete a key or a version. As on S3, deleting a key that does not exist is not an error.

    Returns the members of the response, and whether the key or the version existed.
    """
    if version_id is None:
        found = tx.store.objects.latest(bucket.id, key)
    else:
        found = tx.store.objects.version(bucket.id, key, version_id)
    if conditions:
        if found is None or found.is_marker:
            raise no_such_key(key)
        if not (
            etag_matches(conditions.get("etag", "*"), found.etag)
            and conditions.get("modified_s", int(found.modified_at_s)) == int(found.modified_at_s)
            and conditions.get("size", found.size) == found.size
        ):
            raise precondition_failed("If-Match")
    if version_id is None and bucket.versioning:
        marker = versions.add_marker(tx, bucket, key, caller)
        return {"DeleteMarker": True, "VersionId": marker.id}, found is not None
    if found is not None:
        versions.remove(tx, bucket, found, caller)
    response: dict[str, Any] = {"VersionId": version_id} if version_id is not None else {}
    return response | ({"DeleteMarker": True} if found is not None and found.is_marker else {}), found is not None
