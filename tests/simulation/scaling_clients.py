"""Clients that scale Auto Scaling groups by alarms: each group has a policy, an alarm, and a load that comes and ends."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from corral.model.group import Group
from corral.services.autoscaling.names import POLICY, documents_of
from simulation.clients import FLEET

if TYPE_CHECKING:
    from simulation.world import World

DEPTH = "Depth"
EVERY_S = 4.0
NAME = "by-depth"
STEPS = [
    {"MetricIntervalLowerBound": 0.0, "MetricIntervalUpperBound": 1.0, "ScalingAdjustment": 0},
    {"MetricIntervalLowerBound": 1.0, "MetricIntervalUpperBound": 5.0, "ScalingAdjustment": 1},
    {"MetricIntervalLowerBound": 5.0, "ScalingAdjustment": 3},
]


class ScalingClients:
    """Without faults there is no load, and each group returns to its minimum size."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = Random(f"scaling of {world.seed}")

    def begin(self) -> None:
        self.world.agenda.after(EVERY_S, self._look)

    def _look(self) -> None:
        """Put the policy and the alarm of each group if they are missing, and publish the load."""
        if self.world.plane.up:
            for group in self._groups():
                self._drive(group)
        self.world.agenda.after(EVERY_S * (0.5 + self._rng.random()), self._look)

    def _drive(self, group: Group) -> None:
        policy = next(documents_of(self.world.reading(), group.region, POLICY, group.name), None)
        if policy is None:
            params = {"AutoScalingGroupName": group.name, "PolicyName": NAME, "PolicyType": "StepScaling"}
            steps = {"AdjustmentType": "ExactCapacity", "StepAdjustments": STEPS, "EstimatedInstanceWarmup": 0}
            self._ask("autoscaling", "PutScalingPolicy", {**params, **steps})
            return
        if alarm_of(group) not in self._alarms_of(policy["PolicyARN"]):
            self._ask("cloudwatch", "PutMetricAlarm", self._alarm(group, policy["PolicyARN"]))
        depth = self._rng.choice((0, 0, 2, 8)) if self.world.faulty else 0
        data = [{"MetricName": DEPTH, "Dimensions": _dimensions(group), "Value": float(depth), "StorageResolution": 1}]
        self._ask("cloudwatch", "PutMetricData", {"Namespace": "Sim", "MetricData": data})

    def _alarms_of(self, policy: str) -> list[str]:
        return [arn.rpartition(":")[2] for arn in self.world.plane.store.scaling.alarms_of(policy)]

    def _alarm(self, group: Group, policy: str) -> dict[str, Any]:
        return {
            "AlarmName": alarm_of(group),
            "Namespace": "Sim",
            "MetricName": DEPTH,
            "Dimensions": _dimensions(group),
            "Statistic": "Maximum",
            "Period": 10,
            "EvaluationPeriods": 1,
            "Threshold": 0.0,
            "ComparisonOperator": "GreaterThanThreshold",
            "AlarmActions": [policy],
            "OKActions": [policy],
        }

    def unsettled(self) -> list[str]:
        return [f"{group.name} still wants {group.desired}" for group in self._groups() if group.desired != group.min_size]

    def _groups(self) -> list[Group]:
        """The groups that alarms scale. A capacity provider scales the other one."""
        return [group for group in self.world.group_clients.groups() if not group.status and group.name != FLEET]

    def _ask(self, service: str, operation: str, params: dict[str, Any]) -> None:
        self.world.clients.ask(operation, params, service=service, again=False)


def alarm_of(group: Group) -> str:
    return f"depth of {group.name}"


def _dimensions(group: Group) -> list[dict[str, str]]:
    return [{"Name": "Group", "Value": group.name}]
