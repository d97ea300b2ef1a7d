"""What S3 has on the wire that its model does not say: addresses, names of answers, hoisted headers, form uploads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from corral.aws.form_encoding import pairs_from_text
from corral.aws.http import AWS_CHUNKED, Request, encodings

XML_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
DECODED_LENGTH = "x-amz-decoded-content-length"

# The root element of an answer, where it is neither the payload member nor `<Operation>Result`.
ROOTS = {
    "GetBucketAccelerateConfiguration": "AccelerateConfiguration",
    "GetBucketAcl": "AccessControlPolicy",
    "GetBucketCors": "CORSConfiguration",
    "GetBucketLifecycle": "LifecycleConfiguration",
    "GetBucketLifecycleConfiguration": "LifecycleConfiguration",
    "GetBucketLocation": "LocationConstraint",
    "GetBucketLogging": "BucketLoggingStatus",
    "GetBucketNotification": "NotificationConfiguration",
    "GetBucketNotificationConfiguration": "NotificationConfiguration",
    "GetBucketRequestPayment": "RequestPaymentConfiguration",
    "GetBucketTagging": "Tagging",
    "GetBucketVersioning": "VersioningConfiguration",
    "GetBucketWebsite": "WebsiteConfiguration",
    "GetObjectAcl": "AccessControlPolicy",
    "GetObjectAttributes": "GetObjectAttributesResponse",
    "GetObjectTagging": "Tagging",
    "CreateMultipartUpload": "InitiateMultipartUploadResult",
    "DeleteObjects": "DeleteResult",
    "ListBucketAnalyticsConfigurations": "ListBucketAnalyticsConfigurationsResult",
    "ListBucketInventoryConfigurations": "ListInventoryConfigurationsResult",
    "ListBucketMetricsConfigurations": "ListMetricsConfigurationsResult",
    "ListBuckets": "ListAllMyBucketsResult",
    "ListDirectoryBuckets": "ListAllMyDirectoryBucketsResult",
    "ListObjectVersions": "ListVersionsResult",
    "ListObjects": "ListBucketResult",
    "ListObjectsV2": "ListBucketResult",
    "PostObject": "PostResponse",
}
UNWRAPPED = {"GetBucketLocation": "LocationConstraint"}  # the root element holds the member's text itself

# Of a presigned URL of version 4: these are no headers. Version 2 has its token in lower case, and that is one.
_SIGNATURE_PARAMETERS = frozenset(
    f"X-Amz-{name}"
    for name in ("Algorithm", "Content-Sha256", "Credential", "Date", "Expires", "Security-Token", "Signature", "SignedHeaders")
)
# A checksum in a URL says nothing of the body that is sent to it: the URL was made before. S3 takes no notice.
_CHECKSUM = re.compile(r"x-amz-(checksum-(crc32|crc32c|crc64nvme|sha1|sha256)|sdk-checksum-algorithm)")
_VIRTUAL_HOSTS = (re.compile(r"(.+)\.s3[.-].+"), re.compile(r"(.+)\.localhost"))
_PATH_STYLE = re.compile(r"s3(?:[.-].*)?")


def root_name(operation: str) -> str:
    """The root element of an operation's answer."""
    return ROOTS.get(operation, f"{operation}Result")


def bucket_of_host(host: str) -> str | None:
    """The bucket that a virtual-host style address names: `bucket.s3.eu-west-1.amazonaws.com`, `bucket.localhost:4566`."""
    name = host.partition(":")[0]
    for pattern in _VIRTUAL_HOSTS:
        found = pattern.fullmatch(name)
        if found is not None:
            return None if _PATH_STYLE.fullmatch(found[1]) else found[1]
    return None


def as_meant(request: Request) -> Request:
    """The request in path style, with every header where the model has it.

    A presigned URL may carry `x-amz-*` headers in its query string, and an aws-chunked body hides its real length and encoding.
    """
    headers = request.headers
    bucket = bucket_of_host(headers.get("host", ""))
    if bucket is not None:
        request = replace(request, path=f"/{bucket}{request.path}")
    hoisted = _hoisted(request.query) if "x-amz-" in request.query.lower() else None
    if hoisted or DECODED_LENGTH in headers or AWS_CHUNKED in headers.get("content-encoding", ""):
        request = replace(request, headers=_unchunked({**(hoisted or {}), **headers}))
    return request


def _hoisted(query: str) -> dict[str, str]:
    pairs = ((name.lower(), value) for name, value in pairs_from_text(query) if name not in _SIGNATURE_PARAMETERS)
    return {name: value for name, value in pairs if name.startswith("x-amz-") and not _CHECKSUM.fullmatch(name)}


def _unchunked(headers: dict[str, str]) -> dict[str, str]:
    if DECODED_LENGTH in headers:
        headers["content-length"] = headers[DECODED_LENGTH]
    if "content-encoding" in headers:
        kept = [encoding for encoding in encodings(headers["content-encoding"]) if encoding.lower() != AWS_CHUNKED]
        if kept:
            headers["content-encoding"] = ",".join(kept)
        else:
            del headers["content-encoding"]
    return headers


def with_form_upload(description: Mapping[str, Any]) -> dict[str, Any]:
    """S3's description with PostObject in it: an upload by a browser's form, which is documented but not modelled."""
    operation = {
        "name": "PostObject",
        "http": {"method": "POST", "requestUri": "/{Bucket}"},
        "input": {"shape": "PostObjectRequest"},
        "output": {"shape": "PostObjectOutput"},
    }
    text = {"shape": "BucketName"}
    asked = {
        "type": "structure",
        "required": ["Bucket", "ContentType"],
        "members": {
            "Bucket": {"shape": "BucketName", "location": "uri", "locationName": "Bucket"},
            "ContentType": {"shape": "ContentType", "location": "header", "locationName": "Content-Type"},
            "Form": {"shape": "Body", "streaming": True},
        },
        "payload": "Form",
    }
    answered = {
        "type": "structure",
        "members": {
            "StatusCode": {"shape": "PostObjectStatus", "location": "statusCode"},
            "LocationHeader": {"shape": "Location", "location": "header", "locationName": "Location"},
            "ETagHeader": {"shape": "ETag", "location": "header", "locationName": "ETag"},
            "VersionId": {"shape": "ObjectVersionId", "location": "header", "locationName": "x-amz-version-id"},
            "Location": text,
            "Bucket": text,
            "Key": text,
            "ETag": text,
        },
    }
    shapes = {"PostObjectRequest": asked, "PostObjectOutput": answered, "PostObjectStatus": {"type": "integer"}}
    return {
        "metadata": description["metadata"],
        "operations": {**description["operations"], "PostObject": operation},
        "shapes": {**description["shapes"], **shapes},
    }
