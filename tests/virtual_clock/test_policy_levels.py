"""Scaling policies follow the level of a metric: after any disturbance, the capacity returns to what the policy wants."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from corral.core.errors import ApiError
from examples import examples
from virtual_clock.app_scaling_world import PLACE, AppScalingWorld
from virtual_clock.scaling_world import STEPS

GROUP = {"AutoScalingGroupName": "g"}
MOST = 4
LONGEST_WAIT_S = 300 + 60 + 60  # the longest cooldown, the next window of the alarm, and the wait after a change by a user
WANTED = {0: 0, 1: 1, 50: 1, 150: 2}  # messages → the capacity of STEPS


class Levels(AppScalingWorld):
    """A group and a service. Each has a step policy of an alarm on the same queue, and a seed disturbs them."""

    def __init__(self, seed: int, timing: str) -> None:
        super().__init__(timing)
        self.rng = Random(seed)
        self.log: list[str] = []
        self.depth, self.every_s = 0, self.rng.choice((1, 60))
        self.group(most=MOST, DefaultInstanceWarmup=0)
        self.scaled(desired=0, least=0, most=MOST)
        self.put_policies()
        self.put_alarm()

    def put_policies(self) -> None:
        steps = {"AdjustmentType": "ExactCapacity", "StepAdjustments": STEPS}
        self.group_policy = self.policy()
        made = self.app(
            "PutScalingPolicy", **PLACE, PolicyName="p", PolicyType="StepScaling",
            StepScalingPolicyConfiguration={**steps, "Cooldown": self.rng.choice((0, 60, 300))},
        )  # fmt: skip
        self.service_policy = made["PolicyARN"]

    def put_alarm(self) -> None:
        policies = [self.group_policy, self.service_policy]
        self.alarm(AlarmActions=policies, OKActions=policies, TreatMissingData=self.rng.choice(("missing", "notBreaching")))

    def disturb(self) -> None:
        rng = self.rng
        actions: list[tuple[str, Callable[[], Any]]] = [
            ("set the desired capacity", lambda: self.desire(rng.randint(0, MOST))),
            ("update the group", lambda: self.call("UpdateAutoScalingGroup", **GROUP, DesiredCapacity=rng.randint(0, MOST))),
            ("update the service", lambda: self.call("UpdateService", "ecs", service="web", desiredCount=rng.randint(0, MOST))),
            ("deploy", lambda: self.call("UpdateService", "ecs", service="web", desiredCount=0, forceNewDeployment=True)),
            ("put the policies", self.put_policies),
            ("put the alarm", self.put_alarm),
            ("disable", lambda: self.watch("DisableAlarmActions", AlarmNames=["busy"])),
            ("enable", lambda: self.watch("EnableAlarmActions", AlarmNames=["busy"])),
            ("delete the alarm", lambda: self.watch("DeleteAlarms", AlarmNames=["busy"])),
            ("delete the service", self._recreate),
            ("send", self._send),
            ("wait", lambda: self.lasts(rng.choice((1, 5, 30, 70)))),
        ]
        name, act = rng.choice(actions)
        self.log.append(name)
        try:
            act()
        except ApiError as refusal:
            self.log.append(refusal.message)
        self.report()
        self.lasts(rng.choice((0, 0, 1, 3)))

    def finish(self) -> None:
        """Leave an alarm whose actions are enabled. Then change the desired capacities a last time."""
        found = self.watch("DescribeAlarms", AlarmNames=["busy"])["MetricAlarms"]
        if not found:
            self.put_alarm()
        elif not found[0]["ActionsEnabled"]:
            self.watch("EnableAlarmActions", AlarmNames=["busy"])
        self.lasts(self.rng.choice((1, 70, 130)))
        self.call("UpdateService", "ecs", service="web", desiredCount=self.rng.randint(0, MOST))
        self.desire(self.rng.randint(0, MOST))

    def _send(self) -> None:
        self.depth = self.rng.choice(tuple(WANTED))
        self.log.append(f"{self.depth} messages")
        self.lasts(1)

    def _recreate(self) -> None:
        self.call("DeleteService", "ecs", service="web", force=True)
        self.report()
        self.lasts(2)
        self.serve(desiredCount=0, launchType="EC2")

    def lasts(self, seconds: int) -> None:
        """Publish the number of messages every second, or only at once and once a minute, as Corral does with a constant number."""
        for second in range(seconds):
            if second % self.every_s == 0:
                self.publish(self.depth)
            else:
                self.wait(1)
            self.report()


@pytest.mark.parametrize("timing", ["fast", "aws"])
def test_the_capacity_follows_the_level(timing: str) -> None:
    for seed in range(examples(6)):
        world = Levels(seed, timing)
        for _ in range(12):
            world.disturb()
        world.finish()
        world.lasts(LONGEST_WAIT_S)
        wanted = WANTED[world.depth]
        assert (world.desired(), world.tasks()) == (wanted, wanted), (seed, world.depth, world.log)
