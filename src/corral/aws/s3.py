"""S3's addresses, root elements, presigned URLs and form uploads. botocore's model does not describe them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from corral.aws.form_encoding import pairs_from_text
from corral.aws.http import AWS_CHUNKED, Request, encodings

XML_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
DECODED_LENGTH = "x-amz-decoded-content-length"
HOSTS_MAX = 256
HOST_CACHED_MAX_CHARS = 256  # longer texts are not cached, because unknown callers could fill the cache with them

# Operation -> the root element of its response. An operation that is not listed has the root element `<Operation>Result`.
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
# Operation -> the status of its response, if it is not the status in the model.
STATUSES = dict.fromkeys(
    (
        "PutBucketAnalyticsConfiguration",
        "PutBucketInventoryConfiguration",
        "PutBucketMetricsConfiguration",
        "PutBucketPolicy",
        "PutBucketTagging",
    ),
    204,
)
# Operation -> its only output member. The root element contains the text of this member directly.
UNWRAPPED = {"GetBucketLocation": "LocationConstraint"}

# The query parameters that contain the signature of a presigned URL. All other `x-amz-*` query parameters are used as headers.
_SIGNATURE_PARAMETERS = frozenset(
    f"X-Amz-{name}"
    for name in ("Algorithm", "Content-Sha256", "Credential", "Date", "Expires", "Security-Token", "Signature", "SignedHeaders")
)
# These conditions of a presigned URL are used as headers, too.
_HOISTED = frozenset({"if-match", "if-none-match"})
# S3 ignores checksums in a presigned URL, because the client creates the URL before it knows the body.
_CHECKSUM = re.compile(r"x-amz-(checksum-(crc32|crc32c|crc64nvme|sha1|sha256)|sdk-checksum-algorithm)")
_VIRTUAL_HOSTS = (re.compile(r"(.+)\.s3[.-].+"), re.compile(r"(.+)\.localhost"))
_PATH_STYLE = re.compile(r"s3(?:[.-].*)?")


def root_name(operation: str) -> str:
    """Return the root element of an operation's response."""
    return ROOTS.get(operation, f"{operation}Result")


def bucket_of_host(host: str) -> str | None:
    """Return the bucket in a host such as `bucket.s3.eu-west-1.amazonaws.com` or `bucket.localhost:4566`, else None."""
    name = host.partition(":")[0]
    for pattern in _VIRTUAL_HOSTS:
        found = pattern.fullmatch(name)
        if found is not None:
            return None if _PATH_STYLE.fullmatch(found[1]) else found[1]
    return None


_cached_bucket = lru_cache(maxsize=HOSTS_MAX)(bucket_of_host)  # a client sends all requests to a few hosts


def normalize_s3_request(request: Request) -> Request:
    """Return an equivalent request in path style.

    The parameters of the signature are removed from a presigned URL. Its other `x-amz-*` parameters, If-Match and If-None-Match
    become headers. If the body is aws-chunked, the headers Content-Length and Content-Encoding are changed to those of the decoded
    body.
    """
    headers = request.headers
    host = headers.get("host", "")
    bucket = _cached_bucket(host) if len(host) <= HOST_CACHED_MAX_CHARS else bucket_of_host(host)
    if bucket is not None:
        request = replace(request, path=f"/{bucket}{request.path}")
    hoisted: dict[str, str] = {}
    if "x-amz-" in request.query.lower():
        query = _without_signature(request.query)
        request, hoisted = replace(request, query=query), _hoisted(query)
    if hoisted or DECODED_LENGTH in headers or AWS_CHUNKED in headers.get("content-encoding", ""):
        request = replace(request, headers=_unchunked({**hoisted, **headers}))
    return request


def _without_signature(query: str) -> str:
    return "&".join([item for item in query.split("&") if item.partition("=")[0] not in _SIGNATURE_PARAMETERS])


def _hoisted(query: str) -> dict[str, str]:
    pairs = ((name.lower(), value) for name, value in pairs_from_text(query) if name not in _SIGNATURE_PARAMETERS)
    return {
        name: value for name, value in pairs if name in _HOISTED or (name.startswith("x-amz-") and not _CHECKSUM.fullmatch(name))
    }


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
    """Add the operation PostObject to S3's model.

    Browsers use PostObject to upload a file with a form. AWS documents PostObject, but botocore's model of S3 does not contain it.
    """
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
            **{
                member: {"shape": shape, "location": "header", "locationName": f"x-amz-server-side-encryption{suffix}"}
                for member, shape, suffix in (
                    ("ServerSideEncryption", "ServerSideEncryption", ""),
                    ("SSEKMSKeyId", "SSEKMSKeyId", "-aws-kms-key-id"),
                    ("BucketKeyEnabled", "BucketKeyEnabled", "-bucket-key-enabled"),
                )
            },
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
