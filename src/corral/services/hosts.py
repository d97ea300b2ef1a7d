"""What hosts say: hello, and reports of what became of their runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import is_not

from corral.core import Tx
from corral.decide.task_lifecycle import NEVER_STARTED, observe, stoppable
from corral.model.run import SILENT_S, Foreign, Hello, Observed, RunState, run_of_attempt
from corral.model.task import Run, Task, TaskState
from corral.services.ecs.gpu_assignment import give_spare_gpus
from corral.services.ecs.task_progress import apply_progress, check_health, host_of, start_run, start_runs, stop_runs
from corral.services.ecs.task_spec import rules_by_container, spec_of
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
    before = tx.store.hosts.get(said.host_id)
    rebooted = before is not None and before["boot_id"] != said.boot_id
    tx.store.hosts.put(said, tx.now_s, tx.settings.cluster, tx.settings.instance_type)
    tx.due(f"host:{said.host_id}", tx.now_s + SILENT_S)
    asked = {run.attempt_id for task in tx.store.tasks.on_host(said.host_id) for run in task.runs if not run.waits}  # until now
    report(tx, said.host_id, said.runs)
    known = {seen.run_id for seen in said.runs}
    for task in tx.store.tasks.on_host(said.host_id):
        unknown = [run for run in task.runs if run.attempt_id not in known and run.attempt_id in asked]
        missing = {run.attempt_id: _missing(task, run, rebooted, tx.now_s) for run in unknown}
        _apply(tx, task, {run_id: seen for run_id, seen in missing.items() if seen is not None})
        after = tx.store.tasks.get(task.id)
        assert after is not None
        if after.state is TaskState.STOPPED:
            continue
        if after.desired is TaskState.RUNNING:
            unknown_runs = tuple(run for run in after.runs if run.attempt_id not in known)
            start_runs(tx, after.but(runs=unknown_runs), spec_of(tx, after))
        else:
            stop_runs(tx, after, stoppable(after.runs, rules_by_container(tx, after)))
        _look_after(tx, after)
    _wake_pools(tx, said.host_id)


def report(tx: Tx[Store], host_id: str, runs: Iterable[Observed]) -> None:
    """Runs started or ended. A word on a run that we do not know, or that is elsewhere, changes nothing of ours."""
    by_task: dict[str, tuple[Task, dict[str, Observed]]] = {}
    for seen in runs:
        task = tx.store.tasks.of_run(run_of_attempt(seen.run_id))
        if task is not None and task.instance_id is not None and host_of(tx, task) == host_id:
            by_task.setdefault(task.id, (task, {}))[1][seen.run_id] = seen
        if seen.stopped_at_s is None and (task is None or task.state is TaskState.STOPPED):
            tx.stop(host_id, seen.run_id)  # alive for a task that ended, or that we never heard of: it is nobody's
    for task, of_task in by_task.values():
        _apply(tx, task, of_task)
        for seen in of_task.values():
            if seen.asks_gpus is not None and seen.stopped_at_s is None:
                given = give_spare_gpus(tx, task.id, seen.run_id, seen.asks_gpus)
                if given is not None:
                    start_run(tx, *given, spec_of(tx, given[0]))


def heartbeat(tx: Tx[Store], host_id: str) -> None:
    host = tx.store.hosts.get(host_id)
    if host is not None:
        tx.store.hosts.seen(host_id, tx.now_s)
        if not host["connected"]:
            tx.due(f"host:{host_id}", tx.now_s + SILENT_S)
            _wake_pools(tx, host_id)


def gpus_in_use(tx: Tx[Store], host_id: str, found: Mapping[str, Sequence[Foreign]]) -> None:
    """Which processes that are not of our runs compute on a host's GPUs: on those nothing is placed while they do."""
    host = tx.store.hosts.get(host_id)
    if host is not None and tx.store.hosts.put_foreign(host_id, found):
        _wake_pools(tx, host_id)


def _wake_pools(tx: Tx[Store], host_id: str) -> None:
    """The slots of a host offer more than before: claims may fit."""
    for pool in {instance.pool for instance in tx.store.instances.on_host(host_id)} - {None}:
        tx.mark(f"pool:{pool}")


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
        apply_progress(tx, task, task, runs)


def _look_after(tx: Tx[Store], task: Task) -> None:
    """An agent keeps nothing: tell it again whose health to look at."""
    if task.plain:
        return
    spec = spec_of(tx, task)
    for run in task.runs:
        if run.state is RunState.RUNNING and spec.containers[run.container].health_check is not None:
            check_health(tx, task, run, spec)
