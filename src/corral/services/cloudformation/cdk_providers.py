"""Custom resources of CDK whose functions are in JavaScript, which Corral does not run. Corral does the same work itself.

CDK adds these resources to many stacks: `Custom::VpcRestrictDefaultSG` removes the rules of the default security group of a VPC,
and `Custom::S3AutoDeleteObjects` empties a bucket before it is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.store import Store
from corral.template_types.api_calls import call
from corral.template_types.resource_types import ResourceStep, Waiting

AUTO_DELETE_TAG = "aws-cdk:auto-delete-objects"
OBJECTS_MAX = 50  # the maximum number of object versions that one transaction deletes
PACE_S = 0.001  # seconds until the next transaction continues
NOTE = "Corral runs no functions in JavaScript. It does the work of this resource of CDK itself."


def restrict_default_group(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """Remove the two rules that a default security group has. When the resource is deleted, add them again."""
    if step.action == "DELETE":
        _set_rules(tx, caller, step.properties, "Authorize", "InvalidPermission.Duplicate", "InvalidGroup.NotFound")
        return None
    old = step.old_properties
    if old is not None and old.get("DefaultSecurityGroupId") != step.properties.get("DefaultSecurityGroupId"):
        _set_rules(tx, caller, old, "Authorize", "InvalidPermission.Duplicate", "InvalidGroup.NotFound")
    _set_rules(tx, caller, step.properties, "Revoke", "InvalidPermission.NotFound")
    step.notes.append(NOTE)
    step.attributes = {}
    return None


def _set_rules(tx: Tx[Store], caller: Caller, properties: Any, verb: str, *expected: str) -> None:
    group, account = properties.get("DefaultSecurityGroupId"), properties.get("Account", caller.account)
    own = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group, "UserId": account}]}
    everywhere = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    for operation, rule in ((f"{verb}SecurityGroupIngress", own), (f"{verb}SecurityGroupEgress", everywhere)):
        request = {"GroupId": group, "IpPermissions": [rule]}
        try:
            tx.attempt(lambda operation=operation, request=request: call(tx, caller, "ec2", operation, request))  # type: ignore[misc]
        except ApiError as error:
            if error.code not in expected:
                raise


def delete_objects(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """Before a bucket is deleted, delete its objects, a few in each transaction. Delete nothing if the bucket lacks CDK's tag."""
    if step.action != "DELETE":
        step.notes.append(NOTE)
        step.attributes = {}
        return None
    bucket = {"Bucket": step.properties.get("BucketName")}
    try:
        tags = call(tx, caller, "s3", "GetBucketTagging", bucket)["TagSet"]
    except ApiError as error:
        if error.code in ("NoSuchBucket", "NoSuchTagSet"):
            return None
        raise
    if {"Key": AUTO_DELETE_TAG, "Value": "true"} not in tags:
        return None
    found = call(tx, caller, "s3", "ListObjectVersions", {**bucket, "MaxKeys": OBJECTS_MAX})
    versions = [*found.get("Versions", ()), *found.get("DeleteMarkers", ())]
    for each in versions:
        call(tx, caller, "s3", "DeleteObject", {**bucket, "Key": each["Key"], "VersionId": each["VersionId"]})
    if not versions:
        return None
    return Waiting((), "The objects of the bucket are being deleted.", tx.now_s + PACE_S)


PROVIDERS: dict[str, Callable[[Tx[Store], Caller, ResourceStep], Waiting | None]] = {
    "Custom::S3AutoDeleteObjects": delete_objects,
    "Custom::VpcRestrictDefaultSG": restrict_default_group,
}
