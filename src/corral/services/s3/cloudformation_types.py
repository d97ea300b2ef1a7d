"""S3 resource types of CloudFormation templates: buckets and bucket policies.

Most properties of a bucket are bucket configurations. A separate operation puts each of them, such as PutBucketCors. The functions
below convert a property to the document of the operation, because the names of the members differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.s3.bucket_configurations import POLICY, TAGGING
from corral.services.s3.buckets import FIRST_REGION
from corral.services.s3.lookup import bucket_arn, existing_bucket
from corral.store import Store
from corral.template_types.api_calls import call
from corral.template_types.api_types import Params, Setting, api_type, json_text, renamed
from corral.template_types.resource_types import Properties

MISSING = ("NoSuchBucket",)
# Regions whose website endpoints have a dash before the region: s3-website-us-east-1. Later regions have a dot.
DASHED_WEBSITES = (
    "us-east-1", "us-west-1", "us-west-2", "eu-west-1", "ap-southeast-1", "ap-southeast-2", "ap-northeast-1", "sa-east-1",
    "us-gov-west-1",
)  # fmt: skip


def _canned_acl(name: str) -> str:
    """Return the API's name of a canned ACL: `PublicRead` is `public-read`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def _filter(part: Properties) -> Params:
    """Return the filter of a rule. A filter with several conditions has the member And."""
    tags, sizes = part.get("TagFilters") or [], ("ObjectSizeGreaterThan", "ObjectSizeLessThan")
    plain = {name: part[name] for name in ("Prefix", "AccessPointArn", *sizes) if name in part}
    if len(plain) + len(tags) > 1:
        return {"And": {**plain, **({"Tags": tags} if tags else {})}}
    return {"Tag": tags[0]} if tags else plain


def _without(part: Properties, *names: str) -> Params:
    return {name: value for name, value in part.items() if name not in names}


FILTERED = ("Prefix", "TagFilters", "AccessPointArn")


# Configurations


def _encryption(value: Properties) -> Params:
    rules = [
        renamed(rule, {"ServerSideEncryptionByDefault": "ApplyServerSideEncryptionByDefault"})
        for rule in value["ServerSideEncryptionConfiguration"]
    ]
    return {"ServerSideEncryptionConfiguration": {"Rules": rules}}


def _cors(value: Properties) -> Params:
    names = {"ExposedHeaders": "ExposeHeaders", "Id": "ID", "MaxAge": "MaxAgeSeconds"}
    return {"CORSConfiguration": {"CORSRules": [renamed(rule, names) for rule in value["CorsRules"]]}}


def _lifecycle(value: Properties) -> Params:
    return {
        "LifecycleConfiguration": {"Rules": [_lifecycle_rule(rule) for rule in value["Rules"]]},
        "TransitionDefaultMinimumObjectSize": value.get("TransitionDefaultMinimumObjectSize"),
    }


def _lifecycle_rule(rule: Properties) -> Params:
    names = {"ExpirationInDays": "Days", "ExpirationDate": "Date", "ExpiredObjectDeleteMarker": "ExpiredObjectDeleteMarker"}
    expiration = {to: rule[name] for name, to in names.items() if name in rule}
    noncurrent = rule.get("NoncurrentVersionExpiration")
    if noncurrent is None and "NoncurrentVersionExpirationInDays" in rule:
        noncurrent = {"NoncurrentDays": rule["NoncurrentVersionExpirationInDays"]}
    transitions = [*rule.get("Transitions", ()), *([rule["Transition"]] if "Transition" in rule else ())]
    one = rule.get("NoncurrentVersionTransition")
    noncurrent_transitions = [*rule.get("NoncurrentVersionTransitions", ()), *([one] if one else ())]
    return {
        "ID": rule.get("Id"),
        "Status": rule["Status"],
        "Filter": _filter(rule) or {"Prefix": ""},
        "Expiration": expiration or None,
        "Transitions": [_transition(each, "Days") for each in transitions] or None,
        "NoncurrentVersionExpiration": noncurrent,
        "NoncurrentVersionTransitions": [_transition(each, "NoncurrentDays") for each in noncurrent_transitions] or None,
        "AbortIncompleteMultipartUpload": rule.get("AbortIncompleteMultipartUpload"),
    }


def _transition(value: Properties, days: str) -> Params:
    named = renamed(value, {"TransitionInDays": days, "TransitionDate": "Date"})
    return {**named, "StorageClass": value["StorageClass"].upper()}  # a template can have the old name Glacier


def _notifications(value: Properties) -> Params:
    targets = {  # property → member of the request, and the name of the target in the property and in the request
        "QueueConfigurations": ("QueueConfigurations", "Queue", "QueueArn"),
        "TopicConfigurations": ("TopicConfigurations", "Topic", "TopicArn"),
        "LambdaConfigurations": ("LambdaFunctionConfigurations", "Function", "LambdaFunctionArn"),
    }
    found: Params = {}
    for property_, (member, target, arn) in targets.items():
        for part in value.get(property_, ()):
            rules = part.get("Filter", {}).get("S3Key", {}).get("Rules")
            filter_ = {"Key": {"FilterRules": rules}} if rules is not None else None
            found.setdefault(member, []).append({arn: part[target], "Events": [part["Event"]], "Filter": filter_})
    if value.get("EventBridgeConfiguration", {}).get("EventBridgeEnabled"):
        found["EventBridgeConfiguration"] = {}
    return found


def _website(value: Properties) -> Params:
    document = _without(value, "IndexDocument", "ErrorDocument", "RoutingRules")
    if "IndexDocument" in value:
        document["IndexDocument"] = {"Suffix": value["IndexDocument"]}
    if "ErrorDocument" in value:
        document["ErrorDocument"] = {"Key": value["ErrorDocument"]}
    if "RoutingRules" in value:
        names = {"RedirectRule": "Redirect", "RoutingRuleCondition": "Condition"}
        document["RoutingRules"] = [renamed(rule, names) for rule in value["RoutingRules"]]
    return {"WebsiteConfiguration": document}


def _replication(value: Properties) -> Params:
    rules = []
    for rule in value["Rules"]:
        renamed_rule = renamed(rule, {"Id": "ID"})
        if "Filter" in rule:
            filter_ = renamed(rule["Filter"], {"TagFilter": "Tag"})
            if "And" in filter_:
                filter_["And"] = renamed(filter_["And"], {"TagFilters": "Tags"})
            renamed_rule["Filter"] = filter_
        rules.append(renamed_rule)
    return {"ReplicationConfiguration": {"Role": value["Role"], "Rules": rules}}


def _destination(value: Properties) -> Params:
    return {"S3BucketDestination": renamed(value, {"BucketArn": "Bucket", "BucketAccountId": "AccountId"})}


def _analytics(value: Properties) -> Params:
    export = value["StorageClassAnalysis"].get("DataExport")
    if export is not None:
        destination = renamed(export["Destination"], {"BucketArn": "Bucket"})
        export = {**export, "Destination": {"S3BucketDestination": destination}}
    return {"Id": value["Id"], "Filter": _filter(value) or None, "StorageClassAnalysis": {"DataExport": export}}


def _inventory(value: Properties) -> Params:
    prefix = {"Prefix": value["Prefix"]} if "Prefix" in value else None
    return {
        **renamed(_without(value, "Prefix", "ScheduleFrequency"), {"Enabled": "IsEnabled"}),
        "Destination": _destination(value["Destination"]),
        "Filter": prefix,
        "Schedule": {"Frequency": value["ScheduleFrequency"]},
    }


def _with_filter(value: Properties) -> Params:
    return {**_without(value, *FILTERED), "Filter": _filter(value) or None}


NAMED: dict[str, Callable[[Properties], Params]] = {  # a bucket can have several of these configurations; each has an Id
    "Analytics": _analytics,
    "IntelligentTiering": _with_filter,
    "Inventory": _inventory,
    "Metrics": _with_filter,
}
SETTINGS = {
    "OwnershipControls": Setting(
        "PutBucketOwnershipControls", lambda value: {"OwnershipControls": value}, "DeleteBucketOwnershipControls"
    ),
    "PublicAccessBlockConfiguration": Setting(
        "PutPublicAccessBlock", lambda value: {"PublicAccessBlockConfiguration": value}, "DeletePublicAccessBlock"
    ),
    "AccessControl": Setting("PutBucketAcl", lambda value: {"ACL": _canned_acl(value)}, default="Private"),
    "VersioningConfiguration": Setting(
        "PutBucketVersioning", lambda value: {"VersioningConfiguration": value}, default={"Status": "Suspended"}
    ),
    "BucketEncryption": Setting("PutBucketEncryption", _encryption, "DeleteBucketEncryption"),
    "CorsConfiguration": Setting("PutBucketCors", _cors, "DeleteBucketCors"),
    "LifecycleConfiguration": Setting("PutBucketLifecycleConfiguration", _lifecycle, "DeleteBucketLifecycle"),
    "WebsiteConfiguration": Setting("PutBucketWebsite", _website, "DeleteBucketWebsite"),
    "ReplicationConfiguration": Setting("PutBucketReplication", _replication, "DeleteBucketReplication"),
    "AccelerateConfiguration": Setting(
        "PutBucketAccelerateConfiguration",
        lambda value: {"AccelerateConfiguration": {"Status": value["AccelerationStatus"]}},
        default={"AccelerationStatus": "Suspended"},
    ),
    "AbacStatus": Setting("PutBucketAbac", lambda value: {"AbacStatus": {"Status": value}}, default="Disabled"),
}


# Properties that need more than one request


def _apply(tx: Tx[Store], caller: Caller, bucket: str, old: Properties, new: Properties) -> None:
    def differs(property_: str) -> bool:
        return old.get(property_) != new.get(property_)

    if differs("Tags") or (not old and new.get("_tags")):
        _set_tags(tx, caller, bucket, old, new)
    if differs("LoggingConfiguration"):
        _set_logging(tx, caller, bucket, new.get("LoggingConfiguration"))
    for word in NAMED:
        if differs(f"{word}Configurations"):
            _set_named(tx, caller, bucket, word, old, new)
    if differs("NotificationConfiguration"):
        _set_notifications(tx, caller, bucket, new.get("NotificationConfiguration", {}))


def _set_tags(tx: Tx[Store], caller: Caller, bucket: str, old: Properties, new: Properties) -> None:
    """Set the tags of the template, and the tags that name the stack, which clients cannot set."""
    tags = list(new.get("Tags") or ())
    if tags:
        call(tx, caller, "s3", "PutBucketTagging", {"Bucket": bucket, "Tagging": {"TagSet": tags}})
    elif old:
        call(tx, caller, "s3", "DeleteBucketTagging", {"Bucket": bucket})
    if system := [{"Key": key, "Value": value} for key, value in new.get("_tags", {}).items()]:
        found = existing_bucket(tx, {"Bucket": bucket}, caller)
        tx.store.bucket_documents.put(found.id, TAGGING.name, {"TagSet": [*system, *tags]}, tx.wall_s)


def _set_logging(tx: Tx[Store], caller: Caller, bucket: str, value: Properties | None) -> None:
    """Put the logging configuration. Without a destination, the bucket itself gets the logs."""
    names = {"DestinationBucketName": "TargetBucket", "LogFilePrefix": "TargetPrefix"}
    enabled = {"TargetBucket": bucket, "TargetPrefix": "", **renamed(value, names)} if value is not None else None
    call(tx, caller, "s3", "PutBucketLogging", {"Bucket": bucket, "BucketLoggingStatus": {"LoggingEnabled": enabled}})


def _set_named(tx: Tx[Store], caller: Caller, bucket: str, word: str, old: Properties, new: Properties) -> None:
    before, after = ({each["Id"]: each for each in side.get(f"{word}Configurations", ())} for side in (old, new))
    for id_ in before.keys() - after.keys():
        call(tx, caller, "s3", f"DeleteBucket{word}Configuration", {"Bucket": bucket, "Id": id_})
    for id_, value in after.items():
        if before.get(id_) != value:
            request = {"Bucket": bucket, "Id": id_, f"{word}Configuration": NAMED[word](value)}
            call(tx, caller, "s3", f"PutBucket{word}Configuration", request)


def _set_notifications(tx: Tx[Store], caller: Caller, bucket: str, value: Properties) -> None:
    """Put the notifications. S3 refuses a queue or a function whose policy does not allow S3 to use it.

    The first request has no topics. If the template has some, a second request adds them. S3 does not check its targets.
    """
    configuration = _notifications(value)
    checked = {member: part for member, part in configuration.items() if member != "TopicConfigurations"}
    put = "PutBucketNotificationConfiguration"
    call(tx, caller, "s3", put, {"Bucket": bucket, "NotificationConfiguration": checked})
    if checked != configuration:
        request = {"Bucket": bucket, "NotificationConfiguration": configuration, "SkipDestinationValidation": True}
        call(tx, caller, "s3", put, request)


def _create_request(caller: Caller, properties: Properties) -> Params:
    region = {"LocationConstraint": caller.region} if caller.region != FIRST_REGION else None
    return {"Bucket": properties["BucketName"], "CreateBucketConfiguration": region}


def _attributes(tx: Tx[Store], caller: Caller, name: str) -> dict[str, Any]:
    region = existing_bucket(tx, {"Bucket": name}, caller).region
    mark = "-" if region in DASHED_WEBSITES else "."
    return {
        "Arn": bucket_arn(name),
        "DomainName": f"{name}.s3.amazonaws.com",
        "DualStackDomainName": f"{name}.s3.dualstack.{region}.amazonaws.com",
        "RegionalDomainName": f"{name}.s3.{region}.amazonaws.com",
        "WebsiteURL": f"http://{name}.s3-website{mark}{region}.amazonaws.com",
    }


def _has_policy(tx: Tx[Store], caller: Caller, properties: Properties) -> bool:
    bucket = existing_bucket(tx, {"Bucket": properties["Bucket"]}, caller)
    return tx.store.bucket_documents.get(bucket.id, POLICY.name) is not None


TEMPLATE_TYPES = (
    api_type(
        "AWS::S3::Bucket",
        "s3",
        identity="BucketName",
        target="Bucket",
        create="CreateBucket",
        request=_create_request,
        delete="DeleteBucket",
        missing=MISSING,
        exists=lambda tx, caller, properties: tx.store.buckets.get(properties["BucketName"]) is not None,
        settings=SETTINGS,
        apply=_apply,
        applies=("Tags", "LoggingConfiguration", "NotificationConfiguration", *(f"{word}Configurations" for word in NAMED)),
        attributes=_attributes,
        without_effect=("ObjectLockEnabled", "ObjectLockConfiguration", "MetadataConfiguration", "MetadataTableConfiguration"),
        name_property="BucketName",
    ),
    api_type(
        "AWS::S3::BucketPolicy",
        "s3",
        identity="Bucket",
        target="Bucket",
        create="PutBucketPolicy",
        request=lambda caller, properties: {"Bucket": properties["Bucket"], "Policy": json_text(properties["PolicyDocument"])},
        delete="DeleteBucketPolicy",
        missing=MISSING,
        exists=_has_policy,
        update="PutBucketPolicy",
    ),
)
