"""Auto Scaling groups on a virtual clock: a core with one simulated host, and Auto Scaling's, EC2's and SQS's operations."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from answers.recorder import handled
from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core, Outcome
from corral.core.errors import ApiError
from corral.core.ids import RandomIds
from corral.fleet import instances
from corral.model.group import GroupMember
from corral.model.instance import InstanceState
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.operations.services import SERVICES
from corral.reconcile import STATE
from corral.services.ecs import host_reports
from corral.store import Store
from corral.store.groups import Groups
from store.rows import FromRows, fleet_of_rows, hello

REGION = "us-east-1"
CALLER = Caller("123456789012", REGION, root_user("123456789012"))
GPUS_1, GPUS_4, GPUS_8 = "g5.xlarge", "p3.8xlarge", "p3.16xlarge"


def members_of_groups(store: Store) -> dict[str, list[GroupMember]]:
    """Read the members of all groups from the rows."""
    rows = Groups(store)
    return {group.name: rows.members(REGION, group.name) for group in rows.listed(REGION)}


class GroupWorld:
    core_type: type[Core[Any]] = Core

    def __init__(self, gpus: int = 8, settings: Settings | None = None, path: Path | None = None) -> None:
        self.clock = VirtualClock(1_767_225_600.0)  # 2026-01-01T00:00:00Z
        self.settings, self.path = settings or Settings(), path
        self._fleet_of_rows, self._members_of_rows = fleet_of_rows(), FromRows(members_of_groups)
        self.start()
        self.run(lambda tx: host_reports.hello(tx, hello("h", gpus)))
        self.host_reports_until(1e12)

    def start(self) -> None:
        """Start the server on the rows of the store."""
        self.store = Store(self.path)
        self.core = self.core_type(self.store, settings=self.settings, clock=self.clock, ids=RandomIds(), reconcilers=STATE)

    def restart(self) -> None:
        """Kill the server and start it again: only the rows survive."""
        self.store.close()
        self.start()

    def transact(self, commands: Sequence[Command]) -> Outcome:
        outcome = self.core.transact(commands)
        assert not outcome.faults, outcome.faults[0]
        return outcome

    def host_reports_until(self, at_s: float) -> None:
        """The last report of the host: it is silent SILENT_S later."""
        self.run(lambda tx: tx.store.execute("UPDATE host SET seen_at = ?", (at_s,)) and None)
        self.run(lambda tx: tx.mark("host:h"))

    def run(self, handler: Any) -> Any:
        command = Command(handler, lambda answer: None)
        answer = next(answer for each, answer in self.transact([command]).answers if each is command)
        if isinstance(answer, ApiError):
            raise answer
        assert self.store.fleet.snapshot() == self._fleet_of_rows.value(self.store)
        self._check_members()
        return answer

    def _check_members(self) -> None:
        """The members in memory are those of the rows, in the order of their age."""
        for name, expected in self._members_of_rows.value(self.store).items():
            members = self.store.groups.members(REGION, name)
            assert members == expected
            assert members == sorted(members, key=lambda member: (member.created_at_s, member.instance_id))

    def call(self, operation: str, service: str = "autoscaling", /, **params: Any) -> Any:
        handler = SERVICES[service].operations[operation]
        return handled(service, operation, lambda: self.run(lambda tx: handler(tx, params, CALLER)))

    def settle(self, most: int = 1000) -> None:
        """Run what is due now, or in the next milliseconds: large changes are continued in later transactions."""
        for _ in range(most):
            due_s = self.store.next_due_s()
            if due_s is None or due_s > self.clock.now_s() + 0.005:
                return
            self.clock.advance(max(0.0, due_s - self.clock.now_s()) + 1e-6)
            self.transact([])
        raise AssertionError("work is due again and again")

    def wait(self, seconds: float) -> None:
        """Let time pass, and run what becomes due on the way."""
        end_s = self.clock.now_s() + seconds
        self.settle()
        while (due_s := self.store.next_due_s()) is not None and due_s <= end_s:
            self.clock.advance(max(0.0, due_s - self.clock.now_s()) + 1e-6)
            self.settle()
        self.clock.advance(max(0.0, end_s - self.clock.now_s()))
        self.settle()

    # Shorthands

    def configuration(self, name: str = "lc", type_: str = GPUS_1, **more: Any) -> str:
        self.call("CreateLaunchConfiguration", LaunchConfigurationName=name, ImageId="ami-1", InstanceType=type_, **more)
        return name

    def template(self, name: str = "tpl", type_: str = GPUS_1, **more: Any) -> str:
        data = {"ImageId": "ami-1", "InstanceType": type_, **more}
        made = self.call("CreateLaunchTemplate", "ec2", LaunchTemplateName=name, LaunchTemplateData=data)
        return str(made["LaunchTemplate"]["LaunchTemplateId"])

    def group(self, name: str = "g", desired: int = 0, most: int = 10, **more: Any) -> None:
        if not more.keys() & {"LaunchConfigurationName", "LaunchTemplate", "MixedInstancesPolicy", "InstanceId"}:
            if self.store.stored.get("autoscaling", "launch-configuration", REGION, "lc") is None:
                self.configuration()
            more["LaunchConfigurationName"] = "lc"
        given = {"AvailabilityZones": [f"{REGION}a"], "MinSize": 0, "MaxSize": most, "DesiredCapacity": desired, **more}
        if "VPCZoneIdentifier" in more:
            del given["AvailabilityZones"]
        self.call("CreateAutoScalingGroup", AutoScalingGroupName=name, **given)
        self.settle()

    def desire(self, desired: int, name: str = "g") -> None:
        self.call("SetDesiredCapacity", AutoScalingGroupName=name, DesiredCapacity=desired)
        self.settle()

    def shown(self, name: str = "g") -> Any:
        found = self.call("DescribeAutoScalingGroups", AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return found[0] if found else None

    def states(self, name: str = "g") -> list[str]:
        return [each["LifecycleState"] for each in self.shown(name)["Instances"]]

    def ids(self, name: str = "g") -> list[str]:
        return [each["InstanceId"] for each in self.shown(name)["Instances"]]

    def activities(self, name: str = "g") -> list[dict[str, Any]]:
        found = self.call("DescribeScalingActivities", AutoScalingGroupName=name, IncludeDeletedGroups=True)["Activities"]
        return list(found)

    def running(self) -> int:
        """The instances that run, without the host's own."""
        return sum(each.state is InstanceState.RUNNING and not each.is_host for each in self.store.instances.all())

    def kill(self, instance_id: str) -> None:
        """Terminate an instance as a user would, without asking its group."""

        def handler(tx: Any) -> None:
            instances.terminate(tx, tx.store.instances.by_ec2_id(instance_id), "a test")

        self.run(handler)
        self.settle()

    def versions(self, name: str = "g") -> list[str]:
        return sorted(each["LaunchTemplate"]["Version"] for each in self.shown(name)["Instances"])

    def refreshes(self, name: str = "g") -> list[dict[str, Any]]:
        return list(self.call("DescribeInstanceRefreshes", AutoScalingGroupName=name)["InstanceRefreshes"])

    def messages(self, queue: str) -> list[dict[str, Any]]:
        url = self.call("GetQueueUrl", "sqs", QueueName=queue)["QueueUrl"]
        found = self.call("ReceiveMessage", "sqs", QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0).get("Messages", [])
        return [json.loads(each["Body"]) for each in found]


def refused(call: Callable[[], Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value
