"""The order of the claims of a pool, compared with a sort by priority, level of the owner, and age."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.undo_log import UndoLog
from corral.model.limits import Allowance, limited_amounts, opened
from corral.model.placement import TASK, Claim, Slot, claim_rank
from corral.model.task import Demand
from corral.store.fleet import Fleet
from corral.store.owner_lines import UNUSED, OwnerLines, UsedOwners
from corral.store.pool_index import PoolIndex
from examples import examples

POOL = "hosts:default"
OWNERS = ("root", "user/ann", "user/bob", "user/cy")
DEMANDS = (Demand(1), Demand(2), Demand(4, memory_mib=8), Demand(0, memory_mib=4))
LEVELS = st.sampled_from((None, -3.0, -1.0, 0.0, 0.5, 2.0, 7.0))
ROOMS = st.one_of(
    st.none(),
    st.builds(lambda gpus, most, mib: Allowance(gpus, mib, max(most, gpus), inf), *[st.sampled_from((0.0, 1.0, 2.0, 4.0))] * 2,
              st.sampled_from((inf, 4, 8))),
)  # fmt: skip
LIMITS_S = st.sampled_from((None, 60.0))
ADD = st.tuples(st.just("add"), st.sampled_from(OWNERS), st.sampled_from(DEMANDS), st.integers(-1, 1), st.integers(0, 5), LIMITS_S)
LEVEL = st.tuples(st.just("level"), st.sampled_from(OWNERS), LEVELS)
ROOM = st.tuples(st.just("room"), st.sampled_from(OWNERS), ROOMS)
REMOVE = st.tuples(st.just("remove"), st.integers(0, 1_000))
TURNS = st.tuples(st.just("turns"), st.lists(st.one_of(st.booleans(), ADD), max_size=40))
STEPS = st.one_of(ADD, REMOVE, LEVEL, ROOM, LEVEL, TURNS, st.sampled_from((("savepoint",), ("rollback",), ("look",))))


class Model:
    """What the index should say, computed from all claims."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []
        self.number = 0  # of claims that were ever added
        self.levels: dict[str, float] = {}
        self.rooms: dict[str, Allowance] = {}

    def closed(self) -> set[str]:
        """The claims that wait for a limit: all claims of a line whose first claim does."""
        found = set[str]()
        for owner, room in self.rooms.items():
            lines: dict[Any, list[Claim]] = {}
            for claim in sorted(claim for claim in self.claims if claim.owner == owner):
                lines.setdefault((claim.demand, claim.longest_s, claim.rank[0]), []).append(claim)
            are_open = opened(room, [claims[0].demand for claims in lines.values()])
            found |= {claim.id for claims, is_open in zip(lines.values(), are_open) if not is_open for claim in claims}
        return found

    def shown(self) -> list[Claim]:
        """All claims in order."""
        closed, found = self.closed(), self.claims
        if len({claim.owner for claim in found}) > 1:
            found = [each._replace(rank=(each.rank[0], self.levels.get(each.owner, UNUSED), *each.rank[2:])) for each in found]
        return sorted(found, key=lambda claim: (claim.id in closed, claim))


def check(pool: PoolIndex, model: Model) -> None:
    shown, closed = model.shown(), model.closed()
    assert list(pool.in_order()) == shown
    assert [pool.place_in_line(claim) for claim in sorted(model.claims, key=lambda claim: shown.index(pool.ranked(claim)))] == [
        *range(1, len(shown) + 1)
    ]
    heads: dict[Any, Claim] = {}
    counts: dict[Demand, int] = {}
    for claim in shown:
        assert pool.is_open(claim) == (claim.id not in closed)
        if claim.id not in closed:
            heads.setdefault((claim.demand, claim.longest_s), claim)
            counts[claim.demand] = counts.get(claim.demand, 0) + 1
    assert pool.heads() == sorted(heads.values())
    assert [pool.ranked(claim) for claim in pool.turns()] == pool.heads()
    for claim in shown:
        assert pool.first_peer(claim) == heads.get((claim.demand, claim.longest_s))
        assert pool.first_peer(claim) is pool.first_peer(claim)
        of_demand = [head for (demand, _), head in heads.items() if demand == claim.demand]
        assert pool.head(claim.demand) == min(of_demand, default=None)
    assert {demand: count for demand, count, _ in pool.waiting_demands()} == counts
    assert pool.waiting() == len(shown) and pool.has_claims() == bool(shown)


def add(fleet: Fleet, model: Model, owner: str, demand: Demand, priority: int, since_s: int, longest_s: float | None) -> None:
    model.number += 1
    claim = Claim(claim_rank(float(since_s), priority), TASK, f"t{model.number:04}", demand, longest_s, owner)
    model.claims.append(claim)
    fleet.add_claim(POOL, claim)


def take_turns(fleet: Fleet, model: Model, answers: list[bool | tuple[Any, ...]]) -> None:
    """Grant or refuse the claims that the pool offers. A grant raises the level of the owner above all others.

    With some grants, a claim is added behind its peers.
    """
    is_contested = len({each.owner for each in model.claims}) > 1
    pool, refused, level = fleet.pool(POOL), set[Any](), 10.0
    left = iter(answers)
    for claim in pool.turns():
        closed = model.closed()
        offered = [each for each in model.shown() if each.id not in closed and (each.demand, each.longest_s) not in refused]
        assert pool.ranked(claim) == offered[0]
        answer = next(left, False)
        if not answer:
            refused.add((claim.demand, claim.longest_s))
            continue
        [stored] = [each for each in model.claims if each.id == claim.id]
        fleet.remove_claim(POOL, stored)
        model.claims.remove(stored)
        model.levels[claim.owner] = level = level + 1.0
        fleet.set_level(claim.owner, level)
        if answer is not True and (answer[2], answer[5]) in {(each.demand, each.longest_s) for each in offered}:
            add(fleet, model, answer[1], answer[2], -2, *answer[4:])
        if (len({each.owner for each in model.claims}) > 1) != is_contested:
            return  # ranks have levels now, or no longer
    closed = model.closed()
    assert all(each.id in closed or (each.demand, each.longest_s) in refused for each in model.claims)


@settings(max_examples=examples(1_000), deadline=None)
@given(st.lists(ADD, min_size=4, max_size=12), st.lists(STEPS, min_size=8, max_size=40), st.booleans())
def test_the_order_is_that_of_a_sort(first: list[tuple[Any, ...]], steps: list[tuple[Any, ...]], looks_often: bool) -> None:
    fleet, model = Fleet(UndoLog()), Model()
    saved: tuple[Any, ...] | None = None
    pool = fleet.pool(POOL)
    for kind, *given_ in (*first, *steps):
        if kind == "add":
            add(fleet, model, *given_)
        elif kind == "remove" and model.claims:
            fleet.remove_claim(POOL, model.claims.pop(given_[0] % len(model.claims)))
        elif kind == "level":
            fleet.set_level(*given_)
            model.levels.pop(given_[0], None)
            if given_[1] is not None:
                model.levels[given_[0]] = given_[1]
        elif kind == "room":
            had = any(claim.owner == given_[0] for claim in model.claims)
            changed = model.rooms.get(given_[0]) != given_[1]
            assert fleet.set_allowance(*given_) == ([POOL] if had and changed else [])
            model.rooms.pop(given_[0], None)
            if given_[1] is not None:
                model.rooms[given_[0]] = given_[1]
        elif kind == "turns":
            take_turns(fleet, model, given_[0])
        elif kind == "savepoint":
            fleet.undo_log.commit()
            saved = model.claims[:], dict(model.levels), dict(model.rooms)
        elif kind == "rollback" and saved is not None:
            fleet.undo_log.rollback()
            model.claims, model.levels, model.rooms = saved[0][:], dict(saved[1]), dict(saved[2])
        if looks_often or kind == "look":
            check(pool, model)
    check(pool, model)
    check(pool.copy(), model)
    rebuilt = Fleet(UndoLog())
    for claim in model.claims:
        rebuilt.add_claim(POOL, claim)
    assert fleet.snapshot() == rebuilt.snapshot()


LOOKS = st.integers(0, 12)
MOVES = st.tuples(st.integers(0, 59), st.one_of(st.none(), st.integers(0, 80).map(float)), LOOKS)


@settings(max_examples=examples(1_000), deadline=None)
@given(st.lists(MOVES, max_size=400))
def test_levels_are_sorted_as_far_as_a_caller_looks(moves: list[tuple[int, float | None, int]]) -> None:
    groups, used, present = [OwnerLines(0.0, f"u{number}", UNUSED) for number in range(60)], UsedOwners(), set[OwnerLines]()

    def check(looks: int) -> None:
        levels = sorted({group.level for group in present})
        for at, level in enumerate(levels[:looks]):
            found = used.with_level(at)
            assert found is not None and len(found) == len(set(found))
            assert set(found) == {group for group in present if group.level == level}
        if looks > len(levels):
            assert used.with_level(len(levels)) is None

    for number, level, looks in moves:
        group = groups[number]
        if group in present and level is None:
            used.remove(group)
            present.remove(group)
        elif group in present and level is not None:
            used.move(group, level)
        elif level is not None:
            group.level = level
            used.add(group)
            present.add(group)
        check(looks)
    check(len(present) + 1)


def test_a_copy_does_not_follow_the_pool() -> None:
    fleet = Fleet(UndoLog())
    first, second = (Claim(claim_rank(float(at)), TASK, f"t{at}", Demand(1), owner=OWNERS[at]) for at in range(2))
    fleet.add_claim(POOL, first)
    fleet.add_claim(POOL, second)
    copy = fleet.pool(POOL).copy()
    fleet.set_level(first.owner, 5.0)
    fleet.remove_claim(POOL, second)
    assert [claim.id for claim in copy.in_order()] == ["t0", "t1"] and copy.heads()[0].id == "t0"
    assert fleet.pool(POOL).heads() == [first], "with one owner, claims leave the index as they are"


def test_tasks_do_not_wait_for_a_limit_of_gpus_on_instances_of_their_owner() -> None:
    fleet, pool_name = Fleet(UndoLog()), "us-east-1/default"
    for number, owner in enumerate(OWNERS[1:3]):
        fleet.set_allowance(owner, Allowance(0.0, inf, 2.0, inf))
        fleet.add_claim(pool_name, Claim(claim_rank(0.0), TASK, f"t{number}", Demand(1), owner=owner))
    pool = fleet.pool(pool_name)
    assert pool.heads() == []
    fleet.undo_log.commit()
    for slot_id in ("a", "b"):
        fleet.put_slot(pool_name, Slot(slot_id, Demand(1), 0, 0, ["GPU-1"], {"GPU-1": 0}, lender=OWNERS[1]))
    assert [claim.owner for claim in pool.heads()] == [OWNERS[1]] == [claim.owner for claim in pool.copy().heads()]
    fleet.drop_slot(pool_name, "a")
    assert [claim.owner for claim in pool.heads()] == [OWNERS[1]]
    fleet.undo_log.rollback()
    assert pool.heads() == []


@pytest.mark.parametrize(
    ("room", "demands", "expected"),
    [
        (Allowance(2.0, inf, 4.0, inf), [Demand(1), Demand(2), Demand(3)], [True, True, False]),
        (
            Allowance(2.0, inf, 4.0, inf),
            [Demand(3), Demand(1), Demand(0)],
            [False, False, True],
        ),  # what the first waits for is kept
        (Allowance(2.0, inf, 4.0, inf), [Demand(5), Demand(2)], [False, True]),  # the first can never start
        (Allowance(-1.0, inf, 4.0, inf), [Demand(0), Demand(1, gpu_memory_mib=10)], [True, False]),  # the limit has become smaller
        (Allowance(inf, 10, inf, 20), [Demand(0, 0, 11), Demand(0, 0, 1), Demand(0)], [False, False, True]),
        (Allowance(4.0, inf, 4.0, inf), [Demand(2, nodes=((Demand(2), 3),)), Demand(4)], [False, True]),
    ],
)
def test_what_an_allowance_opens(room: Allowance, demands: list[Demand], expected: list[bool]) -> None:
    assert opened(room, demands) == expected


def test_amounts_that_count_for_limits() -> None:
    assert limited_amounts(Demand(-1, 0, 5)) == (1, 5)
    assert limited_amounts(Demand(2, 0, 6, nodes=((Demand(2, 0, 6), 2), (Demand(1, 0, 1), 1)))) == (5, 13)
