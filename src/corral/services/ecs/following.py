"""What follows from a change of a placed task: its rows, and what its host is told."""

from __future__ import annotations

from corral.core import Tx
from corral.decide.lifecycle import advance
from corral.model.run import RunState
from corral.model.task import Run, Task
from corral.services.ecs.starting import start_of
from corral.services.ecs.task_spec import rules_of, spec_of
from corral.store import Store


def follow(tx: Tx[Store], before: Task, task: Task, runs: tuple[Run, ...]) -> None:
    """`before` is what the rows say; `task` and `runs` are what was decided or seen. Idempotent in what it orders."""
    assert before.host_id is not None
    progress = advance(task, runs, tx.now_s, rules_of(tx, task))
    tx.store.change_task(before, progress.task)
    tx.changed(f"task:{before.id}")
    for run in progress.start:
        tx.start(before.host_id, start_of(tx, progress.task, run, spec_of(tx, before)))
    for run in progress.stop:
        tx.stop(before.host_id, run.attempt_id)
    if progress.look_at_s is not None:
        tx.due(f"task:{before.id}", progress.look_at_s)
    pool = tx.store.fleet.pool(before.pool)
    if pool.has_line() and (pool.restless or _frees(before.runs, progress.task.runs)):  # somebody may have waited for it to go
        tx.mark(f"pool:{before.pool}")


def _frees(before: tuple[Run, ...], after: tuple[Run, ...]) -> bool:
    return any(run.state is RunState.STOPPED and was.state is not RunState.STOPPED for run, was in zip(after, before))
