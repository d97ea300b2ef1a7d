"""Every kind of document that a bucket may have, and what S3 refuses in them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from corral.core import Tx
from corral.decide.policy import PolicyError, is_public, read_policy
from corral.errors import ApiError, api_error
from corral.model.objects import BUCKET_ENCRYPTION, ENABLED, Bucket
from corral.services.caller import Caller
from corral.services.s3 import acl
from corral.services.s3.details import BUCKET_TAGS
from corral.services.s3.documents import Document, Handler, Params, current, handlers, named_handlers
from corral.services.s3.errors import InvalidArgument, InvalidRequest, malformed_xml, unsupported
from corral.services.s3.lifecycle import LIFECYCLE
from corral.services.s3.naming import existing_bucket
from corral.services.s3.notifications import NOTIFICATION
from corral.store import Store

MalformedPolicy = api_error("MalformedPolicy")
InvalidTargetBucketForLogging = api_error("InvalidTargetBucketForLogging")

RESOURCE = re.compile(r"arn:aws[a-z-]*:s3:::(?P<bucket>[^/]*)(?:/.*)?", re.S)


def begin(tx: Tx[Store], bucket: Bucket, params: Params) -> None:
    """What CreateBucket may say beside the name."""
    if said := acl.kept(params):
        tx.store.documents.put(bucket.id, acl.KIND, said, tx.now_s)
    if "ObjectOwnership" in params:
        tx.store.documents.put(bucket.id, OWNERSHIP.name, {"Rules": [{"ObjectOwnership": params["ObjectOwnership"]}]}, tx.now_s)
    if tags := params.get("CreateBucketConfiguration", {}).get("Tags"):
        tx.store.documents.put(bucket.id, TAGGING.name, {"TagSet": _checked(tags)}, tx.now_s)


def _missing(code: str, message: str) -> Callable[[], ApiError]:
    return lambda: api_error(code, 404)(message)


def _policy(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    text = params["Policy"]
    try:
        policy = read_policy(text)
    except PolicyError as error:
        raise MalformedPolicy(str(error)) from None
    for statement in policy.statements:
        if statement.principals is None:
            raise MalformedPolicy("Missing required field Principal")
        if statement.resources is None:
            raise MalformedPolicy("Missing required field Resource")
        if not all(action == "*" or action.startswith("s3:") for action in statement.actions.values):
            raise MalformedPolicy("Policy has invalid action")
        if not all(_names(resource, bucket.name) for resource in statement.resources.values):
            raise MalformedPolicy("Policy has invalid resource")
    return text


def _names(resource: str, bucket: str) -> bool:
    found = RESOURCE.fullmatch(resource)
    return found is not None and fnmatchcase(bucket, found["bucket"].replace("[", "[[]"))


def _policy_status(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    found = current(tx, existing_bucket(tx, params, caller), POLICY)
    if found is None:
        raise _NO_POLICY()
    return {"PolicyStatus": {"IsPublic": is_public(read_policy(found))}}


def _encryption(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    document = params["ServerSideEncryptionConfiguration"]
    if len(document["Rules"]) != 1:
        raise malformed_xml()
    for rule in document["Rules"]:
        by_default = rule.get("ApplyServerSideEncryptionByDefault", {"SSEAlgorithm": "AES256"})
        if "KMSMasterKeyID" in by_default and by_default["SSEAlgorithm"] == "AES256":
            raise InvalidArgument("a KMSMasterKeyID is not applicable if the default sse algorithm is not aws:kms or aws:kms:dsse")
    return {"Rules": [{"BucketKeyEnabled": False, **rule} for rule in document["Rules"]]}


def _cors(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    document = params["CORSConfiguration"]
    for rule in document["CORSRules"]:
        for word, values in (("Origin", rule["AllowedOrigins"]), ("Header", rule.get("AllowedHeaders", ()))):
            for value in values:
                if value.count("*") > 1:
                    raise InvalidRequest(f'Allowed{word} "{value}" can not have more than one wildcard.')
        for value in rule.get("ExposeHeaders", ()):
            if "*" in value:
                raise InvalidRequest(
                    f'ExposeHeader "{value}" contains wildcard. We currently do not support wildcard for ExposeHeader.'
                )
    return document


def _ownership(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    document = params["OwnershipControls"]
    if len(document["Rules"]) != 1:
        raise malformed_xml()
    return document


def _access_block(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    return {member: params["PublicAccessBlockConfiguration"].get(member, False) for member in ACCESS_BLOCK}


def _tagging(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    return {"TagSet": _checked(params["Tagging"]["TagSet"])}


def _checked(tags: list[dict[str, str]]) -> list[dict[str, str]]:
    return BUCKET_TAGS.to_list(BUCKET_TAGS.read(tags))


def _logging(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    document = params["BucketLoggingStatus"]
    target = document.get("LoggingEnabled", {}).get("TargetBucket")
    if target is not None and tx.store.buckets.get(target) is None:
        raise InvalidTargetBucketForLogging("The target bucket for logging does not exist")
    return document


def _website(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    document = params["WebsiteConfiguration"]
    if "RedirectAllRequestsTo" not in document and not document.get("IndexDocument", {}).get("Suffix"):
        raise InvalidArgument("A value for IndexDocument Suffix must be provided if RedirectAllRequestsTo is empty")
    if "/" in document.get("IndexDocument", {}).get("Suffix", ""):
        raise InvalidArgument("The IndexDocument Suffix is not well formed")
    return document


def _accelerate(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    if "Status" not in params["AccelerateConfiguration"]:
        raise malformed_xml()
    return params["AccelerateConfiguration"]


def _payer(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    return params["RequestPaymentConfiguration"]


def _abac(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    if "Status" not in params["AbacStatus"]:
        raise malformed_xml()
    return params["AbacStatus"]


def _replication(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    document = params["ReplicationConfiguration"]
    if bucket.versioning != ENABLED:
        raise InvalidRequest("Versioning must be 'Enabled' on the bucket to apply a replication configuration")
    ids = Counter(rule["ID"] for rule in document["Rules"] if "ID" in rule)
    if any(count > 1 for count in ids.values()):
        raise InvalidArgument("Rule Id must be unique")
    rules = [rule if "ID" in rule else {"ID": tx.ids.uuid(), **rule} for rule in document["Rules"]]
    return {**document, "Rules": rules}


def _object_lock(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    """A lock that holds nothing would be worse than none."""
    raise unsupported("object-lock", "Corral has no object lock")


ACCESS_BLOCK = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
_NO_POLICY = _missing("NoSuchBucketPolicy", "The bucket policy does not exist")

POLICY = Document("BucketPolicy", _policy, "DeleteBucketPolicy", shown="Policy", missing=_NO_POLICY)
ENCRYPTION = Document(
    BUCKET_ENCRYPTION,
    _encryption,
    "DeleteBucketEncryption",
    shown="ServerSideEncryptionConfiguration",
    default={"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": False}]},
)
CORS = Document(
    "BucketCors",
    _cors,
    "DeleteBucketCors",
    missing=_missing("NoSuchCORSConfiguration", "The CORS configuration does not exist"),
)
OWNERSHIP = Document(
    "BucketOwnershipControls",
    _ownership,
    "DeleteBucketOwnershipControls",
    shown="OwnershipControls",
    default={"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
    missing=_missing("OwnershipControlsNotFoundError", "The bucket ownership controls were not found"),
)
PUBLIC_ACCESS_BLOCK = Document(
    "PublicAccessBlock",
    _access_block,
    "DeletePublicAccessBlock",
    shown="PublicAccessBlockConfiguration",
    default=dict.fromkeys(ACCESS_BLOCK, True),
    missing=_missing("NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found"),
)
TAGGING = Document("BucketTagging", _tagging, "DeleteBucketTagging", missing=_missing("NoSuchTagSet", "The TagSet does not exist"))
WEBSITE = Document(
    "BucketWebsite",
    _website,
    "DeleteBucketWebsite",
    missing=_missing("NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration"),
)
REPLICATION = Document(
    "BucketReplication",
    _replication,
    "DeleteBucketReplication",
    shown="ReplicationConfiguration",
    missing=_missing("ReplicationConfigurationNotFoundError", "The replication configuration was not found"),
)
OBJECT_LOCK = Document(
    "ObjectLockConfiguration",
    _object_lock,
    shown="ObjectLockConfiguration",
    missing=_missing("ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket"),
)
DOCUMENTS = (
    POLICY,
    ENCRYPTION,
    CORS,
    OWNERSHIP,
    PUBLIC_ACCESS_BLOCK,
    TAGGING,
    LIFECYCLE,
    NOTIFICATION,
    WEBSITE,
    REPLICATION,
    OBJECT_LOCK,
    Document("BucketLogging", _logging, default={}),
    Document("BucketAccelerateConfiguration", _accelerate, default={}),
    Document("BucketRequestPayment", _payer, default={"Payer": "BucketOwner"}),
    Document("BucketAbac", _abac, shown="AbacStatus", default={"Status": "Disabled"}),
)

HANDLERS: dict[str, Handler] = {"GetBucketPolicyStatus": _policy_status}
for _document in DOCUMENTS:
    HANDLERS |= handlers(_document)
for _word in ("Analytics", "IntelligentTiering", "Inventory", "Metrics"):
    HANDLERS |= named_handlers(_word, _missing("NoSuchConfiguration", "The specified configuration does not exist."))
