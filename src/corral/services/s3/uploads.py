"""Uploads in parts: parts are blobs of their own, and the object that they become is a list of them."""

from __future__ import annotations

from hashlib import md5
from typing import Any

from corral.blobs.checksums import checksum_text, composite, full_object
from corral.core import Tx
from corral.model.blob import Admission
from corral.model.objects import Bucket, Part, Upload, Version
from corral.services.caller import Caller
from corral.services.s3 import digests, encryption, lifecycle, versions
from corral.services.s3.contents import thrown_away
from corral.services.s3.copying import source_of, span_of_source
from corral.services.s3.details import STANDARD, details_of
from corral.services.s3.errors import (
    BadDigest,
    EntityTooLarge,
    EntityTooSmall,
    InvalidPart,
    InvalidPartOrder,
    InvalidRequest,
    malformed_xml,
    no_such_upload,
    precondition_failed,
)
from corral.services.s3.listing import common_prefixes, echoed, encoded, name_of
from corral.services.s3.naming import check_key, existing_bucket, limit_of, location, owner, quoted, shown_id
from corral.services.s3.objects import check_size, part_of
from corral.store import Store

PART_MIN_BYTES = 5 * 1024**2  # of all but the last
OBJECT_MAX_BYTES = 5 * 1024**4
# The details of an upload that are not those of the object it becomes.
ALGORITHM = "ChecksumAlgorithm"
KIND = "ChecksumType"


def create_multipart_upload(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, upload_id = existing_bucket(tx, params, caller), tx.ids.hex32() + tx.ids.hex32()
    check_key(params["Key"])
    checksum = _checksum_of_upload(params)
    details = details_of(bucket, params)
    tx.store.objects.add_upload(upload_id, bucket.id, params["Key"], tx.now_s, details | checksum)
    return {
        "Bucket": bucket.name,
        "Key": params["Key"],
        "UploadId": upload_id,
        **checksum,
        **encryption.shown(details),
        **lifecycle.upload_began(tx, bucket, params["Key"], upload_id),
    }


def _checksum_of_upload(params: dict[str, Any]) -> dict[str, str]:
    algorithm, kind = params.get(ALGORITHM), params.get(KIND)
    digests.announced({ALGORITHM: algorithm, "Trailers": [f"x-amz-checksum-{algorithm.lower()}"]} if algorithm else {})
    if algorithm is None:
        if kind is not None:
            raise InvalidRequest("The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.")
        return {}
    if kind is None:
        kind = digests.FULL_OBJECT if algorithm == digests.DEFAULT else digests.COMPOSITE
    impossible = {digests.FULL_OBJECT: ("SHA1", "SHA256"), digests.COMPOSITE: (digests.DEFAULT,)}
    if algorithm in impossible.get(kind, (algorithm,)):
        raise InvalidRequest(f"The {kind} checksum type cannot be used with the {algorithm.lower()} checksum algorithm.")
    return {ALGORITHM: algorithm, KIND: kind}


def admit_part(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Admission:
    upload = _existing(tx, params, caller)[1]
    check_size(params)
    return Admission(_digests(upload, digests.announced(params), params))


def upload_part(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    upload, announced = _existing(tx, params, caller)[1], digests.stated(params)
    part = _put(tx, upload, params)
    shown = {algorithm: text for algorithm, text in part.checksums.items() if not announced or algorithm in announced}
    return {"ETag": quoted(part.etag), **digests.shown(shown), **encryption.shown(upload.details)}


def admit_part_copy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Admission:
    upload = _existing(tx, params, caller)[1]
    source = source_of(tx, params, caller)
    first, size = span_of_source(source.version, params.get("CopySourceRange"))
    assert source.version.content is not None
    slices = tx.store.objects.slices(source.version.content, first, size)
    return Admission(_digests(upload, frozenset(), {}), slices, {"Source": source})


def upload_part_copy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    upload, source = _existing(tx, params, caller)[1], params["Source"]
    part = _put(tx, upload, params)
    copied = {"ETag": quoted(part.etag), "LastModified": int(part.modified_at_s), **digests.shown(part.checksums)}
    return {"CopyPartResult": copied, **source.shown_id, **encryption.shown(upload.details)}


def complete_multipart_upload(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Nothing is copied. Asked again for an upload that it has completed, it says so again."""
    bucket = existing_bucket(tx, params, caller)
    upload = tx.store.objects.upload(params["UploadId"])
    if upload is None:
        made = tx.store.objects.version_of_upload(params["UploadId"])
        if made is None or (made[0], made[1].key) != (bucket.id, params["Key"]):
            raise no_such_upload(params["UploadId"])
        return _completed(tx, bucket, made[1])
    if (upload.bucket_id, upload.key) != (bucket.id, params["Key"]):
        raise no_such_upload(params["UploadId"])
    there = {part.number: part for part in tx.store.objects.parts(upload.number)}
    parts = _chosen(upload, there, params.get("MultipartUpload", {}).get("Parts", []))
    size = sum(part.size for part in parts)
    if params.get("MpuObjectSize", size) != size:
        message = (
            f"The provided 'x-amz-mp-object-size' header value {params['MpuObjectSize']} does not match what was computed: {size}"
        )
        raise InvalidRequest(message)
    checksums = _checksum(upload, parts, params)
    versions.check_write(tx, bucket, upload.key, params)
    version = versions.add(
        tx,
        bucket,
        upload.key,
        content=upload.number,
        size=size,
        etag=f"{md5(bytes.fromhex(''.join(part.etag for part in parts)), usedforsecurity=False).hexdigest()}-{len(parts)}",
        details={name: value for name, value in upload.details.items() if name not in (ALGORITHM, KIND)} | checksums,
        event_name="CompleteMultipartUpload",
        caller=caller,
        upload_id=upload.id,
    )
    unwanted = there.keys() - {part.number for part in parts}
    thrown_away(tx, tx.store.objects.keep_parts(upload, unwanted))
    lifecycle.upload_ended(tx, upload)
    return _completed(tx, bucket, version)


def abort_multipart_upload(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    upload = _existing(tx, params, caller)[1]
    if params.get("IfMatchInitiatedTime", int(upload.initiated_at_s)) != int(upload.initiated_at_s):
        raise precondition_failed("x-amz-if-match-initiated-time")
    abort(tx, upload)
    return {}


def abort(tx: Tx[Store], upload: Upload) -> None:
    tx.store.objects.drop_upload(upload)
    thrown_away(tx, True)
    lifecycle.upload_ended(tx, upload)


def list_parts(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, upload = _existing(tx, params, caller)
    limit, after = limit_of(params, "MaxParts"), int(params.get("PartNumberMarker", 0))
    found = tx.store.objects.parts(upload.number, after=after, limit=limit + 1)
    page, more = found[:limit], len(found) > limit > 0
    algorithm = upload.details.get(ALGORITHM)
    return {
        "Bucket": bucket.name,
        "Key": upload.key,
        "UploadId": upload.id,
        "PartNumberMarker": after,
        **({"NextPartNumberMarker": page[-1].number} if page else {}),
        "MaxParts": limit,
        "IsTruncated": more,
        "Parts": [
            {
                "PartNumber": part.number,
                "LastModified": int(part.modified_at_s),
                "ETag": quoted(part.etag),
                "Size": part.size,
                **digests.shown({name: text for name, text in part.checksums.items() if name == algorithm}),
            }
            for part in page
        ],
        **_shown(upload, caller),
        **lifecycle.abort_members(tx, bucket, upload.key, upload.initiated_at_s),
    }


def list_multipart_uploads(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, limit = existing_bucket(tx, params, caller), limit_of(params, "MaxUploads")
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
    return encoded(
        params,
        {
            **echoed(bucket.name, params, limit, more=more, name="Bucket", most="MaxUploads"),
            "KeyMarker": key,
            "UploadIdMarker": upload_id,
            **({"NextKeyMarker": name_of(last)} if more else {}),
            **({"NextUploadIdMarker": last.id} if more and isinstance(last, Upload) else {}),
            "Uploads": [
                {"UploadId": upload.id, "Key": upload.key, "Initiated": upload.initiated_at_s, **_shown(upload, caller)}
                for upload in page.found
                if isinstance(upload, Upload)
            ],
            **common_prefixes(page),
        },
    )


def _number(tx: Tx[Store], upload_id: str) -> int:
    """Where its page ended. If it is gone, all that are left of its key come again: better twice than never."""
    marker = tx.store.objects.upload(upload_id)
    return marker.number if marker is not None else 0


def _existing(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[Bucket, Upload]:
    bucket = existing_bucket(tx, params, caller)
    upload = tx.store.objects.upload(params["UploadId"])
    if upload is None or (upload.bucket_id, upload.key) != (bucket.id, params["Key"]):
        raise no_such_upload(params["UploadId"])
    return bucket, upload


def _digests(upload: Upload, announced: frozenset[str], params: dict[str, Any]) -> frozenset[str]:
    """Those that the whole will need. An upload that names no checksum gets the default one, whatever its parts bring."""
    expected = upload.details.get(ALGORITHM)
    if expected is not None and announced and announced != {expected}:
        actual = ", ".join(sorted(announced)).lower()
        raise InvalidRequest(
            f"Checksum Type mismatch occurred, expected checksum Type: {expected.lower()}, actual checksum Type: {actual}"
        )
    return digests.wanted(announced | {expected or digests.DEFAULT}, params, md5=encryption.has_md5(upload.details))


def _put(tx: Tx[Store], upload: Upload, params: dict[str, Any]) -> Part:
    arrived = params["Body"]
    part = part_of(tx, params["PartNumber"], arrived, digests.check_arrived(params, arrived), upload.details)
    thrown_away(tx, tx.store.objects.put_part(upload, part))
    return part


def _chosen(upload: Upload, there: dict[int, Part], wanted: list[dict[str, Any]]) -> list[Part]:
    """The parts that the completion names, each as it was uploaded."""
    if not wanted or any("PartNumber" not in each or "ETag" not in each for each in wanted):
        raise malformed_xml()
    parts: list[Part] = []
    for each in wanted:
        part = there.get(each["PartNumber"])
        if parts and each["PartNumber"] <= parts[-1].number:
            raise InvalidPartOrder(
                "The list of parts was not in ascending order. The parts list must be specified in order by part number.",
                UploadId=upload.id,
            )
        given = digests.stated(each)
        if part is None or each["ETag"].strip('"') != part.etag or any(part.checksums.get(name) != given[name] for name in given):
            raise InvalidPart(
                "One or more of the specified parts could not be found.  The part may not have been uploaded, or the specified "
                "entity tag may not match the part's entity tag.",
                UploadId=upload.id,
                PartNumber=each["PartNumber"],
                ETag=each["ETag"].strip('"'),
            )
        parts.append(part)
    for part in parts[:-1]:
        if part.size < PART_MIN_BYTES:
            raise EntityTooSmall(
                "Your proposed upload is smaller than the minimum allowed size",
                ProposedSize=part.size,
                MinSizeAllowed=PART_MIN_BYTES,
                PartNumber=part.number,
                ETag=part.etag,
            )
    if sum(part.size for part in parts) > OBJECT_MAX_BYTES:
        raise EntityTooLarge("Your proposed upload exceeds the maximum allowed size", MaxSizeAllowed=OBJECT_MAX_BYTES)
    return parts


def _checksum(upload: Upload, parts: list[Part], params: dict[str, Any]) -> dict[str, str]:
    """The checksum of the whole, made of those of the parts."""
    algorithm = upload.details.get(ALGORITHM, digests.DEFAULT)
    kind = upload.details.get(KIND, digests.FULL_OBJECT)
    if params.get(KIND, kind) != kind:
        raise InvalidRequest(f"The upload was created using the {kind} checksum mode. The complete request must use the same.")
    found = [(digests.decoded(part.checksums[algorithm]), part.size) for part in parts]
    if kind == digests.FULL_OBJECT:
        text = checksum_text(full_object(algorithm, found))
    else:
        text = composite(algorithm, (digest for digest, _ in found))
    for name, given in digests.stated(params).items():
        if name != algorithm or given.partition("-")[0] != text.partition("-")[0]:
            raise BadDigest(f"The {name.lower()} you specified did not match the calculated checksum.")
    return digests.shown({algorithm: text}, kind)


def _completed(tx: Tx[Store], bucket: Bucket, version: Version) -> dict[str, Any]:
    return {
        "Location": location(tx, bucket, version.key),
        "Bucket": bucket.name,
        "Key": version.key,
        "ETag": quoted(version.etag),
        **shown_id(bucket, version),
        **digests.kept(version.details),
        **encryption.shown(version.details),
        **lifecycle.expiration(tx, bucket, version),
    }


def _shown(upload: Upload, caller: Caller) -> dict[str, Any]:
    return {
        "StorageClass": upload.details.get("StorageClass", STANDARD),
        "Owner": owner(caller),
        "Initiator": owner(caller),
        **{name: upload.details[name] for name in (ALGORITHM, KIND) if name in upload.details},
    }
