"""Somebody sets the wall clock: durations do not change, and what is planned for a time of day moves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from corral import aws
from corral.core.clock import VirtualClock
from queues import test_queue_time as queues
from queues.queue_world import World
from virtual_clock import test_environment_scaling as environments
from virtual_clock import test_group_hooks as hooks
from virtual_clock import test_group_policies as policies
from virtual_clock import test_job_lifecycle as jobs
from virtual_clock import test_task_queue as tasks
from virtual_clock.group_world import GroupWorld
from virtual_clock.task_queue_world import TaskQueueWorld

HOUR_S = 3600.0
STEPS_S = (2 * HOUR_S, -5 * HOUR_S, 24 * HOUR_S, -21 * HOUR_S)

DURATIONS: list[Callable[..., None]] = [
    queues.test_a_delayed_message_becomes_visible_when_its_delay_ends,
    queues.test_a_long_poll_ends_with_a_message_or_with_its_time,
    queues.test_a_poll_wakes_when_a_delay_or_timeout_ends,
    queues.test_expired_messages_are_deleted,
    queues.test_duplicates_within_five_minutes_are_dropped,
    queues.test_a_group_is_blocked_while_one_of_its_messages_is_in_flight,
    queues.test_a_fifo_queue_delays_as_a_whole,
    environments.test_idle_instances_end_after_the_delay,
]
OF_GROUPS: list[Callable[..., None]] = [
    hooks.test_heartbeats_extend_the_wait_up_to_the_global_timeout,
    hooks.test_a_termination_hook_times_out,
    policies.test_set_desired_capacity_may_honor_the_cooldown,
]
OF_JOBS: list[Callable[..., None]] = [
    jobs.test_a_time_limit_ends_the_job_without_a_retry,
    jobs.test_each_attempt_has_its_own_time_limit,
]


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is set whenever time passes."""
    steps, advance = cycle(STEPS_S), VirtualClock.advance

    def set_and_advance(clock: VirtualClock, by_s: float) -> None:
        clock.set_wall(next(steps))
        advance(clock, by_s)

    monkeypatch.setattr(VirtualClock, "advance", set_and_advance)


def test_a_step_changes_no_duration(restless: None) -> None:
    for check in DURATIONS:
        check()
    for check in OF_GROUPS:
        check(GroupWorld())
    for check in OF_JOBS:
        check(jobs.CheckedWorld())
    tasks.test_a_user_and_the_time_limit_end_a_task_for_good(TaskQueueWorld())


@pytest.mark.parametrize("step_s", [-HOUR_S, 24 * HOUR_S])
def test_a_message_in_flight_and_a_time_limit_end_on_time(step_s: float) -> None:
    world = World()
    url = world.queue("q", VisibilityTimeout=30)
    queues.send(world, url, "m")
    assert queues.receive(world, url)
    world.advance(1)
    world.clock.set_wall(step_s)
    world.advance(28)
    assert queues.receive(world, url) == []
    world.advance(1.1)
    [again] = queues.receive(world, url, AttributeNames=["All"])
    assert int(again["Attributes"]["SentTimestamp"]) == 1_800_000_000_000, "the wall clock showed this when the message was sent"
    queues.send(world, url, "later")
    [later] = queues.receive(world, url, AttributeNames=["SentTimestamp"])
    assert int(later["Attributes"]["SentTimestamp"]) == pytest.approx(1000 * world.clock.wall_s(), abs=5)

    machine = TaskQueueWorld()
    task_id = machine.launch_one(time_limit="60")
    machine.clock.set_wall(step_s)  # after the start and before the report of the host
    machine.starts(task_id)
    machine.wait(59)
    assert machine.task(task_id).desired.value == "RUNNING"
    machine.wait(2)
    assert machine.task(task_id).desired.value == "STOPPED"


def test_the_host_reports_a_start_by_the_old_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = TaskQueueWorld()
    task_id = machine.launch_one(time_limit="60")
    reports = machine.reports(task_id, ended=False)
    for step_s in (24 * HOUR_S, -48 * HOUR_S):
        machine.clock.set_wall(step_s)
    monkeypatch.setattr(machine, "reports", lambda *_, **__: reports)
    machine.starts(task_id)
    machine.wait(59)
    assert machine.task(task_id).desired.value == "RUNNING"
    machine.wait(2)
    assert machine.task(task_id).desired.value == "STOPPED"


def test_plans_for_a_time_of_day_follow_the_wall_clock() -> None:
    world = TaskQueueWorld()
    world.group(most=5)
    at_s = world.clock.wall_s() + 2 * HOUR_S
    world.call(
        "PutScheduledUpdateGroupAction", AutoScalingGroupName="g", ScheduledActionName="n", StartTime=at_s, DesiredCapacity=2
    )
    task_id = world.launch_one(gpus=0, not_before=str(int(at_s)))

    def set_wall(by_s: float) -> None:
        world.clock.set_wall(by_s)
        world.run(lambda tx: tx.mark("wall-clock:"))
        world.wait(1)

    set_wall(-HOUR_S)
    world.wait(2 * HOUR_S)
    assert (GroupWorld.shown(world)["DesiredCapacity"], world.state(task_id)) == (0, "PROVISIONING")
    set_wall(HOUR_S)
    assert (GroupWorld.shown(world)["DesiredCapacity"], world.state(task_id)) == (2, "PENDING")


def test_responses_have_wall_times() -> None:
    clock = VirtualClock()
    began_s = clock.now_s()
    clock.advance(60)
    clock.set_wall(HOUR_S)
    clock.advance(60)

    def shown(target: str, result: dict[str, Any]) -> bytes:
        request = aws.Request("POST", "/", "", {"x-amz-target": target}, b"{}")
        return aws.recognise(request).serialize(result, "id", clock.steps).body

    task = {"tasks": [{"createdAt": began_s + 30, "startedAt": began_s + 90}]}
    target = "AmazonEC2ContainerServiceV20141113.DescribeTasks"
    assert shown(target, task) == b'{"tasks":[{"createdAt":%.1f,"startedAt":%.1f}]}' % (began_s + 30, began_s + 90 + HOUR_S)
