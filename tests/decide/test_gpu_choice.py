"""The choice of GPUs: tables, then against every subset. Also ALL GPUs, withheld GPUs and spare GPUs."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.decide.placement.gpu_choice import choose_gpus, closest_gpus, closest_set, split_gpus
from corral.decide.placement.place import place, place_newcomer, spare_gpus
from corral.decide.placement.reservations import standing_reservation
from corral.decide.placement.shortages import why_not, why_waiting
from corral.model.placement import TASK, Claim, Links, Placement, Reservation, Slot, Unplaceable
from corral.model.task import ALL_GPUS, Demand
from corral.node.gpu_topology import simulated
from decide.test_placement_decisions import POOL, fleet_of, pool_of, serve_all, slot
from examples import examples

properties = settings(max_examples=examples(80), deadline=None)


def topology(model: str, count: int) -> Links:
    return tuple(tuple(row) for row in simulated(model, count))


V100, T4, K80 = topology("V100", 8), topology("T4", 8), topology("K80", 8)


@pytest.mark.parametrize(
    ("links", "free", "count", "chosen"),
    [
        (V100, range(8), 1, (0,)),
        (V100, range(8), 2, (0, 3)),  # two links, where 0 and 1 have one
        (V100, range(8), 4, (0, 1, 2, 3)),  # one of the two fully joined fours
        (V100, (2, 3, 4, 5, 6, 7), 4, (4, 5, 6, 7)),
        (V100, (0, 1, 2, 4, 5, 6, 7), 1, (0,)),  # from the four that is broken already
        (V100, (0, 5, 6, 7), 2, (5, 6)),
        (V100, range(8), 8, tuple(range(8))),
        (T4, range(8), 2, (0, 1)),  # a pair under one switch
        (T4, (1, 2, 3, 5), 2, (2, 3)),
        (T4, (1, 2, 3, 5), 1, (5,)),  # alone on its socket
        (T4, (0, 2, 3), 1, (0,)),  # not from the pair
        (T4, (0, 1, 2, 4, 5, 6), 3, (0, 1, 2)),  # all on one socket
        (T4, (0, 1, 2, 3, 4, 5), 2, (4, 5)),  # leaves the other socket whole
        (K80, (1, 2, 4, 5), 2, (4, 5)),
        (topology("T4", 4), range(4), 3, (0, 1, 2)),
    ],
)
def test_the_closest_set(links: Links, free: range | tuple[int, ...], count: int, chosen: tuple[int, ...]) -> None:
    assert closest_set(tuple(free), count, links) == chosen


def inside(links: Links, chosen: tuple[int, ...]) -> int:
    return sum(links[one][other] for one, other in combinations(chosen, 2))


@st.composite
def machines(draw: st.DrawFn, most: int = 10) -> tuple[Links, tuple[int, ...], int]:
    """Any distances, some free devices, and a number to choose."""
    size = draw(st.integers(1, most))
    kinds = draw(st.sampled_from(((1, 8), (1, 2, 8), (1, 2, 3, 4, 5, 6, 7, 8))))
    far = {pair: draw(st.sampled_from(kinds)) for pair in combinations(range(size), 2)}
    links = tuple(tuple(far.get((min(a, b), max(a, b)), 0) for b in range(size)) for a in range(size))
    free = tuple(at for at in range(size) if draw(st.integers(0, 3)))
    return links, free, draw(st.integers(0, len(free)))


@properties
@given(machines())
def test_no_set_is_closer_and_none_as_close_leaves_more(machine: tuple[Links, tuple[int, ...], int]) -> None:
    """The model is a second, slow implementation on purpose."""
    links, free, count = machine

    def judged(chosen: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        return inside(links, chosen), inside(links, tuple(at for at in free if at not in chosen)), chosen

    assert judged(closest_set(free, count, links)) == min(judged(chosen) for chosen in combinations(free, count))


@properties
@given(st.sampled_from((("T4", 16), ("V100", 16), ("K80", 32), ("T4", 64))), st.integers(0, 2**32), st.integers(1, 32))
def test_many_devices(kind: tuple[str, int], seed: int, count: int) -> None:
    """Where not every set is compared: `count` different free devices, never farther apart than the first free ones."""
    links, rng = topology(*kind), Random(seed)
    free = tuple(sorted(rng.sample(range(kind[1]), rng.randint(min(count, kind[1]), kind[1]))))
    count = min(count, len(free))
    chosen = closest_set(free, count, links)
    assert len(set(chosen)) == count and set(chosen) <= set(free) and list(chosen) == sorted(chosen)
    assert inside(links, chosen) <= inside(links, free[:count])
    assert chosen == closest_set.__wrapped__(free, count, links)


@pytest.mark.parametrize("count", [8, 16, 24])
def test_whole_groups_of_many_devices(count: int) -> None:
    """Where not every set is compared, whole groups of eight devices are used before a broken group."""
    links = tuple(tuple(0 if at == other else 1 if at // 8 == other // 8 else 8 for other in range(32)) for at in range(32))
    chosen = closest_set(tuple(range(3, 32)), count, links)
    assert {at // 8 for at in chosen} <= {1, 2, 3} and len({at // 8 for at in chosen}) == count // 8


def with_links(name: str, links: Links | None, free: list[int] | None = None) -> Slot:
    made = slot(name, len(links) if links else 8)
    made.links = links
    if free is not None:
        made.gpus = [f"{name}-{at}" for at in free]
    return made


def test_unknown_topology_takes_the_first() -> None:
    assert choose_gpus(with_links("a", None, [1, 4, 6]), 2) == ("a-1", "a-4")
    assert choose_gpus(with_links("a", None, [1, 4, 6]), ALL_GPUS) == ("a-1", "a-4", "a-6")
    assert closest_gpus(None, ["x", "y"], 1) == ("x",)


def test_a_placement_is_close() -> None:
    assert place(pool_of(with_links("a", V100, [0, 2, 4, 5, 6, 7])), Demand(4)) == Placement("a", ("a-4", "a-5", "a-6", "a-7"))


@pytest.mark.parametrize(
    ("links", "gpus", "counts", "shares"),
    [
        (None, [0, 1, 2, 3], [1, 2, 1], [(0,), (1, 2), (3,)]),
        (T4, [0, 1, 2, 3], [1, 2, 1], [(2,), (0, 1), (3,)]),  # the pair stays together
        (T4, [0, 1, 2, 3], [2, 2], [(0, 1), (2, 3)]),
        (T4, [0, 2, 3, 4, 5], [1, 4], [(0,), (2, 3, 4, 5)]),
        (V100, list(range(8)), [4, 4], [(0, 1, 2, 3), (4, 5, 6, 7)]),
    ],
)
def test_each_container_gets_close_gpus(
    links: Links | None, gpus: list[int], counts: list[int], shares: list[tuple[int, ...]]
) -> None:
    found = split_gpus(with_links("a", links), [f"a-{at}" for at in gpus], counts)
    assert found == [tuple(f"a-{at}" for at in each) for each in shares]


# All of them

ALL = Demand(ALL_GPUS)


@pytest.mark.parametrize(
    ("slots", "where"),
    [
        ([slot("a", 4), slot("b", 2), slot("c", 8)], ("b", 2)),  # the smallest that is whole
        ([slot("a", 4, 3), slot("b", 8)], ("b", 8)),
        ([slot("a", 0), slot("b", 1)], ("b", 1)),  # at least one
        ([slot("a", 4, 3), slot("b", 8, 7)], None),
        ([slot("a", 0)], None),
        ([slot("a", 4, connected=False)], None),
    ],
)
def test_all_of_a_host(slots: list[Slot], where: tuple[str, int] | None) -> None:
    found = place(pool_of(*slots), ALL)
    assert (found.slot_id, len(found.gpu_ids)) == where if isinstance(found, Placement) else where is None


@pytest.mark.parametrize(
    ("slots", "word", "text"),
    [
        ([slot("a", 4, 3)], "GPU", "needs all GPUs of a host; 3 of 4 GPUs free on 1 host, but no host has all its GPUs free"),
        ([slot("a", 0)], "GPU", "needs all GPUs of a host; the largest host has no GPU"),
        ([slot("a", 4, connected=False)], "AGENT", "needs all GPUs of a host; no host is connected"),
    ],
)
def test_why_not_all(slots: list[Slot], word: str, text: str) -> None:
    assert place(pool_of(*slots), ALL) == Unplaceable(word, text)


def test_the_emptiest_host_is_reserved_for_all_gpus() -> None:
    """The host with the fewest held GPUs is reserved, not the one with the most free. A younger claim uses another host."""
    old, young = Claim((1.0,), TASK, "old", ALL), Claim((2.0,), TASK, "young", Demand(1))
    fleet, pool = fleet_of([slot("a", 8, 5), slot("b", 2, 1)], [old, young])
    assert standing_reservation(pool) == Reservation(old, {"b": old.demand})
    [(claim, placement)] = serve_all(fleet)
    assert (claim, placement.slot_id) == (young, "a")
    assert why_waiting(pool, old).endswith("but no host has all its GPUs free; needs all GPUs of a host; first in line")
    fleet.give(POOL, "b", ["b-0"], 0, 0)
    assert serve_all(fleet) == [(old, Placement("b", ("b-0", "b-1")))]


def test_a_stream_of_small_claims_does_not_starve_one_for_all() -> None:
    rng = Random(5)
    fleet, pool = fleet_of([slot("a", 8), slot("b", 8), slot("c", 2)])
    running = []
    while isinstance(found := place(pool, Demand(1)), Placement):
        fleet.take(POOL, found.slot_id, found.gpu_ids, 0, 0)
        running.append(found)
    fleet.add_claim(POOL, Claim((1.0,), TASK, "all", ALL))
    for number in range(200):
        ended = running.pop(rng.randrange(len(running)))
        fleet.give(POOL, ended.slot_id, ended.gpu_ids, 0, 0)
        for twin in "ab":
            fleet.add_claim(POOL, Claim((2.0 + number,), TASK, f"{number}{twin}", Demand(1)))
        for claim, placement in serve_all(fleet):
            if claim.id == "all":
                assert len(placement.gpu_ids) == pool.slot(placement.slot_id).total.gpus
                return
            running.append(placement)
    pytest.fail("it never got its turn")


@properties
@given(st.lists(st.tuples(st.sampled_from((0, 1, 2, 4)), st.integers(0, 4), st.booleans()), max_size=5), st.randoms())
def test_all_means_all(sizes: list[tuple[int, int, bool]], rng: Random) -> None:
    slots = [slot(f"h{at}", total, min(free, total), connected=up) for at, (total, free, up) in enumerate(sizes)]
    whole = [each for each in slots if each.connected and each.gpus and len(each.gpus) == each.total.gpus]
    rng.shuffle(slots)
    found = place(pool_of(*slots), ALL)
    if isinstance(found, Unplaceable):
        assert not whole
    else:
        best = min(whole, key=lambda each: (len(each.gpus), each.memory_mib, each.id))
        assert found == Placement(best.id, tuple(best.gpus))


def test_the_index_by_held_gpus_is_right_when_built_late() -> None:
    fleet, pool = fleet_of([slot("a", 4), slot("b", 0), slot("c", 2, 1)])
    made_first = fleet_of([slot("a", 4), slot("b", 0), slot("c", 2, 1)])[0]
    assert place(made_first.pool(POOL), ALL) == Placement("a", tuple(f"a-{at}" for at in range(4)))  # made here
    for each in (fleet, made_first):
        each.undo_log.savepoint()
        each.take(POOL, "a", ["a-1"], 10, 10)
        each.give(POOL, "c", ["c-0"], 0, 0)
        each.put_slot(POOL, slot("d", 8))
        each.undo_log.rollback_to_savepoint()
        each.take(POOL, "a", ["a-1"], 10, 10)
    assert fleet.snapshot() == made_first.snapshot()
    assert isinstance(place(pool, ALL), Unplaceable)


# Kept away


def with_withheld(name: str, free: int, *reasons: str) -> Slot:
    made = slot(name, free)
    made.withheld = {f"{name}-x{at}": reason for at, reason in enumerate(reasons)}
    return made


@pytest.mark.parametrize(
    ("slots", "demand", "text"),
    [
        ([with_withheld("a", 1, "'mine'")], Demand(2),
         "needs 2 GPUs; only 1 of 2 GPUs can be used now; 1 GPU is withheld: 'mine'"),
        ([with_withheld("a", 2, "'mine'", "'mine'"), slot("b", 4, 0)], Demand(3),
         "needs 3 GPUs; 2 of 6 GPUs free on 2 hosts; 2 GPUs are withheld: 'mine'"),
        ([with_withheld("a", 2, "'a'", "'b'", "'c'", "'d'"), slot("b", 4, 0)], Demand(3),
         "needs 3 GPUs; 2 of 6 GPUs free on 2 hosts; 4 GPUs are withheld: 'a', 'b', 'c' and others"),
        ([with_withheld("a", 0, "'a'", "'b'")], Demand(1),
         "needs 1 GPU; no GPU can be used now; 2 GPUs are withheld: 'a', 'b'"),
        ([with_withheld("a", 1, "'a'")], Demand(3), "needs 3 GPUs; the largest host has only 2 GPUs; 1 GPU is withheld: 'a'"),
        ([with_withheld("a", 2, "'a'")], Demand(0, 9999), "needs 9999 CPU units; the largest host has only 4096 CPU units"),
    ],
)  # fmt: skip
def test_the_reason_names_withheld_gpus(slots: list[Slot], demand: Demand, text: str) -> None:
    assert why_not(pool_of(*slots), demand) == text


def shares(
    name: str, *left_mib: int, idle: int = 0, memory: int = 4096, cpu: int = 4096, withheld: int = 0, excluded: int = 0
) -> Slot:
    """A host whose GPUs have 80,000 MiB: shared ones with `left_mib`, `idle` ones, and `withheld` ones. `memory` is the host's."""
    made = slot(name, len(left_mib) + idle, idle, memory=memory, cpu=cpu)
    made.gpu_memory = dict.fromkeys(made.positions, 80_000)
    made.shared = {f"{name}-{at}": mib for at, mib in enumerate(left_mib) if mib}
    made.total = Demand(len(made.positions), 4096, 4096, gpu_memory_mib=80_000 if made.positions else 0)
    made.withheld = {f"{name}-x{at}": "'mine'" for at in range(withheld)}
    made.gpu_memory |= dict.fromkeys(made.withheld, 80_000)
    made.excluded = excluded
    return made


SHARE = Demand(1, 100, 128, gpu_memory_mib=8000)
OLDER = Reservation(Claim((1.0,), TASK, "old", Demand(1, 0, 4096)), {"a": Demand(1, 0, 4096)})
ALONE = replace(shares("a", 4000), gpu_memory={"a-0": 4000}, total=Demand(1, 4096, 4096, gpu_memory_mib=4000))
TOO_MUCH = "needs 90000 MiB of a shared GPU; the largest host has only 80000 MiB on its largest GPU"


@pytest.mark.parametrize(
    ("slots", "demand", "reservation", "resource", "text"),
    [  # what is missing → the text: GPU memory, a GPU, memory or CPU of the host, GPUs that are withheld or excluded
        ([shares("a", 4000)], SHARE, None, "GPU",
         "no GPU has more than 4000 MiB of memory left to share; 0 of 1 GPUs free on 1 host"),
        ([shares("a", 0, 0)], SHARE, None, "GPU", "0 of 2 GPUs free on 1 host"),
        ([shares("a", 9000, memory=10)], SHARE, None, "MEMORY",
         "no host with a GPU that has 8000 MiB left to share has 128 MiB of memory free; 0 of 1 GPUs free on 1 host"),
        ([shares("a", 9000, cpu=10)], SHARE, None, "CPU",
         "no host with a GPU that has 8000 MiB left to share has 100 CPU units free; 0 of 1 GPUs free on 1 host"),
        ([shares("a", idle=1, memory=10)], SHARE, OLDER, "MEMORY",
         "no host with a GPU that has 8000 MiB left to share has 128 MiB of memory free; 1 of 1 GPUs free on 1 host"),
        ([shares("a", idle=1)], SHARE, OLDER, "GPU", "1 of 1 GPUs free on 1 host, reserved for task old, which is ahead in line"),
        ([shares("a", idle=2, memory=10)], Demand(1, 0, 128), OLDER, "MEMORY",
         "no host with enough free GPUs has 128 MiB of memory free; 2 of 2 GPUs free on 1 host"),
        ([shares("a", withheld=2)], SHARE, None, "GPU", "no GPU can be used now; 2 GPUs are withheld: 'mine'"),
        ([replace(ALONE, withheld={"a-1": "'mine'"}, gpu_memory={"a-0": 4000, "a-1": 80_000})], SHARE, None, "GPU",
         "no GPU that can be used now has 8000 MiB of memory; 1 GPU is withheld: 'mine'"),
        ([shares("a", idle=1, withheld=1)], Demand(1, gpu_memory_mib=90_000), None, "GPU",
         TOO_MUCH + "; 1 GPU is withheld: 'mine'"),
        ([shares("a", excluded=2)], SHARE, None, "GPU", "the largest host has no GPU (2 are excluded by --exclude-gpus)"),
        ([shares("a", idle=1, excluded=1)], Demand(2), None, "GPU",
         "the largest host has only 1 GPU (1 is excluded by --exclude-gpus)"),
    ],
)  # fmt: skip
def test_the_true_cause_is_named(
    slots: list[Slot], demand: Demand, reservation: Reservation | None, resource: str, text: str
) -> None:
    found = place(pool_of(*slots), demand, reservation)
    assert isinstance(found, Unplaceable)
    needs, _, why = found.detail.partition("; ")
    assert (found.resource, why if not text.startswith("needs") else found.detail) == (resource, text) and needs.startswith(
        "needs "
    )


def test_withheld_gpus_are_dropped_with_their_slot() -> None:
    fleet, pool = fleet_of([with_withheld("a", 1, "'mine'")])
    fleet.undo_log.savepoint()
    fleet.put_slot(POOL, slot("a", 2))
    assert pool.withheld() == []
    fleet.undo_log.rollback_to_savepoint()
    assert pool.withheld() == ["'mine'"]


# Spare GPUs, for containers with NVIDIA_VISIBLE_DEVICES


def test_the_rest_of_the_slot_is_spare_unless_it_is_reserved() -> None:
    old, young = Claim((1.0,), TASK, "old", Demand(4)), Claim((2.0,), TASK, "young", Demand(0, 10))
    fleet, pool = fleet_of([slot("a", 4, 3), slot("b", 2)])
    assert spare_gpus(pool, Placement("a", ("a-2",))) == ("a-1", "a-3")
    fleet.add_claim(POOL, old)
    fleet.add_claim(POOL, young)
    assert spare_gpus(pool, Placement("a", ())) == ()  # reserved for the older claim
    assert spare_gpus(pool, Placement("a", ()), young) == ()
    assert spare_gpus(pool, Placement("b", ()), young) == ("b-0", "b-1")
    assert spare_gpus(pool, Placement("a", ()), Claim((0.5,), TASK, "older", Demand(0, 10))) == ("a-1", "a-2", "a-3")
    assert isinstance(place_newcomer(pool, Demand(3), 0.0), Unplaceable)
