"""Orders to the agents of hosts. A task knows its instance; only this module resolves the host that has it."""

from __future__ import annotations

from collections.abc import Iterable

from corral.core import Tx
from corral.decide.lifecycle import startable
from corral.model.placement import Claim, Placement
from corral.model.task import Run, Task
from corral.services.ecs.starting import start_of, with_gpus
from corral.services.ecs.task_spec import TaskSpec, spec_of
from corral.store import Store


def host_of(tx: Tx[Store], task: Task) -> str:
    """The host of a placed task."""
    assert task.instance_id is not None
    return tx.store.instances.host_of(task.instance_id)


def start(tx: Tx[Store], task: Task, run: Run, spec: TaskSpec) -> None:
    tx.start(host_of(tx, task), start_of(tx, task, run, spec))


def start_runs(tx: Tx[Store], task: Task, spec: TaskSpec) -> None:
    """Start the containers of a placed task that have not started and wait for no other."""
    host_id = host_of(tx, task)
    for run in startable(task.runs):
        tx.start(host_id, start_of(tx, task, run, spec))


def stop(tx: Tx[Store], task: Task, runs: Iterable[Run]) -> None:
    host_id = host_of(tx, task)
    for run in runs:
        tx.stop(host_id, run.attempt_id)


def check(tx: Tx[Store], task: Task, run: Run, spec: TaskSpec) -> None:
    """Tell a restarted agent to watch the health of a container that is running."""
    tx.check(host_of(tx, task), start_of(tx, task, run, spec).spec)


def grant(tx: Tx[Store], claim: Claim, placement: Placement) -> None:
    """Place a task that has waited, and tell its host to start it."""
    task = tx.store.tasks.get(claim.id)
    assert task is not None, "a claim of a task that does not exist"
    spec = spec_of(tx, task)
    runs = with_gpus(tx, task.pool, task.runs, placement, spec, claim)
    start_runs(tx, tx.store.tasks.place(task, placement, runs, tx.now_s), spec)
    tx.changed(f"task:{task.id}")
