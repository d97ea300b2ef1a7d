"""Preemptions: running tasks make room for waiting claims, and paused tasks return to the line. The scheduler calls both.

`decide/placement/preemption.py` chooses the tasks.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from math import inf

from corral.core.transactions import Tx
from corral.decide.placement.preemption import CLAIMS_MAX, GpuLender, Preemption, choose, is_higher, priority_of
from corral.fleet.leaving_tasks import busy_of
from corral.model.pause import Cause, Lends, Pause, PausePhase
from corral.model.placement import JOB, TASK, Claim
from corral.model.task import StopCode, Task, TaskState
from corral.services.ecs.pauses import begin_pause, begin_return, why_not_pausable
from corral.services.ecs.task_progress import begin_stop
from corral.services.ecs.task_queue import rank_of, requeue_once
from corral.store import Store

SCANNED_MAX = 200  # the most waiting claims that are looked at


def make_room(tx: Tx[Store], pool_name: str) -> None:
    """Pause or stop running tasks of a pool for claims that do not fit now. Call this when no claim of the pool fits."""
    pool = tx.store.fleet.pool(pool_name)
    if not tx.store.tasks.with_pause or not pool.has_claims():
        return
    lenders, turns, helped = _lenders(tx, pool_name)
    if not lenders:
        return
    waiting = [claim for claim in islice(pool.in_order(), SCANNED_MAX) if claim.id not in helped and pool.is_open(claim)]
    claims = [pool.ranked(claim) for claim in waiting[:CLAIMS_MAX]]
    found, again_at_s = choose(pool, claims, lenders, turns, tx.now_s, tx.settings.turns_max)
    for each in found:
        for task_id in each.task_ids:
            _take(tx, task_id, each)
    if again_at_s < inf:
        tx.due(f"pool:{pool_name}", again_at_s)


def return_to_line(tx: Tx[Store], pool_name: str) -> None:
    """Give claims to paused tasks of a pool, except those that a user has paused.

    The task of a Batch job gets its claim when no job with a higher priority waits: the ranks of jobs do not contain the priorities
    of their queues in a form that can be compared with the rank of a task.
    A task that takes turns gets its first claim when it is not one too many. Of several owners, the one with the fewest tasks that
    take turns is first.
    """
    found = [task for task_id in tx.store.tasks.with_pause if (task := tx.store.tasks.get(task_id)) is not None]
    in_pool = sorted((task for task in found if task.pool == pool_name), key=lambda task: (task.created_at_s, task.id))
    for task in in_pool:
        if task.is_paused and _may_return(tx, task):
            begin_return(tx, task)
    lines = tx.store.tasks.turn_lines
    if not lines.has_tasks(pool_name):
        return
    taking_turns = Counter(task.owner for task in in_pool if task.pause is not None and task.pause.turn_s)
    room = tx.settings.turns_max * tx.store.fleet.pool(pool_name).total_gpus - taking_turns.total()
    for _ in range(room):
        next_id = lines.next_of(pool_name, taking_turns)
        new = tx.store.tasks.get(next_id) if next_id is not None else None
        if new is None or new.pause is None:
            break
        tx.store.tasks.enqueue(new, rank_of(new, int(new.pause.priority[0])), roams=False, longest_s=None)
        taking_turns[new.owner] += 1


def _may_return(tx: Tx[Store], task: Task) -> bool:
    pause = task.pause
    if pause is None or pause.returns or pause.cause is Cause.USER or pause.why_not or task.desired is TaskState.STOPPED:
        return False
    heads = tx.store.fleet.pool(task.pool).heads()
    return not any(claim.kind == JOB and is_higher(priority_of(claim), pause.priority) for claim in heads)


def _lenders(tx: Tx[Store], pool_name: str) -> tuple[list[GpuLender], dict[str, Pause], set[str]]:
    """Return the tasks that may make room, the records of waiting tasks that take turns, and the claims that get room already."""
    lenders: list[GpuLender] = []
    turns: dict[str, Pause] = {}
    helped: set[str] = set()
    for task_id in sorted(tx.store.tasks.with_pause):
        task = tx.store.tasks.get(task_id)
        if task is None or task.pause is None or task.pool != pool_name:
            continue
        pause = task.pause
        is_stopping = task.desired is TaskState.STOPPED and task.state is not TaskState.STOPPED
        if pause.claim and (pause.phase is PausePhase.PAUSING or is_stopping):
            helped.add(pause.claim)
        if pause.turn_s and (task.state is TaskState.PROVISIONING or pause.returns):
            turns[task.id] = pause
        if pause.phase is PausePhase.RUNNING and pause.lends_something and (lender := _lender(tx, task, pause)) is not None:
            lenders.append(lender)
    return lenders, turns, helped


def _lender(tx: Tx[Store], task: Task, pause: Pause) -> GpuLender | None:
    gpu_ids = tuple(gpu_id for run in task.runs for gpu_id in run.gpu_ids if run.stopped_at_s is None)
    is_stoppable = pause.lends is Lends.KILL and task.desired is TaskState.RUNNING and task.instance_id is not None
    if not gpu_ids or task.instance_id is None or not (is_stoppable or why_not_pausable(tx, task) is None):
        return None
    return GpuLender(
        task.id,
        task.instance_id,
        gpu_ids,
        pause,
        task.started_at_s or task.placed_at_s or task.created_at_s,
        task.demand.cpu_units,
        task.demand.memory_mib,
        is_busy=bool(busy_of(tx, [task.id])),
    )


def _take(tx: Tx[Store], task_id: str, preemption: Preemption) -> None:
    task = tx.store.tasks.get(task_id)
    assert task is not None and task.pause is not None
    name = _name(tx, preemption.claim)
    if task.pause.lends is Lends.KILL and not preemption.is_turn:
        task = tx.store.tasks.set_pause(task, task.pause.but(claim=preemption.claim.id), tx.now_s)
        requeue_once(tx, task)
        begin_stop(tx, task, StopCode.TERMINATION, f"Stopped for {name}, which has a higher priority (corral:preemptible=kill)")
    elif preemption.is_turn:
        begin_pause(tx, task, Cause.TURN, f"its turn was over, {name} has the next one", preemption.claim.id)
    else:
        begin_pause(tx, task, Cause.PRIORITY, f"{name} has a higher priority", preemption.claim.id)


def _name(tx: Tx[Store], claim: Claim) -> str:
    task = tx.store.tasks.get(claim.id) if claim.kind == TASK else None
    return claim.name if task is None else task.label
