"""Placement strategies and constraints: decide which slots the constraints of a task allow, and which of them its strategy prefers.

A part is a set of slots with equal values of the attributes over which tasks are spread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import accumulate, chain, takewhile
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec.structs import replace

from corral import __version__
from corral.model.instance import ec2_id
from corral.model.placement import CompiledRules, Pool, Selection, Slot, SpreadPart
from corral.model.task import ALL_GPUS, BINPACK, RANDOM, SPREAD, Demand, PlacementRules

if TYPE_CHECKING:
    from corral.decide.placement.instance_query import InstanceQuery, SubjectValues

ZONE = "ecs.availability-zone"  # a host is in every region, so the zone of its own slot depends on the region of the cluster
GPU_MODEL = "corral.gpu-model"  # the attribute with the models of the GPUs of a container instance
DRAWS_MAX = 16  # after this many random attempts, choose from a list of all slots that fit

IsOpen = Callable[[str], bool]  # slot id → whether the demand fits the slot and no older claim reserves the slot


def select(pool: Pool, rules: PlacementRules) -> Selection:
    """Return the slots that the rules allow now."""
    return pool.selection(rules, partial(_sorting, rules))


def select_by_attributes(pool: Pool, rules: PlacementRules) -> Selection:
    """Return the slots that match the Auto Scaling group and every memberOf constraint. Ignore the constraint distinctInstance."""
    return select(pool, replace(rules, distinct=False, strategy=(), group=""))


def matching(rules: PlacementRules | None) -> Callable[[Slot], bool]:
    """Return a function that says whether a slot matches the Auto Scaling group and every memberOf constraint."""
    return (lambda slot: True) if rules is None else allows(replace(rules, distinct=False))


def zone_of(scope: str) -> str:
    """Return the availability zone of a host's own slot. `scope` is REGION/CLUSTER."""
    return f"{scope.partition('/')[0]}a"


def values_of(slot: Slot, scope: str) -> SubjectValues:
    """Return a function from a subject of the cluster query language, such as `task:group`, to its values on this slot."""
    return partial(_values, slot, scope)


def _values(slot: Slot, scope: str, subject: str) -> Sequence[str]:
    if subject.startswith("attribute:"):
        name = subject[len("attribute:") :]
        value = slot.attributes.get(name, zone_of(scope) if name == ZONE else None)
        return () if value is None else (value,)
    match subject:
        case "task:group":
            return [key[len(scope) + 1 :] for key in slot.tasks if key.startswith(f"{scope}/")]
        case "runningTasksCount":
            return (str(slot.running),)
        case "pendingTasksCount":
            return (str(slot.pending),)
        case "agentConnected":
            return ("true" if slot.connected else "false",)
        case "agentVersion":
            return (__version__,)
        case "registeredAt":
            return (str(slot.registered_at_s),)
        case _:
            assert subject == "ec2InstanceId", subject
            return (ec2_id(slot.id),)


def _sorting(rules: PlacementRules) -> CompiledRules:
    leading = list(takewhile(lambda step: step[0] == SPREAD, rules.strategy))
    after = rules.strategy[len(leading) : len(leading) + 1]
    return CompiledRules(
        allows=allows(rules),
        spreads=tuple(_spread_over(rules, field) for _, field in leading),
        group=rules.group,
        by_cpu=after == ((BINPACK, "cpu"),),
        packs=bool(after) and after[0][0] == BINPACK,
        drawn=bool(after) and after[0][0] == RANDOM,
    )


def allows(rules: PlacementRules) -> Callable[[Slot], bool]:
    """Return a function that says whether the constraints allow a slot."""
    queries = _queries(rules)
    by_model = names_gpu_model(rules)

    def is_allowed(slot: Slot) -> bool:
        if rules.instance_group and slot.instance_group != rules.instance_group:
            return False
        if rules.account and rules.account not in slot.accounts:
            return False
        if rules.distinct and rules.group in slot.tasks:
            return False
        if by_model and slot.gpu_models is not None:
            return bool(_allowed_models(slot, slot.gpu_models, rules))
        values = values_of(slot, rules.scope)
        return all(query.matches(values) for query in queries)

    return is_allowed


def names_gpu_model(rules: PlacementRules | None) -> bool:
    """Whether a memberOf constraint depends on the model of GPUs."""
    return rules is not None and any(GPU_MODEL in expression for expression in rules.member_of)


def usable_part(slot: Slot, demand: Demand) -> Slot:
    """Return the slot with only those of its GPUs that the memberOf constraints of a demand allow.

    If a slot has GPUs of several models, the constraints are evaluated once for each model, as if the slot had only this model. The
    task gets GPUs of the models for which they are true.
    """
    rules = demand.rules
    of_gpus = slot.gpu_models
    if of_gpus is None or rules is None or not demand.gpus or not names_gpu_model(rules):
        return slot
    models = _allowed_models(slot, of_gpus, rules)
    gpu_memory = {gpu_id: mib for gpu_id, mib in slot.gpu_memory.items() if of_gpus[gpu_id] in models}
    offered = [gpu_id for gpu_id in gpu_memory if gpu_id not in slot.withheld]
    largest_mib = max((gpu_memory[gpu_id] for gpu_id in offered), default=0)
    return replace(
        slot,
        total=Demand(len(offered), slot.total.cpu_units, slot.total.memory_mib, gpu_memory_mib=largest_mib),
        gpus=[gpu_id for gpu_id in slot.gpus if gpu_id in gpu_memory],
        positions={gpu_id: at for gpu_id, at in slot.positions.items() if gpu_id in gpu_memory},
        withheld={gpu_id: why for gpu_id, why in slot.withheld.items() if gpu_id in gpu_memory},
        shared={gpu_id: left_mib for gpu_id, left_mib in slot.shared.items() if gpu_id in gpu_memory},
        gpu_memory=gpu_memory,
        lent=sum(model in models for model in slot.lent_models),
    )


def _queries(rules: PlacementRules) -> list[InstanceQuery]:
    if not rules.member_of:
        return []
    from corral.decide.placement.instance_query import parse_instance_query  # imported here, because few tasks have constraints

    return [parse_instance_query(expression) for expression in rules.member_of]


def _allowed_models(slot: Slot, of_gpus: Mapping[str, str], rules: PlacementRules) -> set[str]:
    queries = _queries(rules)
    found = set()
    for model in {*of_gpus.values(), *slot.lent_models}:
        values = values_of(replace(slot, attributes={**slot.attributes, GPU_MODEL: model}), rules.scope)
        if all(query.matches(values) for query in queries):
            found.add(model)
    return found


def _spread_over(rules: PlacementRules, field: str) -> Callable[[Slot], str] | None:
    """Return a function from a slot to the value over which tasks are spread. None means that tasks are spread over slots.

    All slots without the attribute have the same value.
    """
    if field == "instanceId":
        return None
    return lambda slot: next(iter(_values(slot, rules.scope, field)), "")


def first_choice(pool: Pool, demand: Demand, seed: str, is_open: IsOpen, reserved: int = 1) -> str | None:
    """Return the slot that the strategy prefers among the slots for which `is_open` is true. Return None if there is none.

    `reserved` is the number of slots that an older claim reserves.
    """
    rules = demand.rules
    assert rules is not None
    selection = select(pool, rules)
    steps = rules.strategy
    while steps and steps[0][0] == SPREAD:
        steps = steps[1:]
    if not steps or (len(steps) == 1 and steps[0][0] == BINPACK):
        first = selection.first_fitting((demand.idle_gpus, demand.memory_mib, demand.cpu_units))
        found = next(_open_ones((first,), demand, is_open, reserved), None)
        if found is not None or not first:
            return found  # otherwise an older claim reserves these slots, so try the next ones
    elif not any(True for group in selection.groups(demand.idle_gpus) for _ in group.fitting(demand.memory_mib, demand.cpu_units)):
        return None  # no slot has enough free capacity, so do not try each part
    for parts in selection.in_order():
        found = _choose(pool, parts, demand, steps, seed, is_open, reserved)
        if found is not None:
            return found
    return None


def _choose(
    pool: Pool,
    parts: Sequence[SpreadPart],
    demand: Demand,
    steps: Sequence[tuple[str, str]],
    seed: str,
    is_open: IsOpen,
    reserved: int,
) -> str | None:
    """Return the slot that `steps` prefer, or None. `steps` are the steps of the strategy after its leading spread steps.

    The leading spread steps prefer none of `parts` to another.
    """
    if not steps:
        return next(_open_ones(_shapes(parts, demand), demand, is_open, reserved), None)
    if steps[0][0] == RANDOM:
        return _draw(parts, demand, seed, is_open)
    rest_of = _cpu_first if steps[0][1] == "cpu" else _memory_first
    shapes = merge(*_by_group(parts, demand), key=lambda ids: rest_of(pool.slot(ids[0])))
    if all(kind == BINPACK for kind, _ in steps):
        return next(_open_ones(shapes, demand, is_open, reserved), None)
    fitting = list(shapes)
    first = next(_open_ones(fitting, demand, is_open, reserved), None)
    if first is None:
        return None
    least = rest_of(pool.slot(first))[0]
    ties = [slot_id for ids in fitting for slot_id in ids if rest_of(pool.slot(slot_id))[0] == least and is_open(slot_id)]
    return _among_equals(pool, demand, ties, steps[1:], seed)


def _by_group(parts: Sequence[SpreadPart], demand: Demand) -> Iterator[Iterable[Sequence[str]]]:
    return (group.fitting(demand.memory_mib, demand.cpu_units) for part in parts for group in part.groups(demand.idle_gpus))


def _shapes(parts: Sequence[SpreadPart], demand: Demand) -> Iterator[Sequence[str]]:
    """Yield the shapes of each part by best fit: fewest free GPUs first, then least free memory.

    A shape is the slots of a part that have equal free resources.
    """
    return chain.from_iterable(_by_group(parts, demand))


def _open_ones(shapes: Iterable[Sequence[str]], demand: Demand, is_open: IsOpen, reserved: int) -> Iterator[str]:
    """Yield the first slot of each shape for which `is_open` is true.

    Only `reserved` slots are reserved, so one of `reserved` + 1 slots of a shape is not reserved. For a demand for all GPUs of a
    slot, each slot must be tried, because slots of one shape can differ in their total number of GPUs. For a demand that shares a
    GPU, and for one that needs GPUs of a model, each slot must be tried, too, because slots of one shape can differ in their GPUs.
    """
    tries_all = demand.gpus == ALL_GPUS or demand.gpu_memory_mib or names_gpu_model(demand.rules)
    for ids in shapes:
        for slot_id in ids if tries_all else ids[: reserved + 1]:
            if is_open(slot_id):
                yield slot_id
                break


def _draw(parts: Sequence[SpreadPart], demand: Demand, seed: str, is_open: IsOpen) -> str | None:
    ends = list(accumulate(map(len, parts)))
    for count in range(DRAWS_MAX):
        number = _number(seed, count) % ends[-1]
        at = bisect_right(ends, number)
        slot_id = parts[at].sample(number - (ends[at - 1] if at else 0))
        if is_open(slot_id):
            return slot_id
    fitting = [slot_id for ids in _shapes(parts, demand) for slot_id in ids if is_open(slot_id)]
    return fitting[_number(seed, DRAWS_MAX) % len(fitting)] if fitting else None


def _number(seed: str, count: int) -> int:
    """Derive a number from the seed, which is a random id.

    Modules in decide/ do not use random numbers, so that their results can be repeated.
    """
    return crc32(f"{count}/{seed}".encode())


def _memory_first(slot: Slot) -> tuple[int, int]:
    return slot.memory_mib, slot.cpu_units


def _cpu_first(slot: Slot) -> tuple[int, int]:
    return slot.cpu_units, slot.memory_mib


def _among_equals(pool: Pool, demand: Demand, ids: list[str], steps: Sequence[tuple[str, str]], seed: str) -> str:
    """Return the slot that the steps after a binpack step prefer, among slots that the binpack step does not distinguish."""
    assert demand.rules is not None
    for kind, field in steps:
        if kind == RANDOM:
            return ids[_number(seed, 0) % len(ids)]
        weigh = _weights(pool, demand.rules, kind, field)
        least = min(map(weigh, ids))
        ids = [slot_id for slot_id in ids if weigh(slot_id) == least]
    return min(ids, key=lambda slot_id: (len(pool.slot(slot_id).gpus), *_memory_first(pool.slot(slot_id)), slot_id))


def _weights(pool: Pool, rules: PlacementRules, kind: str, field: str) -> Callable[[str], int]:
    if kind == BINPACK:
        return lambda slot_id: pool.slot(slot_id).cpu_units if field == "cpu" else pool.slot(slot_id).memory_mib
    value_of = _spread_over(rules, field)
    if value_of is None:
        return lambda slot_id: pool.slot(slot_id).tasks.get(rules.group, 0)
    sums: dict[str, int] = {}
    for slot in pool.slots():
        sums[value_of(slot)] = sums.get(value_of(slot), 0) + slot.tasks.get(rules.group, 0)
    return lambda slot_id: sums[value_of(pool.slot(slot_id))]
