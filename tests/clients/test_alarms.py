"""Alarms, metrics in log events, and the metrics that Corral publishes itself, through real clients."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from botocore.exceptions import ClientError

from command import BUSY
from harness import Corral, container, eventually, wait_stopped

TOPIC = "arn:aws:sns:us-east-1:123456789012:page"


@pytest.fixture(scope="module")
def cloudwatch(corral: Corral) -> Any:
    return corral.client("cloudwatch")


def config(name: str, **more: Any) -> dict[str, Any]:
    """Parameters of PutMetricAlarm without the members that are None."""
    settings = {
        "AlarmName": name,
        "Namespace": "Demo",
        "MetricName": name,
        "Statistic": "Maximum",
        "Period": 60,
        "EvaluationPeriods": 1,
        "Threshold": 5.0,
        "ComparisonOperator": "GreaterThanThreshold",
        **more,
    }
    return {member: value for member, value in settings.items() if value is not None}


def without(settings: dict[str, Any], *members: str) -> dict[str, Any]:
    return {member: value for member, value in settings.items() if member not in members}


def state(cloudwatch: Any, name: str, kind: str = "MetricAlarm") -> dict[str, Any]:
    found = cloudwatch.describe_alarms(AlarmNames=[name], AlarmTypes=[kind])
    [alarm] = found[f"{kind}s"]
    return alarm


def until(cloudwatch: Any, name: str, value: str) -> dict[str, Any]:
    return eventually(lambda: (alarm := state(cloudwatch, name))["StateValue"] == value and alarm, f"{name} is {value}")


def acted(cloudwatch: Any, name: str) -> list[dict[str, Any]]:
    """The history of an alarm, once it contains the result of an action."""

    def history() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cloudwatch.describe_alarm_history(AlarmName=name)["AlarmHistoryItems"]
        return found if found[0]["HistoryItemType"] == "Action" else []

    return eventually(history, f"{name} has acted")


def test_a_message_to_a_topic(corral: Corral, cloudwatch: Any) -> None:
    sns, sqs, queue = corral.client("sns"), corral.client("sqs"), "arn:aws:sqs:us-east-1:123456789012:paged"
    topic, url = sns.create_topic(Name="pages")["TopicArn"], sqs.create_queue(QueueName="paged")["QueueUrl"]
    statement = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": queue}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]})})
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)
    dimensions = [{"Name": "Rack", "Value": "7"}]
    cloudwatch.put_metric_alarm(**config("heat", AlarmDescription="too hot", AlarmActions=[topic], Dimensions=dimensions))
    cloudwatch.put_metric_data(Namespace="Demo", MetricData=[{"MetricName": "heat", "Value": 9, "Dimensions": dimensions}])
    [received] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
    envelope = json.loads(received["Body"])
    assert (envelope["TopicArn"], envelope["Subject"]) == (topic, 'ALARM: "heat" in US East (N. Virginia)')
    message, alarm = json.loads(envelope["Message"]), state(cloudwatch, "heat")
    for changing in ("StateChangeTime", "AlarmConfigurationUpdatedTimestamp"):
        assert message.pop(changing).endswith("+0000")
    assert message == {
        "AlarmName": "heat",
        "AlarmDescription": "too hot",
        "AWSAccountId": "123456789012",
        "NewStateValue": "ALARM",
        "NewStateReason": alarm["StateReason"],
        "Region": "US East (N. Virginia)",
        "AlarmArn": alarm["AlarmArn"],
        "OldStateValue": "INSUFFICIENT_DATA",
        "OKActions": [],
        "AlarmActions": [topic],
        "InsufficientDataActions": [],
        "Trigger": {
            "MetricName": "heat",
            "Namespace": "Demo",
            "Dimensions": [{"value": "7", "name": "Rack"}],
            "StatisticType": "Statistic",
            "Statistic": "MAXIMUM",
            "Unit": None,
            "Period": 60,
            "EvaluationPeriods": 1,
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": 5.0,
            "TreatMissingData": "missing",
            "EvaluateLowSampleCountPercentile": "",
        },
    }
    assert acted(cloudwatch, "heat")[0]["HistorySummary"] == f"Successfully executed action {topic}"


def test_a_topic_whose_policy_does_not_allow_alarms(corral: Corral, cloudwatch: Any) -> None:
    sns = corral.client("sns")
    topic = sns.create_topic(Name="closed")["TopicArn"]
    statement = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "sns:Publish", "Resource": topic}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    sns.set_topic_attributes(TopicArn=topic, AttributeName="Policy", AttributeValue=policy)
    total = {
        "Id": "t",
        "Label": "l",
        "MetricStat": {"Metric": {"Namespace": "Demo", "MetricName": "mute"}, "Period": 60, "Stat": "Sum"},
    }
    metric = without(config("mute", AlarmActions=[topic], Metrics=[total]), "Namespace", "MetricName", "Statistic", "Period")
    cloudwatch.put_metric_alarm(**metric)
    cloudwatch.put_metric_data(Namespace="Demo", MetricData=[{"MetricName": "mute", "Value": 9}])
    assert "does not allow cloudwatch.amazonaws.com to publish" in acted(cloudwatch, "mute")[0]["HistorySummary"]


def test_a_datapoint_sets_off_an_alarm(cloudwatch: Any) -> None:
    cloudwatch.put_metric_alarm(**config("load", AlarmDescription="too much", AlarmActions=[TOPIC], DatapointsToAlarm=1))
    alarm = state(cloudwatch, "load")
    assert (alarm["StateValue"], alarm["StateReason"]) == ("INSUFFICIENT_DATA", "Unchecked: Initial alarm creation")
    assert alarm["AlarmArn"] == "arn:aws:cloudwatch:us-east-1:123456789012:alarm:load"
    assert (alarm["AlarmDescription"], alarm["Dimensions"], alarm["OKActions"]) == ("too much", [], [])
    cloudwatch.put_metric_data(Namespace="Demo", MetricData=[{"MetricName": "load", "Value": 9}])
    alarm = state(cloudwatch, "load")
    assert alarm["StateValue"] == "ALARM"
    assert alarm["StateReason"].startswith("Threshold Crossed: 1 out of the last 1 datapoints [9.0 (")
    assert "was greater than the threshold (5.0) (minimum 1 datapoint for OK -> ALARM transition)." in alarm["StateReason"]
    assert json.loads(alarm["StateReasonData"])["recentDatapoints"] == [9.0]
    assert alarm["StateTransitionedTimestamp"] > alarm["AlarmConfigurationUpdatedTimestamp"]
    history = acted(cloudwatch, "load")
    assert [item["HistoryItemType"] for item in history] == ["Action", "StateUpdate", "ConfigurationUpdate"]
    assert history[0]["HistorySummary"] == f"Failed to execute action {TOPIC}. Reason: Topic does not exist"
    assert history[1]["HistorySummary"] == "Alarm updated from INSUFFICIENT_DATA to ALARM"
    assert json.loads(history[1]["HistoryData"])["newState"]["stateValue"] == "ALARM"
    [update] = cloudwatch.describe_alarm_history(AlarmName="load", HistoryItemType="StateUpdate", StartDate=time.time() - 60,
                                                 EndDate=time.time() + 60)["AlarmHistoryItems"]  # fmt: skip
    assert update["AlarmType"] == "MetricAlarm"
    assert cloudwatch.describe_alarm_history(AlarmName="load", EndDate=time.time() - 60)["AlarmHistoryItems"] == []


def test_the_aws_command(aws: Callable[..., Any]) -> None:
    aws("cloudwatch", "put-metric-alarm", "--alarm-name", "by-aws", "--namespace", "Demo", "--metric-name", "by-aws", "--statistic",
        "Sum", "--period", "60", "--evaluation-periods", "2", "--threshold", "1", "--comparison-operator",
        "GreaterThanOrEqualToThreshold", "--dimensions", "Name=Host,Value=h")  # fmt: skip
    [alarm] = aws("cloudwatch", "describe-alarms", "--alarm-name-prefix", "by-a")["MetricAlarms"]
    assert (alarm["AlarmName"], alarm["Dimensions"], alarm["Threshold"]) == ("by-aws", [{"Name": "Host", "Value": "h"}], 1.0)
    aws("cloudwatch", "set-alarm-state", "--alarm-name", "by-aws", "--state-value", "ALARM", "--state-reason", "for a test")
    history = aws("cloudwatch", "describe-alarm-history", "--alarm-name", "by-aws", "--history-item-type", "StateUpdate")
    assert [item["HistorySummary"] for item in history["AlarmHistoryItems"]] == ["Alarm updated from INSUFFICIENT_DATA to ALARM"]


@pytest.mark.parametrize(
    ("params", "code", "message"),
    [
        (config("w", Period=7), "ValidationError", "Period must be 10, 20, 30 or a multiple of 60."),
        (config("w", Statistic=None), "MissingParameter", "Statistic or ExtendedStatistic"),
        (config("w", ExtendedStatistic="p9"), "InvalidParameterCombination", "mutually exclusive"),
        (config("w", Statistic=None, ExtendedStatistic="p101"), "ValidationError", "p101"),
        (config("w", Namespace=None), "MissingParameter", "The parameter Namespace is required."),
        (config("w", Threshold=None), "MissingParameter", "The parameter Threshold is required."),
        (config("w", DatapointsToAlarm=2), "ValidationError", "DatapointsToAlarm"),
        (config("w", EvaluationPeriods=2000), "ValidationError", "Metrics cannot be checked across more than a day"),
        (config("w", Period=86_400, EvaluationPeriods=8), "ValidationError", "Metrics cannot be checked across more than a week"),
        (config("w", TreatMissingData="bad"), "ValidationError", "bad"),
        (config("w", EvaluateLowSampleCountPercentile="bad"), "ValidationError", "bad"),
        (config("w", ComparisonOperator="GreaterThanUpperThreshold"), "ValidationError", "anomaly detection"),
        (config("w", AlarmActions=["page me"]), "ValidationError", "Invalid arn syntax: page me"),
        (config("w", AlarmActions=[f"{TOPIC}{at}" for at in range(6)]), "ValidationError", "less than or equal to 5"),
        (config("w", Unit="Miles"), "ValidationError", "Miles"),
        (config("w", Dimensions=[{"Name": "a", "Value": "b"}] * 2), "InvalidParameterValue", "dimension"),
        (config("w", Metrics=[{"Id": "a", "Expression": "1"}]), "InvalidParameterCombination", "MetricName and Metrics"),
        (config("w", Tags=[{"Key": "aws:x", "Value": ""}]), "InvalidParameterValue", "aws:"),
        ({"AlarmName": "w"}, "MissingParameter", "MetricName or Metrics"),
    ],
)  # fmt: skip
def test_invalid_metric_alarms_are_refused(cloudwatch: Any, params: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(ClientError) as refused:
        cloudwatch.put_metric_alarm(**params)
    assert refused.value.response["Error"]["Code"] == code
    assert message in refused.value.response["Error"]["Message"]
    assert cloudwatch.describe_alarms(AlarmNames=["w"])["MetricAlarms"] == []


def query(id: str, **more: Any) -> dict[str, Any]:
    metric = {"Namespace": "Demo", "MetricName": id}
    return {"Id": id, "ReturnData": False, "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum", **more}}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ([query("a"), query("b")], "Exactly one element"),
        ([query("a"), {"Id": "e", "Expression": "a +"}], "Error in expression 'e'"),
        ([query("a"), {"Id": "e", "Expression": "unknown * 2"}], "unknown"),
        ([query("a"), {"Id": "e", "Expression": "METRICS()"}, query("b")], "one time series"),
        ([query("a"), query("b", Period=120), {"Id": "e", "Expression": "a + b"}], "consistent"),
        ([{"Id": "e", "Expression": "TIME_SERIES(1)"}], "must have a MetricStat"),
        ([query("a"), {"Id": "e", "Expression": "SUM(SEARCH('{Demo}', 'Sum', 60))"}], "SEARCH"),
    ],
)
def test_invalid_expressions_are_refused(cloudwatch: Any, metrics: list[dict[str, Any]], message: str) -> None:
    one_metric = ("Namespace", "MetricName", "Statistic", "Period")
    with pytest.raises(ClientError, match="ValidationError") as refused:
        cloudwatch.put_metric_alarm(**without(config("wrong"), *one_metric), Metrics=metrics)
    assert message in str(refused.value)


def test_describe_alarms_filters_and_pages(cloudwatch: Any) -> None:
    for at in range(4):
        cloudwatch.put_metric_alarm(**config(f"list-{at}", AlarmActions=[f"{TOPIC}-{at % 2}"]))
    cloudwatch.set_alarm_state(AlarmName="list-3", StateValue="OK", StateReason="for a test")
    cloudwatch.put_composite_alarm(AlarmName="list-all", AlarmRule='ALARM("list-0") OR ALARM(list-1)', ActionsSuppressor="list-2",
                                   ActionsSuppressorWaitPeriod=5, ActionsSuppressorExtensionPeriod=5)  # fmt: skip

    def names(**params: Any) -> list[str]:
        found = cloudwatch.describe_alarms(**params)
        return [alarm["AlarmName"] for alarm in found["MetricAlarms"] + found["CompositeAlarms"]]

    assert names(AlarmNamePrefix="list-") == ["list-0", "list-1", "list-2", "list-3"]
    assert names(AlarmNamePrefix="list-", AlarmTypes=["CompositeAlarm"]) == ["list-all"]
    assert names(AlarmNamePrefix="list-", StateValue="OK") == ["list-3"]
    assert names(AlarmNamePrefix="list-", ActionPrefix=f"{TOPIC}-1") == ["list-1", "list-3"]
    assert names(AlarmNames=["list-2", "list-0", "unknown"]) == ["list-0", "list-2"]
    assert names(ChildrenOfAlarmName="list-all") == ["list-0", "list-1"]
    assert names(ParentsOfAlarmName="list-1") == ["list-all"]
    assert names(ParentsOfAlarmName="list-2") == []
    assert names(AlarmNamePrefix="list-", MaxRecords=1) == ["list-0"]
    [child] = cloudwatch.describe_alarms(ChildrenOfAlarmName="list-all", MaxRecords=1)["MetricAlarms"]
    assert set(child) == {"AlarmName", "AlarmArn", "StateValue", "StateUpdatedTimestamp"}
    metric = {"Namespace": "Demo", "MetricName": "list-0"}
    [found] = cloudwatch.describe_alarms_for_metric(**metric, Statistic="Maximum", Period=60)["MetricAlarms"]
    assert found["AlarmName"] == "list-0"
    assert cloudwatch.describe_alarms_for_metric(**metric, Statistic="Sum")["MetricAlarms"] == []
    assert cloudwatch.describe_alarms_for_metric(**metric, Dimensions=[{"Name": "a", "Value": "b"}])["MetricAlarms"] == []
    for params in (
        {"ChildrenOfAlarmName": "list-all", "StateValue": "OK"},
        {"AlarmNames": ["a"], "AlarmNamePrefix": "a"},
        {"MaxRecords": 101},
    ):
        with pytest.raises(ClientError, match="ValidationError"):
            cloudwatch.describe_alarms(**params)
    with pytest.raises(cloudwatch.exceptions.InvalidNextToken):
        cloudwatch.describe_alarms(NextToken="x")
    with pytest.raises(cloudwatch.exceptions.InvalidNextToken):
        cloudwatch.describe_alarm_history(NextToken="x")


def test_delete_alarms(cloudwatch: Any) -> None:
    for name in ("gone-a", "gone-b"):
        cloudwatch.put_metric_alarm(**config(name, Tags=[{"Key": "a", "Value": "b"}]))
    for name in ("gone-1", "gone-2"):
        cloudwatch.put_composite_alarm(AlarmName=name, AlarmRule="ALARM(gone-a)")
    arn = state(cloudwatch, "gone-a")["AlarmArn"]
    with pytest.raises(ClientError, match="Cannot delete gone-a as there are composite alarm"):
        cloudwatch.delete_alarms(AlarmNames=["gone-b", "gone-a"])
    assert state(cloudwatch, "gone-b"), "all or none"
    with pytest.raises(ClientError, match="Only one composite alarm"):
        cloudwatch.delete_alarms(AlarmNames=["gone-1", "gone-2"])
    cloudwatch.delete_alarms(AlarmNames=["gone-1"])
    cloudwatch.put_composite_alarm(AlarmName="gone-1", AlarmRule="ALARM(gone-a) OR ALARM(gone-b)")
    with pytest.raises(ClientError, match="Cannot delete gone-a,gone-b as there are composite alarm\\(s\\) depending on them"):
        cloudwatch.delete_alarms(AlarmNames=["gone-a", "gone-b"])
    cloudwatch.delete_alarms(AlarmNames=["gone-1"])
    cloudwatch.delete_alarms(AlarmNames=["gone-a", "gone-2", "gone-b", "unknown"])
    cloudwatch.delete_alarms(AlarmNames=["gone-a", "unknown"])  # as on AWS, unknown names are no error
    with pytest.raises(cloudwatch.exceptions.ResourceNotFoundException):
        cloudwatch.list_tags_for_resource(ResourceARN=arn)
    history = cloudwatch.describe_alarm_history(AlarmName="gone-a")["AlarmHistoryItems"]
    assert history[0]["HistorySummary"] == 'Alarm "gone-a" deleted'
    deleted = json.loads(history[0]["HistoryData"])["deletedAlarm"]
    assert (deleted["alarmName"], deleted["alarmArn"], deleted["okactions"], deleted["metricName"]) == ("gone-a", arn, [], "gone-a")
    cloudwatch.put_metric_alarm(**config("gone-a"))
    assert cloudwatch.list_tags_for_resource(ResourceARN=arn)["Tags"] == []


def test_tags(cloudwatch: Any) -> None:
    cloudwatch.put_metric_alarm(**config("tagged", Tags=[{"Key": "a", "Value": "1"}]))
    arn = state(cloudwatch, "tagged")["AlarmArn"]
    cloudwatch.tag_resource(ResourceARN=arn, Tags=[{"Key": "b", "Value": "2"}, {"Key": "a", "Value": "3"}])
    cloudwatch.put_metric_alarm(**config("tagged", Tags=[{"Key": "c", "Value": "ignored in an update"}]))
    tags = cloudwatch.list_tags_for_resource(ResourceARN=arn)["Tags"]
    assert tags == [{"Key": "a", "Value": "3"}, {"Key": "b", "Value": "2"}]
    cloudwatch.untag_resource(ResourceARN=arn, TagKeys=["a", "z"])
    assert cloudwatch.list_tags_for_resource(ResourceARN=arn)["Tags"] == [{"Key": "b", "Value": "2"}]
    cloudwatch.put_dashboard(DashboardName="tagged", DashboardBody='{"widgets": []}', Tags=[{"Key": "a", "Value": "1"}])
    dashboard = cloudwatch.get_dashboard(DashboardName="tagged")["DashboardArn"]
    assert cloudwatch.list_tags_for_resource(ResourceARN=dashboard)["Tags"] == [{"Key": "a", "Value": "1"}]
    cloudwatch.delete_dashboards(DashboardNames=["tagged"])
    with pytest.raises(cloudwatch.exceptions.ResourceNotFoundException):
        cloudwatch.list_tags_for_resource(ResourceARN=dashboard)
    for arn in ("nothing", "arn:aws:sqs:us-east-1:123456789012:q"):
        with pytest.raises(ClientError, match="InvalidParameterValue"):
            cloudwatch.tag_resource(ResourceARN=arn, Tags=[])
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        cloudwatch.tag_resource(ResourceARN=arn, Tags=[{"Key": f"k{at}", "Value": ""} for at in range(50)])


def test_composite_alarms(cloudwatch: Any) -> None:
    for name in ("cpu", "disk"):
        cloudwatch.put_metric_alarm(**config(name))
    cloudwatch.put_composite_alarm(AlarmName="both", AlarmRule='ALARM("cpu") AND ALARM("disk")')
    assert state(cloudwatch, "both", "CompositeAlarm")["StateValue"] == "OK"
    for name in ("cpu", "disk"):
        cloudwatch.put_metric_data(Namespace="Demo", MetricData=[{"MetricName": name, "Value": 9}])
    assert state(cloudwatch, "both", "CompositeAlarm")["StateValue"] == "ALARM"
    [item, *_] = cloudwatch.describe_alarm_history(AlarmTypes=["CompositeAlarm"], AlarmName="both")["AlarmHistoryItems"]
    assert item["AlarmType"] == "CompositeAlarm"
    for rule, message in (("ALARM(cpu", "Syntax error"), ("ALARM(unknown)", "do not exist"), ("", "AlarmRule")):
        with pytest.raises(Exception, match=message):
            cloudwatch.put_composite_alarm(AlarmName="wrong", AlarmRule=rule)
    scaling = "arn:aws:autoscaling:us-east-1:123456789012:scalingPolicy:x"
    for params in ({"AlarmActions": [scaling]}, {"ActionsSuppressor": "cpu"}, {"ActionsSuppressorWaitPeriod": 5}):
        with pytest.raises(ClientError, match="ValidationError"):
            cloudwatch.put_composite_alarm(AlarmName="wrong", AlarmRule="TRUE", **params)
    with pytest.raises(ClientError, match="another type"):
        cloudwatch.put_metric_alarm(**config("both"))
    with pytest.raises(ClientError, match="another type"):
        cloudwatch.put_composite_alarm(AlarmName="cpu", AlarmRule="TRUE")


def test_set_alarm_state_and_disabled_actions(cloudwatch: Any) -> None:
    cloudwatch.put_metric_alarm(**config("set", AlarmActions=[TOPIC]))
    cloudwatch.disable_alarm_actions(AlarmNames=["set", "unknown"])
    assert state(cloudwatch, "set")["ActionsEnabled"] is False
    cloudwatch.set_alarm_state(AlarmName="set", StateValue="ALARM", StateReason="x")
    cloudwatch.enable_alarm_actions(AlarmNames=["set"])
    cloudwatch.set_alarm_state(AlarmName="set", StateValue="ALARM", StateReason="again", StateReasonData="{}")
    alarm = state(cloudwatch, "set")
    assert (alarm["ActionsEnabled"], alarm["StateReason"], alarm["StateReasonData"]) == (True, "again", "{}")
    assert cloudwatch.describe_alarm_history(AlarmName="set", HistoryItemType="Action")["AlarmHistoryItems"] == []
    with pytest.raises(cloudwatch.exceptions.ResourceNotFound):
        cloudwatch.set_alarm_state(AlarmName="unknown", StateValue="OK", StateReason="x")
    with pytest.raises(ClientError, match=r"enum value set: \[INSUFFICIENT_DATA, ALARM, OK\]"):
        cloudwatch.set_alarm_state(AlarmName="set", StateValue="INVALID", StateReason="x")
    with pytest.raises(cloudwatch.exceptions.InvalidFormatFault):
        cloudwatch.set_alarm_state(AlarmName="set", StateValue="OK", StateReason="x", StateReasonData="no JSON")


def test_alarms_belong_to_a_region(client: Callable[..., Any]) -> None:
    here, there = client("cloudwatch"), client("cloudwatch", region="eu-west-1")
    here.put_metric_alarm(**config("here"))
    assert there.describe_alarms(AlarmNames=["here"])["MetricAlarms"] == []
    there.put_metric_data(Namespace="Demo", MetricData=[{"MetricName": "here", "Value": 9}])
    assert state(here, "here")["StateValue"] == "INSUFFICIENT_DATA"


# Metrics in logs


def embedded(value: float) -> str:
    directive = {
        "Namespace": "ECS/ContainerInsights/Prometheus",
        "Dimensions": [["ClusterName", "ServiceName"]],
        "Metrics": [{"Name": "DCGM_FI_DEV_GPU_UTIL", "Unit": "Percent"}],
    }
    about = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
    return json.dumps({"_aws": about, "ClusterName": "c", "ServiceName": "s", "DCGM_FI_DEV_GPU_UTIL": value})


def gpu_load(cloudwatch: Any) -> list[float]:
    found = cloudwatch.get_metric_statistics(
        Namespace="ECS/ContainerInsights/Prometheus", MetricName="DCGM_FI_DEV_GPU_UTIL", Period=3600, Statistics=["Maximum"],
        Dimensions=[{"Name": "ClusterName", "Value": "c"}, {"Name": "ServiceName", "Value": "s"}],
        StartTime=time.time() - 7200, EndTime=time.time() + 60,
    )["Datapoints"]  # fmt: skip
    return [point["Maximum"] for point in found]


def test_metrics_in_log_events_are_recorded_before_put_log_events_responds(client: Callable[..., Any], cloudwatch: Any) -> None:
    logs = client("logs")
    group = "/aws/ecs/containerinsights/c/prometheus"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    dimensions = [{"Name": "ClusterName", "Value": "c"}, {"Name": "ServiceName", "Value": "s"}]
    cloudwatch.put_metric_alarm(**config("gpus", Namespace="ECS/ContainerInsights/Prometheus", MetricName="DCGM_FI_DEV_GPU_UTIL",
                                         Dimensions=dimensions, Threshold=75.0))  # fmt: skip
    now = int(time.time() * 1000)
    reserved = [embedded(98).replace("ECS/ContainerInsights/Prometheus", name) for name in ("AWS/SQS", "Corral/GPU")]
    events = [{"timestamp": now, "message": text} for text in ("about CloudWatchMetrics", embedded(93), "plain", *reserved)]
    logs.put_log_events(logGroupName=group, logStreamName="s", logEvents=events)
    assert gpu_load(cloudwatch) == [93.0]
    assert state(cloudwatch, "gpus")["StateValue"] == "ALARM"
    assert len(logs.get_log_events(logGroupName=group, logStreamName="s")["events"]) == 5, "they are log events too"
    written = cloudwatch.list_metrics(MetricName="DCGM_FI_DEV_GPU_UTIL", Dimensions=dimensions)["Metrics"]
    assert [metric["Namespace"] for metric in written] == ["ECS/ContainerInsights/Prometheus"], "only services write to the others"


@pytest.mark.parametrize("namespace", ["AWS/ECS", "Corral/GPU", "Corral/Other"])
def test_callers_cannot_write_to_the_metrics_of_services(cloudwatch: Any, namespace: str) -> None:
    with pytest.raises(cloudwatch.exceptions.InvalidParameterValueException):
        cloudwatch.put_metric_data(Namespace=namespace, MetricData=[{"MetricName": "DCGM_FI_DEV_GPU_UTIL", "Value": 100}])


def test_metrics_in_the_output_of_a_task(client: Callable[..., Any], cloudwatch: Any) -> None:
    ecs = client("ecs")
    line = embedded(97)
    ecs.register_task_definition(family="emf", containerDefinitions=[container(["echo", line], log_prefix="emf")])
    wait_stopped(ecs, [ecs.run_task(taskDefinition="emf")["tasks"][0]["taskArn"]])
    assert 97.0 in gpu_load(cloudwatch)


# Metrics that filters make of logs


def put_filter(logs: Any, group: str, pattern: str, name: str, **more: Any) -> None:
    transformation = {"metricNamespace": "Training", "metricName": name, "metricValue": "1", **more}
    logs.put_metric_filter(logGroupName=group, filterName=name, filterPattern=pattern, metricTransformations=[transformation])


def counted(cloudwatch: Any, name: str, *statistics: str, **dimensions: str) -> tuple[float, ...]:
    points = cloudwatch.get_metric_statistics(
        Namespace="Training", MetricName=name, Period=60, Statistics=statistics,
        Dimensions=[{"Name": name, "Value": value} for name, value in dimensions.items()],
        StartTime=time.time() - 3600, EndTime=time.time() + 60,
    )["Datapoints"]  # fmt: skip
    whole = {"Sum": sum, "SampleCount": sum, "Maximum": max}
    return tuple(whole[statistic](point[statistic] for point in points) for statistic in statistics)


def test_the_output_of_a_task_sets_off_an_alarm_through_a_metric_filter(client: Callable[..., Any], cloudwatch: Any) -> None:
    ecs, logs = client("ecs"), client("logs")
    group = container(["true"], log_prefix="filtered")["logConfiguration"]["options"]["awslogs-group"]
    with suppress(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_group(logGroupName=group)
    put_filter(logs, group, '"loss is NaN"', "Diverged")
    cloudwatch.put_metric_alarm(**config("diverged", Namespace="Training", MetricName="Diverged", Threshold=0.0, Statistic="Sum"))
    lines = "echo step 1; echo the loss is NaN; echo step 3"
    ecs.register_task_definition(family="filtered", containerDefinitions=[container(["sh", "-c", lines], log_prefix="filtered")])
    wait_stopped(ecs, [ecs.run_task(taskDefinition="filtered")["tasks"][0]["taskArn"]])
    assert counted(cloudwatch, "Diverged", "Sum", "SampleCount") == (1.0, 1.0)
    assert state(cloudwatch, "diverged")["StateValue"] == "ALARM"
    logs.delete_metric_filter(logGroupName=group, filterName="Diverged")
    wait_stopped(ecs, [ecs.run_task(taskDefinition="filtered")["tasks"][0]["taskArn"]])
    assert counted(cloudwatch, "Diverged", "Sum") == (1.0,)


def test_values_dimensions_and_the_default_of_metric_filters(client: Callable[..., Any], cloudwatch: Any) -> None:
    logs, group = client("logs"), "/tests/filters"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="s")

    def put(*messages: str) -> None:
        now = int(time.time() * 1000)
        logs.put_log_events(
            logGroupName=group, logStreamName="s", logEvents=[{"timestamp": now, "message": message} for message in messages]
        )

    put('{"loss": 9, "model": "a"}')  # before there is a filter
    put_filter(logs, group, "{ $.loss = * && $.model = * }", "Loss", metricValue="$.loss", dimensions={"Model": "$.model"})
    put_filter(logs, group, "ERROR", "Errors", defaultValue=0)
    put('{"loss": 0.5, "model": "a"}', '{"loss": 1.5, "model": "a"}', '{"loss": 7, "model": "b"}', '{"loss": 3}')
    assert counted(cloudwatch, "Loss", "Sum", "Maximum", Model="a") == (2.0, 1.5)
    assert counted(cloudwatch, "Loss", "Sum", Model="b") == (7.0,)
    assert counted(cloudwatch, "Errors", "Sum", "SampleCount") == (0.0, 1.0)
    put("ERROR 1", *["fine"] * 500, "ERROR 2")
    assert counted(cloudwatch, "Errors", "Sum", "SampleCount") == (2.0, 3.0)
    put_filter(logs, group, "ERROR", "Errors", metricValue="10")
    put("ERROR 3")
    assert counted(cloudwatch, "Errors", "Sum") == (12.0,)
    logs.delete_log_group(logGroupName=group)
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    put("ERROR 4")
    assert counted(cloudwatch, "Errors", "Sum") == (12.0,)


# What Corral makes itself


def names_of(cloudwatch: Any, namespace: str, **dimensions: str) -> set[str]:
    wanted = [{"Name": name, "Value": value} for name, value in dimensions.items()]
    return {metric["MetricName"] for metric in cloudwatch.list_metrics(Namespace=namespace, Dimensions=wanted)["Metrics"]}


def test_a_queue_sets_off_an_alarm_within_seconds(client: Callable[..., Any], cloudwatch: Any) -> None:
    sqs = client("sqs")
    cloudwatch.put_metric_alarm(**config(
        "from-zero", Namespace="AWS/SQS", MetricName="ApproximateNumberOfMessagesVisible", Statistic="Average", Period=300,
        Dimensions=[{"Name": "QueueName", "Value": "from-zero"}], Threshold=0.0,
    ))  # fmt: skip
    queue = sqs.create_queue(QueueName="from-zero")["QueueUrl"]
    sent_s = time.time()
    sqs.send_message(QueueUrl=queue, MessageBody="first")
    alarm = until(cloudwatch, "from-zero", "ALARM")
    assert "Evaluated on the newest second." in alarm["StateReason"]
    assert alarm["StateTransitionedTimestamp"].timestamp() - sent_s < 60, "long before its period of 300 s has ended"
    sqs.receive_message(QueueUrl=queue)
    expected = {
        "ApproximateNumberOfMessagesVisible", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed",
        "ApproximateAgeOfOldestMessage", "NumberOfMessagesSent", "NumberOfMessagesReceived", "NumberOfMessagesDeleted",
        "NumberOfEmptyReceives", "SentMessageSize",
    }  # fmt: skip
    eventually(lambda: names_of(cloudwatch, "AWS/SQS", QueueName="from-zero") == expected, "all metrics of the queue")

    def total(name: str) -> float:
        points = cloudwatch.get_metric_statistics(
            Namespace="AWS/SQS", MetricName=name, Dimensions=[{"Name": "QueueName", "Value": "from-zero"}], Period=3600,
            Statistics=["Sum"], StartTime=time.time() - 7200, EndTime=time.time() + 60,
        )["Datapoints"]  # fmt: skip
        return sum(point["Sum"] for point in points)

    eventually(lambda: total("NumberOfMessagesReceived") == 1, "the receive is counted")
    assert (total("NumberOfMessagesSent"), total("SentMessageSize")) == (1, 5)


def test_clusters_and_gpus_are_measured(client: Callable[..., Any], cloudwatch: Any) -> None:
    ecs = client("ecs")
    busy = container(["sh", "-c", BUSY], gpus=1, cpu=256)
    ecs.register_task_definition(family="busy", containerDefinitions=[busy])
    task = ecs.run_task(taskDefinition="busy")["tasks"][0]
    [gpu_id] = task["containers"][0]["gpuIds"]
    reserved = {"CPUReservation", "MemoryReservation", "GPUReservation", "CPUUtilization", "MemoryUtilization"}
    dcgm = {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"}
    eventually(lambda: names_of(cloudwatch, "AWS/ECS", ClusterName="default") == reserved, "the cluster's metrics")
    task_id = task["taskArn"].rpartition("/")[2]
    for dimensions in ({"UUID": gpu_id}, {"ClusterName": "default", "TaskId": task_id}, {"ClusterName": "default"}):
        eventually(lambda: names_of(cloudwatch, "Corral/GPU", **dimensions) >= dcgm, f"GPU metrics of {dimensions}")  # noqa: B023

    assert most(cloudwatch, "AWS/ECS", "GPUReservation", ClusterName="default") == 50.0
    busy_gpu = {"ClusterName": "default", "TaskId": task_id}
    eventually(lambda: most(cloudwatch, "Corral/GPU", "DCGM_FI_DEV_GPU_UTIL", **busy_gpu) > 0, "a busy GPU")
    eventually(lambda: most(cloudwatch, "AWS/ECS", "CPUUtilization", ClusterName="default") > 0, "a busy CPU")
    ecs.stop_task(task=task["taskArn"])
    wait_stopped(ecs, [task["taskArn"]])


def test_tasks_that_share_a_gpu_are_measured_separately(client: Callable[..., Any], cloudwatch: Any) -> None:
    """A scaling policy on the load of the whole GPU would add tasks up to its maximum."""
    ecs, shares = client("ecs"), [{"type": "GPU", "sharingStrategy": {"nvidiaMps": {"memory": 1000}}}]
    for name, command in (("busy", ["sh", "-c", BUSY]), ("idle", ["sleep", "600"])):
        definition = container(command) | {"resourceRequirements": shares}
        ecs.register_task_definition(family=f"shared-{name}", containerDefinitions=[definition])

    def measured(task: Any, statistic: str) -> float | None:
        task_id, end_s = task["taskArn"].rpartition("/")[2], time.time() + 60
        dimensions = [{"Name": "ClusterName", "Value": "default"}, {"Name": "TaskId", "Value": task_id}]
        points = cloudwatch.get_metric_statistics(
            Namespace="Corral/GPU", MetricName="DCGM_FI_DEV_GPU_UTIL", Dimensions=dimensions, Period=3600,
            Statistics=[statistic], StartTime=end_s - 7200, EndTime=end_s,
        )["Datapoints"]  # fmt: skip
        return points[0][statistic] if points else None

    busy = ecs.run_task(taskDefinition="shared-busy")["tasks"][0]
    eventually(lambda: (measured(busy, "Maximum") or 0) > 5, "the busy task alone")
    idle = ecs.run_task(taskDefinition="shared-idle")["tasks"][0]
    assert busy["containers"][0]["gpuIds"] == idle["containers"][0]["gpuIds"]
    eventually(lambda: measured(idle, "Minimum") == 0, "the idle task")
    for task in (busy, idle):
        ecs.stop_task(task=task["taskArn"])
    wait_stopped(ecs, [busy["taskArn"], idle["taskArn"]])


def test_services_are_measured(client: Callable[..., Any], cloudwatch: Any) -> None:
    ecs, service = client("ecs"), {"ClusterName": "default", "ServiceName": "measured"}
    busy = container(["sh", "-c", BUSY], gpus=1, cpu=16)
    ecs.register_task_definition(family="measured", containerDefinitions=[busy])
    ecs.create_service(serviceName="measured", taskDefinition="measured", desiredCount=1)
    collected = "ECS/ContainerInsights/Prometheus"
    eventually(lambda: most(cloudwatch, "AWS/ECS", "CPUUtilization", **service) > 0, "CPU of the service")
    eventually(lambda: most(cloudwatch, "AWS/ECS", "MemoryUtilization", **service) > 0, "memory of the service")
    for dimensions in (service, {"ClusterName": "default", "TaskDefinitionFamily": "measured"}):
        eventually(lambda: most(cloudwatch, collected, "DCGM_FI_DEV_GPU_UTIL", **dimensions) > 0, f"{dimensions}")  # noqa: B023
    ecs.delete_service(service="measured", force=True)
    eventually(lambda: not ecs.list_tasks(serviceName="measured")["taskArns"], "its task has stopped")


def most(cloudwatch: Any, namespace: str, name: str, **dimensions: str) -> float:
    points = cloudwatch.get_metric_statistics(
        Namespace=namespace, MetricName=name, Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        Period=3600, Statistics=["Maximum"], StartTime=time.time() - 7200, EndTime=time.time() + 60,
    )["Datapoints"]  # fmt: skip
    return max((point["Maximum"] for point in points), default=0.0)


# Starting and stopping


def test_alarms_survive_kill_9(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral().start()
    cloudwatch = corral.client("cloudwatch")
    cloudwatch.put_metric_alarm(**config("kept", AlarmActions=[TOPIC], Tags=[{"Key": "a", "Value": "b"}]))
    cloudwatch.put_composite_alarm(AlarmName="above", AlarmRule="ALARM(kept)")
    cloudwatch.put_metric_data(Namespace="Demo", MetricData=[{"MetricName": "kept", "Value": 9}])

    def picture() -> Any:
        found = cloudwatch.describe_alarms(AlarmTypes=["MetricAlarm", "CompositeAlarm"])
        history = cloudwatch.describe_alarm_history(AlarmTypes=["MetricAlarm", "CompositeAlarm"])["AlarmHistoryItems"]
        tags = cloudwatch.list_tags_for_resource(ResourceARN=found["MetricAlarms"][0]["AlarmArn"])["Tags"]
        return found["MetricAlarms"], found["CompositeAlarms"], history, tags

    acted(cloudwatch, "kept")
    before = picture()
    assert (before[0][0]["StateValue"], before[1][0]["StateValue"]) == ("ALARM", "ALARM")
    corral.kill("corral.server")
    corral.start()
    assert picture() == before


def test_alarm_timing_aws_waits_for_the_end_of_the_window(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral("none", "--alarm-timing", "aws").start()
    sqs, cloudwatch = corral.client("sqs"), corral.client("cloudwatch")
    cloudwatch.put_metric_alarm(**config("timed"))
    queue = sqs.create_queue(QueueName="timed")["QueueUrl"]
    cloudwatch.put_metric_alarm(**config("queued", Namespace="AWS/SQS", MetricName="ApproximateNumberOfMessagesVisible",
                                         Dimensions=[{"Name": "QueueName", "Value": "timed"}], Threshold=0.0))  # fmt: skip
    sqs.send_message(QueueUrl=queue, MessageBody="first")
    cloudwatch.put_metric_data(Namespace="Demo", MetricData=[{"MetricName": "timed", "Value": 9}])
    sent_s = time.time()
    eventually(lambda: names_of(cloudwatch, "AWS/SQS", QueueName="timed"), "the queue was published")
    if int(sent_s // 60) == int(time.time() // 60):  # no window has ended meanwhile
        states = {alarm["AlarmName"]: alarm["StateValue"] for alarm in cloudwatch.describe_alarms()["MetricAlarms"]}
        assert states == {"timed": "INSUFFICIENT_DATA", "queued": "INSUFFICIENT_DATA"} or int(time.time() // 60) > int(sent_s // 60)
