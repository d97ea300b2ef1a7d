"""Why a demand cannot be placed, and why a claim waits. Users read these texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from corral.decide.placement.find import could_hold, find
from corral.decide.placement.gpu_choice import most_gpu_memory
from corral.decide.placement.reservations import older_heads, reservation_for
from corral.decide.placement.slot_fit import allowed_slots, amounts, covers, gpu_needs, has_gpus, is_unsorted
from corral.decide.placement.strategies import matching, names_gpu_model, select, select_by_attributes, usable_part
from corral.model.placement import Claim, Pool, Reservation, Slot, SlotGroup, Unplaceable
from corral.model.task import ALL_GPUS, Demand, PlacementRules

REASONS_MAX = 3  # a message lists at most this many different reasons why GPUs are withheld, and hosts without an account
HOST_NAME = "corral.host-name"  # the attribute with the name of a host


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


def why_waiting(pool: Pool, claim: Claim) -> str:
    """Explain why a claim waits, the answer first, and tell its place among all claims of the pool."""
    short = shortage_of(pool, claim)
    parts = (short.sentence(), withheld_text(pool, claim.demand), short.needs, place_text(pool, claim))
    return "; ".join(filter(None, parts))


def shortage_of(pool: Pool, claim: Claim) -> UnmetDemand:
    """Explain why a waiting claim cannot be placed now."""
    return _shortage(pool, claim.demand, reservation_for(pool, older_heads(pool, claim)))


def place_text(pool: Pool, claim: Claim) -> str:
    """Describe the place of a claim among all claims of the pool. This is fast also if many claims have equal demands."""
    place, heads = pool.place_in_line(claim), pool.heads()
    if place == 1:
        return "first in line"
    return f"place {place} in line behind {heads[0].name}" if heads else f"place {place} in line"


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
        silent = missing_resource(pool, demand, reservation) == "AGENT"
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
    if reservation is not None and find(pool, demand, None) is not None:
        return UnmetDemand(free, needs, ahead=reservation.claim)
    lacking = missing_resource(pool, demand, None)  # without the reservation it would not fit either, so that is not the reason
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


def blocking_reservation(pool: Pool, demand: Demand, reservation: Reservation | None) -> Reservation | None:
    """Return the reservation if it is the reason why a demand does not fit. Return None if the demand would not fit without it."""
    return reservation if reservation is not None and find(pool, demand, None) is not None else None


def missing_resource(pool: Pool, demand: Demand, reservation: Reservation | None) -> str:
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
    return withheld_reasons(pool.withheld()) if demand.gpus else ""


def withheld_reasons(reasons: Sequence[str]) -> str:
    if not reasons:
        return ""
    named = list(dict.fromkeys(reasons))
    more = " and others" if len(named) > REASONS_MAX else ""
    many = f"{len(reasons)} GPUs are" if len(reasons) > 1 else "1 GPU is"
    return f"{many} withheld: {', '.join(named[:REASONS_MAX])}{more}"


def _sizes_with_withheld(pool: Pool) -> list[Demand]:
    return [_size_with_withheld(slot) for slot in pool.slots() if slot.withheld]


def _size_with_withheld(slot: Slot) -> Demand:
    """Return the size of a slot, as if its withheld GPUs were not withheld."""
    gpus, largest_mib = slot.whole.gpus + len(slot.withheld), max([slot.whole.gpu_memory_mib, *slot.gpu_memory.values()])
    return Demand(gpus, slot.whole.cpu_units, slot.whole.memory_mib, gpu_memory_mib=largest_mib)


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
