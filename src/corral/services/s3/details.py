"""What is kept of a request beside the bytes, and how it is shown: headers, metadata, tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from corral.model.objects import Bucket, Version
from corral.services.s3 import acl, encryption
from corral.services.s3.errors import (
    InvalidArgument,
    InvalidRequest,
    InvalidStorageClass,
    InvalidTag,
    MetadataTooLarge,
    unsupported,
)
from corral.services.tags import TagRules

HEADERS = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Expires")
KEPT = (*HEADERS, "Metadata", "WebsiteRedirectLocation", "StorageClass")
CONTENT_TYPE = "binary/octet-stream"  # of what came without one
STANDARD = "STANDARD"
STORAGE_CLASSES = frozenset(
    {"STANDARD", "REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER", "DEEP_ARCHIVE", "GLACIER_IR",
     "EXPRESS_ONEZONE"}
)  # fmt: skip
METADATA_MAX_BYTES = 2048
OBJECT_TAGS = TagRules(
    InvalidTag,
    texts={
        "count": "Object tags cannot be greater than {max}",
        "duplicate": "Cannot provide multiple Tags with the same key",
        "key": "The TagKey you have provided is invalid",
        "value": "The TagValue you have provided is invalid",
        "reserved": "System tags cannot be added/updated by requester",
    },
    max=10,
    any_character=True,
    error_members={"TagKey": "key"},
)
BUCKET_TAGS = replace(OBJECT_TAGS, max=50)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
TAGS = "Tags"  # among the details: name → value


def details_of(bucket: Bucket, params: Mapping[str, Any]) -> dict[str, Any]:
    """What a new object keeps of the request that makes it."""
    for member in ("SSECustomerAlgorithm", "CopySourceSSECustomerAlgorithm"):
        if member in params:
            raise unsupported("x-amz-server-side-encryption-customer-algorithm", "Corral does not encrypt with keys of yours")
    if any(member.startswith("ObjectLock") for member in params):
        raise InvalidRequest("Bucket is missing Object Lock Configuration")
    _check_metadata(params.get("Metadata", {}))
    storage_class = params.get("StorageClass", STANDARD)
    if storage_class not in STORAGE_CLASSES:
        raise InvalidStorageClass("The storage class you specified is not valid", StorageClassRequested=storage_class)
    details = {name: params[name] for name in KEPT if name in params}
    details |= encryption.asked_for(bucket, params) | acl.kept(params)
    if "Tagging" in params and isinstance(params["Tagging"], str):
        tags = tags_from_header(params["Tagging"])
        details |= {TAGS: tags} if tags else {}
    return details


def shown_headers(version: Version) -> dict[str, Any]:
    """The members of GetObject's answer that were kept as they came."""
    shown = {name: value for name, value in version.details.items() if name in KEPT} | encryption.shown(version.details)
    shown.setdefault("ContentType", CONTENT_TYPE)
    if shown.get("StorageClass") == STANDARD:
        del shown["StorageClass"]
    if tags := version.details.get(TAGS):
        shown["TagCount"] = len(tags)
    return shown


def tags_from_header(text: str) -> dict[str, str]:
    pairs = parse_qsl(text, keep_blank_values=True)
    if text and not pairs:
        message = "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters."
        raise InvalidArgument(message, ArgumentName="x-amz-tagging", ArgumentValue=text)
    return OBJECT_TAGS.of_pairs(pairs)


def tags_from_document(document: Mapping[str, Any]) -> dict[str, str]:
    return OBJECT_TAGS.read(document.get("TagSet", ()))


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for name in metadata:
        if not _NAME.fullmatch(name):  # of a URL: what is in it becomes a header
            raise InvalidArgument("The name of a header must be a token", ArgumentName=f"x-amz-meta-{name}")
    size = sum(len(name) + len(value) for name, value in metadata.items())
    if size > METADATA_MAX_BYTES:
        message = "Your metadata headers exceed the maximum allowed metadata size"
        raise MetadataTooLarge(message, Size=size, MaxSizeAllowed=METADATA_MAX_BYTES)
