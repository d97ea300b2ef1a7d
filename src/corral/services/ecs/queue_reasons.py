"""Reasons why a task of the task queue waits, for containers[].reason of DescribeTasks and for stoppedReason.

`model/task_queue.py` defines the terms of the task queue.
"""

from __future__ import annotations

from datetime import UTC, datetime

from corral.core.transactions import Tx
from corral.decide.tasks.task_queue import TaskOutcome
from corral.model.queue_options import ARRAY_PREFIX
from corral.model.task import Task
from corral.model.task_queue import QueuedTask, QueueState
from corral.store import Store

NAMED_MAX = 3  # a reason names at most this many tasks and arrays
SHORT = 8  # digits of a task id that the command line shows


def why_queued(tx: Tx[Store], task: Task) -> str:
    """Return why a task has no claim yet: each thing that holds it back."""
    queued = tx.store.task_queue.get(task.id)
    if task.pause is not None and task.pause.turn_s and (queued is None or queued.state is QueueState.ADMITTED):
        return f"{tx.settings.turns_max} tasks take turns on each GPU already (turns.most_per_gpu in corral.toml)"
    if queued is None:  # the task has got its resources since the snapshot of this reader began
        return ""
    reasons = [f"held: `corral release {task.id[:SHORT]}` releases it"] if queued.held else []
    if queued.unmet:
        reasons.append(_why_behind(tx, queued))
    if queued.not_before_s is not None:
        requeued = f" (requeue {queued.attempt} after a failure)" if queued.attempt else ""
        until = datetime.fromtimestamp(tx.steps.wall_s(queued.not_before_s), UTC)
        reasons.append(f"waits until {until:%Y-%m-%d %H:%M:%S} UTC{requeued}")
    array = tx.store.task_queue.array(queued.array) if queued.state is QueueState.READY else None
    if array is not None:
        reasons.append(f"the array runs at most {array.limit} {'task' if array.limit == 1 else 'tasks'} at a time")
    return "; ".join(reasons) or "waits for its place in line"


def _why_behind(tx: Tx[Store], queued: QueuedTask) -> str:
    needs = tx.store.task_queue.needs_of(queued.task_id, NAMED_MAX)
    more = f" and {queued.unmet - len(needs)} more" if queued.unmet > len(needs) else ""
    return f"waits for {', '.join(_name_of_needed(tx, needed) for needed, _ in needs)}{more}"


def _name_of_needed(tx: Tx[Store], needed: str) -> str:
    if needed.startswith(ARRAY_PREFIX):
        array = tx.store.task_queue.array(needed.removeprefix(ARRAY_PREFIX))
        assert array is not None, "a task waits for an array that does not exist"
        return f"array {array.id} ({array.succeeded + array.failed} of {array.size} tasks have ended)"
    current = tx.store.tasks.get(tx.store.task_queue.of_chain(needed) or needed)
    return name_of_run(current) if current is not None else f"run {needed[:SHORT]}"


def name_of_run(task: Task) -> str:
    """Return the name of a task in messages, such as `run train (1a2b3c4d)`."""
    return f"run {task.label} ({task.id[:SHORT]})" if task.name else f"run {task.id[:SHORT]}"


def failure_text(task_id: str, task: Task | None, ended: TaskOutcome) -> str:
    """Return the stoppedReason of the tasks that wait for a task which has failed."""
    name = name_of_run(task) if task is not None else f"run {task_id[:SHORT]}"
    return f"Dependency failed: {name} {ended.text}"


def member_failure_text(task_id: str, queued: QueuedTask, ended: TaskOutcome) -> str:
    """Return the stoppedReason of tasks that wait for an array. A member of the array has failed."""
    array_id = queued.array.rpartition("/")[2]
    return f"Dependency failed: task {queued.index} ({task_id[:SHORT]}) of array {array_id} {ended.text}"
