"""Hand-overs between the lanes of a real server: kill -9 while log events make metrics, and a hand-over without a receiver."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from command import Cli
from harness import Corral, eventually

KILLS = int(os.environ.get("CORRAL_KILLS", "3"))
PUTS = 50 * KILLS
THREADS = 4
GROUP, STREAM, NAMESPACE = "/counted", "own", "Crashes"
ALARM = "busy"
POLICY = "arn:aws:autoscaling:us-east-1:123456789012:scalingPolicy:x:autoScalingGroupName/g:policyName/p"


def message(number: int) -> str:
    """Its value is its number, so that a lost event and a doubled one do not make up for each other."""
    directive = {"Namespace": NAMESPACE, "Dimensions": [[]], "Metrics": [{"Name": "Embedded"}]}
    return json.dumps({"_aws": {"CloudWatchMetrics": [directive]}, "Embedded": number})


class Load:
    def __init__(self, corral: Corral) -> None:
        self.corral = corral
        self.acknowledged: set[int] = set()
        self.done = 0
        self.up = threading.Event()
        self.up.set()
        self._local = threading.local()

    def put(self, number: int) -> None:
        """Send once: after an error it is unknown whether the events were stored."""
        if not hasattr(self._local, "logs"):
            self._local.logs = self.corral.client("logs", connect_timeout=5, read_timeout=20)
        self.up.wait()
        events = [{"timestamp": int(time.time() * 1000), "message": message(number)}]
        try:
            self._local.logs.put_log_events(logGroupName=GROUP, logStreamName=STREAM, logEvents=events)
            self.acknowledged.add(number)
        except (BotoCoreError, ClientError) as error:
            if isinstance(error, ClientError) and error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise
        self.done += 1


def stored(logs: Any) -> list[int]:
    pages = logs.get_paginator("filter_log_events").paginate(logGroupName=GROUP)
    return sorted(json.loads(event["message"])["Embedded"] for page in pages for event in page["events"])


def total(cloudwatch: Any, name: str, statistic: str) -> float:
    now = time.time()
    metric = {"Namespace": NAMESPACE, "MetricName": name}
    query = {"Id": "m", "MetricStat": {"Metric": metric, "Period": 3600, "Stat": statistic}}
    [found] = cloudwatch.get_metric_data(MetricDataQueries=[query], StartTime=now - 7200, EndTime=now + 3600)["MetricDataResults"]
    return sum(found["Values"])


@pytest.mark.timeout(300)
def test_each_event_is_counted_once(own_corral) -> None:
    corral = own_corral("none").start()
    logs, cloudwatch = corral.client("logs"), corral.client("cloudwatch")
    logs.create_log_group(logGroupName=GROUP)
    logs.create_log_stream(logGroupName=GROUP, logStreamName=STREAM)
    counted = {"metricNamespace": NAMESPACE, "metricName": "Filtered", "metricValue": "1"}
    logs.put_metric_filter(logGroupName=GROUP, filterName="all", filterPattern="", metricTransformations=[counted])
    cloudwatch.put_metric_alarm(
        AlarmName=ALARM, Namespace=NAMESPACE, MetricName="Embedded", Statistic="Maximum", Period=60, EvaluationPeriods=1,
        Threshold=PUTS / 2, ComparisonOperator="GreaterThanThreshold", AlarmActions=[POLICY],
    )  # fmt: skip
    load = Load(corral)
    with ThreadPoolExecutor(THREADS) as pool:
        puts = [pool.submit(load.put, number) for number in range(PUTS)]
        for kill in range(KILLS):
            eventually(lambda kill=kill: load.done >= PUTS * (kill + 0.5) / KILLS, "puts go on", 60)
            load.up.clear()
            corral.kill("corral.server")
            corral.start()
            load.up.set()
        for put in puts:
            put.result()

    eventually(lambda: not waiting(corral), "all is handed over")
    numbers = stored(logs)
    assert len(load.acknowledged) > PUTS / 2 and load.acknowledged <= set(numbers)
    assert len(numbers) == len(set(numbers)), "no client sent an event twice"
    embedded = total(cloudwatch, "Embedded", "SampleCount"), total(cloudwatch, "Embedded", "Sum")
    assert embedded == (len(numbers), sum(numbers))
    assert total(cloudwatch, "Filtered", "Sum") == len(numbers)
    assert cloudwatch.describe_alarms(AlarmNames=[ALARM])["MetricAlarms"][0]["StateValue"] == "ALARM"
    assert rows(corral, "state", "SELECT policy, state FROM scaling_request") == [(POLICY, "ALARM")]


def waiting(corral: Corral) -> list[tuple[Any, ...]]:
    """Hand-overs that are not done, of all stores."""
    return [row for store in ("state", "logs", "metrics") for row in rows(corral, store, "SELECT lane, kind FROM outbox")]


def rows(corral: Corral, store: str, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{corral.data / f'{store}.db'}?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def test_a_hand_over_without_a_receiver_is_shown(own: Cli) -> None:
    """A hand-over of an unknown kind, as another version would write it, is kept and delays no other hand-over."""
    own("up", "--detach", "--port", "0", "--gpus", "none")
    own("down")
    with closing(sqlite3.connect(own.data / "logs.db")) as connection, connection:
        connection.execute("INSERT INTO outbox VALUES (1, 'another life', 'metrics', 'unknown', NULL, '[1]')")
    own("up", "--detach", "--port", "0", "--gpus", "none")
    shown = eventually(lambda: next((line for line in own("status").stdout.splitlines() if "unknown" in line), None), "it is shown")
    assert shown.startswith("Delivery to metrics is retried: unknown (failures: ")
    own.client("cloudwatch").put_metric_data(Namespace=NAMESPACE, MetricData=[{"MetricName": "Other", "Value": 1}])
