"""Operations on scaling policies: put, describe, delete, execute. `rule_of` returns the rule by which a policy sets the capacity.

The reconciler `scaling` (`reconcile/scaling.py`) applies policies when alarms request it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.scaling.alarm_scaling import Rule
from corral.decide.scaling.policies import ADJUSTMENT_TYPES, EXACT, PERCENT, Step, adjusted, problem_of_steps, step_for
from corral.decide.scaling.target_tracking import is_scale_in, scaled_in, scaled_out
from corral.model.group import Group, scaling_key
from corral.operations.stored_resources import Params
from corral.services.autoscaling import group_changes
from corral.services.autoscaling.errors import ValidationError
from corral.services.autoscaling.names import (
    PAGES,
    POLICY,
    SERVICE,
    changeable_group,
    document_of,
    drop_document,
    find_group,
    put_document,
)
from corral.services.cloudwatch import target_tracking
from corral.services.cloudwatch.common import alarm_name
from corral.services.cloudwatch.target_tracking import REQUESTS, PredefinedMetric, Tracked
from corral.store import Store
from corral.store.stored_resources import Document

SIMPLE, STEP, TRACKING, PREDICTIVE = "SimpleScaling", "StepScaling", "TargetTrackingScaling", "PredictiveScaling"
TYPES = (SIMPLE, STEP, TRACKING, PREDICTIVE)
AGGREGATIONS = ("Minimum", "Maximum", "Average")
NAMES_MAX = 50
MEMBERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # policy type → its required and its optional members
    SIMPLE: (("AdjustmentType", "ScalingAdjustment"), ("Cooldown", "MinAdjustmentMagnitude", "MinAdjustmentStep")),
    STEP: (("AdjustmentType", "StepAdjustments"), ("MetricAggregationType", "EstimatedInstanceWarmup", "MinAdjustmentMagnitude")),
    TRACKING: (("TargetTrackingConfiguration",), ("EstimatedInstanceWarmup",)),
    PREDICTIVE: (("PredictiveScalingConfiguration",), ()),
}
PREDEFINED = {
    "ASGAverageCPUUtilization": PredefinedMetric("AWS/EC2", "CPUUtilization"),
    "ASGAverageNetworkIn": PredefinedMetric("AWS/EC2", "NetworkIn"),
    "ASGAverageNetworkOut": PredefinedMetric("AWS/EC2", "NetworkOut"),
    REQUESTS: PredefinedMetric("AWS/ApplicationELB", "RequestCountPerTarget", "Sum"),
}
CONFIGURATION = "TargetTrackingConfiguration"
ALL_MEMBERS = {member for required, optional in MEMBERS.values() for member in (*required, *optional)}


class Breach(Struct, frozen=True):
    """Why a policy is applied, the value of the metric, and the threshold of the alarm."""

    cause: str  # "a monitor alarm cpu-high in state ALARM triggered policy out"
    value: float | None = None
    threshold: float | None = None


# Operations


def put_scaling_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, name = changeable_group(tx, caller, params["AutoScalingGroupName"]), params["PolicyName"]
    if ":" in name:
        raise ValidationError(f"The policy name {name} is not valid: it must not contain a colon.")
    before = document_of(tx, group.region, POLICY, group.name, name)
    policy = {
        "AutoScalingGroupName": group.name,
        "PolicyName": name,
        "PolicyARN": before["PolicyARN"] if before is not None else _arn(tx, group, name),
        "Enabled": params.get("Enabled", True),
        **_checked(params, group),
    }
    if policy["PolicyType"] == TRACKING:
        policy["_TrackingAlarms"] = target_tracking.put_alarms(tx, tracked(group), policy, before, caller.owner)
    elif before is not None:
        target_tracking.delete_alarms(tx, group.region, before)
    put_document(tx, group.region, POLICY, group.name, name, policy)
    tx.mark(scaling_key(group.region, group.name))
    return {"PolicyARN": policy["PolicyARN"], "Alarms": target_tracking.alarms_of(policy)}


def tracked(group: Group) -> Tracked:
    """Describe a group for `services/cloudwatch/target_tracking.py`, which creates the alarms of its target tracking policies."""
    return Tracked(group.region, group.name, PREDEFINED, {"AutoScalingGroupName": group.name}, CONFIGURATION, ValidationError)


def _arn(tx: Tx[Store], group: Group, name: str) -> str:
    policy_id = tx.ids.uuid()
    prefix = f"arn:aws:autoscaling:{group.region}:{tx.settings.account}:scalingPolicy:{policy_id}"
    return f"{prefix}:autoScalingGroupName/{group.name}:policyName/{name}"


def _checked(params: Params, group: Group) -> Document:
    """Check a request. Return the members that a policy of this type has."""
    kind = params.get("PolicyType", SIMPLE)
    if kind not in TYPES:
        raise ValidationError(f"PolicyType must be one of {', '.join(TYPES)}: {kind} is not valid.")
    required, optional = MEMBERS[kind]
    for member in required:
        if params.get(member) in (None, []):
            raise ValidationError(f"{member} is required for a policy of the type {kind}.")
    for member in sorted(ALL_MEMBERS & params.keys() - {*required, *optional}):
        raise ValidationError(f"{member} is not valid for a policy of the type {kind}.")
    found = {member: params[member] for member in (*required, *optional) if member in params}
    adjustment = params.get("AdjustmentType")
    if kind in (SIMPLE, STEP) and adjustment not in ADJUSTMENT_TYPES:
        raise ValidationError(f"AdjustmentType must be one of {', '.join(ADJUSTMENT_TYPES)}: {adjustment} is not valid.")
    if "MinAdjustmentMagnitude" in found and adjustment != PERCENT:
        raise ValidationError(f"MinAdjustmentMagnitude is valid only with the AdjustmentType {PERCENT}.")
    if kind == STEP:
        if params.get("MetricAggregationType", "Average") not in AGGREGATIONS:
            raise ValidationError(f"MetricAggregationType must be one of {', '.join(AGGREGATIONS)}.")
        if problem := problem_of_steps(_steps(found)):
            raise ValidationError(problem)
        found.setdefault("MetricAggregationType", "Average")
    if kind == TRACKING:
        target_tracking.check_configuration(tracked(group), params[CONFIGURATION])
    return {"PolicyType": kind, **found}


def describe_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe scaling policies. Names that do not exist are ignored."""
    names, kinds, group = params.get("PolicyNames"), params.get("PolicyTypes"), params.get("AutoScalingGroupName")
    if names and len(names) > NAMES_MAX:
        raise ValidationError(f"The number of policy names that may be passed in is limited to {NAMES_MAX}")
    if group is not None:
        group = find_group(tx, caller, group).name

    def candidates(after: str, limit: int) -> list[tuple[str, Document]]:
        rows = tx.store.stored.listed(SERVICE, POLICY, caller.region, after)
        found = [
            (key, policy)
            for key, policy in rows
            if (group is None or policy["AutoScalingGroupName"] == group)
            and (not names or policy["PolicyName"] in names or policy["PolicyARN"] in names)
            and (not kinds or policy["PolicyType"] in kinds)
        ]
        return found if limit < 0 else found[:limit]

    found, more = PAGES.page(params, candidates)
    return {"ScalingPolicies": [_view(tx, policy) for policy in found], **more}


def _view(tx: Tx[Store], policy: Document) -> Document:
    """Return a policy as responses show it, with the alarms whose actions name the policy."""
    shown = {member: value for member, value in policy.items() if member[0] != "_"}
    arns = tx.store.scaling.alarms_of(policy["PolicyARN"])
    return {**shown, "Alarms": [{"AlarmName": alarm_name(arn), "AlarmARN": arn} for arn in arns]}


def delete_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, policy = _find(tx, params, caller)
    drop_document(tx, group.region, POLICY, group.name, policy["PolicyName"])
    target_tracking.delete_alarms(tx, group.region, policy)
    tx.mark(scaling_key(group.region, group.name))
    return {}


def execute_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, policy = _find(tx, params, caller)
    kind, given = policy["PolicyType"], [member for member in ("MetricValue", "BreachThreshold") if member in params]
    if kind not in (SIMPLE, STEP):
        raise ValidationError(f"Policies of the type {kind} cannot be executed by a request: only {SIMPLE} and {STEP} can.")
    if kind == STEP and len(given) != 2:
        raise ValidationError("MetricValue and BreachThreshold are required to execute a policy of the type StepScaling.")
    if kind == SIMPLE and given:
        raise ValidationError(f"{given[0]} is not valid for a policy of the type SimpleScaling.")
    if params.get("HonorCooldown"):
        if kind != SIMPLE:
            raise ValidationError("HonorCooldown is valid only for a policy of the type SimpleScaling.")
        group_changes.check_cooldown(tx, group)
    breach = Breach(
        f"a user request executed policy {policy['PolicyName']}", params.get("MetricValue"), params.get("BreachThreshold")
    )
    if not apply_policy(tx, group, policy, breach):
        raise ValidationError(
            f"The policy {policy['PolicyName']} has no step adjustment for the metric value {breach.value} and the breach "
            f"threshold {breach.threshold}."
        )
    return {}


def _find(tx: Tx[Store], params: Params, caller: Caller) -> tuple[Group, Document]:
    """Find the policy that a request names by ARN, or by policy name and group name."""
    given = params["PolicyName"]
    if given.startswith("arn:"):
        parts = given.partition(":autoScalingGroupName/")[2]
        name, _, policy_name = parts.partition(":policyName/")
    else:
        name, policy_name = params.get("AutoScalingGroupName", ""), given
        if not name:
            raise ValidationError("AutoScalingGroupName is required if PolicyName is not an ARN.")
    group = find_group(tx, caller, name)
    policy = document_of(tx, caller.region, POLICY, group.name, policy_name)
    if policy is None or (given.startswith("arn:") and policy["PolicyARN"] != given):
        raise ValidationError(f"PolicyName not found: {given}.")
    return group, policy


# Application


def apply_policy(tx: Tx[Store], group: Group, policy: Document, breach: Breach) -> bool:
    """Set the desired capacity that a policy wants. Return False if no step of the policy applies."""
    wanted = wanted_capacity(policy, group.desired, breach)
    if wanted is None:
        return False
    desired = group_changes.within_limits(group, wanted)
    cooldown = policy.get("Cooldown") if policy["PolicyType"] == SIMPLE else None
    if desired != group.desired:
        group_changes.set_desired(tx, group, desired, breach.cause, cooldown_s=cooldown)
    return True


def rule_of(policy: Document, threshold: float) -> Rule:
    """Return the rule by which a policy computes the capacity, for an alarm with this threshold."""

    def wanted(capacity: int, value: float | None) -> int | None:
        return wanted_capacity(policy, capacity, Breach("", value, threshold))

    kind = policy["PolicyType"]
    exact = kind == STEP and policy["AdjustmentType"] == EXACT
    return Rule(wanted, exact=exact, simple=kind == SIMPLE, tracking=kind == TRACKING)


def warmup_s(group: Group, policy: Document) -> float:
    """Return how long a new instance warms up: the policy's time, else the group's default warm-up or default cooldown."""
    for given in (policy.get("EstimatedInstanceWarmup"), group.settings.get("DefaultInstanceWarmup")):
        if given is not None and given >= 0:
            return float(given)
    return float(group.settings.get("DefaultCooldown", group_changes.COOLDOWN_S))


def wanted_capacity(policy: Document, capacity: int, breach: Breach) -> int | None:
    """Return the capacity that a policy wants, not yet limited by the group's sizes. Return None if no step applies."""
    kind: str = policy["PolicyType"]
    magnitude: int = policy.get("MinAdjustmentMagnitude") or policy.get("MinAdjustmentStep") or 0
    if kind == SIMPLE:
        return adjusted(capacity, policy["AdjustmentType"], policy["ScalingAdjustment"], magnitude)
    if breach.value is None:
        return None
    if kind == STEP:
        if breach.threshold is None:
            return None
        step = step_for(_steps(policy), breach.value - breach.threshold)
        return adjusted(capacity, policy["AdjustmentType"], step.adjustment, magnitude) if step is not None else None
    if kind == TRACKING and breach.threshold is not None:
        target = policy[CONFIGURATION]["TargetValue"]
        return (scaled_in if is_scale_in(breach.threshold, target) else scaled_out)(capacity, breach.value, target)
    return None


def _steps(policy: Document) -> list[Step]:
    return [
        Step(each["ScalingAdjustment"], each.get("MetricIntervalLowerBound"), each.get("MetricIntervalUpperBound"))
        for each in policy["StepAdjustments"]
    ]
