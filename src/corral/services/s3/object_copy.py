"""CopyObject. The copy shares the files (blobs) of its source, unless it needs a digest that the source lacks."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.errors import ServiceUnavailable
from corral.core.transactions import Tx
from corral.decide.objects.preconditions import Conditions
from corral.model.blob import Admission
from corral.model.objects import Bucket, ObjectVersion
from corral.services.s3 import versions
from corral.services.s3.errors import InvalidArgument, InvalidRequest
from corral.services.s3.lifecycle import expiration_member
from corral.services.s3.lookup import check_key, existing_bucket, existing_version, new_version_id_member, quoted, version_id_member
from corral.services.s3.object_checksums import (
    FULL_OBJECT,
    announced_algorithms,
    checksum_member,
    checksum_members,
    required_digests,
    stored_algorithms,
    stored_checksums,
    verify_digests,
)
from corral.services.s3.object_details import (
    ENCRYPTION_MEMBERS,
    HEADER_MEMBERS,
    TAGS,
    details_from_request,
    encryption_members,
    etag_is_md5,
    tags_from_header,
)
from corral.services.s3.objects import DETAILS, PUT_MAX_BYTES, check_read, check_room, is_multipart, new_part
from corral.services.s3.permissions import copy_source
from corral.store import Store

COPY, REPLACE = "COPY", "REPLACE"
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})", re.ASCII)


class CopySource(Struct, frozen=True):
    """The version to copy, and its bucket."""

    bucket: Bucket
    version: ObjectVersion
    is_named: bool  # whether the request names the version

    @property
    def version_id_member(self) -> dict[str, str]:
        return {f"CopySource{name}": value for name, value in version_id_member(self.bucket, self.version).items()}


def find_source(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> CopySource:
    """Find the version that CopySource names (`bucket/key?versionId=…`, URL-encoded), and check the conditions for it."""
    source, version_id = copy_source(params["CopySource"])
    name, slash, key = source.partition("/")
    if not (name and slash and key):
        raise InvalidArgument(
            "Copy Source must mention the source bucket and key: sourcebucket/sourcekey",
            ArgumentName="x-amz-copy-source",
            ArgumentValue=params["CopySource"],
        )
    named = {"Bucket": name}
    if "ExpectedSourceBucketOwner" in params:
        named["ExpectedBucketOwner"] = params["ExpectedSourceBucketOwner"]
    bucket = existing_bucket(tx, named, caller)
    version = existing_version(tx, bucket, key, version_id or None)
    conditions = Conditions(
        params.get("CopySourceIfMatch"),
        params.get("CopySourceIfNoneMatch"),
        params.get("CopySourceIfModifiedSince"),
        params.get("CopySourceIfUnmodifiedSince"),
    )
    check_read(tx, version, conditions, "x-amz-copy-source-")
    return CopySource(bucket, version, bool(version_id))


def source_span(version: ObjectVersion, header: str | None) -> tuple[int, int]:
    """The offset and the number of the source's bytes that become a part."""
    if header is None:
        first, size = 0, version.size
    else:
        found = _RANGE.fullmatch(header)
        if found is None or int(found[2]) < int(found[1]):
            message = (
                "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the "
                "zero-based offsets of the first and last bytes to copy"
            )
            raise InvalidArgument(message, ArgumentName="x-amz-copy-source-range", ArgumentValue=header)
        first, size = int(found[1]), int(found[2]) - int(found[1]) + 1
        if first >= version.size:
            raise InvalidRequest("The specified copy range is invalid for the source object size")
        if first + size > version.size:
            message = f"Range specified is not valid for source object of size: {version.size}"
            raise InvalidArgument(message, ArgumentName="x-amz-copy-source-range", ArgumentValue=header)
    _check_size(size)
    return first, size


def admit_copy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Admission | None:
    """Return None if the copy can share the source's blobs. Otherwise return the slices to copy and the digests to compute.

    The bytes are copied only to compute a checksum or an MD5 that the source does not have. An object of several parts has neither
    the MD5 nor a single file.
    """
    algorithm = params.get("ChecksumAlgorithm")
    if algorithm is not None:
        announced_algorithms({"ChecksumAlgorithm": algorithm, "Trailers": [f"x-amz-checksum-{algorithm.lower()}"]})
    bucket, source = existing_bucket(tx, params, caller), find_source(tx, params, caller)
    before, details = source.version.details, _copied_details(bucket, source.version, params)
    needs_md5 = etag_is_md5(details)
    has_digests = (algorithm is None or checksum_member(algorithm) in before) and (etag_is_md5(before) or not needs_md5)
    if has_digests and not is_multipart(source.version):
        return None
    _check_copy(tx, source, bucket, params)
    assert source.version.content is not None
    slices = tx.store.objects.slices(source.version.content, 0, source.version.size)
    algorithms = frozenset({algorithm} if algorithm is not None else stored_algorithms(before))
    return Admission(required_digests(algorithms, {}, md5=needs_md5), slices, {"Source": source, DETAILS: details})


def copy_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, key = existing_bucket(tx, params, caller), params["Key"]
    blob = params.get("Body")
    source = params["Source"] if blob is not None else find_source(tx, params, caller)
    version = source.version
    _check_copy(tx, source, bucket, params)
    details = params[DETAILS] if blob is not None else _copied_details(bucket, version, params)
    assert version.content is not None
    check_room(tx, bucket, version.size)
    if blob is None:
        tx.store.objects.refer_to(version.content)
        if is_multipart(version) or (etag_is_md5(details) and not etag_is_md5(version.details)):
            raise ServiceUnavailable("The source object or the bucket's encryption changed during the copy: retry the request.")
        content, checksums = version.content, stored_checksums(version.details)
        etag = version.etag if etag_is_md5(details) else tx.ids.hex32()
    else:
        found = verify_digests({}, blob)
        part = new_part(tx, 1, blob, found, details)
        content, etag = tx.store.objects.add_content(part), part.etag
        checksums = checksum_members(found, FULL_OBJECT)
    copied = versions.add(
        tx,
        bucket,
        key,
        content=content,
        size=version.size,
        etag=etag,
        details=details | checksums,
        event_name="Copy",
        caller=caller,
    )
    result = {"ETag": quoted(copied.etag), "LastModified": copied.modified_at_s // 1, **checksums}
    return {
        "CopyObjectResult": result,
        **new_version_id_member(copied),
        **source.version_id_member,
        **encryption_members(copied.details),
        **expiration_member(tx, bucket, copied),
    }


def _check_copy(tx: Tx[Store], source: CopySource, bucket: Bucket, params: dict[str, Any]) -> None:
    check_key(params["Key"])
    _check_size(source.version.size)
    _check_not_itself(source, bucket, params)
    versions.check_write(tx, bucket, params["Key"], params)


def _check_size(size: int) -> None:
    if size > PUT_MAX_BYTES:
        message = f"The specified copy source is larger than the maximum allowable size for a copy source: {PUT_MAX_BYTES}"
        raise InvalidRequest(message)


def _check_not_itself(source: CopySource, bucket: Bucket, params: dict[str, Any]) -> None:
    changes = ("StorageClass", "WebsiteRedirectLocation", *ENCRYPTION_MEMBERS)
    is_itself = (source.bucket.id, source.version.key) == (bucket.id, params["Key"]) and not source.is_named
    changed = params.get("MetadataDirective", COPY) == REPLACE or any(name in params for name in changes)
    if is_itself and not changed and bucket.encryption is None:
        raise InvalidRequest(
            "This copy request is illegal because it is trying to copy an object to itself without changing the object's "
            "metadata, storage class, website redirect location or encryption attributes."
        )


def _copied_details(bucket: Bucket, version: ObjectVersion, params: dict[str, Any]) -> dict[str, Any]:
    """The details of the copy.

    The directives of the request decide whether headers, metadata and tags are those of the source or those of the request. All
    other details are those of the request.
    """
    given = details_from_request(bucket, params)
    if params.get("MetadataDirective", COPY) == COPY:
        headers = (*HEADER_MEMBERS, "Metadata")
        given = {name: value for name, value in given.items() if name not in headers}
        given |= {name: version.details[name] for name in headers if name in version.details}
    given.pop(TAGS, None)
    if params.get("TaggingDirective", COPY) == COPY:
        tags = version.details.get(TAGS, {})
    else:
        tags = tags_from_header(params.get("Tagging", ""))
    return given | ({TAGS: tags} if tags else {})
