"""Placement decisions: tables, then properties of every fleet. The pool is the real index."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.undo_log import UndoLog
from corral.decide.placement.place import place, serve
from corral.decide.placement.reservations import standing_reservation
from corral.decide.placement.shortages import why_not, why_waiting
from corral.model.placement import TASK, Claim, Placement, Reservation, Slot, Unplaceable
from corral.model.task import Demand
from corral.store.fleet import Fleet
from corral.store.pool_index import PoolIndex
from examples import examples

POOL = "hosts"
properties = settings(max_examples=examples(60), deadline=None)


def slot(name: str, total: int, free: int | None = None, *, cpu: int = 4096, memory: int = 4096, connected: bool = True) -> Slot:
    """A host of 4096 CPU units and 4096 MiB with `total` GPUs; `free`, `cpu` and `memory` are the free amounts."""
    names = [f"{name}-{at}" for at in range(total)]
    held = total - (total if free is None else free)
    positions = {gpu: at for at, gpu in enumerate(names)}
    return Slot(name, Demand(total, 4096, 4096), cpu, memory, names[held:], positions, connected)


def fleet_of(slots: Iterable[Slot], claims: Iterable[Claim] = ()) -> tuple[Fleet, PoolIndex]:
    fleet = Fleet(UndoLog())
    for each in slots:
        fleet.put_slot(POOL, each)
    for claim in claims:
        fleet.add_claim(POOL, claim)
    return fleet, fleet.pool(POOL)


def pool_of(*slots: Slot, claims: Iterable[Claim] = ()) -> PoolIndex:
    return fleet_of(slots, claims)[1]


def serve_all(fleet: Fleet) -> list[tuple[Claim, Placement]]:
    """Take every grant, as the scheduler does."""
    grants = []
    for claim, placement in serve(fleet.pool(POOL), 0.0):
        fleet.remove_claim(POOL, claim)
        fleet.take(POOL, placement.slot_id, placement.gpu_ids, claim.demand.cpu_units, claim.demand.memory_mib)
        grants.append((claim, placement))
    return grants


@pytest.mark.parametrize(
    ("free", "demand", "where"),
    [
        ({"a": 8, "b": 2}, 2, "b"),  # tightest fit
        ({"a": 8, "b": 2}, 4, "a"),
        ({"a": 8, "b": 2}, 0, "b"),  # a task without GPUs leaves the large gap alone too
        ({"a": 1, "b": 1}, 2, None),  # never split over hosts
        ({"b": 3, "a": 3}, 3, "a"),  # the name breaks ties: same in, same out
        ({"a": 0}, 0, "a"),
        ({"a": 0}, 1, None),
        ({}, 1, None),
        ({}, 0, None),
    ],
)
def test_best_fit(free: dict[str, int], demand: int, where: str | None) -> None:
    found = place(pool_of(*(slot(name, 8, gpus) for name, gpus in free.items())), Demand(demand))
    assert getattr(found, "slot_id", None) == where


def test_among_equal_gpus_the_least_memory_is_left_over() -> None:
    pool = pool_of(slot("a", 4, 2, memory=4096), slot("b", 4, 2, memory=1024), slot("c", 4, 2, memory=512))
    assert place(pool, Demand(1, 0, 1000)) == Placement("b", ("b-2",))


def test_a_silent_host_gets_nothing_new() -> None:
    pool = pool_of(slot("a", 8, connected=False), slot("b", 8, 1))
    assert place(pool, Demand(1)) == Placement("b", ("b-7",))
    assert isinstance(place(pool, Demand(2)), Unplaceable)


def test_gpus_are_given_in_their_order_on_the_host() -> None:
    fleet, pool = fleet_of([slot("a", 4)])
    fleet.take(POOL, "a", ["a-0", "a-2"], 0, 0)
    fleet.give(POOL, "a", ["a-0"], 0, 0)
    assert place(pool, Demand(2)) == Placement("a", ("a-0", "a-1"))


OLD = Claim((1.0,), TASK, "old", Demand(4, 1024, 1024))
RESERVED = Reservation(OLD, {"a": OLD.demand})


@pytest.mark.parametrize(
    ("slots", "demand", "reservation", "word"),
    [
        ([], Demand(1), None, "AGENT"),
        ([slot("a", 8, connected=False)], Demand(1), None, "AGENT"),
        ([slot("a", 8, 1)], Demand(2), None, "GPU"),
        ([slot("a", 8, 1), slot("b", 8, 1)], Demand(2), None, "GPU"),
        ([slot("a", 8, memory=100)], Demand(1, 0, 200), None, "MEMORY"),
        ([slot("a", 8, cpu=100)], Demand(1, 200), None, "CPU"),
        ([slot("a", 8, cpu=100, memory=100)], Demand(1, 200, 200), None, "MEMORY"),  # ECS names memory first
        ([slot("a", 0), slot("b", 1, memory=10)], Demand(1, 0, 20), None, "MEMORY"),  # the large memory is where no GPU is
        ([slot("a", 2, cpu=1), slot("b", 2, memory=1)], Demand(1, 10, 10), None, "CPU"),
        ([slot("a", 8, 2)], Demand(1), RESERVED, "GPU"),  # two are free, and reserved
        ([slot("a", 8, 2), slot("b", 8, 0)], Demand(1), RESERVED, "GPU"),
        ([slot("a", 8, 2, memory=1500)], Demand(0, 0, 1000), RESERVED, "MEMORY"),
        ([slot("a", 8, 2, cpu=1500)], Demand(0, 1000, 0), RESERVED, "CPU"),  # memory is plentiful
        (
            [slot("a", 8, 2), slot("b", 8, 2, memory=10)],
            Demand(1, 0, 20),
            RESERVED,
            "MEMORY",
        ),  # a is reserved
    ],
)
def test_the_missing_resource(slots: list[Slot], demand: Demand, reservation: Reservation | None, word: str) -> None:
    found = place(pool_of(*slots), demand, reservation)
    assert isinstance(found, Unplaceable)
    assert found.resource == word


@pytest.mark.parametrize(
    ("slots", "demand", "reservation", "text"),
    [
        ([], Demand(1), None, "needs 1 GPU; the cluster has no container instances yet"),
        ([slot("a", 2)], Demand(3), None, "needs 3 GPUs; the largest host has only 2 GPUs"),
        ([slot("a", 2, connected=False)], Demand(2), None, "needs 2 GPUs; no host is connected"),
        ([slot("a", 8, 1)], Demand(2), None, "needs 2 GPUs; 1 of 8 GPUs free on 1 host"),
        (
            [slot("a", 8, 1), slot("b", 8, 1)],
            Demand(2),
            None,
            "needs 2 GPUs; 2 of 16 GPUs free on 2 hosts, but not all on one host",
        ),
        (
            [slot("a", 8, 1, memory=5)],
            Demand(1, 0, 10),
            None,
            "needs 1 GPU; no host with enough free GPUs has 10 MiB of memory free; 1 of 8 GPUs free on 1 host",
        ),
        (
            [slot("a", 8, 1, cpu=5)],
            Demand(1, 10),
            None,
            "needs 1 GPU; no host with enough free GPUs has 10 CPU units free; 1 of 8 GPUs free on 1 host",
        ),
        (
            [slot("a", 8, 2)],
            Demand(1),
            RESERVED,
            "needs 1 GPU; 2 of 8 GPUs free on 1 host, reserved for task old, which is ahead in line",
        ),
        (  # without the reservation it would not fit either: that is not the reason
            [slot("a", 8, 1), slot("b", 8, 1)],
            Demand(2),
            RESERVED,
            "needs 2 GPUs; 2 of 16 GPUs free on 2 hosts, but not all on one host",
        ),
        (
            [slot("a", 8, 2)],
            Demand(0, 4000, 0),
            RESERVED,
            "needs 4000 CPU units; 2 of 8 GPUs free on 1 host, reserved for task old, which is ahead in line",
        ),
    ],
)
def test_why_not(slots: list[Slot], demand: Demand, reservation: Reservation | None, text: str) -> None:
    assert why_not(pool_of(*slots), demand, reservation) == text


def test_why_waiting_names_the_older_claim() -> None:
    old, young = Claim((1.0,), TASK, "old", Demand(4)), Claim((2.0,), TASK, "young", Demand(1))
    pool = pool_of(slot("a", 8, 2), claims=[old, young])
    assert why_waiting(pool, old) == "2 of 8 GPUs free on 1 host; needs 4 GPUs; first in line"
    assert why_waiting(pool, young) == (
        "2 of 8 GPUs free on 1 host, reserved for task old, which is ahead in line; needs 1 GPU; place 2 in line behind task old"
    )


@pytest.mark.parametrize(
    ("slots", "claims", "grants"),
    [
        ([slot("a", 8)], [("x", 1.0, 2), ("y", 2.0, 2)], ["x", "y"]),
        ([slot("a", 8, 3)], [("x", 1.0, 4), ("y", 2.0, 1)], []),  # all free GPUs are reserved for the older claim
        ([slot("a", 8, 3), slot("b", 8, 1)], [("x", 1.0, 4), ("y", 2.0, 1)], ["y"]),  # b is not reserved
        ([slot("a", 2, 1)], [("x", 1.0, 4), ("y", 2.0, 1)], ["y"]),  # x fits no host at all, so it reserves nothing
        ([slot("a", 8, 3)], [("x", 2.0, 4), ("y", 1.0, 1)], ["y"]),
        ([slot("a", 8, 3)], [("x", 1.0, 4), ("y", 2.0, 0)], ["y"]),  # takes no GPU: it leaves the reserved GPUs
        ([slot("a", 8, 5)], [("x", 1.0, 2), ("y", 2.0, 2), ("z", 3.0, 2)], ["x", "y"]),
    ],
)
def test_serve(slots: list[Slot], claims: list[tuple[str, float, int]], grants: list[str]) -> None:
    fleet, _ = fleet_of(slots, [Claim((since_s,), TASK, name, Demand(gpus)) for name, since_s, gpus in claims])
    assert [claim.id for claim, _ in serve_all(fleet)] == grants


def test_a_slot_that_a_moved_reservation_frees_is_served_too() -> None:
    """The grant of `y` moves the reservation of `x` from a to b. Then a is free, and `z` need not wait for the next release."""
    claims = [Claim((1.0,), TASK, "x", Demand(2, 1000)), Claim((2.0,), TASK, "y", Demand(2)), Claim((3.0,), TASK, "z", Demand(3))]
    fleet, pool = fleet_of([slot("a", 8, 3, cpu=0), slot("b", 8, 4, cpu=0)], claims)
    grants = [(claim.id, placement.slot_id) for claim, placement in serve_all(fleet)]
    assert grants == [("y", "b"), ("z", "a")]
    assert standing_reservation(pool) == Reservation(claims[0], {"b": claims[0].demand})


def test_the_slot_that_lacks_least_is_reserved() -> None:
    pool = pool_of(slot("a", 8, 2), slot("b", 8, 5), slot("c", 4, 4), claims=[Claim((1.0,), TASK, "old", Demand(6))])
    reservation = standing_reservation(pool)
    assert reservation is not None
    assert list(reservation.wanted) == ["b"]


def test_a_slot_that_lacks_only_gpus_is_reserved_before_one_that_lacks_cpu_too() -> None:
    """The other slot has more memory than needed, but a task on it may never free its CPU."""
    pool = pool_of(slot("a", 8, 2, memory=2000), slot("b", 8, 2, cpu=0), claims=[Claim((1.0,), TASK, "old", Demand(4, 1000, 1000))])
    reservation = standing_reservation(pool)
    assert reservation is not None
    assert list(reservation.wanted) == ["a"]


def test_a_claim_that_fits_no_connected_host_reserves_nothing() -> None:
    claims = [Claim((1.0,), TASK, "huge", Demand(64)), Claim((2.0,), TASK, "large", Demand(8))]
    pool = pool_of(slot("a", 8, 2), slot("b", 64, connected=False), claims=claims)
    assert standing_reservation(pool) == Reservation(claims[1], {"a": claims[1].demand})


# Properties


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    return Demand(draw(st.integers(0, 8)), draw(st.sampled_from((0, 512, 2048))), draw(st.sampled_from((0, 512, 2048))))


@st.composite
def fleets(draw: st.DrawFn) -> list[Slot]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        total = draw(st.sampled_from((0, 1, 2, 4, 8)))
        found.append(
            slot(
                f"h{number}",
                total,
                draw(st.integers(0, total)),
                cpu=draw(st.sampled_from((0, 600, 4096))),
                memory=draw(st.sampled_from((0, 600, 4096))),
                connected=draw(st.booleans()) or draw(st.booleans()),
            )
        )
    return found


@st.composite
def lines(draw: st.DrawFn) -> list[Claim]:
    return [
        Claim((float(draw(st.integers(0, 3))),), TASK, f"t{number}", draw(demands())) for number in range(draw(st.integers(0, 6)))
    ]


def copies(slots: list[Slot]) -> list[Slot]:
    """The index changes slots in place; every fleet gets its own."""
    return [Slot(s.id, s.total, s.cpu_units, s.memory_mib, list(s.gpus), s.positions, s.connected) for s in slots]


def fits(free: Slot, demand: Demand) -> bool:
    return len(free.gpus) >= demand.gpus and free.cpu_units >= demand.cpu_units and free.memory_mib >= demand.memory_mib


def is_open(free: Slot, demand: Demand, reservation: Reservation | None) -> bool:
    """Whether a new task can have the slot: a second, slow implementation on purpose."""
    if not free.connected or not fits(free, demand):
        return False
    if reservation is None or free.id not in reservation.wanted:
        return True
    older = reservation.claim.demand
    cpu_stays = demand.cpu_units == 0 or free.cpu_units >= demand.cpu_units + older.cpu_units
    memory_stays = demand.memory_mib == 0 or free.memory_mib >= demand.memory_mib + older.memory_mib
    return demand.gpus == 0 and cpu_stays and memory_stays


@properties
@given(fleets(), lines(), demands())
def test_a_placement_is_the_best_fit_and_a_refusal_is_right(slots: list[Slot], claims: list[Claim], demand: Demand) -> None:
    pool = pool_of(*copies(slots), claims=claims)
    reservation = standing_reservation(pool)
    able = [each for each in slots if is_open(each, demand, reservation)]
    found = place(pool, demand, reservation)
    if isinstance(found, Unplaceable):
        assert not able
        return
    best = min(able, key=lambda each: (len(each.gpus), each.memory_mib, each.cpu_units, each.id))
    assert found == Placement(best.id, tuple(best.gpus[: demand.gpus]))


@properties
@given(fleets(), lines(), demands())
def test_the_missing_resource_is_right_for_every_fleet(slots: list[Slot], claims: list[Claim], demand: Demand) -> None:
    pool = pool_of(*copies(slots), claims=claims)
    reservation = standing_reservation(pool)
    found = place(pool, demand, reservation)
    if not isinstance(found, Unplaceable):
        return
    connected = [each for each in slots if each.connected]
    elsewhere = [each for each in connected if reservation is None or each.id not in reservation.wanted]
    match found.resource:
        case "AGENT":
            assert not connected
        case "GPU":
            assert demand.gpus
            assert all(len(each.gpus) < demand.gpus for each in elsewhere)
        case "MEMORY":
            assert all(each.memory_mib < demand.memory_mib for each in elsewhere if len(each.gpus) >= demand.gpus)
        case word:
            assert word == "CPU"
            assert any(
                each.cpu_units < demand.cpu_units + (reservation.claim.demand.cpu_units if reservation else 0) for each in connected
            )
    assert "reserved for task" not in found.detail or any(fits(each, demand) for each in connected)


@properties
@given(fleets(), lines(), demands(), st.randoms(use_true_random=False))
def test_the_order_of_hosts_does_not_matter(slots: list[Slot], claims: list[Claim], demand: Demand, rng: Random) -> None:
    shuffled, shuffled_claims = copies(slots), list(claims)
    rng.shuffle(shuffled)
    rng.shuffle(shuffled_claims)
    one, other = fleet_of(copies(slots), claims), fleet_of(shuffled, shuffled_claims)
    assert place(one[1], demand, standing_reservation(one[1])) == place(other[1], demand, standing_reservation(other[1]))
    assert [why_waiting(one[1], claim) for claim in claims] == [why_waiting(other[1], claim) for claim in claims]
    assert serve_all(one[0]) == serve_all(other[0])


@properties
@given(fleets(), lines())
def test_serve_promises_no_gpu_twice_and_leaves_no_claim_that_fits(slots: list[Slot], claims: list[Claim]) -> None:
    fleet, pool = fleet_of(copies(slots), claims)
    free = {gpu for each in slots if each.connected for gpu in each.gpus}
    grants = serve_all(fleet)
    given_out = [gpu for _, placement in grants for gpu in placement.gpu_ids]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= free
    for claim, placement in grants:
        assert len(placement.gpu_ids) == claim.demand.gpus
        assert {gpu.partition("-")[0] for gpu in placement.gpu_ids} <= {placement.slot_id}  # never split
    assert all(each.cpu_units >= 0 and each.memory_mib >= 0 for each in pool.slots())
    assert serve_all(fleet) == []


@properties
@given(fleets(), lines())
def test_equal_demands_are_served_oldest_first(slots: list[Slot], claims: list[Claim]) -> None:
    fleet, _ = fleet_of(copies(slots), claims)
    granted = [claim for claim, _ in serve_all(fleet)]
    for claim in set(claims) - set(granted):
        assert all(other < claim for other in granted if other.demand == claim.demand)


@properties
@given(st.integers(1, 3), st.integers(0, 2**32))
def test_a_stream_of_small_younger_claims_starves_no_claim(hosts: int, seed: int) -> None:
    """All GPUs are busy with small tasks, one ends at a time, and two small claims are added for each: the large claim is served.

    A reservation moves only to a host that lacks less, at most eight times, and a reserved host only gains free GPUs.
    """
    rng = Random(seed)
    fleet, pool = fleet_of([slot(f"h{number}", 8) for number in range(hosts)])
    running: list[Placement] = []
    for _ in range(8 * hosts):
        found = place(pool, Demand(1))
        assert isinstance(found, Placement)
        fleet.take(POOL, found.slot_id, found.gpu_ids, 0, 0)
        running.append(found)
    large = Claim((1.0,), TASK, "large", Demand(8))
    fleet.add_claim(POOL, large)
    for number in range(9 * 8 * hosts):
        ended = running.pop(rng.randrange(min(4, len(running))))  # roughly in the order of their start
        fleet.give(POOL, ended.slot_id, ended.gpu_ids, 0, 0)
        for twin in "ab":
            fleet.add_claim(POOL, Claim((2.0 + number,), TASK, f"small-{number}{twin}", Demand(1)))
        for claim, placement in serve_all(fleet):
            if claim == large:
                return
            running.append(placement)
    pytest.fail("the large claim never got its turn")
