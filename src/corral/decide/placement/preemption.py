"""Preemption: choose the running tasks that are paused, or stopped, so that a claim can start.

A task lends its GPUs if its owner has said so. A claim with a higher priority may take them. Tasks that take turns give their GPUs
to other such tasks when their turn is over. The chosen set is the cheapest one: the fewest tasks, then the least memory to move,
then the youngest tasks.

A priority is a list of numbers. A task that RunTask has launched has one number. A Batch job has three: 0, the priority of its job
queue, and its scheduling priority. The first number that differs decides. If one list is the beginning of the other, neither is
higher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb, inf

from msgspec import Struct

from corral.decide.placement.strategies import allows, usable_part
from corral.model.pause import Lends, Pause
from corral.model.placement import JOB, Claim, Pool, Slot
from corral.model.task import ALL_GPUS, Demand

EXACT_MAX = 2_000  # if there are more sets of tasks than this, only the sets of the cheapest tasks are compared
CLAIMS_MAX = 20  # the most claims that one call helps
Cost = tuple[int, int, float]
IsEnough = Callable[[set[str]], bool]  # whether these GPUs, with those that are free, are enough


class GpuLender(Struct, frozen=True):
    """A running task that lends its GPUs or takes turns on them."""

    task_id: str
    slot_id: str
    gpu_ids: tuple[str, ...]
    pause: Pause
    started_at_s: float
    cpu_units: int
    memory_mib: int
    is_busy: bool = False  # it holds messages or is protected: it is chosen only if there is no other way

    @property
    def is_killed(self) -> bool:
        return self.pause.lends is Lends.KILL


class Preemption(Struct, frozen=True):
    claim: Claim
    task_ids: tuple[str, ...]
    is_turn: bool  # the turns of the tasks are over; otherwise the claim has a higher priority


def priority_of(claim: Claim) -> tuple[float, ...]:
    """Return the priority of a claim. `claim_rank` and `job_rank` explain the ranks."""
    if claim.kind != JOB or len(claim.rank) < 6:
        return (-claim.rank[0],)
    return -claim.rank[0], -claim.rank[3], -claim.rank[5]


def is_higher(one: Sequence[float], other: Sequence[float]) -> bool:
    return next((a > b for a, b in zip(one, other) if a != b), False)


def choose(
    pool: Pool, claims: Iterable[Claim], lenders: Sequence[GpuLender], turns: Mapping[str, Pause], now_s: float, turns_max: int
) -> tuple[list[Preemption], float]:
    """Choose for each waiting claim the tasks that make room for it. Also return when to look again, because a turn is over then.

    `claims` are those that do not fit now and for which no task is being paused yet, by rank. `turns` is the id of a claim → the
    record of its task, if this task takes turns. `lenders` may be paused now or later.
    """
    found: list[Preemption] = []
    again_at_s, left = inf, {lender.task_id: lender for lender in lenders}
    for claim in claims:
        if len(found) >= CLAIMS_MAX or not left:
            break
        if claim.demand.nodes or claim.demand.gpu_memory_mib or not claim.demand.gpus:
            continue
        ready: list[GpuLender] = []
        turn_ids: set[str] = set()
        for lender in left.values():
            at_s, is_turn = _from_when(claim, lender, turns, left.values(), turns_max)
            if at_s <= now_s:
                ready.append(lender)
                turn_ids |= {lender.task_id} if is_turn else set()
            else:
                again_at_s = min(again_at_s, at_s)
        chosen = _cheapest(pool, claim.demand, ready)
        if chosen:
            task_ids = tuple(lender.task_id for lender in chosen)
            found.append(Preemption(claim, task_ids, turn_ids.issuperset(task_ids)))
            for task_id in task_ids:
                del left[task_id]
    return found, again_at_s


def _from_when(
    claim: Claim, lender: GpuLender, turns: Mapping[str, Pause], lenders: Iterable[GpuLender], turns_max: int
) -> tuple[float, bool]:
    """Return from when on a claim may take the GPUs of a task, and whether this is because the turn of the task is over."""
    if lender.pause.lends is not Lends.NOT and is_higher(priority_of(claim), lender.pause.priority):
        return lender.pause.may_be_paused_at_s(lender.started_at_s), False
    of_claim = turns.get(claim.id)
    if of_claim is None or not lender.pause.turn_s or is_higher(lender.pause.priority, priority_of(claim)):
        return inf, False
    if not claim.demand.own_gpus:  # the task has not started yet, so it would be one more on these GPUs
        on_gpus = [each for each in lenders if each.pause.turn_s and not set(each.gpu_ids).isdisjoint(lender.gpu_ids)]
        waiting = [each for each in turns.values() if not set(each.gpu_ids).isdisjoint(lender.gpu_ids)]
        if len(on_gpus) + len(waiting) >= turns_max:
            return inf, False
    return lender.pause.turn_ends_at_s(lender.started_at_s), True


def _cheapest(pool: Pool, demand: Demand, lenders: Sequence[GpuLender]) -> tuple[GpuLender, ...] | None:
    """Return the cheapest set of tasks on one slot that makes room for a demand there. Return None if there is none."""
    by_slot: dict[str, list[GpuLender]] = {}
    for lender in lenders:
        by_slot.setdefault(lender.slot_id, []).append(lender)
    best: tuple[Cost, tuple[GpuLender, ...]] | None = None
    for slot_id in sorted(by_slot):
        if slot_id not in pool:
            continue
        found = _cheapest_on(pool.slot(slot_id), demand, by_slot[slot_id])
        if found is not None and (best is None or _cost(found) < best[0]):
            best = _cost(found), found
    return None if best is None else best[1]


def _cheapest_on(slot: Slot, demand: Demand, lenders: Sequence[GpuLender]) -> tuple[GpuLender, ...] | None:
    if demand.own_gpus:
        if demand.rules is None or demand.rules.slot_id != slot.id or not slot.connected:
            return None
        missing = set(demand.own_gpus).difference(slot.gpus)
        return _smallest([each for each in lenders if not missing.isdisjoint(each.gpu_ids)], lambda gpu_ids: missing <= gpu_ids)
    if not slot.takes_tasks or (demand.rules is not None and not allows(demand.rules)(slot)):
        return None
    part = usable_part(slot, demand)
    free = set(part.gpus)
    needed = part.total.gpus if demand.gpus == ALL_GPUS else demand.gpus
    offering = [each for each in lenders if not free.isdisjoint(each.gpu_ids) or not part.positions.keys().isdisjoint(each.gpu_ids)]
    killed_first = [each for each in offering if each.is_killed]
    for tried in (offering, killed_first):
        chosen = _smallest(tried, lambda gpu_ids: len(free | (gpu_ids & part.positions.keys())) >= needed > 0)
        if chosen is not None and _has_room(slot, demand, chosen):
            return chosen
    return None


def _has_room(slot: Slot, demand: Demand, chosen: Sequence[GpuLender]) -> bool:
    """Whether a slot has the CPU units and the memory of a demand. Paused tasks keep theirs, stopped ones do not."""
    killed = [each for each in chosen if each.is_killed]
    cpu_units = slot.cpu_units + sum([each.cpu_units for each in killed])
    memory_mib = slot.memory_mib + sum([each.memory_mib for each in killed])
    return cpu_units >= demand.cpu_units and memory_mib >= demand.memory_mib


def _smallest(lenders: Sequence[GpuLender], is_enough: IsEnough) -> tuple[GpuLender, ...] | None:
    """Return the cheapest set of tasks whose GPUs are enough. Return None if all of them together are not enough."""
    if not is_enough({gpu_id for each in lenders for gpu_id in each.gpu_ids}):
        return None
    ordered = sorted(lenders, key=lambda each: (each.is_busy, _single_cost(each)))
    for size in range(len(ordered) + 1):
        if comb(len(ordered), size) > EXACT_MAX:
            break
        sets = [each for each in combinations(ordered, size) if is_enough({gpu_id for one in each for gpu_id in one.gpu_ids})]
        if sets:
            return min(sets, key=lambda each: (any(one.is_busy for one in each), _cost(each)))
    chosen: list[GpuLender] = []
    for each in sorted(ordered, key=lambda each: (each.is_busy, -len(each.gpu_ids), _single_cost(each))):
        chosen.append(each)
        if is_enough({gpu_id for one in chosen for gpu_id in one.gpu_ids}):
            break
    return tuple(chosen)


def _single_cost(lender: GpuLender) -> tuple[int, float]:
    return lender.pause.host_mib, -lender.started_at_s


def _cost(chosen: Sequence[GpuLender]) -> Cost:
    """The number of tasks, the memory to move as far as an earlier pause has shown it, and the age of the oldest of them."""
    oldest_s = min([each.started_at_s for each in chosen], default=inf)
    return len(chosen), sum([each.pause.host_mib for each in chosen]), -oldest_s
