"""What users read of a paused task: its state, why it is paused, where its memory is, and what it waits for."""

from __future__ import annotations

from math import ceil

from corral.core.transactions import Tx
from corral.decide.placement.preemption import is_higher, priority_of
from corral.decide.tasks.lifecycle import duration_text
from corral.model.pause import PAUSED_TAG, Lends, Pause, PausePhase
from corral.model.placement import TASK, Claim
from corral.model.task import Demand, Task, TaskState
from corral.store import Store

PAUSED_ATTRIBUTE = "corral.paused"  # its value is the cause: user, priority or turn
PHASE_ATTRIBUTE = "corral.pause-phase"
TAG_VALUE_MAX = 256
MIB_PER_GIB = 1024
LENDERS_MAX = 100  # a reason considers at most this many tasks
STATES = {PausePhase.PAUSING: "PAUSING", PausePhase.PAUSED: "PAUSED", PausePhase.RESUMING: "RESUMING"}


def pause_state(task: Task) -> str | None:
    """Return PAUSING, PAUSED or RESUMING. Return None for a task that is not paused, or that stops."""
    if task.pause is None or task.state is not TaskState.RUNNING or task.desired is TaskState.STOPPED:
        return None
    return STATES.get(task.pause.phase)


def pause_attributes(task: Task) -> list[dict[str, str]]:
    """Return attributes that say that a task is paused. Its lastStatus stays RUNNING, which every client of ECS knows."""
    if pause_state(task) is None or task.pause is None:
        return []
    cause = task.pause.cause.value if task.pause.cause is not None else ""
    return [{"name": PAUSED_ATTRIBUTE, "value": cause}, {"name": PHASE_ATTRIBUTE, "value": task.pause.phase.value}]


def pause_tags(task: Task) -> list[dict[str, str]]:
    """Return a tag with the reason for the pause. The tag is only in descriptions, and tags of requests cannot set it."""
    if pause_state(task) is None or task.pause is None:
        return []
    return [{"key": PAUSED_TAG, "value": task.pause.reason[:TAG_VALUE_MAX]}]


def pause_reason(task: Task, waits_for: str = "") -> str:
    """Return why a task is paused, where its memory is, and what it waits for. Empty: it is not paused."""
    pause = task.pause
    if pause is None or pause_state(task) is None:
        return ""
    parts = [pause.reason]
    if pause.held_mib:
        parts.append(f"{pause.held_mib / MIB_PER_GIB:.3g} GiB in the memory of the host")
    if pause.why_not:
        parts.append(f"could not continue: {pause.why_not}")
    if pause.returns:
        parts.append(f"waits to continue: {waits_for}" if waits_for else "waits to continue")
    return "; ".join(filter(None, parts))


def why_not_back(tx: Tx[Store], pool_name: str, demand: Demand) -> str:
    """Explain why a paused task cannot continue yet: other tasks have its GPUs, or nothing can use them now."""
    pool = tx.store.fleet.pool(pool_name)
    slot_id = demand.rules.slot_id if demand.rules is not None else ""
    if slot_id not in pool or not (slot := pool.slot(slot_id)).connected:
        return "its host is not connected"
    its = "its GPU is" if len(demand.own_gpus) == 1 else "its GPUs are"
    missing = [gpu_id for gpu_id in demand.own_gpus if gpu_id not in slot.gpus]
    if not missing:
        return f"{its} free"
    holders = [task_id for task_ids in tx.store.hosts.holders_of(missing).values() for task_id in task_ids]
    names = [task.label for task_id in dict.fromkeys(holders) if (task := tx.store.tasks.get(task_id)) is not None]
    if names:
        return f"{its} held by {', '.join(names[:-1])} and {names[-1]}" if names[1:] else f"{its} held by {names[0]}"
    reasons = [slot.withheld[gpu_id] for gpu_id in missing if gpu_id in slot.withheld]
    if reasons:
        return f"{its} not available: {', '.join(dict.fromkeys(reasons))}"
    return f"{its} not free"


def who_makes_room(tx: Tx[Store], pool_name: str, claim: Claim) -> str:
    """Say which task is being paused for a claim, or from when on one can be. Empty: no task makes room for it."""
    waiting = tx.store.tasks.get(claim.id) if claim.kind == TASK else None
    takes_turns = waiting is not None and waiting.pause is not None and waiting.pause.turn_s > 0
    later: list[tuple[float, str]] = []
    for task in tx.store.tasks.several(tx.store.tasks.listing.lending(pool_name, LENDERS_MAX)).values():
        pause = task.pause or Pause()
        if pause.phase is PausePhase.PAUSING and pause.claim == claim.id:
            return f"{task.label} is being paused for it"
        if pause.phase is not PausePhase.RUNNING or not task.demand.gpus:
            continue
        why_not, since_s = f" (the last pause failed: {pause.why_not})" if pause.failures else "", task.started_at_s or 0.0
        if pause.lends is not Lends.NOT and is_higher(priority_of(claim), pause.priority):
            at_s, text = pause.may_be_paused_at_s(since_s), f"{task.label} makes room in"
        elif takes_turns and pause.turn_s and not is_higher(pause.priority, priority_of(claim)):
            at_s, text = pause.turn_ends_at_s(since_s), f"the turn of {task.label} ends in"
        else:
            continue
        if at_s > tx.now_s:
            later.append((at_s, f"{text} {duration_text(ceil(at_s - tx.now_s))}{why_not}"))
    return min(later)[1] if later else ""
