"""Constraints and strategies: tables first, then the real index against a model that checks every slot."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.core.undo_log import UndoLog
from corral.decide.placement.instance_query import parse_instance_query
from corral.decide.placement.place import place, place_on, serve
from corral.decide.placement.reservations import standing_reservation
from corral.decide.placement.shortages import why_not, why_waiting
from corral.decide.placement.strategies import select, values_of
from corral.model.placement import TASK, Claim, Placement, Reservation, Slot, Unplaceable
from corral.model.task import ALL_GPUS, Demand, PlacementRules
from corral.services.ecs.capacity_providers import ProviderWeight, distribute
from corral.store.fleet import Fleet
from corral.store.pool_index import PoolIndex
from decide.test_placement_decisions import POOL, copies, is_open, serve_all, slot
from examples import examples

properties = settings(max_examples=examples(100), deadline=None)
SCOPE = "us-east-1/default"
GROUP = f"{SCOPE}/family:train"


def host(name: str, gpus: int = 8, free: int | None = None, tasks: int = 0, **attributes: str) -> Slot:
    """A slot with attributes and so many tasks of the group."""
    made = slot(name, gpus, free)
    made.attributes = {key.replace("_", "-"): value for key, value in attributes.items()}
    made.tasks = {GROUP: tasks} if tasks else {}
    return made


def rules(*member_of: str, distinct: bool = False, strategy: Iterable[str] = ()) -> PlacementRules:
    steps = tuple((step.partition(" ")[0], step.partition(" ")[2]) for step in strategy)
    depends_on_tasks = distinct or any(parse_instance_query(expression).depends_on_tasks for expression in member_of)
    return PlacementRules(SCOPE, member_of, distinct, steps, GROUP if distinct or strategy else "", depends_on_tasks)


def fleet_of(slots: Iterable[Slot], claims: Iterable[Claim] = ()) -> tuple[Fleet, PoolIndex]:
    fleet = Fleet(UndoLog())
    for each in slots:
        fleet.put_slot(POOL, each)
    for claim in claims:
        fleet.add_claim(POOL, claim)
    return fleet, fleet.pool(POOL)


def put(fleet: Fleet, placement: Placement, demand: Demand, group: str = GROUP) -> None:
    """Apply a placement as the store does."""
    fleet.take(POOL, placement.slot_id, placement.gpu_ids, demand.cpu_units, demand.memory_mib, group)


@pytest.mark.parametrize(
    ("slots", "which", "where"),
    [
        ([host("a", stack="test"), host("b", stack="prod")], rules("attribute:stack == prod"), "b"),
        ([host("a"), host("b", stack="prod")], rules("attribute:stack exists"), "b"),
        (
            [host("a", stack="prod"), host("b", stack="prod", rack="7")],
            rules("attribute:stack == prod", "attribute:rack == 7"),
            "b",
        ),
        ([host("a", stack="test")], rules("attribute:stack == prod"), None),
        ([host("a", free=2, x="1"), host("b", free=4, x="1"), host("c", free=1)], rules("attribute:x exists"), "a"),  # best fit
        ([host("a", tasks=1), host("b")], rules(distinct=True), "b"),
        ([host("a", tasks=1), host("b", tasks=1)], rules(distinct=True), None),
        ([host("a", tasks=1), host("b")], rules("task:group == family:train"), "a"),
        ([host("a", tasks=1), host("b")], rules("not (task:group == family:train)"), "b"),
        ([host("a"), host("b")], rules("attribute:ecs.availability-zone == us-east-1a"), "a"),
        ([host("a"), host("b")], rules("attribute:ecs.availability-zone == us-west-2a"), None),
        ([host("a", tasks=2), host("b", tasks=1), host("c", tasks=3)], rules(strategy=["spread instanceId"]), "b"),
        (  # z=1 has 3 tasks and z=2 has 1, so z=2; there the emptier one
            [host("a", tasks=3, z="1"), host("b", z="1"), host("c", tasks=1, z="2"), host("d", z="2")],
            rules(strategy=["spread attribute:z", "spread instanceId"]),
            "d",
        ),
        (
            [host("a", tasks=1, z="1"), host("b", z="1"), host("c")],
            rules(strategy=["spread attribute:z"]),
            "c",
        ),  # no value is a value
        ([slot("a", 8, 1, memory=900), slot("b", 8, 8, memory=500)], rules(strategy=["binpack memory"]), "b"),
        ([slot("a", 8, 1, cpu=900), slot("b", 8, 8, cpu=500)], rules(strategy=["binpack cpu"]), "b"),
        ([slot("a", 8, 1, memory=5), slot("b", 8, 8, memory=500)], rules(strategy=["binpack memory"]), "b"),  # a does not fit
        (
            [slot("a", 8, 8, cpu=500, memory=900), slot("b", 8, 8, cpu=500, memory=800)],
            rules(strategy=["binpack cpu", "binpack memory"]),
            "b",
        ),
        (
            [host("a", tasks=1), host("b"), slot("c", 8, memory=1)],
            rules(strategy=["binpack memory", "spread instanceId"]),
            "b",
        ),
        (  # both racks have as many: then what is left decides between them
            [replace(slot("a", 8, memory=900), attributes={"z": "1"}), replace(slot("b", 8, memory=800), attributes={"z": "2"})],
            rules(strategy=["spread attribute:z", "binpack memory"]),
            "b",
        ),
        ([slot("a", 8, 0), slot("b", 8, 8)], rules(strategy=["random "]), "b"),
    ],
)
def test_where(slots: list[Slot], which: PlacementRules, where: str | None) -> None:
    found = place(fleet_of(slots)[1], Demand(1, 10, 10, which), seed="x")
    assert getattr(found, "slot_id", None) == where


def test_random_reaches_every_host_and_depends_on_the_seed_alone() -> None:
    _, pool = fleet_of([host(name) for name in "abcd"])
    demand = Demand(1, rules=rules(strategy=["random "]))
    found = [place(pool, demand, seed=str(number)) for number in range(100)]
    assert {placement.slot_id for placement in found if isinstance(placement, Placement)} == set("abcd")
    assert found == [place(pool, demand, seed=str(number)) for number in range(100)]


def test_random_after_spread_is_fair_to_every_host() -> None:
    """Two racks with equally many tasks, of three hosts and of one: the one is not drawn half of the time."""
    _, pool = fleet_of([host("a", z="1"), host("b", z="1"), host("c", z="1"), host("d", z="2")])
    demand = Demand(1, rules=rules(strategy=["spread attribute:z", "random "]))
    found = [place(pool, demand, seed=f"seed {number}") for number in range(400)]
    drawn = [placement.slot_id for placement in found if isinstance(placement, Placement)]
    assert len(drawn) == 400
    assert all(60 < drawn.count(name) < 140 for name in "abcd"), drawn


def test_all_gpus_of_a_host_that_rules_allow() -> None:
    """Among hosts of one shape only one is whole; if none is, the host that lacks least is reserved."""
    busy = [host(f"b{at}", 4, 2, x="1") for at in range(3)]
    _, pool = fleet_of([*busy, host("small", 2, 2, x="1"), host("free", 8, 8)])
    demand = Demand(ALL_GPUS, rules=rules("attribute:x exists"))
    found = place(pool, demand)
    assert isinstance(found, Placement) and (found.slot_id, len(found.gpu_ids)) == ("small", 2)
    claim = Claim((1.0,), TASK, "t", demand)
    _, pool = fleet_of([*busy, host("near", 4, 3, x="1"), host("free", 8, 8)], [claim])
    refused = place(pool, demand)
    assert isinstance(refused, Unplaceable) and refused.resource == "GPU"
    assert standing_reservation(pool) == Reservation(claim, {"near": claim.demand})


def test_tasks_are_spread_evenly() -> None:
    fleet, pool = fleet_of([host(f"h{at}", 0, z=str(at % 3)) for at in range(9)])
    demand = Demand(0, 1, 1, rules(strategy=["spread attribute:z", "spread instanceId"]))
    for _ in range(27):
        found = place(pool, demand)
        assert isinstance(found, Placement)
        put(fleet, found, demand)
    assert {each.tasks[GROUP] for each in pool.slots()} == {3}


@pytest.mark.parametrize(
    ("slots", "which", "word", "text"),
    [
        (
            [host("a"), host("b")],
            rules("attribute:x == 1"),
            "memberOf",
            "needs 1 GPU; 2 hosts, none matches memberOf (attribute:x == 1)",
        ),
        (
            [host("a"), replace(host("b", x="1"), connected=False)],
            rules("attribute:x == 1"),
            "memberOf",
            "needs 1 GPU; 1 host, none matches memberOf (attribute:x == 1); another host, which matches, does not report",
        ),
        (
            [host("a"), *(replace(host(name, x="1"), draining=True) for name in "bc")],
            rules("attribute:x == 1"),
            "memberOf",
            "needs 1 GPU; 1 host, none matches memberOf (attribute:x == 1); 2 that match do not report or are draining",
        ),
        (
            [host("a", 8, 0, x="1"), host("b", 8, 0, x="1"), host("c")],
            rules("attribute:x == 1"),
            "GPU",
            "needs 1 GPU; 2 of 3 hosts match memberOf (attribute:x == 1); 0 GPUs free on them",
        ),
        (
            [host("a", tasks=1), host("b", tasks=1)],
            rules(distinct=True),
            "distinctInstance",
            "needs 1 GPU; 2 hosts, each with a task of family:train already (distinctInstance)",
        ),
        (
            [host("a", tasks=1, x="1"), host("b", 8, 0, x="1"), host("c")],
            rules("attribute:x == 1", distinct=True),
            "GPU",
            "needs 1 GPU; 2 of 3 hosts match memberOf (attribute:x == 1), 1 with a task of family:train already "
            "(distinctInstance); 0 GPUs free on it",
        ),
        ([replace(host("a"), draining=True)], None, "DRAINING", "needs 1 GPU; every host is draining"),
        ([replace(host("a"), connected=False, draining=True)], None, "AGENT", "needs 1 GPU; no host is connected"),
    ],
)
def test_why_not(slots: list[Slot], which: PlacementRules | None, word: str, text: str) -> None:
    found = place(fleet_of(slots)[1], Demand(1, rules=which))
    assert found == Unplaceable(word, text)


def test_a_claim_with_rules_reserves_a_host_that_they_allow() -> None:
    old, young = Claim((1.0,), TASK, "old", Demand(4, rules=rules("attribute:x == 1"))), Claim((2.0,), TASK, "young", Demand(2))
    fleet, pool = fleet_of([host("a", 8, 3), host("b", 8, 2, x="1"), host("c", 8, 1, x="1")], [old, young])
    assert standing_reservation(pool) == Reservation(old, {"b": old.demand})
    assert serve_all(fleet) == [(young, Placement("a", ("a-5", "a-6")))]
    assert why_waiting(pool, old).endswith("match memberOf (attribute:x == 1); 3 GPUs free on them; needs 4 GPUs; first in line")


def test_an_older_claim_follows_the_task_that_it_depends_on() -> None:
    """The older claim must be on the host of the younger one: one call grants both."""
    old = Claim((1.0,), TASK, "old", Demand(1, rules=rules("task:group == family:train")))
    fleet, pool = fleet_of([host("a")], [old, Claim((2.0,), TASK, "young", Demand(2))])
    grants = []
    for claim, placement in serve(pool, 0.0):
        fleet.remove_claim(POOL, claim)
        put(fleet, placement, claim.demand)
        grants.append(claim.id)
    assert grants == ["young", "old"]


def test_tasks_with_distinct_instance_wait_for_each_other() -> None:
    demand = Demand(0, rules=rules(distinct=True))
    fleet, pool = fleet_of([host("a"), host("b")], [Claim((float(at),), TASK, f"t{at}", demand) for at in range(3)])
    granted = []
    for claim, placement in serve(pool, 0.0):
        fleet.remove_claim(POOL, claim)
        put(fleet, placement, claim.demand)
        granted.append((claim.id, placement.slot_id))
    assert granted == [("t0", "a"), ("t1", "b")]
    fleet.count(POOL, "b", GROUP, -1, 0, 0)  # asked to stop: that is enough
    assert [(claim.id, placement.slot_id) for claim, placement in serve_one(pool)] == [("t2", "b")]


def serve_one(pool: PoolIndex) -> list[tuple[Claim, Placement]]:
    found = next(serve(pool, 0.0), None)
    return [found] if found else []


@pytest.mark.parametrize(
    ("where", "demand", "word"),
    [
        (host("a"), Demand(2), None),
        (host("a", 8, 1), Demand(2), "GPU"),
        (host("a"), Demand(ALL_GPUS), None),
        (host("a", 8, 7), Demand(ALL_GPUS), "GPU"),
        (host("a", 0), Demand(ALL_GPUS), "GPU"),
        (slot("a", 8, memory=5), Demand(1, 0, 6), "MEMORY"),
        (slot("a", 8, cpu=5), Demand(1, 6), "CPU"),
        (replace(host("a"), draining=True), Demand(1), "DRAINING"),
        (replace(host("a"), connected=False), Demand(1), "AGENT"),
    ],
)
def test_place_on_a_given_slot(where: Slot, demand: Demand, word: str | None) -> None:
    found = place_on(fleet_of([where, host("b")])[1], demand, "a", 0.0)
    assert getattr(found, "resource", None) == word


def test_place_on_a_given_slot_respects_older_claims() -> None:
    old = Claim((1.0,), TASK, "old", Demand(8))
    _, pool = fleet_of([host("a", 8, 7)], [old])
    found = place_on(pool, Demand(1), "a", 0.0)
    assert found == Unplaceable("GPU", "the free capacity of the host is reserved for task old, which is ahead in line")


@pytest.mark.parametrize(
    ("strategy", "count", "shares"),
    [
        ([ProviderWeight("a")], 3, {"a": 3}),
        ([ProviderWeight("a", 1)], 10, {"a": 10}),
        ([ProviderWeight("a", 1), ProviderWeight("b", 4)], 10, {"a": 2, "b": 8}),
        ([ProviderWeight("a", 1), ProviderWeight("b", 1)], 3, {"a": 2, "b": 1}),
        ([ProviderWeight("a", 1, 2), ProviderWeight("b", 4)], 7, {"a": 3, "b": 4}),
        ([ProviderWeight("a", 0, 2), ProviderWeight("b", 1)], 5, {"a": 2, "b": 3}),
        ([ProviderWeight("a", 0), ProviderWeight("b", 1)], 5, {"b": 5}),
        ([ProviderWeight("a", 1, 5), ProviderWeight("b", 1)], 2, {"a": 2}),
    ],
)
def test_providers(strategy: list[ProviderWeight], count: int, shares: dict[str, int]) -> None:
    names = distribute(strategy, count)
    assert {name: names.count(name) for name in names} == shares


# The model: every slot is looked at


def allowed(each: Slot, which: PlacementRules) -> bool:
    if which.distinct and each.tasks.get(GROUP):
        return False
    return all(parse_instance_query(expression).matches(values_of(each, SCOPE)) for expression in which.member_of)


def best(slots: list[Slot], able: list[Slot], which: PlacementRules) -> list[Slot]:
    """The best slots by each step of the strategy; without a strategy, the best fit."""
    for kind, field in which.strategy:
        if kind == "random" or not able:
            return able
        weight = {each.id: weigh(slots, each, kind, field) for each in able}
        able = [each for each in able if weight[each.id] == min(weight.values())]
    if which.strategy or not able:
        return able
    return [min(able, key=lambda each: (len(each.gpus), each.memory_mib, each.cpu_units, each.id))]


def weigh(slots: list[Slot], each: Slot, kind: str, field: str) -> int:
    if kind == "binpack":
        return each.cpu_units if field == "cpu" else each.memory_mib
    if field == "instanceId":
        return each.tasks.get(GROUP, 0)
    name = field.removeprefix("attribute:")
    alike = [other for other in slots if other.attributes.get(name, "") == each.attributes.get(name, "")]
    return sum(other.tasks.get(GROUP, 0) for other in alike)


EXPRESSIONS = (
    "attribute:x == 1",
    "attribute:x != 1",
    "attribute:x exists",
    "attribute:y in [1, 2]",
    "task:group == family:train",
    "task:group !~ .*train",
    "runningTasksCount < 2",
    "pendingTasksCount == 0 or attribute:y =~ [12]",
)
STEPS = ("spread instanceId", "spread attribute:x", "spread attribute:y", "binpack cpu", "binpack memory", "random ")


@st.composite
def drawn_rules(draw: st.DrawFn) -> PlacementRules:
    return rules(
        *draw(st.lists(st.sampled_from(EXPRESSIONS), max_size=2, unique=True)),
        distinct=draw(st.integers(0, 3)) == 0,
        strategy=draw(st.lists(st.sampled_from(STEPS), max_size=3, unique=True)),
    )


@st.composite
def hosts(draw: st.DrawFn, least: int = 0) -> list[Slot]:
    found = []
    for number in range(draw(st.integers(least, 6))):
        total = draw(st.sampled_from((0, 1, 2, 4)))
        cpu, memory = draw(st.sampled_from((0, 600, 4096))), draw(st.sampled_from((0, 600, 4096)))
        made = slot(f"h{number}", total, draw(st.integers(0, total)), cpu=cpu, memory=memory)
        made.attributes = draw(st.dictionaries(st.sampled_from("xy"), st.sampled_from("123")))
        made.tasks = {GROUP: tasks} if (tasks := draw(st.integers(0, 2))) else {}
        made.running, made.pending = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        made.connected, made.draining = draw(st.integers(0, 5)) > 0, draw(st.integers(0, 5)) == 0
        found.append(made)
    return found


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    sizes = draw(st.sampled_from((0, 0, 1, 2, 3, ALL_GPUS))), draw(st.sampled_from((0, 512))), draw(st.sampled_from((0, 512)))
    return Demand(*sizes, draw(drawn_rules()))


def copied(slots: Iterable[Slot]) -> list[Slot]:
    made = copies(list(slots))
    for each, original in zip(made, slots):
        each.draining, each.attributes, each.tasks = original.draining, dict(original.attributes), dict(original.tasks)
        each.running, each.pending = original.running, original.pending
    return made


def check(pool: PoolIndex, demand: Demand, reservation: Reservation | None, seed: str) -> Placement | Unplaceable:
    """The index and the model agree; what was found."""
    assert demand.rules is not None
    slots = sorted(pool.slots(), key=lambda each: each.id)
    able = [each for each in slots if not each.draining and is_open(each, demand, reservation) and allowed(each, demand.rules)]
    if demand.gpus == ALL_GPUS:
        able = [each for each in able if each.total.gpus and len(each.gpus) == each.total.gpus]
    found = place(pool, demand, reservation, seed)
    if isinstance(found, Unplaceable):
        assert not able, (found, able)
        check_words(slots, demand, found)
    else:
        assert found.slot_id in {each.id for each in best(slots, able, demand.rules)}
        free = pool.slot(found.slot_id).gpus
        assert found.gpu_ids == tuple(free if demand.gpus == ALL_GPUS else free[: demand.gpus])
    return found


def check_words(slots: list[Slot], demand: Demand, found: Unplaceable) -> None:
    assert demand.rules is not None
    taking = [each for each in slots if each.takes_tasks]
    matching = [each for each in taking if allowed(each, replace(demand.rules, distinct=False))]
    left = [each for each in matching if allowed(each, demand.rules)]
    expected = {
        "AGENT": not any(each.connected for each in slots),
        "DRAINING": not taking and any(each.connected for each in slots),
        "memberOf": bool(taking) and not matching,
        "distinctInstance": bool(matching) and not left,
    }
    assert expected.get(found.resource, bool(left))
    assert found.detail.startswith("needs ")


@properties
@given(hosts(), st.lists(demands(), max_size=4), demands(), st.text("abc", max_size=3))
def test_the_index_chooses_as_the_model_does(slots: list[Slot], waiting: list[Demand], demand: Demand, seed: str) -> None:
    claims = [Claim((float(at),), TASK, f"t{at}", each) for at, each in enumerate(waiting)]
    _, pool = fleet_of(copied(slots), claims)
    check(pool, demand, standing_reservation(pool), seed)


@properties
@given(hosts(least=1), st.lists(demands(), min_size=1, max_size=4), st.integers(0, 2**32))
def test_the_index_still_agrees_after_any_changes(slots: list[Slot], few: list[Demand], seed: int) -> None:
    """Selections follow all changes: takes, releases, counts, changed hosts, and rollbacks."""
    rng = Random(seed)
    fleet, pool = fleet_of(copied(slots))
    names = [each.id for each in slots]
    placed: list[tuple[Placement, Demand]] = []
    for step in range(25):
        demand = rng.choice(few)
        fleet.undo_log.savepoint()
        before = list(placed)
        for _ in range(rng.randrange(3)):
            found = check(pool, demand, None, str(step))
            if isinstance(found, Placement):
                put(fleet, found, demand)
                placed.append((found, demand))
        if placed and rng.random() < 0.5:
            gone, of = placed.pop(rng.randrange(len(placed)))
            fleet.give(POOL, gone.slot_id, gone.gpu_ids, of.cpu_units, of.memory_mib)
            fleet.count(POOL, gone.slot_id, GROUP, -1, 0, -1)
        if rng.random() < 0.3:
            changed = copied([pool.slot(rng.choice(names))])[0]
            changed.attributes = {rng.choice("xy"): rng.choice("123")}
            changed.draining, changed.connected = rng.random() < 0.2, rng.random() < 0.8
            fleet.put_slot(POOL, changed)
        if rng.random() < 0.3:
            fleet.undo_log.rollback_to_savepoint()
            placed = before
        fleet.undo_log.commit()
        check(pool, rng.choice(few), None, str(step))


@properties
@given(hosts(), st.lists(demands(), max_size=6))
def test_serve_respects_the_rules_and_leaves_no_claim_that_fits(slots: list[Slot], waiting: list[Demand]) -> None:
    claims = [Claim((float(at),), TASK, f"t{at}", each) for at, each in enumerate(waiting)]
    fleet, pool = fleet_of(copied(slots), claims)
    granted: list[Claim] = []
    for claim, placement in serve(pool, 0.0):
        assert claim.demand.rules is not None
        assert allowed(pool.slot(placement.slot_id), claim.demand.rules) and pool.slot(placement.slot_id).takes_tasks
        fleet.remove_claim(POOL, claim)
        put(fleet, placement, claim.demand)
        granted.append(claim)
    assert next(serve(pool, 0.0), None) is None
    for claim in set(claims) - set(granted):
        assert all(other < claim for other in granted if other.demand == claim.demand)  # in order within its line
        assert "needs " in why_waiting(pool, claim)


def test_a_selection_is_reused() -> None:
    """The expression is evaluated once per host, and again only for changed hosts."""
    asked: list[str] = []

    class Telling(Slot):
        @property
        def takes_tasks(self) -> bool:
            asked.append(self.id)
            return True

    fleet, pool = fleet_of([Telling(f"h{at:03}", Demand(1, 10, 10), 10, 10, [f"g{at}"], {f"g{at}": 0}) for at in range(200)])
    demand = Demand(1, 1, 1, rules("not (task:group == none)", strategy=["spread instanceId"]))
    for _ in range(50):
        found = place(pool, demand)
        assert isinstance(found, Placement)
        put(fleet, found, demand)
    assert len(asked) < 200 + 2 * 50
    assert demand.rules is not None
    assert select(pool, demand.rules).allowed == 200


def test_why_not_names_the_reservation() -> None:
    old = Claim((1.0,), TASK, "old", Demand(8))
    _, pool = fleet_of([host("a", 8, 7, x="1")], [old])
    text = why_not(pool, Demand(1, rules=rules("attribute:x == 1")), standing_reservation(pool))
    assert text.endswith("7 GPUs free on it, reserved for task old, which is ahead in line")
