"""Requests of CloudWatch."""

from __future__ import annotations

import json
import time

from answers.calls import SAME, Calls

METRIC = {"Namespace": "answers", "MetricName": "m"}
USUAL = {"EvaluationPeriods": 1, "Threshold": 1.0, "ComparisonOperator": "GreaterThanThreshold"}
BODY = {"widgets": [{"type": "text", "x": 0, "y": 0, "width": 3, "height": 3, "properties": {"markdown": "a"}}]}


def requests(calls: Calls) -> None:
    calls.twice("PutMetricData", SAME, Namespace="answers", MetricData=[{"MetricName": "m", "Value": 1.0}])
    actions = {name: [calls.arn("a", service="sns")] for name in ("AlarmActions", "OKActions", "InsufficientDataActions")}
    more = {"AlarmDescription": "a", "TreatMissingData": "ignore", "DatapointsToAlarm": 1, "Unit": "Count", "ActionsEnabled": True}
    calls.twice("PutMetricAlarm", SAME, AlarmName="a", Period=60, Statistic="Sum", **METRIC, **USUAL, **actions, **more)
    extended = {
        "ExtendedStatistic": "p99",
        "EvaluateLowSampleCountPercentile": "ignore",
        "Dimensions": [{"Name": "a", "Value": "b"}],
    }
    calls("PutMetricAlarm", AlarmName="p", Period=60, **extended, **METRIC, **USUAL)
    stat = {"Metric": METRIC, "Period": 60, "Stat": "Sum", "Unit": "Count"}
    queries = [
        {"Id": "m1", "MetricStat": stat, "ReturnData": False},
        {"Id": "e1", "Expression": "m1 * 2", "Label": "l", "Period": 60},
    ]
    calls("PutMetricAlarm", AlarmName="q", Metrics=queries, **USUAL)
    # These periods do not end before the last read, because an alarm changes at the end of such a period.
    warm_up = {"WarmUpPeriodDurationInMinutes": 60, "OnlyStartEvaluatingAfterWarmUpPeriodEnds": True}
    timed = {"EvaluationWindow": {"WallClockWindow": {"Timezone": "UTC"}}, "WarmUpConfiguration": warm_up}
    tagged = {"ActionConfiguration": {"AlarmTagsPropagation": {"Enabled": True, "IncludedTagKeys": ["a"]}}}
    untagged = {"ActionConfiguration": {"AlarmTagsPropagation": {"Enabled": True, "ExcludedTagKeys": ["a"]}}}
    calls("PutMetricAlarm", AlarmName="w", Period=60, Statistic="Sum", **METRIC, **USUAL, **timed, **untagged)
    suppressor = {**tagged, "ActionsSuppressor": "a", "ActionsSuppressorWaitPeriod": 3600, "ActionsSuppressorExtensionPeriod": 1}
    calls.twice("PutCompositeAlarm", SAME, AlarmName="c", AlarmRule="ALARM(a)", **suppressor, AlarmDescription="a", **actions)
    calls.twice("SetAlarmState", SAME, AlarmName="a", StateValue="OK", StateReason="r", StateReasonData="{}")
    calls("DescribeAlarms", AlarmTypes=["MetricAlarm", "CompositeAlarm"])
    calls("DescribeAlarmsForMetric", **METRIC)
    calls("DescribeAlarmHistory", AlarmName="a")
    calls.twice("DisableAlarmActions", SAME, AlarmNames=["a"])
    calls.twice("EnableAlarmActions", SAME, AlarmNames=["a"])
    resource = {"ResourceARN": calls.arn("alarm:a")}
    calls.twice("TagResource", SAME, **resource, Tags=[{"Key": "a", "Value": "b"}])
    calls("ListTagsForResource", **resource)
    calls.twice("UntagResource", SAME, **resource, TagKeys=["a"])
    calls.twice("PutDashboard", SAME, DashboardName="d", DashboardBody=json.dumps(BODY))
    calls("PutDashboard", DashboardName="e", DashboardBody=json.dumps({**BODY, "unknown": 1}))
    calls("PutDashboard", DashboardName="f", DashboardBody="{}")
    calls("GetDashboard", DashboardName="d")
    calls("ListDashboards")
    calls("ListMetrics", Namespace="answers")
    now = time.time()
    window = {"StartTime": now - 600, "EndTime": now + 60}
    calls("GetMetricStatistics", **METRIC, **window, Period=60, Statistics=["Sum", "Average", "Minimum", "Maximum", "SampleCount"])
    calls("GetMetricStatistics", **METRIC, **window, Period=60, ExtendedStatistics=["p50"])
    calls("GetMetricData", MetricDataQueries=queries, **window)
    refusals(calls, window)
    calls.twice("DeleteDashboards", "ResourceNotFound", DashboardNames=["d"])
    calls.twice("DeleteAlarms", SAME, AlarmNames=["c"])


def refusals(calls: Calls, window: dict[str, float]) -> None:
    none = calls.arn("alarm:none")
    calls.all_refused("ResourceNotFoundException", ResourceARN=none)
    calls.refused("SetAlarmState", "ResourceNotFound", AlarmName="none", StateValue="OK", StateReason="r")
    calls.refused("SetAlarmState", "InvalidFormatFault", AlarmName="a", StateValue="OK", StateReason="r", StateReasonData="{")
    calls.refused("GetDashboard", "DashboardNotFoundError", DashboardName="none")
    calls.refused("PutDashboard", "DashboardInvalidInputError", DashboardName="d", DashboardBody="{")
    calls.all_refused("InvalidNextToken", "Describe*", NextToken="none")
    query = [{"Id": "m1", "MetricStat": {"Metric": METRIC, "Period": 60, "Stat": "Sum"}}]
    calls.refused("GetMetricData", "InvalidNextToken", MetricDataQueries=query, NextToken="none", **window)
    long = {"Period": 60, "StartTime": 0, "EndTime": 1_000_000}
    calls.refused("GetMetricStatistics", "InvalidParameterCombinationException", **METRIC, **long, Statistics=["Sum"])
    calls.refused(
        "GetMetricStatistics",
        "MissingRequiredParameterException",
        Namespace="a",
        MetricName="m",
        Period=60,
        StartTime=0,
        EndTime=60,
    )
    datum = {"MetricName": "m", "Value": 1.0, "StatisticValues": {"SampleCount": 1, "Sum": 1, "Minimum": 1, "Maximum": 1}}
    calls.refused("PutMetricData", "InvalidParameterCombinationException", Namespace="a", MetricData=[datum])
    calls.refused("PutMetricData", "MissingRequiredParameterException", Namespace="a", MetricData=[{"MetricName": "m"}])
