"""Backfill: decide whether a younger claim can use a reserved slot without delaying the claim that reserves it.

A slot is the capacity of one instance, total and free. A pool is a set of slots. A claim is a task, an instance launch or a Batch
job that waits for capacity in a pool. Claims are sorted by rank: usually the oldest claim is the first, so "older" means a smaller
rank. The oldest claim that does not fit reserves a slot. If the tasks that hold what this claim lacks have time limits, the time at
which the slot has room for the claim is known. This time is the opening of the slot.

A younger claim may use the slot now in two cases:

- Its own time limit ends before the opening.
- The slot has enough for both claims at the opening.

So the oldest claim starts at the opening, as it would without the younger claim. This algorithm is known as EASY backfill.

A task without a time limit can end at any time. So a second time is computed: when would the slot have room for the oldest claim if
all tasks without a time limit ended now? If this time is before the opening, a younger claim must end before it.

All estimates err in favour of the oldest claim. A running task counts as ended at its time limit, although it may run on until its
stop timeout ends. The stop timeout of a younger claim, and the time that its start takes, are added to its time limit. A younger
claim that shares a GPU counts as a claim that needs the whole GPU (`decide/shared_room.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import inf

from corral.decide.gpu_choice import gpus_for
from corral.decide.placement_rules import allows
from corral.decide.shared_room import SharedRoom
from corral.decide.slot_fit import has_gpus
from corral.model.placement import Ending, Opening, Placement, Pool, Slot
from corral.model.task import ALL_GPUS, Demand

START_S = 5.0  # how long a task may take from its placement to its start, which is when its time limit begins to count
STEPS_PER_DOUBLING = 16  # longest times are rounded up, so that a pool has few different ones; each is at most 1/16 too long
LONGEST_S = 10 * 366 * 86_400.0  # a claim with a longer time limit counts as a claim without a time limit
Free = tuple[int, int, int] | SharedRoom  # GPUs, CPU and memory; a SharedRoom if tasks share GPUs
SLOTS_MAX = 500  # if more slots have tasks with time limits, no opening is computed, because it would take too long


def longest_time_s(limit_s: float | None, stop_timeout_s: float) -> float | None:
    """Return the longest time from the placement of a task with this time limit until its resources are free again."""
    if limit_s is None or limit_s > LONGEST_S:
        return None
    total_s = START_S + limit_s + stop_timeout_s
    step_s = math.ldexp(1.0, math.frexp(total_s)[1] - 1) / STEPS_PER_DOUBLING  # a power of two
    return math.ceil(total_s / step_s) * step_s


def first_opening(pool: Pool, demand: Demand) -> Opening | None:
    """Return the first opening of a slot for a claim that fits on no slot now. Return None if no opening is known.

    While the claim waits, the first opening does not move to a later time: a younger claim that uses the slot ends before it, or
    the slot has enough for both.
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
            at_s = _time_of_room(slot, pool.endings(slot_id), demand, _free(slot, demand), first_at_s)[0]
            if -inf < at_s < inf and (first is None or (at_s, slot_id) < (first_at_s, first.id)):
                first, first_at_s = slot, at_s
    return None if first is None else opening_of(first, pool.endings(first.id), demand)


def opening_of(slot: Slot, endings: Sequence[Ending], demand: Demand) -> Opening | None:
    """Return the opening of a slot for a demand that does not fit there now. Return None if the opening is unknown."""
    at_s, spare = _time_of_room(slot, endings, demand, _free(slot, demand))
    return None if at_s in (inf, -inf) else Opening(slot.id, at_s, earliest_room_s(slot, endings, demand), Demand(*spare))


def earliest_room_s(slot: Slot, endings: Sequence[Ending], demand: Demand) -> float:
    """Return the time before which a slot cannot have room for a demand, even if all tasks without a time limit end now.

    Return -inf if the slot could have room at any time.
    """
    if slot.shared or demand.gpu_memory_mib:
        return _time_of_room(slot, endings, demand, SharedRoom(slot, endings))[0]
    gpus = slot.total.gpus - sum([_gpus(slot, ending) for ending in endings])
    cpu_units = slot.total.cpu_units - sum([ending.cpu_units for ending in endings])
    memory_mib = slot.total.memory_mib - sum([ending.memory_mib for ending in endings])
    return _time_of_room(slot, endings, demand, (gpus, cpu_units, memory_mib))[0]


def place_before(pool: Pool, demand: Demand, opening: Opening, ends_at_s: float) -> Placement | None:
    """Place a younger claim on a slot that is reserved until its opening, if this does not delay the older claim.

    `ends_at_s` is the latest time at which the resources of the younger claim are free again.
    """
    slot, spare = pool.slot(opening.slot_id), opening.spare
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
    """Return the GPUs, the CPU and the memory that are free now."""
    return SharedRoom(slot) if slot.shared or demand.gpu_memory_mib else (len(slot.gpus), slot.cpu_units, slot.memory_mib)


def _time_of_room(
    slot: Slot, endings: Sequence[Ending], demand: Demand, free: Free, latest_s: float = inf
) -> tuple[float, tuple[int, int, int]]:
    """Return when a slot has room for a demand if each task ends at its time limit, and what else is free then.

    `free` has the GPUs, the CPU and the memory that are free now. The time is -inf if they are enough. It is inf if the time limits
    do not make room, or make room only after `latest_s`.
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
    """The same as `_time_of_room`, if tasks share GPUs of the slot or the demand shares a GPU."""
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
