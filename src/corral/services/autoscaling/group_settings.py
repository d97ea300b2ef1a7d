"""Operations on the settings of a group.

Suspended processes and notifications have an effect. Metrics, warm pools and traffic sources are stored without effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.scaling.policies import ADJUSTMENT_TYPES
from corral.decide.scaling.termination_policies import TYPES as TERMINATION_POLICIES
from corral.model.group import PROCESSES, Group
from corral.operations.pagination import Pagination
from corral.operations.services import Handler
from corral.operations.stored_resources import Params
from corral.services.autoscaling import group_changes
from corral.services.autoscaling.errors import LimitExceededFault, ValidationError
from corral.services.autoscaling.groups import GROUPS_MAX
from corral.services.autoscaling.launch_configurations import CONFIGURATIONS_MAX
from corral.services.autoscaling.lifecycle_hooks import TRANSITIONS
from corral.services.autoscaling.names import (
    ACTIVITY_PAGES,
    NOTIFICATION,
    PAGES,
    SERVICE,
    SMALL_PAGES,
    changeable_group,
    documents_of,
    drop_document,
    find_group,
    put_document,
)
from corral.services.autoscaling.notifications import send_test
from corral.store import Store

METRICS = (
    "GroupMinSize",
    "GroupMaxSize",
    "GroupDesiredCapacity",
    "GroupInServiceInstances",
    "GroupPendingInstances",
    "GroupStandbyInstances",
    "GroupTerminatingInstances",
    "GroupTotalInstances",
    "GroupInServiceCapacity",
    "GroupPendingCapacity",
    "GroupStandbyCapacity",
    "GroupTerminatingCapacity",
    "GroupTotalCapacity",
    "WarmPoolDesiredCapacity",
    "WarmPoolWarmedCapacity",
    "WarmPoolPendingCapacity",
    "WarmPoolTerminatingCapacity",
    "WarmPoolTotalCapacity",
    "GroupAndWarmPoolDesiredCapacity",
    "GroupAndWarmPoolTotalCapacity",
)
GRANULARITY = "1Minute"
NOTIFICATION_TYPES = (
    "autoscaling:EC2_INSTANCE_LAUNCH",
    "autoscaling:EC2_INSTANCE_LAUNCH_ERROR",
    "autoscaling:EC2_INSTANCE_TERMINATE",
    "autoscaling:EC2_INSTANCE_TERMINATE_ERROR",
    "autoscaling:TEST_NOTIFICATION",
)
TOPICS_MAX, SOURCES_MAX = 10, 10
WARM_POOL = ("MaxGroupPreparedCapacity", "MinSize", "PoolState", "InstanceReusePolicy")


def _put_settings(tx: Tx[Store], group: Group, **changes: Any) -> None:
    tx.store.groups.put(group.but(settings={**group.settings, **changes}))


# Processes


def suspend_processes(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = changeable_group(tx, caller, params["AutoScalingGroupName"])
    reason = "User suspended"
    group_changes.put(tx, group.but(suspended={**group.suspended, **dict.fromkeys(_processes(params), reason)}))
    return {}


def resume_processes(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, resumed = changeable_group(tx, caller, params["AutoScalingGroupName"]), _processes(params)
    left = {process: reason for process, reason in group.suspended.items() if process not in resumed}
    group_changes.put(tx, group.but(suspended=left, failures=0, retry_at_s=None))
    return {}


def _processes(params: Params) -> list[str]:
    given = params.get("ScalingProcesses") or list(PROCESSES)
    for process in given:
        if process not in PROCESSES:
            raise ValidationError(f"{process} is not a scaling process: use {', '.join(PROCESSES)}.")
    return list(given)


# Metrics


def enable_metrics_collection(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = changeable_group(tx, caller, params["AutoScalingGroupName"])
    if params["Granularity"] != GRANULARITY:
        raise ValidationError(f"Granularity must be {GRANULARITY}: {params['Granularity']} is not valid.")
    names = {each["Metric"] for each in group.settings.get("EnabledMetrics", ())} | set(_metrics(params))
    enabled = [{"Metric": name, "Granularity": GRANULARITY} for name in METRICS if name in names]
    _put_settings(tx, group, EnabledMetrics=enabled)
    return {}


def disable_metrics_collection(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, names = changeable_group(tx, caller, params["AutoScalingGroupName"]), _metrics(params)
    left = [each for each in group.settings.get("EnabledMetrics", ()) if each["Metric"] not in names]
    _put_settings(tx, group, EnabledMetrics=left)
    return {}


def _metrics(params: Params) -> list[str]:
    given = params.get("Metrics") or list(METRICS)
    for name in given:
        if name not in METRICS:
            raise ValidationError(f"{name} is not a group metric: DescribeMetricCollectionTypes lists the group metrics.")
    return list(given)


# Notifications


def put_notification_configuration(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, topic = changeable_group(tx, caller, params["AutoScalingGroupName"]), params["TopicARN"]
    for kind in params["NotificationTypes"]:
        if kind not in NOTIFICATION_TYPES:
            raise ValidationError(f"{kind} is not a notification type: use {', '.join(NOTIFICATION_TYPES)}.")
    topics = {each["TopicARN"] for each in documents_of(tx, group.region, NOTIFICATION, group.name)} | {topic}
    if len(topics) > TOPICS_MAX:
        raise LimitExceededFault(f"A group can have at most {TOPICS_MAX} notification topics.")
    document = {"AutoScalingGroupName": group.name, "TopicARN": topic, "_types": sorted(set(params["NotificationTypes"]))}
    put_document(tx, group.region, NOTIFICATION, group.name, topic, document)
    send_test(tx, group, topic)
    return {}


def delete_notification_configuration(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, topic = changeable_group(tx, caller, params["AutoScalingGroupName"]), params["TopicARN"]
    if not drop_document(tx, group.region, NOTIFICATION, group.name, topic):
        raise ValidationError(f"AutoScalingGroup {group.name} has no notification configuration with the topic {topic}.")
    return {}


def describe_notification_configurations(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    names = params.get("AutoScalingGroupNames")

    def candidates(after: str, limit: int) -> list[tuple[str, dict[str, str]]]:
        found = [
            (f"{key}\n{kind}", {**each, "NotificationType": kind})
            for key, each in tx.store.stored.listed(SERVICE, NOTIFICATION, caller.region)
            if not names or each["AutoScalingGroupName"] in names
            for kind in each["_types"]
        ]
        found = [pair for pair in found if pair[0] > after]
        return found if limit < 0 else found[:limit]

    found, more = PAGES.page(params, candidates)
    return {"NotificationConfigurations": [{name: each[name] for name in each if name[0] != "_"} for each in found], **more}


# Warm pools


def put_warm_pool(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Store a warm pool. It has no effect: no instance is launched into it."""
    group = changeable_group(tx, caller, params["AutoScalingGroupName"])
    if "MixedInstancesPolicy" in group.settings:
        raise ValidationError("You can't add a warm pool to a group that has a mixed instances policy.")
    before = group.settings.get("WarmPoolConfiguration", {"MinSize": 0, "PoolState": "Stopped"})
    given = {member: params[member] for member in WARM_POOL if member in params}
    if given.get("MaxGroupPreparedCapacity") == -1:  # -1 removes the setting
        before = {member: value for member, value in before.items() if member != "MaxGroupPreparedCapacity"}
        del given["MaxGroupPreparedCapacity"]
    _put_settings(tx, group, WarmPoolConfiguration={**before, **given}, WarmPoolSize=0)
    return {}


def delete_warm_pool(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = changeable_group(tx, caller, params["AutoScalingGroupName"])
    if "WarmPoolConfiguration" not in group.settings:
        raise ValidationError(f"No warm pool found for AutoScalingGroup {group.name}.")
    left = {member: value for member, value in group.settings.items() if not member.startswith("WarmPool")}
    tx.store.groups.put(group.but(settings=left))
    return {}


def describe_warm_pool(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = find_group(tx, caller, params["AutoScalingGroupName"])
    _, more = SMALL_PAGES.page(params, lambda after, limit: [])
    if "WarmPoolConfiguration" not in group.settings:
        return {"Instances": [], **more}
    return {"WarmPoolConfiguration": group.settings["WarmPoolConfiguration"], "Instances": [], **more}


# Traffic sources


def _attach(given: str, member: str) -> Handler:
    def attach(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        group, new = changeable_group(tx, caller, params["AutoScalingGroupName"]), params[given]
        if len(new) > SOURCES_MAX:
            raise ValidationError(f"{given} may have at most {SOURCES_MAX} elements: it has {len(new)}.")
        before = group.settings.get(member, [])
        _put_settings(tx, group, **{member: [*before, *(each for each in new if each not in before)]})
        return {}

    return attach


def _detach(given: str, member: str, kind: str) -> Handler:
    """Return the handler that detaches load balancers or target groups by their names. It refuses names that are not attached."""

    def detach(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        group = changeable_group(tx, caller, params["AutoScalingGroupName"])
        before = group.settings.get(member, [])
        if absent := [each for each in params[given] if each not in before]:
            raise ValidationError(f"Trying to remove {kind} that are not part of the group: {', '.join(absent)}")
        _put_settings(tx, group, **{member: [each for each in before if each not in params[given]]})
        return {}

    return detach


def detach_traffic_sources(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = changeable_group(tx, caller, params["AutoScalingGroupName"])
    gone = {each["Identifier"] for each in params["TrafficSources"]}  # their types are optional
    left = [each for each in group.settings.get("TrafficSources", ()) if each["Identifier"] not in gone]
    _put_settings(tx, group, TrafficSources=left)
    return {}


def _describe(member: str, many: str, view: Callable[[Any], dict[str, Any]], pages: Pagination) -> Handler:
    def describe(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        group, kind = find_group(tx, caller, params["AutoScalingGroupName"]), params.get("TrafficSourceType")
        views = [view(each) for each in group.settings.get(member, ())]
        numbered = [(f"{at:05}", each) for at, each in enumerate(views) if kind is None or each.get("Type") == kind]

        def candidates(after: str, limit: int) -> list[tuple[str, dict[str, Any]]]:
            found = [pair for pair in numbered if pair[0] > after]
            return found if limit < 0 else found[:limit]

        found, more = pages.page(params, candidates)
        return {many: found, **more}

    return describe


def _traffic_source(each: dict[str, Any]) -> dict[str, Any]:
    identifier = each["Identifier"]
    guessed = "elbv2" if identifier.startswith("arn:") else "elb"
    kind = each.get("Type") or ("vpc-lattice" if ":vpc-lattice:" in identifier else guessed)
    return {"Identifier": identifier, "TrafficSource": identifier, "Type": kind, "State": "Added"}


# Account and types


def describe_account_limits(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return {
        "MaxNumberOfAutoScalingGroups": GROUPS_MAX,
        "MaxNumberOfLaunchConfigurations": CONFIGURATIONS_MAX,
        "NumberOfAutoScalingGroups": tx.store.groups.count(caller.region),
        "NumberOfLaunchConfigurations": len(tx.store.stored.listed(SERVICE, "launch-configuration", caller.region)),
    }


def _constant(**reply: Any) -> Handler:
    return lambda tx, params, caller: reply


HANDLERS: dict[str, Handler] = {
    "SuspendProcesses": suspend_processes,
    "ResumeProcesses": resume_processes,
    "EnableMetricsCollection": enable_metrics_collection,
    "DisableMetricsCollection": disable_metrics_collection,
    "PutNotificationConfiguration": put_notification_configuration,
    "DeleteNotificationConfiguration": delete_notification_configuration,
    "DescribeNotificationConfigurations": describe_notification_configurations,
    "PutWarmPool": put_warm_pool,
    "DeleteWarmPool": delete_warm_pool,
    "DescribeWarmPool": describe_warm_pool,
    "AttachLoadBalancers": _attach("LoadBalancerNames", "LoadBalancerNames"),
    "DetachLoadBalancers": _detach("LoadBalancerNames", "LoadBalancerNames", "Load Balancers"),
    "DescribeLoadBalancers": _describe(
        "LoadBalancerNames", "LoadBalancers", lambda each: {"LoadBalancerName": each, "State": "Added"}, ACTIVITY_PAGES
    ),
    "AttachLoadBalancerTargetGroups": _attach("TargetGroupARNs", "TargetGroupARNs"),
    "DetachLoadBalancerTargetGroups": _detach("TargetGroupARNs", "TargetGroupARNs", "Target Groups"),
    "DescribeLoadBalancerTargetGroups": _describe(
        "TargetGroupARNs",
        "LoadBalancerTargetGroups",
        lambda each: {"LoadBalancerTargetGroupARN": each, "State": "Added"},
        ACTIVITY_PAGES,
    ),
    "AttachTrafficSources": _attach("TrafficSources", "TrafficSources"),
    "DetachTrafficSources": detach_traffic_sources,
    "DescribeTrafficSources": _describe("TrafficSources", "TrafficSources", _traffic_source, SMALL_PAGES),
    "DescribeAccountLimits": describe_account_limits,
    "DescribeAdjustmentTypes": _constant(AdjustmentTypes=[{"AdjustmentType": each} for each in ADJUSTMENT_TYPES]),
    "DescribeAutoScalingNotificationTypes": _constant(AutoScalingNotificationTypes=list(NOTIFICATION_TYPES)),
    "DescribeLifecycleHookTypes": _constant(LifecycleHookTypes=list(TRANSITIONS)),
    "DescribeMetricCollectionTypes": _constant(
        Metrics=[{"Metric": each} for each in METRICS], Granularities=[{"Granularity": GRANULARITY}]
    ),
    "DescribeScalingProcessTypes": _constant(Processes=[{"ProcessName": each} for each in sorted(PROCESSES)]),
    "DescribeTerminationPolicyTypes": _constant(TerminationPolicyTypes=list(TERMINATION_POLICIES)),
}
