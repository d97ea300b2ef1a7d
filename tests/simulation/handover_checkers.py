"""What one lane causes in another: never without its cause, exactly once in the end, and nothing is left of it."""

from __future__ import annotations

import json
from typing import Any

from corral.core.core import Outcome
from corral.model.metric import Metric
from simulation.checkers import Checker, Violation
from simulation.clients import CALLER, Request
from simulation.host import Host, Process
from simulation.log_clients import GROUP, LINES, LOAD, NAMESPACE, NEVER, PUT

ALL = Metric(CALLER.region, NAMESPACE, LOAD)


class Counts:
    """How many events there are, and how many samples of the metrics that they make."""

    def __init__(self, logs: Any, metrics: Any, now_s: float) -> None:
        messages = logs.execute(
            "SELECT message FROM log_event JOIN log_stream s ON s.id = stream_id JOIN log_group g ON g.id = s.group_id "
            "WHERE g.name = ?",
            (GROUP,),
        )
        self.events: dict[str, int] = {}  # by request
        for (message,) in messages:
            put = json.loads(message)[PUT]
            self.events[put] = self.events.get(put, 0) + 1
        self._metrics, self._now_s = metrics, now_s

    @property
    def total(self) -> int:
        return sum(self.events.values())

    def samples(self, metric: Metric) -> int:
        found = self._metrics.read(metric, start_s=0, end_s=2**40, period_s=2**40, now_s=self._now_s)
        return int(sum(summary.count for summary in found.values()))


class CountedOnce(Checker):
    """Each log event is counted in its metrics once."""

    def answered(self, request: Request, answer: Any) -> None:
        """The metrics are there by then, or somebody still tries to hand them over."""
        if request.operation == "PutLogEvents" and isinstance(answer, dict) and self.world.plane.up:
            put = json.loads(request.params["logEvents"][0]["message"])[PUT]
            counts = self._counts()
            if counts.samples(_of(put)) < counts.events.get(put, 0) and not self.world.plane.lanes["logs"].store.undelivered():
                raise Violation(f"{counts.events[put]} events of {put} are there, and their metrics nowhere")
            if put not in counts.events and "rejectedLogEventsInfo" not in answer:  # after a step of the clock, it is too new
                raise Violation(f"{put} was acknowledged and is not there")

    def telemetry_done(self, outcome: Outcome) -> None:
        counts = self._counts()
        for metric in (ALL, ALL._replace(name=LINES)):
            if counts.samples(metric) > counts.total:
                raise Violation(f"{counts.total} events are there, and {counts.samples(metric)} samples of {metric.name}")

    def finished(self) -> None:
        counts = self._counts()
        found = {put: counts.samples(_of(put)) for put in counts.events}
        if found != counts.events:
            raise Violation(f"events of each request: {counts.events}; samples of their metrics: {found}")
        totals = [counts.samples(ALL), counts.samples(ALL._replace(name=LINES))]
        if totals != [counts.total] * 2 or NEVER in counts.events:
            raise Violation(f"{counts.total} events; samples: {totals}")

    def _counts(self) -> Counts:
        lanes = self.world.plane.lanes
        return Counts(lanes["logs"].store, lanes["metrics"].store, self.world.clock.wall_s())


def _of(put: str) -> Metric:
    return ALL._replace(dimensions=((PUT, put),))


class PoliciesAreAsked(Checker):
    """In the end each scaling policy is asked for what the alarms' states say, and for nothing else."""

    def finished(self) -> None:
        rows = self.world.plane.store.execute("SELECT policy, alarm, state, period_value, newest_value FROM scaling_request")
        found = {(policy, alarm.rpartition(":")[2]): (state, *values) for policy, alarm, state, *values in rows}
        alarms = self.world.plane.lanes["metrics"].store.alarms
        expected = {}
        for alarm in alarms.listed(CALLER.region):
            member = {"ALARM": "AlarmActions", "OK": "OKActions"}.get(alarm.state.value, "")
            remembered = alarms.requested(alarm.id)  # not right after a start or a failed commit
            values = {each.policy: (each.period_value, each.newest_value) for each in remembered or ()}
            for policy in alarm.config.params.get(member, ()):
                about = (policy, alarm.name)
                said = found.get(about, ())[1:] if remembered is None else values.get(policy, ())
                expected[about] = (alarm.state.value, *said)
        if found != expected:
            raise Violation(f"scaling policies are asked for {found}; the alarms say {expected}")


class StreamsAreOpen(Checker):
    """A run whose output goes to a log stream starts when that stream is there."""

    def run_started(self, host: Host, process: Process) -> None:
        plane = self.world.plane
        if process.spec.ships_logs and plane.up and plane.lanes["logs"].store.shipment(process.spec.run_id) is None:
            raise Violation(f"{process.spec.run_id} started before its log stream was opened")


class NothingIsLeft(Checker):
    """In the end no hand-over is left to deliver."""

    def finished(self) -> None:
        for name, lane in self.world.plane.lanes.items():
            if left := lane.store.undelivered():
                raise Violation(f"{name} still has to hand over {left}")
