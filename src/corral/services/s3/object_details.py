"""The details of an object: the headers, metadata, tags and encryption settings that are stored with it.

Encryption settings are stored but not enforced: the files are not encrypted. But the ETag has the form that S3 uses for the
encryption method.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import S3_INVALID_ENCRYPTION, S3_INVALID_STORAGE_CLASS, S3_INVALID_TAG_KEY
from corral.core.transactions import Tx
from corral.model.blob import MD5, StoredBlob
from corral.model.objects import SSE_METHODS, STORAGE_CLASSES, Bucket, ObjectVersion
from corral.operations.tags import ALLOWED, TagRules
from corral.services.s3 import acl, errors
from corral.services.s3.lookup import existing_bucket, existing_version, version_id_member
from corral.services.s3.notifications import tags_changed
from corral.store import Store

HEADER_MEMBERS = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "Expires")
STORED_MEMBERS = (*HEADER_MEMBERS, "Metadata", "WebsiteRedirectLocation", "StorageClass")
DEFAULT_CONTENT_TYPE = "binary/octet-stream"
STANDARD = "STANDARD"
METADATA_MAX_BYTES = 2048
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_METADATA_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

TAGS = "Tags"  # the member of the details that holds the tags: key → value
OBJECT_TAGS = TagRules(
    errors.InvalidTag,
    errors={"count": errors.BadRequest},
    texts={
        "count": "Object tags cannot be greater than {max}",
        "duplicate": "Cannot provide multiple Tags with the same key",
        "key": S3_INVALID_TAG_KEY,
        "value": "The TagValue you have provided is invalid",
        "reserved": "Your TagKey cannot be prefixed with aws:",
    },
    max=10,
    any_character=True,  # `read_tags` checks the characters
    error_members={"TagKey": "key"},
)
BUCKET_TAGS = replace(
    OBJECT_TAGS,
    max=50,
    texts={
        **OBJECT_TAGS.texts,
        "count": "Bucket tag count cannot be greater than {max}",
        "reserved": "System tags cannot be added/updated by requester",
    },
)

SSE_METHOD = "ServerSideEncryption"
SSE_KEY_ID = "SSEKMSKeyId"
ENCRYPTION_MEMBERS = (SSE_METHOD, SSE_KEY_ID, "BucketKeyEnabled")
SSE_S3 = SSE_METHODS[0]
_SSE_S3_MEMBERS = {SSE_METHOD: SSE_S3}


def details_from_request(bucket: Bucket, params: Mapping[str, Any]) -> dict[str, Any]:
    for member in ("SSECustomerAlgorithm", "CopySourceSSECustomerAlgorithm"):
        if member in params:
            raise errors.unsupported(
                "x-amz-server-side-encryption-customer-algorithm", "Corral does not encrypt with customer keys"
            )
    if any(member.startswith("ObjectLock") for member in params):
        raise errors.InvalidRequest("Bucket is missing Object Lock Configuration")
    _check_metadata(params.get("Metadata", {}))
    storage_class = params.get("StorageClass", STANDARD)
    if storage_class not in STORAGE_CLASSES:
        raise errors.InvalidStorageClass(S3_INVALID_STORAGE_CLASS, StorageClassRequested=storage_class)
    details = {name: params[name] for name in STORED_MEMBERS if name in params}
    details |= _requested_encryption(bucket, params) | acl.requested_acl(params)
    _check_header_values(details)
    if "Tagging" in params and isinstance(params["Tagging"], str):
        tags = tags_from_header(params["Tagging"])
        details |= {TAGS: tags} if tags else {}
    return details


def header_members(version: ObjectVersion) -> dict[str, Any]:
    """The members of GetObject's response that are read from the stored details."""
    members = {name: value for name, value in version.details.items() if name in STORED_MEMBERS}
    members |= encryption_members(version.details)
    members.setdefault("ContentType", DEFAULT_CONTENT_TYPE)
    if members.get("StorageClass") == STANDARD:
        del members["StorageClass"]
    if tags := version.details.get(TAGS):
        members["TagCount"] = len(tags)
    return members


def _check_header_values(details: Mapping[str, Any]) -> None:
    """Refuse values that cannot be response headers later. Presigned URLs and forms can contain any character."""
    for name, value in details.items():
        if isinstance(value, str) and not value.isprintable():
            _check_header_value(name, value)
    for name, value in details.get("Metadata", {}).items():
        if not value.isprintable():
            _check_header_value(f"x-amz-meta-{name}", value)


def _check_header_value(name: str, value: str) -> None:
    if _CONTROL.search(value):
        message = f"The value of {name} contains a line break or another control character, which a header cannot have."
        raise errors.InvalidArgument(message, ArgumentName=name, ArgumentValue=value)


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for name in metadata:
        if not _METADATA_NAME.fullmatch(name):  # the name becomes a header; in a presigned URL it can have any character
            message = f"The metadata name {name!r} is not valid: use letters, digits and !#$%&'*+.^_`|~- only."
            raise errors.InvalidArgument(message, ArgumentName=f"x-amz-meta-{name}")
    size = sum(len(name) + len(value) for name, value in metadata.items())
    if size > METADATA_MAX_BYTES:
        message = "Your metadata headers exceed the maximum allowed metadata size"
        raise errors.MetadataTooLarge(message, Size=size, MaxSizeAllowed=METADATA_MAX_BYTES)


# Encryption


def _requested_encryption(bucket: Bucket, params: Mapping[str, Any]) -> dict[str, Any]:
    """The encryption members of a new object: those of the request, or else the bucket's default."""
    method = params.get(SSE_METHOD, SSE_S3)
    if method not in SSE_METHODS:
        raise errors.InvalidArgument(S3_INVALID_ENCRYPTION, ArgumentName="x-amz-server-side-encryption", ArgumentValue=method)
    if SSE_KEY_ID in params and method == SSE_S3:
        raise errors.InvalidArgument(
            "Server Side Encryption with AWS KMS managed key requires HTTP header x-amz-server-side-encryption : aws:kms",
            ArgumentName="x-amz-server-side-encryption",
            ArgumentValue=params.get(SSE_METHOD, "null"),
        )
    requested = {name: params[name] for name in ENCRYPTION_MEMBERS if name in params}
    return requested if SSE_METHOD in requested else _default_encryption(bucket) | requested


def _default_encryption(bucket: Bucket) -> dict[str, Any]:
    if bucket.encryption is None:
        return {}
    rule = bucket.encryption["Rules"][0]  # PutBucketEncryption stores exactly one rule, and the rule has BucketKeyEnabled
    by_default = rule.get("ApplyServerSideEncryptionByDefault", {"SSEAlgorithm": SSE_S3})
    return {
        SSE_METHOD: by_default["SSEAlgorithm"],
        **({SSE_KEY_ID: by_default["KMSMasterKeyID"]} if "KMSMasterKeyID" in by_default else {}),
        **({"BucketKeyEnabled": True} if rule["BucketKeyEnabled"] else {}),
    }


def encryption_members(details: Mapping[str, Any]) -> dict[str, Any]:
    """The encryption members of a response. S3 encrypts all objects, so each has a method."""
    if SSE_METHOD not in details:
        return _SSE_S3_MEMBERS
    return {name: details[name] for name in ENCRYPTION_MEMBERS if name in details}


def etag_is_md5(details: Mapping[str, Any]) -> bool:
    """Whether the ETag of a one-part object is the MD5 of its bytes. With a KMS key, the ETag is random."""
    return SSE_METHOD not in details or details[SSE_METHOD] == SSE_S3


def new_etag(tx: Tx[Store], blob: StoredBlob, details: Mapping[str, Any]) -> str:
    return blob.digests[MD5].hex() if etag_is_md5(details) else tx.ids.hex32()


# Tags


def put_object_tagging(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _set_tags(tx, params, caller, read_tags(OBJECT_TAGS, params["Tagging"].get("TagSet", ())), "Put")


def delete_object_tagging(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return _set_tags(tx, params, caller, {}, "Delete")


def get_object_tagging(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    version = existing_version(tx, bucket, params["Key"], params.get("VersionId"), marker_hides_key=False)
    return {"TagSet": OBJECT_TAGS.to_list(version.details.get(TAGS, {})), **version_id_member(bucket, version)}


def tags_from_header(text: str) -> dict[str, str]:
    pairs = parse_qsl(text, keep_blank_values=True)
    is_valid = pairs or not text
    if not is_valid or len(dict(pairs)) < len(pairs) or not all(ALLOWED.fullmatch(part) for pair in pairs for part in pair):
        message = (
            "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters without tag name duplicates."
        )
        raise errors.InvalidArgument(message, ArgumentName="x-amz-tagging", ArgumentValue=text)
    return OBJECT_TAGS.of_pairs(pairs)


def read_tags(rules: TagRules, tags: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Check the tags of a request, and return them."""
    found = rules.read(tags)
    for key, value in found.items():
        if not ALLOWED.fullmatch(key):
            raise errors.InvalidTag(S3_INVALID_TAG_KEY, TagKey=key)
        if not ALLOWED.fullmatch(value):
            raise errors.InvalidTag("The TagValue you have provided is invalid", TagKey=key, TagValue=value)
    return found


def _set_tags(tx: Tx[Store], params: dict[str, Any], caller: Caller, tags: dict[str, str], event_name: str) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    version = existing_version(tx, bucket, params["Key"], params.get("VersionId"), marker_hides_key=False)
    details = {name: value for name, value in version.details.items() if name != TAGS} | ({TAGS: tags} if tags else {})
    tx.store.objects.set_details(version.number, details)
    tags_changed(tx, bucket, replace(version, details=details), event_name, caller)
    return version_id_member(bucket, version)
