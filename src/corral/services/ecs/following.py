"""What follows from a change of a placed task: its rows, and what its host is told."""

from __future__ import annotations

from corral.core import Tx
from corral.decide.lifecycle import advance
from corral.model.instance import HOST_POOL
from corral.model.run import RunState
from corral.model.task import Run, Task, TaskState
from corral.services.ecs import orders
from corral.services.ecs.task_spec import rules_of, spec_of
from corral.store import Store


def follow(tx: Tx[Store], before: Task, task: Task, runs: tuple[Run, ...]) -> None:
    """`before` is what the rows say; `task` and `runs` are what was decided or seen. Idempotent in what it orders."""
    progress = advance(task, runs, tx.now_s, rules_of(tx, task))
    tx.store.tasks.change(before, progress.task)
    tx.changed(f"task:{before.id}")
    for run in progress.start:
        orders.start(tx, progress.task, run, spec_of(tx, before))
    if progress.stop:
        orders.stop(tx, before, progress.stop)
    if progress.look_at_s is not None:
        tx.due(f"task:{before.id}", progress.look_at_s)
    pool = tx.store.fleet.pool(before.pool)
    if pool.has_line() and (pool.restless or _frees(before.runs, progress.task.runs)):  # somebody may have waited for it to go
        tx.mark(f"pool:{before.pool}")
    if progress.task.state is TaskState.STOPPED and before.pool != HOST_POOL:
        tx.mark(f"instance:{before.instance_id}")  # it may shut down, and this may have been its last task


def _frees(before: tuple[Run, ...], after: tuple[Run, ...]) -> bool:
    return any(run.state is RunState.STOPPED and was.state is not RunState.STOPPED for run, was in zip(after, before))
