"""Changes of tasks that wait (`services/ecs/waiting_changes.py`), for `corral set`.

The response has a row for each task. A task that does not wait is not changed, and its row has its state. If one change is not
valid, no task of the same command is changed. Several commands together change the tasks of a large array, so that no command keeps
the lane busy for long.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.placement import TASK
from corral.model.task import Task, TaskState
from corral.services.corral.errors import TaskNotFoundException, ecs_refusals
from corral.services.corral.runs import needs_of
from corral.services.ecs.lookup import find_cluster, short
from corral.services.ecs.queue_reasons import why_queued
from corral.services.ecs.task_description import why_claim_waits
from corral.services.ecs.task_queue import read_options
from corral.services.ecs.waiting_changes import WaitingChange, change_waiting, is_waiting
from corral.store import Store

CHUNK = 20  # the most tasks that one command changes or describes


def update_waiting_tasks(params: dict[str, Any], caller: Caller) -> Generator[Callable[[Tx[Store]], Any], Any, dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    places = yield partial(_places, task_ids=params["tasks"])
    for start in range(0, len(params["tasks"]), CHUNK):
        part = params["tasks"][start : start + CHUNK]
        changed = yield partial(_checked_change, given=params, task_ids=part, caller=caller)
        # The scheduler has run since then. So this describes what has become of the tasks.
        rows += yield partial(_describe, changed=changed, places=places)
    return {"tasks": rows}


def _places(tx: Tx[Store], task_ids: list[str]) -> dict[str, int | None]:
    """Return the places of all tasks before any of them changes, because the change of one task moves the others."""
    found = (tx.store.tasks.get(short(each)) for each in task_ids)
    return {task.id: _place(tx, task) for task in found if task is not None}


def _checked_change(tx: Tx[Store], given: dict[str, Any], task_ids: list[str], caller: Caller) -> dict[str, bool]:
    with ecs_refusals():
        return _change(tx, given, task_ids, caller)


def _change(tx: Tx[Store], given: dict[str, Any], task_ids: list[str], caller: Caller) -> dict[str, bool]:
    """Change the tasks that wait. Return whether each task was changed."""
    cluster, _ = find_cluster(tx, caller, given.get("cluster"))
    change = WaitingChange(given.get("priority"), given.get("held"), given.get("timeLimitSeconds"), given.get("gpus"))
    found: dict[str, bool] = {}
    for each in task_ids:
        task = tx.store.tasks.get(short(each))
        if task is None or (task.region, task.cluster) != (caller.region, cluster):
            raise TaskNotFoundException(f"Task {each[:300]} was not found in cluster {cluster}. `corral ps` lists the tasks.")
        found[task.id] = is_waiting(task)
        if is_waiting(task):
            change_waiting(tx, task, change)
    return found


def _describe(tx: Tx[Store], changed: dict[str, bool], places: dict[str, int | None]) -> list[dict[str, Any]]:
    by_id = tx.store.tasks.several(list(changed))
    return [_row(tx, by_id[task_id], was, places.get(task_id)) for task_id, was in changed.items() if task_id in by_id]


def _row(tx: Tx[Store], task: Task, changed: bool, place_before: int | None) -> dict[str, Any]:
    waits, options = is_waiting(task), read_options(task.details.get("tags", ()))
    is_stopping = task.state is not TaskState.STOPPED and task.desired is TaskState.STOPPED
    claim = tx.store.claims.get(TASK, task.id)
    reason = (why_claim_waits(tx, task.pool, claim) if claim is not None else why_queued(tx, task)) if waits else ""
    return {
        "task": task.id,
        "name": task.label,
        "changed": changed,
        "state": "STOPPING" if is_stopping else "WAITING" if waits else task.state.value,
        "place": _place(tx, task),
        "placeBefore": place_before,
        "priority": options.priority,
        "held": waits and options.held,
        "timeLimitSeconds": task.time_limit_s,
        "needs": needs_of(task.demand),
        "reason": reason,
    }


def _place(tx: Tx[Store], task: Task) -> int | None:
    """Return the place of a task in the waiting list of its pool. Return None if it has no claim."""
    claim = tx.store.claims.get(TASK, task.id)
    return tx.store.fleet.pool(task.pool).place_in_line(claim) if claim is not None else None
