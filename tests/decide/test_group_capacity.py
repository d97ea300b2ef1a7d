"""What a group does next, what an instance refresh replaces next, and what lifecycle hooks decide."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.scaling.group_capacity import COUNTED, CapacityRequest, Distribution, Why, capacity_of, next_zone, plan_capacity
from corral.decide.scaling.instance_refresh import (
    BAKING,
    FAILED,
    IN_PROGRESS,
    PENDING,
    SUCCESSFUL,
    percentage_complete,
    step_refresh,
)
from corral.decide.scaling.termination_policies import ScaleIn
from corral.model.group import ABANDON, CONTINUE, SPOT, GroupMember, InstanceRefresh, LifecycleAction, LifecycleState, TaskWait
from corral.services.autoscaling.lifecycle_hooks import verdict

NOW = 1_000_000.0
S = LifecycleState


def member(id_: str, state: LifecycleState = S.IN_SERVICE, age_s: float = 100.0, **more: Any) -> GroupMember:
    in_service = NOW - age_s if state is S.IN_SERVICE else None
    given = {"type": "t", "zone": "a", "in_service_at_s": in_service, **more}
    return GroupMember(id_, "r", "g", state, NOW - age_s, **given)


def plan(members: list[GroupMember], desired: int, **more: Any):
    waiting, busy, limit = frozenset(more.pop("waiting", ())), frozenset(more.pop("busy", ())), more.pop("limit", 1000)
    return plan_capacity(CapacityRequest(desired=desired, **more), members, ScaleIn(NOW, busy=busy), waiting=waiting, limit=limit)


def ends(found) -> dict[str, str]:
    return {id_: why.value for id_, why in found.terminate}


THREE = [member("1", age_s=300), member("2", age_s=200), member("3", age_s=100)]


def test_scale_out_and_in() -> None:
    assert plan([], 3).missing == 3
    assert plan(THREE, 5).missing == 2
    assert plan(THREE, 3) == plan(THREE, 3, suspended=frozenset({"AZRebalance"}))
    assert ends(plan(THREE, 1, policies=("OldestInstance",))) == {"1": "surplus", "2": "surplus"}
    assert len(ends(plan(THREE, 0))) == 3


@pytest.mark.parametrize("state", [S.STANDBY, S.TERMINATING, S.TERMINATING_WAIT, S.TERMINATING_PROCEED])
def test_what_does_not_count(state: LifecycleState) -> None:
    assert plan([*THREE, member("4", state)], 3) == plan(THREE, 3)
    assert plan([*THREE[:2], member("4", state)], 3).missing == 1


def test_launches_that_wait_for_gpus_end_first() -> None:
    waiting = [member("w1", S.PENDING, age_s=2), member("w2", S.PENDING, age_s=1)]
    assert ends(plan([*THREE, *waiting], 4, waiting=["w1", "w2"])) == {"w2": "surplus"}, "the newest of them"
    assert ends(plan([*THREE, *waiting], 2, waiting=["w1", "w2"], policies=("OldestInstance",))).keys() == {"w1", "w2", "1"}


def test_launches_that_tasks_need_end_last() -> None:
    launches = [member(f"w{at}", S.PENDING, age_s=9 - at) for at in range(3)]
    members, waits = [*THREE, *launches], {"waiting": ["w0", "w1", "w2"], "busy": ["w0", "w2"]}
    assert ends(plan(members, 5, **waits)).keys() == {"w1"}
    assert ends(plan(members, 2, **waits)).keys() == {"w1", "1", "2", "3"}
    assert list(ends(plan(members, 1, **waits)))[-1] == "w2", "the newest of them"
    assert len(ends(plan(members, 0, **waits))) == 6 and len(ends(plan(members, 0, **waits, limit=2))) == 2
    protected = [*THREE, *(each.but(protected=True) for each in launches)]
    assert ends(plan(protected, 0, **waits)).keys() == {"w1", "1", "2", "3"}


def test_instances_that_wait_for_busy_tasks_are_taken_back() -> None:
    leaving = [
        member(f"w{at}", S.TERMINATING_WAIT, weight=weight, task_wait=TaskWait(NOW, is_surplus, True))
        for at, (is_surplus, weight) in enumerate([(True, 2), (False, 1), (True, 1), (True, 1)])
    ]
    wanted = [plan([*THREE, *leaving], desired) for desired in (2, 3, 4, 5, 6, 8)]
    assert [each.keep for each in wanted] == [(), (), ("w2",), ("w0",), ("w0", "w2"), ("w0", "w2", "w3")]
    assert [each.missing for each in wanted] == [0, 0, 0, 0, 0, 1] and len(ends(wanted[0])) == 1
    assert plan([*THREE, *leaving], 4, outdated=frozenset({"1"})).missing == 1, "a refresh replaces them"
    ill = [each.but(unhealthy="it is ill") for each in leaving]
    assert plan([*THREE, *ill], 4).missing == 1
    held = leaving[3].but(task_wait=None)  # it waits for lifecycle hooks
    assert plan([*THREE, held], 4).missing == 1


def test_protection_prevents_scale_in_only() -> None:
    protected = [each.but(protected=True) for each in THREE]
    assert plan(protected, 1).terminate == ()
    assert ends(plan([protected[0], *THREE[1:]], 0)).keys() == {"2", "3"}
    assert ends(plan([protected[0].but(unhealthy="x")], 1)) == {"1": "unhealthy"}


@pytest.mark.parametrize(
    "suspended, expected",
    [((), {"1": "unhealthy"}), (("Terminate",), {}), (("ReplaceUnhealthy",), {}), (("HealthCheck",), {"1": "unhealthy"})],
)
def test_unhealthy_instances_are_replaced(suspended: tuple[str, ...], expected: dict[str, str]) -> None:
    found = plan([member("1", unhealthy="a user health-check"), *THREE[1:]], 3, suspended=frozenset(suspended))
    assert ends(found) == expected
    assert found.missing == len(expected), "terminate, then launch"


def test_suspended_processes() -> None:
    assert plan([], 3, suspended=frozenset({"Launch"})).missing == 0
    assert plan(THREE, 0, suspended=frozenset({"Terminate"})).terminate == ()
    waits = plan(THREE, 0, suspended=frozenset({"Terminate"}), waiting=frozenset({"2"}))
    assert list(ends(waits)) == ["2"], "a launch that waits for GPUs is not an instance yet"


def test_failed_launches_are_retried_later() -> None:
    waits = plan([], 3, retry_at_s=NOW + 5)
    assert (waits.missing, waits.again_s) == (0, NOW + 5)
    assert plan([], 3, retry_at_s=NOW).missing == 3


def test_the_maximum_lifetime_replaces_one_at_a_time() -> None:
    found = plan(THREE, 3, max_lifetime_s=150.0)
    assert (ends(found), found.missing, found.again_s) == ({"1": "lifetime"}, 1, NOW + 50)
    busy = plan([*THREE, member("4", S.TERMINATING)], 3, max_lifetime_s=150.0)
    assert busy.terminate == ()


def test_weights_never_go_below_the_desired_capacity() -> None:
    heavy = [member("1", weight=4), member("2", weight=4), member("3", weight=2)]
    assert ends(plan(heavy, 7)) == {"3": "surplus"}
    assert ends(plan(heavy, 9)) == {}
    assert plan(heavy, 12).missing == 2


def test_a_mixed_group_shrinks_by_its_shares() -> None:
    mixed = [member("1"), member("2", market=SPOT), member("3", market=SPOT)]
    found = plan(mixed, 1, distribution=Distribution(1, 0), policies=("AllocationStrategy",))
    assert ends(found).keys() == {"2", "3"}


def test_zones_fill_evenly() -> None:
    zones, made = ["a", "b", "c"], list[GroupMember]()
    for at in range(7):
        made.append(member(str(at), zone=next_zone(zones, made)))
    assert [each.zone for each in made] == ["a", "b", "c", "a", "b", "c", "a"]
    assert next_zone(zones, [made[0].but(state=S.TERMINATING), *made[1:3]]) == "a"


states = st.sampled_from(list(S))
members_of = st.lists(
    st.builds(
        GroupMember,
        instance_id=st.uuids().map(str),
        region=st.just("r"),
        group=st.just("g"),
        state=states,
        created_at_s=st.floats(0, NOW),
        type=st.just("t"),
        zone=st.sampled_from("ab"),
        weight=st.integers(1, 4),
        protected=st.booleans(),
        unhealthy=st.sampled_from(["", "", "", "a user health-check"]),
        in_service_at_s=st.floats(0, NOW),
    ),
    unique_by=lambda each: each.instance_id,
    max_size=10,
)


@given(members=members_of, desired=st.integers(0, 20), waits=st.booleans())
def test_a_plan_leads_to_the_desired_capacity(members: list[GroupMember], desired: int, waits: bool) -> None:
    waiting = frozenset(each.instance_id for each in members if each.state is S.PENDING) if waits else frozenset()
    found = plan_capacity(CapacityRequest(desired=desired), members, ScaleIn(NOW), waiting=waiting)
    ended = dict(found.terminate)
    assert len(ended) == len(found.terminate), "once each"
    left = [each for each in members if each.instance_id not in ended]
    assert all(each.state in COUNTED for each in members if each.instance_id in ended), "only what counts is terminated"
    assert not [
        each
        for each in members
        if each.protected and ended.get(each.instance_id) is Why.SURPLUS and each.instance_id not in waiting
    ]
    assert capacity_of(left) + found.missing >= desired
    if found.missing:
        assert capacity_of(left) + found.missing == desired and Why.SURPLUS not in ended.values()
    lightest = min(
        (each.weight for each in left if each.state in COUNTED and (not each.protected or each.instance_id in waiting)),
        default=None,
    )
    assert lightest is None or capacity_of(left) - desired < lightest, "no more could be terminated"


# Instance refreshes


def refresh(members: list[GroupMember], **wishes: Any) -> InstanceRefresh:
    ids = tuple(each.instance_id for each in members)
    return InstanceRefresh("x", "r", "g", PENDING, NOW, len(ids), ids, wishes)


def run(
    now: InstanceRefresh, members: list[GroupMember], *, warmup_s: float = 0.0, seconds: int = 10_000
) -> tuple[InstanceRefresh, list[int], int]:
    """Replace instances as a group does, one second after the other: (refresh, ready instances over time, seconds)."""
    at_s, made, ready = NOW, 0, list[int]()
    desired = len(members)
    for second in range(seconds):
        step = step_refresh(now, desired, members, at_s, warmup_s)
        now = step.refresh
        if now.ended_at_s is not None:
            return now, ready, second
        members = [
            each.but(state=S.TERMINATING) if each.instance_id in step.replace else each
            for each in members
            if each.state is not S.TERMINATING
        ]
        for _ in range(desired + step.surge - capacity_of(members)):
            made += 1
            members.append(GroupMember(f"new{made}", "r", "g", S.IN_SERVICE, at_s, "t", "a", in_service_at_s=at_s))
        surplus = capacity_of(members) - desired - step.surge
        for each in [each for each in members if each.instance_id in now.remaining and each.state is S.IN_SERVICE][
            : max(0, surplus)
        ]:
            members = [other.but(state=S.TERMINATING) if other is each else other for other in members]
        ready.append(
            sum(
                each.state is S.IN_SERVICE and (not each.instance_id.startswith("new") or at_s >= each.created_at_s + warmup_s)
                for each in members
            )
        )
        at_s += 1
    return now, ready, seconds


@pytest.mark.parametrize(
    "least, most, low", [(90, 100, 9), (50, 100, 5), (0, 100, 0), (100, 110, 10), (100, 100, 9), (100, 200, 10)]
)
def test_a_refresh_keeps_enough_instances(least: int, most: int, low: int) -> None:
    members = [member(str(at), age_s=100 + at) for at in range(10)]
    wishes = {"MinHealthyPercentage": least, "MaxHealthyPercentage": most}
    done, ready, _ = run(refresh(members, **wishes), members, warmup_s=5.0)
    assert done.status == SUCCESSFUL and percentage_complete(done) == 100
    assert min(ready) == low


def test_a_refresh_of_a_small_group_replaces_one_at_a_time() -> None:
    members = [member("1"), member("2")]
    step = step_refresh(refresh(members), 2, members, NOW, 60.0)
    assert step.replace == {"1"} and step.refresh.status == IN_PROGRESS
    fresh = member("3", age_s=10)
    waits = step_refresh(step.refresh, 2, [fresh, members[1]], NOW, 60.0)
    assert (waits.replace, waits.again_s) == (frozenset(), NOW + 50), "until the new instance is warm"
    assert step_refresh(waits.refresh, 2, [fresh, members[1]], NOW + 50, 60.0).replace == {"2"}


def test_a_refresh_waits_at_checkpoints() -> None:
    members = [member(str(at)) for at in range(4)]
    wishes = {"MinHealthyPercentage": 0, "CheckpointPercentages": [50, 100], "CheckpointDelay": 30}
    step = step_refresh(refresh(members, **wishes), 4, members, NOW, 0.0)
    assert len(step.replace) == 2, "not more than the checkpoint allows"
    half = [each for each in members if each.instance_id not in step.replace] + [member("n1", age_s=0), member("n2", age_s=0)]
    stops = step_refresh(step.refresh, 4, half, NOW + 1, 0.0)
    assert (stops.replace, stops.again_s, stops.refresh.checkpoints_passed) == (frozenset(), NOW + 31, 1)
    assert len(step_refresh(stops.refresh, 4, half, NOW + 31, 0.0).replace) == 2


def test_a_refresh_that_ends_at_a_checkpoint() -> None:
    members = [member(str(at)) for at in range(4)]
    done, _, _ = run(refresh(members, MinHealthyPercentage=0, CheckpointPercentages=[50]), members)
    assert done.status == SUCCESSFUL


@pytest.mark.parametrize(
    "state, protected, member_of_wishes, choices",
    [
        (S.IN_SERVICE, True, "ScaleInProtectedInstances", {"Refresh": {"1"}, "Ignore": None, "Wait": set()}),
        (S.STANDBY, False, "StandbyInstances", {"Terminate": {"1"}, "Ignore": None, "Wait": set()}),
    ],
)
def test_protected_and_standby_instances(
    state: LifecycleState, protected: bool, member_of_wishes: str, choices: dict[str, Any]
) -> None:
    members = [member("1", state, protected=protected)]
    desired = 1 if state is S.IN_SERVICE else 0
    for choice, expected in choices.items():
        step = step_refresh(refresh(members, **{member_of_wishes: choice}), desired, members, NOW, 0.0)
        if expected is None:
            assert step.refresh.status == SUCCESSFUL, "nothing is left to replace"
        else:
            assert step.replace == expected
    assert step.again_s == NOW + 3600
    assert step_refresh(step.refresh, desired, members, NOW + 3600, 0.0).refresh.status == FAILED


def test_the_bake_time() -> None:
    members = [member("1")]
    step = step_refresh(refresh([], BakeTime=60), 1, members, NOW, 0.0)
    assert (step.refresh.status, step.again_s) == (BAKING, NOW + 60)
    assert step_refresh(step.refresh, 1, members, NOW + 30, 0.0).refresh.status == BAKING
    assert step_refresh(step.refresh, 1, members, NOW + 60, 0.0).refresh.status == SUCCESSFUL


# Lifecycle hooks


def action(deadline_s: float = NOW + 10, default: str = ABANDON, result: str = "", last_s: float = NOW + 100) -> LifecycleAction:
    return LifecycleAction("t", 10, deadline_s, last_s, default, result)


@pytest.mark.parametrize(
    "actions, expected",
    [
        ([action()], (None, NOW + 10)),
        ([action(), action(NOW + 5)], (None, NOW + 5)),
        ([action(result=CONTINUE)], (CONTINUE, None)),
        ([action(result=CONTINUE), action()], (None, NOW + 10)),
        ([action(), action(result=ABANDON)], (ABANDON, None)),
        ([action(NOW)], (ABANDON, None)),
        ([action(NOW, CONTINUE), action(result=CONTINUE)], (CONTINUE, None)),
        ([action(NOW + 50, CONTINUE, last_s=NOW)], (CONTINUE, None)),  # the global timeout
    ],
)
def test_hooks(actions: list[LifecycleAction], expected: tuple[str | None, float | None]) -> None:
    assert verdict(actions, NOW) == expected
