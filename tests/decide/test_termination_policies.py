"""Termination policies as tables of AWS's documentation, and properties that hold for every policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.scaling.instance_mix import TypeOption, next_market, on_demand_share, ordered, surplus_market
from corral.decide.scaling.termination_policies import POLICIES, Candidate, ScaleIn, choose
from corral.model.group import CONFIGURATION, ON_DEMAND, SPOT, TEMPLATE, LaunchSource

HOUR = 3600.0
NOW = 100 * HOUR


def configured(name: str, created_h: float) -> LaunchSource:
    return LaunchSource(CONFIGURATION, name=name, created_at_s=created_h * HOUR)


def template(id_: str, version: int) -> LaunchSource:
    return LaunchSource(TEMPLATE, id_, f"name-{id_}", str(version))


OLD, NEW = configured("old", 1), configured("new", 2)
T1, T2, OTHER = template("lt-1", 1), template("lt-1", 2), template("lt-0", 7)


def one(
    id_: str, zone: str = "a", age_h: float = 1.0, source: LaunchSource = NEW, market: str = ON_DEMAND, type_: str = "t"
) -> Candidate:
    return Candidate(id_, zone, NOW - age_h * HOUR, source, market, type_)


TABLE = {
    # policy, candidates, what the group launches from now, the instance that is terminated
    "the zone with the most instances comes before the policy": (
        ["OldestInstance"], [one("1", "a", 9), one("2", "b", 5), one("3", "b", 4)], NEW, "2",
    ),
    "balanced zones are searched together": (
        ["OldestInstance"], [one("1", "a", 9), one("2", "a", 3), one("3", "b", 8), one("4", "b", 10)], NEW, "4",
    ),
    "the oldest instance": (["OldestInstance"], [one("1", age_h=2), one("2", age_h=3), one("3", age_h=1)], NEW, "2"),
    "the newest instance": (["NewestInstance"], [one("1", age_h=2), one("2", age_h=3), one("3", age_h=1)], NEW, "3"),
    "the oldest launch configuration": (
        ["OldestLaunchConfiguration"], [one("1", source=NEW, age_h=9), one("2", source=OLD, age_h=2)], NEW, "2",
    ),
    "several policies narrow one after the other": (
        ["OldestLaunchConfiguration", "NewestInstance"],
        [one("1", source=OLD, age_h=9), one("2", source=OLD, age_h=2), one("3", source=NEW, age_h=1)], NEW, "2",
    ),
    "the oldest version of the current launch template": (
        ["OldestLaunchTemplate"], [one("1", source=T2, age_h=9), one("2", source=T1, age_h=2)], T2, "2",
    ),
    "another launch template is older than any version of the current one": (
        ["OldestLaunchTemplate"], [one("1", source=T1, age_h=9), one("2", source=OTHER, age_h=2)], T2, "2",
    ),
    "closest to the next instance hour": (
        ["ClosestToNextInstanceHour"], [one("1", age_h=1.5), one("2", age_h=7.9), one("3", age_h=2.2)], NEW, "2",
    ),
    "Default: launch configurations before launch templates": (
        ["Default"], [one("1", source=T1, age_h=1.99), one("2", source=OLD, age_h=1.1)], T2, "2",
    ),
    "Default: a launch template that is not the current one": (
        ["Default"], [one("1", source=T1, age_h=1.99), one("2", source=OTHER, age_h=1.1)], T2, "2",
    ),
    "Default: the oldest version": (["Default"], [one("1", source=T2, age_h=1.99), one("2", source=T1, age_h=1.1)], T2, "2"),
    "Default: the oldest launch configuration": (
        ["Default"], [one("1", source=NEW, age_h=1.99), one("2", source=OLD, age_h=1.1)], NEW, "2",
    ),
    "Default: then closest to the next billing hour": (["Default"], [one("1", age_h=1.5), one("2", age_h=7.9)], NEW, "2"),
    "no policy is Default": ([], [one("1", age_h=1.5), one("2", age_h=7.9)], NEW, "2"),
    "a function is not called": (
        ["arn:aws:lambda:us-east-1:1:function:f", "NewestInstance"], [one("1"), one("2", age_h=0.5)], NEW, "2",
    ),
    "the oldest of equal ones": (["Default"], [one("1", age_h=2), one("2", age_h=3)], NEW, "2"),
    "attached instances have no source": (
        ["OldestLaunchConfiguration"], [one("1", source=LaunchSource(), age_h=9), one("2", source=OLD)], NEW, "2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_the_table(case: str) -> None:
    policies, candidates, current, expected = TABLE[case]
    chosen = choose(candidates, [each.zone for each in candidates], policies, ScaleIn(NOW, current))
    assert chosen is not None and chosen.id == expected


def test_protected_instances_count_for_the_balance_of_zones() -> None:
    """Zone a has three instances, two of them protected: the third one is chosen, although zone b has two open ones."""
    free = [one("a3", "a", 1), one("b1", "b", 9), one("b2", "b", 8)]
    chosen = choose(free, ["a", "a", "a", "b", "b"], ["OldestInstance"], ScaleIn(NOW))
    assert chosen is not None and chosen.id == "a3"


@pytest.mark.parametrize(
    ("busy", "expected"), [("", "3"), ("3", "2"), ("23", "3"), ("1", "3"), ("123", "3")]
)  # fmt: skip
def test_idle_instances_come_before_the_policy_and_after_the_zones(busy: str, expected: str) -> None:
    candidates = [one("1", "a", 9), one("2", "b", 4), one("3", "b", 5)]
    group = ScaleIn(NOW, busy=frozenset(busy))
    chosen = choose(candidates, [each.zone for each in candidates], ["OldestInstance"], group)
    assert chosen is not None and chosen.id == expected


def test_the_allocation_strategy_takes_from_the_market_with_too_many() -> None:
    candidates = [one("1", market=SPOT, type_="p3"), one("2", type_="g5"), one("3", type_="p3"), one("4", type_="p3", age_h=2)]
    group = ScaleIn(NOW, surplus_market=ON_DEMAND, type_rank={"g5": 0, "p3": 1}, is_mixed=True)
    chosen = choose(candidates, ["a"] * 4, ["AllocationStrategy", "OldestInstance"], group)
    assert chosen is not None and chosen.id == "4", "on-demand, of the type that comes last, the oldest"


@given(
    candidates=st.lists(
        st.builds(
            Candidate,
            id=st.uuids().map(str),
            zone=st.sampled_from("abc"),
            launched_at_s=st.floats(0, NOW),
            source=st.sampled_from([OLD, NEW, T1, T2, OTHER, LaunchSource()]),
            market=st.sampled_from([ON_DEMAND, SPOT]),
            type=st.sampled_from(["p3", "g5"]),
        ),
        unique_by=lambda each: each.id,
        max_size=12,
    ),
    policies=st.lists(st.sampled_from([*POLICIES, "arn:aws:lambda:r:1:function:f"]), max_size=3),
    current=st.sampled_from([OLD, T2, LaunchSource()]),
)
def test_the_choice_is_a_candidate_of_a_largest_zone(
    candidates: list[Candidate], policies: list[str], current: LaunchSource
) -> None:
    chosen = choose(candidates, [each.zone for each in candidates], policies, ScaleIn(NOW, current, SPOT, {"p3": 0}, is_mixed=True))
    if not candidates:
        assert chosen is None
        return
    assert chosen in candidates
    sizes = [[each.zone for each in candidates].count(zone) for zone in "abc"]
    assert [each.zone for each in candidates].count(chosen.zone) == max(sizes)
    assert (
        choose(
            candidates[::-1], [each.zone for each in candidates], policies, ScaleIn(NOW, current, SPOT, {"p3": 0}, is_mixed=True)
        )
        == chosen
    )


@pytest.mark.parametrize(
    "base, above, markets",
    [
        (0, 100, "ooooo"),
        (0, 0, "sssss"),
        (2, 0, "oosss"),
        (1, 50, "oosos"),
        (0, 25, "ossso"),
    ],
)
def test_markets_follow_base_and_percentage(base: int, above: int, markets: str) -> None:
    made = ""
    for _ in markets:
        made += next_market(made.count("o"), made.count("s"), base, above)[0]
    assert made == markets.replace("o", ON_DEMAND[0])


@given(base=st.integers(0, 10), above=st.integers(0, 100), capacity=st.integers(1, 60))
def test_shares_are_reached_by_growing_and_by_shrinking(base: int, above: int, capacity: int) -> None:
    on_demand = spot = 0
    for _ in range(capacity):
        if next_market(on_demand, spot, base, above) == ON_DEMAND:
            on_demand += 1
        else:
            spot += 1
    assert on_demand == on_demand_share(capacity, base, above)
    while on_demand + spot > capacity // 2:
        if surplus_market(on_demand, spot, base, above) == ON_DEMAND:
            on_demand -= 1
        else:
            spot -= 1
        assert min(on_demand, spot) >= 0
    assert on_demand == on_demand_share(capacity // 2, base, above)


def test_the_order_of_types() -> None:
    options = [TypeOption("big", 4, 0), TypeOption("small", 1, 1), TypeOption("odd", 1, 2)]
    prices = {"big": 10.0, "small": 3.0}
    assert [each.type for each in ordered(options, "prioritized", prices)] == ["big", "small", "odd"]
    assert [each.type for each in ordered(options, "lowest-price", prices)] == ["big", "small", "odd"], "2.5 per unit, 3, unknown"
    assert [each.type for each in ordered(options, "lowest-price", {**prices, "small": 2.0})] == ["small", "big", "odd"]
