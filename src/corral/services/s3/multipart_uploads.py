"""Multipart uploads. Each part is stored as a file (blob). The completed object refers to these blobs, so no bytes are copied."""

from __future__ import annotations

from hashlib import md5
from typing import Any

from corral.access.caller import Caller
from corral.blobs.checksums import checksum_text, composite, full_object
from corral.core.transactions import Tx
from corral.model.blob import Admission
from corral.model.objects import Bucket, ContentPart, MultipartUpload, ObjectVersion
from corral.services.s3 import errors, lifecycle, versions
from corral.services.s3.listing import common_prefixes, name_of, request_echo, url_encoded
from corral.services.s3.lookup import check_key, existing_bucket, location, new_version_id_member, owner, page_limit, quoted
from corral.services.s3.object_checksums import (
    COMPOSITE,
    DEFAULT_ALGORITHM,
    FULL_OBJECT,
    announced_algorithms,
    checksum_members,
    decoded_digest,
    given_checksums,
    required_digests,
    stored_checksums,
    verify_digests,
)
from corral.services.s3.object_copy import find_source, source_span
from corral.services.s3.object_details import STANDARD, details_from_request, encryption_members, etag_is_md5
from corral.services.s3.objects import check_room, check_size, new_part
from corral.store import Store

PART_MIN_BYTES = 5 * 1024**2  # the last part may be smaller
OBJECT_MAX_BYTES = 5 * 1024**4
CHECKSUM_ALGORITHM = "ChecksumAlgorithm"
CHECKSUM_TYPE = "ChecksumType"
CHECKSUM_DETAILS = (CHECKSUM_ALGORITHM, CHECKSUM_TYPE)
UPLOAD_DETAILS = (*CHECKSUM_DETAILS, versions.KEY_VERSION)  # details of an upload that are not copied to the completed object


def create_multipart_upload(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, upload_id = existing_bucket(tx, params, caller), tx.ids.hex32() + tx.ids.hex32()
    check_key(params["Key"])
    checksum = _upload_checksum(params)
    details = details_from_request(bucket, params)
    before = versions.current(tx, bucket, params["Key"])
    number = {versions.KEY_VERSION: before.number if before is not None else 0}
    tx.store.objects.add_upload(upload_id, bucket.id, params["Key"], tx.wall_s, details | checksum | number)
    return {
        "Bucket": bucket.name,
        "Key": params["Key"],
        "UploadId": upload_id,
        **checksum,
        **encryption_members(details),
        **lifecycle.upload_started(tx, bucket, params["Key"], upload_id),
    }


def _upload_checksum(params: dict[str, Any]) -> dict[str, str]:
    algorithm, checksum_type = params.get(CHECKSUM_ALGORITHM), params.get(CHECKSUM_TYPE)
    announced_algorithms({CHECKSUM_ALGORITHM: algorithm, "Trailers": [f"x-amz-checksum-{algorithm.lower()}"]} if algorithm else {})
    if algorithm is None:
        if checksum_type is not None:
            raise errors.InvalidRequest("The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.")
        return {}
    if checksum_type is None:
        checksum_type = FULL_OBJECT if algorithm == DEFAULT_ALGORITHM else COMPOSITE
    impossible = {FULL_OBJECT: ("SHA1", "SHA256"), COMPOSITE: (DEFAULT_ALGORITHM,)}
    if algorithm in impossible.get(checksum_type, (algorithm,)):
        raise errors.InvalidRequest(
            f"The {checksum_type} checksum type cannot be used with the {algorithm.lower()} checksum algorithm."
        )
    return {CHECKSUM_ALGORITHM: algorithm, CHECKSUM_TYPE: checksum_type}


def admit_part(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Admission:
    bucket, upload = _existing_upload(tx, params, caller)
    check_size(params)
    check_room(tx, bucket, params["ContentLength"])
    return Admission(_part_digests(upload, announced_algorithms(params), params))


def upload_part(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    (bucket, upload), announced = _existing_upload(tx, params, caller), given_checksums(params)
    part = _put_part(tx, bucket, upload, params, caller)
    checksums = {algorithm: text for algorithm, text in part.checksums.items() if not announced or algorithm in announced}
    return {"ETag": quoted(part.etag), **checksum_members(checksums), **encryption_members(upload.details)}


def admit_part_copy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Admission:
    upload = _existing_upload(tx, params, caller)[1]
    source = find_source(tx, params, caller)
    first, size = source_span(source.version, params.get("CopySourceRange"))
    assert source.version.content is not None
    slices = tx.store.objects.slices(source.version.content, first, size)
    return Admission(_part_digests(upload, frozenset(), {}), slices, {"Source": source})


def upload_part_copy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    (bucket, upload), source = _existing_upload(tx, params, caller), params["Source"]
    part = _put_part(tx, bucket, upload, params, caller)
    algorithm = upload.details.get(CHECKSUM_ALGORITHM)
    checksums = checksum_members({name: text for name, text in part.checksums.items() if name == algorithm})
    copied = {"ETag": quoted(part.etag), "LastModified": part.modified_at_s // 1, **checksums}
    return {"CopyPartResult": copied, **source.version_id_member, **encryption_members(upload.details)}


def complete_multipart_upload(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Complete an upload without copying its parts. If it was completed before, return the same response again."""
    bucket = existing_bucket(tx, params, caller)
    upload = tx.store.objects.upload(params["UploadId"])
    if upload is None:
        made = tx.store.objects.version_of_upload(params["UploadId"])
        if made is None or (made[0], made[1].key) != (bucket.id, params["Key"]):
            raise errors.no_such_upload(params["UploadId"])
        return _completed(tx, caller, bucket, made[1])
    if (upload.bucket_id, upload.key) != (bucket.id, params["Key"]):
        raise errors.no_such_upload(params["UploadId"])
    stored = {part.number: part for part in tx.store.objects.parts(upload.number)}
    parts = _selected_parts(upload, stored, params.get("MultipartUpload", {}).get("Parts", []))
    size = sum(part.size for part in parts)
    if params.get("MpuObjectSize", size) != size:
        message = (
            f"The provided 'x-amz-mp-object-size' header value {params['MpuObjectSize']} does not match what was computed: {size}"
        )
        raise errors.InvalidRequest(message)
    checksums = _object_checksum(upload, parts, params)
    versions.check_write(tx, bucket, upload.key, params, upload)
    version = versions.add(
        tx,
        bucket,
        upload.key,
        content=upload.number,
        size=size,
        etag=f"{md5(bytes.fromhex(''.join(part.etag for part in parts)), usedforsecurity=False).hexdigest()}-{len(parts)}",
        details={name: value for name, value in upload.details.items() if name not in UPLOAD_DETAILS} | checksums,
        event_name="CompleteMultipartUpload",
        caller=caller,
        upload_id=upload.id,
        part_writers=(part.writer for part in parts),
    )
    unlisted = stored.keys() - {part.number for part in parts}
    versions.wake_blob_gc(tx, tx.store.objects.keep_parts(upload, unlisted))
    lifecycle.upload_ended(tx, upload)
    return _completed(tx, caller, bucket, version)


def abort_multipart_upload(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    upload = _existing_upload(tx, params, caller)[1]
    if params.get("IfMatchInitiatedTime", int(upload.initiated_at_s)) != int(upload.initiated_at_s):
        raise errors.precondition_failed("x-amz-if-match-initiated-time")
    abort(tx, upload)
    return {}


def abort(tx: Tx[Store], upload: MultipartUpload) -> None:
    tx.store.objects.drop_upload(upload)
    versions.wake_blob_gc(tx, True)
    lifecycle.upload_ended(tx, upload)


def list_parts(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, upload = _existing_upload(tx, params, caller)
    limit, after = page_limit(params, "MaxParts"), int(params.get("PartNumberMarker", 0))
    found = tx.store.objects.parts(upload.number, after=after, limit=limit + 1)
    page, more = found[:limit], len(found) > limit > 0
    algorithm = upload.details.get(CHECKSUM_ALGORITHM)
    return {
        "Bucket": bucket.name,
        "Key": upload.key,
        "UploadId": upload.id,
        "PartNumberMarker": after,
        "NextPartNumberMarker": page[-1].number if page else 0,
        "MaxParts": limit,
        "IsTruncated": more,
        "Parts": [
            {
                "PartNumber": part.number,
                "LastModified": part.modified_at_s // 1,
                "ETag": quoted(part.etag),
                "Size": part.size,
                **checksum_members({name: text for name, text in part.checksums.items() if name == algorithm}),
            }
            for part in page
        ],
        **_upload_members(upload, caller),
        **lifecycle.abort_members(tx, bucket, upload.key, upload.initiated_at_s),
    }


def list_multipart_uploads(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, limit = existing_bucket(tx, params, caller), page_limit(params, "MaxUploads")
    key, upload_id = params.get("KeyMarker", ""), params.get("UploadIdMarker", "")
    page = tx.store.objects.uploads(
        bucket.id,
        prefix=params.get("Prefix", ""),
        delimiter=params.get("Delimiter", ""),
        after=key,
        after_number=_number(tx, upload_id) if upload_id and key else None,
        limit=limit,
    )
    more, last = page.more and limit > 0, page.found[-1] if page.found else ""
    return url_encoded(
        params,
        {
            **request_echo(bucket.name, params, limit, more=more, bucket_member="Bucket", limit_member="MaxUploads"),
            "KeyMarker": key,
            "UploadIdMarker": upload_id,
            **({"NextKeyMarker": name_of(last)} if more else {}),
            **({"NextUploadIdMarker": last.id} if more and isinstance(last, MultipartUpload) else {}),
            "Uploads": [
                {
                    "UploadId": upload.id,
                    "Key": upload.key,
                    "Initiated": upload.initiated_at_s // 1,
                    **_upload_members(upload, caller),
                }
                for upload in page.found
                if isinstance(upload, MultipartUpload)
            ],
            **common_prefixes(page),
        },
    )


def _number(tx: Tx[Store], upload_id: str) -> int:
    """The number of the upload at which the previous page ended; 0 if the upload no longer exists.

    With 0, the listing repeats all uploads of the key.
    """
    marker = tx.store.objects.upload(upload_id)
    return marker.number if marker is not None else 0


def _existing_upload(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[Bucket, MultipartUpload]:
    bucket = existing_bucket(tx, params, caller)
    upload = tx.store.objects.upload(params["UploadId"])
    if upload is None or (upload.bucket_id, upload.key) != (bucket.id, params["Key"]):
        raise errors.no_such_upload(params["UploadId"])
    return bucket, upload


def _part_digests(upload: MultipartUpload, announced: frozenset[str], params: dict[str, Any]) -> frozenset[str]:
    """The digests to compute for a part. If the upload has no checksum algorithm, the default algorithm is used."""
    expected = upload.details.get(CHECKSUM_ALGORITHM)
    if expected is not None and announced and announced != {expected}:
        actual = ", ".join(sorted(announced)).lower()
        raise errors.InvalidRequest(
            f"Checksum Type mismatch occurred, expected checksum Type: {expected.lower()}, actual checksum Type: {actual}"
        )
    return required_digests(announced | {expected or DEFAULT_ALGORITHM}, params, md5=etag_is_md5(upload.details))


def _put_part(tx: Tx[Store], bucket: Bucket, upload: MultipartUpload, params: dict[str, Any], caller: Caller) -> ContentPart:
    blob = params["Body"]
    check_room(tx, bucket, blob.size)
    part = new_part(tx, params["PartNumber"], blob, verify_digests(params, blob), upload.details, caller.writer)
    versions.wake_blob_gc(tx, tx.store.objects.put_part(upload, part))
    return part


def _selected_parts(upload: MultipartUpload, stored: dict[int, ContentPart], wanted: list[dict[str, Any]]) -> list[ContentPart]:
    """Check the parts that CompleteMultipartUpload lists against the stored parts, and return them."""
    if not wanted or any("PartNumber" not in each or "ETag" not in each for each in wanted):
        raise errors.malformed_xml()
    parts: list[ContentPart] = []
    for each in wanted:
        part = stored.get(each["PartNumber"])
        if parts and each["PartNumber"] <= parts[-1].number:
            raise errors.InvalidPartOrder(
                "The list of parts was not in ascending order. The parts list must be specified in order by part number.",
                UploadId=upload.id,
            )
        given = given_checksums(each)
        if part is None or each["ETag"].strip('"') != part.etag or any(part.checksums.get(name) != given[name] for name in given):
            raise errors.InvalidPart(
                "One or more of the specified parts could not be found.  The part may not have been uploaded, or the specified "
                "entity tag may not match the part's entity tag.",
                UploadId=upload.id,
                PartNumber=each["PartNumber"],
                ETag=each["ETag"].strip('"'),
            )
        parts.append(part)
    for part in parts[:-1]:
        if part.size < PART_MIN_BYTES:
            raise errors.entity_too_small(part.size, PART_MIN_BYTES, PartNumber=part.number, ETag=part.etag)
    if sum(part.size for part in parts) > OBJECT_MAX_BYTES:
        raise errors.entity_too_large(OBJECT_MAX_BYTES)
    return parts


def _object_checksum(upload: MultipartUpload, parts: list[ContentPart], params: dict[str, Any]) -> dict[str, str]:
    """The checksum members of the object, computed from the checksums of its parts."""
    algorithm = upload.details.get(CHECKSUM_ALGORITHM, DEFAULT_ALGORITHM)
    checksum_type = upload.details.get(CHECKSUM_TYPE, FULL_OBJECT)
    if params.get(CHECKSUM_TYPE, checksum_type) != checksum_type:
        message = f"The upload was created using the {checksum_type} checksum mode. The complete request must use the same."
        raise errors.InvalidRequest(message)
    found = [(decoded_digest(part.checksums[algorithm]), part.size) for part in parts]
    if checksum_type == FULL_OBJECT:
        text = checksum_text(full_object(algorithm, found))
    else:
        text = composite(algorithm, (digest for digest, _ in found))
    for name, given in given_checksums(params).items():
        if name != algorithm or given.partition("-")[0] != text.partition("-")[0]:
            raise errors.bad_checksum(name.lower())
    return checksum_members({algorithm: text}, checksum_type)


def _completed(tx: Tx[Store], caller: Caller, bucket: Bucket, version: ObjectVersion) -> dict[str, Any]:
    return {
        "Location": location(tx, caller, bucket, version.key),
        "Bucket": bucket.name,
        "Key": version.key,
        "ETag": quoted(version.etag),
        **new_version_id_member(version),
        **stored_checksums(version.details),
        **encryption_members(version.details),
        **lifecycle.expiration_member(tx, bucket, version),
    }


def _upload_members(upload: MultipartUpload, caller: Caller) -> dict[str, Any]:
    return {
        "StorageClass": upload.details.get("StorageClass", STANDARD),
        "Owner": owner(caller),
        "Initiator": owner(caller),
        **{name: upload.details[name] for name in CHECKSUM_DETAILS if name in upload.details},
    }
