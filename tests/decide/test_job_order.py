"""The order of Batch jobs. Shares of a queue converge to their weights, whatever the sizes and durations of their jobs."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from corral.decide.shares import is_idle, use_after, use_at
from corral.decide.tasks.job_order import job_rank, share_level, share_may_start, vcpus_of, weighted_vcpus
from corral.model.job_line import JobPlace, ShareUse
from corral.model.placement import EQUAL_SHARE, Rank, claim_rank
from corral.model.task import Demand
from examples import examples

DECAY_S = 600.0


def test_use_decays_and_grows_with_what_a_share_holds() -> None:
    use = use_after(ShareUse(), 4, 0.0, DECAY_S)
    assert use_at(use, 1e6, DECAY_S).used == pytest.approx(4 * DECAY_S)  # four vCPUs on average
    later = use_after(use_at(use, 1e6, DECAY_S), -4, 1e6, DECAY_S)
    assert later.held == 0 and use_at(later, 1e6 + DECAY_S, DECAY_S).used == pytest.approx(4 * DECAY_S / 2.718281828)
    assert not is_idle(later, 1e6, DECAY_S) and is_idle(later, 1e6 + 20 * DECAY_S, DECAY_S)


def test_use_does_not_change_if_the_clock_goes_back() -> None:
    use = use_after(ShareUse(), 4, 100.0, DECAY_S)
    assert use_at(use, 50.0, DECAY_S) == use


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(-8, 8)), max_size=20))
def test_many_small_steps_of_time_are_one_large_step(steps: list[tuple[float, int]]) -> None:
    """The use after some changes does not depend on how often it was read between them."""
    rough = fine = ShareUse()
    now_s = 0.0
    for wait_s, change in steps:
        for part in (1, 2, 3):
            fine = use_at(fine, now_s + wait_s * part / 3, DECAY_S)
        now_s += wait_s
        rough, fine = use_after(rough, change, now_s, DECAY_S), use_after(fine, change, now_s, DECAY_S)
    assert fine.held == rough.held and fine.used == pytest.approx(rough.used, rel=1e-9, abs=1e-6)


def test_gpus_count_as_vcpus() -> None:
    assert (
        weighted_vcpus(Demand(2, 1024)) == 8
        and weighted_vcpus(Demand(1, 16 * 1024)) == 16
        and weighted_vcpus(Demand(0, 512)) == 0.5
    )
    job = Demand(1, 2048, nodes=((Demand(1, 2048), 3), (Demand(0, 1024), 1)))
    assert weighted_vcpus(job) == 13 and vcpus_of(job) == 7


@settings(max_examples=examples(5), deadline=None)
@example([(0.25, 1, 240), (0.25, 1, 20), (0.25, 1, 20), (2.0, 4, 20)])  # the last share gets less than one job at a time
@given(
    st.lists(st.tuples(st.sampled_from((0.25, 0.5, 1.0, 2.0)), st.integers(1, 4), st.integers(20, 300)), min_size=2, max_size=5),
)
def test_shares_converge_to_their_weights(shares: list[tuple[float, int, int]]) -> None:
    """Each share always has waiting jobs of its own size and duration. Its part of the capacity is 1 / its weight."""
    capacity, now_s, end_s = 64, 0.0, 20 * DECAY_S
    uses = [ShareUse()] * len(shares)
    running: list[tuple[float, int]] = []
    free, total = capacity, [0.0] * len(shares)
    while now_s < end_s:
        while True:
            order = sorted(range(len(shares)), key=lambda at: (share_level(uses[at], shares[at][0], DECAY_S, now_s), at))
            if shares[order[0]][1] > free:
                break  # the first job reserves what is free
            at, (_, size, duration_s) = order[0], shares[order[0]]
            free -= size
            uses[at] = use_after(uses[at], size, now_s, DECAY_S)
            heappush(running, (now_s + duration_s, at))
            if now_s > DECAY_S:
                total[at] += size * duration_s
        now_s, at = heappop(running)
        free += shares[at][1]
        uses[at] = use_after(uses[at], -shares[at][1], now_s, DECAY_S)
    wanted = [1 / weight for weight, _, _ in shares]
    for at in range(len(shares)):
        assert total[at] / sum(total) == pytest.approx(wanted[at] / sum(wanted), rel=0.25), (total, wanted)


def test_a_share_without_use_is_before_a_share_with_a_low_weight() -> None:
    busy = use_after(ShareUse(), 1, 0.0, DECAY_S)
    assert share_level(ShareUse(), 999.0, DECAY_S, 1.0) < share_level(busy, 0.0001, DECAY_S, 1.0)


@pytest.mark.parametrize(
    ("share", "vcpus", "held", "reservation", "may"),
    [
        ("a", 8, {}, 50, True),  # the first share may use the reserved part
        ("a", 8, {"a": 40}, 50, True),  # 48 of 100
        ("a", 11, {"a": 40}, 50, False),  # half is reserved for other shares
        ("b", 11, {"a": 50}, 50, True),
        ("a", 15, {"a": 50, "b": 10}, 50, True),  # a quarter is reserved
        ("a", 16, {"a": 50, "b": 10}, 50, False),
        ("a", 16, {"a": 84, "b": 0}, 0, True),
        ("a", 1, {"a": 50, "b": 0}, 50, False),  # b has no running jobs
    ],
)
def test_compute_reservation(share: str, vcpus: float, held: dict[str, float], reservation: int, may: bool) -> None:
    assert share_may_start(share, vcpus, held, 100, reservation) is may


def test_the_order_of_jobs() -> None:
    def rank(queue: int = 1, level: float = 0.0, priority: int = 0, number: int = 5, index: int = 0) -> tuple[float, ...]:
        return job_rank(100.0, queue, level, JobPlace(-priority, number, index, "id", 0.0))

    ordered = [
        rank(queue=2, level=9.0, number=9),
        rank(level=0.5, number=9),
        rank(level=1.0, priority=3, number=9),
        rank(level=1.0, number=4, index=7),
        rank(level=1.0, number=5, index=1),
        rank(level=1.0, number=5, index=2),
    ]
    assert ordered == sorted(ordered)
    assert claim_rank(99.0) < min(ordered) and max(ordered) < claim_rank(101.0)  # all jobs have the seniority of the oldest one


CLAIMS = st.tuples(st.integers(-9, 9), st.floats(0, 2), st.floats(0, 2), st.booleans(), st.integers(-9, 9))


@given(CLAIMS, CLAIMS)
def test_claims_are_served_by_priority_then_share_then_age(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Claims of tasks, instances and jobs. A job has the priority 0 among them."""

    def rank(priority: int, share: float, since_s: float, is_job: bool, number: int) -> Rank:
        if is_job:
            return job_rank(since_s, number, 0.0, JobPlace(number, number, 0, "id", 0.0), share)
        return claim_rank(since_s, priority, share, order=(number,))

    keys = [(0 if is_job else -priority, share, since_s) for priority, share, since_s, is_job, _ in (one, other)]
    if keys[0] != keys[1]:
        assert (rank(*one) < rank(*other)) == (keys[0] < keys[1])
    assert claim_rank(one[2], one[0]) == claim_rank(one[2], one[0], EQUAL_SHARE) < claim_rank(one[2], one[0], one[1] + 0.1)
