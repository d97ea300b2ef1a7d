"""Alarms and Auto Scaling groups on one virtual clock: the lanes of state and metrics, with their hand-overs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from corral.core.commands import Command
from corral.core.core import Core, Outcome
from corral.core.database import Handover
from corral.core.errors import ApiError
from corral.core.handovers import receive
from corral.core.ids import RandomIds
from corral.model.metric import Metric, Point
from corral.model.settings import ScalingTimes, Settings
from corral.reconcile import METRICS
from corral.reconcile.receivers import RECEIVERS
from corral.services.cloudwatch.handlers import HANDLERS
from corral.services.cloudwatch.metric_writes import record
from corral.telemetry import MetricStore
from virtual_clock.group_world import CALLER, REGION, GroupWorld

QUEUE = Metric(REGION, "AWS/SQS", "ApproximateNumberOfMessagesVisible", (("QueueName", "jobs"),))
LOAD = Metric(REGION, "Demo", "Load")
STEPS = [  # of the seed's policy, with a threshold of 0
    {"MetricIntervalLowerBound": 0.0, "MetricIntervalUpperBound": 1.0, "ScalingAdjustment": 0},
    {"MetricIntervalLowerBound": 1.0, "MetricIntervalUpperBound": 100.0, "ScalingAdjustment": 1},
    {"MetricIntervalLowerBound": 100.0, "ScalingAdjustment": 2},
]


class HandingCore(Core[Any]):
    """A core that keeps the hand-overs of its transactions until the world delivers them."""

    def __init__(self, *store: Any, **more: Any) -> None:
        super().__init__(*store, **more)
        self.handed: deque[Handover] = deque()

    def transact(self, commands: Sequence[Command]) -> Outcome:
        outcome = super().transact(commands)
        assert not outcome.faults, outcome.faults[0]
        finished = set(outcome.finished)
        self.handed = deque(each for each in self.handed if each.id not in finished)
        self.handed.extend(handover for handover, _ in outcome.handed)
        return outcome


class ScalingWorld(GroupWorld):
    core_type = HandingCore

    def __init__(self, timing: str = "fast", gpus: int = 8, scaling: ScalingTimes | None = None) -> None:
        settings = Settings(alarm_timing=timing, scaling=scaling or ScalingTimes())
        self.lanes: dict[str, HandingCore] = {}
        super().__init__(gpus, settings)
        self.metrics = HandingCore(MetricStore(None), settings=settings, clock=self.clock, ids=RandomIds(), reconcilers=METRICS)
        assert isinstance(self.core, HandingCore)
        self.lanes = {"state": self.core, "metrics": self.metrics}

    def run(self, handler: Any) -> Any:
        answer = super().run(handler)
        self.deliver()
        return answer

    def deliver(self) -> None:
        """Deliver hand-overs until both lanes have none."""
        while sending := [lane for lane in self.lanes.values() if lane.handed]:
            handover = sending[0].handed.popleft()
            take = partial(receive, receivers=RECEIVERS[handover.lane], handover=handover, finished=[])
            self.lanes[handover.lane].transact([Command(take, lambda answer: None)])
            sending[0].delivered.append(handover.id)

    def due_s(self) -> tuple[float, Any] | None:
        due = [(at_s, lane) for lane in self.lanes.values() if (at_s := lane.next_due_s()) is not None]
        return min(due, key=lambda each: each[0], default=None)

    def settle(self, most: int = 1000) -> None:
        self.wait(0.005)

    def wait(self, seconds: float) -> None:
        end_s = self.clock.now_s() + seconds
        while (due := self.due_s()) is not None and due[0] <= end_s:
            self.clock.advance(max(0.0, due[0] - self.clock.now_s()) + 1e-6)
            due[1].transact([])
            self.deliver()
        self.clock.advance(max(0.0, end_s - self.clock.now_s()))

    def watch(self, operation: str, /, **params: Any) -> Any:
        """Call an operation of CloudWatch."""
        return self._measure(lambda tx: HANDLERS[operation](tx, params, CALLER))

    def _measure(self, handler: Any) -> Any:
        answer = self.metrics.transact([Command(handler, lambda answer: None)]).answers[0][1]
        if isinstance(answer, ApiError):
            raise answer
        self.deliver()
        return answer

    def publish(self, value: float, seconds: int = 1, metric: Metric = QUEUE) -> None:
        """Publish a value once a second, as Corral does with its own metrics."""
        for _ in range(seconds):
            self._measure(partial(record, points=[Point(metric, self.clock.now_s(), float(value), "Count", 1)], own=True))
            self.wait(1)

    def put(self, value: float, metric: Metric = LOAD, resolution_s: int = 60) -> None:
        self._measure(partial(record, points=[Point(metric, self.clock.now_s(), float(value), "None", resolution_s)], own=False))
        self.settle()

    # Shorthands

    def policy(self, name: str = "p", group: str = "g", **more: Any) -> str:
        """Put a step policy; without other steps, that of the seed."""
        given = {"PolicyType": "StepScaling", "AdjustmentType": "ExactCapacity", "StepAdjustments": STEPS, **more}
        given = {member: value for member, value in given.items() if value is not None}
        return str(self.call("PutScalingPolicy", AutoScalingGroupName=group, PolicyName=name, **given)["PolicyARN"])

    def alarm(self, name: str = "busy", metric: Metric = QUEUE, **more: Any) -> None:
        given = {
            "Namespace": metric.namespace,
            "MetricName": metric.name,
            "Dimensions": [{"Name": key, "Value": value} for key, value in metric.dimensions],
            "Statistic": "Average",
            "Period": 60,
            "EvaluationPeriods": 1,
            "Threshold": 0.0,
            "ComparisonOperator": "GreaterThanThreshold",
        }
        self.watch("PutMetricAlarm", AlarmName=name, **given | more)

    def set_state(self, state: str, value: float | None = None, name: str = "busy") -> None:
        data = {"StateReasonData": f'{{"recentDatapoints": [{value}]}}'} if value is not None else {}
        self.watch("SetAlarmState", AlarmName=name, StateValue=state, StateReason="a test", **data)
        self.settle()

    def state(self, name: str = "busy") -> str:
        return str(self.watch("DescribeAlarms", AlarmNames=[name])["MetricAlarms"][0]["StateValue"])

    def desired(self, name: str = "g") -> int:
        return int(self.shown(name)["DesiredCapacity"])

    def acted(self, name: str = "busy") -> list[str]:
        """What the history of an alarm says about its actions, oldest first, without the ARN of the policy."""
        found = self.watch("DescribeAlarmHistory", AlarmName=name, HistoryItemType="Action", ScanBy="TimestampAscending")
        return [
            " ".join(word.rpartition("/")[2] for word in each["HistorySummary"].split(" ")) for each in found["AlarmHistoryItems"]
        ]
