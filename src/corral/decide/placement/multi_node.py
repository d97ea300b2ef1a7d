"""Placement of multi-node jobs: choose slots for all nodes at once, or for none.

The demand of a multi-node job has a list of kinds of nodes: what each node of a kind needs, and the number of such nodes. If one
host has room for all nodes, they run there: any number of nodes on each of its slots. Otherwise the job spans hosts. Then each node
has the address of its host, so a host gets at most one node, and only hosts with an address get one. If not all nodes fit now, the
job reserves as many slots as it needs, so that smaller claims cannot delay it for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import chain

from corral.decide.placement.gpu_choice import choose_gpus, split_gpus
from corral.decide.placement.slot_fit import allowed_slots, amounts, best_fit, covers
from corral.model.placement import Claim, Placement, Pool, Reservation
from corral.model.task import Demand

UNLIMITED = 1_000_000  # the number of nodes that fit on a slot if a node needs no GPU, no CPU and no memory
Slots = list[list[str]]  # for each kind of nodes of a job, the slot of each node; fewer slots than nodes if not all nodes fit


def place_together(pool: Pool, demand: Demand, reservation: Reservation | None) -> Placement | None:
    """Choose a slot for each node, or return None if the free slots do not have room for all nodes.

    One slot gets all nodes, or else the slots of one host, or else one slot of each of several hosts.
    """
    if sum(node.gpus * count for node, count in demand.nodes) > pool.free_gpus:
        return None
    slots = (
        _one_slot(pool, demand, reservation) or _one_host(pool, demand, reservation) or _several_hosts(pool, demand, reservation)
    )
    return None if slots is None else _with_gpus(pool, demand, list(chain.from_iterable(slots)))


def room_for_nodes(pool: Pool, demand: Demand) -> int:
    """Return how many nodes of the job the free slots have room for now: on one host, or on several."""

    def free(slot_id: str) -> Demand:
        return pool.slot(slot_id).free()

    slots = [slot.id for slot in pool.slots() if slot.takes_tasks]
    crowded = [[slot_id for slot_id in host if pool.slot(slot_id).takes_tasks] for host in pool.crowded_hosts()]
    on_one = (_count(_fill(demand, host, free)) for host in (*([slot_id] for slot_id in slots), *crowded))
    return max(_count(_spread(pool, demand, _tightest, free)), *on_one)


def reserve_together(pool: Pool, claim: Claim) -> Reservation | None:
    """Reserve the slots that lack least for the nodes of a claim: on one host if it is large enough, otherwise on several.

    Return None if the slots that accept tasks do not have room for all nodes, even after all tasks on them have ended.
    """

    def whole(slot_id: str) -> Demand:
        return pool.slot(slot_id).whole

    demand = claim.demand
    together = _together(demand)
    if together is not None and (slot_id := next(iter(_emptiest(pool, together)), None)) is not None:
        return Reservation(claim, {slot_id: together})
    for host in pool.crowded_hosts():
        slots = _fill(demand, [slot_id for slot_id in host if pool.slot(slot_id).takes_tasks], whole)
        if _is_complete(demand, slots):
            return Reservation(claim, _wanted(demand, slots))
    if any(sum(slots for total, slots in pool.sizes() if _fit(total, node)) < count for node, count in demand.nodes):
        return None
    slots = _spread(pool, demand, _emptiest, whole)
    return Reservation(claim, _wanted(demand, slots)) if _is_complete(demand, slots) else None


def why_not_together(pool: Pool, demand: Demand) -> str:
    """Explain why the nodes of a job cannot be placed now. Users read this text."""
    count = sum(each for _, each in demand.nodes)
    kinds = " and ".join(f"{each} with {amounts(node)}" for node, each in demand.nodes)
    text = f"needs {count} nodes at the same time ({kinds})"
    if not pool.connected:
        return f"{text}, and no host is connected"
    hosts = "1 host" if pool.connected == 1 else f"{pool.connected} hosts"
    if not could_hold_together(pool, demand):
        several = "" if pool.connected == 1 else ", of which each takes one node of a job that does not fit on one host"
        nameless = sum(not slot.address for slot in pool.slots() if slot.takes_tasks) if several else 0
        unknown = f"; {nameless} of them have no address for other hosts (`corral join --address`)" if nameless else ""
        return f"{text}, and {hosts} would be too few even without other tasks{several}{unknown}"
    return f"{text}; {pool.free_gpus} of {pool.total_gpus} GPUs free on {hosts}, room for {room_for_nodes(pool, demand)} nodes"


def could_hold_together(pool: Pool, demand: Demand) -> bool:
    """Whether all nodes would fit on the slots of the pool, also on disconnected ones, if no task ran there."""

    def whole(slot_id: str) -> Demand:
        return pool.slot(slot_id).whole

    together = _together(demand)
    if together is not None and any(covers(size, together) for size in pool.totals()):
        return True
    if any(_is_complete(demand, _fill(demand, host, whole)) for host in pool.crowded_hosts()):
        return True
    slots = [slot.id for slot in pool.slots()]
    return _is_complete(demand, _spread(pool, demand, lambda pool, node: slots, whole))


def _together(demand: Demand) -> Demand | None:
    """Return what all nodes need on one slot. Return None if nodes of different kinds have different placement rules."""
    rules = {node.rules for node, _ in demand.nodes}
    if len(rules) != 1:
        return None
    total = Demand()
    for node, count in demand.nodes:
        total = _plus(total, _times(node, count))
    return Demand(total.gpus, total.cpu_units, total.memory_mib, rules.pop())


def _one_slot(pool: Pool, demand: Demand, reservation: Reservation | None) -> Slots | None:
    """Return the best fit for all nodes on one slot, or None."""
    together = _together(demand)
    if together is None:
        return None
    if together.rules is None:
        slot_id = best_fit(pool, together, reservation)
    else:
        slot_id = next(
            (each for each in _tightest(pool, together) if _fit(_open(pool, each, together, reservation), together)), None
        )
    return None if slot_id is None else [[slot_id] * count for _, count in demand.nodes]


def _one_host(pool: Pool, demand: Demand, reservation: Reservation | None) -> Slots | None:
    """Return slots of one host that has several slots, for all nodes. Of such hosts, choose the one with the fewest free GPUs.

    Return None if the nodes have placement rules, which Batch never sets.
    """

    def free(slot_id: str) -> Demand:
        return _open(pool, slot_id, largest, reservation)

    largest = Demand(gpus=max(node.gpus for node, _ in demand.nodes))
    if any(node.rules is not None for node, _ in demand.nodes):
        return None
    found = list[tuple[int, Slots]]()
    for host in pool.crowded_hosts():
        slots = _fill(demand, [slot_id for slot_id in host if pool.slot(slot_id).takes_tasks], free)
        if _is_complete(demand, slots):
            found.append((sum(len(pool.slot(slot_id).gpus) for slot_id in host), slots))
    return min(found)[1] if found else None


def _several_hosts(pool: Pool, demand: Demand, reservation: Reservation | None) -> Slots | None:
    """Return slots of different hosts for all nodes, or None.

    The slots that fit best come first. If kinds of nodes need resources in different proportions, this can fail where the largest
    slots, which a reservation chooses, succeed.
    """
    for order in (_tightest, _roomiest):
        slots = _spread(pool, demand, order, lambda slot_id: pool.slot(slot_id).free(), reservation)
        if _is_complete(demand, slots):
            return slots
    return None


def _fill(demand: Demand, slot_ids: Iterable[str], size_of: Callable[[str], Demand]) -> Slots:
    """Place nodes on slots of one host. The nodes use few slots, and the best fit of those that have room for the rest."""
    left = {slot_id: size_of(slot_id) for slot_id in slot_ids}
    slots: Slots = [[] for _ in demand.nodes]
    if not left:
        return slots
    for at in _largest_first(demand):
        node, count = demand.nodes[at]
        while missing := count - len(slots[at]):
            number, _, _, slot_id = max(
                (min(_fit(free, node), missing), -free.gpus, -free.memory_mib, slot_id) for slot_id, free in left.items()
            )
            if not number:
                break
            left[slot_id] = _minus(left[slot_id], _times(node, number))
            slots[at] += [slot_id] * number
    return slots


def _spread(
    pool: Pool, demand: Demand, order: Callable[[Pool, Demand], Iterable[str]], size_of: Callable[[str], Demand],
    reservation: Reservation | None = None,
) -> Slots:  # fmt: skip
    """Place nodes on slots of different hosts that have an address."""
    hosts = set[str]()
    slots: Slots = [[] for _ in demand.nodes]
    for at in _largest_first(demand):
        node, count = demand.nodes[at]
        for slot_id in order(pool, node):
            slot = pool.slot(slot_id)
            free = size_of(slot_id) if reservation is None else _open(pool, slot_id, node, reservation)
            if slot.address and slot.host not in hosts and _fit(free, node):
                hosts.add(slot.host)
                slots[at].append(slot_id)
                if len(slots[at]) == count:
                    break
    return slots


def _is_complete(demand: Demand, slots: Slots) -> bool:
    return all(len(chosen) == count for chosen, (_, count) in zip(slots, demand.nodes, strict=True))


def _count(slots: Slots) -> int:
    return sum(map(len, slots))


def _wanted(demand: Demand, slots: Slots) -> dict[str, Demand]:
    """Return what the nodes use on each slot."""
    wanted: dict[str, Demand] = {}
    for (node, _), chosen in zip(demand.nodes, slots, strict=True):
        for slot_id in chosen:
            wanted[slot_id] = _plus(wanted.get(slot_id), node)
    return wanted


def _largest_first(demand: Demand) -> list[int]:
    """Return the indexes of the kinds of nodes, largest kind first, because the fewest slots have room for it."""

    def size(at: int) -> tuple[int, int, int]:
        node = demand.nodes[at][0]
        return node.gpus, node.memory_mib, node.cpu_units

    return sorted(range(len(demand.nodes)), key=size, reverse=True)


def _tightest(pool: Pool, node: Demand) -> Iterator[str]:
    """Yield the slots on which a node fits now, fewest free GPUs first, then least free memory."""
    for group in allowed_slots(pool, node).groups(node.gpus):
        for slot_ids in group.fitting(node.memory_mib, node.cpu_units):
            yield from slot_ids


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


def _open(pool: Pool, slot_id: str, node: Demand, reservation: Reservation | None) -> Demand:
    """Return what is free on a slot for nodes. A reserved slot has room only for nodes without GPUs."""
    free = pool.slot(slot_id).free()
    older = None if reservation is None else reservation.wanted.get(slot_id)
    if older is None:
        return free
    return Demand() if node.gpus else _minus(free, older)


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
