"""What hosts say: hello, and reports of what became of their runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import is_not

from corral.core import Tx
from corral.decide.lifecycle import NEVER_STARTED, observe, stoppable
from corral.model.run import SILENT_S, Foreign, Hello, Observed, RunState, run_of_attempt
from corral.model.task import Run, Task, TaskState
from corral.services.ecs.following import follow
from corral.services.ecs.starting import give_spare_gpus, start_of, start_runs
from corral.services.ecs.task_spec import rules_of, spec_of
from corral.store import Store

REBOOTED = "the host was restarted while the task was on it"
LOST = "the host no longer knows this run"


def hello(tx: Tx[Store], said: Hello) -> None:
    """A host (re)joined: take what it knows, then tell it all that should run there.

    What the host's engine knows is the truth for its present boot. So a run that we gave it and that it does not know
    was never started, and starting it now is the first time; unless the host was restarted since, or it had told us that
    the run was alive: then it is gone.
    """
    tx.begin_anew(said.host_id)
    before = tx.store.host(said.host_id)
    rebooted = before is not None and before["boot_id"] != said.boot_id
    tx.store.put_host(said, tx.now_s)
    tx.due(f"host:{said.host_id}", tx.now_s + SILENT_S)
    asked = {run.attempt_id for task in tx.store.tasks_on(said.host_id) for run in task.runs if not run.waits}  # until now
    report(tx, said.host_id, said.runs)
    known = {seen.run_id for seen in said.runs}
    for task in tx.store.tasks_on(said.host_id):
        unknown = [run for run in task.runs if run.attempt_id not in known and run.attempt_id in asked]
        missing = {run.attempt_id: _missing(task, run, rebooted, tx.now_s) for run in unknown}
        _apply(tx, task, {run_id: seen for run_id, seen in missing.items() if seen is not None})
        after = tx.store.task(task.id)
        assert after is not None
        if after.state is TaskState.STOPPED:
            continue
        if after.desired is TaskState.RUNNING:
            unknown_runs = tuple(run for run in after.runs if run.attempt_id not in known)
            start_runs(tx, after.but(runs=unknown_runs), spec_of(tx, after))
        else:
            for run in stoppable(after.runs, rules_of(tx, after)):
                tx.stop(said.host_id, run.attempt_id)
        _look_after(tx, after)
    tx.mark("pool:" + tx.store.host(said.host_id)["pool"])  # type: ignore[index]


def report(tx: Tx[Store], host_id: str, runs: Iterable[Observed]) -> None:
    """Runs started or ended. A word on a run that we do not know, or that is elsewhere, changes nothing of ours."""
    by_task: dict[str, tuple[Task, dict[str, Observed]]] = {}
    for seen in runs:
        task = tx.store.task_of_run(run_of_attempt(seen.run_id))
        if task is not None and task.host_id == host_id:
            by_task.setdefault(task.id, (task, {}))[1][seen.run_id] = seen
        if seen.stopped_at_s is None and (task is None or task.state is TaskState.STOPPED):
            tx.stop(host_id, seen.run_id)  # alive for a task that ended, or that we never heard of: it is nobody's
    for task, of_task in by_task.values():
        _apply(tx, task, of_task)
        for seen in of_task.values():
            if seen.asks_gpus is not None and seen.stopped_at_s is None:
                give_spare_gpus(tx, task.id, seen.run_id, seen.asks_gpus)


def heartbeat(tx: Tx[Store], host_id: str) -> None:
    host = tx.store.host(host_id)
    if host is not None:
        tx.store.host_seen(host_id, tx.now_s)
        if not host["connected"]:
            tx.due(f"host:{host_id}", tx.now_s + SILENT_S)
            tx.mark(f"pool:{host['pool']}")


def gpus_in_use(tx: Tx[Store], host_id: str, found: Mapping[str, Sequence[Foreign]]) -> None:
    """Which processes that are not of our runs compute on a host's GPUs: on those nothing is placed while they do."""
    host = tx.store.host(host_id)
    if host is not None and tx.store.put_foreign(host_id, found):
        tx.mark(f"pool:{host['pool']}")


def _missing(task: Task, run: Run, rebooted: bool, now_s: float) -> Observed | None:
    """What became of a run that its host does not know; None: it is still to be started."""
    if run.state is RunState.STOPPED or run.waits:
        return None
    if rebooted:
        return Observed(run.attempt_id, started_at_s=run.started_at_s, stopped_at_s=now_s, reason=REBOOTED)
    if run.state is RunState.RUNNING:
        return Observed(run.attempt_id, stopped_at_s=now_s, reason=LOST)
    if task.desired is TaskState.STOPPED:
        return Observed(run.attempt_id, stopped_at_s=now_s, reason=NEVER_STARTED)
    return None


def _apply(tx: Tx[Store], task: Task, seen: dict[str, Observed]) -> None:
    """Take a host's words on runs of a task; one on an earlier attempt at a container says nothing new."""
    runs = tuple([observe(run, seen[run.attempt_id]) if run.attempt_id in seen else run for run in task.runs])
    if any(map(is_not, runs, task.runs)):
        follow(tx, task, task, runs)


def _look_after(tx: Tx[Store], task: Task) -> None:
    """An agent keeps nothing: tell it again whose health to look at."""
    if task.plain:
        return
    assert task.host_id is not None
    spec = spec_of(tx, task)
    for run in task.runs:
        if run.state is RunState.RUNNING and spec.containers[run.container].health_check is not None:
            tx.check(task.host_id, start_of(tx, task, run, spec).spec)
