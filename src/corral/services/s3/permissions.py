"""The permissions that operations of S3 need, and the facts about buckets and objects that policies can test.

The permissions follow from the head of a request, because its body has not arrived yet. An object belongs to the owner of its
bucket, as with S3's default, BucketOwnerEnforced: who may write into a bucket gives the objects to its owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

from corral.access.caller import Caller
from corral.access.permissions import LateContext, Params, Permission
from corral.access.resources import LateTags, ResourceFacts
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import NO_RESOURCE
from corral.model.objects import Bucket
from corral.model.principal import ANONYMOUS
from corral.operations.listings import Listed
from corral.services.s3.lookup import PRIVATE
from corral.services.s3.object_details import TAGS
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


# Actions on a version that have another name than those on the current object
OF_VERSION = {
    "s3:DeleteObject": "s3:DeleteObjectVersion",
    "s3:DeleteObjectTagging": "s3:DeleteObjectVersionTagging",
    "s3:GetObject": "s3:GetObjectVersion",
    "s3:GetObjectAcl": "s3:GetObjectVersionAcl",
    "s3:GetObjectAttributes": "s3:GetObjectVersionAttributes",
    "s3:GetObjectTagging": "s3:GetObjectVersionTagging",
    "s3:PutObjectAcl": "s3:PutObjectVersionAcl",
    "s3:PutObjectTagging": "s3:PutObjectVersionTagging",
}
QUERY_KEYS = {"s3:delimiter": "Delimiter", "s3:max-keys": "MaxKeys", "s3:prefix": "Prefix", "s3:versionid": "VersionId"}
# Header → the member of a request that has no headers, because it comes from a stack or from the console
MEMBERS = {
    "x-amz-acl": "ACL",
    "x-amz-grant-full-control": "GrantFullControl",
    "x-amz-grant-read": "GrantRead",
    "x-amz-grant-read-acp": "GrantReadACP",
    "x-amz-grant-write": "GrantWrite",
    "x-amz-grant-write-acp": "GrantWriteACP",
    "x-amz-metadata-directive": "MetadataDirective",
    "x-amz-object-ownership": "ObjectOwnership",
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "SSEKMSKeyId",
    "x-amz-server-side-encryption-customer-algorithm": "SSECustomerAlgorithm",
    "x-amz-storage-class": "StorageClass",
    "x-amz-tagging": "Tagging",
    "x-amz-tagging-directive": "TaggingDirective",
    "x-amz-website-redirect-location": "WebsiteRedirectLocation",
}
HEADERS_OF = {member: header for header, member in MEMBERS.items()}
# Condition key → the header with its value
HEADER_KEYS = {
    f"s3:{header}": header for header in ("x-amz-content-sha256", "x-amz-copy-source", *MEMBERS) if "tagging" not in header
}
ACL_HEADERS = frozenset({"x-amz-acl", *(header for header in HEADER_KEYS.values() if header.startswith("x-amz-grant-"))})
HEADERS = "_headers"  # the parameter with the headers of a request, or with the fields of a form
WRITES = frozenset({"CopyObject", "CreateMultipartUpload", "PostObject", "PutObject"})


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    bucket, key, headers = params.get("Bucket"), params.get("Key"), _headers(params)
    version, action = params.get("VersionId"), f"s3:{ACTIONS.get(operation, operation)}"
    if version:
        action = OF_VERSION.get(action, action)
    if bucket is None:
        return [Permission(action, NO_RESOURCE)]
    if operation == "CreateBucket" and bucket in PRIVATE and not {*params} - {"Bucket", "CreateBucketConfiguration", HEADERS}:
        return []  # `corral run` creates the private buckets, in which every caller may put objects
    if operation == "DeleteObjects":
        return []  # the keys are in the body: `delete_objects` checks the permission for each key
    context = LateContext(partial(_context, operation, params, headers))
    resource = f"arn:aws:s3:::{bucket}" if key is None else f"arn:aws:s3:::{bucket}/{key}"
    needed = [Permission(action, resource, context)]
    if operation == "GetObjectAttributes":
        needed.append(Permission("s3:GetObjectVersion" if version else "s3:GetObject", resource, context))
    if operation in ("CopyObject", "UploadPartCopy") and params.get("CopySource"):
        needed += _read_source(params["CopySource"], takes_tags=operation == "CopyObject" and _takes_tags(tx, params, headers))
    if operation in WRITES and "x-amz-tagging" in headers:
        needed.append(Permission("s3:PutObjectTagging", resource, context))
    if not ACL_HEADERS.isdisjoint(headers):
        needed += [Permission("s3:PutBucketAcl", resource, context)] if operation == "CreateBucket" else []
        needed += [Permission("s3:PutObjectAcl", resource, context)] if operation in WRITES else []
    if operation == "CreateBucket" and "x-amz-object-ownership" in headers:
        needed.append(Permission("s3:PutBucketOwnershipControls", resource, context))
    return needed


def _headers(params: Params) -> Mapping[str, str]:
    found: Mapping[str, str] | None = params.get(HEADERS)
    if found is not None:
        return found
    return {HEADERS_OF[name]: value for name, value in params.items() if name in HEADERS_OF and isinstance(value, str)}


def _context(operation: str, params: Params, headers: Mapping[str, str]) -> Context:
    given = {key: params[member] for key, member in QUERY_KEYS.items() if params.get(member) is not None}
    found: dict[str, Sequence[str]] = {key: (str(value),) for key, value in given.items()}
    found |= {key: (headers[header],) for key, header in HEADER_KEYS.items() if header in headers}
    if "CopySource" in params:
        found["s3:x-amz-copy-source"] = (copy_source(params["CopySource"])[0],)
    if "x-amz-tagging" in headers:
        tags = dict(parse_qsl(headers["x-amz-tagging"], keep_blank_values=True))
        found |= {f"s3:requestobjecttag/{key.lower()}": (value,) for key, value in tags.items()}
        found["s3:requestobjecttagkeys"] = tuple(tags)
    if operation == "PostObject":
        found["s3:authtype"] = ("POST",)
    elif "authorization" in headers:
        found |= {"s3:authtype": ("REST-HEADER",), "s3:signatureversion": ("AWS4-HMAC-SHA256",)}
    elif params.get(HEADERS):
        found["s3:authtype"] = ("REST-QUERY-STRING",)
    return found


def _read_source(source: str, *, takes_tags: bool) -> list[Permission]:
    name, version = copy_source(source)
    actions = ["s3:GetObject", *(["s3:GetObjectTagging"] if takes_tags else [])]
    return [Permission(OF_VERSION[each] if version else each, f"arn:aws:s3:::{name}") for each in actions]


def _takes_tags(tx: Tx[Store], params: Params, headers: Mapping[str, str]) -> bool:
    """Whether a copy takes over tags of its source."""
    if headers.get("x-amz-tagging-directive", "COPY") != "COPY":
        return False
    (name, _, key), version = copy_source(params["CopySource"])[0].partition("/"), copy_source(params["CopySource"])[1]
    return bool(_tags(tx, name, key, version))


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    """Return the facts of a bucket, or of an object. Every caller may put objects into the private buckets of `corral run`."""
    name, _, key = permission.resource.partition(":::")[2].partition("/")
    bucket = tx.store.buckets.get(name)
    if bucket is None:
        return ResourceFacts()

    def read_tags() -> Mapping[str, str]:
        version = (permission.context.get("s3:versionid") or ("",))[0]
        return _tags(tx, name, key, version) if key else _bucket_tags(tx, bucket)

    owner = None if name in PRIVATE and permission.action == "s3:PutObject" else bucket.owner
    return ResourceFacts(owner, LateTags(read_tags), _policy(tx, caller, bucket))


def _policy(tx: Tx[Store], caller: Caller, bucket: Bucket) -> str | None:
    """Return the policy of a bucket. Anonymous callers cannot use a public one if RestrictPublicBuckets is set, the default."""
    if bucket.policy is not None and caller.principal.kind == ANONYMOUS:
        block = tx.store.bucket_documents.get(bucket.id, "PublicAccessBlock")
        if block is None or (block[0] is not None and block[0].get("RestrictPublicBuckets")):
            return None
    return bucket.policy


def _bucket_tags(tx: Tx[Store], bucket: Bucket) -> dict[str, str]:
    found = tx.store.bucket_documents.get(bucket.id, "BucketTagging")
    return {tag["Key"]: tag["Value"] for tag in found[0]["TagSet"]} if found is not None and found[0] else {}


def _tags(tx: Tx[Store], bucket_name: str, key: str, version_id: str) -> dict[str, str]:
    bucket = tx.store.buckets.get(bucket_name)
    if bucket is None:
        return {}
    objects = tx.store.objects
    found = objects.version(bucket.id, key, version_id) if version_id else objects.latest(bucket.id, key)
    return found.details.get(TAGS, {}) if found is not None else {}


def _owner_of_bucket(tx: Tx[Store], caller: Caller, params: Params, element: Any) -> str | None:
    bucket = tx.store.buckets.get(element["Name"])
    return bucket.owner if bucket is not None else None


LISTED = {"ListBuckets": Listed(("Buckets",), _owner_of_bucket)}


def copy_source(text: str) -> tuple[str, str]:
    """Return BUCKET/KEY and the version id of a CopySource, which is URL-encoded: `bucket/key?versionId=…`. A + is a space."""
    source, _, version_id = text.partition("?versionId=")
    return unquote_plus(source).removeprefix("/"), version_id
