"""CloudWatch: PutMetricData compared with moto, and how soon an alarm changes its state."""

from __future__ import annotations

import json
import time
from itertools import repeat

from client import Caller, replay, signed
from local import corral
from peers import moto
from rows import Bench, Row, percentile

CONNECTIONS = 8
DATA = 20  # in a request
NAMESPACE = "Bench"
CLOUDWATCH_AT_BEST_S = 10.0  # the shortest period of an alarm there


def rows(bench: Bench) -> list[Row]:
    for_s = 1.0 if bench.quick else 3.0
    with corral(bench, "metrics", "none") as local:
        ours = [_put(local.port, count, for_s) for count in (1, DATA)]
        arrived = [_reaction_s(local.port, number) for number in range(bench.size(20, 5))]
        queued = [_from_zero_s(local.port, number) for number in range(bench.size(10, 3))]
    with moto() as port:
        theirs = [_put(port, count, for_s) for count in (1, DATA)]
    found = [
        Row(f"CloudWatch data/s, PutMetricData of {count}", mine, "/s", other, "moto")
        for count, mine, other in zip((1, DATA), ours, theirs)
    ]
    return [
        *found,
        _reaction("PutMetricData to ALARM", arrived),
        _reaction("SendMessage to ALARM (a 300 s Average of the queue's depth)", queued),
    ]


def _reaction(what: str, seconds: list[float]) -> Row:
    note = f"p50 of {len(seconds)}, worst {max(seconds):.3f} s; CloudWatch: its shortest period; moto judges nothing"
    return Row(f"alarm reaction: {what}", percentile(seconds, 50), "s", CLOUDWATCH_AT_BEST_S, "CloudWatch at best", note=note)


def _put(port: int, count: int, for_s: float) -> float:
    data = [
        {"MetricName": f"m{number}", "Dimensions": [{"Name": "Host", "Value": "a"}], "Value": number + 0.5, "Unit": "Count"}
        for number in range(count)
    ]
    request = signed(port, "cloudwatch", "PutMetricData", {"Namespace": NAMESPACE, "MetricData": data})
    return replay(port, repeat(request), CONNECTIONS, for_s).per_s * count


def _reaction_s(port: int, number: int) -> float:
    """From a datapoint over the threshold to the state that DescribeAlarms shows."""
    call, name = Caller(port), f"reaction-{number}"
    about = {"AlarmName": name, "Namespace": NAMESPACE, "MetricName": name, "Statistic": "Average", "Period": 60}
    rule = {"EvaluationPeriods": 1, "Threshold": 1.0, "ComparisonOperator": "GreaterThanThreshold"}
    call("cloudwatch", "PutMetricAlarm", **about, **rule)
    began = time.perf_counter()
    datum = {"MetricName": name, "Value": 5.0, "StorageResolution": 1}  # other datapoints count when their minute has ended
    call("cloudwatch", "PutMetricData", Namespace=NAMESPACE, MetricData=[datum])
    return _until_alarm(call, name) - began


def _from_zero_s(port: int, number: int) -> float:
    """From the first message in a queue to the alarm that would start a fleet."""
    call, name = Caller(port), f"queue-{number}"
    url = call("sqs", "CreateQueue", QueueName=name)["QueueUrl"]
    metric = {"Namespace": "AWS/SQS", "MetricName": "ApproximateNumberOfMessagesVisible"}
    of_queue = {"AlarmName": name, "Dimensions": [{"Name": "QueueName", "Value": name}], "Statistic": "Average", "Period": 300}
    rule = {"EvaluationPeriods": 1, "Threshold": 0.0, "ComparisonOperator": "GreaterThanThreshold"}
    call("cloudwatch", "PutMetricAlarm", **metric, **of_queue, **rule)
    began = time.perf_counter()
    call("sqs", "SendMessage", QueueUrl=url, MessageBody="work")
    return _until_alarm(call, name) - began


def _until_alarm(call: Caller, name: str) -> float:
    """When the alarm was first seen in ALARM; asked again and again, because that is all that CloudWatch's clients can do."""
    until = time.perf_counter() + 30.0
    while (now := time.perf_counter()) < until:
        (alarm,) = call("cloudwatch", "DescribeAlarms", AlarmNames=[name])["MetricAlarms"]
        if alarm["StateValue"] == "ALARM":
            call.close()
            return now
    raise RuntimeError(f"{name} is {json.dumps(alarm)[:300]} after 30 s")
