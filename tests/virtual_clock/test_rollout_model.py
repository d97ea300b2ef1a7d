"""Random deployments of an ECS service on a virtual clock: they keep their percentages, and they always end.

Tasks start, crash and change their health at random moments. Meanwhile the desired count changes, and new deployments begin.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from corral.decide.tasks.service_plan import Percentages
from corral.model.ecs_service import FAILED, FAILED_CHECKS
from virtual_clock.rollout_world import RolloutWorld

ENDED = {"SUCCESSFUL", "STOPPED", "ROLLBACK_SUCCESSFUL", "ROLLBACK_FAILED"}
PERCENTAGES = ((100, 200), (0, 100), (50, 200), (0, 200))  # with others, a deployment of one task can be blocked
STEPS = 60


class RandomRollouts(RolloutWorld):
    """Checks after each transaction that the service has kept its percentages."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng, self.log = Random(seed), list[str]()
        self.bad = set[str]()  # deployments whose tasks crash or are unhealthy most of the time
        self.checked = self.rng.random() < 0.5  # whether the tasks have a health check
        self.percentages = Percentages(*self.rng.choice(PERCENTAGES))
        self.desired = self.rng.randint(1, 4)
        self._define()
        configuration: dict[str, Any] = {
            "minimumHealthyPercent": self.percentages.minimum_healthy,
            "maximumPercent": self.percentages.maximum,
        }
        if self.rng.random() < 0.7:
            configuration["deploymentCircuitBreaker"] = {"enable": True, "rollback": self.rng.random() < 0.7}
        if self.rng.random() < 0.3:
            configuration["bakeTimeInMinutes"] = 1
        self.serve(desiredCount=self.desired, deploymentConfiguration=configuration)

    def _define(self) -> None:
        if self.checked:
            self.define_checked()
        else:
            self.define()

    def up(self) -> set[str]:
        """The tasks that run and, if they have a health check, are healthy."""
        healthy = "AND EXISTS (SELECT 1 FROM run WHERE task_id = task.id AND health = 'HEALTHY')" if self.checked else ""
        return set(self.tasks(f"state = 'RUNNING' AND desired = 'RUNNING' {healthy}"))

    def transact(self, commands: Any) -> Any:
        if not hasattr(self, "desired") or self.store.ecs_services.get("us-east-1", "default", "web") is None:
            return super().transact(commands)
        up, count, before = self.up(), len(self.tasks()), self._failed()
        outcome = super().transact(commands)
        if before is not None and (after := self._failed()) is not None and after[0] == before[0]:
            assert after[1] <= before[1], ("a failed deployment starts no tasks", self.log)
        service = self.store.ecs_services.get("us-east-1", "default", "web")
        assert service is not None
        most = max(service.desired, self.percentages.most(service.desired))
        assert len(self.tasks()) <= max(count, most), self.log
        stopped = self.tasks(
            f"desired = 'STOPPED' AND stop_code = 'ServiceSchedulerInitiated' AND stopped_reason != '{FAILED_CHECKS}'"
        )
        if up & set(stopped):
            assert len(self.up()) >= min(self.percentages.least(service.desired), service.desired), self.log
        return outcome

    def _failed(self) -> tuple[str, int] | None:
        """The first deployment, if it has failed, and how many tasks it has started."""
        service = self.store.ecs_services.get("us-east-1", "default", "web")
        if service is None or service.primary.rollout != FAILED:
            return None
        return service.primary.id, self.count(f"started_by = '{service.primary.id}'")

    def act(self) -> None:
        """Do one random thing."""
        rng, kind = self.rng, self.rng.randrange(100)
        tasks = self.tasks("state IN ('PENDING', 'RUNNING')")
        if kind < 65 and tasks:
            for task_id in rng.sample(tasks, rng.randint(1, len(tasks))):
                self._change_task(task_id)
        elif kind < 69:
            self.desired = rng.randint(0, 4)
            self.log.append(f"desired {self.desired}")
            self.update(desiredCount=self.desired)
        elif kind < 74:
            self._define()
            self.update(taskDefinition="one")
            new = self.service()["deployments"][0]["id"]
            if rng.random() < 0.5:
                self.bad.add(new)
            self.log.append(f"new deployment {new}{' (bad)' if new in self.bad else ''}")
        elif kind < 75 and (rollout := self.rollouts()[0])["status"] == "IN_PROGRESS" and len(self.rollouts()) > 1:
            self.log.append("abort")
            self.call("StopServiceDeployment", "ecs", serviceDeploymentArn=rollout["serviceDeploymentArn"], stopType="ABORT")
        else:
            seconds = rng.choice((0.5, 2.0, 2.0, 4.0, 4.0, 4.0, 70.0))
            self.log.append(f"wait {seconds}")
            self.wait(seconds)

    def _change_task(self, task_id: str) -> None:
        task = self.store.tasks.get(task_id)
        assert task is not None
        if task.desired.value == "STOPPED":
            self.log.append(f"{task_id} ends")
            self.observe(task_id, exit_code=0)
        elif task.state.value == "PENDING":
            self.log.append(f"{task_id} starts")
            self.observe(task_id)
        elif self.rng.random() < (0.6 if task.started_by in self.bad else 0.1):
            self.log.append(f"{task_id} crashes")
            self.observe(task_id, exit_code=1)
        elif self.checked:
            health = "UNHEALTHY" if self.rng.random() < (0.9 if task.started_by in self.bad else 0.2) else "HEALTHY"
            self.log.append(f"{task_id} is {health}")
            self.observe(task_id, health=health)

    def calm(self) -> None:
        """From now on, every task starts, becomes healthy, and ends when it should."""
        self.log.append("calm")
        for _ in range(60):
            for task_id in self.tasks("state IN ('PENDING', 'RUNNING')"):
                task = self.store.tasks.get(task_id)
                assert task is not None
                if task.desired.value == "STOPPED":
                    self.observe(task_id, exit_code=0)
                elif self.checked and (task.state.value == "PENDING" or task.runs[0].health != "HEALTHY"):
                    self.observe(task_id)
                    self.observe(task_id, health="HEALTHY")
                elif task.state.value == "PENDING":
                    self.observe(task_id)
            self.wait(20)
            if self.rollouts()[0]["status"] in ENDED and not self.tasks("state = 'PENDING'"):
                return


@pytest.mark.parametrize("seed", range(16))
def test_random_deployments_keep_their_percentages_and_end(seed: int) -> None:
    world = RandomRollouts(seed)
    if seed % 2:
        world.calm()
    for _ in range(STEPS):
        world.act()
    world.calm()
    newest, *others = world.rollouts()
    assert newest["status"] in ENDED and all(each["status"] in ENDED for each in others), world.log
    shown = world.service()
    state = shown["deployments"][0]["rolloutState"]
    assert state == ("COMPLETED" if newest["status"] in ("SUCCESSFUL", "ROLLBACK_SUCCESSFUL") else "FAILED"), world.log
    if state == "COMPLETED":
        assert (shown["runningCount"], shown["pendingCount"]) == (world.desired, 0), world.log
        assert len(shown["deployments"]) == 1, world.log
    else:
        before = world.count("1")
        world.wait(3600)
        assert world.count("1") <= before, "a failed deployment starts no tasks"


def test_some_of_the_random_deployments_fail_and_some_are_rolled_back() -> None:
    """The random worlds reach all ends; otherwise the properties above would say little."""
    found = set[str]()
    for seed in range(100, 140):
        world = RandomRollouts(seed)
        world.calm()
        for _ in range(STEPS):
            world.act()
        found |= {each["status"] for each in world.rollouts()}
        if {"SUCCESSFUL", "STOPPED", "ROLLBACK_SUCCESSFUL"} <= found:
            return
    raise AssertionError(found)
