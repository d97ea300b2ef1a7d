"""The operations of S3 and their handlers."""

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

HANDLERS = {
    "CreateBucket": buckets.create_bucket,
    "DeleteBucket": buckets.delete_bucket,
    "HeadBucket": buckets.head_bucket,
    "ListBuckets": buckets.list_buckets,
    "GetBucketLocation": buckets.get_bucket_location,
    "PutBucketVersioning": buckets.put_bucket_versioning,
    "GetBucketVersioning": buckets.get_bucket_versioning,
    "PutObject": objects.put_object,
    "GetObject": objects.get_object,
    "HeadObject": objects.head_object,
    "GetObjectAttributes": objects.get_object_attributes,
    "DeleteObject": objects.delete_object,
    "DeleteObjects": objects.delete_objects,
    "CopyObject": object_copy.copy_object,
    "ListObjects": listing.list_objects,
    "ListObjectsV2": listing.list_objects_v2,
    "ListObjectVersions": listing.list_object_versions,
    "CreateMultipartUpload": multipart_uploads.create_multipart_upload,
    "UploadPart": multipart_uploads.upload_part,
    "UploadPartCopy": multipart_uploads.upload_part_copy,
    "CompleteMultipartUpload": multipart_uploads.complete_multipart_upload,
    "AbortMultipartUpload": multipart_uploads.abort_multipart_upload,
    "ListMultipartUploads": multipart_uploads.list_multipart_uploads,
    "ListParts": multipart_uploads.list_parts,
    "PutObjectTagging": object_details.put_object_tagging,
    "GetObjectTagging": object_details.get_object_tagging,
    "DeleteObjectTagging": object_details.delete_object_tagging,
    "PostObject": post_object.post_object,
    "GetBucketAcl": acl.get_bucket_acl,
    "PutBucketAcl": acl.put_bucket_acl,
    "GetObjectAcl": acl.get_object_acl,
    "PutObjectAcl": acl.put_object_acl,
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
