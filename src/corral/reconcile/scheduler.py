"""The scheduler: a release, a new host or a new claim wakes a pool, and its claims are served."""

from __future__ import annotations

from itertools import islice

from corral.core import Tx
from corral.decide.place import serve
from corral.services.ecs.starting import start_runs, with_gpus
from corral.store import Store

GRANTS_MAX = 100  # about 5 ms of work; the rest follows in the next batch


def look_at_pool(tx: Tx[Store], pool_name: str) -> None:
    granted = 0
    for claim, placement in islice(serve(tx.store.fleet.pool(pool_name)), GRANTS_MAX):
        task = tx.store.task(claim.task_id)
        assert task is not None, "the line of claims holds a task that is not there"
        runs = with_gpus(tx, task, placement, claim)
        placed = tx.store.place_task(task, placement, runs, tx.now_s)
        start_runs(tx, placed)
        tx.changed(f"task:{task.id}")
        granted += 1
    if granted == GRANTS_MAX:
        tx.due(f"pool:{pool_name}", tx.now_s)
