"""Reservations: choose the slot that is reserved for a claim that does not fit now, so that the claim does not wait for ever.

The slot that lacks least is the slot whose free GPUs, then free memory, then free CPU are nearest to the demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice

from msgspec.structs import replace

from corral.decide.placement.backfill import earliest_room_s, first_opening
from corral.decide.placement.gpu_choice import most_gpu_memory
from corral.decide.placement.slot_fit import allowed_slots, covers, is_unsorted
from corral.decide.placement.strategies import usable_part
from corral.model.placement import Claim, Pool, Reservation, Slot, SlotGroup
from corral.model.task import ALL_GPUS, Demand


def reserve(pool: Pool, claim: Claim) -> Reservation | None:
    """Choose the slots that a claim reserves: one or two slots, or more for a multi-node job (`reserve_together`).

    If the time limits of running tasks say when a slot will have room for the claim, reserve the slot that has room first. Also
    reserve the slot that lacks least, if it could have room earlier because tasks without a time limit end. If time limits do not
    say when a slot will have room, reserve only the slot that lacks least.

    Return None if every slot that accepts tasks is too small for the claim, even after the tasks of the slot have ended and EC2
    instances have returned the GPUs of its host.
    """
    demand = claim.demand
    if demand.own_gpus:  # a paused task keeps only its own GPUs (`Reservation.kept`)
        return None
    if demand.nodes:
        from corral.decide.placement.multi_node import reserve_together  # imported here, because few jobs have several nodes

        return reserve_together(pool, claim)
    # The function returns a slot with only those of its GPUs that the demand may use.
    usable: Callable[[str], Slot] = pool.slot if demand.rules is None else lambda slot_id: usable_part(pool.slot(slot_id), demand)
    best: tuple[tuple[int, int, int], str] | None = None
    for group in _reservable_groups(pool, demand):
        fitting = chain.from_iterable(group.fitting(demand.memory_mib, demand.cpu_units))  # on these slots, only GPUs are missing
        candidates = (slot_id for slot_id in chain(fitting, group.roomiest()) if covers(usable(slot_id).whole, demand))
        for candidate in candidates if is_unsorted(demand) else islice(candidates, 1):
            slot = usable(candidate)
            near = (_near_gpus(slot, demand), min(slot.memory_mib, demand.memory_mib), min(slot.cpu_units, demand.cpu_units))
            if best is None or near > best[0]:
                best = near, candidate
    if best is None:
        return None
    opening = first_opening(pool, demand) if pool.slots_with_endings() else None
    if opening is None:
        return Reservation(claim, {best[1]: demand})
    wanted = {opening.slot_id: demand}
    if best[1] != opening.slot_id and earliest_room_s(usable(best[1]), pool.endings(best[1]), demand) < opening.at_s:
        wanted[best[1]] = demand
    return Reservation(claim, wanted, opening)


def _near_gpus(slot: Slot, demand: Demand) -> int:
    """Return how near the free GPUs of a slot are to what the demand needs. A larger number is nearer."""
    if demand.gpu_memory_mib:
        return min(most_gpu_memory(slot), demand.gpu_memory_mib)
    return min(len(slot.gpus), demand.gpus) if demand.gpus != ALL_GPUS else len(slot.gpus) - slot.total.gpus


def _reservable_groups(pool: Pool, demand: Demand) -> Iterable[SlotGroup]:
    """Return the slots that a claim can reserve, in groups. The caller takes the slot that lacks least from each group."""
    if demand.gpus == ALL_GPUS and demand.rules is None:
        return pool.groups_by_held()
    return allowed_slots(pool, demand).groups()


def older_heads(pool: Pool, claim: Claim) -> list[Claim]:
    """Return the heads that are older than this claim."""
    return [head for head in pool.heads() if head < claim]


def reservation_for(pool: Pool, waiting: Iterable[Claim]) -> Reservation | None:
    """Return the reservation for the first of these claims that can reserve a slot. Call this only if none of them fits now."""
    kept: Reservation | None = None
    for head in waiting:
        if head.demand.own_gpus:
            kept = (kept or Reservation(head, {})).keep(head.demand)
        elif (found := reserve(pool, head)) is not None:
            return found if kept is None else replace(found, kept=kept.kept)
    return kept


def standing_reservation(pool: Pool) -> Reservation | None:
    """Return the reservation for the oldest claim that can reserve a slot, or None. Call this only if no claim fits now."""
    return reservation_for(pool, pool.heads())


def is_reservable(pool: Pool, claim: Claim) -> bool:
    """Whether the claim can reserve a slot of the pool. If so, the pool will have room for the claim later."""
    return reserve(pool, claim) is not None
