"""Placement of multi-node jobs: choose slots for all nodes at once, or for none.

The demand of a multi-node job has a list of kinds of nodes: what each node of a kind needs, and the number of such nodes. Several
nodes can run on the same slot. If not all nodes fit now, the job reserves as many slots as it needs, so that smaller claims cannot
delay it for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain

from corral.decide.placement.gpu_choice import choose_gpus, split_gpus
from corral.decide.placement.slot_fit import allowed_slots, amounts, best_fit, covers
from corral.model.placement import Claim, Placement, Pool, Reservation
from corral.model.task import Demand

UNLIMITED = 1_000_000  # the number of nodes that fit on a slot if a node needs no GPU, no CPU and no memory


def place_together(pool: Pool, demand: Demand, reservation: Reservation | None) -> Placement | None:
    """Choose a slot for each node, or return None if the free slots do not have room for all nodes.

    The nodes use few slots. If one slot has room for all remaining nodes of a kind, the best fit among such slots gets them.
    Otherwise the slot with the most free GPUs, then with the most free memory, gets as many nodes as fit.
    """
    if sum(node.gpus * count for node, count in demand.nodes) > pool.free_gpus:
        return None
    used: dict[str, Demand] = {}  # what the nodes that already have a slot use there
    slots_of: list[list[str]] = [[] for _ in demand.nodes]
    for at in _largest_first(demand):
        node, count = demand.nodes[at]
        slots_of[at] = _slots_for(pool, node, count, reservation, used)
        if len(slots_of[at]) < count:
            return None
    return _with_gpus(pool, demand, [slot_id for slots in slots_of for slot_id in slots])


def room_for_nodes(pool: Pool, demand: Demand) -> int:
    """Return how many nodes of the job the free slots have room for now."""
    used: dict[str, Demand] = {}
    return sum(len(_slots_for(pool, *demand.nodes[at], None, used)) for at in _largest_first(demand))


def reserve_together(pool: Pool, claim: Claim) -> Reservation | None:
    """Reserve the slots that lack least for the nodes of a claim.

    Return None if the slots that accept tasks do not have room for all nodes, even after all tasks on them have ended.
    """
    wanted: dict[str, Demand] = {}
    for at in _largest_first(claim.demand):
        node, left = claim.demand.nodes[at]
        if sum(_fit(total, node) * slots for total, slots in pool.sizes()) < left:
            return None
        for slot_id in _emptiest(pool, node):
            before = wanted.get(slot_id)
            fit = min(left, _fit(_minus(pool.slot(slot_id).whole, before), node))
            if fit:
                wanted[slot_id] = _plus(before, _times(node, fit))
                left -= fit
            if not left:
                break
        if left:
            return None
    return Reservation(claim, wanted)


def why_not_together(pool: Pool, demand: Demand) -> str:
    """Explain why the nodes of a job cannot be placed now. Users read this text."""
    count = sum(each for _, each in demand.nodes)
    kinds = " and ".join(f"{each} with {amounts(node)}" for node, each in demand.nodes)
    text = f"needs {count} nodes at the same time ({kinds})"
    if not pool.connected:
        return f"{text}, and no host is connected"
    hosts = "1 host" if pool.connected == 1 else f"{pool.connected} hosts"
    if any(sum(_fit(total, node) * slots for total, slots in pool.sizes()) < each for node, each in demand.nodes):
        return f"{text}, and {hosts} would be too few even without other tasks"
    return f"{text}; {pool.free_gpus} of {pool.total_gpus} GPUs free on {hosts}, room for {room_for_nodes(pool, demand)} nodes"


def could_hold_together(pool: Pool, demand: Demand) -> bool:
    """Whether all nodes would fit on the slots of the pool if no task ran there.

    Each kind of node is checked alone. So the result can be True although nodes of different kinds do not fit together.
    """
    return all(sum(_fit(total, node) * slots for total, slots in pool.sizes()) >= count for node, count in demand.nodes)


def _largest_first(demand: Demand) -> list[int]:
    """Return the indexes of the kinds of nodes, largest kind first, because the fewest slots have room for it."""

    def size(at: int) -> tuple[int, int, int]:
        node = demand.nodes[at][0]
        return node.gpus, node.memory_mib, node.cpu_units

    return sorted(range(len(demand.nodes)), key=size, reverse=True)


def _slots_for(pool: Pool, node: Demand, count: int, reservation: Reservation | None, used: dict[str, Demand]) -> list[str]:
    """Return a slot for each of `count` equal nodes, or for fewer nodes if no more fit. Add what they use to `used`."""
    chosen: list[str] = []
    for slot_id in chain((_slot_for_all(pool, node, count, reservation, used),), _roomiest(pool, node)):
        if slot_id is None:
            continue
        left = count - len(chosen)
        fit = _free_for(pool, slot_id, node, reservation, used)
        if fit > left and (better := _slot_for_all(pool, node, left, reservation, used)) is not None:
            slot_id, fit = better, left
        if fit:
            fit = min(fit, left)
            chosen += [slot_id] * fit
            used[slot_id] = _plus(used.get(slot_id), _times(node, fit))
        if len(chosen) == count:
            break
    return chosen


def _slot_for_all(pool: Pool, node: Demand, count: int, reservation: Reservation | None, used: dict[str, Demand]) -> str | None:
    """Return the best fit for `count` nodes on one slot, or None. Return None also if other nodes of the job use the best fit.

    `best_fit` ignores placement rules, so return None if the nodes have such rules.
    """
    if node.rules is not None:
        return None
    slot_id = best_fit(pool, _times(node, count), reservation)
    return None if slot_id in used else slot_id


def _roomiest(pool: Pool, node: Demand) -> Iterator[str]:
    """Yield the slots on which a node could fit, most free GPUs first, then most free memory."""
    for group in reversed(list(allowed_slots(pool, node).groups(node.gpus))):
        for slot_id in group.roomiest():
            if pool.slot(slot_id).memory_mib < node.memory_mib:
                break
            yield slot_id


def _emptiest(pool: Pool, node: Demand) -> Iterable[str]:
    """Yield the slots that are large enough for a node, starting with those that lack least."""
    groups = list(allowed_slots(pool, node).groups())
    if node.gpus:
        slots: Iterable[str] = chain.from_iterable(group.roomiest() for group in reversed(groups))
    else:
        slots = merge(*(group.roomiest() for group in groups), key=lambda slot_id: pool.slot(slot_id).memory_mib, reverse=True)
    return (slot_id for slot_id in slots if covers(pool.slot(slot_id).whole, node))


def _free_for(pool: Pool, slot_id: str, node: Demand, reservation: Reservation | None, used: dict[str, Demand]) -> int:
    """Return how many nodes fit on a slot now. A reserved slot has room only for nodes without GPUs."""
    free = _minus(pool.slot(slot_id).free(), used.get(slot_id))
    older = None if reservation is None else reservation.wanted.get(slot_id)
    if older is not None:
        if node.gpus:
            return 0
        free = _minus(free, older)
    return _fit(free, node)


def _fit(free: Demand, node: Demand) -> int:
    """Return how many nodes fit into free resources."""
    pairs = ((free.gpus, node.gpus), (free.memory_mib, node.memory_mib), (free.cpu_units, node.cpu_units))
    return max(0, min((has // needs for has, needs in pairs if needs), default=UNLIMITED))


def _times(node: Demand, count: int) -> Demand:
    return Demand(node.gpus * count, node.cpu_units * count, node.memory_mib * count)


def _plus(one: Demand | None, other: Demand) -> Demand:
    if one is None:
        return other
    return Demand(one.gpus + other.gpus, one.cpu_units + other.cpu_units, one.memory_mib + other.memory_mib)


def _minus(one: Demand, other: Demand | None) -> Demand:
    if other is None:
        return one
    return Demand(one.gpus - other.gpus, one.cpu_units - other.cpu_units, one.memory_mib - other.memory_mib)


def _with_gpus(pool: Pool, demand: Demand, slots: list[str]) -> Placement:
    """Choose the GPUs of each node. The GPUs of one node are as close to each other as possible."""
    needs = [node.gpus for node, count in demand.nodes for _ in range(count)]
    nodes_on: dict[str, list[int]] = {}
    for number, slot_id in enumerate(slots):
        nodes_on.setdefault(slot_id, []).append(number)
    gpus_of: dict[int, tuple[str, ...]] = {}
    for slot_id, numbers in nodes_on.items():
        slot, counts = pool.slot(slot_id), [needs[number] for number in numbers]
        chosen = choose_gpus(slot, sum(counts))
        shares = [chosen] if len(counts) == 1 else split_gpus(slot, chosen, counts) if chosen else [()] * len(counts)
        gpus_of.update(zip(numbers, shares))
    nodes = tuple(Placement(slot_id, tuple(gpus_of[number])) for number, slot_id in enumerate(slots))
    return Placement(nodes[0].slot_id, nodes[0].gpu_ids, nodes)
