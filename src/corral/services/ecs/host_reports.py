"""Messages from the agents of hosts about runs: hello, and reports of started and ended runs.

A restart of a container begins a new attempt of the same run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import is_not

from msgspec.structs import replace

from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.decide.tasks.lifecycle import observe, stoppable
from corral.fleet.hosts import SILENCE, gpus_failed, wake_pools
from corral.fleet.instances import host_changed, host_joined
from corral.model.agent_protocol import SILENT_S, Hello
from corral.model.run import Observed, RunState, run_of_attempt
from corral.model.stop_reasons import HOST_RESTARTED, STOPPED_BEFORE_START
from corral.model.task import Run, Task, TaskState
from corral.services.ecs.gpu_assignment import give_spare_gpus
from corral.services.ecs.pauses import apply_answers, order_pauses_again
from corral.services.ecs.task_progress import apply_progress, check_health, start_run, start_runs, stop_runs
from corral.services.ecs.task_spec import rules_by_container, spec_of
from corral.store import Store

HostRevoked = api_error("HostRevoked")
UNKNOWN_TO_HOST = "the host no longer knows this run"
CLOCKS_DIFFER_S = 300.0  # the most that the clocks of a host and of the server are expected to differ


def hello(tx: Tx[Store], message: Hello) -> None:
    """Apply the report of a host that has connected. Then send the orders for every run that the host should have.

    A host reports every run that it has started since it booted. So if a run is missing in the report, the host has not started the
    run, and the start is ordered again. There are two exceptions. If the host has rebooted, or has earlier reported the run as
    running, the run is lost. If the task of the run must stop, the run ends without a start.

    Runs that are alive, and whose tasks have stopped, are old: the host was lost, and has returned. It must stop them before it
    gets new work.
    """
    if tx.store.joined_hosts.is_revoked(message.host_id):
        raise HostRevoked("the certificate of this host was revoked")
    tx.reset_orders(message.host_id)
    before = tx.store.hosts.get(message.host_id)
    rebooted = before is not None and before["boot_id"] != message.boot_id
    _release_gpus(tx, message)
    tx.store.hosts.put(message, tx.now_s)
    host_joined(tx, message.host_id)
    tx.due(SILENCE, tx.now_s + SILENT_S)
    ordered = {run.attempt_id for task in tx.store.tasks.on_host(message.host_id) for run in task.runs if not run.waits}
    alive = [observed.run_id for observed in message.runs if observed.stopped_at_s is None]
    old = set(tx.store.hosts.old_runs(message.host_id))
    tx.store.hosts.set_old_runs(message.host_id, old.intersection(alive))  # no run waits for the end of one that is not there
    gpus_failed(tx, message.host_id, message.faults)
    report(tx, message.host_id, message.runs)
    known = {observed.run_id for observed in message.runs}
    for task in tx.store.tasks.on_host(message.host_id):
        unknown = [run for run in task.runs if run.attempt_id not in known and run.attempt_id in ordered]
        missing = {run.attempt_id: _missing(task, run, rebooted, tx.now_s) for run in unknown}
        apply_reports(tx, task, {run_id: observed for run_id, observed in missing.items() if observed is not None})
        after = tx.store.tasks.get(task.id)
        assert after is not None
        if after.state is TaskState.STOPPED:
            continue
        if after.desired is TaskState.RUNNING:
            unknown_runs = tuple(run for run in after.runs if run.attempt_id not in known)
            start_runs(tx, after.but(runs=unknown_runs), spec_of(tx, after))
        else:
            stop_runs(tx, after, stoppable(after.runs, rules_by_container(tx, after)))
        _restore_health_checks(tx, after)
        order_pauses_again(tx, after)
    tx.store.hosts.set_old_runs(message.host_id, set(alive) - _current(tx, message.host_id, alive))
    wake_pools(tx, message.host_id)
    host_changed(tx, message.host_id)


def _current(tx: Tx[Store], host_id: str, run_ids: list[str]) -> set[str]:
    """Return the runs of this list whose tasks are on the host, and have not stopped."""
    tasks = {run_id: tx.store.tasks.of_run(run_of_attempt(run_id)) for run_id in placed_on(tx, host_id, run_ids)}
    return {run_id for run_id, task in tasks.items() if task is not None and task.state is not TaskState.STOPPED}


def _release_gpus(tx: Tx[Store], message: Hello) -> None:
    """Forget the old runs of a lost host whose machine is back after a restart, as a new host: it reports the same GPUs."""
    for lost in tx.store.hosts.lost_owners([gpu.gpu_id for gpu in message.gpus], message.host_id):
        if lost["boot_id"] != message.boot_id:
            tx.store.hosts.set_old_runs(lost["id"], ())


def report(tx: Tx[Store], host_id: str, runs: Iterable[Observed]) -> None:
    """Apply a host's report of started and ended runs. The report does not change runs of other hosts."""
    by_task: dict[str, tuple[Task, dict[str, Observed]]] = {}
    old: list[str] = []
    ended: list[str] = []
    for observed in _with_gpu_faults(tx, host_id, list(runs)):
        task = tx.store.tasks.of_run(run_of_attempt(observed.run_id))
        is_here = task is not None and task.instance_id is not None and tx.store.instances.is_on(task.instance_id, host_id)
        if task is not None and is_here:
            by_task.setdefault(task.id, (task, {}))[1][observed.run_id] = _in_steady_time(tx, task, observed)
        is_current = task is not None and task.state is not TaskState.STOPPED
        if observed.stopped_at_s is None and not is_current:
            old.append(observed.run_id)  # the task of this run has stopped or does not exist
        if observed.stopped_at_s is not None and not (is_current and is_here):
            ended.append(observed.run_id)
    if ended:
        _note_old_ends(tx, host_id, ended)
    if old or ended:
        _stop_old(tx, host_id, old, ended)
    for task, of_task in by_task.values():
        apply_reports(tx, task, of_task)
        if task.pause is not None:
            answers = {run_id: each.pause for run_id, each in of_task.items() if each.pause is not None}
            apply_answers(tx, task.id, answers)
        for observed in of_task.values():
            if observed.asks_gpus is not None and observed.stopped_at_s is None:
                given = give_spare_gpus(tx, task.id, observed.run_id, observed.asks_gpus)
                if given is not None:
                    start_run(tx, *given, spec_of(tx, given[0]))


def _note_old_ends(tx: Tx[Store], host_id: str, ended: Iterable[str]) -> None:
    """If a host that was lost has ended the last old run, it gets work again. No old run has a task that runs on the host."""
    old = tx.store.hosts.old_runs(host_id)
    left = [run_id for run_id in old if run_id not in set(ended)] if old else old
    if left != old:
        tx.store.hosts.set_old_runs(host_id, left)
        if not left:
            wake_pools(tx, host_id)
            host_changed(tx, host_id)


def _stop_old(tx: Tx[Store], host_id: str, run_ids: Collection[str], ended: Collection[str]) -> None:
    """Order the stop of old runs: of these, and of those that waited for the end of others.

    As in a task that stops, a run waits until the runs that depend on it have ended.
    """
    alive: dict[str, list[str]] = {}  # run id → attempt ids
    for attempt_id in dict.fromkeys([*tx.store.hosts.old_runs(host_id), *run_ids]):
        alive.setdefault(run_of_attempt(attempt_id), []).append(attempt_id)
    done: set[str] = set()
    for attempt_id in (*run_ids, *ended) if alive else ():
        task = tx.store.tasks.of_run(run_of_attempt(attempt_id))
        if task is None:  # Corral does not know the runs of tasks that were deleted
            if attempt_id in run_ids:
                tx.stop(host_id, attempt_id)
        elif task.state is TaskState.STOPPED and task.id not in done:
            done.add(task.id)
            runs = tuple(run.but(state=RunState.RUNNING) for run in task.runs if run.id in alive)
            for run in stoppable(runs, rules_by_container(tx, task) if len(runs) > 1 else {}):
                for each in alive[run.id]:
                    tx.stop(host_id, each)


def placed_on(tx: Tx[Store], host_id: str, run_ids: Iterable[str]) -> list[str]:
    """Return the runs that are placed on a host. Corral does not know the runs of tasks that were deleted."""
    found = []
    for run_id in run_ids:
        task = tx.store.tasks.of_run(run_of_attempt(run_id))
        if task is not None and task.instance_id is not None and tx.store.instances.is_on(task.instance_id, host_id):
            found.append(run_id)
    return found


def order_again(tx: Tx[Store], host_id: str, attempt_ids: Collection[str]) -> None:
    """Order the start of runs again, because their environment files were replaced after the first order was made."""
    for attempt_id in attempt_ids:
        task = tx.store.tasks.of_run(run_of_attempt(attempt_id))
        if task is not None and task.desired is TaskState.RUNNING and task.instance_id is not None:
            runs = tuple(run for run in task.runs if run.attempt_id == attempt_id)
            if tx.store.instances.is_on(task.instance_id, host_id):
                start_runs(tx, task.but(runs=runs), spec_of(tx, task))


def _in_steady_time(tx: Tx[Store], task: Task, observed: Observed) -> Observed:
    """Convert the times of a report, which are wall times of the host.

    If a time is before the placement, somebody has set the wall clock since then.
    """
    ahead_s, now_s, first_s = tx.steps.ahead_s, tx.now_s, task.placed_at_s or 0.0
    earliest_s = first_s - CLOCKS_DIFFER_S + ahead_s
    started_s, stopped_s = observed.started_at_s, observed.stopped_at_s
    if started_s is not None:
        started_s = min(started_s - ahead_s, now_s) if started_s > earliest_s else first_s
    if stopped_s is not None:
        stopped_s = min(stopped_s - ahead_s, now_s) if stopped_s > earliest_s else first_s
    if started_s == observed.started_at_s and stopped_s == observed.stopped_at_s:
        return observed
    return replace(observed, started_at_s=started_s, stopped_at_s=stopped_s)


def _with_gpu_faults(tx: Tx[Store], host_id: str, runs: list[Observed]) -> list[Observed]:
    """If a run has ended with an error and without a reason, and one of its GPUs has a fault, set this fault as the reason."""
    ended = [observed for observed in runs if observed.stopped_at_s is not None and observed.exit_code and not observed.reason]
    faults = tx.store.hosts.faults(host_id) if ended else {}
    if not faults:
        return runs
    reasons: dict[str, str] = {}
    for observed in ended:
        task = tx.store.tasks.of_run(run_of_attempt(observed.run_id))
        for run in task.runs if task is not None else ():
            failed = [gpu_id for gpu_id in run.gpu_ids if gpu_id in faults] if run.attempt_id == observed.run_id else []
            if failed:
                reasons[observed.run_id] = f"{failed[0]} failed: {faults[failed[0]].text}"
    return [replace(observed, reason=reasons[observed.run_id]) if observed.run_id in reasons else observed for observed in runs]


def _missing(task: Task, run: Run, rebooted: bool, now_s: float) -> Observed | None:
    """Return the end to record for a run that its host does not report. Return None if nothing has to be recorded."""
    if run.state is RunState.STOPPED or run.waits:
        return None
    if rebooted:
        return Observed(run.attempt_id, started_at_s=run.started_at_s, stopped_at_s=now_s, reason=HOST_RESTARTED)
    if run.state is RunState.RUNNING:
        return Observed(run.attempt_id, stopped_at_s=now_s, reason=UNKNOWN_TO_HOST)
    if task.desired is TaskState.STOPPED:
        return Observed(run.attempt_id, stopped_at_s=now_s, reason=STOPPED_BEFORE_START)
    return None


def apply_reports(tx: Tx[Store], task: Task, observed: dict[str, Observed]) -> None:
    """Apply reports to the runs of a task. A report about an earlier attempt of a run has no effect."""
    runs = tuple([observe(run, observed[run.attempt_id]) if run.attempt_id in observed else run for run in task.runs])
    if task.pause is not None and task.pause.is_active:  # its health checks fail, because its processes do not run
        runs = tuple(
            [run if run.health == before.health else run.but(health=before.health) for run, before in zip(runs, task.runs)]
        )
    if any(map(is_not, runs, task.runs)):
        apply_progress(tx, task, task, runs)


def _restore_health_checks(tx: Tx[Store], task: Task) -> None:
    """Order the health checks of running containers again, because a restarted agent does not know them."""
    if task.plain:
        return
    spec = spec_of(tx, task)
    for run in task.runs:
        if run.state is RunState.RUNNING and spec.containers[run.container].health_check is not None:
            check_health(tx, task, run, spec)
