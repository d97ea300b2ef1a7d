"""Task sets of services with the deployment controller EXTERNAL."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from corral.reconcile.ecs_service_tasks import STARTS_MAX
from virtual_clock.busy_world import BusyWorld
from virtual_clock.group_world import refused
from virtual_clock.rollout_world import RolloutWorld


class TaskSetWorld(RolloutWorld):
    def external(self, desired: int = 4) -> None:
        self.define()
        controller = {"type": "EXTERNAL"}
        self.call("CreateService", "ecs", serviceName="web", desiredCount=desired, deploymentController=controller)

    def on_set(self, operation: str, **more: Any) -> Any:
        answer = self.call(operation, "ecs", cluster="default", service="web", **more)["taskSet"]
        self.settle()
        return answer

    def create(self, percent: float = 100.0, **more: Any) -> str:
        scale = {"value": percent, "unit": "PERCENT"}
        return str(self.on_set("CreateTaskSet", taskDefinition="one", scale=scale, **more)["id"])

    def sets(self) -> dict[str, dict[str, Any]]:
        found = self.call("DescribeTaskSets", "ecs", cluster="default", service="web")["taskSets"]
        return {each["id"]: each for each in found}


@pytest.fixture
def world() -> TaskSetWorld:
    world = TaskSetWorld()
    world.external()
    return world


def test_a_task_set_runs_its_share_of_the_tasks(world: TaskSetWorld) -> None:
    assert not world.tasks() and world.service()["deployments"] == [] and world.service()["status"] == "ACTIVE"
    blue = world.create(50)
    green = world.create(20, externalId="green")
    assert world.sets()[green]["stabilityStatus"] == "STABILIZING"
    world.report()
    shown = world.sets()
    assert [(each["computedDesiredCount"], each["runningCount"]) for each in shown.values()] == [(2, 2), (1, 1)]
    assert shown[green]["externalId"] == "green" and shown[green]["stabilityStatus"] == "STEADY_STATE"
    world.on_set("UpdateTaskSet", taskSet=blue, scale={"value": 0, "unit": "PERCENT"})
    world.on_set("UpdateTaskSet", taskSet=shown[green]["taskSetArn"], scale={"value": 100, "unit": "PERCENT"})
    world.report()
    assert [each["runningCount"] for each in world.sets().values()] == [0, 4]
    world.update(desiredCount=2)
    world.report()
    assert world.service()["runningCount"] == 2 and [each["runningCount"] for each in world.service()["taskSets"]] == [0, 2]


def test_an_unhealthy_task_of_a_set_stops_at_once_if_its_replacement_waits_for_its_gpus(world: TaskSetWorld) -> None:
    world.define_checked(gpus=8)
    world.update(desiredCount=1)
    world.create()
    world.report()
    [task_id] = world.tasks()
    world.observe(task_id, health="UNHEALTHY")
    [new] = world.tasks()
    world.report()
    world.report()
    assert new != task_id and world.tasks("state = 'RUNNING'") == [new]


def test_the_primary_task_set_gives_the_service_its_definition(world: TaskSetWorld) -> None:
    world.create()
    world.define()
    second = world.create()
    made = world.on_set("UpdateServicePrimaryTaskSet", primaryTaskSet=second)
    assert made["status"] == "PRIMARY" and world.service()["taskDefinition"].endswith("one:2")
    assert [each["status"] for each in world.sets().values()] == ["ACTIVE", "PRIMARY"]


def test_a_deleted_task_set_drains(world: TaskSetWorld) -> None:
    first = world.create()
    world.report()
    assert "scaled above 0" in str(refused(lambda: world.on_set("DeleteTaskSet", taskSet=first)))
    assert world.on_set("DeleteTaskSet", taskSet=first, force=True)["status"] == "DRAINING"
    world.report()
    assert not world.sets() and not world.tasks()
    assert "not found" in str(refused(lambda: world.on_set("DeleteTaskSet", taskSet=first)))
    missing = world.call("DescribeTaskSets", "ecs", cluster="default", service="web", taskSets=[first])
    assert [each["reason"] for each in missing["failures"]] == ["MISSING"]


def test_a_task_that_ends_is_replaced_and_a_restart_changes_nothing(world: TaskSetWorld) -> None:
    world.create(25)
    world.report()
    [task_id] = world.tasks()
    world.observe(task_id, exit_code=1)
    world.settle()
    assert len(world.tasks()) == 1 and world.tasks() != [task_id]


def test_task_sets_start_and_stop_a_bounded_number_of_tasks_per_transaction() -> None:
    world, many = TaskSetWorld(), STARTS_MAX + 5
    world.external(many)
    for where in ("desired = 'RUNNING'", "desired = 'STOPPED'"):
        done, task_sets = [0], list(world.sets())
        for at in range(2):
            if task_sets:  # in the second round
                world.call("DeleteTaskSet", "ecs", cluster="default", service="web", taskSet=task_sets[at], force=True)
            else:
                world.call("CreateTaskSet", "ecs", cluster="default", service="web", taskDefinition="one", externalId=str(at))
            done.append(world.count(where))
        while world.step():
            done.append(world.count(where))
        assert done[-1] == 2 * many and max(after - before for before, after in pairwise(done)) <= STARTS_MAX
        world.report()


class BusySets(BusyWorld, TaskSetWorld):
    pass


@pytest.mark.parametrize("forced", [False, True])
def test_a_busy_task_of_a_task_set_finishes_its_messages(forced: bool) -> None:
    world = BusySets()
    world.external(1)
    blue, green = world.create(), world.create(0)
    world.report()
    url = world.call("CreateQueue", "sqs", QueueName="work")["QueueUrl"]
    [worker] = world.tasks()
    world.send(url)
    [message] = world.receive(worker, url)
    if forced:
        world.on_set("DeleteTaskSet", taskSet=blue, force=True)
        assert world.state_of(worker) == ("RUNNING", "STOPPED")
        return
    world.on_set("UpdateTaskSet", taskSet=blue, scale={"value": 0, "unit": "PERCENT"})
    world.on_set("UpdateTaskSet", taskSet=green, scale={"value": 100, "unit": "PERCENT"})
    assert world.state_of(worker) == ("RUNNING", "RUNNING") and world.receive(worker, url) == []
    assert any(f"is waiting to stop task {worker}" in each for each in world.messages())
    world.delete(worker, url, message)
    assert world.state_of(worker) == ("RUNNING", "STOPPED")


def test_a_refused_launch_writes_one_event(world: TaskSetWorld) -> None:
    world.create(25)
    world.report()
    [task_id] = world.tasks()
    world.run(lambda tx: tx.store.execute("DELETE FROM task_definition") and None)
    world.store.definitions._forget(("us-east-1", "one", 1))  # rows are deleted behind the cache
    world.observe(task_id, exit_code=0)
    world.wait(200)
    assert sum("unable to place a task" in each for each in world.messages()) == 1


def test_updates_of_an_external_service_are_checked(world: TaskSetWorld) -> None:
    constraint = {"type": "memberOf", "expression": "not an expression ("}
    assert refused(lambda: world.update(placementConstraints=[constraint]))
    world.update(deploymentConfiguration={"maximumPercent": 150})
    assert world.service()["deploymentConfiguration"] == {"maximumPercent": 150, "minimumHealthyPercent": 100}


def test_deletion_of_the_service_stops_all_task_sets(world: TaskSetWorld) -> None:
    world.create(50)
    world.create(50)
    world.report()
    world.call("DeleteService", "ecs", service="web", force=True)
    world.report()
    assert world.service()["status"] == "INACTIVE" and not world.tasks()


def test_refusals(world: TaskSetWorld) -> None:
    assert "CreateTaskSet" in str(refused(lambda: world.update(taskDefinition="one")))
    assert "CreateTaskSet" in str(refused(lambda: world.update(forceNewDeployment=True)))
    assert "between 0 and 100" in str(refused(lambda: world.create(101)))
    for _ in range(5):
        world.create(0)
    assert "at most 5" in str(refused(lambda: world.create(0)))
    world.call("CreateService", "ecs", serviceName="plain", taskDefinition="one", desiredCount=0)
    params = {"cluster": "default", "service": "plain", "taskDefinition": "one"}
    assert "EXTERNAL" in str(refused(lambda: world.call("CreateTaskSet", "ecs", **params)))
