"""What depends on the wall clock: scheduled actions, and tasks that start at a time. All other deadlines are steady times."""

from __future__ import annotations

from math import inf

from corral.core.transactions import Tx
from corral.services.ecs.task_queue import read_options, settle, start_time_s
from corral.store import Store

TASKS_MAX = 10_000


def wall_clock_set(tx: Tx[Store], _: str) -> None:
    """Compute again when scheduled actions and tasks start, after somebody has set the wall clock."""
    for kind in ("schedule", "target-schedule"):
        tx.store.hasten_due(kind, tx.now_s)
    for queued in tx.store.task_queue.whose_time_has_come(inf, TASKS_MAX):
        task = tx.store.tasks.get(queued.task_id)
        if task is not None and not queued.attempt:  # a requeued task waits for a duration
            settle(tx, queued.but(not_before_s=start_time_s(tx, read_options(task.details.get("tags", ())))))
