"""People who write logs with metrics in them, and set alarms on these that ask scaling policies for more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.telemetry import LogStore
from simulation.clients import CALLER, HANDLERS

if TYPE_CHECKING:
    from simulation.world import World

TASKS_GROUP = "g"  # what the tasks of the other clients write to
GROUP = "/sim"
STREAMS = 2
NAMESPACE = "Sim"
LOAD, LINES, PUT = "Load", "Lines", "put"  # what events say of themselves; what the filter counts; the dimension of a request
ALARMS = 2
POLICY = "arn:aws:autoscaling:us-east-1:123456789012:scalingPolicy:x:autoScalingGroupName/g:policyName/p{}"
NEVER = "never"  # the request of events that are taken back


def event(at_ms: int, put: str, value: int) -> dict[str, Any]:
    """It makes a metric of all events, and one of those of its request."""
    directive = {"Namespace": NAMESPACE, "Dimensions": [[], [PUT]], "Metrics": [{"Name": LOAD}]}
    about = {"Timestamp": at_ms, "CloudWatchMetrics": [directive]}
    return {"timestamp": at_ms, "message": json.dumps({"_aws": about, LOAD: value, PUT: put})}


class LogClients:
    def __init__(self, world: World) -> None:
        self.world = world

    def begin(self) -> None:
        self._ask("logs", "CreateLogGroup", {"logGroupName": TASKS_GROUP})
        for number in range(self.world.plan.log_requests):
            when_s = 0.0 if number == 0 else self.world.plan.safety_s * self.world.rng.random()
            self.world.agenda.after(when_s, self._put_alarm if number == 0 else self._something)

    def _something(self) -> None:
        if not self.world.faulty:
            return
        alarm, dice = f"a{self.world.rng.randrange(ALARMS)}", self.world.rng.random()
        if dice < 0.7:
            self._write()
        elif dice < 0.85:
            self._put_alarm()
        elif dice < 0.95:
            state = {"AlarmName": alarm, "StateValue": self.world.rng.choice(("OK", "ALARM")), "StateReason": "a person says so"}
            self._ask("cloudwatch", "SetAlarmState", state)
        else:
            self._ask("cloudwatch", "DeleteAlarms", {"AlarmNames": [alarm]})

    def _write(self) -> None:
        """What is needed for it is asked for in the same breath, so that no event comes without the filter that counts it."""
        rng, put = self.world.rng, f"p{len(self.world.clients.requests)}"
        stream = {"logGroupName": GROUP, "logStreamName": f"s{rng.randrange(STREAMS)}"}
        counts = {"metricNamespace": NAMESPACE, "metricName": LINES, "metricValue": "1"}
        count_all = {"logGroupName": GROUP, "filterName": "all", "filterPattern": "", "metricTransformations": [counts]}
        events = [event(self._now_ms(), put, rng.randrange(10)) for _ in range(rng.choice((1, 1, 3)))]
        self._ask("logs", "CreateLogGroup", {"logGroupName": GROUP}, again=False)
        self._ask("logs", "PutMetricFilter", count_all, again=False)
        self._ask("logs", "CreateLogStream", stream, again=False)
        self._ask("logs", "PutLogEvents", {**stream, "logEvents": events}, again=rng.random() < 0.5)

    def _put_alarm(self) -> None:
        rng = self.world.rng
        policies = [POLICY.format(number) for number in rng.sample(range(3), 2)]
        params = {
            "AlarmName": f"a{rng.randrange(ALARMS)}",
            "Namespace": NAMESPACE,
            "MetricName": LOAD,
            "Statistic": rng.choice(("Maximum", "Average", "Sum")),
            "Period": rng.choice((10, 60)),
            "EvaluationPeriods": 1,
            "Threshold": 4.0,
            "ComparisonOperator": "GreaterThanThreshold",
            "AlarmActions": policies,
            "OKActions": policies[: rng.choice((0, 1))],
        }
        self._ask("cloudwatch", "PutMetricAlarm", params)

    def _ask(self, service: str, operation: str, params: dict[str, Any], *, again: bool = True) -> None:
        self.world.clients.ask(operation, params, service=service, again=again)

    def _now_ms(self) -> int:
        return round(self.world.clock.wall_s() * 1000)

    def fail_on_purpose(self) -> None:
        """Events are taken, and their metrics handed over, by a command that breaks."""
        at_ms, how = self._now_ms(), self.world.rng.choice((RuntimeError, ApiError))

        def broken(tx: Tx[LogStore]) -> None:
            for number in range(STREAMS):
                if tx.store.stream(CALLER.region, GROUP, f"s{number}") is not None:
                    params = {"logGroupName": GROUP, "logStreamName": f"s{number}", "logEvents": [event(at_ms, NEVER, 1)]}
                    HANDLERS["logs"]["PutLogEvents"](tx, params, CALLER)
            raise how("on purpose")

        if self.world.plane.up:
            self.world.plane.submit(broken, "logs")
