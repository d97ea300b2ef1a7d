"""How many instances a capacity provider needs, and what its group's desired capacity becomes."""

from __future__ import annotations

import random

import pytest

from corral.decide.scaling.managed_scaling import (
    Decision,
    GroupInstance,
    GroupState,
    Need,
    ScalingRules,
    WaitingTasks,
    desired_capacity,
    needed_instances,
    reservation_percent,
)
from corral.model.placement import Slot
from corral.model.task import ALL_GPUS, Demand, PlacementRules

POOL, NOW = "us-east-1/fleet", 1000.0
DISTINCT = PlacementRules(POOL, distinct=True, group=f"{POOL}/apart")


def slot(id: str, gpus: int, free: int | None = None, memory_mib: int = 16_384, **more: object) -> Slot:
    total = Demand(gpus, 4096, memory_mib)
    return Slot(id, total, 4096, memory_mib, ["g"] * (gpus if free is None else free), {}, **more)  # type: ignore[arg-type]


def instance(id: str = "a", gpus: int = 4, free: int | None = None, *, busy: bool = False, **more: object) -> GroupInstance:
    return GroupInstance(POOL, slot(id, gpus, free, **more), is_busy=busy)


def waiting(count: int, gpus: int = 0, memory_mib: int = 0, rules: PlacementRules | None = None, pool: str = POOL) -> WaitingTasks:
    return WaitingTasks(pool, Demand(gpus, 0, memory_mib, rules), count)


@pytest.mark.parametrize(
    ("instances", "tasks", "used", "launches", "unfit"),
    [
        ([], [], 0, 0, 0),
        ([], [waiting(1, 1)], 0, 1, 0),
        ([], [waiting(9, 1)], 0, 3, 0),
        ([], [waiting(2, 3), waiting(2, 1)], 0, 2, 0),  # the small tasks fill the instances of the large ones
        ([], [waiting(2, 1), waiting(2, 3)], 0, 2, 0),
        ([], [waiting(1, 5)], 0, 0, 1),
        ([], [waiting(1, 5), waiting(1, 4)], 0, 1, 1),
        ([], [waiting(3, ALL_GPUS)], 0, 3, 0),
        ([], [waiting(1, ALL_GPUS), waiting(4, 1)], 0, 2, 0),
        ([], [waiting(3, rules=DISTINCT)], 0, 3, 0),
        ([], [waiting(3, rules=DISTINCT), waiting(3, 4)], 0, 3, 0),
        ([], [waiting(10_000)], 0, 1, 0),  # tasks that need nothing
        ([], [waiting(3, 0, 8192)], 0, 2, 0),
        ([], [waiting(1, 1, pool="us-east-1/other")], 0, 0, 1),
        ([instance(busy=True, free=0)], [], 1, 0, 0),
        ([instance()], [], 0, 0, 0),
        ([instance()], [waiting(4, 1)], 1, 0, 0),
        ([instance(busy=True, free=1)], [waiting(2, 1)], 1, 1, 0),
        ([instance(), instance("b")], [waiting(1, 1)], 1, 0, 0),
        ([instance(draining=True)], [waiting(1, 1)], 0, 1, 0),
        ([instance(connected=False)], [waiting(1, 1)], 0, 1, 0),
        ([instance(tasks={f"{POOL}/apart": 1}, busy=True)], [waiting(1, rules=DISTINCT)], 1, 1, 0),
        ([instance(free=3, busy=True)], [waiting(1, ALL_GPUS)], 1, 1, 0),
    ],
)
def test_needed_instances(instances: list[GroupInstance], tasks: list[WaitingTasks], used: int, launches: int, unfit: int) -> None:
    found = needed_instances(instances, tasks, instance(""))
    assert (len(found.used), found.launches, len(found.unfit)) == (used, launches, unfit)


def test_without_a_launch_all_tasks_that_do_not_fit_are_unfit() -> None:
    found = needed_instances([instance()], [waiting(5, 1)], None)
    assert found == Need(frozenset({"a"}), 0, (Demand(1),))


def test_packing_needs_the_least_number_of_instances() -> None:
    rng = random.Random(7)
    for _ in range(300):
        ones, twos, threes, fours = (rng.randint(0, 30) for _ in range(4))
        lines = [waiting(count, gpus) for gpus, count in enumerate((ones, twos, threes, fours), 1) if count]
        rng.shuffle(lines)
        found = needed_instances([], lines, instance(""))
        small = 2 * twos + max(0, ones - threes)  # GPUs of the tasks that do not fill an instance with a larger task
        assert found == Need(launches=fours + threes + -(-small // 4))


@pytest.mark.parametrize(
    ("needed", "present", "percent"), [(0, 0, 100), (1, 0, 200), (5, 0, 200), (0, 3, 0), (3, 3, 100), (2, 4, 50), (5, 2, 250)]
)
def test_the_reservation_as_aws_documents_it(needed: int, present: int, percent: float) -> None:
    assert reservation_percent(needed, present) == percent


def group(desired: int, present: int | None = None, used: int = 0, **more: object) -> GroupState:
    given = {"min_size": 0, "max_size": 10, **more}
    return GroupState(desired, present=desired if present is None else present, used=used, **given)  # type: ignore[arg-type]


def used(count: int, launches: int = 0) -> Need:
    return Need(frozenset(map(str, range(count))), launches)


@pytest.mark.parametrize(
    ("state", "need", "rules", "desired"),
    [
        (group(0), used(0, 1), ScalingRules(), 1),
        (group(0), used(0, 7), ScalingRules(), 7),
        (group(0), used(0, 70), ScalingRules(), 10),  # the maximum size
        (group(2, used=2), used(2, 3), ScalingRules(), 5),
        (group(3, used=2), used(2, 1), ScalingRules(), 4),  # the tasks cannot use the third instance
        (group(2, 0), used(0, 2), ScalingRules(), 2),  # already asked for
        (group(0), used(0, 7), ScalingRules(max_step=3), 3),
        (group(3, 1, warming=3), used(1, 6), ScalingRules(max_step=3), 3),  # they still start
        (group(3, warming=1, used=3), used(3, 4), ScalingRules(max_step=3), 5),
        (group(0), used(0, 1), ScalingRules(min_step=4), 4),
        (group(0), used(0, 1), ScalingRules(min_step=40), 10),
        (group(0), used(0, 3), ScalingRules(target_percent=50), 6),
        (group(0), used(0, 3), ScalingRules(target_percent=80), 4),
        (group(0), used(0), ScalingRules(target_percent=50), 0),
        (group(0, 3, 3), used(3), ScalingRules(max_step=1), 3),  # instances that are there are not launched
        (group(0, weight=2), used(0, 3), ScalingRules(), 6),
        (group(0, min_size=2), used(0), ScalingRules(), 2),
        (group(1, 7, 7, is_lowered=True), used(7), ScalingRules(), 1),  # a user has scaled in
        (group(1, 7, 7, is_lowered=True), used(7, 2), ScalingRules(target_percent=50), 3),
    ],
)
def test_a_scale_out_happens_at_once(state: GroupState, need: Need, rules: ScalingRules, desired: int) -> None:
    assert desired_capacity(state, need, rules, None, NOW).desired == desired


def test_a_limited_step_continues_when_instances_have_warmed_up() -> None:
    state, need = group(3, warming=3, warm_at_s=NOW + 30, used=3), used(3, 2)
    assert desired_capacity(state, need, ScalingRules(max_step=3), None, NOW) == Decision(3, None, NOW + 30, True)


def test_launches_that_wait_for_gpus_are_withdrawn_at_once() -> None:
    rules = ScalingRules(scale_in_delay_s=900.0)
    assert desired_capacity(group(4, used=2, waiting=2), used(2), rules, None, 100.0) == Decision(2)
    assert desired_capacity(group(4, used=3, waiting=2), used(3), rules, None, 100.0) == Decision(3)
    some = desired_capacity(group(4, used=1, waiting=2), used(1), rules, None, 100.0)
    assert some == Decision(2, 100.0, 1000.0), "an instance that runs waits for the delay"


def test_a_scale_in_waits_for_the_delay() -> None:
    state, need, rules = group(5, used=2), used(2), ScalingRules(scale_in_delay_s=60)
    first = desired_capacity(state, need, rules, None, NOW)
    assert first == Decision(5, NOW, NOW + 60)
    assert desired_capacity(state, need, rules, NOW, NOW + 59) == first
    assert desired_capacity(state, need, rules, NOW, NOW + 60) == Decision(2)
    assert desired_capacity(group(5, used=5), used(5), rules, NOW, NOW + 59) == Decision(5)  # the delay begins again
    assert desired_capacity(group(5, used=2, min_size=4), need, rules, NOW, NOW + 60) == Decision(4)
    assert desired_capacity(state, need, ScalingRules(scale_in_delay_s=0), None, NOW) == Decision(2)
