"""Plans of ECS services: tables for each rule, and properties of the way to the end."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.decide.tasks.service_plan import (
    DELAY_MAX_S,
    SHORT_RUN_S,
    Percentages,
    daemon_plan,
    failures_in_a_row,
    next_start_s,
    replica_plan,
)
from corral.model.ecs_service import ServiceTask, StoppedTask

NEW, OLD = "ecs-svc/2", "ecs-svc/1"
NUMBERS = count()


def task(deployment=NEW, state="RUNNING", instance="a", pool="hosts"):
    number = next(NUMBERS)
    return ServiceTask(f"task-{number}", deployment, state, None if state == "PROVISIONING" else instance, pool, float(number))


def ids(tasks):
    return {each.id for each in tasks}


def test_a_missing_task_is_started():
    assert replica_plan([task(), task()], NEW, 3, Percentages()).start == 1


def test_scaling_in_stops_waiting_tasks_first_then_pending_ones():
    waiting, pending, running = task(state="PROVISIONING"), task(state="PENDING"), task()
    plans = [replica_plan([running, pending, waiting], NEW, desired, Percentages()).stop for desired in (2, 1, 0)]
    assert plans == [(waiting.id,), (waiting.id, pending.id), (waiting.id, pending.id, running.id)]


def test_scaling_in_stops_tasks_on_the_instance_with_most_of_them():
    alone, crowded = task(instance="a"), [task(instance="b"), task(instance="b"), task(instance="b")]
    plan = replica_plan([alone, *crowded], NEW, 2, Percentages())
    assert set(plan.stop) == {crowded[2].id, crowded[1].id}


def test_protected_tasks_are_not_stopped():
    first, second = task(), task()
    assert replica_plan([first, second], NEW, 1, Percentages(), protected={second.id}).stop == (first.id,)
    assert replica_plan([first, second], NEW, 0, Percentages(), protected={first.id, second.id}).stop == ()


def test_busy_tasks_stop_last():
    first, second, third, waiting = task(), task(), task(), task(state="PROVISIONING")
    late = {first.id: 1, third.id: 2, waiting.id: 2}  # the newest task would stop first
    plans = [replica_plan([first, second, third, waiting], NEW, desired, Percentages(), late=late) for desired in (3, 2, 1, 0)]
    assert [plan.stop for plan in plans[:3]] == [
        (waiting.id,), (waiting.id, second.id), (waiting.id, second.id, first.id)
    ]  # fmt: skip
    assert len(plans[3].stop) == 4
    old = [task(OLD, instance=each) for each in "ab"]
    percentages = Percentages(50, 100)
    for busy, idle in (old, old[::-1]):
        assert replica_plan(old, NEW, 2, percentages, late={busy.id: 2}).stop == (idle.id,)
        assert daemon_plan(old, NEW, {"a", "b"}, percentages, late={busy.id: 2}).stop == (idle.id,)


def test_a_task_on_a_draining_instance_is_replaced_before_it_stops():
    there, here = task(instance="drains"), task()
    plan = replica_plan([there, here], NEW, 2, Percentages(), draining={"drains"})
    assert (plan.start, plan.stop) == (1, ())
    replaced = replica_plan([there, here, task()], NEW, 2, Percentages(), draining={"drains"})
    assert (replaced.start, replaced.stop) == (0, (there.id,))


@pytest.mark.parametrize(
    ("least", "most", "start", "stops"),
    [
        (100, 200, 4, 0),  # all new tasks start next to the old ones
        (50, 100, 0, 2),  # half of the old tasks stop first
        (100, 150, 2, 0),
        (75, 125, 1, 1),
        (0, 100, 0, 4),
    ],
)
def test_a_rollout_stays_within_its_percentages(least, most, start, stops):
    old = [task(OLD) for _ in range(4)]
    plan = replica_plan(old, NEW, 4, Percentages(least, most))
    assert (plan.start, len(plan.stop)) == (start, stops)


def sick(**more):
    return replace(task(**more), health="UNHEALTHY")


def test_a_replacement_of_an_unhealthy_task_starts_first():
    ill, well = sick(), task()
    plan = replica_plan([ill, well], NEW, 2, Percentages())
    assert (plan.start, plan.stop) == (1, ())
    starting = replica_plan([ill, well, task(state="PENDING")], NEW, 2, Percentages())
    assert (starting.start, starting.stop) == (0, ())
    replaced = replica_plan([ill, well, task()], NEW, 2, Percentages())
    assert (replaced.stop, replaced.unhealthy) == ((ill.id,), (ill.id,))


def test_an_unhealthy_task_stops_at_once_if_its_replacement_has_no_room():
    ill, well = sick(), task()
    assert replica_plan([ill, well], NEW, 2, Percentages(50, 100)).stop == (ill.id,)
    assert replica_plan([ill, well, task(state="PROVISIONING")], NEW, 2, Percentages()).stop == (ill.id,)
    assert daemon_plan([sick(instance="a")], NEW, {"a"}, Percentages(0, 100)).unhealthy


def test_a_task_of_unknown_health_does_not_count_as_running():
    old, new = [task(OLD), task(OLD)], [task(), task()]
    unknown = [replace(each, health="UNKNOWN") for each in new]
    assert replica_plan([*old, *unknown], NEW, 2, Percentages()).stop == ()
    assert len(replica_plan([*old, unknown[0], new[1]], NEW, 2, Percentages()).stop) == 1
    assert ids(old) == set(replica_plan([*old, *new], NEW, 2, Percentages()).stop)


def test_an_unhealthy_task_stays_until_its_replacement_is_up_also_if_both_reach_the_maximum():
    ill, new = sick(), task(state="PENDING")
    assert replica_plan([ill], NEW, 1, Percentages()).start == 1
    assert replica_plan([ill, new], NEW, 1, Percentages()).stop == ()
    assert replica_plan([ill, replace(new, state="RUNNING", health="UNKNOWN")], NEW, 1, Percentages()).stop == ()
    assert replica_plan([ill, replace(new, state="RUNNING")], NEW, 1, Percentages()).stop == (ill.id,)


def test_unhealthy_replacements_make_room_for_others():
    ill = [sick(), sick()]
    assert ids(ill) == set(replica_plan(ill, NEW, 1, Percentages()).stop)


def test_a_scale_in_keeps_the_minimum_if_a_protected_task_is_not_healthy_yet():
    well, unknown = task(), [replace(task(), health="UNKNOWN") for _ in range(2)]
    protected = ids(unknown)
    assert replica_plan([well, *unknown], NEW, 2, Percentages(50, 200), protected=protected).stop == ()
    assert replica_plan([well, *unknown], NEW, 2, Percentages(0, 200), protected=protected).stop == (well.id,)
    old = task(OLD)
    assert len(replica_plan([old, well, *unknown], NEW, 2, Percentages(50, 200), protected=protected).stop) == 1


def test_a_failed_deployment_starts_no_tasks_and_keeps_old_and_unhealthy_ones():
    percentages, old = Percentages(0, 100), [task(OLD), task(OLD)]
    ill = sick()
    for tasks in ([ill], old, [*old, task(state="PENDING")], [ill, task()], [old[0], ill]):
        plan = replica_plan(tasks, NEW, 2, percentages, starts=False)
        assert (plan.start, plan.stop, plan.is_blocked) == (0, (), False)


def test_a_failed_deployment_stops_the_tasks_above_the_desired_count():
    old, ill, new = [task(OLD), task(OLD)], sick(), [task(), task()]
    everything = [*old, ill, *new]
    assert ids(everything) == set(replica_plan(everything, NEW, 0, Percentages(), starts=False).stop)
    plan = replica_plan([*old, ill, new[0]], NEW, 2, Percentages(0, 100), starts=False)
    assert set(plan.stop) == {ill.id, old[1].id}
    assert replica_plan([ill, *new], NEW, 2, Percentages(), starts=False).stop == (ill.id,)


def test_a_failed_deployment_leaves_draining_instances_within_its_minimum():
    there, here = [task(OLD, instance="drains") for _ in range(2)], task(OLD)
    assert len(replica_plan([*there, here], NEW, 3, Percentages(50, 200), draining={"drains"}, starts=False).stop) == 1
    assert replica_plan([*there, here], NEW, 3, Percentages(), draining={"drains"}, starts=False).stop == ()


def test_a_failed_daemon_deployment_keeps_its_tasks():
    old, ill, leaves = task(OLD, instance="a"), sick(instance="b"), task(OLD, instance="c")
    plan = daemon_plan([old, ill, leaves], NEW, {"a", "b", "d"}, Percentages(0, 100), leaving={"c"}, starts=False)
    assert (plan.start, plan.stop) == (0, (leaves.id,))


def test_a_rollout_that_can_neither_start_nor_stop_a_task_is_blocked():
    old, percentages = task(OLD), Percentages(50, 150)  # of one task: at least one, at most one
    assert replica_plan([old], NEW, 1, percentages).is_blocked
    assert not replica_plan([old], NEW, 1, percentages, protected={old.id}).is_blocked
    assert not replica_plan([old], OLD, 1, percentages).is_blocked
    assert not replica_plan([old, task(NEW, "PENDING")], NEW, 2, Percentages(50, 100)).is_blocked


@given(
    desired=st.integers(0, 6),
    old=st.integers(0, 8),
    least=st.integers(0, 100),
    most=st.integers(101, 300),
    order=st.randoms(use_true_random=False),
)
def test_every_rollout_ends_and_never_breaks_its_bounds(desired, old, least, most, order):
    """Tasks start and stop at random moments; in the end exactly the desired tasks of the new deployment run."""
    percentages = Percentages(least, most)
    tasks = {each.id: each for each in (task(OLD) for _ in range(old))}
    ceiling = max(len(tasks), desired, percentages.most(desired))
    if most * desired // 100 <= desired and percentages.least(desired) >= desired:
        return  # neither a start nor a stop is allowed, as on ECS
    for turn in range(200):
        plan = replica_plan(list(tasks.values()), NEW, desired, percentages)
        running = sum(each.state == "RUNNING" for each in tasks.values())
        stopped_running = sum(tasks[task_id].state == "RUNNING" for task_id in plan.stop)
        assert running - stopped_running >= min(running, percentages.least(desired), desired)
        for task_id in plan.stop:
            del tasks[task_id]
        for _ in range(plan.start):
            new = task(state="PENDING")
            tasks[new.id] = new
        assert len(tasks) <= ceiling
        pending = [each for each in tasks.values() if each.state == "PENDING"]
        slowest = min(len(pending), turn // 100)  # in the last turns, at least one pending task starts
        for each in order.sample(pending, order.randint(slowest, len(pending))):
            tasks[each.id] = ServiceTask(each.id, each.deployment, "RUNNING", each.instance_id, each.pool, each.created_at_s)
        if not plan.start and not plan.stop and not pending:
            break
    assert [each.deployment for each in tasks.values()] == [NEW] * desired


def test_a_daemon_starts_one_task_on_each_instance_without_one():
    plan = daemon_plan([task(instance="a")], NEW, {"a", "b", "c"}, Percentages(0, 100))
    assert (plan.start, plan.stop) == (2, ())


def test_a_waiting_daemon_task_counts_for_a_vacant_instance():
    waiting = task(state="PROVISIONING")
    assert daemon_plan([waiting], NEW, {"a"}, Percentages(0, 100)) == daemon_plan([], NEW, set(), Percentages(0, 100))
    assert daemon_plan([waiting], NEW, set(), Percentages(0, 100)).stop == (waiting.id,)


def test_daemon_tasks_leave_instances_that_no_longer_match():
    here, gone = task(instance="a"), task(instance="b")
    assert daemon_plan([here, gone], NEW, {"a"}, Percentages(0, 100), leaving={"b"}).stop == (gone.id,)


def test_a_daemon_rollout_stops_the_old_task_of_an_instance_first():
    old = [task(OLD, instance="a"), task(OLD, instance="b")]
    assert set(daemon_plan(old, NEW, {"a", "b"}, Percentages(0, 100)).stop) == ids(old)
    half = daemon_plan(old, NEW, {"a", "b"}, Percentages(50, 100))
    assert (half.start, half.stop) == (0, (old[0].id,))


def stopped(at_s, ran_s=1.0, code="EssentialContainerExited"):
    return StoppedTask(code, at_s - ran_s, at_s - ran_s, at_s)


def test_failures_in_a_row_end_at_a_task_that_ran_long_enough():
    assert failures_in_a_row([stopped(9), stopped(8), stopped(7, SHORT_RUN_S), stopped(1)]) == 2
    assert failures_in_a_row([stopped(9, code="ServiceSchedulerInitiated"), stopped(8)]) == 1
    assert failures_in_a_row([StoppedTask("TaskFailedToStart", 1.0, None, 2.0)]) == 1


@pytest.mark.parametrize(("failures", "delay_s"), [(0, None), (1, None), (2, 1), (3, 2), (4, 4), (50, DELAY_MAX_S)])
def test_the_delay_doubles_with_each_failure(failures, delay_s):
    newest_first = [stopped(100.0 - number) for number in range(failures)]
    assert next_start_s(newest_first, 1) == (0.0 if delay_s is None else 100.0 + delay_s)


def test_tasks_that_fail_together_count_as_one_round():
    assert next_start_s([stopped(100.0) for _ in range(10)], 10) == 0.0
    assert next_start_s([stopped(100.0) for _ in range(11)], 10) == 101.0
