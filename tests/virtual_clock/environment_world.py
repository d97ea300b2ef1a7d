"""Compute environments on a virtual clock: environments with Auto Scaling groups, a queue, and jobs that run as they are told."""

from __future__ import annotations

from typing import Any

from corral.model.instance import InstanceState
from corral.model.task import TaskState
from corral.services.batch import compute_environments, environment_groups
from virtual_clock.group_world import GPUS_1, REGION
from virtual_clock.job_world import JobWorld

PROFILE = "ecsInstanceRole"
DELAY_S = 60.0


class EnvironmentWorld(JobWorld):
    """A machine with GPUs, its default network, and an instance profile."""

    def __init__(self, gpus: int = 8, **more: Any) -> None:
        super().__init__(gpus, **more)
        self.host_reports_until(1e12)
        self.call("CreateInstanceProfile", "iam", InstanceProfileName=PROFILE)
        subnets = self.call("DescribeSubnets", "ec2")["Subnets"]
        self.subnet = str(subnets[0]["SubnetId"])
        groups = self.call("DescribeSecurityGroups", "ec2")["SecurityGroups"]
        self.security_group = str(groups[0]["GroupId"])

    def resources(self, *types: str, kind: str = "EC2", least: int = 0, most: int = 256, **more: Any) -> dict[str, Any]:
        """computeResources of a request."""
        return {
            "type": kind,
            "minvCpus": least,
            "maxvCpus": most,
            "instanceTypes": list(types or (GPUS_1,)),
            "instanceRole": PROFILE,
            "subnets": [self.subnet],
            "securityGroupIds": [self.security_group],
            **({"spotIamFleetRole": "arn:aws:iam::123456789012:role/fleet"} if kind == "SPOT" else {}),
            **more,
        }

    def create(self, name: str = "ce", **more: Any) -> Any:
        made = self.batch_call(
            compute_environments.create_compute_environment, computeEnvironmentName=name, **{"type": "MANAGED", **more}
        )
        self.settle()
        return made

    def managed(self, *types: str, name: str = "ce", queue: str = "q", **resources: Any) -> None:
        """Create a managed environment, and a queue that uses it."""
        self.create(name, computeResources=self.resources(*types, **resources))
        if queue:
            self.queue(queue, name)

    def update(self, name: str = "ce", **more: Any) -> None:
        self.batch_call(compute_environments.update_compute_environment, computeEnvironment=name, **more)
        self.settle()

    def delete(self, name: str = "ce") -> None:
        self.batch_call(compute_environments.delete_compute_environment, computeEnvironment=name)
        self.settle()

    def described(self, *names: str) -> list[dict[str, Any]]:
        found = self.batch_call(compute_environments.describe_compute_environments, computeEnvironments=list(names))
        return list(found["computeEnvironments"])

    def shown_environment(self, name: str = "ce") -> dict[str, Any]:
        [found] = self.described(name)
        return found

    def status(self, name: str = "ce") -> tuple[str, str]:
        found = self.shown_environment(name)
        return found["status"], found["statusReason"]

    def vcpus(self, name: str = "ce") -> int:
        return int(self.shown_environment(name)["computeResources"]["desiredvCpus"])

    def types(self) -> list[str]:
        """The types of the instances that run or start, sorted."""
        living = (InstanceState.RUNNING, InstanceState.PENDING)
        return sorted(each.type for each in self.store.instances.slices() if each.state in living)

    def instances_of(self, state: InstanceState = InstanceState.RUNNING) -> list[str]:
        return [f"i-{each.id[:17]}" for each in self.store.instances.slices() if each.state is state]

    def groups_of(self, name: str = "ce") -> dict[str, str]:
        return self.run(lambda tx: environment_groups.state_of(tx, REGION, name).groups)  # type: ignore[no-any-return]

    def instance_of(self, job_id: str) -> str:
        task = self.store.tasks.get(self.job(job_id).task_id)
        assert task is not None and task.instance_id is not None and task.state is not TaskState.STOPPED
        return f"i-{task.instance_id[:17]}"
