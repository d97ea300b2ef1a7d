"""Auto Scaling resource types of CloudFormation templates."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.group import DELETING, PROCESSES, Group
from corral.services.autoscaling import groups
from corral.services.autoscaling.cloudformation_updates import (
    drain,
    end_rolling_update,
    group_settled,
    group_signals,
    replaces_group,
    restore_group,
)
from corral.services.autoscaling.names import HOOK, POLICY, SCHEDULE, document_of, find_group
from corral.services.ec2.cloudformation_instances import init_of
from corral.store import Store
from corral.template_types.api_calls import call, request_of
from corral.template_types.api_types import Params, api_type
from corral.template_types.resource_types import Properties, ResourceStep, TemplateType, Waiting

SERVICE = "autoscaling"
SIZES = ("MinSize", "MaxSize", "DesiredCapacity")
ATTACHED = {  # property → the operations that add and remove its elements, and the member with the elements
    "LoadBalancerNames": ("AttachLoadBalancers", "DetachLoadBalancers", "LoadBalancerNames"),
    "TargetGroupARNs": ("AttachLoadBalancerTargetGroups", "DetachLoadBalancerTargetGroups", "TargetGroupARNs"),
    "TrafficSources": ("AttachTrafficSources", "DetachTrafficSources", "TrafficSources"),
}
# Member of UpdateAutoScalingGroup → its value when an update of the stack removes the property.
DEFAULTS: dict[str, Any] = {
    **{name: value for name, value in groups.DEFAULTS.items() if name not in ATTACHED},
    "MaxInstanceLifetime": 0,
    "DefaultInstanceWarmup": -1,
    "Context": "",
    "PlacementGroup": "",
}


def _call(tx: Tx[Store], caller: Caller, operation: str, group: str, **params: Any) -> dict[str, Any]:
    return call(tx, caller, SERVICE, operation, {"AutoScalingGroupName": group, **params})


def _group(tx: Tx[Store], caller: Caller, name: str) -> Group | None:
    """Return the group with this name. Return None if it does not exist or is being deleted."""
    group = tx.store.groups.get(caller.region, name)
    return None if group is None or group.status == DELETING else group


# Groups


def _own(properties: Properties) -> dict[str, Any]:
    """Return the members that Corral itself adds to a request: the tags of the stack, and the metadata for cfn-init."""
    tags = [{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in properties.get("_tags", {}).items()]
    return {"_tags": tags, "_init": init_of(properties)}


def _group_request(operation: str, properties: Properties) -> dict[str, Any]:
    request = dict(properties)
    if "VPCZoneIdentifier" in properties:
        request["VPCZoneIdentifier"] = ",".join(properties["VPCZoneIdentifier"])
    if "Cooldown" in properties:
        request["DefaultCooldown"] = properties["Cooldown"]
    return request_of(SERVICE, operation, request)


def _create_group(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    name = str(properties["AutoScalingGroupName"])
    call(tx, caller, SERVICE, "CreateAutoScalingGroup", _group_request("CreateAutoScalingGroup", properties) | _own(properties))
    _set_metrics(tx, caller, name, {}, properties)
    _set_notifications(tx, caller, name, {}, properties)
    return name


def _group_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    return {"AutoScalingGroupARN": find_group(tx, caller, identity).arn(tx.settings.account)}


def _update_group(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    """Update a group. If its UpdatePolicy requires new instances, `group_settled` replaces the old instances."""
    end_rolling_update(tx, caller, find_group(tx, caller, identity))
    given = _group_request("UpdateAutoScalingGroup", new)
    removed = _group_request("UpdateAutoScalingGroup", old).keys() - given.keys()
    request = {name: value for name, value in DEFAULTS.items() if name in removed} | given
    policy = new.get("_update_policy", {}).get("AutoScalingScheduledAction", {})
    if str(policy.get("IgnoreUnmodifiedGroupSizeProperties", False)).lower() == "true":
        request = {name: value for name, value in request.items() if name not in SIZES or str(old.get(name)) != str(value)}
    call(tx, caller, SERVICE, "UpdateAutoScalingGroup", {**request, "AutoScalingGroupName": identity, "_init": init_of(new)})
    attached = find_group(tx, caller, identity).settings  # a user may have detached some already
    for property_, (attach, detach, member) in ATTACHED.items():
        before, after = old.get(property_, []), new.get(property_, [])
        if gone := [each for each in before if each not in after and each in attached.get(member, ())]:
            _call(tx, caller, detach, identity, **{member: gone})
        if added := [each for each in after if each not in before]:
            _call(tx, caller, attach, identity, **{member: added})
    _set_tags(tx, caller, identity, old, new)
    _set_metrics(tx, caller, identity, old, new)
    _set_notifications(tx, caller, identity, old, new)
    _set_hooks(tx, caller, identity, old, new)


def _set_tags(tx: Tx[Store], caller: Caller, group: str, old: Properties, new: Properties) -> None:
    about = {"ResourceId": group, "ResourceType": "auto-scaling-group"}
    keys = {tag["Key"] for tag in new.get("Tags", ())}
    if removed := [{"Key": tag["Key"], **about} for tag in old.get("Tags", ()) if tag["Key"] not in keys]:
        call(tx, caller, SERVICE, "DeleteTags", {"Tags": removed})
    if added := [{**tag, **about} for tag in new.get("Tags", ()) if tag not in old.get("Tags", ())]:
        call(tx, caller, SERVICE, "CreateOrUpdateTags", {"Tags": added})


def _set_metrics(tx: Tx[Store], caller: Caller, group: str, old: Properties, new: Properties) -> None:
    if old.get("MetricsCollection") == new.get("MetricsCollection"):
        return
    if old.get("MetricsCollection"):
        _call(tx, caller, "DisableMetricsCollection", group)
    for each in new.get("MetricsCollection", ()):
        _call(tx, caller, "EnableMetricsCollection", group, **each)


def _set_notifications(tx: Tx[Store], caller: Caller, group: str, old: Properties, new: Properties) -> None:
    before, after = _notifications(old), _notifications(new)
    for topic in sorted(before.keys() - after):
        _call(tx, caller, "DeleteNotificationConfiguration", group, TopicARN=topic)
    for topic, kinds in after.items():
        if before.get(topic) != kinds:
            _call(tx, caller, "PutNotificationConfiguration", group, TopicARN=topic, NotificationTypes=kinds)


def _notifications(properties: Properties) -> dict[str, list[str]]:
    one = [properties["NotificationConfiguration"]] if "NotificationConfiguration" in properties else []
    found: dict[str, list[str]] = {}
    for each in [*one, *properties.get("NotificationConfigurations", ())]:
        topics = each["TopicARN"] if isinstance(each["TopicARN"], list) else [each["TopicARN"]]
        found |= {topic: each.get("NotificationTypes", []) for topic in topics}
    return found


def _set_hooks(tx: Tx[Store], caller: Caller, group: str, old: Properties, new: Properties) -> None:
    member = "LifecycleHookSpecificationList"
    names = {hook["LifecycleHookName"] for hook in new.get(member, ())}
    for hook in old.get(member, ()):
        name = hook["LifecycleHookName"]
        if name not in names and document_of(tx, caller.region, HOOK, group, name) is not None:
            _call(tx, caller, "DeleteLifecycleHook", group, LifecycleHookName=name)
    for hook in new.get(member, ()):
        if hook not in old.get(member, ()):
            _call(tx, caller, "PutLifecycleHook", group, **request_of(SERVICE, "PutLifecycleHook", hook))


def _delete_group(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    """Set the size of a group to 0. When the last instance is terminated, `_group_gone` deletes the group."""
    group = _group(tx, caller, identity)
    if group is not None and group.settings.get("DeletionProtection") == "prevent-all-deletion":
        _call(tx, caller, "DeleteAutoScalingGroup", identity)  # refuses the deletion, with the reason
    elif group is not None:
        _call(tx, caller, "ResumeProcesses", identity, ScalingProcesses=list(PROCESSES))
        drain(tx, caller, find_group(tx, caller, identity), max_size=0)


def _group_gone(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    group = tx.store.groups.get(caller.region, step.physical_id)
    if group is None:
        return None
    members = len(tx.store.groups.members(group.region, group.name))
    if not members:
        _call(tx, caller, "DeleteAutoScalingGroup", group.name)
        return None
    return Waiting((group.key,), f"The group {group.name} waits until its instances are terminated: {members} left.")


def _configuration_request(caller: Caller, properties: Properties) -> Params:
    request = request_of(SERVICE, "CreateLaunchConfiguration", {**properties, "InstanceMonitoring": None})
    if "InstanceMonitoring" in properties:
        request["InstanceMonitoring"] = {"Enabled": properties["InstanceMonitoring"]}
    return {**request, "_init": init_of(properties)}


def _has_configuration(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> bool:
    return tx.store.stored.get(SERVICE, "launch-configuration", caller.region, identity) is not None


# Hooks, policies, scheduled actions and warm pools. The deletion of a group also deletes them.


def _part_type(name: str, kind: str, member: str, **more: Any) -> TemplateType:
    """Return the type of a part of a group. `kind` is the kind of its document, and `member` names the part in requests."""

    def target(identity: str, properties: Properties) -> Params:
        return {"AutoScalingGroupName": properties["AutoScalingGroupName"], member: _policy_name(identity)}

    def found(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> bool:
        group, part = properties["AutoScalingGroupName"], _policy_name(identity)
        return _group(tx, caller, group) is not None and document_of(tx, caller.region, kind, group, part) is not None

    return api_type(name, SERVICE, target=target, found=found, update=more["create"], **more)


def _policy_name(identity: str) -> str:
    """Return the name of a policy from its ARN. The physical ids of other parts are names, and stay unchanged."""
    return identity.rpartition(":policyName/")[2]


def _has_warm_pool(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> bool:
    group = _group(tx, caller, identity)
    return group is not None and "WarmPoolConfiguration" in group.settings


TEMPLATE_TYPES = (
    TemplateType(
        "AWS::AutoScaling::AutoScalingGroup",
        _create_group,
        _group_attributes,
        _update_group,
        _delete_group,
        "AutoScalingGroupName",
        settled=group_settled,
        gone=_group_gone,
        signals=group_signals,
        replaces=replaces_group,
        restore=restore_group,
        checks_permissions=True,
    ),
    api_type(
        "AWS::AutoScaling::LaunchConfiguration",
        SERVICE,
        identity="LaunchConfigurationName",
        target="LaunchConfigurationName",
        create="CreateLaunchConfiguration",
        request=_configuration_request,
        delete="DeleteLaunchConfiguration",
        found=_has_configuration,
        name_property="LaunchConfigurationName",
    ),
    _part_type(
        "AWS::AutoScaling::LifecycleHook",
        HOOK,
        "LifecycleHookName",
        identity="LifecycleHookName",
        create="PutLifecycleHook",
        delete="DeleteLifecycleHook",
        name_property="LifecycleHookName",
        name_scope=("AutoScalingGroupName",),
    ),
    _part_type(
        "AWS::AutoScaling::ScalingPolicy",
        POLICY,
        "PolicyName",
        generated="PolicyName",
        identity_in="PolicyARN",
        create="PutScalingPolicy",
        delete="DeletePolicy",
        attributes=lambda tx, caller, identity: {"Arn": identity, "PolicyName": _policy_name(identity)},
    ),
    _part_type(
        "AWS::AutoScaling::ScheduledAction",
        SCHEDULE,
        "ScheduledActionName",
        generated="ScheduledActionName",
        create="PutScheduledUpdateGroupAction",
        delete="DeleteScheduledAction",
        attributes=lambda tx, caller, identity: {"ScheduledActionName": identity},
    ),
    api_type(
        "AWS::AutoScaling::WarmPool",
        SERVICE,
        identity="AutoScalingGroupName",
        target="AutoScalingGroupName",
        create="PutWarmPool",
        update="PutWarmPool",
        defaults={"MaxGroupPreparedCapacity": -1, "MinSize": 0, "PoolState": "Stopped"},
        delete="DeleteWarmPool",
        found=_has_warm_pool,
        is_stored_only=True,
    ),
)
