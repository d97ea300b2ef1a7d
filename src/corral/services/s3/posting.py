"""Objects that come as a browser's form, with a policy that their owner has signed."""

from __future__ import annotations

from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from corral.core import Tx
from corral.decide.post_policy import Malformed, Unmet, check_fields
from corral.errors import api_error
from corral.model.blob import Admission
from corral.services.caller import Caller
from corral.services.s3.details import details_of
from corral.services.s3.errors import AccessDenied, InvalidArgument, unsupported
from corral.services.s3.naming import check_key, existing_bucket, location, quoted, shown_id
from corral.services.s3.objects import PUT_MAX_BYTES, admission, store_object
from corral.store import Store

InvalidPolicyDocument = api_error("InvalidPolicyDocument")

FILENAME = "${filename}"
METADATA = "x-amz-meta-"
STATUSES = ("200", "201")  # any other, or none, is 204
MEMBERS = {  # a form's field → PutObject's member
    "acl": "ACL",
    "cache-control": "CacheControl",
    "content-type": "ContentType",
    "content-disposition": "ContentDisposition",
    "content-encoding": "ContentEncoding",
    "content-language": "ContentLanguage",
    "x-amz-storage-class": "StorageClass",
    "x-amz-website-redirect-location": "WebsiteRedirectLocation",
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "SSEKMSKeyId",
    "x-amz-server-side-encryption-customer-algorithm": "SSECustomerAlgorithm",
    "x-amz-checksum-algorithm": "ChecksumAlgorithm",
    "x-amz-checksum-crc32": "ChecksumCRC32",
    "x-amz-checksum-crc32c": "ChecksumCRC32C",
    "x-amz-checksum-crc64nvme": "ChecksumCRC64NVME",
    "x-amz-checksum-sha1": "ChecksumSHA1",
    "x-amz-checksum-sha256": "ChecksumSHA256",
}


def admit_form(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Admission:
    """`params` are the bucket, the form's fields, the file's name, and the conditions of the policy."""
    bucket = existing_bucket(tx, params, caller)
    fields = params["Fields"]
    try:
        least, most = check_fields(params["Conditions"], {**fields, "bucket": bucket.name})
    except Unmet as unmet:
        raise AccessDenied(f"Invalid according to Policy: {unmet}") from None
    except Malformed as malformed:
        raise InvalidPolicyDocument(f"Invalid Policy: {malformed}") from None
    if not fields.get("key"):
        message = "Bucket POST must contain a field named 'key'.  If it is specified, please check the order of the fields."
        raise InvalidArgument(message, ArgumentName="key")
    found = _as_put(fields) | {"Key": fields["key"].replace(FILENAME, params["FileName"])}
    check_key(found["Key"])
    most = PUT_MAX_BYTES if most is None else min(most, PUT_MAX_BYTES)
    as_put = admission(details_of(bucket, found), found)
    return replace(as_put, params={**found, **as_put.params}, least_bytes=least, most_bytes=most)


def post_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, fields = existing_bucket(tx, params, caller), params["Fields"]
    version = store_object(tx, bucket, params["Key"], params["Body"], params, caller, event_name="Post")
    etag, where = quoted(version.etag), location(tx, bucket, version.key)
    said: dict[str, Any] = {"ETagHeader": etag, **shown_id(bucket, version)}
    redirect = fields.get("success_action_redirect") or fields.get("redirect", "")
    if urlsplit(redirect).scheme in ("http", "https"):
        mark = "&" if "?" in redirect else "?"
        query = urlencode({"bucket": bucket.name, "key": version.key, "etag": etag})
        return {**said, "StatusCode": 303, "LocationHeader": f"{redirect}{mark}{query}"}
    status = fields.get("success_action_status", "")
    said |= {"StatusCode": int(status) if status in STATUSES else 204, "LocationHeader": where}
    if status == "201":
        said |= {"Location": where, "Bucket": bucket.name, "Key": version.key, "ETag": etag}
    return said


def _as_put(fields: dict[str, str]) -> dict[str, Any]:
    """What a PutObject with the same wishes would say."""
    if "tagging" in fields:
        raise unsupported("tagging", "Corral does not read the tags of forms; put them with PutObjectTagging")
    found: dict[str, Any] = {member: fields[name] for name, member in MEMBERS.items() if fields.get(name)}
    metadata = {name.removeprefix(METADATA): value for name, value in fields.items() if name.startswith(METADATA)}
    if metadata:
        found["Metadata"] = metadata
    if fields.get("expires"):
        try:
            found["Expires"] = parsedate_to_datetime(fields["expires"]).timestamp()
        except ValueError:
            raise InvalidArgument(
                "The field Expires is not a date", ArgumentName="Expires", ArgumentValue=fields["expires"]
            ) from None
    return found
