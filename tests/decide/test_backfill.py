"""Backfill: tables, and properties of whole schedules. The schedule with time limits is compared with the one without them."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.decide.placement.backfill import LONGEST_S, START_S, longest_time_s, opening_of
from corral.decide.placement.place import place_on, room_for_claim, room_for_newcomer, serve, spare_gpus
from corral.decide.placement.reservations import standing_reservation
from corral.decide.placement.shortages import why_never, why_waiting
from corral.model.placement import TASK, Claim, Ending, Opening, Placement, Reservation, Unplaceable
from corral.model.task import ALL_GPUS, Demand, PlacementRules
from corral.store.fleet import Fleet
from corral.store.pool_index import PoolIndex
from decide.backfill_simulation import MEMORY, Simulation, Work
from decide.test_placement_decisions import POOL, fleet_of, pool_of, slot
from examples import examples

properties = settings(max_examples=examples(150), deadline=None)


def claim(name: str, since_s: float, gpus: int, longest_s: float | None = None, memory: int = 0) -> Claim:
    return Claim((since_s,), TASK, name, Demand(gpus, 0, memory), longest_s)


def hold(fleet: Fleet, slot_id: str, gpus: int, limit_at_s: float | None, memory: int = 0) -> None:
    """Start a task on a slot. Its time limit ends at the given time."""
    free = fleet.pool(POOL).slot(slot_id)
    held = tuple(free.gpus[:gpus])
    assert len(held) == gpus
    fleet.take(POOL, slot_id, held, 0, memory)
    if limit_at_s is not None:
        fleet.put_ending(POOL, slot_id, Ending(f"on-{slot_id}-{limit_at_s}-{held}", limit_at_s, held, 0, memory))


def four_gpus(*claims: Claim, limit_at_s: float | None = 100.0) -> tuple[Fleet, PoolIndex]:
    """A host with four GPUs. A task holds one of them until its time limit ends."""
    fleet, pool = fleet_of([slot("a", 4)], claims)
    hold(fleet, "a", 1, limit_at_s)
    return fleet, pool


def granted(fleet: Fleet) -> list[str]:
    """Serve the claims as the scheduler does, and return those that were placed."""
    found = []
    for each, placement in serve(fleet.pool(POOL), 0.0):
        fleet.remove_claim(POOL, each)
        fleet.take(POOL, placement.slot_id, placement.gpu_ids, each.demand.cpu_units, each.demand.memory_mib)
        if each.longest_s is not None:
            fleet.put_ending(POOL, placement.slot_id, Ending(each.id, each.longest_s, placement.gpu_ids, 0, each.demand.memory_mib))
        found.append(f"{each.id} on {placement.slot_id}")
    return found


LARGE = claim("large", 1.0, 4)


@pytest.mark.parametrize(
    ("younger", "limit_at_s", "starts"),
    [
        (claim("short", 2.0, 3, 100.0), 100.0, True),  # it ends when the large claim can start
        (claim("short", 2.0, 1, 100.0), 100.0, True),
        (claim("long", 2.0, 1, 101.0), 100.0, False),
        (claim("no limit", 2.0, 1), 100.0, False),
        (claim("short", 2.0, 1, 5.0), None, False),  # it is unknown when the large claim can start
        (claim("too large", 2.0, 4, 5.0), 100.0, False),
        (claim("no GPU", 2.0, 0), 100.0, True),
    ],
)
def test_three_of_four_gpus_are_idle_behind_a_large_claim(younger: Claim, limit_at_s: float | None, starts: bool) -> None:
    fleet, pool = four_gpus(LARGE, younger, limit_at_s=limit_at_s)
    assert (room_for_claim(pool, younger, 0.0) is not None) == starts
    assert granted(fleet) == ([f"{younger.id} on a"] if starts else [])


def test_a_claim_behind_one_with_the_same_demand_is_tried_too() -> None:
    claims = [
        LARGE,
        claim("no limit", 2.0, 1),
        claim("long", 3.0, 1, 500.0),
        claim("short", 4.0, 1, 50.0),
        claim("next", 5.0, 1, 60.0),
    ]
    fleet, _ = four_gpus(*claims)
    assert granted(fleet) == ["short on a", "next on a"]


def test_the_time_that_passes_closes_the_gap() -> None:
    _, pool = four_gpus(LARGE)
    assert room_for_newcomer(pool, Demand(1), 0.0, longest_s=60.0) == Placement("a", ("a-1",))
    assert room_for_newcomer(pool, Demand(1), 40.0, longest_s=60.0) is not None
    assert room_for_newcomer(pool, Demand(1), 41.0, longest_s=60.0) is None
    assert room_for_newcomer(pool, Demand(1), 0.0) is None
    assert place_on(pool, Demand(1), "a", 0.0, longest_s=60.0) == Placement("a", ("a-1",))
    assert isinstance(place_on(pool, Demand(1), "a", 41.0, longest_s=60.0), Unplaceable)


def test_a_claim_without_a_limit_may_use_what_the_oldest_claim_does_not_need() -> None:
    """When the task with five GPUs ends, seven are free: four for the oldest claim, and three more. Two of them are free now."""
    fleet, pool = fleet_of([slot("a", 8)], [claim("oldest", 1.0, 4), claim("x", 2.0, 2), claim("y", 3.0, 1), claim("z", 4.0, 1)])
    hold(fleet, "a", 5, 100.0)
    hold(fleet, "a", 1, None)
    assert granted(fleet) == ["x on a"]
    reservation = standing_reservation(pool)
    assert reservation is not None
    assert reservation.opening == Opening("a", 100.0, 100.0, Demand(1, 4096, 4096))


def test_what_a_claim_uses_is_not_left_for_the_next_one() -> None:
    """When the task with six GPUs ends, eight are free: seven for the oldest claim, and one more. Two are free now."""
    claims = [claim("oldest", 1.0, 7), claim("x", 2.0, 1), claim("y", 3.0, 1, memory=1), claim("z", 4.0, 1, 9.0)]
    fleet, _ = fleet_of([slot("a", 8)], claims)
    hold(fleet, "a", 6, 100.0)
    assert granted(fleet) == ["x on a", "z on a"]


def test_a_task_without_a_limit_may_end_at_once() -> None:
    """If the task without a limit ends, the oldest claim can start before the time limits end. So nothing may be in its way."""
    fleet, pool = fleet_of([slot("a", 4)], [claim("oldest", 1.0, 2), claim("short", 2.0, 1, 5.0)])
    hold(fleet, "a", 1, None)
    hold(fleet, "a", 2, 100.0)
    reservation = standing_reservation(pool)
    assert reservation is not None
    assert reservation.opening == Opening("a", 100.0, -inf, Demand(1, 4096, 4096))
    assert granted(fleet) == []


def test_the_slot_with_the_first_opening_is_reserved() -> None:
    """The other slot lacks less, but its tasks run longer. A younger claim may use it."""
    fleet, pool = fleet_of([slot("a", 4), slot("b", 4)], [LARGE, claim("x", 2.0, 2)])
    hold(fleet, "a", 1, 1000.0)
    hold(fleet, "b", 3, 20.0)
    assert standing_reservation(pool) == Reservation(LARGE, {"b": LARGE.demand}, Opening("b", 20.0, 20.0, Demand(0, 4096, 4096)))
    assert granted(fleet) == ["x on a"]


def test_a_slot_that_may_be_free_before_the_opening_is_reserved_too() -> None:
    fleet, pool = fleet_of([slot("a", 4), slot("b", 4)], [LARGE, claim("x", 2.0, 1), claim("y", 3.0, 1, 10.0)])
    hold(fleet, "a", 1, None)
    hold(fleet, "b", 3, 20.0)
    reservation = standing_reservation(pool)
    assert reservation is not None
    assert reservation.wanted.keys() == {"a", "b"}
    assert granted(fleet) == ["y on b"]
    assert spare_gpus(pool, Placement("a", ())) == spare_gpus(pool, Placement("b", ())) == ()


def test_constraints_apply_on_a_reserved_slot() -> None:
    _, pool = four_gpus(LARGE)
    pool.slot("a").attributes["room"] = "lab"
    for room, found in (("lab", Placement("a", ("a-1",))), ("attic", None)):
        rules = PlacementRules("r/c", (f"attribute:room == {room}",))
        assert room_for_newcomer(pool, Demand(1, rules=rules), 0.0, longest_s=10.0) == found


@pytest.mark.parametrize(
    ("demand", "opening"),
    [
        (Demand(2), None),  # it fits now
        (Demand(3), Opening("a", 10.0, 10.0, Demand(0, 4096, 3896))),
        (Demand(4), Opening("a", 20.0, 20.0, Demand(0, 4096, 3996))),
        (Demand(ALL_GPUS), Opening("a", 20.0, 20.0, Demand(0, 4096, 3996))),
        (Demand(5), None),
        (Demand(3, 0, 3950), Opening("a", 20.0, 10.0, Demand(1, 4096, 46))),  # at 10 if the task without a limit ends
        (Demand(3, 0, 4000), None),  # a task without a limit holds 100 MiB
    ],
)
def test_openings(demand: Demand, opening: Opening | None) -> None:
    fleet, pool = fleet_of([slot("a", 4)])
    hold(fleet, "a", 1, 20.0, memory=100)
    hold(fleet, "a", 1, 10.0, memory=100)
    hold(fleet, "a", 0, None, memory=100)
    assert opening_of(pool.slot("a"), pool.endings("a"), demand) == opening


def test_a_gpu_that_tasks_may_no_longer_use_does_not_come_back() -> None:
    _, pool = four_gpus(LARGE)
    del pool.slot("a").positions["a-0"]
    assert opening_of(pool.slot("a"), pool.endings("a"), LARGE.demand) is None


@pytest.mark.parametrize("limit_s", [0.5, 5.0, 60.0, 3600.0, 86_400.0])
def test_the_longest_time_is_rounded_up_a_little(limit_s: float) -> None:
    least_s = START_S + limit_s + 30.0
    found_s = longest_time_s(limit_s, 30.0)
    assert found_s is not None
    assert least_s <= found_s <= least_s * (1 + 1 / 16)
    assert len({longest_time_s(limit_s * (1 + at / 1000), 30.0) for at in range(1000)}) <= 17


def test_a_very_long_limit_is_none() -> None:
    assert longest_time_s(None, 30.0) is None
    assert longest_time_s(LONGEST_S * 2, 30.0) is None


@pytest.mark.parametrize(
    ("demand", "resource"),
    [
        (Demand(4, 4096, 4096), None),
        (Demand(ALL_GPUS), None),
        (Demand(6), "GPU"),
        (Demand(1, 0, 5000), "MEMORY"),
        (Demand(1, 5000), "CPU"),
    ],
)
def test_why_never(demand: Demand, resource: str | None) -> None:
    withheld = slot("b", 4)
    withheld.withheld = {"b-4": "in use by another program"}
    found = why_never(pool_of(slot("a", 4, 0, connected=False), withheld), demand)
    assert (None if found is None else found.resource) == resource
    assert why_never(pool_of(slot("a", 4), withheld), Demand(5)) is None  # the withheld GPU may come back


def test_the_place_in_line() -> None:
    _, pool = four_gpus(LARGE, claim("x", 2.0, 4, 500.0), claim("y", 3.0, 4))
    assert why_waiting(pool, LARGE).endswith("3 of 4 GPUs free on 1 host; needs 4 GPUs; first in line")
    assert why_waiting(pool, claim("y", 3.0, 4)).endswith(
        "3 of 4 GPUs free on 1 host; needs 4 GPUs; place 3 in line behind task large"
    )


# Properties of schedules


def works(prefix: str, *, limited: bool | None = None, arrives: bool = False) -> st.SearchStrategy[list[Work]]:
    """Lists of tasks. `limited` says whether they have a time limit; None: some of them have."""
    one = st.tuples(
        st.sampled_from((1, 1, 2, 0, 4)),
        st.sampled_from((0, 1, 4, MEMORY)),
        st.integers(1, 12),
        st.booleans() if limited is None else st.just(limited),
        st.integers(0, 12) if arrives else st.just(0),
    )

    def build(drawn: list[tuple[int, int, int, bool, int]]) -> list[Work]:
        return [
            Work(f"{prefix}{at:02}", Demand(gpus, 0, memory), float(lasts_s), is_limited, float(arrives_s))
            for at, (gpus, memory, lasts_s, is_limited, arrives_s) in enumerate(drawn)
        ]

    return st.lists(one, min_size=2, max_size=10).map(build)


SIZES = st.lists(st.sampled_from((4, 3, 2)), min_size=1, max_size=3)


def shared_works(prefix: str, *, limited: bool | None = None, arrives: bool = False) -> st.SearchStrategy[list[Work]]:
    """Lists of tasks, some of which share a GPU."""
    kinds = st.lists(st.sampled_from((0, 0, 2, 3, 6, 10)), min_size=10, max_size=10)

    def share(drawn: tuple[list[Work], list[int]]) -> list[Work]:
        return [
            work._replace(demand=Demand(1, 0, work.demand.memory_mib, gpu_memory_mib=shared_mib)) if shared_mib else work
            for work, shared_mib in zip(*drawn)
        ]

    return st.tuples(works(prefix, limited=limited, arrives=arrives), kinds).map(share)


def schedule(sizes: list[int], running: list[Work], waiting: list[Work], *, backfill: bool) -> Simulation:
    found = Simulation(sizes, backfill=backfill)
    for number, work in enumerate(running):
        found.start_on(number % len(sizes), work)
    found.run(waiting)
    return found


def check_head(sizes: list[int], running: list[Work], head: Work, younger: list[Work]) -> None:
    """The head of the line starts no later than without backfill, although younger claims may start before it."""
    waiting = [head, *(work._replace(arrives_s=work.arrives_s + 1) for work in younger)]
    without, with_limits = (schedule(sizes, running, waiting, backfill=backfill) for backfill in (False, True))
    if head.id in without.starts:
        assert with_limits.starts[head.id] <= without.starts[head.id]
    for name, promised_s in with_limits.promised_s.items():
        assert with_limits.starts[name] <= promised_s
    held = {each.id for each in running} & with_limits.starts.keys()
    able = {each.id for each in waiting if each.demand.gpus <= max(sizes)}
    assert with_limits.starts.keys() == held | able, "a claim that a host can hold never started"


HEAD = st.tuples(st.sampled_from((3, 2, 4)), st.sampled_from((0, 4))).map(
    lambda needs: Work("head", Demand(needs[0], 0, needs[1]), 5.0, False)
)


@properties
@given(SIZES, works("r", limited=True), HEAD, works("y", arrives=True))
def test_the_head_never_starts_later_if_the_running_tasks_have_true_limits(
    sizes: list[int], running: list[Work], head: Work, younger: list[Work]
) -> None:
    check_head(sizes, running, head, younger)


@properties
@given(st.sampled_from((4, 3)), works("r"), HEAD, works("y", arrives=True))
def test_on_one_host_the_head_never_starts_later_whatever_tasks_without_limits_do(
    gpus: int, running: list[Work], head: Work, younger: list[Work]
) -> None:
    check_head([gpus], running, head, younger)


@properties
@given(SIZES, works("r"), works("y", arrives=True))
def test_a_promised_start_is_kept_for_every_head(sizes: list[int], running: list[Work], waiting: list[Work]) -> None:
    """Heads follow each other. On several hosts some tasks have no limits. Each known start is kept, and each claim starts."""
    found = schedule(sizes, running, waiting, backfill=True)
    for name, promised_s in found.promised_s.items():
        assert found.starts[name] <= promised_s
    assert {work.id for work in waiting if work.demand.gpus <= max(sizes)} <= found.starts.keys()


@properties
@given(SIZES, works("r", limited=False), works("y", limited=False, arrives=True))
def test_without_time_limits_nothing_changes(sizes: list[int], running: list[Work], waiting: list[Work]) -> None:
    without, with_limits = (schedule(sizes, running, waiting, backfill=backfill) for backfill in (False, True))
    assert with_limits.starts == without.starts


SHARED_HEAD = st.tuples(st.sampled_from((2, 6, 10)), st.integers(0, MEMORY)).map(
    lambda needs: Work("head", Demand(1, 0, needs[1], gpu_memory_mib=needs[0]), 5.0, False)
)


@properties
@given(SIZES, shared_works("r", limited=True), HEAD | SHARED_HEAD, shared_works("y", arrives=True))
def test_the_head_never_starts_later_if_tasks_share_gpus(
    sizes: list[int], running: list[Work], head: Work, younger: list[Work]
) -> None:
    check_head(sizes, running, head, younger)


@properties
@given(st.sampled_from((1, 2, 4)), shared_works("r"), HEAD | SHARED_HEAD, shared_works("y", arrives=True))
def test_on_one_host_the_head_never_starts_later_if_tasks_share_gpus(
    gpus: int, running: list[Work], head: Work, younger: list[Work]
) -> None:
    check_head([gpus], running, head, younger)


@properties
@given(SIZES, shared_works("r"), shared_works("y", arrives=True))
def test_every_claim_starts_if_tasks_share_gpus(sizes: list[int], running: list[Work], waiting: list[Work]) -> None:
    found = schedule(sizes, running, waiting, backfill=True)
    for name, promised_s in found.promised_s.items():
        assert found.starts[name] <= promised_s
    assert {work.id for work in waiting if work.demand.gpus <= max(sizes)} <= found.starts.keys()


def test_tasks_that_share_a_gpu_cannot_starve_a_task_that_needs_it_whole() -> None:
    """New tasks that share the GPU arrive for ever, before the tasks that have it end. The older claim still gets the GPU."""
    shared = [Work(f"shared-{at:03}", Demand(1, gpu_memory_mib=2), 5.0, False, float(at)) for at in range(100)]
    found = schedule([1], [], [*shared, Work("whole", Demand(1), 1.0, False, 10.5)], backfill=True)
    assert found.starts["shared-010"] == 10.0
    assert found.starts["whole"] == 15.0  # when the last of those that ran before it has ended
    assert found.starts["shared-011"] == 16.0


def test_short_tasks_use_the_gap_and_the_large_claim_starts_in_time() -> None:
    """Short tasks arrive for ever. The large claim starts when the running task ends, and the GPUs were not idle until then."""
    running = [Work("running", Demand(1), 100.0, True)]
    large = Work("large", Demand(4), 10.0, False)
    short = [Work(f"short-{at:03}", Demand(1), 5.0, True, 1.0 + at) for at in range(200)]
    found = schedule([4], running, [large, *short], backfill=True)
    assert found.starts["large"] == 100.0
    used_s = sum(5.0 for name, start_s in found.starts.items() if name.startswith("short") and start_s < 100.0)
    assert used_s >= 0.9 * 95
    without = schedule([4], running, [large, *short], backfill=False)
    assert without.starts["large"] == 100.0
    assert min(start_s for name, start_s in without.starts.items() if name.startswith("short")) == 110.0
