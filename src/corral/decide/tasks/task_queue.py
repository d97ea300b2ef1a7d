"""Eligibility of tasks in the task queue: when a task may wait for capacity, how a task has ended, and when it is requeued.

A task in the task queue is admitted when nothing holds it back. Then it waits for capacity. A task that has failed is requeued if a
new task replaces it. `model/task_queue.py` describes the task queue.
"""

from __future__ import annotations

from msgspec import Struct

from corral.model.task import Run, StopCode, Task
from corral.model.task_queue import QueuedTask, QueueState, TaskArray

BACKOFF_S, BACKOFF_MAX_S = 1.0, 60.0
# The stop codes of tasks that a user or the time limit has stopped (USER), or their service (SERVICE).
NEVER_REQUEUED = frozenset({StopCode.USER.value, StopCode.SERVICE.value})


class TaskOutcome(Struct, frozen=True):
    succeeded: bool
    text: str  # continues a sentence that begins with the name of the task


def next_state(queued: QueuedTask, array: TaskArray | None, now_s: float) -> QueueState:
    """Return the state that a task in the queue should have now.

    An admitted task stays admitted, even if its array has no room. It is WAITING again only if it is held, has a time in the
    future, or waits for other tasks.
    """
    if queued.held or queued.unmet or (queued.not_before_s is not None and queued.not_before_s > now_s):
        return QueueState.WAITING
    if queued.state is QueueState.ADMITTED or array is None or array.has_room:
        return QueueState.ADMITTED
    return QueueState.READY


def outcome(task: Task) -> TaskOutcome:
    """Describe how a stopped task has ended.

    A task has succeeded if the essential container that ended first has ended by itself, with exit code 0. A task that a user or
    the time limit has stopped has not succeeded, even if its program exits with 0.
    """
    if task.stop_code != StopCode.ESSENTIAL_EXITED:
        return TaskOutcome(False, f"was stopped: {task.stopped_reason}" if task.stopped_reason else "was stopped")
    first = min(task.runs, key=_end_order)
    return TaskOutcome(first.exit_code == 0, f"ended with exit code {first.exit_code}")


def recorded_outcome(stop_code: str | None, failed: bool) -> TaskOutcome:
    """Describe how a task has ended, from what the task history stores: its stop code, and whether it has failed."""
    if stop_code != StopCode.ESSENTIAL_EXITED:
        return TaskOutcome(False, "was stopped")
    return TaskOutcome(not failed, "ended with an exit code that is not 0" if failed else "ended with exit code 0")


def _end_order(run: Run) -> tuple[bool, float, int]:
    return not run.essential, run.stopped_at_s if run.stopped_at_s is not None else float("inf"), run.position


def requeue_at_s(queued: QueuedTask, task: Task, now_s: float) -> float | None:
    """Return when the task that replaces a stopped task may start. Return None if no task replaces it.

    The delay doubles with each requeue, so that a command that fails at once does not use all resources. A task that never got
    capacity is not requeued, because it was stopped while it waited.
    """
    if queued.requeues <= 0 or task.instance_id is None or task.stop_code in NEVER_REQUEUED or outcome(task).succeeded:
        return None
    return now_s + min(BACKOFF_S * 2.0 ** min(queued.attempt, 16), BACKOFF_MAX_S)
