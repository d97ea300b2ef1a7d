"""The operations of S3, and who serves them."""

from corral.services.s3 import acl, buckets, configurations, copying, deleting, listing, objects, posting, tagging, uploads

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
    "DeleteObject": deleting.delete_object,
    "DeleteObjects": deleting.delete_objects,
    "CopyObject": copying.copy_object,
    "ListObjects": listing.list_objects,
    "ListObjectsV2": listing.list_objects_v2,
    "ListObjectVersions": listing.list_object_versions,
    "CreateMultipartUpload": uploads.create_multipart_upload,
    "UploadPart": uploads.upload_part,
    "UploadPartCopy": uploads.upload_part_copy,
    "CompleteMultipartUpload": uploads.complete_multipart_upload,
    "AbortMultipartUpload": uploads.abort_multipart_upload,
    "ListMultipartUploads": uploads.list_multipart_uploads,
    "ListParts": uploads.list_parts,
    "PutObjectTagging": tagging.put_object_tagging,
    "GetObjectTagging": tagging.get_object_tagging,
    "DeleteObjectTagging": tagging.delete_object_tagging,
    "PostObject": posting.post_object,
    "GetBucketAcl": acl.get_bucket_acl,
    "PutBucketAcl": acl.put_bucket_acl,
    "GetObjectAcl": acl.get_object_acl,
    "PutObjectAcl": acl.put_object_acl,
    **configurations.HANDLERS,
}

# Those whose bytes become a blob: asked with the head of a request, before its body is taken in.
ADMIT = {
    "PutObject": objects.admit_object,
    "PostObject": posting.admit_form,
    "CopyObject": copying.admit_copy,
    "UploadPart": uploads.admit_part,
    "UploadPartCopy": uploads.admit_part_copy,
}

# Those that are too much for one command: the requests that together do the same, and whose answers are put together.
PIECES = {"DeleteObjects": deleting.in_pieces}

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
