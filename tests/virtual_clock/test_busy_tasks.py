"""A task that holds messages, or is protected, is not stopped by a scale-in, a replacement or a rollout before it is idle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.model.settings import ScalingTimes, Settings
from virtual_clock.busy_world import FLEET, BusyWorld

BOUND_S = 900


@pytest.fixture
def world() -> BusyWorld:
    return BusyWorld()


def one_busy(world: BusyWorld, desired: int = 1, messages: int = 1, **more: Any) -> tuple[str, str, list[dict[str, Any]]]:
    """Return the queue, the newest worker, and the messages that it holds."""
    url = world.fleet(desired, **more)
    world.send(url, messages)
    worker = list(world.workers())[-1]
    return url, worker, world.receive(worker, url, messages)


# Auto Scaling groups


def test_a_scale_in_waits_until_the_messages_are_deleted(world: BusyWorld) -> None:
    url, worker, held = one_busy(world, messages=3)
    instance_id = world.workers()[worker]
    world.desire(0)
    assert world.lifecycle() == {instance_id: "Terminating:Wait"} and world.state_of(worker) == ("RUNNING", "RUNNING")
    activity = world.activities()[0]
    assert (activity["StatusCode"], activity["StatusMessage"]) == (
        "InProgress", f"Waiting for task {worker}, which holds 3 messages of work."
    )  # fmt: skip
    assert "EndTime" not in activity and f"instance {instance_id} was selected for termination." in activity["Cause"]
    world.send(url)
    assert world.receive(worker, url) == []  # it was chosen to stop
    for message in held[:2]:
        world.delete(worker, url, message)
    world.wait(1)
    assert world.state_of(worker) == ("RUNNING", "RUNNING")
    assert world.activities()[0]["StatusMessage"] == f"Waiting for task {worker}, which holds 1 message of work."
    world.delete(worker, url, held[2])
    assert world.state_of(worker) == ("RUNNING", "STOPPED") and world.receive(worker, url) == []
    world.report()
    assert world.ids() == [] and world.running() == 0 and world.store.tasks.leaving.snapshot() == {}
    done = world.activities()[0]
    assert (done["ActivityId"], done["StatusCode"]) == (activity["ActivityId"], "Successful") and "StatusMessage" not in done
    assert [each["StatusCode"] for each in world.activities()] == ["Successful"] * 2  # one launch, one termination


def change_visibility(world: BusyWorld, worker: str, url: str, message: dict[str, Any], timeout_s: int) -> None:
    handle = message["ReceiptHandle"]
    world.as_task(worker, "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=timeout_s)


ENDS: dict[str, Callable[[BusyWorld, str, str, dict[str, Any]], None]] = {
    "deleted": lambda world, worker, url, message: world.delete(worker, url, message),
    "deleted with other credentials": lambda world, worker, url, message: world.call(
        "DeleteMessage", "sqs", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"]
    ),
    "returned": lambda world, worker, url, message: change_visibility(world, worker, url, message, 0),
    "queue purged": lambda world, worker, url, message: world.call("PurgeQueue", "sqs", QueueUrl=url),
    "queue deleted": lambda world, worker, url, message: world.call("DeleteQueue", "sqs", QueueUrl=url),
    "task stopped": lambda world, worker, url, message: world.call("StopTask", "ecs", cluster=FLEET, task=worker),
    "instance terminated": lambda world, worker, url, message: world.kill(world.workers()[worker]),
    "terminated in the group": lambda world, worker, url, message: world.call(
        "TerminateInstanceInAutoScalingGroup", InstanceId=world.workers()[worker], ShouldDecrementDesiredCapacity=False
    ),
    "group deleted": lambda world, worker, url, message: world.call(
        "DeleteAutoScalingGroup", AutoScalingGroupName="g", ForceDelete=True
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_the_wait(world: BusyWorld, end: str) -> None:
    url, worker, [message] = one_busy(world)
    world.desire(0)
    world.wait(10)
    assert world.state_of(worker) == ("RUNNING", "RUNNING")
    ENDS[end](world, worker, url, message)
    world.settle()
    assert world.state_of(worker) == ("RUNNING", "STOPPED")
    world.report()
    assert world.running() == 0 and world.store.tasks.leaving.snapshot() == {}
    assert {each["StatusCode"] for each in world.activities()} == {"Successful"}


def test_a_deleted_group_is_shown_until_its_tasks_have_stopped(world: BusyWorld) -> None:
    url, worker, [message] = one_busy(world)
    assert "Status" not in world.shown()
    ENDS["group deleted"](world, worker, url, message)
    world.settle()
    assert world.shown()["Status"] == "Delete in progress"
    world.report()
    assert world.shown() is None


@pytest.mark.parametrize("fifo", [False, True])
def test_the_wait_ends_with_the_visibility_timeout(world: BusyWorld, fifo: bool) -> None:
    url = world.fleet(1)
    if fifo:
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", "VisibilityTimeout": "30"}
        url = world.call("CreateQueue", "sqs", QueueName="work.fifo", Attributes=attributes)["QueueUrl"]
        world.call("SendMessage", "sqs", QueueUrl=url, MessageBody="m", MessageGroupId="x")
    else:
        world.send(url)
    [worker] = world.workers()
    [message] = world.receive(worker, url)
    world.desire(0)
    world.wait(20)
    change_visibility(world, worker, url, message, 60)  # a heartbeat extends the wait
    world.wait(59)
    assert world.state_of(worker) == ("RUNNING", "RUNNING")
    change_visibility(world, worker, url, message, 5)
    world.wait(4)
    assert world.state_of(worker) == ("RUNNING", "RUNNING")
    world.wait(1.1)
    assert world.state_of(worker) == ("RUNNING", "STOPPED")


def test_the_wait_has_a_bound_and_the_activity_says_so() -> None:
    world = BusyWorld(settings=Settings(scaling=ScalingTimes(busy_wait_s=BOUND_S)))
    _, worker, _ = one_busy(world, messages=2, visibility_s=3600)
    world.desire(0)
    world.wait(BOUND_S - 1)
    assert world.state_of(worker) == ("RUNNING", "RUNNING")
    world.wait(1.1)
    assert world.state_of(worker) == ("RUNNING", "STOPPED")
    world.report()
    activity = world.activities()[0]
    assert (activity["StatusCode"], activity["StatusMessage"]) == (
        "Successful", f"Stopped after a wait of {BOUND_S} s: task {worker}, which holds 2 messages of work."
    )  # fmt: skip


def test_a_bound_of_zero_means_no_wait() -> None:
    world = BusyWorld(settings=Settings(scaling=ScalingTimes(busy_wait_s=0)))
    _, worker, _ = one_busy(world)
    world.desire(0)
    assert world.state_of(worker) == ("RUNNING", "STOPPED")


def test_a_scale_out_takes_the_waiting_instance_back(world: BusyWorld) -> None:
    url, worker, [message] = one_busy(world)
    instance_id = world.workers()[worker]
    got: list[Any] = []
    world.desire(0)
    world.poll(worker, url, 20, got.append)
    [container] = world.call("ListContainerInstances", "ecs", cluster=FLEET, status="DRAINING")["containerInstanceArns"]
    world.send(url)
    assert got == []  # the long poll waits, and takes no message
    world.desire(1)
    assert world.lifecycle() == {instance_id: "InService"} and world.store.tasks.leaving.snapshot() == {}
    assert world.call("ListContainerInstances", "ecs", cluster=FLEET, status="ACTIVE")["containerInstanceArns"] == [container]
    assert [len(each) for each in got] == [1]  # the long poll goes on
    assert world.activities()[0]["StatusCode"] == "Cancelled" and len(world.activities()) == 2  # nothing was launched
    world.delete(worker, url, message)
    world.wait(2000)
    assert world.lifecycle() == {instance_id: "InService"} and list(world.workers()) == [worker]


def test_idle_instances_go_first_and_the_rest_of_the_surplus_waits(world: BusyWorld) -> None:
    url = world.fleet(4)
    world.send(url, 2)
    first, second, third, fourth = world.workers()  # by default the oldest instance would be terminated first
    held = [world.receive(each, url)[0] for each in (first, second)]
    world.desire(2)
    assert [world.state_of(each)[1] for each in (first, second, third, fourth)] == ["RUNNING", "RUNNING", "STOPPED", "STOPPED"]
    world.report()
    world.desire(1)
    waiting = [each for each, state in world.lifecycle().items() if state == "Terminating:Wait"]
    assert len(waiting) == 1 and sorted(world.lifecycle().values()) == ["InService", "Terminating:Wait"]
    world.wait(10)
    assert [each for each, state in world.lifecycle().items() if state == "Terminating:Wait"] == waiting  # and no second one
    worker = next(task for task, instance_id in world.workers().items() if instance_id == waiting[0])
    world.delete(worker, url, held[(first, second).index(worker)])
    world.report()
    assert list(world.lifecycle().values()) == ["InService"] and len(world.activities()) == 4 + 3


def test_a_waiting_instance_gets_no_new_tasks(world: BusyWorld) -> None:
    one_busy(world)
    world.define(gpus=0)
    world.desire(0)
    run = world.call("RunTask", "ecs", cluster=FLEET, taskDefinition="one", launchType="EC2")
    assert [each["lastStatus"] for each in run["tasks"]] in ([], ["PROVISIONING"])
    world.report()
    assert world.store.execute("SELECT count(*) FROM task WHERE state = 'RUNNING'").fetchone()[0] == 1


def test_a_protected_task_is_busy(world: BusyWorld) -> None:
    world.fleet(1)
    [worker] = world.workers()
    protect = {"cluster": FLEET, "tasks": [worker]}
    world.call("UpdateTaskProtection", "ecs", **protect, protectionEnabled=True, expiresInMinutes=10)
    world.desire(0)
    assert world.activities()[0]["StatusMessage"] == f"Waiting for task {worker}, which is protected until 2026-01-01T00:10:00Z."
    world.wait(500)
    assert world.state_of(worker) == ("RUNNING", "RUNNING")
    world.call("UpdateTaskProtection", "ecs", **protect, protectionEnabled=False)
    world.settle()
    assert world.state_of(worker) == ("RUNNING", "STOPPED")


def test_lifecycle_hooks_run_after_the_wait(world: BusyWorld) -> None:
    url, worker, [message] = one_busy(world)
    instance_id = world.workers()[worker]
    hook = {"AutoScalingGroupName": "g", "LifecycleHookName": "hook"}
    transition = "autoscaling:EC2_INSTANCE_TERMINATING"
    world.call("PutLifecycleHook", **hook, LifecycleTransition=transition, HeartbeatTimeout=600)
    world.desire(0)
    assert world.activities()[0]["StatusCode"] == "InProgress"
    world.delete(worker, url, message)
    assert list(world.lifecycle().values()) == ["Terminating:Wait"] and world.activities()[0]["StatusCode"] == "MidLifecycleAction"
    world.send(url)
    assert world.receive(worker, url) == []  # still chosen to stop
    world.desire(1)  # hooks cannot be taken back, so another instance starts
    assert sorted(world.lifecycle().values()) == ["InService", "Terminating:Wait"]
    world.call("CompleteLifecycleAction", **hook, InstanceId=instance_id, LifecycleActionResult="CONTINUE")
    world.report()
    assert instance_id not in world.lifecycle()


@pytest.mark.parametrize("why", ["refresh", "unhealthy", "lifetime"])
def test_replacements_wait_too(world: BusyWorld, why: str) -> None:
    lifetime = {"MaxInstanceLifetime": 86400} if why == "lifetime" else {}
    url = world.fleet(1, visibility_s=3600, **lifetime)
    [worker] = world.workers()
    instance_id = world.workers()[worker]
    if why == "lifetime":
        world.wait(86300)
    world.send(url)
    [message] = world.receive(worker, url)
    if why == "refresh":
        world.call("StartInstanceRefresh", AutoScalingGroupName="g", Preferences={"MinHealthyPercentage": 0})
    elif why == "unhealthy":
        world.call("SetInstanceHealth", InstanceId=instance_id, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False)
    else:
        world.wait(200)
    world.settle()
    world.report()
    assert world.lifecycle()[instance_id] == "Terminating:Wait" and world.state_of(worker) == ("RUNNING", "RUNNING")
    assert sorted(world.lifecycle().values()) == ["InService", "Terminating:Wait"]  # the replacement has started
    waiting = [each for each in world.activities() if each["StatusCode"] == "InProgress"]
    assert [each["StatusMessage"] for each in waiting] == [f"Waiting for task {worker}, which holds 1 message of work."]
    world.delete(worker, url, message)
    world.report()
    assert instance_id not in world.lifecycle() and list(world.lifecycle().values()) == ["InService"]


def test_a_restart_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    world = BusyWorld(path=tmp_path / "state.db")
    url, worker, _ = one_busy(world, visibility_s=3600)
    world.desire(0)
    world.wait(300)
    world.restart()
    world.send(url)
    assert world.receive(worker, url) == [] and "Waiting for task" in world.activities()[0]["StatusMessage"]
    world.wait(BOUND_S - 301)
    world.restart()
    assert world.state_of(worker) == ("RUNNING", "RUNNING")
    world.wait(2)
    assert world.state_of(worker) == ("RUNNING", "STOPPED")


# Receives


def test_a_message_passes_by_the_long_poll_of_a_leaving_task(world: BusyWorld) -> None:
    url = world.fleet(2)
    world.send(url)
    first, second = world.workers()
    world.receive(second, url)
    got: dict[str, list[Any]] = {first: [], second: []}
    for task_id in (second, first, second):
        world.poll(task_id, url, 20, got[task_id].append)
    world.call(
        "TerminateInstanceInAutoScalingGroup", InstanceId=world.workers()[first], ShouldDecrementDesiredCapacity=True
    )  # fmt: skip
    assert world.state_of(first)[1] == "STOPPED"
    world.send(url)
    assert got[first] == [] and [len(each) for each in got[second]] == [1]
    world.wait(21)
    world.transact([])
    assert got[first] == [[]]


# ECS services


def serve_workers(world: BusyWorld, count: int, **more: Any) -> tuple[str, list[str]]:
    world.define()
    world.serve(desiredCount=count, **more)
    world.settle()
    world.report()
    url = world.call("CreateQueue", "sqs", QueueName="work", Attributes={"VisibilityTimeout": "60"})["QueueUrl"]
    return url, list(world.workers())


def events(world: BusyWorld, cluster: str = "default") -> list[str]:
    return [each["message"].removeprefix("(service web) ") for each in world.service(cluster)["events"]]


def test_a_service_stops_idle_tasks_first_and_waits_for_busy_ones(world: BusyWorld) -> None:
    url, [first, second, third] = serve_workers(world, 3)
    world.send(url, 2)
    held = {each: world.receive(each, url)[0] for each in (second, third)}  # the newest tasks would stop first
    world.call("UpdateService", "ecs", service="web", desiredCount=1)
    assert world.state_of(first)[1] == "STOPPED"
    [leaving] = world.store.tasks.leaving.snapshot()
    other = {second: third, third: second}[leaving]
    world.send(url)
    assert world.receive(leaving, url) == [] and len(world.receive(other, url)) == 1
    assert f"is waiting to stop task {leaving}, which holds 1 message of work." in events(world)
    world.delete(leaving, url, held[leaving])
    assert world.state_of(leaving)[1] == "STOPPED" and world.state_of(other)[1] == "RUNNING"
    world.report()
    assert events(world)[0] == "has reached a steady state." and list(world.workers()) == [other]


def test_a_service_that_needs_its_task_again_keeps_it(world: BusyWorld) -> None:
    url, [worker] = serve_workers(world, 1)
    world.send(url, 2)
    world.receive(worker, url)
    world.call("UpdateService", "ecs", service="web", desiredCount=0)
    assert world.receive(worker, url) == []
    world.call("UpdateService", "ecs", service="web", desiredCount=1)
    assert len(world.receive(worker, url)) == 1 and world.store.tasks.leaving.snapshot() == {}
    world.wait(1000)
    assert list(world.workers()) == [worker]


@pytest.mark.parametrize("strategy", ["REPLICA", "DAEMON"])
def test_a_rollout_waits_for_busy_tasks_up_to_the_bound(strategy: str) -> None:
    world = BusyWorld(settings=Settings(scaling=ScalingTimes(busy_wait_s=100)))
    percentages = {"minimumHealthyPercent": 0, "maximumPercent": 100}
    if strategy == "REPLICA":
        url, [first, second] = serve_workers(world, 2, deploymentConfiguration=percentages)
        cluster = "default"
    else:
        url, cluster = world.fleet(2), FLEET
        first, second = world.workers()
    for worker in (first, second):
        world.send(url)
        [message] = world.receive(worker, url)
        change_visibility(world, worker, url, message, 20 if worker is first else 3600)
    world.call("UpdateService", "ecs", cluster=cluster, service="web", forceNewDeployment=True)
    world.settle()
    assert world.state_of(first)[1] == world.state_of(second)[1] == "RUNNING"
    world.wait(21)
    assert (world.state_of(first)[1], world.state_of(second)[1]) == ("STOPPED", "RUNNING")
    world.report()
    world.wait(70)
    assert world.state_of(second)[1] == "RUNNING"
    world.wait(10)
    assert world.state_of(second)[1] == "STOPPED"
    assert f"has waited for 100 s, and stops task {second}, which holds 1 message of work." in events(world, cluster)
    world.report()
    world.report()
    assert [each["runningCount"] for each in world.service(cluster)["deployments"]] == [2]


def test_a_draining_instance_keeps_its_busy_service_task(world: BusyWorld) -> None:
    url, worker, [message] = one_busy(world, desired=2)
    container = world.store.tasks.get(worker)
    assert container is not None and container.instance_id is not None
    change = {"cluster": FLEET, "containerInstances": [container.instance_id]}
    world.call("UpdateContainerInstancesState", "ecs", **change, status="DRAINING")
    world.settle()
    assert world.state_of(worker) == ("RUNNING", "RUNNING") and worker in world.store.tasks.leaving.snapshot()
    world.call("UpdateContainerInstancesState", "ecs", **change, status="ACTIVE")
    world.settle()
    assert world.store.tasks.leaving.snapshot() == {}
    world.call("UpdateContainerInstancesState", "ecs", **change, status="DRAINING")
    world.delete(worker, url, message)
    world.settle()
    assert world.state_of(worker) == ("RUNNING", "STOPPED")


def test_a_deleted_service_waits_unless_it_is_forced(world: BusyWorld) -> None:
    url, [worker] = serve_workers(world, 1)
    world.send(url)
    world.receive(worker, url)
    world.call("UpdateService", "ecs", service="web", desiredCount=0)
    world.call("DeleteService", "ecs", service="web")
    world.settle()
    assert world.state_of(worker) == ("RUNNING", "RUNNING") and world.service()["status"] == "DRAINING"
    world.wait(61)
    assert world.state_of(worker) == ("RUNNING", "STOPPED")
    world.report()
    assert world.service()["status"] == "INACTIVE"


def test_a_forced_deletion_stops_busy_tasks_at_once(world: BusyWorld) -> None:
    url, [worker] = serve_workers(world, 1)
    world.send(url)
    world.receive(worker, url)
    world.call("UpdateService", "ecs", service="web", desiredCount=0)
    world.call("DeleteService", "ecs", service="web", force=True)
    assert world.state_of(worker) == ("RUNNING", "STOPPED")
