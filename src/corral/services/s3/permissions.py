"""The permissions that operations of S3 need. They follow from the head of a request, because its body has not arrived yet."""

from __future__ import annotations

from urllib.parse import unquote_plus

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import NO_RESOURCE
from corral.model.private_environment import BUCKET
from corral.store import Store

# Action → operations, for actions whose name is not the operation's.
OPERATIONS = {
    "DeleteObject": "DeleteObjects",
    "GetAccelerateConfiguration": "GetBucketAccelerateConfiguration",
    "GetAnalyticsConfiguration": "GetBucketAnalyticsConfiguration ListBucketAnalyticsConfigurations",
    "GetBucketCORS": "GetBucketCors",
    "GetBucketNotification": "GetBucketNotificationConfiguration",
    "GetBucketObjectLockConfiguration": "GetObjectLockConfiguration",
    "GetBucketPublicAccessBlock": "GetPublicAccessBlock",
    "GetEncryptionConfiguration": "GetBucketEncryption",
    "GetIntelligentTieringConfiguration": "GetBucketIntelligentTieringConfiguration ListBucketIntelligentTieringConfigurations",
    "GetInventoryConfiguration": "GetBucketInventoryConfiguration ListBucketInventoryConfigurations",
    "GetLifecycleConfiguration": "GetBucketLifecycleConfiguration",
    "GetMetricsConfiguration": "GetBucketMetricsConfiguration ListBucketMetricsConfigurations",
    "GetObject": "HeadObject",
    "GetReplicationConfiguration": "GetBucketReplication",
    "ListAllMyBuckets": "ListBuckets",
    "ListBucket": "HeadBucket ListObjects ListObjectsV2",
    "ListBucketMultipartUploads": "ListMultipartUploads",
    "ListBucketVersions": "ListObjectVersions",
    "ListMultipartUploadParts": "ListParts",
    "PutAccelerateConfiguration": "PutBucketAccelerateConfiguration",
    "PutAnalyticsConfiguration": "DeleteBucketAnalyticsConfiguration PutBucketAnalyticsConfiguration",
    "PutBucketCORS": "DeleteBucketCors PutBucketCors",
    "PutBucketNotification": "PutBucketNotificationConfiguration",
    "PutBucketObjectLockConfiguration": "PutObjectLockConfiguration",
    "PutBucketOwnershipControls": "DeleteBucketOwnershipControls",
    "PutBucketPublicAccessBlock": "DeletePublicAccessBlock PutPublicAccessBlock",
    "PutBucketTagging": "DeleteBucketTagging",
    "PutEncryptionConfiguration": "DeleteBucketEncryption PutBucketEncryption",
    "PutIntelligentTieringConfiguration": "DeleteBucketIntelligentTieringConfiguration PutBucketIntelligentTieringConfiguration",
    "PutInventoryConfiguration": "DeleteBucketInventoryConfiguration PutBucketInventoryConfiguration",
    "PutLifecycleConfiguration": "DeleteBucketLifecycle PutBucketLifecycleConfiguration",
    "PutMetricsConfiguration": "DeleteBucketMetricsConfiguration PutBucketMetricsConfiguration",
    "PutObject": "CompleteMultipartUpload CopyObject CreateMultipartUpload PostObject UploadPart UploadPartCopy",
    "PutReplicationConfiguration": "DeleteBucketReplication PutBucketReplication",
}
ACTIONS = {operation: action for action, operations in OPERATIONS.items() for operation in operations.split()}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    bucket, key, version = params.get("Bucket"), params.get("Key"), params.get("VersionId")
    action = f"s3:{ACTIONS.get(operation, operation)}"
    if version and action in ("s3:GetObject", "s3:DeleteObject", "s3:GetObjectTagging", "s3:GetObjectAcl"):
        action = {"s3:GetObjectTagging": "s3:GetObjectVersionTagging", "s3:GetObjectAcl": "s3:GetObjectVersionAcl"}.get(
            action, f"{action}Version"
        )
    if bucket is None:
        return [Permission(action, NO_RESOURCE)]
    context: Context = {
        name: (params[member],)
        for name, member in (("s3:prefix", "Prefix"), ("s3:delimiter", "Delimiter"))
        if params.get(member) is not None
    }
    if operation == "CreateBucket" and bucket == BUCKET and params.keys() <= {"Bucket", "CreateBucketConfiguration"}:
        return []  # `corral run` creates the private bucket, in which every caller may put objects
    resource = f"arn:aws:s3:::{bucket}" if key is None else f"arn:aws:s3:::{bucket}/{key}"
    needed = [Permission(action, resource, context)]
    if operation in ("CopyObject", "UploadPartCopy") and params.get("CopySource"):
        source, source_version = copy_source(params["CopySource"])
        reads = "s3:GetObjectVersion" if source_version else "s3:GetObject"
        needed.append(Permission(reads, f"arn:aws:s3:::{source}"))
    return needed


def copy_source(text: str) -> tuple[str, str]:
    """Return BUCKET/KEY and the version id of a CopySource, which is URL-encoded: `bucket/key?versionId=…`. A + is a space."""
    source, _, version_id = text.partition("?versionId=")
    return unquote_plus(source).removeprefix("/"), version_id
