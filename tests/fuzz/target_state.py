"""Scalable targets with policies and schedules, for mutated requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


async def build_targets(ecs: Callable[..., Awaitable[Any]], call: Callable[..., Awaitable[Any]], knows: Any, mark: str) -> None:
    """A service and its scalable target. `mark` makes the names unique."""
    container = {"name": "a", "image": "corral/host", "memory": 8, "command": ["true"]}
    await ecs("RegisterTaskDefinition", family=f"scaled-{mark}", containerDefinitions=[container])
    await ecs("CreateService", serviceName=f"scaled-{mark}", taskDefinition=f"scaled-{mark}", desiredCount=0)
    resource = f"service/default/scaled-{mark}"
    place = {"ServiceNamespace": "ecs", "ResourceId": resource, "ScalableDimension": "ecs:service:DesiredCount"}
    suspended = {"DynamicScalingInSuspended": True, "DynamicScalingOutSuspended": False}
    made = await call("RegisterScalableTarget", **place, MinCapacity=0, MaxCapacity=1, SuspendedState=suspended, Tags={"a": "b"})
    predefined = {"PredefinedMetricType": "ECSServiceAverageCPUUtilization"}
    tracking = {"PredefinedMetricSpecification": predefined, "TargetValue": 50.0, "ScaleInCooldown": 0, "DisableScaleIn": False}
    metric = {"Namespace": "F", "MetricName": "m", "Dimensions": [{"Name": "d", "Value": "1"}]}
    math = [
        {"Id": "m1", "MetricStat": {"Metric": metric, "Stat": "Average"}, "ReturnData": False},
        {"Id": "e1", "Expression": "m1 / 2"},
    ]
    expression = {"CustomizedMetricSpecification": {"Metrics": math}, "TargetValue": 1.0}
    named = "TargetTrackingScalingPolicyConfiguration"
    await call("PutScalingPolicy", **place, PolicyName="cpu", PolicyType="TargetTrackingScaling", **{named: tracking})
    await call("PutScalingPolicy", **place, PolicyName="math", PolicyType="TargetTrackingScaling", **{named: expression})
    steps = [
        {"MetricIntervalLowerBound": 0.0, "MetricIntervalUpperBound": 5.0, "ScalingAdjustment": 1},
        {"MetricIntervalLowerBound": 5.0, "ScalingAdjustment": 2},
    ]
    configuration = {"AdjustmentType": "PercentChangeInCapacity", "StepAdjustments": steps, "MinAdjustmentMagnitude": 1}
    await call("PutScalingPolicy", **place, PolicyName="steps", PolicyType="StepScaling",
               StepScalingPolicyConfiguration=configuration)  # fmt: skip
    for name, schedule in (("once", "at(2099-01-01T00:00:00)"), ("often", "rate(1 day)"), ("night", "cron(0 20 ? * MON-FRI *)")):
        await call("PutScheduledAction", **place, ScheduledActionName=name, Schedule=schedule, Timezone="Europe/Berlin",
                   ScalableTargetAction={"MinCapacity": 0, "MaxCapacity": 1})  # fmt: skip
    await call("TagResource", ResourceARN=made["ScalableTargetARN"], Tags={"c": "d"})
    for operation in ("DescribeScalableTargets", "DescribeScalingPolicies", "DescribeScheduledActions"):
        await call(operation, ServiceNamespace="ecs")
    await call("DescribeScalingActivities", **place, IncludeNotScaledActivities=True)
    knows(
        "application-autoscaling", ServiceNamespace="ecs", ResourceId=resource, ScalableDimension=place["ScalableDimension"],
        PolicyName=["cpu", "math", "steps"], ScheduledActionName=["once", "often", "night"], ResourceARN=made["ScalableTargetARN"],
        Schedule=["rate(2 hours)", "cron(0 0 29 2 ? 2040)", "at(2030-06-31T00:00:00)"], Timezone=["UTC", "America/New_York"],
    )  # fmt: skip
