"""Capacity providers on a virtual clock: a cluster whose tasks run on the instances of an Auto Scaling group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corral.model.settings import ScalingTimes, Settings
from virtual_clock.group_world import GPUS_1
from virtual_clock.service_world import USER_DATA, ServiceWorld

FLEET = "fleet"
DELAY_S = 900.0


class ProviderWorld(ServiceWorld):
    """The capacity provider `gpus` scales the group `g`, whose instances join the cluster `fleet`."""

    def __init__(
        self, gpus: int = 8, scaling: dict[str, Any] | None = None, path: Path | None = None, times: ScalingTimes | None = None,
        type_: str = GPUS_1, protection: bool = False, draining: bool = True, **group: Any,
    ) -> None:  # fmt: skip
        super().__init__(gpus, Settings(scaling=times or ScalingTimes()), path)
        self.configuration("joins", type_, UserData=USER_DATA)
        self.group(LaunchConfigurationName="joins", NewInstancesProtectedFromScaleIn=protection, **group)
        self.call(
            "CreateCapacityProvider", "ecs", name="gpus",
            autoScalingGroupProvider={
                "autoScalingGroupArn": "g",
                "managedScaling": {"status": "ENABLED", **(scaling or {})},
                "managedTerminationProtection": "ENABLED" if protection else "DISABLED",
                "managedDraining": "ENABLED" if draining else "DISABLED",
            },
        )  # fmt: skip
        strategy = [{"capacityProvider": "gpus", "weight": 1}]
        self.call("CreateCluster", "ecs", clusterName=FLEET, capacityProviders=["gpus"], defaultCapacityProviderStrategy=strategy)
        self.define(gpus=1)

    def family(self, name: str, gpus: int = 0, memory: int = 6) -> None:
        container: dict[str, Any] = {"name": "c", "image": "corral/host", "command": ["true"], "memory": memory}
        if gpus:
            container["resourceRequirements"] = [{"type": "GPU", "value": str(gpus)}]
        self.call("RegisterTaskDefinition", "ecs", family=name, containerDefinitions=[container])

    def tasks(self, count: int = 1, family: str = "one", settle: bool = True, **more: Any) -> list[str]:
        """Run tasks, and return their ids."""
        run = self.call("RunTask", "ecs", cluster=FLEET, taskDefinition=family, count=count, **more)
        if settle:
            self.settle()
            self.report()
        return [each["taskArn"].rpartition("/")[2] for each in run["tasks"]]

    def stop(self, *task_ids: str) -> None:
        for task_id in task_ids:
            self.call("StopTask", "ecs", cluster=FLEET, task=task_id)
        self.report()

    def shape(self) -> tuple[int, int]:
        """The desired capacity of the group, and the instances that run."""
        return self.shown()["DesiredCapacity"], self.running()

    def states_of(self, *task_ids: str) -> list[str]:
        return [task.state.value for each in task_ids if (task := self.store.tasks.get(each)) is not None]

    def waiting(self, task_ids: list[str]) -> list[str]:
        return [each for each in task_ids if self.states_of(each) == ["PROVISIONING"]]

    def reason(self, task_id: str) -> str:
        [task] = self.call("DescribeTasks", "ecs", cluster=FLEET, tasks=[task_id])["tasks"]
        return str(task["containers"][0]["reason"])

    def placed_on(self, task_id: str) -> str:
        task = self.store.tasks.get(task_id)
        assert task is not None and task.instance_id is not None
        return f"i-{task.instance_id[:17]}"
