"""Stopping a task, for whatever reason."""

from __future__ import annotations

from corral.core import Tx
from corral.model.run import RunState
from corral.model.task import StopCode, Task, TaskState
from corral.services.ecs.following import follow
from corral.store import Store


def stop(tx: Tx[Store], task: Task, code: StopCode, reason: str) -> Task:
    """Stop a task: a claim ends at once, a placed task when its containers have ended. The first reason stays."""
    if task.desired is TaskState.STOPPED:
        return task
    stopping = task.but(desired=TaskState.STOPPED, stopping_at_s=tx.now_s, stop_code=code.value, stopped_reason=reason)
    if task.state is TaskState.PROVISIONING:
        runs = tuple(run.but(state=RunState.STOPPED, waits=False) for run in task.runs)
        tx.store.tasks.change(task, stopping.but(state=TaskState.STOPPED, stopped_at_s=tx.now_s, runs=runs))
        tx.changed(f"task:{task.id}")
        tx.mark(f"pool:{task.pool}")  # a slot may have been reserved for it
    else:
        follow(tx, task, stopping, task.runs)
    after = tx.store.tasks.get(task.id)
    assert after is not None
    return after
