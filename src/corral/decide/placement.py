"""Where a task goes, who waits, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, islice

from corral.decide.gpu_choice import choose_gpus
from corral.decide.placement_rules import first_choice, select, select_by_attributes
from corral.model.placement import Claim, Group, Placement, Pool, Rank, Reservation, Room, Slot, Unplaceable
from corral.model.task import ALL_GPUS, Demand, PlacementRules

REASONS_MAX = 3  # why GPUs are kept away: so many are named


def place(pool: Pool, demand: Demand, kept: Reservation | None = None, seed: str = "") -> Placement | Unplaceable:
    """Best fit: the slot left with the fewest free GPUs, then the least memory, so that large gaps stay large.

    Rules choose among fewer slots, and may prefer others. `seed` is what the strategy `random` draws from.
    """
    found = _find(pool, demand, kept, seed)
    return found if found is not None else Unplaceable(_lacking(pool, demand, kept), why_not(pool, demand, kept))


def serve(pool: Pool) -> Iterator[tuple[Claim, Placement]]:
    """Grant claims, oldest first. Whoever takes a grant applies it to the pool before asking for the next.

    The oldest claim that does not fit has a slot kept for it; younger ones may use the rest, so nobody starves and
    little stands idle. Claims with equal asks stand in one line: when its head does not fit, none of it does.
    """
    while True:
        kept: Reservation | None = None
        unfit: Claim | None = None  # for whom a slot is kept, once there is somebody to keep it from
        granted = overtaken = False
        heads = list(pool.heads())
        heapify(heads)
        while heads:
            claim = heappop(heads)
            if unfit is not None:
                kept, unfit = _reserve(pool, unfit), None
            found = _find(pool, claim.demand, kept, claim.id)
            if found is not None:
                granted = True
                overtaken = kept is not None
                yield claim, found
                following = pool.head(claim.demand)
                if following is not None:
                    heappush(heads, following)
            elif kept is None:
                unfit = claim
        # What younger ones took may have moved the reservation, and what it kept before is free. A task that has come
        # may also be the company that an older one waits for.
        moved = overtaken and kept is not None and _reserve(pool, kept.claim) != kept
        if not granted or not (moved or pool.lines_depending_on_tasks):
            return


def room_for_newcomer(pool: Pool, demand: Demand, seed: str = "") -> Placement | None:
    """Behind those who wait: a newcomer takes neither what a claim could have now nor what is kept for one."""
    if not pool.has_line():
        return _find(pool, demand, None, seed)
    if _behind_others(pool, demand) is not None:
        return None
    return _find(pool, demand, standing_reservation(pool), seed)


def place_newcomer(pool: Pool, demand: Demand, seed: str = "") -> Placement | Unplaceable:
    """The same for one who does not wait, and is told why."""
    found = room_for_newcomer(pool, demand, seed)
    if found is not None:
        return found
    return _behind_others(pool, demand) or place(pool, demand, standing_reservation(pool), seed)


def place_on(pool: Pool, demand: Demand, slot_id: str) -> Placement | Unplaceable:
    """Place on this very slot, behind those who wait."""
    slot, kept = pool.slot(slot_id), standing_reservation(pool)
    if not slot.takes_tasks:
        return Unplaceable("DRAINING", "the host is draining") if slot.connected else Unplaceable("AGENT", "the host is silent")
    free = slot.free()
    for lacks, word in (
        (not _has_gpus(slot, demand), "GPU"),
        (free.memory_mib < demand.memory_mib, "MEMORY"),
        (free.cpu_units < demand.cpu_units, "CPU"),
    ):
        if lacks:
            return Unplaceable(word, f"needs {_words(demand)}; the host has {_words(free)} free")
    if kept is not None and not _is_open(pool, slot_id, demand, kept):
        text = f"what is free on the host is kept for {kept.claim.name}, which waits longer"
        return Unplaceable("GPU" if demand.gpus else "MEMORY", text)
    return _behind_others(pool, demand) or Placement(slot_id, choose_gpus(slot, demand.gpus))


def _behind_others(pool: Pool, demand: Demand) -> Unplaceable | None:
    due = next(serve(pool), None)
    if due is None:
        return None
    return Unplaceable("GPU" if demand.gpus else "MEMORY", f"what is free goes to {due[0].name}, which waits longer")


def standing_reservation(pool: Pool) -> Reservation | None:
    """What is kept for the claims that wait now, when none of them fits."""
    return _kept_for(pool, pool.heads())


def spare_gpus(pool: Pool, placement: Placement, claim: Claim | None = None) -> tuple[str, ...]:
    """What else is free on the chosen slot and kept for nobody older: whoever asks in the old way may have it.

    Without a claim it is a newcomer, and everyone who waits is older.
    """
    kept = standing_reservation(pool) if claim is None else _kept_for(pool, _older(pool, claim))
    if kept is not None and kept.slot_id == placement.slot_id:
        return ()
    return tuple(gpu_id for gpu_id in pool.slot(placement.slot_id).gpus if gpu_id not in placement.gpu_ids)


def why_not(pool: Pool, demand: Demand, kept: Reservation | None = None) -> str:
    """A sentence for a person: what is needed, what is free, and what is kept away."""
    return _why_not(pool, demand, kept) + (_kept_away(pool) if demand.gpus else "")


def _why_not(pool: Pool, demand: Demand, kept: Reservation | None) -> str:
    if not any(_covers(total, demand) for total in pool.totals()):
        largest = max(pool.totals(), key=lambda total: (total.gpus, total.memory_mib, total.cpu_units), default=None)
        if largest is None:
            return f"needs {_words(demand)}, and the cluster has no container instances yet"
        return f"needs {_words(demand)}, and the largest host has only {_words(largest)} in all"
    if not pool.connected:
        silent = _lacking(pool, demand, kept) == "AGENT"
        return f"needs {_words(demand)}, and {'no host is connected' if silent else 'every host is draining'}"
    free_gpus = pool.free_gpus
    if demand.rules is not None and (demand.rules.member_of or demand.rules.distinct):
        free_gpus = sum(group.gpus * len(ids) for group in _room(pool, demand).groups(1) for ids in group.fitting(0, 0))
        text = _what_rules_leave(pool, demand, demand.rules, free_gpus)
    else:
        text = f"needs {_words(demand)}; {free_gpus} of {pool.total_gpus} GPUs free on {_hosts(pool.connected)}"
    if kept is not None and _find(pool, demand, None) is not None:
        return f"{text}, kept for {kept.claim.name}, which waits longer"
    lacking = _lacking(pool, demand, kept)
    if lacking == "GPU" and demand.gpus == ALL_GPUS:
        text += ", but no host has all of its own free"
    elif lacking == "GPU" and free_gpus >= demand.gpus:
        text += ", but not all on one host"
    elif lacking == "MEMORY":
        text += f", but no such host has {demand.memory_mib} MiB of memory free"
    elif lacking == "CPU":
        text += f", but no such host has {demand.cpu_units} CPU units free"
    return text


def why_waiting(pool: Pool, claim: Claim) -> str:
    """Why this claim still waits, as of now: derived when asked for, so it is never stale."""
    older = _older(pool, claim)
    text = why_not(pool, claim.demand, _kept_for(pool, older))
    return f"{text}; behind {older[0].name}" if older else f"{text}; first in line"


def _older(pool: Pool, claim: Claim) -> list[Claim]:
    """The heads of lines that have waited longer than this claim."""
    return [head for head in pool.heads() if head < claim]


def _kept_for(pool: Pool, waiting: Iterable[Claim]) -> Reservation | None:
    """What is kept for these, none of whom fits; oldest first."""
    return next((kept for head in waiting if (kept := _reserve(pool, head)) is not None), None)


def _what_rules_leave(pool: Pool, demand: Demand, rules: PlacementRules, free_gpus: int) -> str:
    """How many hosts the constraints leave, and what is free on them."""
    conditions = " and ".join(f"memberOf ({expression})" for expression in rules.member_of)
    matching, left = select_by_attributes(pool, rules), select(pool, rules)
    if not matching.allowed:
        return f"needs {_words(demand)}; {_hosts(pool.connected)}, none matches {conditions}"
    text = f"needs {_words(demand)}; {_hosts(matching.allowed)}"
    if conditions:
        text = f"needs {_words(demand)}; {matching.allowed} of {_hosts(pool.connected)} match {conditions}"
    if rules.distinct and left.allowed < matching.allowed:
        group = rules.group.removeprefix(f"{rules.scope}/")
        there = matching.allowed - left.allowed
        text += f", {there if left.allowed else 'each'} with a task of {group} already (distinctInstance)"
        if not left.allowed:
            return text
    return f"{text}; {free_gpus} GPUs free on {'it' if left.allowed == 1 else 'them'}"


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"


def _find(pool: Pool, demand: Demand, kept: Reservation | None, seed: str = "") -> Placement | None:
    if demand.rules is None:
        slot_id = _best_fit(pool, demand, kept)
    else:
        slot_id = first_choice(pool, demand, seed, lambda slot_id: _is_open(pool, slot_id, demand, kept))
    return None if slot_id is None else Placement(slot_id, choose_gpus(pool.slot(slot_id), demand.gpus))


def _best_fit(pool: Pool, demand: Demand, kept: Reservation | None) -> str | None:
    for group in pool.groups(demand.gpus):
        for slot_ids in group.fitting(demand.memory_mib, demand.cpu_units):
            if kept is None:
                return slot_ids[0]
            for slot_id in slot_ids[:2]:  # at most one slot is kept, so the second is open
                if slot_id != kept.slot_id or _leaves_enough(pool.slot(slot_id), demand, kept.claim.demand):
                    return slot_id
    return None


def _is_open(pool: Pool, slot_id: str, demand: Demand, kept: Reservation | None) -> bool:
    slot = pool.slot(slot_id)
    fits = _has_gpus(slot, demand) and slot.memory_mib >= demand.memory_mib and slot.cpu_units >= demand.cpu_units
    return fits and (kept is None or slot_id != kept.slot_id or _leaves_enough(slot, demand, kept.claim.demand))


def _has_gpus(slot: Slot, demand: Demand) -> bool:
    if demand.gpus == ALL_GPUS:
        return bool(slot.gpus) and len(slot.gpus) == slot.total.gpus
    return len(slot.gpus) >= demand.gpus


def _room(pool: Pool, demand: Demand) -> Room:
    """The slots that count for this ask."""
    return pool if demand.rules is None else select(pool, demand.rules)


def _groups_to_keep(pool: Pool, demand: Demand) -> Iterable[Group]:
    """Among which a slot is looked for that will fit soonest."""
    if demand.gpus == ALL_GPUS and demand.rules is None:
        return pool.groups_by_held()
    return _room(pool, demand).groups()


def _is_unsorted(demand: Demand) -> bool:
    """Of all GPUs on a host that rules allow no index tells who is near: each slot is looked at."""
    return demand.gpus == ALL_GPUS and demand.rules is not None


def _leaves_enough(slot: Slot, demand: Demand, older: Demand) -> bool:
    """Whether a task without GPUs fits beside what is kept for an older claim. What it does not ask for it does not take."""
    return (
        demand.gpus == 0
        and (not demand.cpu_units or slot.cpu_units - demand.cpu_units >= older.cpu_units)
        and (not demand.memory_mib or slot.memory_mib - demand.memory_mib >= older.memory_mib)
    )


def _reserve(pool: Pool, claim: Claim) -> Reservation | None:
    """The slot that will fit the claim soonest: the one that lacks least. None if no connected slot ever will."""
    demand = claim.demand
    best: tuple[tuple[int, int, int], str] | None = None
    for group in _groups_to_keep(pool, demand):
        fitting = chain.from_iterable(group.fitting(demand.memory_mib, demand.cpu_units))  # these lack nothing but GPUs
        ables = (slot_id for slot_id in chain(fitting, group.roomiest()) if _covers(pool.slot(slot_id).total, demand))
        for able in ables if _is_unsorted(demand) else islice(ables, 1):
            slot = pool.slot(able)
            near_gpus = min(len(slot.gpus), demand.gpus) if demand.gpus != ALL_GPUS else len(slot.gpus) - slot.total.gpus
            near = (near_gpus, min(slot.memory_mib, demand.memory_mib), min(slot.cpu_units, demand.cpu_units))
            if best is None or near > best[0]:
                best = near, able
    return Reservation(best[1], claim) if best else None


def _lacking(pool: Pool, demand: Demand, kept: Reservation | None) -> str:
    """The resource that stands in the way, in the order in which ECS names them."""
    if not pool.connected:
        return "DRAINING" if any(slot.connected for slot in pool.slots()) else "AGENT"
    if demand.rules is not None and not select(pool, demand.rules).allowed:
        return "distinctInstance" if select_by_attributes(pool, demand.rules).allowed else "memberOf"
    room = _room(pool, demand)
    if _is_unsorted(demand) and not any(_has_gpus(pool.slot(at), demand) for group in room.groups() for at in group.roomiest()):
        return "GPU"
    memory_mib = [left for group in room.groups(demand.gpus) if (left := _most_memory(pool, group, demand, kept)) is not None]
    if demand.gpus and not memory_mib:
        return "GPU"
    return "MEMORY" if max(memory_mib, default=0) < demand.memory_mib else "CPU"


def _most_memory(pool: Pool, group: Group, demand: Demand, kept: Reservation | None) -> int | None:
    """The most that a newcomer may have on one of these slots; of a kept one, what the older claim leaves."""
    left: int | None = None
    for slot_id in group.roomiest():
        memory_mib = pool.slot(slot_id).memory_mib
        if kept is None or slot_id != kept.slot_id:
            return max(left or 0, memory_mib)
        if not demand.gpus:
            left = max(0, memory_mib - kept.claim.demand.memory_mib)
    return left


def _covers(total: Demand, demand: Demand) -> bool:
    return total.gpus >= demand.least_gpus and total.memory_mib >= demand.memory_mib and total.cpu_units >= demand.cpu_units


def _kept_away(pool: Pool) -> str:
    reasons = pool.withheld()
    if not reasons:
        return ""
    named = list(dict.fromkeys(reasons))
    more = " and others" if len(named) > REASONS_MAX else ""
    many = f"{len(reasons)} GPUs are" if len(reasons) > 1 else "1 GPU is"
    return f"; {many} kept away: {', '.join(named[:REASONS_MAX])}{more}"


def _words(demand: Demand) -> str:
    parts = [f"{demand.gpus} GPU{'s' * (demand.gpus != 1)}" if demand.gpus != ALL_GPUS else "all GPUs of a host"] if demand.gpus else []
    parts += [f"{demand.cpu_units} CPU units"] if demand.cpu_units else []
    parts += [f"{demand.memory_mib} MiB"] if demand.memory_mib else []
    return ", ".join(parts) or "a place"


def claim_rank(since_s: float, priority: int = 0) -> Rank:
    """The key that is stored with a claim and sorts a queue: higher priority first, then oldest first.

    A queue compares keys and knows nothing else of them, so a new rule of order changes this function alone.
    """
    return (-priority, since_s)
