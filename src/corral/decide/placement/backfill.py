"""Backfill: decide whether a younger claim can use a reserved slot without delaying the claim that reserves it.

Claims are served in the order of their ranks: higher priorities first, then claims that wait longer. "Older" means a smaller rank.
In this module, the oldest claim is the oldest one that does not fit now. It reserves a slot. Two times are computed from the time
limits of the tasks that run on this slot:

- The opening (`Opening.at_s`) is when the slot has room for the oldest claim if each task with a time limit ends at its limit, and
  no other task ends. It is unknown if tasks without a time limit hold what the oldest claim lacks.
- The earliest start (`Opening.earliest_s`) is when the slot has room for the oldest claim if, in addition, all tasks without a time
  limit end now. It is never after the opening.

A younger claim may use the slot now in two cases:

- The younger claim ends before the earliest start of the oldest claim, or at this time.
- The earliest start and the opening are the same time, and the slot then has enough for both claims.

If all tasks with a time limit end at their limits, the younger claim does not delay the oldest claim. If such a task ends earlier,
the younger claim can delay the oldest claim, but not beyond the opening. This algorithm is known as EASY backfill.

The estimates favour the oldest claim:

- A running task counts as ended at its time limit, although it can run on until its stop timeout ends. So the computed times are
  too early rather than too late. If they are too early, the younger claim must end earlier than necessary.
- The younger claim counts as ended after its longest time. This is the time for its start, plus its time limit, plus its stop
  timeout.
- A younger claim that shares a GPU counts as a claim that needs the whole GPU (`decide/placement/shared_room.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import inf

from corral.decide.placement.gpu_choice import gpus_for
from corral.decide.placement.shared_room import SharedRoom
from corral.decide.placement.slot_fit import has_gpus
from corral.decide.placement.strategies import allows, usable_part
from corral.model.placement import Ending, Opening, Placement, Pool, Slot
from corral.model.task import ALL_GPUS, Demand

START_S = 5.0  # the assumed time from the placement of a task to its start; the time limit counts from the start
# `longest_time_s` rounds up by at most 1/16, so that claims have few different longest times. The scheduler handles claims with
# equal demands and equal longest times together.
STEPS_PER_DOUBLING = 16
LONGEST_S = 10 * 366 * 86_400.0  # a claim with a longer time limit counts as a claim without a time limit
# The free resources of a slot: GPUs, CPU units and memory in MiB. A SharedRoom if tasks share GPUs of the slot, or the demand
# shares a GPU.
Free = tuple[int, int, int] | SharedRoom
SLOTS_MAX = 500  # if more slots have tasks with time limits, no opening is computed, because it would take too long


def longest_time_s(limit_s: float | None, stop_timeout_s: float) -> float | None:
    """Return the longest time from the placement of a task until its resources are free again. Return None without a limit."""
    if limit_s is None or limit_s > LONGEST_S:
        return None
    total_s = START_S + limit_s + stop_timeout_s
    step_s = math.ldexp(1.0, math.frexp(total_s)[1] - 1) / STEPS_PER_DOUBLING  # a power of two
    return math.ceil(total_s / step_s) * step_s


def first_opening(pool: Pool, demand: Demand) -> Opening | None:
    """Return the earliest of the openings of all slots, for a claim that fits on no slot now. Return None if no opening is known.

    Younger claims do not move this opening to a later time, because `place_before` lets a younger claim use the slot only if the
    slot still has room for the oldest claim at the opening.
    """
    slot_ids = pool.slots_with_endings()
    rules = demand.rules
    if not slot_ids or len(slot_ids) > SLOTS_MAX or demand.nodes or (rules is not None and rules.depends_on_tasks):
        return None
    is_allowed = None if rules is None else allows(rules)
    first, first_at_s = None, inf
    for slot_id in slot_ids:
        slot = pool.slot(slot_id)
        if slot.takes_tasks and (is_allowed is None or is_allowed(slot)):
            slot = usable_part(slot, demand)
            at_s = _time_of_room(slot, pool.endings(slot_id), demand, _free(slot, demand), first_at_s)[0]
            if -inf < at_s < inf and (first is None or (at_s, slot_id) < (first_at_s, first.id)):
                first, first_at_s = slot, at_s
    return None if first is None else opening_of(first, pool.endings(first.id), demand)


def opening_of(slot: Slot, endings: Sequence[Ending], demand: Demand) -> Opening | None:
    """Return the opening of a slot for a demand that does not fit on the slot now. Return None if the opening is unknown."""
    at_s, spare = _time_of_room(slot, endings, demand, _free(slot, demand))
    return None if at_s in (inf, -inf) else Opening(slot.id, at_s, earliest_room_s(slot, endings, demand), Demand(*spare))


def earliest_room_s(slot: Slot, endings: Sequence[Ending], demand: Demand) -> float:
    """Return the earliest start of a demand on a slot: when the slot has room if all tasks without a time limit end now.

    Return -inf if the slot then has room at once.
    """
    if slot.shared or demand.gpu_memory_mib:
        return _time_of_room(slot, endings, demand, SharedRoom(slot, endings))[0]
    gpus = slot.total.gpus - sum([_gpus(slot, ending) for ending in endings])
    cpu_units = slot.total.cpu_units - sum([ending.cpu_units for ending in endings])
    memory_mib = slot.total.memory_mib - sum([ending.memory_mib for ending in endings])
    return _time_of_room(slot, endings, demand, (gpus, cpu_units, memory_mib))[0]


def place_before(pool: Pool, demand: Demand, opening: Opening, ends_at_s: float) -> Placement | None:
    """Return a placement of a younger claim on the slot of an opening, which an older claim reserves.

    Return None if the younger claim does not fit on the slot now, or if neither of the two cases of the module docstring applies.
    `ends_at_s` is when the longest time of the younger claim ends.
    """
    slot, spare = usable_part(pool.slot(opening.slot_id), demand), opening.spare
    if demand.nodes or not (slot.takes_tasks and has_gpus(slot, demand)):
        return None
    if slot.memory_mib < demand.memory_mib or slot.cpu_units < demand.cpu_units:
        return None
    gpus = slot.total.gpus if demand.gpus == ALL_GPUS else demand.gpus
    has_both = gpus <= spare.gpus and demand.cpu_units <= spare.cpu_units and demand.memory_mib <= spare.memory_mib
    if ends_at_s > opening.earliest_s and not (has_both and opening.earliest_s == opening.at_s):
        return None
    if demand.rules is not None and not allows(demand.rules)(slot):
        return None
    return Placement(slot.id, gpus_for(slot, demand))


def _free(slot: Slot, demand: Demand) -> Free:
    return SharedRoom(slot) if slot.shared or demand.gpu_memory_mib else (len(slot.gpus), slot.cpu_units, slot.memory_mib)


def _time_of_room(
    slot: Slot, endings: Sequence[Ending], demand: Demand, free: Free, latest_s: float = inf
) -> tuple[float, tuple[int, int, int]]:
    """Return when a slot has room for a demand if each task of `endings` ends at its time limit, and what else is free then.

    `free` is what is free before the first of these tasks ends. The time is -inf if `free` is enough for the demand. It is inf if
    these tasks do not make room, or make room only after `latest_s`.
    """
    if isinstance(free, SharedRoom):
        return _time_of_shared_room(free, endings, demand, latest_s)
    gpus, cpu_units, memory_mib = free
    needed = slot.total.gpus or 1 if demand.gpus == ALL_GPUS else demand.gpus
    at_s = -inf
    for ending in endings:
        if ending.limit_at_s > at_s:
            if gpus >= needed and cpu_units >= demand.cpu_units and memory_mib >= demand.memory_mib:
                break
            at_s = ending.limit_at_s
            if at_s > latest_s:
                break
        gpus += _gpus(slot, ending)
        cpu_units += ending.cpu_units
        memory_mib += ending.memory_mib
    spare = gpus - needed, cpu_units - demand.cpu_units, memory_mib - demand.memory_mib
    return (at_s if min(spare) >= 0 else inf), spare


def _time_of_shared_room(
    room: SharedRoom, endings: Sequence[Ending], demand: Demand, latest_s: float
) -> tuple[float, tuple[int, int, int]]:
    """Do the same as `_time_of_room`, if tasks share GPUs of the slot or the demand shares a GPU."""
    at_s = -inf
    for ending in endings:
        if ending.limit_at_s > at_s:
            if room.has(demand):
                break
            at_s = ending.limit_at_s
            if at_s > latest_s:
                break
        room.end(ending)
    return (at_s if room.has(demand) else inf), room.spare(demand)


def _gpus(slot: Slot, ending: Ending) -> int:
    """Return how many GPUs of a slot are free again when a task ends. A GPU that tasks may no longer use does not count."""
    gpu_ids, positions = ending.gpu_ids, slot.positions
    if len(gpu_ids) == 1:
        return gpu_ids[0] in positions
    return sum([gpu_id in positions for gpu_id in gpu_ids]) if gpu_ids else 0
