"""Requests of Application Auto Scaling."""

from __future__ import annotations

from typing import Any

from answers.calls import SAME, Calls
from harness import container

TARGET = {"ServiceNamespace": "ecs", "ResourceId": "service/default/answers", "ScalableDimension": "ecs:service:DesiredCount"}
STEPS = {
    "AdjustmentType": "ChangeInCapacity",
    "StepAdjustments": [
        {"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1},
        {"MetricIntervalUpperBound": 0, "ScalingAdjustment": -1},
    ],
    "Cooldown": 60,
    "MetricAggregationType": "Average",
}
CUSTOM = {"MetricName": "m", "Namespace": "n", "Statistic": "Average", "Unit": "Count", "Dimensions": [{"Name": "a", "Value": "b"}]}
TRACKING = {
    "TargetValue": 5.0,
    "ScaleInCooldown": 1,
    "ScaleOutCooldown": 1,
    "DisableScaleIn": True,
    "CustomizedMetricSpecification": CUSTOM,
}


STAT = {"Metric": {"Namespace": "n", "MetricName": "m", "Dimensions": [{"Name": "a", "Value": "b"}]}, "Stat": "Sum"}
QUERIES = [
    {"Id": "m1", "MetricStat": {**STAT, "Unit": "Count"}, "ReturnData": False},
    {"Id": "e1", "Expression": "m1 * 2", "Label": "l", "ReturnData": True},
]
CUSTOM_QUERIES = {"MetricDataQueries": [{**QUERIES[0], "Label": "l"}, QUERIES[1]]}
PREDICTED: list[dict[str, Any]] = [  # the metrics of policies for predictive scaling
    {"PredefinedMetricPairSpecification": {"PredefinedMetricType": "ECSServiceCPUUtilization"}},
    {
        "PredefinedLoadMetricSpecification": {"PredefinedMetricType": "ECSServiceTotalCPUUtilization"},
        "PredefinedScalingMetricSpecification": {"PredefinedMetricType": "ECSServiceAverageCPUUtilization"},
    },
    {f"Customized{name}MetricSpecification": CUSTOM_QUERIES for name in ("Load", "Scaling", "Capacity")},
]


def requests(calls: Calls) -> None:
    ecs = calls.of("ecs")
    ecs.register_task_definition(family="answers", containerDefinitions=[container(["sleep", "60"])])
    ecs.create_service(serviceName="answers", taskDefinition="answers", desiredCount=0)
    limits = {"MinCapacity": 0, "MaxCapacity": 2, "SuspendedState": {"DynamicScalingInSuspended": True}, "Tags": {"a": "b"}}
    arn = calls.twice("RegisterScalableTarget", SAME, **TARGET, **limits)["ScalableTargetARN"]
    calls("DescribeScalableTargets", ServiceNamespace="ecs")
    calls.twice("TagResource", SAME, ResourceARN=arn, Tags={"c": "d"})
    calls("ListTagsForResource", ResourceARN=arn)
    calls.twice("UntagResource", SAME, ResourceARN=arn, TagKeys=["c"])
    step = {"PolicyName": "step", "PolicyType": "StepScaling", "StepScalingPolicyConfiguration": STEPS}
    calls.twice("PutScalingPolicy", SAME, **TARGET, **step)
    tracking = {"PolicyName": "track", "PolicyType": "TargetTrackingScaling"}
    calls("PutScalingPolicy", **TARGET, **tracking, TargetTrackingScalingPolicyConfiguration=TRACKING)
    usual = {"TargetValue": 5.0, "PredefinedMetricSpecification": {"PredefinedMetricType": "ECSServiceAverageCPUUtilization"}}
    calls("PutScalingPolicy", **TARGET, **tracking | {"PolicyName": "cpu"}, TargetTrackingScalingPolicyConfiguration=usual)
    queries = {"TargetValue": 5.0, "CustomizedMetricSpecification": {"Metrics": QUERIES}}
    calls("PutScalingPolicy", **TARGET, **tracking | {"PolicyName": "math"}, TargetTrackingScalingPolicyConfiguration=queries)
    for metrics in PREDICTED:
        stored = {"MetricSpecifications": [{"TargetValue": 5.0, **metrics}], "Mode": "ForecastOnly", "SchedulingBufferTime": 60}
        stored |= {"MaxCapacityBreachBehavior": "IncreaseMaxCapacity", "MaxCapacityBuffer": 5}
        predictive = {"PolicyName": "predict", "PolicyType": "PredictiveScaling", "PredictiveScalingPolicyConfiguration": stored}
        calls("PutScalingPolicy", **TARGET, **predictive)
        calls("DescribeScalingPolicies", ServiceNamespace="ecs")
    percent = STEPS | {"AdjustmentType": "PercentChangeInCapacity", "MinAdjustmentMagnitude": 1}
    calls("PutScalingPolicy", **TARGET, **step | {"PolicyName": "percent", "StepScalingPolicyConfiguration": percent})
    calls("DescribeScalingPolicies", ServiceNamespace="ecs")
    action = {"ScheduledActionName": "a", "Schedule": "rate(1 day)", "ScalableTargetAction": {"MinCapacity": 0, "MaxCapacity": 1}}
    action |= {"StartTime": 4_000_000_000, "EndTime": 4_100_000_000, "Timezone": "Europe/Berlin"}
    calls.twice("PutScheduledAction", SAME, **TARGET, **action)
    calls("DescribeScheduledActions", ServiceNamespace="ecs")
    calls("DescribeScalingActivities", ServiceNamespace="ecs", IncludeNotScaledActivities=True)
    forecast = {"PolicyName": "track", "StartTime": 0, "EndTime": 60}
    calls.twice_refused("GetPredictiveScalingForecast", "ValidationException", **TARGET, **forecast)
    refusals(calls, arn)
    calls.twice("DeleteScheduledAction", "ObjectNotFoundException", **TARGET, ScheduledActionName="a")
    calls.twice("DeleteScalingPolicy", "ObjectNotFoundException", **TARGET, PolicyName="step")
    calls.twice("DeregisterScalableTarget", "ObjectNotFoundException", **TARGET)


def refusals(calls: Calls, arn: str) -> None:
    none = TARGET | {"ResourceId": "service/default/none"}
    calls.all_refused("ObjectNotFoundException", "De*", "Describe*", **none, ScheduledActionName="none", PolicyName="none")
    put = {"PolicyName": "a", "PolicyType": "StepScaling", "StepScalingPolicyConfiguration": STEPS}
    calls.refused("PutScalingPolicy", "ObjectNotFoundException", **none, **put)
    calls.refused("PutScheduledAction", "ObjectNotFoundException", **none, ScheduledActionName="a", Schedule="rate(1 day)")
    calls.all_refused("ResourceNotFoundException", ResourceARN=arn[:-4] + "none")
    calls.all_refused("InvalidNextTokenException", ServiceNamespace="ecs", NextToken="none")
    calls.refused("TagResource", "TooManyTagsException", ResourceARN=arn, Tags={f"k{number}": "" for number in range(51)})
