"""ECS services on a virtual clock: a group world whose host starts and ends tasks as it was ordered."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from corral.model.run import Observed
from corral.services.ecs import host_reports
from corral.store.deployment_counts import DeploymentCounts
from virtual_clock.group_world import GroupWorld

CLUSTER = "default"
USER_DATA = b64encode(b"#!/bin/bash\necho ECS_CLUSTER=fleet >> /etc/ecs/ecs.config\n").decode()


class ServiceWorld(GroupWorld):
    def define(self, gpus: int = 0) -> None:
        container: dict[str, Any] = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6}
        if gpus:
            container["resourceRequirements"] = [{"type": "GPU", "value": str(gpus)}]
        self.call("RegisterTaskDefinition", "ecs", family="one", containerDefinitions=[container])

    def serve(self, cluster: str = CLUSTER, **more: Any) -> None:
        self.call("CreateService", "ecs", cluster=cluster, serviceName="web", taskDefinition="one", **more)

    def count(self, where: str) -> int:
        found: int = self.store.execute(f"SELECT count(*) FROM task WHERE {where}").fetchone()[0]
        return found

    def report(self) -> None:
        """The host starts and ends its tasks as it was ordered, with one report for each."""
        where = "state = 'PENDING' OR (state = 'RUNNING' AND desired = 'STOPPED')"
        for (task_id,) in self.store.execute(f"SELECT id FROM task WHERE {where} ORDER BY rowid").fetchall():
            task = self.store.tasks.get(task_id)
            assert task is not None
            now_s = self.clock.now_s()
            ended_s = now_s if task.desired.value == "STOPPED" else None
            runs = [Observed(run.attempt_id, 1, task.started_at_s or now_s, ended_s, 0 if ended_s else None) for run in task.runs]
            self.run(lambda tx, runs=runs: host_reports.report(tx, "h", runs))
            self.check_counts()
        self.settle()

    def check_counts(self) -> None:
        for region, cluster, name in self.store.execute("SELECT region, cluster, name FROM ecs_service").fetchall():
            service = self.store.ecs_services.get(region, cluster, name)
            assert service is not None
            assert self.store.tasks.deployment_counts.of(service) == DeploymentCounts(self.store).of(service)

    def service(self, cluster: str = CLUSTER) -> Any:
        return self.call("DescribeServices", "ecs", cluster=cluster, services=["web"])["services"][0]

    def step(self) -> bool:
        """Run the next transaction that is due within milliseconds."""
        due_s = self.store.next_due_s()
        if due_s is None or due_s > self.clock.now_s() + 0.005:
            return False
        self.clock.advance(max(0.0, due_s - self.clock.now_s()) + 1e-6)
        self.transact([])
        return True
