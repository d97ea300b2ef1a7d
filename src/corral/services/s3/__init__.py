"""S3: buckets, objects, uploads in parts, versions. Bytes are blobs; everything else is rows of the state."""

from corral.services.s3 import buckets, deleting, objects

__all__ = ["ADMIT", "HANDLERS", "HEAVY", "QUICK"]

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
}

# Those whose bytes become a blob: asked with the head of a request, before its body is taken in.
ADMIT = {"PutObject": objects.admit_object}

HEAVY = frozenset({"ListBuckets", "GetObjectAttributes"})
QUICK = frozenset({"HeadBucket", "GetObject", "HeadObject"})
