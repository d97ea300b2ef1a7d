"""Lifecycle rules: what expires, and when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.decide.objects.expiry import (
    DAY_S,
    CandidateVersion,
    LifecycleFilter,
    LifecycleRule,
    abort_time,
    evaluate_key,
    expiry_time,
    midnight_after,
)
from examples import examples

NOON = 20_000 * DAY_S + DAY_S / 2  # of an arbitrary day
MIDNIGHT = 20_001 * DAY_S  # the next one
ALL = LifecycleFilter()


def rule(which: LifecycleFilter = ALL, since_s: float = 0.0, **members: object) -> LifecycleRule:
    return LifecycleRule("rule", which, since_s, **members)  # type: ignore[arg-type]


def version(
    name: str = "v1", at_s: float = NOON, size: int = 10, tags: dict[str, str] | None = None, marker: bool = False
) -> CandidateVersion:
    return CandidateVersion(name, at_s, size, tags or {}, marker)


@pytest.mark.parametrize(
    ("created_s", "days", "expires_s"),
    [
        (NOON, 1, MIDNIGHT + DAY_S),  # S3's own example: a day after 10:30 on the 15th is 00:00 on the 17th
        (NOON, 3, MIDNIGHT + 3 * DAY_S),
        (MIDNIGHT, 1, MIDNIGHT + 2 * DAY_S),
        (MIDNIGHT - 1, 1, MIDNIGHT + DAY_S),
    ],
)
def test_days_end_at_the_next_midnight(created_s: float, days: int, expires_s: float) -> None:
    found = expiry_time([rule(days=days)], "a", version(at_s=created_s))
    assert found is not None
    assert found[0] == expires_s


@pytest.mark.parametrize(
    ("since_s", "created_s", "expires_s"),
    [
        (0, NOON, MIDNIGHT),  # a date in the future
        (NOON + DAY_S, NOON, MIDNIGHT),  # a date before the rule: older versions expire at once
        (NOON + 2 * DAY_S, NOON + DAY_S, MIDNIGHT),
        (NOON + DAY_S, NOON + 2 * DAY_S, MIDNIGHT + 2 * DAY_S),  # newer versions expire at the next midnight
    ],
)
def test_dates(since_s: float, created_s: float, expires_s: float) -> None:
    found = expiry_time([rule(since_s=since_s, date_s=MIDNIGHT)], "a", version(at_s=created_s))
    assert found is not None
    assert found[0] == expires_s


@pytest.mark.parametrize(
    ("which", "selected"),
    [
        (ALL, True),
        (LifecycleFilter("logs/"), True),
        (LifecycleFilter("tmp/"), False),
        (LifecycleFilter(tags=(("stage", "test"),)), True),
        (LifecycleFilter(tags=(("stage", "prod"),)), False),
        (LifecycleFilter(tags=(("stage", "test"), ("team", "x"))), False),
        (LifecycleFilter(larger_than=9), True),
        (LifecycleFilter(larger_than=10), False),
        (LifecycleFilter(smaller_than=11), True),
        (LifecycleFilter(smaller_than=10), False),
        (LifecycleFilter("logs/", (("stage", "test"),), 9, 11), True),
    ],
)
def test_filters(which: LifecycleFilter, selected: bool) -> None:
    found = expiry_time([rule(which, days=1)], "logs/a", version(tags={"stage": "test"}))
    assert (found is not None) is selected


def test_the_earliest_rule_wins() -> None:
    soon, late = rule(days=1), rule(days=9)
    assert expiry_time([late, soon], "a", version()) == (MIDNIGHT + DAY_S, soon)


def test_unfinished_uploads() -> None:
    assert abort_time([rule(LifecycleFilter("in/"), abort_days=2)], "in/a", NOON) == (
        MIDNIGHT + 2 * DAY_S,
        rule(LifecycleFilter("in/"), abort_days=2),
    )
    assert abort_time([rule(LifecycleFilter("in/"), abort_days=2)], "out/a", NOON) is None
    assert abort_time([rule(days=1)], "in/a", NOON) is None


LATER = NOON + 10 * DAY_S


@pytest.mark.parametrize(
    ("rules", "versions", "now_s", "expires", "drops", "next_s"),
    [
        # the current version
        ([rule(days=1)], [version()], NOON, False, "", MIDNIGHT + DAY_S),
        ([rule(days=1)], [version()], MIDNIGHT + DAY_S, True, "", None),
        ([rule(noncurrent_days=1)], [version()], LATER, False, "", None),
        # noncurrent versions: counted from the creation of the next newer one
        ([rule(noncurrent_days=1)], [version("v2"), version("v1", NOON - DAY_S)], NOON, False, "", MIDNIGHT + DAY_S),
        ([rule(noncurrent_days=1)], [version("v2"), version("v1", 0)], MIDNIGHT + DAY_S, False, "v1", None),
        ([rule(days=1)], [version("v2"), version("v1", 0)], LATER, True, "", None),
        (
            [rule(noncurrent_days=1, newer_noncurrent=1)],
            [version("v3"), version("v2", NOON - 1), version("v1", NOON - 2)],
            LATER,
            False,
            "v1",
            None,
        ),
        (
            [rule(noncurrent_days=1)],
            [version("v3", MIDNIGHT), version("v2", NOON), version("v1", NOON - 1)],
            MIDNIGHT + DAY_S,
            False,
            "v1",
            MIDNIGHT + 2 * DAY_S,
        ),
        ([rule(noncurrent_days=1)], [version("v2"), version("v1", 0, marker=True)], LATER, False, "v1", None),
        # delete markers: only without versions behind them
        ([rule(days=1)], [version("m", marker=True), version("v1", 0)], LATER, False, "", None),
        ([rule(lone_markers=True)], [version("m", marker=True), version("v1", 0)], LATER, False, "", None),
        ([rule(lone_markers=True)], [version("m", marker=True)], NOON, False, "", MIDNIGHT),
        ([rule(lone_markers=True)], [version("m", marker=True)], MIDNIGHT, False, "m", None),
        ([rule(days=3)], [version("m", marker=True)], MIDNIGHT + 3 * DAY_S, False, "m", None),
        ([rule(LifecycleFilter(tags=(("a", "b"),)), days=3)], [version("m", marker=True)], LATER, False, "", None),
        (
            [rule(lone_markers=True, noncurrent_days=1)],
            [version("m", marker=True), version("v1", 0)],
            LATER,
            False,
            "v1 m",
            None,
        ),
        # the current version does not expire because older ones do
        ([rule(lone_markers=True, noncurrent_days=1)], [version("v2"), version("v1", 0)], LATER, False, "v1", None),
    ],
)
def test_decisions_for_a_key(
    rules: Sequence[LifecycleRule],
    versions: Sequence[CandidateVersion],
    now_s: float,
    expires: bool,
    drops: str,
    next_s: float | None,
) -> None:
    found = evaluate_key(rules, "a", versions, now_s)
    assert (found.expire is not None, list(found.drop), found.next_s) == (expires, drops.split(), next_s)


any_rule = st.builds(
    rule,
    days=st.none() | st.integers(1, 3),
    noncurrent_days=st.none() | st.integers(1, 3),
    newer_noncurrent=st.integers(0, 2),
    lone_markers=st.booleans(),
)
any_versions = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=6).map(
    lambda made: [
        version(f"v{at}", NOON + hours * 3600, marker=marker) for at, (hours, marker) in enumerate(sorted(made, reverse=True))
    ]
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(any_rule, max_size=3), any_versions, st.integers(0, 300))
def test_nothing_changes_before_next_s(rules: list[LifecycleRule], versions: list[CandidateVersion], hours: int) -> None:
    """An evaluation before `next_s` gives the same decision; at `next_s` it removes something."""
    now_s = NOON + 40 * 3600
    first = evaluate_key(rules, "a", versions, now_s)
    then = evaluate_key(rules, "a", versions, now_s + hours * 3600)
    same = (first.expire, first.drop) == (then.expire, then.drop)
    if first.next_s is None or now_s + hours * 3600 < first.next_s:
        assert same
    else:
        assert not same or first.next_s <= now_s


def test_the_oldest_of_very_many_versions_are_enough() -> None:
    chain = [version(f"v{number}", NOON + number) for number in range(9, -1, -1)]
    rules = [rule(noncurrent_days=1, newer_noncurrent=7)]
    assert evaluate_key(rules, "a", chain, LATER).drop == ("v1", "v0")
    assert evaluate_key(rules, "a", chain[6:], LATER, current=chain[0], unseen=6).drop == ("v1", "v0")
    assert evaluate_key(rules, "a", chain[6:], LATER, current=version("m", marker=True), unseen=6).drop == ("v1", "v0")
    assert evaluate_key([rule(days=1)], "a", chain[6:], LATER, current=chain[0], unseen=6).expire is not None


def test_midnight_after_a_midnight_is_the_next_one() -> None:
    assert midnight_after(MIDNIGHT) == MIDNIGHT + DAY_S
    assert midnight_after(MIDNIGHT - 0.001) == MIDNIGHT
