"""The permissions that operations of Auto Scaling need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags
from corral.core.transactions import Tx
from corral.decide.policies.policy import UNKNOWN_RESOURCE
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the groups that a request names, or whose instances it names. Describe operations have no resources."""
    if operation.startswith("Describe"):
        return on_resources(f"autoscaling:{operation}", (), {})
    names = {params.get("AutoScalingGroupName"), *(tag.get("ResourceId") for tag in params.get("Tags", ()))} - {None}
    if (policy := params.get("PolicyName", "")).startswith("arn:"):  # the handler reads the group name from this ARN
        names = {policy.partition(":autoScalingGroupName/")[2].partition(":policyName/")[0]}
    instance = params.get("InstanceId", "") if operation != "CreateAutoScalingGroup" else ""
    member = tx.store.groups.member_with_ec2_id(caller.region, instance)
    names |= {member.group} if member is not None else set()
    arns = []
    for name in sorted(name.rpartition(":autoScalingGroupName/")[2] for name in names):
        group = tx.store.groups.get(caller.region, name)
        uid = group.uid if group is not None else "*"
        arns.append(f"arn:aws:autoscaling:{caller.region}:{caller.account}:autoScalingGroup:{uid}:autoScalingGroupName/{name}")
    return on_resources(f"autoscaling:{operation}", arns or [UNKNOWN_RESOURCE], request_tags(params))
