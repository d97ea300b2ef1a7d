"""Copies: an object's bytes are shared, not copied, unless they are to be digested anew."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from corral.core import Tx
from corral.decide.preconditions import Conditions
from corral.errors import ServiceUnavailable
from corral.model.blob import Admission
from corral.model.objects import Bucket, Version
from corral.services.caller import Caller
from corral.services.s3 import digests, encryption, versions
from corral.services.s3.details import HEADERS, TAGS, details_of, tags_from_header
from corral.services.s3.errors import InvalidArgument, InvalidRequest
from corral.services.s3.lifecycle import expiration
from corral.services.s3.naming import check_key, existing_bucket, existing_version, quoted, shown_id
from corral.services.s3.objects import DETAILS, PUT_MAX_BYTES, check_read, part_of
from corral.store import Store

COPY, REPLACE = "COPY", "REPLACE"
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    bucket: Bucket
    version: Version

    @property
    def shown_id(self) -> dict[str, str]:
        return {f"CopySource{name}": value for name, value in shown_id(self.bucket, self.version).items()}


def source_of(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Source:
    """The version that CopySource names (`bucket/key?versionId=…`, encoded as a URL is), if its conditions hold."""
    text, _, version_id = params["CopySource"].partition("?versionId=")
    name, slash, key = unquote(text).removeprefix("/").partition("/")
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
    check_read(version, conditions, not_modified=False)
    return Source(bucket, version)


def span_of_source(version: Version, header: str | None) -> tuple[int, int]:
    """(first, how many) bytes of the source become a part."""
    if header is None:
        first, size = 0, version.size
    else:
        found = _RANGE.fullmatch(header)
        if found is None:
            message = (
                "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the "
                "zero-based offsets of the first and last bytes to copy"
            )
            raise InvalidArgument(message, ArgumentName="x-amz-copy-source-range", ArgumentValue=header)
        first, size = int(found[1]), int(found[2]) - int(found[1]) + 1
        if size <= 0 or first + size > version.size:
            message = f"Range specified is not valid for source object of size: {version.size}"
            raise InvalidArgument(message, ArgumentName="x-amz-copy-source-range", ArgumentValue=header)
    _check_size(size)
    return first, size


def admit_copy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Admission | None:
    """Only a digest that the source does not have makes it necessary to read the bytes: a checksum, or the MD5 of an ETag."""
    algorithm = params.get("ChecksumAlgorithm")
    if algorithm is not None:
        digests.announced({"ChecksumAlgorithm": algorithm, "Trailers": [f"x-amz-checksum-{algorithm.lower()}"]})
    bucket, source = existing_bucket(tx, params, caller), source_of(tx, params, caller)
    before, details = source.version.details, _details(bucket, source.version, params)
    has_md5 = encryption.has_md5(details)
    if (algorithm is None or digests.member_of(algorithm) in before) and (encryption.has_md5(before) or not has_md5):
        return None
    _check(tx, source, bucket, params)
    assert source.version.content is not None
    slices = tx.store.objects.slices(source.version.content, 0, source.version.size)
    algorithms = frozenset({algorithm} if algorithm is not None else digests.algorithms_of(before))
    return Admission(digests.wanted(algorithms, {}, md5=has_md5), slices, {"Source": source, DETAILS: details})


def copy_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, key = existing_bucket(tx, params, caller), params["Key"]
    arrived = params.get("Body")
    source = params["Source"] if arrived is not None else source_of(tx, params, caller)
    version = source.version
    _check(tx, source, bucket, params)
    details = params[DETAILS] if arrived is not None else _details(bucket, version, params)
    assert version.content is not None
    if arrived is None:
        tx.store.objects.refer_to(version.content)
        if encryption.has_md5(details) and not encryption.has_md5(version.details):
            raise ServiceUnavailable("The source or the encryption of the bucket has changed just now. Please try again.")
        content, checksums = version.content, digests.kept(version.details)
        etag = version.etag if encryption.has_md5(details) else tx.ids.hex32()
    else:
        found = digests.check_arrived({}, arrived)
        part = part_of(tx, 1, arrived, found, details)
        content, etag = tx.store.objects.add_content(part), part.etag
        checksums = digests.shown(found, digests.FULL_OBJECT)
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
    result = {"ETag": quoted(copied.etag), "LastModified": int(copied.modified_at_s), **checksums}
    return {
        "CopyObjectResult": result,
        **shown_id(bucket, copied),
        **source.shown_id,
        **encryption.shown(copied.details),
        **expiration(tx, bucket, copied),
    }


def _check(tx: Tx[Store], source: Source, bucket: Bucket, params: dict[str, Any]) -> None:
    """Whether it may be copied there."""
    check_key(params["Key"])
    _check_size(source.version.size)
    _check_not_itself(source, bucket, params)
    versions.check_write(tx, bucket, params["Key"], params)


def _check_size(size: int) -> None:
    if size > PUT_MAX_BYTES:
        message = f"The specified copy source is larger than the maximum allowable size for a copy source: {PUT_MAX_BYTES}"
        raise InvalidRequest(message)


def _check_not_itself(source: Source, bucket: Bucket, params: dict[str, Any]) -> None:
    changes = ("StorageClass", "WebsiteRedirectLocation", *encryption.MEMBERS)
    is_itself = (source.bucket.id, source.version.key) == (bucket.id, params["Key"]) and source.version.latest
    if is_itself and params.get("MetadataDirective", COPY) == COPY and not any(name in params for name in changes):
        raise InvalidRequest(
            "This copy request is illegal because it is trying to copy an object to itself without changing the object's "
            "metadata, storage class, website redirect location or encryption attributes."
        )


def _details(bucket: Bucket, version: Version, params: dict[str, Any]) -> dict[str, Any]:
    """Headers and metadata, and tags, are the source's or the request's; the rest is the request's in any case."""
    given = details_of(bucket, params)
    if params.get("MetadataDirective", COPY) == COPY:
        headers = (*HEADERS, "Metadata")
        given = {name: value for name, value in given.items() if name not in headers}
        given |= {name: version.details[name] for name in headers if name in version.details}
    given.pop(TAGS, None)
    if params.get("TaggingDirective", COPY) == COPY:
        tags = version.details.get(TAGS, {})
    else:
        tags = tags_from_header(params.get("Tagging", ""))
    return given | ({TAGS: tags} if tags else {})
