"""Placement: decide which slot a task gets, which claims must wait, and why.

Claims are served in the order of their ranks: higher priorities first, then claims that wait longer. "Older" means a smaller rank.
Peers are the claims of a pool that have equal demands and equal time limits. The oldest of them is the head.

The oldest claim that does not fit reserves a slot. `decide/placement/backfill.py` decides which younger claims may use this slot
first. `decide/placement/strategies.py` chooses the slot of a task with placement constraints or strategies.
`decide/placement/multi_node.py` chooses the slots of a multi-node job. All other tasks get the best fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from msgspec.structs import replace

from corral.decide.placement.backfill import place_before
from corral.decide.placement.find import find
from corral.decide.placement.gpu_choice import gpus_for, most_gpu_memory
from corral.decide.placement.reservations import older_heads, reservation_for, reserve, standing_reservation
from corral.decide.placement.shortages import blocking_reservation, missing_resource, why_not, withheld_reasons
from corral.decide.placement.slot_fit import amounts, has_gpus, is_open, unkept_part
from corral.model.placement import Claim, Placement, Pool, Reservation, Unplaceable
from corral.model.task import Demand


def place(pool: Pool, demand: Demand, reservation: Reservation | None = None, seed: str = "") -> Placement | Unplaceable:
    """Choose a slot for the demand, or return why no slot is suitable.

    Without placement rules, choose the best fit: of the slots that fit, the slot with the fewest free GPUs, then with the least
    free memory. So slots with much free capacity stay available for large tasks. The strategy `random` derives its choice from
    `seed`.
    """
    found = find(pool, demand, reservation, seed)
    if found is not None:
        return found
    blocking = blocking_reservation(pool, demand, reservation)
    return Unplaceable(missing_resource(pool, demand, blocking), why_not(pool, demand, blocking))


def serve(pool: Pool, now_s: float) -> Iterator[tuple[Claim, Placement]]:
    """Place waiting claims, oldest first. The caller must apply each placement to the pool before it requests the next.

    If claims of several owners wait, the ranks of these claims can be the stored ones (`Pool.ranked`).

    The oldest claim that does not fit reserves a slot, or several slots for a multi-node job, so that it does not wait forever.
    Younger claims can use the other slots, so that little capacity stays idle. They can use a reserved slot if their time limits
    show that this does not delay the oldest claim. If a head does not fit, its peers do not fit either.
    """
    while True:
        reservation: Reservation | None = None
        unfit: Claim | None = None  # the oldest claim that does not fit: it reserves a slot before a younger claim is tried
        reserved: dict[str, Demand] = {}
        granted = overtaken = False
        # Demand → time: a claim with this demand that ends then or later does not fit. If no claim has a time limit, each head
        # has a different demand, so this table would save nothing.
        refused: dict[Demand, float] | None = {} if pool.peers_with_limits else None
        for claim in pool.turns():
            ends_at_s = inf
            if refused is not None:
                ends_at_s = _latest_end_s(now_s, claim.longest_s)
                if claim.demand in refused and ends_at_s >= refused[claim.demand]:
                    continue
            if unfit is not None:
                reservation, unfit = _with_reservation(pool, unfit, reservation), None
                reserved = {} if reservation is None else reservation.wanted
            found = find(pool, claim.demand, reservation, claim.id, ends_at_s)
            if found is not None:
                granted = True
                overtaken = bool(reserved)
                yield claim, found
                if reservation is not None and reservation.opening is not None and found.slot_id == reservation.opening.slot_id:
                    reservation = _reserve_again(pool, reservation)  # the placed claim can use a part of `opening.spare`
                continue
            if refused is not None:
                refused[claim.demand] = -inf if reservation is None or reservation.opening is None else ends_at_s
            if claim.demand.own_gpus:
                reservation = (reservation or Reservation(claim, {})).keep(claim.demand)
            elif not reserved:
                unfit = claim
        # Try again in two cases. A placement of a younger claim can move the reservation to another slot, and the slot that was
        # reserved before becomes available. A placed task can also satisfy the constraint of an older claim that waits for a task
        # of its group.
        moved = overtaken and reservation is not None and _is_moved(pool, reservation.claim, reserved)
        if not granted or not (moved or pool.peers_depending_on_tasks):
            return


def _latest_end_s(now_s: float, longest_s: float | None) -> float:
    """Return when the resources of a claim that is placed now are free again at the latest."""
    return inf if longest_s is None else now_s + longest_s


def _is_moved(pool: Pool, claim: Claim, reserved: dict[str, Demand]) -> bool:
    """Whether a claim would not reserve the same slots again."""
    after = reserve(pool, claim)
    return after is None or after.wanted != reserved


def _reserve_again(pool: Pool, before: Reservation) -> Reservation | None:
    return _with_reservation(pool, before.claim, replace(before, wanted={}, opening=None))


def _with_reservation(pool: Pool, claim: Claim, before: Reservation | None) -> Reservation | None:
    """Reserve slots for the oldest claim that does not fit. Older paused tasks keep their GPUs."""
    found = reserve(pool, claim)
    return before if found is None else found if before is None else replace(found, kept=before.kept)


def room_for_newcomer(
    pool: Pool, demand: Demand, now_s: float, *, seed: str = "", longest_s: float | None = None
) -> Placement | None:
    """Find a placement for a new task, which has not waited. `Claim` describes `longest_s`.

    Return None if a waiting claim fits now, because this claim is served first. Also return None if no slot has room for the task.
    A reserved slot counts as a slot with room only if the task does not delay the claim that reserves the slot.
    """
    if not pool.has_claims():
        return find(pool, demand, None, seed)
    if demand.rules is not None or pool.slots_with_endings():  # the result depends on the seed or on the time
        return _room_behind_claims(pool, demand, now_s, seed, longest_s)
    return pool.derived(("room", demand), lambda: _room_behind_claims(pool, demand, now_s, seed, longest_s))


def _room_behind_claims(pool: Pool, demand: Demand, now_s: float, seed: str, longest_s: float | None) -> Placement | None:
    if _behind_older_claims(pool, demand, now_s) is not None:
        return None
    return find(pool, demand, standing_reservation(pool), seed, _latest_end_s(now_s, longest_s))


def room_for_claim(pool: Pool, claim: Claim, now_s: float) -> Placement | None:
    """Find a placement for a waiting claim. Return None if there is none that does not delay an older claim."""
    reservation = reservation_for(pool, older_heads(pool, claim))
    return find(pool, claim.demand, reservation, claim.id, _latest_end_s(now_s, claim.longest_s))


def place_newcomer(
    pool: Pool, demand: Demand, now_s: float, *, seed: str = "", longest_s: float | None = None
) -> Placement | Unplaceable:
    """Find a placement for a new task that cannot wait, or return why there is none."""
    found = room_for_newcomer(pool, demand, now_s, seed=seed, longest_s=longest_s)
    if found is not None:
        return found
    return _behind_older_claims(pool, demand, now_s) or place(pool, demand, standing_reservation(pool), seed)


def place_on(pool: Pool, demand: Demand, slot_id: str, now_s: float, *, longest_s: float | None = None) -> Placement | Unplaceable:
    """Place a task on the given slot, or return why not: it does not fit now, or a waiting claim needs the free capacity."""
    slot, reservation = pool.slot(slot_id), standing_reservation(pool)
    if not slot.takes_tasks:
        return Unplaceable("DRAINING", "the host is draining") if slot.connected else Unplaceable("AGENT", "the host is silent")
    free = slot.free()
    for lacks, resource in (
        (not has_gpus(slot, demand), "GPU"),
        (free.memory_mib < demand.memory_mib, "MEMORY"),
        (free.cpu_units < demand.cpu_units, "CPU"),
    ):
        if lacks:
            left = f" and at most {most_gpu_memory(slot)} MiB on one GPU" if demand.gpu_memory_mib else ""
            text = f"needs {amounts(demand)}; the host has {amounts(free)}{left} free"
            withheld = withheld_reasons(list(slot.withheld.values())) if resource == "GPU" else ""
            return Unplaceable(resource, f"{text}; {withheld}" if withheld else text)
    if reservation is not None and not is_open(pool, slot_id, demand, reservation):
        opening = reservation.opening
        if opening is not None and opening.slot_id == slot_id:
            before = place_before(pool, demand, opening, _latest_end_s(now_s, longest_s))
            if before is not None:
                return _behind_older_claims(pool, demand, now_s) or before
        text = f"the free capacity of the host is reserved for {reservation.claim.name}, which is ahead in line"
        return Unplaceable("GPU" if demand.gpus else "MEMORY", text)
    return _behind_older_claims(pool, demand, now_s) or Placement(slot_id, gpus_for(unkept_part(slot, reservation), demand))


def _behind_older_claims(pool: Pool, demand: Demand, now_s: float) -> Unplaceable | None:
    due = next(serve(pool, now_s), None)
    if due is None:
        return None
    return Unplaceable("GPU" if demand.gpus else "MEMORY", f"the free capacity is needed by {due[0].name}, which is ahead in line")


def spare_gpus(pool: Pool, placement: Placement, claim: Claim | None = None) -> tuple[str, ...]:
    """Return the free GPUs of the chosen slot that the placement does not use. Return () if an older claim reserves the slot.

    Containers that set NVIDIA_VISIBLE_DEVICES get these GPUs. If `claim` is None, the task is new, so every claim of the pool is
    older.
    """
    reservation = standing_reservation(pool) if claim is None else reservation_for(pool, older_heads(pool, pool.ranked(claim)))
    if reservation is not None and placement.slot_id in reservation.wanted:
        return ()
    free = unkept_part(pool.slot(placement.slot_id), reservation).gpus
    return tuple(gpu_id for gpu_id in free if gpu_id not in placement.gpu_ids)
