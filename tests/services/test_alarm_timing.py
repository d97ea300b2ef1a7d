"""Alarms on the virtual clock: both timings, missing data, actions, composite alarms and suppression."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core, Outcome
from corral.core.database import CommitFailed
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.alarm import AlarmState
from corral.model.metric import Metric, Point
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.reconcile import METRICS
from corral.services.cloudwatch.handlers import HANDLERS
from corral.services.cloudwatch.metric_writes import record
from corral.telemetry import MetricStore

REGION = "us-east-1"
CALLER = Caller("123456789012", REGION, root_user("123456789012"))
MINUTE_S = 1_700_000_040.0  # where a minute begins
QUEUE = Metric(REGION, "AWS/SQS", "ApproximateNumberOfMessagesVisible", (("QueueName", "jobs"),))
LOAD = Metric(REGION, "Demo", "Load")
POLICY = "arn:aws:autoscaling:us-east-1:123456789012:scalingPolicy:x:autoScalingGroupName/g:policyName/p"
TOPIC = "arn:aws:sns:us-east-1:123456789012:page"


class FullStore(MetricStore):
    full = False

    def commit(self) -> None:
        if self.full:
            raise CommitFailed("no space left")
        super().commit()


class World:
    """The core of the metrics lane on a virtual clock."""

    def __init__(self, timing: str = "fast", path: Path | None = None) -> None:
        self.clock = VirtualClock(MINUTE_S)
        self.store = FullStore(path)
        self.requests: dict[str, list[list[Any]]] = {}  # alarm → what was handed over last
        self.notifications: list[dict[str, Any]] = []  # messages to topics
        settings = Settings(alarm_timing=timing)
        self.core = Core(self.store, settings=settings, clock=self.clock, ids=SeededIds(Random(0)), reconcilers=METRICS)

    def run(self, handler: Any) -> Any:
        told: list[Any] = []
        outcome = self.transact(Command(handler, told.append))
        for command, answer in outcome.answers:
            command.done(answer)
        if isinstance(told[0], Exception):
            raise told[0]
        return told[0]

    def transact(self, *commands: Command) -> Outcome:
        outcome = self.core.transact(commands)
        if not self.store.full:
            assert not outcome.faults, outcome.faults
        for handover, _ in outcome.handed:
            [payload] = json.loads(handover.payload)
            if handover.kind == "notifications":
                assert (handover.lane, handover.key) == ("state", None)
                self.notifications.append(payload)
                continue
            assert (handover.lane, handover.kind, handover.key) == ("state", "scaling requests", payload["alarm"])
            self.requests[payload["alarm"].rpartition(":")[2]] = [each[:4] for each in payload["requests"]]
        return outcome

    def call(self, operation: str, **params: Any) -> dict[str, Any]:
        return self.run(lambda tx: HANDLERS[operation](tx, params, CALLER))

    def put(self, metric: Metric, value: float, *, own: bool = False, ago_s: float = 0.0, resolution_s: int = 1) -> None:
        point = Point(metric, self.clock.now_s() - ago_s, float(value), "Count", resolution_s)
        self.run(lambda tx: record(tx, [point], own=own))

    def pass_s(self, seconds: float) -> None:
        """Advance the clock and run everything that becomes due."""
        until_s = self.clock.now_s() + seconds
        while (due_s := self.core.next_due_s()) is not None and due_s <= until_s:
            self.clock.advance(max(0.0, due_s - self.clock.now_s()))
            self.transact()
        self.clock.advance(until_s - self.clock.now_s())

    def publish(self, metric: Metric, value: float, seconds: int) -> None:
        """Publish a value once a second, as Corral does."""
        for _ in range(seconds):
            self.put(metric, value, own=True)
            self.pass_s(1)

    def alarm(self, name: str = "busy") -> dict[str, Any]:
        found = self.call("DescribeAlarms", AlarmNames=[name], AlarmTypes=["MetricAlarm", "CompositeAlarm"])
        return (found["MetricAlarms"] + found["CompositeAlarms"])[0]

    def state(self, name: str = "busy") -> str:
        return self.alarm(name)["StateValue"]

    def history(self, name: str = "busy", kind: str = "MetricAlarm", **more: Any) -> list[str]:
        items = self.call("DescribeAlarmHistory", AlarmName=name, ScanBy="TimestampAscending", AlarmTypes=[kind], **more)
        return [item["HistorySummary"] for item in items["AlarmHistoryItems"]]


def on(metric: Metric, **more: Any) -> dict[str, Any]:
    """Parameters of an alarm: greater than 0, one period of a minute."""
    return {
        "AlarmName": "busy",
        "Namespace": metric.namespace,
        "MetricName": metric.name,
        "Dimensions": [{"Name": name, "Value": value} for name, value in metric.dimensions],
        "Statistic": "Average",
        "Period": 60,
        "EvaluationPeriods": 1,
        "Threshold": 0.0,
        "ComparisonOperator": "GreaterThanThreshold",
        **more,
    }


# Fast out, slow in


def test_the_first_message_scales_from_zero_within_a_second() -> None:
    """The average of 300 seconds is 1/300; the newest second is 1."""
    world = World()
    world.publish(QUEUE, 0, 300)
    world.call("PutMetricAlarm", **on(QUEUE, Period=300, AlarmActions=[POLICY], OKActions=[POLICY]))
    assert world.state() == "OK"
    world.put(QUEUE, 1, own=True)
    alarm = world.alarm()
    assert alarm["StateValue"] == "ALARM"
    assert alarm["StateReason"] == (
        "Threshold Crossed: 1 datapoint [1.0 (14/11/23 22:19:00)] was greater than the threshold (0.0). "
        "Evaluated on the newest second."
    )
    assert json.loads(alarm["StateReasonData"])["window"] == "newestSecond"


def test_an_alarm_returns_to_ok_only_after_a_whole_period() -> None:
    world = World()
    world.call("PutMetricAlarm", **on(QUEUE, Period=300, Threshold=10.0))
    world.publish(QUEUE, 0, 60)
    world.publish(QUEUE, 100, 2)  # 300 seconds of it are less than 1 on average
    assert world.state() == "ALARM"
    world.publish(QUEUE, 0, 290)
    assert world.state() == "ALARM", "some second of the period was above the threshold"
    world.publish(QUEUE, 0, 70)
    alarm = world.alarm()
    assert alarm["StateValue"] == "OK"
    assert alarm["StateReason"].endswith("was not greater than the threshold (10.0). Evaluated on the period of 300 seconds.")
    assert world.history() == ['Alarm "busy" created', "Alarm updated from INSUFFICIENT_DATA to OK",
                               "Alarm updated from OK to ALARM", "Alarm updated from ALARM to OK"]  # fmt: skip


IN_FLIGHT = Metric(REGION, "AWS/SQS", "ApproximateNumberOfMessagesNotVisible", QUEUE.dimensions)


def messages(period_s: int) -> dict[str, Any]:
    """The alarm of templates/queue-fleet.yaml: messages in the queue and messages in flight, rounded up."""
    stats = [
        {
            "Id": id_,
            "ReturnData": False,
            "MetricStat": {
                "Stat": "Average",
                "Period": period_s,
                "Metric": {
                    "Namespace": metric.namespace,
                    "MetricName": metric.name,
                    "Dimensions": [{"Name": name, "Value": value} for name, value in metric.dimensions],
                },
            },
        }
        for id_, metric in (("visible", QUEUE), ("inflight", IN_FLIGHT))
    ]
    total = {"Id": "messages", "Expression": "CEIL(FILL(visible, 0) + FILL(inflight, 0))", "ReturnData": True}
    return {
        "AlarmName": "busy", "Metrics": [total, *stats], "EvaluationPeriods": 1, "Threshold": 0.0,
        "ComparisonOperator": "GreaterThanThreshold", "TreatMissingData": "notBreaching",
    }  # fmt: skip


@pytest.mark.parametrize("empty_at_s", [1, 13, 59, 60])
@pytest.mark.parametrize("alarm", [messages(60), messages(10), on(QUEUE), on(QUEUE, Period=300)])
def test_an_alarm_returns_to_ok_a_period_after_the_last_breach(alarm: dict[str, Any], empty_at_s: int) -> None:
    """The windows of the alarm end with each minute, but a queue can become empty at any second."""
    world = World()
    world.call("PutMetricAlarm", **alarm)
    world.publish(QUEUE, 1, empty_at_s)
    assert world.state() == "ALARM"
    world.put(QUEUE, 0, own=True)  # an unchanged value is published again only once a minute
    quiet_s = alarm["Metrics"][1]["MetricStat"]["Period"] if "Metrics" in alarm else alarm["Period"]
    world.pass_s(quiet_s - 1)
    assert world.state() == "ALARM"
    world.pass_s(1)
    assert world.state() == "OK"
    assert [each for each in world.history() if "ALARM to" in each] == ["Alarm updated from ALARM to OK"]


def test_a_breach_postpones_the_return_to_ok() -> None:
    world = World()
    world.call("PutMetricAlarm", **messages(60))
    world.publish(QUEUE, 1, 10)
    world.publish(QUEUE, 0, 55)
    world.publish(IN_FLIGHT, 1, 1)
    world.put(IN_FLIGHT, 0, own=True)
    world.pass_s(59)
    assert world.state() == "ALARM"
    world.pass_s(1)
    assert world.state() == "OK"


def test_an_alarm_stays_while_the_last_value_breaches() -> None:
    """A busy machine publishes the unchanged value late."""
    world = World()
    world.call("PutMetricAlarm", **messages(60))
    world.pass_s(30)
    world.put(IN_FLIGHT, 1, own=True)
    world.pass_s(63)
    assert world.state() == "ALARM"
    world.put(IN_FLIGHT, 1, own=True)
    world.pass_s(1)
    world.put(IN_FLIGHT, 0, own=True)
    world.pass_s(59)
    assert world.state() == "ALARM"
    world.pass_s(1)
    assert world.state() == "OK"


def test_the_period_alone_can_set_off_an_alarm() -> None:
    """The newest second does not breach, the period does."""
    world = World()
    world.publish(QUEUE, 100, 59)
    world.publish(QUEUE, 0, 1)
    world.call("PutMetricAlarm", **on(QUEUE, Threshold=10.0, DatapointsToAlarm=1))
    alarm = world.alarm()
    assert alarm["StateValue"] == "ALARM"
    assert alarm["StateReason"] == (
        "Threshold Crossed: 1 out of the last 1 datapoints [98.33333333333333 (14/11/23 22:14:00)] was greater than the threshold "
        "(10.0) (minimum 1 datapoint for OK -> ALARM transition). Evaluated on the period of 60 seconds."
    )


def test_aws_timing_waits_for_the_end_of_the_window() -> None:
    world = World("aws")
    world.publish(QUEUE, 0, 300)
    world.call("PutMetricAlarm", **on(QUEUE, Period=300, Threshold=0.1))
    world.publish(QUEUE, 1, 59)
    assert world.state() == "OK"
    world.publish(QUEUE, 1, 2)
    alarm = world.alarm()
    assert alarm["StateValue"] == "ALARM"
    assert alarm["StateReason"] == (
        "Threshold Crossed: 1 datapoint [0.2 (14/11/23 22:15:00)] was greater than the threshold (0.1)."
    )
    assert "window" not in json.loads(alarm["StateReasonData"])
    world.publish(QUEUE, 0, 240)
    assert world.state() == "ALARM", "windows slide by a minute, and the busy one is still in the last of them"
    world.publish(QUEUE, 0, 60)
    assert world.state() == "OK"


def test_requests_to_a_policy_follow_the_value_while_the_alarm_stays() -> None:
    """50 messages become 150: the scaling policy receives both values."""
    world = World()

    def asks() -> list[tuple[str, float | None, float | None]]:
        assert all(policy == POLICY for policy, *_ in world.requests["busy"])
        return [tuple(values) for _, *values in world.requests["busy"]]

    world.call("PutMetricAlarm", **on(QUEUE, AlarmActions=[POLICY, TOPIC], OKActions=[POLICY]))
    assert asks() == []
    world.publish(QUEUE, 50, 30)
    assert asks() == [("ALARM", None, 50.0)]
    world.publish(QUEUE, 150, 29)
    assert asks() == [("ALARM", None, 150.0)]
    world.publish(QUEUE, 150, 1)
    assert asks() == [("ALARM", 100.0, 150.0)]
    world.publish(QUEUE, 0, 130)
    assert asks() == [("OK", 0.0, 0.0)]
    [sent] = world.notifications
    assert (sent["topic"], sent["subject"]) == (TOPIC, 'ALARM: "busy" in US East (N. Virginia)')
    data = json.dumps({"recentDatapoints": [7]})
    world.call("SetAlarmState", AlarmName="busy", StateValue="ALARM", StateReason="for a test", StateReasonData=data)
    assert asks() == [("ALARM", 7.0, None)]
    world.publish(QUEUE, 0, 60)
    assert asks() == [("OK", 0.0, 0.0)]
    assert len(world.notifications) == 2
    world.call("DisableAlarmActions", AlarmNames=["busy"])
    assert asks() == []
    world.publish(QUEUE, 5, 1)
    assert (world.state(), asks(), len(world.notifications)) == ("ALARM", [], 2)


def test_a_deleted_or_updated_alarm_withdraws_its_requests() -> None:
    world = World()
    world.call("PutMetricAlarm", **on(QUEUE, AlarmActions=[POLICY]))
    world.publish(QUEUE, 5, 1)
    assert world.requests["busy"] == [[POLICY, "ALARM", None, 5.0]]
    world.call("PutMetricAlarm", **on(QUEUE, AlarmActions=[TOPIC]))
    assert world.requests["busy"] == []
    world.call("PutMetricAlarm", **on(QUEUE, AlarmActions=[POLICY]))
    world.publish(QUEUE, 6, 1)
    assert world.requests["busy"] == [[POLICY, "ALARM", None, 6.0]]
    world.call("DeleteAlarms", AlarmNames=["busy"])
    assert world.requests["busy"] == []


def test_an_early_alarm_requests_scaling_at_once() -> None:
    world = World()
    world.call("PutMetricAlarm", **on(LOAD, Statistic="Maximum", AlarmActions=[POLICY]))
    world.put(LOAD, 5, resolution_s=60)
    assert world.requests["busy"] == [[POLICY, "ALARM", 5.0, None]]


# Metrics of others


@pytest.mark.parametrize(
    ("statistic", "comparison", "threshold", "values", "expected"),
    [
        ("Maximum", "GreaterThanThreshold", 5.0, [9], "ALARM"),
        ("Minimum", "LessThanThreshold", 5.0, [1], "ALARM"),
        ("Sum", "GreaterThanThreshold", 5.0, [3, 3], "ALARM"),
        ("Sum", "GreaterThanThreshold", 5.0, [-1, 9], "INSUFFICIENT_DATA"),
        ("Average", "GreaterThanThreshold", 5.0, [9], "INSUFFICIENT_DATA"),
        ("p90", "LessThanThreshold", 5.0, [1], "INSUFFICIENT_DATA"),
        ("Sum", "LessThanThreshold", 5.0, [1], "INSUFFICIENT_DATA"),
    ],
)
@pytest.mark.parametrize("timing", ["fast", "aws"])
def test_an_open_window_may_set_off_an_alarm(
    timing: str, statistic: str, comparison: str, threshold: float, values: list[float], expected: str
) -> None:
    world = World(timing)
    world.call("PutMetricAlarm", **on(LOAD, Statistic=statistic, ComparisonOperator=comparison, Threshold=threshold))
    for value in values:
        world.put(LOAD, value, resolution_s=60)
    assert world.state() == (expected if timing == "fast" else "INSUFFICIENT_DATA")
    world.pass_s(60)
    assert world.state() == "ALARM"


def test_the_datapoints_that_decided_a_state() -> None:
    """`evaluatedDatapoints` has as many of the newest windows as the state needs, and the reason says how others were treated."""
    world = World("aws")
    world.call(
        "PutMetricAlarm", **on(LOAD, EvaluationPeriods=3, DatapointsToAlarm=2, Threshold=5.0, TreatMissingData="notBreaching")
    )

    def decided() -> list[tuple[str, float | None, float | None]]:
        found = json.loads(world.alarm()["StateReasonData"])["evaluatedDatapoints"]
        return [(each["timestamp"][14:19], each.get("sampleCount"), each.get("value")) for each in found]

    for values in ((9, 1), (9,), (7, 7)):
        for value in values:
            world.put(LOAD, value, resolution_s=60)
        world.pass_s(60)
    assert world.state() == "ALARM" and decided() == [("16:00", 2.0, 7.0), ("15:00", 1.0, 9.0)]
    world.pass_s(240)
    assert world.state() == "OK" and decided() == [("20:00", None, None), ("19:00", None, None)]
    world.call("PutMetricAlarm", **on(LOAD, AlarmName="low", EvaluationPeriods=3, Threshold=8.0, TreatMissingData="notBreaching"))
    alarm = world.alarm("low")
    assert alarm["StateReason"] == (
        "Threshold Crossed: 1 datapoint [7.0 (14/11/23 22:16:00)] was not greater than the threshold (8.0) "
        "and 2 missing datapoints were treated as [NonBreaching]."
    )


def test_several_publishers_write_to_one_minute() -> None:
    """Datapoints without StorageResolution 1 belong to their whole minute: the first one says little about the average."""
    world = World()
    world.call("PutMetricAlarm", **on(LOAD, Threshold=60.0, AlarmActions=[POLICY]))
    for first, second, expected in ((100, 0, "OK"), (100, 40, "ALARM"), (100, 0, "OK")):
        world.put(LOAD, first, resolution_s=60)
        world.pass_s(7)
        world.put(LOAD, second, resolution_s=60)
        before = world.state()
        world.pass_s(52)
        assert world.state() == before
        world.pass_s(1)
        assert world.state() == expected
    assert [each for each in world.history() if "to ALARM" in each] == ["Alarm updated from OK to ALARM"]
    world.put(LOAD, 100, resolution_s=1)  # a datapoint with the resolution of a second counts at once
    world.put(LOAD, 100, resolution_s=1)
    assert world.state() == "ALARM"


@pytest.mark.parametrize("second", [1, 35, 59])
@pytest.mark.parametrize("period_s", [10, 20, 30])
def test_an_alarm_with_a_short_period_sees_datapoints_of_whole_minutes(period_s: int, second: int) -> None:
    world = World()
    world.call("PutMetricAlarm", **on(LOAD, Period=period_s))
    world.pass_s(second)
    world.put(LOAD, 5, resolution_s=60)
    world.pass_s(10 - second % 10)
    alarm = world.alarm()
    assert (alarm["StateValue"], json.loads(alarm["StateReasonData"])["recentDatapoints"]) == ("ALARM", [5.0])
    world.pass_s(120)
    assert world.state() == "INSUFFICIENT_DATA"
    world.put(LOAD, 5)  # with the resolution of a second, older windows do not count
    world.pass_s(10)
    assert world.state() == "ALARM"
    world.pass_s(3 * period_s)
    assert world.state() == "INSUFFICIENT_DATA"


def test_one_datapoint_does_not_decide_the_average_of_a_busy_minute() -> None:
    world = World()
    world.call("PutMetricAlarm", **on(LOAD, Threshold=5.0))
    for value in (0, 9):
        for _ in range(20):
            world.put(LOAD, value)
        assert world.state() == ("OK" if value else "INSUFFICIENT_DATA"), "the average of both minutes is 4.5"
        world.pass_s(60)
    assert world.state() == "ALARM"


def test_a_late_datapoint_is_evaluated_when_it_arrives() -> None:
    world = World("aws")
    world.call("PutMetricAlarm", **on(LOAD))
    world.put(LOAD, 5, ago_s=60)
    assert world.state() == "ALARM"


def test_high_resolution_alarms_are_evaluated_every_ten_seconds() -> None:
    world = World("aws")
    world.call("PutMetricAlarm", **on(LOAD, Period=10))
    world.put(LOAD, 5)
    world.pass_s(9)
    assert world.state() == "INSUFFICIENT_DATA"
    world.pass_s(1)
    assert world.state() == "ALARM"


def test_an_alarm_without_data_is_not_evaluated() -> None:
    world = World()
    world.call("PutMetricAlarm", **on(LOAD))
    assert world.core.next_due_s() is None
    world.put(LOAD, 5)
    assert world.core.next_due_s() == MINUTE_S + 60
    world.pass_s(60)
    assert world.state() == "ALARM"
    world.pass_s(180)  # its datapoint has left the evaluation range
    alarm = world.alarm()
    assert (alarm["StateValue"], alarm["StateReason"]) == ("INSUFFICIENT_DATA", "Insufficient Data: 1 datapoint was unknown.")
    assert world.core.next_due_s() is None


def test_a_datapoint_in_the_future_wakes_the_alarm() -> None:
    world = World()
    world.put(LOAD, 5, ago_s=-3600)
    world.call("PutMetricAlarm", **on(LOAD))
    world.pass_s(3600)
    assert world.state() == "INSUFFICIENT_DATA"
    world.pass_s(60)
    assert world.state() == "ALARM"


@pytest.mark.parametrize(
    ("missing", "expected", "reason"),
    [
        ("missing", "INSUFFICIENT_DATA", "Insufficient Data: 3 datapoints were unknown."),
        ("ignore", "OK", None),
        ("breaching", "ALARM",
         "Threshold Crossed: no datapoints were received for 3 periods and 3 missing datapoints were treated as [Breaching]."),
        ("notBreaching", "OK", None),
    ],
)  # fmt: skip
def test_missing_data(missing: str, expected: str, reason: str | None) -> None:
    world = World()
    world.call("PutMetricAlarm", **on(LOAD, EvaluationPeriods=3, TreatMissingData=missing))
    for _ in range(3):
        world.put(LOAD, 0)
        world.pass_s(60)
    assert world.state() == "OK"
    world.pass_s(600)
    alarm = world.alarm()
    assert alarm["StateValue"] == expected
    assert reason is None or alarm["StateReason"] == reason


def test_a_percentile_of_few_samples_changes_no_state() -> None:
    world = World()
    config = on(LOAD, ExtendedStatistic="p90", EvaluateLowSampleCountPercentile="ignore")
    del config["Statistic"]
    world.call("PutMetricAlarm", **config)
    for _ in range(99):
        world.put(LOAD, 5)
    world.pass_s(60)
    assert world.state() == "INSUFFICIENT_DATA"
    for _ in range(100):
        world.put(LOAD, 5)
    world.pass_s(60)
    assert world.state() == "ALARM"


def test_an_alarm_on_an_expression() -> None:
    """Messages per worker. Corral publishes both metrics, so the newest second is evaluated."""
    world = World()
    workers = Metric(REGION, "AWS/ECS", "CPUReservation", (("ClusterName", "c"),))

    def stat(id: str, metric: Metric) -> dict[str, Any]:
        names = [{"Name": name, "Value": value} for name, value in metric.dimensions]
        described = {"Namespace": metric.namespace, "MetricName": metric.name, "Dimensions": names}
        return {"Id": id, "ReturnData": False, "MetricStat": {"Metric": described, "Period": 60, "Stat": "Average"}}

    ratio = {"Id": "each", "Expression": "messages / workers", "Label": "messages for each worker"}
    config = on(QUEUE, Metrics=[stat("messages", QUEUE), stat("workers", workers), ratio], Threshold=5.0)
    for member in ("Namespace", "MetricName", "Dimensions", "Statistic", "Period"):
        del config[member]
    world.call("PutMetricAlarm", **config)
    for messages, expected in ((8, "OK"), (30, "ALARM")):
        for _ in range(60):
            world.put(workers, 2, own=True)
            world.put(QUEUE, messages, own=True)
            world.pass_s(1)
        assert world.state() == expected
    assert "was greater than the threshold (5.0). Evaluated on the newest second." in world.alarm()["StateReason"]
    assert world.call("DescribeAlarmsForMetric", Namespace=QUEUE.namespace, MetricName=QUEUE.name)["MetricAlarms"] == []


def test_a_new_alarm_waits_for_its_warm_up() -> None:
    world = World()
    warm_up = {"WarmUpPeriodDurationInMinutes": 5, "OnlyStartEvaluatingAfterWarmUpPeriodEnds": True}
    world.call("PutMetricAlarm", **on(LOAD, WarmUpConfiguration=warm_up))
    for _ in range(5):
        assert world.state() == "INSUFFICIENT_DATA"
        world.put(LOAD, 5)
        world.pass_s(60)
    assert world.state() == "ALARM"


def test_set_alarm_state_lasts_until_the_next_window_ends() -> None:
    world = World()
    world.call("PutMetricAlarm", **on(LOAD))
    world.put(LOAD, 0)
    world.pass_s(60)
    world.call("SetAlarmState", AlarmName="busy", StateValue="ALARM", StateReason="for a test", StateReasonData='{"a": 1}')
    alarm = world.alarm()
    assert (alarm["StateValue"], alarm["StateReason"], alarm["StateReasonData"]) == ("ALARM", "for a test", '{"a": 1}')
    world.pass_s(60)
    assert world.state() == "OK"


def test_an_update_keeps_the_state_and_replaces_the_configuration() -> None:
    world = World()
    world.call("PutMetricAlarm", **on(LOAD, AlarmDescription="first", Statistic="Maximum"))
    world.put(LOAD, 5)
    assert world.state() == "ALARM"
    world.call("PutMetricAlarm", **on(LOAD, Statistic="Maximum", ActionsEnabled=False))
    alarm = world.alarm()
    assert (alarm["StateValue"], alarm["ActionsEnabled"], "AlarmDescription" in alarm) == ("ALARM", False, False)


# Composite alarms


def composite(**more: Any) -> dict[str, Any]:
    return {"AlarmName": "all", "AlarmRule": "ALARM(a) AND NOT ALARM(b)", **more}


def three(timing: str = "fast") -> World:
    world = World(timing)
    for name in ("a", "b", "s"):
        world.call("PutMetricAlarm", **on(Metric(REGION, "Demo", name), AlarmName=name, TreatMissingData="ignore"))
    return world


def put_state(world: World, name: str, state: str) -> None:
    world.call("SetAlarmState", AlarmName=name, StateValue=state, StateReason="for a test")


def test_a_composite_alarm_follows_its_rule() -> None:
    world = three()
    world.call("PutCompositeAlarm", **composite(AlarmActions=[TOPIC]))
    arn = "arn:aws:cloudwatch:us-east-1:123456789012:alarm:"
    alarm = world.alarm("all")
    assert (alarm["StateValue"], alarm["StateReason"]) == ("OK", f"{arn}all was created and its alarm rule evaluates to OK")
    put_state(world, "a", "ALARM")
    alarm = world.alarm("all")
    assert alarm["StateValue"] == "ALARM"
    assert alarm["StateReason"] == f"{arn}a transitioned to ALARM at Tuesday 14 November, 2023 22:14:00 UTC"
    assert json.loads(alarm["StateReasonData"])["triggeringAlarms"][0]["state"]["value"] == "ALARM"
    put_state(world, "b", "ALARM")
    assert world.state("all") == "OK"
    assert len(world.history("all", "CompositeAlarm")) == 4
    [message] = [json.loads(each["message"]) for each in world.notifications]
    assert (message["AlarmName"], message["NewStateValue"], message["OldStateValue"]) == ("all", "ALARM", "OK")
    assert (message["AlarmRule"], message["AlarmActions"]) == (composite()["AlarmRule"], [TOPIC])
    [child] = message["TriggeringChildren"]
    assert (child["Arn"], child["State"]["Value"]) == (f"{arn}a", "ALARM")


def test_composite_alarms_of_composite_alarms_and_cycles() -> None:
    world = three()
    world.call("PutCompositeAlarm", **composite(AlarmName="low", AlarmRule="ALARM(a)"))
    world.call("PutCompositeAlarm", **composite(AlarmName="high", AlarmRule="ALARM(low) OR ALARM(b)"))
    put_state(world, "a", "ALARM")
    assert (world.state("low"), world.state("high")) == ("ALARM", "ALARM")
    world.call("PutCompositeAlarm", **composite(AlarmName="low", AlarmRule="ALARM(a) AND ALARM(high)"))
    put_state(world, "a", "OK")
    assert (world.state("low"), world.state("high")) == ("ALARM", "ALARM"), "who depends on itself is not evaluated"
    with pytest.raises(ApiError, match="depending on it"):
        world.call("DeleteAlarms", AlarmNames=["low"])
    world.call("PutCompositeAlarm", **composite(AlarmName="low", AlarmRule="FALSE"))
    assert (world.state("low"), world.state("high")) == ("OK", "OK")
    world.call("DeleteAlarms", AlarmNames=["high", "b"])


def test_a_suppressor_suppresses_actions() -> None:
    world = three()

    def acted() -> int:
        return len(world.notifications)

    world.call("PutCompositeAlarm", **composite(
        AlarmRule="ALARM(a)", AlarmActions=[TOPIC], ActionsSuppressor="s", ActionsSuppressorWaitPeriod=20,
        ActionsSuppressorExtensionPeriod=30,
    ))  # fmt: skip
    world.pass_s(20)
    put_state(world, "a", "ALARM")
    assert (world.alarm("all")["ActionsSuppressedBy"], acted()) == ("WaitPeriod", 0)
    world.pass_s(10)
    put_state(world, "s", "ALARM")
    assert world.alarm("all")["ActionsSuppressedBy"] == "Alarm"
    world.pass_s(100)
    assert (world.alarm("all")["ActionsSuppressedBy"], acted()) == ("Alarm", 0)
    put_state(world, "s", "OK")
    assert world.alarm("all")["ActionsSuppressedBy"] == "ExtensionPeriod"
    world.pass_s(29)
    assert acted() == 0
    world.pass_s(2)
    assert ("ActionsSuppressedBy" in world.alarm("all"), acted()) == (False, 1)
    put_state(world, "a", "OK")
    put_state(world, "a", "ALARM")
    world.pass_s(60)
    assert acted() == 1, "it came back to the state for which it acted last"


# What is in memory


def test_a_rollback_restores_alarms() -> None:
    world = World()
    world.call("PutMetricAlarm", **on(LOAD))

    def fails(tx: Tx[MetricStore]) -> None:
        HANDLERS["PutMetricAlarm"](tx, on(QUEUE), CALLER)
        HANDLERS["PutMetricAlarm"](tx, on(QUEUE, AlarmName="other"), CALLER)
        HANDLERS["DeleteAlarms"](tx, {"AlarmNames": ["busy"]}, CALLER)
        raise ApiError("no")

    with pytest.raises(ApiError, match="no"):
        world.run(fails)
    assert world.alarm()["Namespace"] == "Demo"
    assert set(world.store.alarms.watching) == {LOAD}
    assert world.store.alarms.get(REGION, "other") is None
    world.store.full = True
    with pytest.raises(ApiError, match="could not be written"):
        world.call("PutMetricAlarm", **on(QUEUE))
    world.store.full = False
    assert set(world.store.alarms.watching) == {LOAD}
    world.put(LOAD, 5)
    world.pass_s(60)
    assert world.state() == "ALARM"


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    world = World(path=tmp_path / "metrics.db")
    world.call("PutMetricAlarm", **on(LOAD, Statistic="Maximum", AlarmActions=[POLICY]))
    world.call("PutCompositeAlarm", AlarmName="all", AlarmRule="ALARM(busy)")
    world.put(LOAD, 5)
    world.pass_s(60)
    before = world.alarm(), world.alarm("all"), world.history()
    world.store.close()
    again = World(path=tmp_path / "metrics.db")
    again.clock.advance(60)
    again.pass_s(0)
    assert (again.alarm(), again.alarm("all"), again.history()) == before
    assert again.requests["busy"] == world.requests["busy"] == [[POLICY, "ALARM", 5.0, None]], "repeated after a restart"
    again.pass_s(300)
    assert (again.state(), again.state("all")) == ("INSUFFICIENT_DATA", "OK")


def test_history_is_stored_for_a_month() -> None:
    world = World()
    world.run(lambda tx: tx.due("history:", tx.now_s))
    world.call("PutMetricAlarm", **on(LOAD))
    world.pass_s(29 * 86_400)
    world.call("DisableAlarmActions", AlarmNames=["busy"])
    assert world.history() == ['Alarm "busy" created', 'Alarm "busy" updated']
    world.pass_s(2 * 86_400)
    assert world.history() == ['Alarm "busy" updated']


def test_an_unchanged_alarm_writes_nothing() -> None:
    """A steady alarm is evaluated every minute without a write."""
    world = World()
    world.call("PutMetricAlarm", **on(LOAD))
    for minute in range(5):
        world.put(LOAD, 5, ago_s=-60 * minute)
    world.pass_s(60)
    changes = world.store.connection.total_changes
    world.pass_s(240)
    assert world.store.connection.total_changes == changes
    assert world.store.alarms.get(REGION, "busy").state is AlarmState.ALARM  # type: ignore[union-attr]
