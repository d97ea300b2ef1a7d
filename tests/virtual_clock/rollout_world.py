"""Deployments of ECS services on a virtual clock: a service world whose tasks can fail and become healthy or unhealthy."""

from __future__ import annotations

from typing import Any

from corral.model.run import Observed
from corral.services.ecs import host_reports
from virtual_clock.service_world import ServiceWorld

BREAKER = {"deploymentCircuitBreaker": {"enable": True, "rollback": True}}
CHECK = {"command": ["CMD-SHELL", "true"], "interval": 5, "timeout": 2, "retries": 1}


class RolloutWorld(ServiceWorld):
    def define_checked(self, family: str = "one", gpus: int = 0) -> None:
        """Register a task definition with a health check."""
        container: dict[str, Any] = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6, "healthCheck": CHECK}
        if gpus:
            container["resourceRequirements"] = [{"type": "GPU", "value": str(gpus)}]
        self.call("RegisterTaskDefinition", "ecs", family=family, containerDefinitions=[container])

    def update(self, **more: Any) -> None:
        self.call("UpdateService", "ecs", service="web", **more)
        self.settle()

    def tasks(self, where: str = "desired = 'RUNNING'") -> list[str]:
        return [task_id for (task_id,) in self.store.execute(f"SELECT id FROM task WHERE {where} ORDER BY rowid").fetchall()]

    def observe(self, task_id: str, *, exit_code: int | None = None, health: str | None = None) -> None:
        """The host reports that a task runs, that it has ended, or its health."""
        task = self.store.tasks.get(task_id)
        assert task is not None
        now_s = self.clock.now_s()
        ended_s = now_s if exit_code is not None else None
        runs = [
            Observed(run.attempt_id, 1, task.started_at_s or now_s, ended_s, exit_code, health=health) for run in task.runs
        ]  # fmt: skip
        self.run(lambda tx: host_reports.report(tx, "h", runs))
        self.check_counts()

    def fail_all(self, where: str = "state = 'PENDING'") -> int:
        """All these tasks run for a moment, and end with an error."""
        failed = self.tasks(where)
        for task_id in failed:
            self.observe(task_id)
            self.observe(task_id, exit_code=1)
        self.settle()
        return len(failed)

    def crash(self, seconds: float = 60.0) -> None:
        """New tasks crash at once, until no new ones start for a while."""
        end_s = self.clock.now_s() + seconds
        while self.clock.now_s() < end_s:
            if not self.fail_all():
                self.wait(1.0)

    def rollouts(self) -> list[dict[str, Any]]:
        listed = self.call("ListServiceDeployments", "ecs", service="web")["serviceDeployments"]
        arns = [each["serviceDeploymentArn"] for each in listed]
        return list(self.call("DescribeServiceDeployments", "ecs", serviceDeploymentArns=arns)["serviceDeployments"])

    def messages(self, _: str = "") -> list[Any]:
        """The events of the service, oldest first, without the name of the service."""
        return [each["message"].removeprefix("(service web) ") for each in reversed(self.service()["events"])]
