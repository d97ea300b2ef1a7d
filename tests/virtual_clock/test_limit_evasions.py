"""Ways in which users could hold more GPUs than their limits allow."""

from __future__ import annotations

from typing import Any

from corral.operations.services import SERVICES
from corral.services.ecs.waiting_changes import WaitingChange, change_waiting
from virtual_clock.shares_world import SharesWorld, caller_of

ALL = [{"type": "GPU", "value": "ALL"}]
VISIBLE = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def registered(world: SharesWorld, family: str, **container: Any) -> None:
    definition = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6, **container}
    world.call("RegisterTaskDefinition", "ecs", family=family, containerDefinitions=[definition])


def test_all_gpus_of_a_host_count_as_so_many() -> None:
    world = SharesWorld(8, ann=[], bob=[])
    registered(world, "gpusall", resourceRequirements=ALL)
    world.limit("user/ann", gpus=2)
    [task] = world.submit("ann", gpus="all")
    assert world.waits(task) and world.store.owner_uses.held("user/ann") == 0
    assert "user:ann may hold 2 GPUs at once, and holds 0, and needs all 8 of a host" in world.reason(task)
    [other] = world.submit("bob", gpus=8)
    assert not world.waits(other)


def test_free_gpus_are_not_more_than_a_limit_allows() -> None:
    world = SharesWorld(8, ann=[], bob=[])
    registered(world, "gpusvisible", environment=VISIBLE)
    world.limit("user/ann", gpus=2)
    for held in (2, 2):
        world.submit("ann", gpus="visible", hours=9)
        assert world.store.owner_uses.held("user/ann") == held
    world.submit("bob", gpus="visible")
    assert world.store.owner_uses.held("user/bob") == 6, "bob has no limit"


def test_a_waiting_task_cannot_get_all_gpus() -> None:
    world = SharesWorld(8, ann=[], bob=[])
    [blocker] = world.submit("bob", gpus=8)
    world.limit("user/ann", gpus=2)
    [task] = world.submit("ann", gpus=1)
    world.run(lambda tx: change_waiting(tx, world.task(task), WaitingChange(gpus="ALL")))
    world.settle()
    world.end(blocker)
    assert world.waits(task) and world.running("ann") == 0
    world.limit("user/ann", gpus=8)
    assert not world.waits(task)


def test_free_gpus_of_a_job_are_not_more_than_a_limit_allows() -> None:
    world = SharesWorld(8, ann=[])
    world.limit("user/ann", gpus=2)
    world.call(
        "CreateComputeEnvironment", "batch", computeEnvironmentName="here", type="UNMANAGED", tags={"corral:cluster": "default"}
    )
    order = [{"order": 1, "computeEnvironment": "here"}]
    world.call("CreateJobQueue", "batch", jobQueueName="line", priority=1, computeEnvironmentOrder=order)
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "6"}]
    properties = {"image": "corral/host", "command": ["true"], "environment": VISIBLE, "resourceRequirements": needs}
    world.call("RegisterJobDefinition", "batch", jobDefinitionName="j", type="container", containerProperties=properties)
    arn = world.call("DescribeJobDefinitions", "batch")["jobDefinitions"][0]["jobDefinitionArn"]
    given = {"jobName": "j", "jobQueue": "line", "jobDefinition": arn}
    for _ in range(2):
        world.run(lambda tx: SERVICES["batch"].operations["SubmitJob"](tx, given, caller_of("ann")))
        world.settle()
        assert world.store.owner_uses.held("user/ann") == 2


def test_a_change_of_groups_acts_at_once() -> None:
    world = SharesWorld(8, ann=["lab"], bob=["lab"])
    world.limit("group/lab", gpus=1)
    world.submit("bob")
    [first, second] = world.submit("ann", count=2)
    assert world.waits(first) and world.waits(second)
    world.call("RemoveUserFromGroup", "iam", GroupName="lab", UserName="ann")
    world.settle()
    assert not world.waits(first) and not world.waits(second)
    [blocker] = world.submit("bob", gpus=1)
    world.submit("ann", gpus=4)
    [waiting] = world.submit("ann", gpus=2)
    world.call("AddUserToGroup", "iam", GroupName="lab", UserName="ann")
    world.settle()
    world.call("StopTask", "ecs", task=blocker)
    assert world.waits(waiting) and "group:lab may hold 1 GPUs" in world.reason(waiting)


def test_a_group_keeps_its_limits_under_a_new_name() -> None:
    world = SharesWorld(8, ann=["lab"])
    world.limit("group/lab", gpus=2)
    world.call("UpdateGroup", "iam", GroupName="lab", NewGroupName="institute")
    [first, _, waiting] = world.submit("ann", count=3)
    assert not world.waits(first) and world.waits(waiting)
    assert "group:institute may hold 2 GPUs" in world.reason(waiting)
    assert [*world.store.limits.rows()] == ["group/institute"]
