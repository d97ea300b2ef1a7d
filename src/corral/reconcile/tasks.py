"""Tasks: a time limit is reached; stopped ones are dropped when they have been shown for long enough."""

from __future__ import annotations

from corral.core import Tx
from corral.decide.lifecycle import advance
from corral.services.ecs.following import follow
from corral.services.ecs.task_spec import rules_of
from corral.store import Store

SWEEP_EVERY_S = 60.0
STOPPED_TASKS_S = 3600.0  # ECS shows a stopped task for an hour
ROWS_MAX = 500


def look_at_task(tx: Tx[Store], task_id: str) -> None:
    """A limit of a task may have been reached."""
    task = tx.store.tasks.get(task_id)
    if task is None or task.instance_id is None:
        return
    progress = advance(task, task.runs, tx.now_s, rules_of(tx, task))
    if progress.task != task:
        follow(tx, task, task, task.runs)
    elif progress.look_at_s is not None:
        tx.due(f"task:{task_id}", progress.look_at_s)


def sweep_tasks(tx: Tx[Store], _: str) -> None:
    """Drop stopped tasks, and the client tokens of RunTask, some at a time."""
    dropped = tx.store.tasks.drop_stopped(tx.now_s - STOPPED_TASKS_S, ROWS_MAX) + tx.store.tokens.drop_expired(tx.now_s, ROWS_MAX)
    tx.due("sweep:", tx.now_s if dropped >= ROWS_MAX else tx.now_s + SWEEP_EVERY_S)
