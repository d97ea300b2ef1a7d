"""Placement of multi-node jobs: all nodes or none, and a reservation that small tasks cannot use up."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.undo_log import UndoLog
from corral.decide.placement.find import could_hold
from corral.decide.placement.multi_node import place_together, reserve_together
from corral.decide.placement.place import place, serve, spare_gpus
from corral.decide.placement.shortages import why_waiting
from corral.model.placement import JOB, TASK, Claim, Placement, Slot
from corral.model.task import Demand
from corral.store.fleet import Fleet
from corral.store.pool_index import PoolIndex
from examples import examples

POOL = "p"


def fleet_of(*slots: tuple[str, int, int], host: str = "", address: str = "10.0.0.1") -> Fleet:
    """Slots with (name, GPUs, free GPUs), and plenty of CPU and memory. Each is a host, or they are slots of the same host."""
    fleet = Fleet(UndoLog())
    for name, total, free in slots:
        positions = {f"{name}{at}": at for at in range(total)}
        size = Demand(total, 10_000, 10_000)
        slot = Slot(name, size, 10_000, 10_000, list(positions)[:free], positions, host_id=host or name, address=address)
        fleet.put_slot(POOL, slot)
    return fleet


def nodes(*kinds: tuple[int, int]) -> Demand:
    """A job whose kinds of nodes are (GPUs, number of nodes)."""
    return Demand(max(gpus for gpus, _ in kinds), 10, 10, nodes=tuple((Demand(gpus, 10, 10), count) for gpus, count in kinds))


def gang(demand: Demand, since_s: float = 1.0) -> Claim:
    return Claim((0, since_s), JOB, "1/gang", demand)


def take(fleet: Fleet, found: Placement, demand: Demand) -> None:
    for each in found.nodes or (found,):
        fleet.take(POOL, each.slot_id, each.gpu_ids, demand.cpu_units, demand.memory_mib)


def test_nodes_share_an_instance_if_one_has_room_for_all() -> None:
    pool = fleet_of(("a", 8, 8), ("b", 4, 4), ("c", 2, 2)).pool(POOL)
    found = place_together(pool, nodes((2, 2)), None)
    assert found is not None and [each.slot_id for each in found.nodes] == ["b", "b"]  # the best fit
    assert len({gpu_id for each in found.nodes for gpu_id in each.gpu_ids}) == 4
    assert (found.slot_id, found.gpu_ids) == (found.nodes[0].slot_id, found.nodes[0].gpu_ids)


def test_nodes_use_few_instances_of_one_host() -> None:
    pool = fleet_of(("a", 8, 3), ("b", 8, 5), ("c", 8, 1), host="h", address="").pool(POOL)
    found = place_together(pool, nodes((1, 8)), None)
    assert found is not None and sorted({each.slot_id for each in found.nodes}) == ["a", "b"]
    assert place_together(pool, nodes((1, 10)), None) is None
    assert place_together(pool, nodes((4, 2)), None) is None  # eight are free, but not four on two instances
    reservation = reserve_together(pool, gang(nodes((8, 1), (4, 3))))
    assert reservation is not None and reservation.wanted["c"].gpus == 8


def test_a_job_that_spans_hosts_has_one_node_on_each() -> None:
    fleet = fleet_of(("a", 8, 3), ("b", 8, 5), ("c", 8, 1), ("d", 8, 2))
    pool = fleet.pool(POOL)
    found = place_together(pool, nodes((1, 3)), None)
    assert found is not None and [each.slot_id for each in found.nodes] == ["a"] * 3  # one host has room for all
    found = place_together(pool, nodes((2, 3)), None)
    assert found is not None and [each.slot_id for each in found.nodes] == ["d", "a", "b"]  # the best fits
    assert place_together(pool, nodes((1, 6)), None) is None  # eleven are free, but on four hosts
    assert could_hold(pool, nodes((1, 6))) and could_hold(pool, nodes((8, 4))) and not could_hold(pool, nodes((3, 5)))
    few = "4 hosts would be too few even without other tasks, of which each takes one node of a job that does not fit on one host;"
    assert few in why_waiting(pool, gang(nodes((3, 5))))
    fleet.put_slot(POOL, Slot("e", Demand(8, 9, 9), 9, 9, ["e0"], {"e0": 0}))
    unknown = "one host; 1 of them have no address for other hosts (`corral join --address`)"
    assert unknown in why_waiting(pool, gang(nodes((3, 5))))


def test_kinds_of_nodes_keep_their_order() -> None:
    pool = fleet_of(("a", 4, 4), ("b", 1, 1)).pool(POOL)
    found = place_together(pool, nodes((1, 1), (4, 1)), None)
    assert found is not None and [each.slot_id for each in found.nodes] == ["b", "a"]


def test_a_reservation_has_enough_slots_for_all_nodes() -> None:
    pool = fleet_of(("a", 4, 1), ("b", 4, 2), ("c", 4, 0)).pool(POOL)
    reservation = reserve_together(pool, gang(nodes((2, 2))))
    assert reservation is not None and list(reservation.wanted.items()) == [("b", Demand(4, 20, 20))]  # all on one host
    reservation = reserve_together(pool, gang(nodes((4, 2))))
    assert reservation is not None and sorted(reservation.wanted) == ["a", "b"]  # the slots that lack least
    assert reserve_together(pool, gang(nodes((4, 4)))) is None  # too large for three slots
    assert not could_hold(pool, nodes((4, 4))) and could_hold(pool, nodes((4, 3)))


def test_other_tasks_use_only_slots_that_are_not_reserved() -> None:
    fleet = fleet_of(("a", 4, 1), ("b", 4, 2), ("c", 4, 1))
    pool, claim = fleet.pool(POOL), gang(nodes((4, 2)))
    fleet.add_claim(POOL, claim)
    for number in range(3):
        fleet.add_claim(POOL, Claim((0, 2.0 + number), TASK, f"t{number}", Demand(1)))
    served = []
    for granted, found in serve(pool, 0.0):
        fleet.remove_claim(POOL, granted)
        take(fleet, found, granted.demand)
        served.append((granted.id, found.slot_id))
    assert served == [("t0", "c")]
    assert why_waiting(pool, claim).startswith("needs 2 nodes at the same time (2 with 4 GPUs, 10 CPU units, 10 MiB); 3 of 12 GPUs")
    assert spare_gpus(pool, Placement("a", ())) == ()  # reserved


@pytest.mark.parametrize("seed", range(5))
def test_small_tasks_never_starve_a_multi_node_job(seed: int) -> None:
    """Small tasks arrive and end for ever. The job starts after at most one end of each task that ran when it arrived."""
    rng = Random(seed)
    fleet = fleet_of(*((f"s{at}", 4, 4) for at in range(6)))
    pool, running = fleet.pool(POOL), list[tuple[str, tuple[str, ...], Demand]]()
    for _ in range(24):
        found = place(pool, Demand(1))
        assert isinstance(found, Placement)
        take(fleet, found, Demand(1))
        running.append((found.slot_id, found.gpu_ids, Demand(1)))
    claim = gang(nodes((4, 3), (2, 1)), 0.5)
    fleet.add_claim(POOL, claim)
    for number in range(400):
        fleet.add_claim(POOL, Claim((0, 1.0 + number), TASK, f"t{number:05}", Demand(rng.choice((1, 2)))))
        slot_id, gpu_ids, demand = running.pop(rng.randrange(len(running)) if rng.random() < 0.5 else 0)
        fleet.give(POOL, slot_id, gpu_ids, demand.cpu_units, demand.memory_mib)
        for granted, found in serve(pool, 0.0):
            if granted is claim:
                held = [gpu_id for each in found.nodes for gpu_id in each.gpu_ids]
                assert len(held) == len(set(held)) == 14
                return
            fleet.remove_claim(POOL, granted)
            take(fleet, found, granted.demand)
            running.append((found.slot_id, found.gpu_ids, granted.demand))
    raise AssertionError("the job still waits after 400 ends")


def fits_somehow(free: list[int], needs: list[int]) -> bool:
    """Whether nodes fit on slots of one host: an exhaustive search, on purpose."""
    if not needs:
        return True
    for at, left in enumerate(free):
        if left >= needs[0] and fits_somehow([*free[:at], left - needs[0], *free[at + 1 :]], needs[1:]):
            return True
    return False


def fits_on_hosts(free: list[int], needs: list[int]) -> bool:
    """Whether nodes fit on one host, or on several hosts with at most one node on each: an exhaustive search, on purpose."""
    if any(left >= sum(needs) for left in free):
        return True
    return any(all(left >= need for left, need in zip(order, needs)) for order in permutations(free, len(needs)))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 4), st.integers(1, 6))
def test_equal_nodes_are_placed_on_one_host_exactly_if_they_fit(free: list[int], gpus: int, count: int) -> None:
    pool: PoolIndex = fleet_of(*((f"s{at}", 4, left) for at, left in enumerate(free)), host="h").pool(POOL)
    check(pool, nodes((gpus, count)), fits_somehow(free, [gpus] * count))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_nodes_are_placed_on_hosts_exactly_if_they_fit(free: list[int], needs: list[int]) -> None:
    fleet = fleet_of(*((f"s{at}", 4, left) for at, left in enumerate(free)))
    pool, demand = fleet.pool(POOL), nodes(*((gpus, 1) for gpus in needs))
    found = check(pool, demand, fits_on_hosts(free, needs))
    assert found is None or len({each.slot_id for each in found.nodes}) in (1, len(needs))
    reservation = reserve_together(pool, gang(demand))
    assert (reservation is not None) == fits_on_hosts([4] * len(free), needs) == could_hold(pool, demand)


def check(pool: PoolIndex, demand: Demand, fits: bool) -> Placement | None:
    """Check that the nodes are placed if they fit, and that no GPU is given twice."""
    found = place_together(pool, demand, None)
    assert (found is not None) == fits
    if found is not None:
        held = [gpu_id for each in found.nodes for gpu_id in each.gpu_ids]
        assert len(found.nodes) == sum(count for _, count in demand.nodes)
        assert len(held) == len(set(held)) == sum(node.gpus * count for node, count in demand.nodes)
        assert all(gpu_id in pool.slot(each.slot_id).gpus for each in found.nodes for gpu_id in each.gpu_ids)
    return found
