"""Bucket configurations, such as CORS rules: the operations that put, get and delete them, and their validation.

Each kind of configuration is declared as a `BucketConfiguration`. `_operations` makes the operations from the declaration. A
configuration is stored as a document. CORS, notifications and lifecycle rules take effect: the code that implements them reads the
stored document. The default encryption only decides which encryption settings a new object has. The other kinds are stored but not
enforced.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.decide.policies.policy import PolicyError, is_public, read_policy
from corral.model.objects import BUCKET_ENCRYPTION, BUCKET_LIFECYCLE, BUCKET_NOTIFICATION, BUCKET_POLICY, ENABLED, Bucket
from corral.operations.pagination import Pagination
from corral.operations.services import Handler
from corral.services.s3 import acl, errors
from corral.services.s3.lifecycle import begin_walk, validate_lifecycle
from corral.services.s3.lookup import bucket_arn, existing_bucket
from corral.services.s3.notifications import validate_notifications
from corral.services.s3.object_details import BUCKET_TAGS, read_tags
from corral.store import Store

NAMED_MAX = 1_000
PAGES = Pagination(errors.InvalidArgument, None, "ContinuationToken", "NextContinuationToken", truncated="IsTruncated")
RESOURCE = re.compile(r"arn:aws[a-z-]*:s3:::(?P<bucket>[^/]*)(?:/.*)?", re.S)

Validate = Callable[[Tx[Store], Bucket, dict[str, Any], Caller], Any]  # the document to store; None: delete it


class BucketConfiguration(Struct, frozen=True):
    name: str  # such as "BucketCors": the names of the operations are Put and Get plus this name
    validate: Validate
    delete: str | None = None  # the name of the operation that deletes the configuration
    member: str | None = None  # the response member for the document; if None, the document is the whole response
    default: Any = None  # the configuration of a new bucket
    missing: Callable[[str], ApiError] | None = None  # bucket name → the error of Get if it has none of this kind
    on_delete: Callable[[Tx[Store], Bucket], None] = lambda tx, bucket: None
    put_shows: tuple[str, ...] = ()  # the members of the document that the response of Put has


def current_document(tx: Tx[Store], bucket: Bucket, configuration: BucketConfiguration) -> Any:
    """The bucket's configuration of this kind, or the default. None if the bucket has none, and Get must raise `missing`."""
    found = tx.store.bucket_documents.get(bucket.id, configuration.name)
    return configuration.default if found is None else found[0]


def apply_create_options(tx: Tx[Store], bucket: Bucket, params: dict[str, Any]) -> None:
    """Store the configurations that a CreateBucket request contains."""
    if requested := acl.requested_acl(params):
        tx.store.bucket_documents.put(bucket.id, acl.BUCKET_ACL, requested, tx.wall_s)
    if "ObjectOwnership" in params:
        rules = {"Rules": [{"ObjectOwnership": params["ObjectOwnership"]}]}
        tx.store.bucket_documents.put(bucket.id, OWNERSHIP.name, rules, tx.wall_s)
    if tags := params.get("CreateBucketConfiguration", {}).get("Tags"):
        tx.store.bucket_documents.put(bucket.id, TAGGING.name, {"TagSet": _checked_tags(tags)}, tx.wall_s)


def _operations(configuration: BucketConfiguration) -> dict[str, Handler]:
    def put(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        document = configuration.validate(tx, bucket, params, caller)
        if document is None:
            tx.store.bucket_documents.drop(bucket.id, configuration.name)
        else:
            tx.store.bucket_documents.put(bucket.id, configuration.name, document, tx.wall_s)
        return {member: document[member] for member in configuration.put_shows}

    def get(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        found = current_document(tx, bucket, configuration)
        if found is None:
            assert configuration.missing is not None
            raise configuration.missing(bucket.name)
        return {configuration.member: found} if configuration.member is not None else found

    def delete(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        if configuration.default is not None and configuration.missing is not None:
            tx.store.bucket_documents.put(bucket.id, configuration.name, None, tx.wall_s)
        else:
            tx.store.bucket_documents.drop(bucket.id, configuration.name)
        configuration.on_delete(tx, bucket)
        return {}

    found: dict[str, Handler] = {f"Put{configuration.name}": put, f"Get{configuration.name}": get}
    return found | ({configuration.delete: delete} if configuration.delete is not None else {})


def _named_operations(word: str) -> dict[str, Handler]:
    """The operations of a kind of configuration. A bucket can have several configurations of the kind, and each has an Id."""
    kind, member = f"Bucket{word}Configuration", f"{word}Configuration"

    def put(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        document, name = params[member], params["Id"]
        if document["Id"] != name:
            raise errors.InvalidArgument(
                f"{member}.Id is {document['Id']!r}, but the id of the request is {name!r}: use one value for both."
            )
        stored = tx.store.bucket_documents.named(bucket.id, kind)
        if len(stored) >= NAMED_MAX and name not in dict(stored):
            raise errors.InvalidArgument(f"The bucket already has {NAMED_MAX} {member}s, which is the maximum: delete one first.")
        tx.store.bucket_documents.put(bucket.id, kind, document, tx.wall_s, name)
        return {}

    def get(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        found = tx.store.bucket_documents.get(bucket.id, kind, params["Id"])
        if found is None:
            raise _no_such_configuration()
        return {member: found[0]}

    def delete(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        if not tx.store.bucket_documents.drop(bucket.id, kind, params["Id"]):
            raise _no_such_configuration()
        return {}

    def list_page(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        page, token = PAGES.page(params, lambda after, limit: tx.store.bucket_documents.named(bucket.id, kind, after, limit))
        return {f"{member}List": page, **token}

    return {f"Put{kind}": put, f"Get{kind}": get, f"Delete{kind}": delete, f"List{kind}s": list_page}


# Validation of each kind


def _missing(code: str, message: str) -> Callable[[str], ApiError]:
    return lambda bucket_name: api_error(code, 404)(message, BucketName=bucket_name)


def _no_such_configuration() -> ApiError:
    return errors.NoSuchConfiguration("The specified configuration does not exist.")


def _validate_policy(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    text = params["Policy"]
    try:
        policy = read_policy(text)
    except PolicyError as error:
        raise errors.MalformedPolicy(str(error)) from None
    for statement in policy.statements:
        if statement.principals is None:
            raise errors.MalformedPolicy("Missing required field Principal")
        if statement.resources is None:
            raise errors.MalformedPolicy("Missing required field Resource")
        if not all(action == "*" or action.startswith("s3:") for action in statement.actions.values):
            raise errors.MalformedPolicy("Policy has invalid action")
        if not all(_matches_bucket(resource, bucket.name) for resource in statement.resources.values):
            raise errors.MalformedPolicy("Policy has invalid resource")
    return text


def _matches_bucket(resource: str, bucket: str) -> bool:
    found = RESOURCE.fullmatch(resource)
    return found is not None and fnmatchcase(bucket, found["bucket"].replace("[", "[[]"))


def _get_policy_status(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    bucket = existing_bucket(tx, params, caller)
    found = current_document(tx, bucket, POLICY)
    if found is None:
        raise _NO_POLICY(bucket.name)
    return {"PolicyStatus": {"IsPublic": is_public(read_policy(found))}}


def _validate_encryption(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    document = params["ServerSideEncryptionConfiguration"]
    if len(document["Rules"]) != 1:
        raise errors.malformed_xml()
    for rule in document["Rules"]:
        by_default = rule.get("ApplyServerSideEncryptionByDefault", {"SSEAlgorithm": "AES256"})
        if "KMSMasterKeyID" in by_default and by_default["SSEAlgorithm"] == "AES256":
            raise errors.InvalidArgument(
                "a KMSMasterKeyID is not applicable if the default sse algorithm is not aws:kms or aws:kms:dsse",
                ArgumentName="ApplyServerSideEncryptionByDefault",
            )
    return {"Rules": [{"BucketKeyEnabled": False, **rule} for rule in document["Rules"]]}


def _validate_cors(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    document = params["CORSConfiguration"]
    for rule in document["CORSRules"]:
        for member, values in (("Origin", rule["AllowedOrigins"]), ("Header", rule.get("AllowedHeaders", ()))):
            for value in values:
                if value.count("*") > 1:
                    raise errors.InvalidRequest(f'Allowed{member} "{value}" can not have more than one wildcard.')
        for value in rule.get("ExposeHeaders", ()):
            if "*" in value:
                raise errors.InvalidRequest(
                    f'ExposeHeader "{value}" contains wildcard. We currently do not support wildcard for ExposeHeader.'
                )
    return document


def _validate_ownership(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    document = params["OwnershipControls"]
    if len(document["Rules"]) != 1:
        raise errors.malformed_xml()
    return document


def _validate_access_block(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    return {member: params["PublicAccessBlockConfiguration"].get(member, False) for member in ACCESS_BLOCK}


def _validate_tagging(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    tags = _checked_tags(params["Tagging"]["TagSet"])
    return {"TagSet": tags} if tags else None


def _checked_tags(tags: list[dict[str, str]]) -> list[dict[str, str]]:
    return BUCKET_TAGS.to_list(read_tags(BUCKET_TAGS, tags))


def _validate_logging(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    document = params["BucketLoggingStatus"]
    target = document.get("LoggingEnabled", {}).get("TargetBucket")
    if target is not None and tx.store.buckets.get(target) is None:
        raise errors.InvalidTargetBucketForLogging("The target bucket for logging does not exist")
    return document


def _validate_website(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    document = params["WebsiteConfiguration"]
    if "RedirectAllRequestsTo" not in document and not document.get("IndexDocument", {}).get("Suffix"):
        raise errors.InvalidArgument("A value for IndexDocument Suffix must be provided if RedirectAllRequestsTo is empty")
    if "/" in document.get("IndexDocument", {}).get("Suffix", ""):
        raise errors.InvalidArgument("The IndexDocument Suffix is not well formed")
    return document


def _validate_accelerate(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    if "Status" not in params["AccelerateConfiguration"]:
        raise errors.malformed_xml()
    if "." in bucket.name:
        raise errors.InvalidRequest("S3 Transfer Acceleration is not supported for buckets with periods (.) in their names")
    return params["AccelerateConfiguration"]


def _validate_payer(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    return params["RequestPaymentConfiguration"]


def _validate_abac(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    if "Status" not in params["AbacStatus"]:
        raise errors.malformed_xml()
    return params["AbacStatus"]


def _validate_replication(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    document = params["ReplicationConfiguration"]
    if bucket.versioning != ENABLED:
        raise errors.InvalidRequest("Versioning must be 'Enabled' on the bucket to apply a replication configuration")
    ids = Counter(rule["ID"] for rule in document["Rules"] if "ID" in rule)
    if any(count > 1 for count in ids.values()):
        raise errors.InvalidArgument("Rule Id must be unique")
    _check_pass_role(tx, document["Role"], bucket, caller)
    rules = [rule if "ID" in rule else {"ID": tx.ids.uuid(), **rule} for rule in document["Rules"]]
    return {**document, "Rules": rules}


def _check_pass_role(tx: Tx[Store], role: str, bucket: Bucket, caller: Caller) -> None:
    """Raise AccessDenied if the caller may not pass the role of a replication to S3.

    The role is in the body of the request, so the server cannot check this permission before the body arrives.
    """
    if not caller.is_restricted:
        return
    from corral.access.authorization import refusal  # imported only here: few callers need it
    from corral.access.permissions import pass_role
    from corral.access.principals import policies_of_caller

    needed = [pass_role(tx, caller, role, "s3", bucket_arn(bucket.name))]
    if (why := refusal(tx, caller, policies_of_caller(tx, caller), needed, is_open=False)) is not None:
        raise errors.AccessDenied(why)


def _validate_object_lock(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    """Refuse every Object Lock configuration, because Corral would not enforce it, and users would rely on it."""
    raise errors.no_object_lock("object-lock")


ACCESS_BLOCK = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
_NO_POLICY = _missing("NoSuchBucketPolicy", "The bucket policy does not exist")

POLICY = BucketConfiguration(BUCKET_POLICY, _validate_policy, "DeleteBucketPolicy", member="Policy", missing=_NO_POLICY)
ENCRYPTION = BucketConfiguration(
    BUCKET_ENCRYPTION,
    _validate_encryption,
    "DeleteBucketEncryption",
    member="ServerSideEncryptionConfiguration",
    default={"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": False}]},
)
CORS = BucketConfiguration(
    "BucketCors",
    _validate_cors,
    "DeleteBucketCors",
    missing=_missing("NoSuchCORSConfiguration", "The CORS configuration does not exist"),
)
OWNERSHIP = BucketConfiguration(
    "BucketOwnershipControls",
    _validate_ownership,
    "DeleteBucketOwnershipControls",
    member="OwnershipControls",
    default={"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
    missing=_missing("OwnershipControlsNotFoundError", "The bucket ownership controls were not found"),
)
PUBLIC_ACCESS_BLOCK = BucketConfiguration(
    "PublicAccessBlock",
    _validate_access_block,
    "DeletePublicAccessBlock",
    member="PublicAccessBlockConfiguration",
    default=dict.fromkeys(ACCESS_BLOCK, True),
    missing=_missing("NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found"),
)
TAGGING = BucketConfiguration(
    "BucketTagging",
    _validate_tagging,
    "DeleteBucketTagging",
    missing=_missing("NoSuchTagSet", "The TagSet does not exist"),
)
LIFECYCLE = BucketConfiguration(
    BUCKET_LIFECYCLE,
    validate_lifecycle,
    "DeleteBucketLifecycle",
    missing=_missing("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist"),
    on_delete=begin_walk,
    put_shows=("TransitionDefaultMinimumObjectSize",),
)
NOTIFICATION = BucketConfiguration(BUCKET_NOTIFICATION, validate_notifications, default={})
WEBSITE = BucketConfiguration(
    "BucketWebsite",
    _validate_website,
    "DeleteBucketWebsite",
    missing=_missing("NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration"),
)
REPLICATION = BucketConfiguration(
    "BucketReplication",
    _validate_replication,
    "DeleteBucketReplication",
    member="ReplicationConfiguration",
    missing=_missing("ReplicationConfigurationNotFoundError", "The replication configuration was not found"),
)
OBJECT_LOCK = BucketConfiguration(
    "ObjectLockConfiguration",
    _validate_object_lock,
    member="ObjectLockConfiguration",
    missing=_missing("ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket"),
)
CONFIGURATIONS = (
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
    BucketConfiguration("BucketLogging", _validate_logging, default={}),
    BucketConfiguration("BucketAccelerateConfiguration", _validate_accelerate, default={}),
    BucketConfiguration("BucketRequestPayment", _validate_payer, default={"Payer": "BucketOwner"}),
    BucketConfiguration("BucketAbac", _validate_abac, member="AbacStatus", default={"Status": "Disabled"}),
)

HANDLERS: dict[str, Handler] = {"GetBucketPolicyStatus": _get_policy_status}
for _configuration in CONFIGURATIONS:
    HANDLERS |= _operations(_configuration)
for _word in ("Analytics", "IntelligentTiering", "Inventory", "Metrics"):
    HANDLERS |= _named_operations(_word)
