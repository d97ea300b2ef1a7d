"""S3 on the wire, where botocore's model is silent: addresses, root elements, headers in presigned URLs, form uploads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from corral.aws.form_encoding import pairs_from_text
from corral.aws.http import AWS_CHUNKED, Request, encodings

XML_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
DECODED_LENGTH = "x-amz-decoded-content-length"

# The root element of a response, where it is neither the payload member nor `<Operation>Result`.
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

# Query parameters of a presigned URL of version 4 that are not headers. Version 2 passes its token in lower case, as a header.
_SIGNATURE_PARAMETERS = frozenset(
    f"X-Amz-{name}"
    for name in ("Algorithm", "Content-Sha256", "Credential", "Date", "Expires", "Security-Token", "Signature", "SignedHeaders")
)
# S3 ignores checksums in a presigned URL, because the URL is made before the body is known.
_CHECKSUM = re.compile(r"x-amz-(checksum-(crc32|crc32c|crc64nvme|sha1|sha256)|sdk-checksum-algorithm)")
_VIRTUAL_HOSTS = (re.compile(r"(.+)\.s3[.-].+"), re.compile(r"(.+)\.localhost"))
_PATH_STYLE = re.compile(r"s3(?:[.-].*)?")


def root_name(operation: str) -> str:
    """The root element of an operation's response."""
    return ROOTS.get(operation, f"{operation}Result")


def bucket_of_host(host: str) -> str | None:
    """The bucket that a virtual-host style address names: `bucket.s3.eu-west-1.amazonaws.com`, `bucket.localhost:4566`."""
    name = host.partition(":")[0]
    for pattern in _VIRTUAL_HOSTS:
        found = pattern.fullmatch(name)
        if found is not None:
            return None if _PATH_STYLE.fullmatch(found[1]) else found[1]
    return None


def normalize_s3_request(request: Request) -> Request:
    """The request in path style, with all its headers, and with the length and encoding of the decoded body.

    A presigned URL can carry `x-amz-*` headers in its query string, and an aws-chunked body has other values in its headers.
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
        others = [encoding for encoding in encodings(headers["content-encoding"]) if encoding.lower() != AWS_CHUNKED]
        if others:
            headers["content-encoding"] = ",".join(others)
        else:
            del headers["content-encoding"]
    return headers


def with_form_upload(description: Mapping[str, Any]) -> dict[str, Any]:
    """S3's model with PostObject, the upload by a browser's form, which AWS documents but does not model."""
    operation = {
        "name": "PostObject",
        "http": {"method": "POST", "requestUri": "/{Bucket}"},
        "input": {"shape": "PostObjectRequest"},
        "output": {"shape": "PostObjectOutput"},
    }
    text = {"shape": "BucketName"}
    request_shape = {
        "type": "structure",
        "required": ["Bucket", "ContentType"],
        "members": {
            "Bucket": {"shape": "BucketName", "location": "uri", "locationName": "Bucket"},
            "ContentType": {"shape": "ContentType", "location": "header", "locationName": "Content-Type"},
            "Form": {"shape": "Body", "streaming": True},
        },
        "payload": "Form",
    }
    response_shape = {
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
    shapes = {"PostObjectRequest": request_shape, "PostObjectOutput": response_shape, "PostObjectStatus": {"type": "integer"}}
    return {
        "metadata": description["metadata"],
        "operations": {**description["operations"], "PostObject": operation},
        "shapes": {**description["shapes"], **shapes},
    }
