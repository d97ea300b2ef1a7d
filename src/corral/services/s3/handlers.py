"""The operations of S3 and their handlers."""

from corral.aws.handlers import handlers_in
from corral.services.s3 import (
    acl,
    bucket_configurations,
    buckets,
    listing,
    multipart_uploads,
    object_copy,
    object_details,
    objects,
    post_object,
)

HANDLERS = handlers_in("s3", globals()) | {
    **bucket_configurations.HANDLERS,
}

# Operations that store bytes in a file, which is called a blob. These functions check a request before its body is received, or
# before the bytes of another object are copied.
ADMIT = {
    "PutObject": objects.admit_object,
    "PostObject": post_object.admit_form,
    "CopyObject": object_copy.admit_copy,
    "UploadPart": multipart_uploads.admit_part,
    "UploadPartCopy": multipart_uploads.admit_part_copy,
}

# Operations that can take too long for one transaction. These functions split a request, and the server merges the responses.
PIECES = {"DeleteObjects": objects.delete_batches}

HEAVY = frozenset(
    {
        "GetObjectAttributes",
        "ListBuckets",
        "ListMultipartUploads",
        "ListObjectVersions",
        "ListObjects",
        "ListObjectsV2",
        "ListParts",
    }
)
QUICK = frozenset({"HeadBucket", "GetObject", "HeadObject"})
OPEN_TO_CONTAINERS = frozenset(
    {
        "AbortMultipartUpload",
        "CompleteMultipartUpload",
        "CopyObject",
        "CreateMultipartUpload",
        "DeleteObject",
        "DeleteObjectTagging",
        "DeleteObjects",
        "GetBucketLocation",
        "GetObject",
        "GetObjectAttributes",
        "GetObjectTagging",
        "HeadBucket",
        "HeadObject",
        "ListBuckets",
        "ListMultipartUploads",
        "ListObjectVersions",
        "ListObjects",
        "ListObjectsV2",
        "ListParts",
        "PostObject",
        "PutObject",
        "PutObjectTagging",
        "UploadPart",
        "UploadPartCopy",
    }
)
