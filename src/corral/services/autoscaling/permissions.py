"""The permissions that operations of Auto Scaling need, and the facts about groups that policies can test."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import (
    Params,
    Permission,
    of_other_owner,
    on_resources,
    pass_profile,
    request_tags,
    request_values,
    with_tags,
)
from corral.access.resources import ResourceFacts
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import UNKNOWN_RESOURCE
from corral.model.instance import ec2_id
from corral.operations.listings import Listed
from corral.services.autoscaling.launch_configurations import CONFIGURATION_TYPE, find_instance
from corral.services.autoscaling.names import SERVICE
from corral.services.ec2 import permissions as ec2
from corral.services.sns.names import TOPIC, region_and_name, topic_with_arn
from corral.services.sqs.queue_names import arn_of, queue_with_arn
from corral.store import Store
from corral.store.stored_resources import Document

OF_CONFIGURATION = frozenset({"CreateLaunchConfiguration", "DeleteLaunchConfiguration"})
# Condition keys, without `autoscaling:`, and the members of requests with their values
KEYS = {
    "forcedelete": "ForceDelete",
    "launchconfigurationname": "LaunchConfigurationName",
    "loadbalancernames": "LoadBalancerNames",
    "maxsize": "MaxSize",
    "minsize": "MinSize",
    "targetgrouparns": "TargetGroupARNs",
}
OF_CONFIGURATION_KEYS = {
    "imageid": "ImageId",
    "instancetype": "InstanceType",
    "metadatahttpendpoint": "MetadataOptions.HttpEndpoint",
    "metadatahttpputresponsehoplimit": "MetadataOptions.HttpPutResponseHopLimit",
    "metadatahttptokens": "MetadataOptions.HttpTokens",
    "spotprice": "SpotPrice",
}


def _owner(tx: Tx[Store], caller: Caller, params: Params, element: Params) -> str:
    """The owner of the group of an element, or of the group that a request names."""
    name = element.get("AutoScalingGroupName") or element.get("ResourceId") or params.get("AutoScalingGroupName") or ""
    group = tx.store.groups.get(caller.region, name.rpartition(":autoScalingGroupName/")[2])
    return group.owner if group is not None else ""


def _owner_of_configuration(tx: Tx[Store], caller: Caller, params: Params, element: Params) -> str:
    return tx.store.stored.owner(SERVICE, CONFIGURATION_TYPE.name, caller.region, element["LaunchConfigurationName"])


LISTED = {
    "DescribeAutoScalingGroups": Listed(("AutoScalingGroups",), _owner),
    "DescribeAutoScalingInstances": Listed(("AutoScalingInstances",), _owner),
    "DescribeInstanceRefreshes": Listed(("InstanceRefreshes",), _owner),
    "DescribeLaunchConfigurations": Listed(("LaunchConfigurations",), _owner_of_configuration),
    "DescribeLifecycleHooks": Listed(("LifecycleHooks",), _owner),
    "DescribeLoadBalancerTargetGroups": Listed(("LoadBalancerTargetGroups",), _owner),
    "DescribeLoadBalancers": Listed(("LoadBalancers",), _owner),
    "DescribeNotificationConfigurations": Listed(("NotificationConfigurations",), _owner),
    "DescribePolicies": Listed(("ScalingPolicies",), _owner),
    "DescribeScalingActivities": Listed(("Activities",), _owner),
    "DescribeScheduledActions": Listed(("ScheduledUpdateGroupActions",), _owner),
    "DescribeTags": Listed(("Tags",), _owner),
    "DescribeTrafficSources": Listed(("TrafficSources",), _owner),
    "DescribeWarmPool": Listed(("Instances",), _owner),
}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on what a request names, and on what its groups will use: launch templates, instances, topics and roles.

    Describe operations have no resources, as on AWS, except DescribeWarmPool, which shows the settings of one group.
    """
    action = f"autoscaling:{operation}"
    if operation.startswith("Describe") and operation != "DescribeWarmPool":
        return on_resources(action, (), {})
    if operation in OF_CONFIGURATION:
        arn = _configuration_arn(tx, caller, params.get("LaunchConfigurationName", ""))
        context = request_values(params, {f"autoscaling:{key}": path for key, path in OF_CONFIGURATION_KEYS.items()})
        return on_resources(action, [arn], context) + _launch(tx, caller, operation, params)
    arns = _groups(tx, caller, operation, params)
    needed = on_resources(action, arns or [UNKNOWN_RESOURCE], {**request_tags(params), **_context(params)})
    if operation == "CreateAutoScalingGroup":
        needed += with_tags("autoscaling:CreateOrUpdateTags", arns, params)
    if operation == "AttachInstances":
        needed += [each for given in params.get("InstanceIds") or () for each in _use_instance(tx, caller, operation, given)]
    hooks = [params, *(params.get("LifecycleHookSpecificationList") or ())]
    targets = dict.fromkeys((params.get("TopicARN"), *(each.get("NotificationTargetARN") for each in hooks)))
    needed += [permission for target in targets if target for permission in _notify(tx, caller, target)]
    return needed + _launch(tx, caller, operation, params)


def _notify(tx: Tx[Store], caller: Caller, target: str) -> list[Permission]:
    """The permission for the messages that a group sends to a topic, or a hook to a queue or a topic, of another owner.

    A group sends with its own role, so the policies of the target do not decide.
    """
    if (queue := queue_with_arn(tx, target)) is not None:
        return of_other_owner(caller, queue.owner, "sqs:SendMessage", arn_of(tx, queue))
    if (topic := topic_with_arn(tx, target)) is None:
        return []
    owner = tx.store.stored.owner("sns", TOPIC, *region_and_name(topic["TopicArn"]))
    return of_other_owner(caller, owner, "sns:Publish", topic["TopicArn"])


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    if ":autoScalingGroupName/" in permission.resource:
        place, _, name = permission.resource.partition(":autoScalingGroupName/")
        group = tx.store.groups.get(place.split(":")[3], name)
        if group is None:
            return ResourceFacts()
        return ResourceFacts(group.owner, {tag["Key"]: tag["Value"] for tag in group.settings.get("Tags", ())})
    if ":launchConfigurationName/" in permission.resource:
        place, _, name = permission.resource.partition(":launchConfigurationName/")
        return ResourceFacts(tx.store.stored.owner(SERVICE, CONFIGURATION_TYPE.name, place.split(":")[3], name) or None)
    return ec2.resource_facts(tx, caller, permission)  # of an instance that a request attaches, or from which it makes a group


def _groups(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[str]:
    """The ARNs of the groups that a request names, or whose instances it names."""
    names = {params.get("AutoScalingGroupName"), *(tag.get("ResourceId") for tag in params.get("Tags", ()))} - {None}
    if (policy := params.get("PolicyName", "")).startswith("arn:"):  # the handler reads the group name from this ARN
        names = {policy.partition(":autoScalingGroupName/")[2].partition(":policyName/")[0]}
    instance = params.get("InstanceId", "") if operation != "CreateAutoScalingGroup" else ""
    member = tx.store.groups.member_with_ec2_id(caller.region, instance)
    names |= {member.group} if member is not None else set()
    return [_group_arn(tx, caller, name.rpartition(":autoScalingGroupName/")[2]) for name in sorted(names)]


def _group_arn(tx: Tx[Store], caller: Caller, name: str) -> str:
    group = tx.store.groups.get(caller.region, name)
    uid = group.uid if group is not None else "*"
    return f"arn:aws:autoscaling:{caller.region}:{caller.account}:autoScalingGroup:{uid}:autoScalingGroupName/{name}"


def _configuration_arn(tx: Tx[Store], caller: Caller, name: str) -> str:
    found = _configuration(tx, caller, name)
    unknown = f"arn:aws:autoscaling:{caller.region}:{caller.account}:launchConfiguration:*:launchConfigurationName/{name}"
    return str(found["LaunchConfigurationARN"]) if found is not None else unknown


def _configuration(tx: Tx[Store], caller: Caller, name: str) -> Document | None:
    return tx.store.stored.get(SERVICE, CONFIGURATION_TYPE.name, caller.region, name)


def _context(params: Params) -> Context:
    """The condition keys of a request about a group."""
    context = dict(request_values(params, {f"autoscaling:{key}": path for key, path in KEYS.items()}))
    if params.get("VPCZoneIdentifier"):
        context["autoscaling:vpczoneidentifiers"] = tuple(params["VPCZoneIdentifier"].replace(" ", "").split(","))
    if sources := [each["Identifier"] for each in params.get("TrafficSources") or () if each.get("Identifier")]:
        context["autoscaling:trafficsourceidentifiers"] = tuple(sources)
    overrides = _mixed(params).get("Overrides") or ()
    if types := [each["InstanceType"] for each in overrides if each.get("InstanceType")]:
        context["autoscaling:instancetypes"] = tuple(types)
    if templates := _templates(params):
        specified = all(each.get("Version") for each in templates)
        context["autoscaling:launchtemplateversionspecified"] = (str(specified).lower(),)
    return context


def _mixed(params: Params) -> Params:
    return (params.get("MixedInstancesPolicy") or {}).get("LaunchTemplate") or {}


def _templates(params: Params) -> list[Params]:
    mixed = _mixed(params)
    specifications = (each.get("LaunchTemplateSpecification") for each in (mixed, *(mixed.get("Overrides") or ())))
    return [each for each in (params.get("LaunchTemplate"), *specifications) if each]


def _launch(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions to launch what a group will launch: from launch templates, an instance, or a launch configuration."""
    if operation in ("CreateAutoScalingGroup", "CreateLaunchConfiguration") and params.get("InstanceId"):
        needed = _use_instance(tx, caller, operation, params["InstanceId"])
        return needed + ([] if params.get("IamInstanceProfile") else _pass_role_of_instance(tx, caller, params["InstanceId"]))
    given = params.get("DesiredConfiguration") or params
    needed = [permission for each in _templates(given) for permission in ec2.launch_permissions(tx, caller, {}, each)]
    name = params.get("LaunchConfigurationName", "") if operation not in OF_CONFIGURATION else ""
    configuration = _configuration(tx, caller, name) if name else None
    if configuration is not None:
        owner = tx.store.stored.owner(SERVICE, CONFIGURATION_TYPE.name, caller.region, name)
        needed += of_other_owner(caller, owner, f"autoscaling:{operation}", configuration["LaunchConfigurationARN"])
        needed += pass_profile(tx, caller, configuration.get("IamInstanceProfile") or "")
    return needed


def _use_instance(tx: Tx[Store], caller: Caller, operation: str, instance_id: str) -> list[Permission]:
    """The permission to attach an instance of another owner, or to copy its settings. A group terminates its instances."""
    instance = tx.store.instances.by_ec2_id(instance_id)
    if instance is None:
        return []
    arn = f"arn:aws:ec2:{caller.region}:{caller.account}:instance/{ec2_id(instance.id)}"
    return of_other_owner(caller, instance.owner, f"autoscaling:{operation}", arn)


def _pass_role_of_instance(tx: Tx[Store], caller: Caller, instance_id: str) -> list[Permission]:
    try:
        profile = find_instance(tx, caller, instance_id).details.get("IamInstanceProfile") or {}
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return []
    return pass_profile(tx, caller, profile.get("Arn", ""))
