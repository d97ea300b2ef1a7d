"""The permissions that operations of Auto Scaling need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, pass_profile, request_tags
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.policy import UNKNOWN_RESOURCE
from corral.services.autoscaling.launch_configurations import find_instance
from corral.services.ec2.permissions import pass_role_of_template
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the groups that a request names, or whose instances it names, and to pass the roles of launch templates.

    Describe operations have no resources.
    """
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
    needed = on_resources(f"autoscaling:{operation}", arns or [UNKNOWN_RESOURCE], request_tags(params))
    return needed + _pass_roles(tx, caller, operation, params)


def _pass_roles(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions to pass the roles of the launch templates, or of the instance, from which a request launches instances."""
    if operation in ("CreateAutoScalingGroup", "CreateLaunchConfiguration") and params.get("InstanceId"):
        try:
            profile = find_instance(tx, caller, params["InstanceId"]).details.get("IamInstanceProfile") or {}
        except ApiError:  # the handler raises the same error later, if the caller has the permissions
            return []
        return [] if params.get("IamInstanceProfile") else pass_profile(tx, caller, profile.get("Arn", ""))
    given = params.get("DesiredConfiguration") or params
    mixed = (given.get("MixedInstancesPolicy") or {}).get("LaunchTemplate") or {}
    specifications = (each.get("LaunchTemplateSpecification") for each in (mixed, *(mixed.get("Overrides") or ())))
    templates = [given.get("LaunchTemplate"), *specifications]
    return [permission for each in templates for permission in pass_role_of_template(tx, caller, each)]
