"""S3's error codes, and the errors that more than one operation raises."""

from __future__ import annotations

from corral.aws.error_classes import error_classes
from corral.core.errors import S3_MALFORMED_XML, ApiError, api_error

__getattr__ = error_classes("s3", globals())

AuthorizationHeaderMalformed = api_error("AuthorizationHeaderMalformed")
BadDigest = api_error("BadDigest")
BadRequest = api_error("BadRequest")
BucketNotEmpty = api_error("BucketNotEmpty", 409)
ConditionalRequestConflict = api_error("ConditionalRequestConflict", 409)
EntityTooLarge = api_error("EntityTooLarge")
EntityTooSmall = api_error("EntityTooSmall")
IllegalLocationConstraintException = api_error("IllegalLocationConstraintException")
IllegalVersioningConfigurationException = api_error("IllegalVersioningConfigurationException")
InvalidArgument = api_error("InvalidArgument")
InvalidBucketName = api_error("InvalidBucketName")
InvalidDigest = api_error("InvalidDigest")
InvalidLocationConstraint = api_error("InvalidLocationConstraint")
InvalidPart = api_error("InvalidPart")
InvalidPartNumber = api_error("InvalidPartNumber", 416)
InvalidPartOrder = api_error("InvalidPartOrder")
InvalidPolicyDocument = api_error("InvalidPolicyDocument")
InvalidRange = api_error("InvalidRange", 416)
InvalidStorageClass = api_error("InvalidStorageClass")
InvalidTag = api_error("InvalidTag")
InvalidTargetBucketForLogging = api_error("InvalidTargetBucketForLogging")
KeyTooLongError = api_error("KeyTooLongError")
MalformedPolicy = api_error("MalformedPolicy")
MalformedXML = api_error("MalformedXML")
MetadataTooLarge = api_error("MetadataTooLarge")
MethodNotAllowed = api_error("MethodNotAllowed", 405)
MissingContentLength = api_error("MissingContentLength", 411)
MissingSecurityHeader = api_error("MissingSecurityHeader")
NoSuchConfiguration = api_error("NoSuchConfiguration", 404)
NoSuchKey = __getattr__("NoSuchKey")
NoSuchUpload = __getattr__("NoSuchUpload")
NoSuchVersion = api_error("NoSuchVersion", 404)
NotImplementedHere = api_error("NotImplemented", 501)
NotModified = api_error("NotModified", 304)
PreconditionFailed = api_error("PreconditionFailed", 412)
QuotaExceeded = api_error("QuotaExceeded", 403)


def bad_content_md5(**members: object) -> ApiError:
    return BadDigest("The Content-MD5 you specified did not match what we received.", **members)


def bad_checksum(algorithm: str) -> ApiError:
    return BadDigest(f"The {algorithm} you specified did not match the calculated checksum.")


def entity_too_large(max_bytes: int, **members: object) -> ApiError:
    return EntityTooLarge("Your proposed upload exceeds the maximum allowed size", **members, MaxSizeAllowed=max_bytes)


def entity_too_small(size: int, min_bytes: int, **members: object) -> ApiError:
    message = "Your proposed upload is smaller than the minimum allowed size"
    return EntityTooSmall(message, ProposedSize=size, MinSizeAllowed=min_bytes, **members)


def malformed_xml() -> ApiError:
    return MalformedXML(S3_MALFORMED_XML)


def no_such_key(key: str) -> ApiError:
    return NoSuchKey("The specified key does not exist.", Key=key)


def no_such_version(key: str, version_id: str) -> ApiError:
    return NoSuchVersion("The specified version does not exist.", Key=key, VersionId=version_id)


def no_such_upload(upload_id: str) -> ApiError:
    return NoSuchUpload(
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed.",
        UploadId=upload_id,
    )


def precondition_failed(condition: str) -> ApiError:
    return PreconditionFailed("At least one of the pre-conditions you specified did not hold", Condition=condition)


def conditional_conflict(condition: str, key: str) -> ApiError:
    message = "The conditional request cannot succeed due to a conflicting operation against this resource."
    return ConditionalRequestConflict(message, Condition=condition, Key=key)


def condition_not_accepted(header: str, why: str = "We don't accept the provided value of {} header for this API") -> ApiError:
    message = "A header you provided implies functionality that is not implemented"
    return NotImplementedHere(message, Header=header, additionalMessage=why.format(header))


def invalid_version_id(version_id: str) -> ApiError:
    message = "Invalid version id specified" if version_id else "Version id cannot be the empty string"
    return InvalidArgument(message, ArgumentName="versionId", ArgumentValue=version_id)


def no_object_lock(header: str) -> ApiError:
    return unsupported(header, "Corral does not support object lock")


def unsupported(header: str, why: str) -> ApiError:
    return NotImplementedHere(f"A header you provided implies functionality that is not implemented: {why}", Header=header)
