"""Start estimates: the places of claims in the waiting list of a pool, and when the claims will probably start.

The waiting list of a pool has all its claims, in the order in which they are served.

An estimate assumes that each task ends at its time limit, and that no new claim is served before the claims that wait now. A task
without a time limit counts as a task that never ends. Each claim gets the first room that the claims before it leave. The start is
unknown for a claim that shares a GPU, for a paused task that waits for its own GPUs, for a multi-node job, for a claim whose
placement rules depend on other tasks, and for a claim for which time limits make no room. If the start of a claim is unknown, the
starts of the claims after it are unknown, too. The exception is a claim that is too large for every slot, even for an empty one:
the claims after it do not wait for it. Estimates are computed only when a request reads them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from math import inf

from msgspec import Struct

from corral.decide.placement.shared_room import SharedRoom
from corral.decide.placement.slot_fit import covers
from corral.decide.placement.strategies import allows, names_gpu_model
from corral.decide.tasks.lifecycle import duration_text
from corral.model.placement import Claim, Pool, Slot
from corral.model.task import ALL_GPUS, Demand

CLAIMS_MAX = 20  # only this many claims, the first of the waiting list, get an estimate
SLOTS_MAX = 16  # a pool with more slots has no estimates, because they would take too long
Amounts = tuple[int, int, int]  # GPUs, CPU units and memory


class WaitingClaim(Struct, frozen=True):
    claim: Claim
    place: int  # the place in the waiting list; the first claim has the place 1
    starts_at_s: float | None  # None: unknown


def first_waiting(pool: Pool, now_s: float, limit: int) -> list[WaitingClaim]:
    """Return the first claims of a pool's waiting list, at most `limit`, with the estimates of their starts."""
    claims = list(islice(pool.in_order(), limit))
    starts = _starts(pool, claims[:CLAIMS_MAX], now_s)
    starts += [None] * (len(claims) - len(starts))
    return [WaitingClaim(claim, at + 1, start_s) for at, (claim, start_s) in enumerate(zip(claims, starts))]


def estimates(pool: Pool, now_s: float) -> dict[str, float]:
    """Return the estimated starts, by the id of the claim. A claim whose start is unknown is left out."""
    if not pool.slots_with_endings():
        return {}
    found = first_waiting(pool, now_s, CLAIMS_MAX)
    return {each.claim.id: each.starts_at_s for each in found if each.starts_at_s is not None}


def start_text(starts_at_s: float, now_s: float) -> str:
    """Describe an estimated start for a message, for example `expected start in about 1h20m`."""
    left_s = starts_at_s - now_s
    if left_s <= 1:
        return "expected start now"
    step_s = 60 if left_s >= 600 else 1
    return f"expected start in about {duration_text(-(-left_s // step_s) * step_s)}"


def _starts(pool: Pool, claims: Sequence[Claim], now_s: float) -> list[float | None]:
    slots = [slot for slot in pool.slots() if slot.takes_tasks]
    if not pool.slots_with_endings() or len(slots) > SLOTS_MAX:
        return []
    plans = [_Plan(pool, slot, now_s) for slot in slots]
    found: list[float | None] = []
    for claim in claims:
        demand, rules = claim.demand, claim.demand.rules
        of_model = names_gpu_model(rules) and any(plan.slot.gpu_models is not None for plan in plans)
        if demand.nodes or demand.gpu_memory_mib or demand.own_gpus or of_model or (rules is not None and rules.depends_on_tasks):
            break
        able = plans if rules is None else [plan for plan in plans if allows(rules)(plan.slot)]
        able = [plan for plan in able if covers(plan.slot.whole, demand)]
        if not able or not pool.is_open(claim):  # too large for every slot, or it waits for a limit: it reserves nothing
            found.append(None)
            continue
        longest_s = inf if claim.longest_s is None else claim.longest_s
        start_s, _, plan = min(
            [(plan.first_room_s(demand, longest_s), plan.slot.id, plan) for plan in able], key=lambda each: each[:2]
        )
        if start_s == inf:
            break
        plan.take(demand, start_s, start_s + longest_s)
        found.append(start_s)
    return found


class _Plan:
    """The free resources of a slot from now on. They change at certain times, and are constant between these times."""

    def __init__(self, pool: Pool, slot: Slot, now_s: float) -> None:
        self.slot = slot
        gpus, cpu_units, memory_mib = len(slot.gpus), slot.cpu_units, slot.memory_mib
        self._times = [now_s]
        self._free: list[Amounts] = [(gpus, cpu_units, memory_mib)]
        room = SharedRoom(slot)
        for ending in pool.endings(slot.id):
            room.end(ending)
            gpus, cpu_units, memory_mib = room.idle_gpus, room.cpu_units, room.memory_mib
            if ending.limit_at_s > self._times[-1]:
                self._times.append(ending.limit_at_s)
                self._free.append((gpus, cpu_units, memory_mib))
            else:
                self._free[-1] = gpus, cpu_units, memory_mib

    def first_room_s(self, demand: Demand, longest_s: float) -> float:
        """Return the first time from which the slot has room for the demand for `longest_s`. Return inf if there is none."""
        gpus, cpu_units, memory_mib = self._needed(demand)
        since_s = inf
        for time_s, free in zip(self._times, self._free):
            if time_s >= since_s + longest_s:
                break
            if free[0] < gpus or free[1] < cpu_units or free[2] < memory_mib:
                since_s = inf
            elif since_s == inf:
                since_s = time_s
        return since_s

    def take(self, demand: Demand, start_s: float, end_s: float) -> None:
        gpus, cpu_units, memory_mib = self._needed(demand)
        for time_s in (start_s, end_s):
            at = bisect_left(self._times, time_s)
            if time_s != inf and (at == len(self._times) or self._times[at] != time_s):
                self._times.insert(at, time_s)
                self._free.insert(at, self._free[at - 1])
        for at, time_s in enumerate(self._times):
            if start_s <= time_s < end_s:
                free = self._free[at]
                self._free[at] = free[0] - gpus, free[1] - cpu_units, free[2] - memory_mib

    def _needed(self, demand: Demand) -> Amounts:
        gpus = (self.slot.total.gpus or 1) if demand.gpus == ALL_GPUS else demand.gpus
        return gpus, demand.cpu_units, demand.memory_mib
