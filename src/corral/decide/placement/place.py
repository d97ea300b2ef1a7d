"""Placement: decide which slot a task gets, which claims must wait, and why.

Claims are served in the order of their ranks: higher priorities first, then claims that wait longer. "Older" means a smaller rank.
Peers are the claims of a pool that have equal demands and equal time limits. The oldest of them is the head.

The oldest claim that does not fit reserves a slot. `decide/placement/backfill.py` decides which younger claims may use this slot
first. `decide/placement/strategies.py` chooses the slot of a task with placement constraints or strategies.
`decide/placement/multi_node.py` chooses the slots of a multi-node job. All other tasks get the best fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from corral.decide.placement.backfill import place_before
from corral.decide.placement.gpu_choice import gpus_for, most_gpu_memory
from corral.decide.placement.reservations import reserve
from corral.decide.placement.slot_fit import (
    allowed_slots,
    amounts,
    best_fit,
    covers,
    gpu_needs,
    has_gpus,
    is_open,
    is_unsorted,
    unkept_part,
)
from corral.decide.placement.strategies import first_choice, matching, names_gpu_model, select, select_by_attributes, usable_part
from corral.model.placement import Claim, Placement, Pool, Reservation, Slot, SlotGroup, Unplaceable
from corral.model.task import ALL_GPUS, Demand, PlacementRules

REASONS_MAX = 3  # a message lists at most this many different reasons why GPUs are withheld, and hosts without an account
HOST_NAME = "corral.host-name"  # the attribute with the name of a host


def place(pool: Pool, demand: Demand, reservation: Reservation | None = None, seed: str = "") -> Placement | Unplaceable:
    """Choose a slot for the demand, or return why no slot is suitable.

    Without placement rules, choose the best fit: of the slots that fit, the slot with the fewest free GPUs, then with the least
    free memory. So slots with much free capacity stay available for large tasks. The strategy `random` derives its choice from
    `seed`.
    """
    found = _find(pool, demand, reservation, seed)
    if found is not None:
        return found
    blocking = _blocking(pool, demand, reservation)
    return Unplaceable(_lacking(pool, demand, blocking), why_not(pool, demand, blocking))


def serve(pool: Pool, now_s: float) -> Iterator[tuple[Claim, Placement]]:
    """Place waiting claims, oldest first. The caller must apply each placement to the pool before it requests the next.

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
            found = _find(pool, claim.demand, reservation, claim.id, ends_at_s)
            if found is not None:
                granted = True
                overtaken = bool(reserved)
                yield pool.ranked(claim), found
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
        return _find(pool, demand, None, seed)
    if demand.rules is not None or pool.slots_with_endings():  # the result depends on the seed or on the time
        return _room_behind_claims(pool, demand, now_s, seed, longest_s)
    return pool.derived(("room", demand), lambda: _room_behind_claims(pool, demand, now_s, seed, longest_s))


def _room_behind_claims(pool: Pool, demand: Demand, now_s: float, seed: str, longest_s: float | None) -> Placement | None:
    if _behind_older_claims(pool, demand, now_s) is not None:
        return None
    return _find(pool, demand, standing_reservation(pool), seed, _latest_end_s(now_s, longest_s))


def room_for_claim(pool: Pool, claim: Claim, now_s: float) -> Placement | None:
    """Find a placement for a waiting claim. Return None if there is none that does not delay an older claim."""
    reservation = _reservation_for(pool, _older(pool, claim))
    return _find(pool, claim.demand, reservation, claim.id, _latest_end_s(now_s, claim.longest_s))


def place_newcomer(
    pool: Pool, demand: Demand, now_s: float, *, seed: str = "", longest_s: float | None = None
) -> Placement | Unplaceable:
    """Find a placement for a new task that cannot wait, or return why there is none."""
    found = room_for_newcomer(pool, demand, now_s, seed=seed, longest_s=longest_s)
    if found is not None:
        return found
    return _behind_older_claims(pool, demand, now_s) or place(pool, demand, standing_reservation(pool), seed)


def could_hold(pool: Pool, demand: Demand) -> bool:
    """Whether the demand would fit on an empty slot of the pool. The nodes of a multi-node job may use several slots."""
    if demand.nodes:
        from corral.decide.placement.multi_node import could_hold_together  # imported here, because few jobs have several nodes

        return could_hold_together(pool, demand)
    if names_gpu_model(demand.rules):
        return any(covers(usable_part(slot, demand).whole, demand) for slot in pool.slots())
    return any(covers(total, demand) for total in pool.totals())


def why_never(pool: Pool, demand: Demand) -> Unplaceable | None:
    """Return why no slot of the pool could ever hold the demand. Return None if an empty slot could hold it.

    A GPU that is withheld now can become available later, so it counts.
    """
    withheld = _sizes_with_withheld(pool)
    if could_hold(pool, demand) or any(covers(size, demand) for size in withheld):
        return None
    sizes = [*pool.totals(), *withheld]
    too_few = all(size.gpus < demand.least_gpus or size.gpu_memory_mib < demand.gpu_memory_mib for size in sizes)
    if too_few or names_gpu_model(demand.rules):
        lacking = "GPU"
    else:
        lacking = "MEMORY" if all(size.memory_mib < demand.memory_mib for size in sizes) else "CPU"
    return Unplaceable(lacking, why_not(pool, demand))


def _sizes_with_withheld(pool: Pool) -> list[Demand]:
    return [_size_with_withheld(slot) for slot in pool.slots() if slot.withheld]


def _size_with_withheld(slot: Slot) -> Demand:
    """Return the size of a slot, as if its withheld GPUs were not withheld."""
    gpus, largest_mib = slot.whole.gpus + len(slot.withheld), max([slot.whole.gpu_memory_mib, *slot.gpu_memory.values()])
    return Demand(gpus, slot.whole.cpu_units, slot.whole.memory_mib, gpu_memory_mib=largest_mib)


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
            withheld = _withheld(list(slot.withheld.values())) if resource == "GPU" else ""
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


def standing_reservation(pool: Pool) -> Reservation | None:
    """Return the reservation for the oldest claim that can reserve a slot, or None. Call this only if no claim fits now."""
    return _reservation_for(pool, pool.heads())


def spare_gpus(pool: Pool, placement: Placement, claim: Claim | None = None) -> tuple[str, ...]:
    """Return the free GPUs of the chosen slot that the placement does not use. Return () if an older claim reserves the slot.

    Containers that set NVIDIA_VISIBLE_DEVICES get these GPUs. If `claim` is None, the task is new, so every claim of the pool is
    older.
    """
    reservation = standing_reservation(pool) if claim is None else _reservation_for(pool, _older(pool, claim))
    if reservation is not None and placement.slot_id in reservation.wanted:
        return ()
    free = unkept_part(pool.slot(placement.slot_id), reservation).gpus
    return tuple(gpu_id for gpu_id in free if gpu_id not in placement.gpu_ids)


class UnmetDemand(NamedTuple):
    """Why a demand cannot be placed now. Users read these texts."""

    answer: str  # what is missing, such as `1 of 4 GPUs free on 1 host`
    needs: str  # what the demand needs of it, such as `needs 2 GPUs`
    are_gpus_held: bool = False  # True: tasks and instances hold the GPUs that the demand needs
    is_count: bool = False  # True: the answer is only the number of free GPUs of one host
    ahead: Claim | None = None  # the older claim for which the free capacity is reserved

    def sentence(self, name_of: Callable[[Claim], str] = lambda claim: claim.name) -> str:
        """Return the answer, and the name of the older claim."""
        return self.answer if self.ahead is None else f"{self.answer}, reserved for {name_of(self.ahead)}, which is ahead in line"


def why_not(pool: Pool, demand: Demand, reservation: Reservation | None = None) -> str:
    """Explain why a demand cannot be placed: what it needs, what is free, and which GPUs are withheld."""
    short = _shortage(pool, demand, reservation)
    return "; ".join(filter(None, (short.needs, short.sentence(), withheld_text(pool, demand))))


def _shortage(pool: Pool, demand: Demand, reservation: Reservation | None) -> UnmetDemand:
    if demand.nodes:
        from corral.decide.placement.multi_node import why_not_together

        return UnmetDemand(why_not_together(pool, demand), "")
    needs = f"needs {amounts(gpu_needs(demand) if demand.gpus else demand)}"
    if not any(covers(total, demand) for total in pool.totals()):
        withheld = _sizes_with_withheld(pool)
        if any(covers(size, demand) for size in withheld):
            return UnmetDemand(_what_is_not_withheld(pool, demand), needs)
        sizes = [*pool.totals(), *withheld]
        largest = max(sizes, key=lambda total: (total.gpus, total.memory_mib, total.cpu_units), default=None)
        if largest is None:
            return UnmetDemand("the cluster has no container instances yet", needs)
        return _too_large(largest, demand, sum(slot.excluded for slot in pool.slots()), _of_cluster(pool))
    if not pool.connected:
        silent = _lacking(pool, demand, reservation) == "AGENT"
        return UnmetDemand(f"no host{_of_cluster(pool)} is connected" if silent else _why_draining(pool), needs)
    free_gpus = pool.free_gpus
    rules = demand.rules
    has_rules = rules is not None and bool(
        rules.member_of or rules.distinct or rules.instance_group or (rules.account and _hosts_without(pool, rules.account))
    )
    if has_rules and demand.rules is not None:
        if names_gpu_model(demand.rules) and any(slot.gpu_models is not None for slot in pool.slots()):
            allowed = [slot_id for group in allowed_slots(pool, demand).groups() for slot_id in group.roomiest()]
            parts = [usable_part(pool.slot(slot_id), demand) for slot_id in allowed]
            free_gpus = sum(len(part.gpus) for part in parts)
            free = _what_rules_leave(pool, demand.rules, f"{free_gpus} of {sum(part.whole.gpus for part in parts)} such GPUs")
        else:
            free_gpus = sum(group.gpus * len(ids) for group in allowed_slots(pool, demand).groups(1) for ids in group.fitting(0, 0))
            free = _what_rules_leave(pool, demand.rules, f"{free_gpus} GPUs")
    else:
        free = f"{free_gpus} of {pool.total_gpus} GPUs free on {_hosts(pool.connected)}{_of_cluster(pool)}"
    if reservation is not None and _find(pool, demand, None) is not None:
        return UnmetDemand(free, needs, ahead=reservation.claim)
    lacking = _lacking(pool, demand, None)  # without the reservation it would not fit either, so that is not the reason
    if lacking == "GPU" and demand.gpu_memory_mib:
        allowed = [slot_id for group in allowed_slots(pool, demand).groups() for slot_id in group.roomiest()]
        most_mib = max([most_gpu_memory(usable_part(pool.slot(slot_id), demand)) for slot_id in allowed], default=0)
        if most_mib:
            return UnmetDemand(f"no GPU has more than {most_mib} MiB of memory left to share; {free}", needs)
    if lacking == "GPU" and demand.gpus == ALL_GPUS:
        return UnmetDemand(f"{free}, but no host has all its GPUs free", needs, are_gpus_held=True)
    if lacking == "GPU" and free_gpus >= demand.gpus:
        return UnmetDemand(f"{free}, but not all on one host", needs)
    if lacking in ("MEMORY", "CPU"):
        missing = f"{demand.memory_mib} MiB of memory" if lacking == "MEMORY" else f"{demand.cpu_units} CPU units"
        return UnmetDemand(
            f"no {_enough_gpus(demand)} has {missing} free" + (f"; {free}" if demand.gpus or has_rules else ""), needs
        )
    return UnmetDemand(free, needs, are_gpus_held=not has_rules, is_count=not has_rules and pool.connected == 1)


def _what_is_not_withheld(pool: Pool, demand: Demand) -> str:
    """Describe the GPUs that tasks may get now, of a slot on which the demand would fit if no GPU was withheld."""
    slot = next(slot for slot in pool.slots() if slot.withheld and covers(_size_with_withheld(slot), demand))
    usable = slot.whole.gpus
    if not usable:
        return "no GPU can be used now"
    if usable < demand.least_gpus:
        return f"only {usable} of {usable + len(slot.withheld)} GPUs can be used now"
    return f"no GPU that can be used now has {demand.gpu_memory_mib} MiB of memory"


def _too_large(largest: Demand, demand: Demand, excluded_gpus: int, of_cluster: str) -> UnmetDemand:
    """Compare a demand with the largest slot. The texts have only the amounts that are too large."""
    needs, has = [], []
    if largest.gpus < demand.least_gpus or largest.gpu_memory_mib < demand.gpu_memory_mib:
        needs.append(amounts(gpu_needs(demand)))
        if demand.gpu_memory_mib and largest.gpus:
            has.append(f"{largest.gpu_memory_mib} MiB on its largest GPU")
        else:
            has.append(amounts(Demand(largest.gpus)) if largest.gpus else "no GPU")
        if excluded_gpus:
            has[-1] += f" ({excluded_gpus} {'is' if excluded_gpus == 1 else 'are'} excluded by --exclude-gpus)"
    for part in ("cpu_units", "memory_mib"):
        if getattr(largest, part) < getattr(demand, part):
            needs.append(amounts(Demand(**{part: getattr(demand, part)})))
            has.append(amounts(Demand(**{part: getattr(largest, part)})))
    only = "" if has[0].startswith("no GPU") else "only "
    return UnmetDemand(f"the largest host{of_cluster} has {only}{', '.join(has)}", f"needs {', '.join(needs)}")


def _enough_gpus(demand: Demand) -> str:
    if demand.gpu_memory_mib:
        return f"host with a GPU that has {demand.gpu_memory_mib} MiB left to share"
    return "host with enough free GPUs" if demand.gpus else "host"


def why_waiting(pool: Pool, claim: Claim) -> str:
    """Explain why a claim waits, the answer first, and tell its place among all claims of the pool."""
    short = shortage_of(pool, claim)
    parts = (short.sentence(), withheld_text(pool, claim.demand), short.needs, place_text(pool, claim))
    return "; ".join(filter(None, parts))


def shortage_of(pool: Pool, claim: Claim) -> UnmetDemand:
    """Explain why a waiting claim cannot be placed now."""
    return _shortage(pool, claim.demand, _reservation_for(pool, _older(pool, claim)))


def place_text(pool: Pool, claim: Claim) -> str:
    """Describe the place of a claim among all claims of the pool. This is fast also if many claims have equal demands."""
    place, heads = pool.place_in_line(claim), pool.heads()
    if place == 1:
        return "first in line"
    return f"place {place} in line behind {heads[0].name}" if heads else f"place {place} in line"


def _older(pool: Pool, claim: Claim) -> list[Claim]:
    """Return the heads that are older than this claim."""
    return [head for head in pool.heads() if head < claim]


def _reservation_for(pool: Pool, waiting: Iterable[Claim]) -> Reservation | None:
    """Return the reservation for the first of these claims that can reserve a slot. Call this only if none of them fits now."""
    kept: Reservation | None = None
    for head in waiting:
        if head.demand.own_gpus:
            kept = (kept or Reservation(head, {})).keep(head.demand)
        elif (found := reserve(pool, head)) is not None:
            return found if kept is None else replace(found, kept=kept.kept)
    return kept


def _what_rules_leave(pool: Pool, rules: PlacementRules, free_gpus: str) -> str:
    """Describe how many hosts the placement constraints allow, and how many GPUs are free on them."""
    given = [f"memberOf ({expression})" for expression in rules.member_of]
    given += [f"the Auto Scaling group {rules.instance_group} of the capacity provider"] if rules.instance_group else []
    if rules.account and (missing := _hosts_without(pool, rules.account)):
        given.append(f"the Unix account {rules.account}{missing}")
    conditions = " and ".join(given)
    by_attributes, left = select_by_attributes(pool, rules), select(pool, rules)
    if not by_attributes.allowed:
        return f"{_hosts(pool.connected)}{_of_cluster(pool)}, none matches {conditions}{_closed_ones(pool, rules)}"
    text = _hosts(by_attributes.allowed) + _of_cluster(pool)
    if conditions:
        text = f"{by_attributes.allowed} of {_hosts(pool.connected)}{_of_cluster(pool)} match {conditions}"
    if rules.distinct and left.allowed < by_attributes.allowed:
        group = rules.group.removeprefix(f"{rules.scope}/")
        there = by_attributes.allowed - left.allowed
        text += f", {there if left.allowed else 'each'} with a task of {group} already (distinctInstance)"
        if not left.allowed:
            return text
    return f"{text}; {free_gpus} free on {'it' if left.allowed == 1 else 'them'}"


def _hosts_without(pool: Pool, account: str) -> str:
    """Name some hosts that lack a Unix account."""
    slots = [slot for slot in pool.slots() if slot.takes_tasks and account not in slot.accounts]
    names = sorted({slot.attributes.get(HOST_NAME, slot.host) for slot in slots})
    if not names:
        return ""
    more = f" and {len(names) - REASONS_MAX} more" if len(names) > REASONS_MAX else ""
    return f" (missing on {', '.join(names[:REASONS_MAX])}{more}, or Corral does not run as root there)"


def _closed_ones(pool: Pool, rules: PlacementRules) -> str:
    """Say how many hosts match the placement constraints, but get no tasks."""
    does_match = matching(rules)
    closed = [slot for slot in pool.slots() if (slot.draining or not slot.connected) and does_match(slot)]
    if not closed:
        return ""
    if len(closed) > 1:
        return f"; {len(closed)} that match do not report or are draining"
    return f"; another host, which matches, {'is draining' if closed[0].connected else 'does not report'}"


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"


def _of_cluster(pool: Pool) -> str:
    return f" of cluster {pool.shown_cluster}" if pool.shown_cluster else ""


def _why_draining(pool: Pool) -> str:
    found = [slot.moves_to for slot in pool.slots()]
    if len(found) == 1 and found[0]:
        return f"the host{_of_cluster(pool)} moves to cluster {found[0]} when its tasks have ended"
    return f"every host{_of_cluster(pool)} is draining"


def _find(pool: Pool, demand: Demand, reservation: Reservation | None, seed: str = "", ends_at_s: float = inf) -> Placement | None:
    if demand.own_gpus:
        return _place_back(pool, demand)
    if demand.nodes:
        from corral.decide.placement.multi_node import place_together

        together = place_together(pool, demand, reservation)
        return None if together is None or any(_takes_kept(each, reservation) for each in together.nodes) else together
    slot_id = best_fit(pool, demand, reservation) if demand.rules is None else _preferred(pool, demand, reservation, seed)
    if slot_id is not None:
        slot = unkept_part(pool.slot(slot_id), reservation)
        return Placement(slot_id, gpus_for(slot if slot.gpu_models is None else usable_part(slot, demand), demand))
    if reservation is None or reservation.opening is None:
        return None
    before = place_before(pool, demand, reservation.opening, ends_at_s)
    return None if before is None or _takes_kept(before, reservation) else before


def _place_back(pool: Pool, demand: Demand) -> Placement | None:
    """Return the placement of a paused task if all its GPUs are free. It also continues on a host that is draining."""
    assert demand.rules is not None
    slot_id, gpu_ids = demand.rules.slot_id, demand.own_gpus
    if slot_id not in pool:
        return None
    slot = pool.slot(slot_id)
    return Placement(slot_id, gpu_ids) if slot.connected and set(slot.gpus) >= set(gpu_ids) else None


def _takes_kept(placement: Placement, reservation: Reservation | None) -> bool:
    kept = reservation.kept.get(placement.slot_id) if reservation is not None else None
    return kept is not None and not kept.isdisjoint(placement.gpu_ids)


def _preferred(pool: Pool, demand: Demand, reservation: Reservation | None, seed: str) -> str | None:
    """Return the slot that the placement rules of the demand prefer."""
    reserved = 0 if reservation is None else len(reservation.wanted)
    return first_choice(pool, demand, seed, lambda slot_id: is_open(pool, slot_id, demand, reservation), reserved)


def is_reservable(pool: Pool, claim: Claim) -> bool:
    """Whether the claim can reserve a slot of the pool. If so, the pool will have room for the claim later."""
    return reserve(pool, claim) is not None


def _blocking(pool: Pool, demand: Demand, reservation: Reservation | None) -> Reservation | None:
    """Return the reservation if it is the reason why a demand does not fit. Return None if the demand would not fit without it."""
    return reservation if reservation is not None and _find(pool, demand, None) is not None else None


def _lacking(pool: Pool, demand: Demand, reservation: Reservation | None) -> str:
    """Return ECS's name for what is missing (`Unplaceable`). If several are missing, return the one that ECS would report."""
    if not pool.connected:
        return "DRAINING" if any(slot.connected for slot in pool.slots()) else "AGENT"
    if demand.rules is not None and not select(pool, demand.rules).allowed:
        return "distinctInstance" if select_by_attributes(pool, demand.rules).allowed else "memberOf"
    room = allowed_slots(pool, demand)
    if is_unsorted(demand) and not any(
        has_gpus(usable_part(pool.slot(at), demand), demand) for group in room.groups() for at in group.roomiest()
    ):
        return "GPU"
    memory_mib = [
        left for group in room.groups(demand.idle_gpus) if (left := _most_memory(pool, group, demand, reservation)) is not None
    ]
    if demand.gpus and not memory_mib:
        return "GPU"
    return "MEMORY" if max(memory_mib, default=0) < demand.memory_mib else "CPU"


def _most_memory(pool: Pool, group: SlotGroup, demand: Demand, reservation: Reservation | None) -> int | None:
    """Return the most memory in MiB that a demand can get on a slot of the group. Return None if no slot has GPUs for the demand.

    On a reserved slot, only the memory that the older claim does not need counts.
    """
    left: int | None = None
    for slot_id in group.roomiest():
        memory_mib = pool.slot(slot_id).memory_mib
        if is_unsorted(demand) and not has_gpus(usable_part(pool.slot(slot_id), demand), demand):
            continue
        older = None if reservation is None else reservation.wanted.get(slot_id)
        if older is None:
            return max(left or 0, memory_mib)
        if not demand.gpus:
            left = max(left or 0, memory_mib - older.memory_mib)
    return left


def withheld_text(pool: Pool, demand: Demand) -> str:
    """Name the reasons why GPUs of the pool are withheld, if the demand needs GPUs. Return "" if there are none."""
    return _withheld(pool.withheld()) if demand.gpus else ""


def _withheld(reasons: Sequence[str]) -> str:
    if not reasons:
        return ""
    named = list(dict.fromkeys(reasons))
    more = " and others" if len(named) > REASONS_MAX else ""
    many = f"{len(reasons)} GPUs are" if len(reasons) > 1 else "1 GPU is"
    return f"{many} withheld: {', '.join(named[:REASONS_MAX])}{more}"
