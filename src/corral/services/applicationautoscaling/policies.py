"""Scaling policies of ECS services: put, describe and delete them. `rule_of` returns the rule by which a policy sets the capacity.

The reconciler `scaling` (`reconcile/service_scaling.py`) applies policies when alarms request it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.scaling.alarm_scaling import Rule
from corral.decide.scaling.policies import EXACT, PERCENT, Step, adjusted, problem_of_steps, step_for
from corral.decide.scaling.target_tracking import is_scale_in, scaled_in, scaled_out
from corral.model.group import scaling_key
from corral.operations.stored_resources import Params
from corral.services.applicationautoscaling.errors import LimitExceededException, ValidationException, not_found
from corral.services.applicationautoscaling.names import (
    DIMENSION,
    NAMESPACE,
    PAGES,
    POLICY,
    SERVICE,
    documents_of,
    is_listed,
    key_of,
    listed,
    registered,
    resource_of,
    scaling_target,
    shown,
)
from corral.services.cloudwatch import target_tracking
from corral.services.cloudwatch.common import alarm_name
from corral.services.cloudwatch.target_tracking import REQUESTS, PredefinedMetric, Tracked
from corral.store import Store
from corral.store.stored_resources import Document

STEP, TRACKING, PREDICTIVE = "StepScaling", "TargetTrackingScaling", "PredictiveScaling"
STEPS, CONFIGURATION = "StepScalingPolicyConfiguration", "TargetTrackingScalingPolicyConfiguration"
CONFIGURATIONS = {STEP: STEPS, TRACKING: CONFIGURATION, PREDICTIVE: "PredictiveScalingPolicyConfiguration"}
COOLDOWN_S = 300  # AWS's default for ECS services
# MetricAggregationType → how a step scaling policy combines the three values of an alarm's request: of the last period, of the
# newest second, and of the second that breaches most. With Average, the policy does not combine them (`values_of` in
# `decide/scaling/alarm_scaling.py`).
AGGREGATES: dict[str, Callable[[list[float]], float]] = {"Minimum": min, "Maximum": max}
POLICIES_MAX, STEPS_MAX = 50, 20  # the quotas of AWS
PREDEFINED = {
    "ECSServiceAverageCPUUtilization": PredefinedMetric("AWS/ECS", "CPUUtilization"),
    "ECSServiceAverageMemoryUtilization": PredefinedMetric("AWS/ECS", "MemoryUtilization"),
    "ECSServiceAverageCPUUtilizationHighResolution": PredefinedMetric("AWS/ECS", "CPUUtilization", period_s=20),
    "ECSServiceAverageMemoryUtilizationHighResolution": PredefinedMetric("AWS/ECS", "MemoryUtilization", period_s=20),
    REQUESTS: PredefinedMetric("AWS/ApplicationELB", "RequestCountPerTarget", "Sum"),
}


# Operations


def put_scaling_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Create a policy, or change the given members of an existing one."""
    resource, name = registered(tx, caller, params)["ResourceId"], params["PolicyName"]
    before = tx.store.stored.get(SERVICE, POLICY, caller.region, key_of(resource, name))
    if before is None and len(list(documents_of(tx, caller.region, POLICY, resource))) >= POLICIES_MAX:
        raise LimitExceededException(f"A scalable target can have at most {POLICIES_MAX} scaling policies.")
    kind = params.get("PolicyType") or (before["PolicyType"] if before is not None else STEP)
    policy = {
        "PolicyARN": before["PolicyARN"] if before is not None else _arn(tx, caller, resource, name),
        "PolicyName": name,
        "ServiceNamespace": NAMESPACE,
        "ResourceId": resource,
        "ScalableDimension": DIMENSION,
        "CreationTime": before["CreationTime"] if before is not None else tx.now_s,
        **_checked(params, kind, before, tracked(caller.region, resource)),
    }
    if kind == TRACKING:
        policy["_TrackingAlarms"] = target_tracking.put_alarms(tx, tracked(caller.region, resource), policy, before, caller.owner)
    elif before is not None:
        target_tracking.delete_alarms(tx, caller.region, before)
    tx.store.stored.put(SERVICE, POLICY, caller.region, key_of(resource, name), policy, tx.now_s, caller.owner)
    tx.mark(scaling_key(caller.region, scaling_target(resource)))
    return {"PolicyARN": policy["PolicyARN"], "Alarms": target_tracking.alarms_of(policy)}


def _arn(tx: Tx[Store], caller: Caller, resource: str, name: str) -> str:
    prefix = f"arn:aws:autoscaling:{caller.region}:{caller.account}:scalingPolicy:{tx.ids.uuid()}"
    return f"{prefix}:resource/{NAMESPACE}/{resource}:policyName/{name}"


def tracked(region: str, resource: str) -> Tracked:
    """Describe a service for `services/cloudwatch/target_tracking.py`, which creates the alarms of its target tracking policies."""
    _, cluster, name = resource.split("/")
    return Tracked(region, resource, PREDEFINED, {"ClusterName": cluster, "ServiceName": name}, CONFIGURATION, ValidationException)


def _checked(params: Params, kind: str, before: Document | None, tracked: Tracked) -> Document:
    """Check a request. Return the type of the policy and its configuration."""
    member = CONFIGURATIONS[kind]
    for other in CONFIGURATIONS.values():
        if other != member and other in params:
            raise ValidationException(f"{other} is not valid for a policy of the type {kind}.")
    given = params.get(member)
    if given is None:
        if before is None or before["PolicyType"] != kind:
            raise ValidationException(f"{member} is required for a policy of the type {kind}.")
        given = before[member]
    elif kind == STEP:
        given = _checked_steps({**((before or {}).get(STEPS) or {}), **given})
    elif kind == TRACKING:
        target_tracking.check_configuration(tracked, given)
        for cooldown in ("ScaleOutCooldown", "ScaleInCooldown"):
            _check_cooldown(given, cooldown)
    return {"PolicyType": kind, member: given}


def _checked_steps(configuration: Document) -> Document:
    for member in ("AdjustmentType", "StepAdjustments"):
        if not configuration.get(member):
            raise ValidationException(f"{member} is required in a {STEPS}.")
    if len(configuration["StepAdjustments"]) > STEPS_MAX:
        raise LimitExceededException(f"A step scaling policy can have at most {STEPS_MAX} step adjustments.")
    if "MinAdjustmentMagnitude" in configuration and configuration["AdjustmentType"] != PERCENT:
        raise ValidationException(f"MinAdjustmentMagnitude is valid only with the AdjustmentType {PERCENT}.")
    if problem := problem_of_steps(_steps(configuration)):
        raise ValidationException(problem)
    _check_cooldown(configuration, "Cooldown")
    return configuration


def _check_cooldown(configuration: Document, member: str) -> None:
    if configuration.get(member, 0) < 0:
        raise ValidationException(f"{member} must not be negative: {configuration[member]} is not valid.")


def describe_scaling_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if not is_listed(params):
        return {"ScalingPolicies": []}
    names, resource = params.get("PolicyNames"), resource_of(params) if "ResourceId" in params else None

    def chosen(policy: Document) -> bool:
        return (resource is None or policy["ResourceId"] == resource) and (not names or policy["PolicyName"] in names)

    found, more = PAGES.page(params, listed(tx, caller, POLICY, chosen))
    return {"ScalingPolicies": [_view(tx, policy) for policy in found], **more}


def _view(tx: Tx[Store], policy: Document) -> Document:
    """Return a policy as responses show it, with the alarms whose actions name it."""
    arns = tx.store.scaling.alarms_of(policy["PolicyARN"])
    return {**shown(policy), "Alarms": [{"AlarmName": alarm_name(arn), "AlarmARN": arn} for arn in arns]}


def delete_scaling_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    resource, name = resource_of(params), params["PolicyName"]
    policy = tx.store.stored.get(SERVICE, POLICY, caller.region, key_of(resource, name))
    if policy is None:
        raise not_found("scaling policy found", resource, DIMENSION, f"policy name: {name}")
    tx.store.stored.drop(SERVICE, POLICY, caller.region, key_of(resource, name))
    target_tracking.delete_alarms(tx, caller.region, policy)
    tx.mark(scaling_key(caller.region, scaling_target(resource)))
    return {}


def get_predictive_scaling_forecast(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    raise ValidationException(
        "Corral does not serve GetPredictiveScalingForecast: predictive scaling policies are stored, and make no forecasts."
    )


# What a policy wants


def rule_of(policy: Document, threshold: float) -> Rule:
    """Return the rule by which a policy computes the desired count, for an alarm with this threshold."""
    if policy["PolicyType"] == TRACKING:
        target = policy[CONFIGURATION]["TargetValue"]
        scaled: Callable[[int, float, float], int | None] = scaled_in if is_scale_in(threshold, target) else scaled_out
        return Rule(lambda capacity, value: None if value is None else scaled(capacity, value, target), tracking=True)
    configuration = policy[STEPS]
    adjustment, magnitude = configuration["AdjustmentType"], configuration.get("MinAdjustmentMagnitude", 0)

    def stepped(capacity: int, value: float | None) -> int | None:
        step = step_for(_steps(configuration), value - threshold) if value is not None else None
        return adjusted(capacity, adjustment, step.adjustment, magnitude) if step is not None else None

    return Rule(stepped, exact=adjustment == EXACT, aggregate=AGGREGATES.get(configuration.get("MetricAggregationType", "Average")))


def cooldown_s(policy: Document, *, out: bool) -> float:
    """Return how long the cooldown after a scale-out or a scale-in of this policy lasts."""
    if policy["PolicyType"] == TRACKING:
        return float(policy[CONFIGURATION].get("ScaleOutCooldown" if out else "ScaleInCooldown", COOLDOWN_S))
    return float(policy[STEPS].get("Cooldown", COOLDOWN_S))


def _steps(configuration: Document) -> list[Step]:
    return [
        Step(each["ScalingAdjustment"], each.get("MetricIntervalLowerBound"), each.get("MetricIntervalUpperBound"))
        for each in configuration["StepAdjustments"]
    ]
