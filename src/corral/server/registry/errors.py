"""Errors of the registry. Their codes are those of the OCI distribution specification."""

from __future__ import annotations

import orjson

from corral import aws
from corral.core.errors import ApiError, api_error

VERSION = ("Docker-Distribution-API-Version", "registry/2.0")

BlobUnknown = api_error("BLOB_UNKNOWN", 404)
BlobUploadInvalid = api_error("BLOB_UPLOAD_INVALID", 409)
BlobUploadUnknown = api_error("BLOB_UPLOAD_UNKNOWN", 404)
Denied = api_error("DENIED", 403)
DigestInvalid = api_error("DIGEST_INVALID", 400)
ManifestInvalid = api_error("MANIFEST_INVALID", 400)
NameInvalid = api_error("NAME_INVALID", 400)
PathUnknown = api_error("UNSUPPORTED", 404)
RangeInvalid = api_error("RANGE_INVALID", 416)
SizeInvalid = api_error("SIZE_INVALID", 400)
TagInvalid = api_error("TAG_INVALID", 400)
TooManyRequests = api_error("TOOMANYREQUESTS", 429)
Unauthorized = api_error("UNAUTHORIZED", 401)
Unsupported = api_error("UNSUPPORTED", 405)

# Errors of `services/ecr/` have ECR's codes. This table maps them to the codes of the specification.
_CODES_OF_ECR = {
    "ImageDigestDoesNotMatchException": ("DIGEST_INVALID", 400),
    "ImageNotFoundException": ("MANIFEST_UNKNOWN", 404),
    "ImageTagAlreadyExistsException": ("TAG_INVALID", 400),
    "InvalidParameterException": ("MANIFEST_INVALID", 400),
    "LayersNotFoundException": ("MANIFEST_BLOB_UNKNOWN", 404),
    "ReferencedImagesNotFoundException": ("MANIFEST_BLOB_UNKNOWN", 404),
    "RepositoryNotFoundException": ("NAME_UNKNOWN", 404),
    "ServiceUnavailable": ("UNAVAILABLE", 503),
}


def error_response(error: ApiError) -> aws.Response:
    code, status = _CODES_OF_ECR.get(error.code, (error.code, error.status))
    body = orjson.dumps({"errors": [{"code": code if code.isupper() else "UNKNOWN", "message": error.message, "detail": None}]})
    return aws.Response(status, [("Content-Type", "application/json"), VERSION, *error.headers.items()], body)
