"""Where a task goes, who waits, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

from corral.decide.gpus import take
from corral.model.placement import Claim, Group, Placement, Pool, Reservation, Slot, Unplaceable
from corral.model.task import ALL_GPUS, Ask

REASONS_MAX = 3  # why GPUs are kept away: so many are named


def place(pool: Pool, ask: Ask, kept: Reservation | None = None) -> Placement | Unplaceable:
    """Best fit: the slot left with the fewest free GPUs, then the least memory, so that large gaps stay large."""
    found = _find(pool, ask, kept)
    return found if found is not None else Unplaceable(_lacking(pool, ask, kept), why_not(pool, ask, kept))


def serve(pool: Pool) -> Iterator[tuple[Claim, Placement]]:
    """Grant claims, oldest first. Whoever takes a grant applies it to the pool before asking for the next.

    The oldest claim that does not fit has a slot kept for it; younger ones may use the rest, so nobody starves and
    little stands idle. Claims with equal asks stand in one line: when its head does not fit, none of it does.
    """
    while True:
        kept: Reservation | None = None
        granted = False
        heads = list(pool.heads())
        heapify(heads)
        while heads:
            claim = heappop(heads)
            found = _find(pool, claim.ask, kept)
            if found is not None:
                granted = True
                yield claim, found
                following = pool.head(claim.ask)
                if following is not None:
                    heappush(heads, following)
            elif kept is None:
                kept = _reserve(pool, claim)
        if not granted or kept is None or _reserve(pool, kept.claim) == kept:
            return  # else what younger ones took has moved the reservation, and what it kept before is free


def place_newcomer(pool: Pool, ask: Ask) -> Placement | Unplaceable:
    """Place behind those who wait: a newcomer takes neither what a claim could have now nor what is kept for one."""
    due = next(serve(pool), None)
    if due is not None:
        return Unplaceable("GPU" if ask.gpus else "MEMORY", f"what is free goes to task {due[0].task_id}, which waits longer")
    return place(pool, ask, standing_reservation(pool))


def standing_reservation(pool: Pool) -> Reservation | None:
    """What is kept for the claims that wait now, when none of them fits."""
    return next((kept for claim in pool.heads() if (kept := _reserve(pool, claim)) is not None), None)


def spare_gpus(pool: Pool, placement: Placement, claim: Claim | None = None) -> tuple[str, ...]:
    """What else is free on the chosen slot and kept for nobody older: whoever asks in the old way may have it.

    Without a claim it is a newcomer, and everyone who waits is older.
    """
    kept = standing_reservation(pool) if claim is None else _kept_before(pool, claim)
    if kept is not None and kept.slot_id == placement.slot_id:
        return ()
    return tuple(gpu_id for gpu_id in pool.slot(placement.slot_id).gpus if gpu_id not in placement.gpu_ids)


def why_not(pool: Pool, ask: Ask, kept: Reservation | None = None) -> str:
    """A sentence for a person: what is needed, what is free, and what is kept away."""
    return _why_not(pool, ask, kept) + (_kept_away(pool) if ask.gpus else "")


def _why_not(pool: Pool, ask: Ask, kept: Reservation | None) -> str:
    if not any(_covers(total, ask) for total in pool.totals()):
        largest = max(pool.totals(), key=lambda total: (total.gpus, total.memory_mib, total.cpu_units), default=None)
        if largest is None:
            return f"needs {_words(ask)}, and there is no host"
        return f"needs {_words(ask)}, and the largest host has only {_words(largest)} in all"
    if not pool.connected:
        return f"needs {_words(ask)}, and no host is connected"
    hosts = "1 host" if pool.connected == 1 else f"{pool.connected} hosts"
    text = f"needs {_words(ask)}; {pool.free_gpus} of {pool.total_gpus} GPUs free on {hosts}"
    if kept is not None and _find(pool, ask, None) is not None:
        return f"{text}, kept for task {kept.claim.task_id}, which waits longer"
    lacking = _lacking(pool, ask, kept)
    if lacking == "GPU" and ask.gpus == ALL_GPUS:
        text += ", but no host has all of its own free"
    elif lacking == "GPU" and pool.free_gpus >= ask.gpus:
        text += ", but not all on one host"
    elif lacking == "MEMORY":
        text += f", but no such host has {ask.memory_mib} MiB of memory free"
    elif lacking == "CPU":
        text += f", but no such host has {ask.cpu_units} CPU units free"
    return text


def why_waiting(pool: Pool, claim: Claim) -> str:
    """Why this claim still waits, as of now: derived when asked for, so it is never stale."""
    older = [head for head in pool.heads() if head < claim]
    text = why_not(pool, claim.ask, _kept_before(pool, claim))
    return f"{text}; behind task {older[0].task_id}" if older else f"{text}; first in line"


def _kept_before(pool: Pool, claim: Claim) -> Reservation | None:
    """What is kept for those who wait longer than this claim."""
    older = (head for head in pool.heads() if head < claim)
    return next((kept for head in older if (kept := _reserve(pool, head)) is not None), None)


def _find(pool: Pool, ask: Ask, kept: Reservation | None) -> Placement | None:
    slot_id = _find_slot(pool, ask, kept)
    return Placement(slot_id, take(pool.slot(slot_id), ask.gpus)) if slot_id is not None else None


def _find_slot(pool: Pool, ask: Ask, kept: Reservation | None) -> str | None:
    for group in pool.groups(ask.gpus):
        for slot_ids in group.fitting(ask.memory_mib, ask.cpu_units):
            slot_id = _first_open(pool, slot_ids, ask, kept)
            if slot_id is not None:
                return slot_id
    return None


def _first_open(pool: Pool, slot_ids: Sequence[str], ask: Ask, kept: Reservation | None) -> str | None:
    """The first slot of one shape that a reservation does not close."""
    for slot_id in slot_ids[:2]:  # at most one slot is kept, so the second is open
        if kept is None or slot_id != kept.slot_id or _leaves_enough(pool.slot(slot_id), ask, kept.claim.ask):
            return slot_id
    return None


def _leaves_enough(slot: Slot, ask: Ask, older: Ask) -> bool:
    """Whether a task without GPUs fits beside what is kept for an older claim. What it does not ask for it does not take."""
    return (
        ask.gpus == 0
        and (not ask.cpu_units or slot.cpu_units - ask.cpu_units >= older.cpu_units)
        and (not ask.memory_mib or slot.memory_mib - ask.memory_mib >= older.memory_mib)
    )


def _reserve(pool: Pool, claim: Claim) -> Reservation | None:
    """The slot that will fit the claim soonest: the one that lacks least. None if no connected slot ever will."""
    ask = claim.ask
    best: tuple[tuple[int, int, int], str] | None = None
    for group in pool.groups() if ask.gpus != ALL_GPUS else pool.groups_by_held():
        fitting = chain.from_iterable(group.fitting(ask.memory_mib, ask.cpu_units))  # these lack nothing but GPUs
        able = next((slot_id for slot_id in chain(fitting, group.roomiest()) if _covers(pool.slot(slot_id).total, ask)), None)
        if able is not None:
            free = pool.slot(able).free()
            near_gpus = min(free.gpus, ask.gpus) if ask.gpus != ALL_GPUS else free.gpus - pool.slot(able).total.gpus
            near = (near_gpus, min(free.memory_mib, ask.memory_mib), min(free.cpu_units, ask.cpu_units))
            if best is None or near > best[0]:
                best = near, able
    return Reservation(best[1], claim) if best else None


def _lacking(pool: Pool, ask: Ask, kept: Reservation | None) -> str:
    """The resource that stands in the way, in the order in which ECS names them."""
    if not pool.connected:
        return "AGENT"
    memory_mib = [left for group in pool.groups(ask.gpus) if (left := _most_memory(pool, group, ask, kept)) is not None]
    if ask.gpus and not memory_mib:
        return "GPU"
    return "MEMORY" if max(memory_mib, default=0) < ask.memory_mib else "CPU"


def _most_memory(pool: Pool, group: Group, ask: Ask, kept: Reservation | None) -> int | None:
    """The most that a newcomer may have on one of these slots; of a kept one, what the older claim leaves."""
    left: int | None = None
    for slot_id in group.roomiest():
        memory_mib = pool.slot(slot_id).memory_mib
        if kept is None or slot_id != kept.slot_id:
            return max(left or 0, memory_mib)
        if not ask.gpus:
            left = max(0, memory_mib - kept.claim.ask.memory_mib)
    return left


def _covers(total: Ask, ask: Ask) -> bool:
    return total.gpus >= ask.least_gpus and total.memory_mib >= ask.memory_mib and total.cpu_units >= ask.cpu_units


def _kept_away(pool: Pool) -> str:
    reasons = pool.withheld()
    if not reasons:
        return ""
    named = list(dict.fromkeys(reasons))
    more = " and others" if len(named) > REASONS_MAX else ""
    many = f"{len(reasons)} GPUs are" if len(reasons) > 1 else "1 GPU is"
    return f"; {many} kept away: {', '.join(named[:REASONS_MAX])}{more}"


def _words(ask: Ask) -> str:
    parts = [f"{ask.gpus} GPU{'s' * (ask.gpus != 1)}" if ask.gpus != ALL_GPUS else "all GPUs of a host"] if ask.gpus else []
    parts += [f"{ask.cpu_units} CPU units"] if ask.cpu_units else []
    parts += [f"{ask.memory_mib} MiB"] if ask.memory_mib else []
    return ", ".join(parts) or "a place"
