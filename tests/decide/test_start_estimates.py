"""Start estimates: tables, and a comparison with what really happens."""

from __future__ import annotations

import pytest
from hypothesis import given

from corral.decide.placement.start_estimates import CLAIMS_MAX, estimates, first_waiting, start_text
from corral.model.placement import Claim
from corral.model.task import Demand, PlacementRules
from decide.backfill_simulation import Simulation, Work
from decide.test_backfill import HEAD, LARGE, SIZES, claim, four_gpus, hold, properties, works
from decide.test_placement_decisions import fleet_of, pool_of, slot


def starts(*claims: Claim, limit_at_s: float | None = 100.0) -> list[float | None]:
    _, pool = four_gpus(*claims, limit_at_s=limit_at_s)
    found = first_waiting(pool, 10.0, 100)
    assert [each.claim for each in found] == sorted(claims)
    assert [each.place for each in found] == [pool.place_in_line(each) for each in sorted(claims)] == [*range(1, len(claims) + 1)]
    assert estimates(pool, 10.0) == {each.claim.id: each.starts_at_s for each in found if each.starts_at_s is not None}
    return [each.starts_at_s for each in found]


def test_each_claim_starts_after_those_before_it() -> None:
    assert starts(LARGE._replace(longest_s=50.0), claim("b", 2.0, 4, 30.0), claim("c", 3.0, 2, 1000.0), claim("d", 4.0, 2)) == [
        100.0,
        150.0,
        180.0,
        180.0,
    ]


def test_a_short_claim_fits_before_the_first() -> None:
    assert starts(LARGE._replace(longest_s=50.0), claim("b", 2.0, 3, 91.0), claim("c", 3.0, 1, 90.0)) == [100.0, 150.0, 10.0]


def test_a_claim_without_a_limit_never_ends() -> None:
    assert starts(LARGE, claim("b", 2.0, 1, 5000.0), claim("c", 3.0, 1, 1.0)) == [100.0, None, None]


def test_without_time_limits_no_start_is_known() -> None:
    assert starts(LARGE, claim("b", 2.0, 1), limit_at_s=None) == [None, None]


def test_a_claim_that_fits_no_host_delays_no_other() -> None:
    assert starts(claim("huge", 0.5, 8), LARGE) == [None, 100.0]


def test_a_limit_that_is_over_means_now() -> None:
    assert starts(LARGE, limit_at_s=5.0) == [10.0]


def test_rules_choose_the_hosts() -> None:
    fleet, pool = fleet_of([slot("a", 4), slot("b", 4)])
    pool.slot("b").attributes["room"] = "lab"
    hold(fleet, "a", 1, 10.0)
    hold(fleet, "b", 1, 90.0)
    for expression, start_s in (("attribute:room == lab", 90.0), ("attribute:room != lab", 10.0)):
        demand = Demand(4, rules=PlacementRules("r/c", (expression,)))
        asked = claim("a", 1.0, 4)._replace(demand=demand)
        fleet.add_claim("hosts", asked)
        assert [each.starts_at_s for each in first_waiting(pool, 0.0, 10)] == [start_s]
        fleet.remove_claim("hosts", asked)


def test_only_the_first_claims_have_an_estimate() -> None:
    found = starts(*(claim(f"t{at:03}", 1.0 + at, 4, 10.0) for at in range(CLAIMS_MAX + 5)))
    assert found == [100.0 + 10.0 * at for at in range(CLAIMS_MAX)] + [None] * 5
    assert first_waiting(pool_of(slot("a", 1)), 0.0, 10) == []


@pytest.mark.parametrize(
    ("left_s", "text"),
    [
        (0.0, "expected start now"),
        (-5.0, "expected start now"),
        (12.3, "expected start in about 13s"),
        (90.0, "expected start in about 1m30s"),
        (4790.0, "expected start in about 1h20m"),
    ],
)
def test_start_text(left_s: float, text: str) -> None:
    assert start_text(1000.0 + left_s, 1000.0) == text


@properties
@given(SIZES, works("r", limited=True), HEAD, works("y", limited=True))
def test_the_estimate_of_the_head_is_right_if_all_limits_are_true(
    sizes: list[int], running: list[Work], head: Work, younger: list[Work]
) -> None:
    found = Simulation(sizes, backfill=True)
    for number, work in enumerate(running):
        found.start_on(number % len(sizes), work)
    for work in (head, *(each._replace(arrives_s=1.0) for each in younger)):
        found.fleet.add_claim("hosts", work.claim)
    expected = first_waiting(found.pool, 0.0, 1)[0].starts_at_s
    for work in (head, *(each._replace(arrives_s=1.0) for each in younger)):
        found.fleet.remove_claim("hosts", work.claim)
    has_limits = bool(found.pool.slots_with_endings())
    found.run([head, *(each._replace(arrives_s=1.0) for each in younger)])
    if has_limits and head.id in found.starts:
        assert expected == found.starts[head.id]
