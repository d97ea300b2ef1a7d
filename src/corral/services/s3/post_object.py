"""PostObject: the upload of an object by an HTML form. The owner of the bucket has signed a policy for the form."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode, urlsplit

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.objects.post_policy import ConditionNotMet, MalformedCondition, check_fields
from corral.model.blob import Admission
from corral.model.http_dates import parse_http_date
from corral.services.s3.errors import AccessDenied, InvalidArgument, InvalidPolicyDocument, unsupported
from corral.services.s3.lookup import check_key, existing_bucket, location, new_version_id_member, quoted
from corral.services.s3.object_details import details_from_request, encryption_members
from corral.services.s3.objects import PUT_MAX_BYTES, admission, store_object
from corral.store import Store

FILENAME = "${filename}"
METADATA_PREFIX = "x-amz-meta-"
STATUSES = ("200", "201")  # if the form requests another status, the status is 204
PUT_OBJECT_MEMBERS = {  # form field → member of PutObject
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
    """Check a form before its file arrives.

    `params` has the bucket, the fields of the form, the name of the file and the conditions of the policy.
    """
    bucket = existing_bucket(tx, params, caller)
    fields = params["Fields"]
    try:
        min_bytes, max_bytes = check_fields(params["Conditions"], {**fields, "bucket": bucket.name})
    except ConditionNotMet as failed:
        raise AccessDenied(f"Invalid according to Policy: {failed}") from None
    except MalformedCondition as malformed:
        raise InvalidPolicyDocument(f"Invalid Policy: {malformed}") from None
    if not fields.get("key"):
        message = "Bucket POST must contain a field named 'key'.  If it is specified, please check the order of the fields."
        raise InvalidArgument(message, ArgumentName="key")
    found = _put_object_params(fields) | {"Key": fields["key"].replace(FILENAME, params["FileName"])}
    check_key(found["Key"])
    max_bytes = PUT_MAX_BYTES if max_bytes is None else min(max_bytes, PUT_MAX_BYTES)
    as_put = admission(details_from_request(bucket, found), found)
    return replace(as_put, params={**found, **as_put.params}, min_bytes=min_bytes, max_bytes=max_bytes)


def post_object(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket, fields = existing_bucket(tx, params, caller), params["Fields"]
    version = store_object(tx, bucket, params["Key"], params["Body"], params, caller, event_name="Post")
    etag, url = quoted(version.etag), location(tx, caller, bucket, version.key)
    response: dict[str, Any] = {"ETagHeader": etag, **new_version_id_member(version), **encryption_members(version.details)}
    redirect = fields.get("success_action_redirect") or fields.get("redirect", "")
    if _is_web_address(redirect):
        separator = "&" if "?" in redirect else "?"
        query = urlencode({"bucket": bucket.name, "key": version.key, "etag": etag})
        return {**response, "StatusCode": 303, "LocationHeader": f"{redirect}{separator}{query}"}
    status = fields.get("success_action_status", "")
    response |= {"StatusCode": int(status) if status in STATUSES else 204, "LocationHeader": url}
    if status == "201":
        response |= {"Location": url, "Bucket": bucket.name, "Key": version.key, "ETag": etag}
    return response


def _is_web_address(text: str) -> bool:
    """Whether the text is an HTTP or HTTPS URL. S3 ignores other redirects."""
    try:
        return text.isprintable() and urlsplit(text).scheme in ("http", "https")
    except ValueError:  # raised for brackets that do not contain an IPv6 address
        return False


def _put_object_params(fields: dict[str, str]) -> dict[str, Any]:
    """Convert the fields of a form to the parameters of PutObject."""
    if "tagging" in fields:
        raise unsupported("tagging", "Corral does not read the tags of a form: set them with PutObjectTagging")
    found: dict[str, Any] = {member: fields[name] for name, member in PUT_OBJECT_MEMBERS.items() if fields.get(name)}
    metadata = {name.removeprefix(METADATA_PREFIX): value for name, value in fields.items() if name.startswith(METADATA_PREFIX)}
    if metadata:
        found["Metadata"] = metadata
    if fields.get("expires"):
        try:
            found["Expires"] = parse_http_date(fields["expires"]).timestamp()
        except (ValueError, TypeError, OverflowError, IndexError):  # `parse_http_date` can raise each of these
            message = "The field Expires is not an HTTP date, such as Wed, 21 Oct 2026 07:28:00 GMT"
            raise InvalidArgument(message, ArgumentName="Expires", ArgumentValue=fields["expires"]) from None
    return found
