"""The constraints of S3. The error for an invalid XML body is MalformedXML. For an invalid header or query parameter it is
InvalidArgument.

This table does not cover the fields of a form upload, because they are not members of an input shape. `services/s3` checks them.
"""

from msgspec.structs import replace

from corral.aws.constraints.tables import ConstraintTable, Limit, Unchecked, Violation, displayed
from corral.aws.wire_errors import error_class
from corral.core.errors import (
    S3_INVALID_ENCRYPTION,
    S3_INVALID_STORAGE_CLASS,
    S3_INVALID_TAG_KEY,
    S3_MALFORMED_XML,
    S3_UNKNOWN_ACL,
    ApiError,
)
from corral.model.objects import SSE_METHODS, STORAGE_CLASSES


def _wording(operation: str, violations: list[Violation]) -> ApiError:
    first = violations[0]
    if not first.location:
        return error_class("MalformedXML")(S3_MALFORMED_XML)
    name = first.path[-1]
    return error_class("InvalidArgument")(
        f"Invalid value for {name}: {first.phrase}.", ArgumentName=name, ArgumentValue=displayed(first.value)
    )


def _argument(text: str, name: str, min: float | None = None, max: float | None = None, pattern: str | None = None) -> Limit:
    members = {"ArgumentName": name, "ArgumentValue": "{value}"}
    return Limit(min=min, max=max, pattern=pattern, code="InvalidArgument", text=text, members=members)


def _page(name: str) -> Limit:
    return _argument(f"Argument {name} must be an integer between 0 and 2147483647", name, min=0)


def _days(action: str) -> Limit:
    return Limit(min=1, code="InvalidArgument", text=f"'{{name}}' for {action} action must be a positive integer")


# S3 returns these values in response headers, so they must not contain control characters.
HEADER_TEXT = r"[^\x00-\x08\x0a-\x1f\x7f]*"
HEADER_VALUE = Limit(
    pattern=HEADER_TEXT, code="InvalidArgument", text="{name} contains a line break or another control character: '{value}'"
)
# S3 also accepts the ACLs after the first four. botocore's model lacks them.
BUCKET_ACLS = (
    "private", "public-read", "public-read-write", "authenticated-read",
    "aws-exec-read", "bucket-owner-read", "bucket-owner-full-control", "log-delivery-write",
)  # fmt: skip
RESPONSE_HEADERS = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType")
PART_NUMBER = _argument("Part number must be an integer between {min} and {max}, inclusive", "partNumber", 1, 10_000)


def _target_arn(name: str) -> Limit:
    return _argument("The ARN could not be parsed", name, pattern=r"arn:aws[a-z-]*:(sqs|sns|lambda):[a-z0-9-]+:\d{12}:.+")


TABLE = ConstraintTable(
    _wording,
    {
        ":BucketLocationConstraint": Unchecked("the model lacks new regions; the handler checks it"),
        ":ChecksumAlgorithm": Unchecked("the handler checks it together with the checksums"),
        ":ChecksumMode": Unchecked("S3 accepts any other value, and then returns no checksum"),
        "GetObjectAttributes.ObjectAttributes[]": Unchecked("the handler checks it: no header is malformed XML"),
        ":RequestPayer": Unchecked("Corral has no billing, so the value has no effect"),
        "*.CopySource": Unchecked("the handler parses it, and its error message is more exact"),
        "ObjectIdentifier.Key": Unchecked("DeleteObjects reports an invalid key and deletes the others"),
        ":BucketCannedACL": replace(_argument(S3_UNKNOWN_ACL, "x-amz-acl"), enum=BUCKET_ACLS),
        ":ObjectCannedACL": _argument(S3_UNKNOWN_ACL, "x-amz-acl"),
        "*.StorageClass": Limit(
            enum=STORAGE_CLASSES,
            code="InvalidStorageClass",
            text=S3_INVALID_STORAGE_CLASS,
            members={"StorageClassRequested": "{value}"},
        ),
        "*.ServerSideEncryption": Limit(
            enum=SSE_METHODS,
            code="InvalidArgument",
            text=S3_INVALID_ENCRYPTION,
            members={"ArgumentName": "x-amz-server-side-encryption", "ArgumentValue": "{value}"},
        ),
        "CreateBucket.ObjectOwnership": Limit(
            code="InvalidArgument",
            text="Invalid x-amz-object-ownership header: {value}",
            members={"ArgumentName": "x-amz-object-ownership"},
        ),
        "Tag.Key": Limit(code="InvalidTag", text=S3_INVALID_TAG_KEY, members={"TagKey": "{value}"}),
        ":EncodingType": _argument("Invalid Encoding Method specified in Request", "encoding-type"),
        ":MetadataDirective": _argument("Unknown {name}.", "{name}"),
        ":TaggingDirective": _argument("Unknown {name}.", "{name}"),
        "*.VersionId": _argument("Invalid version id specified", "versionId", pattern=HEADER_TEXT),
        **{f"*.Response{name}": HEADER_VALUE for name in RESPONSE_HEADERS},
        "ListBuckets.MaxBuckets": _argument("max-buckets must be between {min} and {max}", "max-buckets"),
        "*.MaxKeys": _page("max-keys"),
        "*.MaxParts": _page("max-parts"),
        "*.MaxUploads": _page("max-uploads"),
        "UploadPart.PartNumber": PART_NUMBER,
        "UploadPartCopy.PartNumber": PART_NUMBER,
        "CompletedMultipartUpload.Parts": Limit(max=10_000),
        "Delete.Objects": Limit(min=1, max=1000),
        "CORSConfiguration.CORSRules": Limit(min=1, max=100),
        "CORSRule.AllowedMethods[]": Limit(
            enum=("GET", "PUT", "POST", "DELETE", "HEAD"),
            code="InvalidRequest",
            text="Found unsupported HTTP method in CORS config. Unsupported method is {value}",
        ),
        "CORSRule.AllowedOrigins[]": HEADER_VALUE,
        "CORSRule.AllowedHeaders[]": HEADER_VALUE,
        "CORSRule.ExposeHeaders[]": HEADER_VALUE,
        "ServerSideEncryptionByDefault.KMSMasterKeyID": HEADER_VALUE,
        "ServerSideEncryptionByDefault.SSEAlgorithm": Limit(enum=("AES256", "aws:kms", "aws:kms:dsse")),
        ":Event": Limit(
            code="InvalidArgument",
            text="The event is not supported for notifications",
            members={"ArgumentName": "Event", "ArgumentValue": "{value}"},
        ),
        "QueueConfiguration.QueueArn": _target_arn("Queue"),
        "TopicConfiguration.TopicArn": _target_arn("Topic"),
        "LambdaFunctionConfiguration.LambdaFunctionArn": _target_arn("CloudFunction"),
        "PutBucketPolicy.Policy": Limit(
            max=20 * 1024, in_bytes=True, code="PolicyTooLarge", text="Bucket policies are limited to {max} bytes."
        ),
        "FilterRule.Name": Unchecked("the handler accepts it in any case"),
        "BucketLifecycleConfiguration.Rules": Limit(max=1000),
        "LifecycleRule.ID": (
            Limit(max=255, code="InvalidArgument", text="ID length should not exceed allowed limit of {max}"),
            HEADER_VALUE,
        ),
        "LifecycleExpiration.Days": _days("Expiration"),
        "AbortIncompleteMultipartUpload.DaysAfterInitiation": _days("AbortIncompleteMultipartUpload"),
        "NoncurrentVersionExpiration.NoncurrentDays": _days("NoncurrentVersionExpiration"),
        "NoncurrentVersionExpiration.NewerNoncurrentVersions": Limit(
            min=1,
            max=100,
            code="InvalidArgument",
            text="'{name}' for NoncurrentVersionExpiration action must be between {min} and {max}",
        ),
    },
)
