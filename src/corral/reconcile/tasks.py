"""Reconcilers of tasks.

They enforce time limits, stop the tasks of instances that end, and delete stopped tasks, old records in the history of tasks,
expired client tokens, deleted task definitions, and old use of GPUs.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.decide.tasks.lifecycle import advance
from corral.fleet.instances import why_tasks_stop
from corral.model.task import StopCode
from corral.services.ecs.task_progress import apply_progress, begin_stop
from corral.services.ecs.task_spec import rules_by_container
from corral.store import Store
from corral.store.owner_use import USE_KEPT_S

SWEEP_EVERY_S = 60.0
STOPPED_TASKS_S = 3600.0  # ECS shows a stopped task for an hour
DAY_S = 86_400.0
ROWS_MAX = 500  # the most rows of a table that one transaction deletes
RECORDS_MAX = 200  # the same for the history; fewer, because the deletion of a record changes a random page of the index of ids


def reconcile_task(tx: Tx[Store], task_id: str) -> None:
    """Stop a task whose time limit or startTimeout has passed. Otherwise schedule the next check."""
    task = tx.store.tasks.get(task_id)
    if task is None or task.instance_id is None:
        return
    progress = advance(task, task.runs, tx.now_s, rules_by_container(tx, task))
    if progress.task != task:
        apply_progress(tx, task, task, task.runs)
    elif progress.next_check_at_s is not None:
        tx.due(f"task:{task_id}", progress.next_check_at_s)


def evict_task(tx: Tx[Store], task_id: str) -> None:
    """Stop a task whose instance is stopped, terminated, rebooted or deregistered."""
    task = tx.store.tasks.get(task_id)
    instance = tx.store.instances.get(task.instance_id) if task is not None and task.instance_id is not None else None
    if task is not None and instance is not None:
        begin_stop(tx, task, StopCode.TERMINATION, why_tasks_stop(instance))


def drop_stopped_tasks(tx: Tx[Store], _: str) -> None:
    """Delete a limited number of stopped tasks, of old records in the history, of expired client tokens, and of old use of GPUs."""
    kept = tx.settings.history
    dropped = (
        tx.store.tasks.drop_stopped(tx.now_s - STOPPED_TASKS_S, ROWS_MAX),
        tx.store.tasks.history.drop_oldest(tx.now_s, kept.days * DAY_S, kept.tasks, RECORDS_MAX),
        tx.store.tokens.drop_expired(tx.now_s, ROWS_MAX),
        tx.store.owner_uses.drop_before(tx.now_s - USE_KEPT_S, ROWS_MAX),
    )
    tx.due("sweep:", tx.now_s if max(dropped) >= RECORDS_MAX else tx.now_s + SWEEP_EVERY_S)


def drop_deleted_definitions(tx: Tx[Store], _: str) -> None:
    """Delete task definitions that a user has deleted and that no task refers to.

    A stopped task refers to its definition until the task is deleted.
    """
    if tx.store.definitions.drop_deleted(tx.settings.account, ROWS_MAX):
        tx.due("deletion:", tx.now_s + SWEEP_EVERY_S)
