"""Reconcilers of the task queue (`services/ecs/task_queue.py`).

To admit a task is to give it a claim.

`queued-task` handles one task. If the task has ended, it replaces the task or removes it from the queue. Otherwise it admits the
task if nothing holds it back. `end-notice` informs the tasks that wait for an ended chain or array. `task-array` admits the next
members of an array. `start-times` admits tasks whose start time has come. `old-arrays` deletes old arrays. Each call handles
a limited number of tasks, because any number of tasks can wait for one task. Later transactions handle the rest.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.decide.tasks.task_queue import TaskOutcome, outcome, requeue_at_s
from corral.model.durations import DAY_S
from corral.model.task import StopCode, TaskState
from corral.model.task_queue import EndNotice, QueuedTask, QueueState, needed_array
from corral.services.ecs.queue_reasons import failure_text, member_failure_text
from corral.services.ecs.requeue import requeue
from corral.services.ecs.task_progress import begin_stop
from corral.services.ecs.task_queue import ARRAYS, TIMES, array_reconciler, settle
from corral.store import Store

ADMITTED_MAX = 20  # the most tasks that one call of a reconciler admits or stops: about 5 ms of work
ARRAYS_KEPT_S = 30.0 * DAY_S  # the tags corral:after and corral:after-any can name an array for this time after its end
ARRAYS_MAX = 500  # the most arrays that one call deletes
SWEEP_EVERY_S = 3600.0  # the shortest time between two deletions of old arrays, if the first one has deleted all of them


def reconcile_queued_task(tx: Tx[Store], task_id: str) -> None:
    """If a task has ended, replace it or remove it from the queue. Otherwise admit it, if nothing holds it back."""
    task, queued = tx.store.tasks.get(task_id), tx.store.task_queue.get(task_id)
    if task is not None and task.state is not TaskState.STOPPED:
        if queued is not None and queued.state is not QueueState.ADMITTED:
            settle(tx, queued)
        return
    at_s = requeue_at_s(queued, task, tx.now_s) if task is not None and queued is not None else None
    if task is not None and queued is not None and at_s is not None:
        requeue(tx, task, queued, at_s)
        _change_array(tx, queued, requeued=True)
        return
    ended = outcome(task) if task is not None else TaskOutcome(False, "was deleted before its end was handled")
    if queued is not None:
        tx.store.task_queue.remove(task_id)
        _change_array(tx, queued, ended)
    chain = queued.chain if queued is not None else task_id
    if tx.store.task_queue.is_needed(chain):
        _announce(tx, EndNotice(chain, ended.succeeded, True, failure_text(task_id, task, ended)))


def _change_array(tx: Tx[Store], queued: QueuedTask, ended: TaskOutcome | None = None, *, requeued: bool = False) -> None:
    """Count the end or the requeue of a member, inform the tasks that wait for the array, and admit the next member."""
    array = tx.store.task_queue.array(queued.array) if queued.array else None
    if array is None:
        return
    was_admitted = queued.state is QueueState.ADMITTED
    array = array.but(admitted=array.admitted - was_admitted, waiting=array.waiting - (not was_admitted) + requeued)
    if ended is not None:
        array = array.but(succeeded=array.succeeded + ended.succeeded, failed=array.failed + (not ended.succeeded))
    tx.store.task_queue.put_array(array, tx.now_s)
    needed = needed_array(array.key)
    if ended is not None and tx.store.task_queue.is_needed(needed) and (array.has_ended or not ended.succeeded):
        _announce(tx, EndNotice(needed, array.failed == 0, array.has_ended, member_failure_text(queued.task_id, queued, ended)))
    if array.has_ended:
        tx.due(ARRAYS, tx.now_s + ARRAYS_KEPT_S)
    else:
        tx.mark(array_reconciler(array.key))


def _announce(tx: Tx[Store], end: EndNotice) -> None:
    """Inform the waiting tasks in later transactions, because a failure can stop many tasks, one after the other."""
    tx.store.task_queue.add_end(end)
    tx.due(f"end-notice:{end.needed}", tx.now_s)


def reconcile_end(tx: Tx[Store], needed: str) -> None:
    """Inform the tasks that wait for the end of a chain or an array. A failure stops the tasks that need a success."""
    waits = tx.store.task_queue
    end = waits.end(needed)
    if end is None:
        return
    informed = waits.dependents(end, ADMITTED_MAX)
    for task_id, any_end in informed:
        queued = waits.meet(needed, task_id)
        if end.succeeded or any_end:
            settle(tx, queued)
        else:
            waits.change(queued)
            _fail(tx, task_id, end)
    if len(informed) < ADMITTED_MAX:
        waits.drop_end(needed)
    else:
        tx.due(f"end-notice:{needed}", tx.now_s)


def _fail(tx: Tx[Store], task_id: str, end: EndNotice) -> None:
    """Stop a task that can never start. Then its own end is announced to the tasks that wait for it."""
    task = tx.store.tasks.get(task_id)
    if task is not None and task.state is TaskState.PROVISIONING:
        begin_stop(tx, task, StopCode.FAILED_TO_START, end.reason)


def reconcile_array(tx: Tx[Store], key: str) -> None:
    """Admit the READY members with the smallest indexes, up to the limit of the array."""
    for _ in range(ADMITTED_MAX):
        array, queued = tx.store.task_queue.array(key), tx.store.task_queue.next_ready(key)
        if array is None or queued is None or not array.has_room:
            return
        if settle(tx, queued) is not QueueState.ADMITTED:
            return  # the task has just ended: the reconciler `queued-task` handles its end next, and marks the array again
    tx.due(array_reconciler(key), tx.now_s)


def admit_by_time(tx: Tx[Store], _: str) -> None:
    """Admit tasks whose start time has come, and schedule the next call for the next start time."""
    for queued in tx.store.task_queue.whose_time_has_come(tx.now_s, ADMITTED_MAX):
        settle(tx, queued)
    next_s = tx.store.task_queue.next_time_s()
    if next_s is not None:
        tx.due(TIMES, max(next_s, tx.now_s))


def drop_ended_arrays(tx: Tx[Store], _: str) -> None:
    """Delete arrays that ended more than ARRAYS_KEPT_S ago, and schedule the next call."""
    dropped = tx.store.task_queue.drop_arrays(tx.now_s - ARRAYS_KEPT_S, ARRAYS_MAX)
    oldest_s = tx.store.task_queue.oldest_ended_array_s()
    if oldest_s is not None:
        tx.due(ARRAYS, tx.now_s if dropped >= ARRAYS_MAX else max(oldest_s + ARRAYS_KEPT_S, tx.now_s + SWEEP_EVERY_S))
