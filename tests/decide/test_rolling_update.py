"""Rolling updates of groups: every rollout ends with fresh instances only, and keeps enough instances in service."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corral.decide.scaling.rolling_update import RollingPolicy, rolling_policy, start_rollout, step_rollout
from corral.model.group import GroupMember, LifecycleState


def member(number: int, state: LifecycleState = LifecycleState.IN_SERVICE) -> GroupMember:
    return GroupMember(instance_id=f"{number:032x}", region="r", group="g", state=state, created_at_s=number, type="t", zone="a")


@given(
    desired=st.integers(1, 6),
    spare=st.integers(0, 3),
    batch=st.integers(1, 4),
    in_service=st.integers(0, 6),
    room=st.integers(0, 3),
    signals=st.booleans(),
    slow=st.lists(st.booleans(), max_size=30),
)
@example(desired=2, spare=2, batch=1, in_service=3, room=1, signals=False, slow=[])  # a surplus is left when the surge ends
def test_every_rollout_ends(
    desired: int, spare: int, batch: int, in_service: int, room: int, signals: bool, slow: list[bool]
) -> None:
    """The machine has room for `desired + room` instances. `slow` says in which rounds no launch completes."""
    most = desired + spare
    policy = RollingPolicy(batch=batch, in_service=min(in_service, most - 1), pause="PT1M", waits_on_signals=signals)
    group = {each.instance_id: each for each in map(member, range(desired))}
    obsolete, size, made, now_s = list(group), desired, desired, 0.0
    step = start_rollout(policy, obsolete, desired, most, now_s)
    for turn in range(400):
        if step.size is not None:
            size = step.size
        for instance_id in step.terminate:
            del group[instance_id]
        floor = min(policy.in_service, desired)
        if step.terminate and not step.rollout.old_first:
            assert sum(each.state is LifecycleState.IN_SERVICE for each in group.values()) >= floor
        if step.is_done:
            break
        starting = [each for each in group.values() if each.state is LifecycleState.PENDING]
        while len(group) > size and starting:  # a scale-in cancels launches first
            del group[starting.pop().instance_id]
        while len(group) < size:
            group[f"{made:032x}"] = member(made, LifecycleState.PENDING)
            made += 1
        running = sum(each.state is LifecycleState.IN_SERVICE for each in group.values())
        for each in [each for each in group.values() if each.state is LifecycleState.PENDING]:
            if running < desired + room and not (turn < len(slow) and slow[turn]):
                group[each.instance_id] = each.but(state=LifecycleState.IN_SERVICE)
                running += 1
        waiting = {each.instance_id for each in group.values() if each.state is LifecycleState.PENDING}
        heard = {instance_id: "SUCCESS" for instance_id in group if instance_id not in waiting}
        now_s = step.again_s if step.again_s is not None and step.again_s > now_s and not signals else now_s + 1
        step = step_rollout(policy, step.rollout, list(group.values()), frozenset(waiting), heard, now_s)
        assert not step.error, step.error
    assert step.is_done and size == desired
    assert not group.keys() & set(obsolete) and len(group) >= desired, "the group itself terminates a surplus"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({}, RollingPolicy()),
        ({"WaitOnResourceSignals": "true"}, RollingPolicy(waits_on_signals=True, pause="PT5M")),
        (
            {"MaxBatchSize": "3", "MinInstancesInService": 1, "PauseTime": "PT1H2M3S", "SuspendProcesses": ["AZRebalance"]},
            RollingPolicy(batch=3, in_service=1, pause="PT1H2M3S", suspends=("AZRebalance",)),
        ),
    ],
)
def test_a_policy_may_have_numbers_as_text(given: dict[str, Any], read: RollingPolicy) -> None:
    assert rolling_policy(given) == read
    assert RollingPolicy(pause="PT1H2M3S").pause_s == 3723


def test_a_policy_that_keeps_all_instances_can_replace_none() -> None:
    step = start_rollout(RollingPolicy(in_service=2), ["a", "b"], 2, 2, 0.0)
    assert step.error.startswith("MinInstancesInService must be less than the autoscaling group's MaxSize")
