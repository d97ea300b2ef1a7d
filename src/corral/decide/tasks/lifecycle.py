"""The lifecycle of a task: which containers can start, must stop or restart, and when and why the task ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from corral.model.run import Health, Observed, RunState
from corral.model.stop_reasons import STOPPED_BEFORE_START
from corral.model.task import ContainerRules, RestartPolicy, Run, StopCode, Task, TaskState

ESSENTIAL_EXITED = "Essential container in task exited"
UNRESOLVED = "CannotStartContainerError: dependency graph: failed to resolve container ordering dependency [{}] for target [{}] "
TIMED_OUT = "CannotStartContainerError: dependency graph: container ordering dependency [{}] for target [{}] has timed out."
NO_RULES: Mapping[str, ContainerRules] = {}
DEFAULT_RULES = ContainerRules()


class TaskProgress(Struct, frozen=True):
    """The next state of a task, and the runs that its host must start or stop."""

    task: Task
    start: tuple[Run, ...] = ()
    stop: tuple[Run, ...] = ()
    next_check_at_s: float | None = None  # when the next timeout is reached; None: there is no timeout


def observe(run: Run, seen: Observed) -> Run:
    """Apply a report of a host to a run. A late report changes nothing: a run never returns to an earlier state."""
    if run.state is RunState.STOPPED:
        return run
    if seen.stopped_at_s is None:
        if seen.health is not None and seen.health != run.health:
            run = run.but(health=seen.health)
        if seen.about is not None:
            run = _with_about(run, seen.about)
        if run.state is RunState.RUNNING:
            return run
        if seen.started_at_s is None:
            return run if seen.reason == run.reason else run.but(reason=seen.reason)
        return run.but(state=RunState.RUNNING, pid=seen.pid, started_at_s=seen.started_at_s, reason=None)
    if seen.about is not None:
        run = _with_about(run, seen.about)
    return run.but(
        state=RunState.STOPPED,
        pid=seen.pid or run.pid,
        started_at_s=run.started_at_s or seen.started_at_s,
        stopped_at_s=seen.stopped_at_s,
        exit_code=seen.exit_code,
        reason=seen.reason,
    )


def _with_about(run: Run, about: dict[str, Any]) -> Run:
    """Add the facts that a host reports about a container. Earlier facts stay, because a restarted agent may not report them.

    As on ECS, a container that restarts keeps its runtime id, which is also the name of its log stream.
    """
    known = run.about or {}
    if run.restarts and "runtimeId" in known:
        about = {**about, "runtimeId": known["runtimeId"]}
    return run if known.items() >= about.items() else run.but(about={**known, **about})


def advance(task: Task, seen: tuple[Run, ...], now_s: float, rules: Mapping[str, ContainerRules] = NO_RULES) -> TaskProgress:
    """Compute the next state of a placed task from the states of its runs.

    The task is RUNNING once all containers have started. When an essential container has ended, the other containers must stop. The
    task is STOPPED when all containers have ended.
    """
    if task.state in (TaskState.STOPPED, TaskState.PROVISIONING):
        return TaskProgress(task)
    changes: dict[str, Any] = {}
    runs, stopping = seen, task.desired is TaskState.STOPPED
    if not stopping and not task.plain:
        # A container of a paused task has no GPUs with which it could restart.
        is_paused = task.pause is not None and task.pause.is_active
        runs = _resolve(seen if is_paused else _restart(seen, rules), rules, now_s)
    if task.state is TaskState.PENDING and _is_up(runs):
        changes |= {"state": TaskState.RUNNING, "started_at_s": max([run.started_at_s or 0.0 for run in runs]) or now_s}
    if not stopping:
        cause = _cause_of_end(seen, runs)
        if cause is not None:
            changes |= _ending(cause, now_s)
        elif task.time_limit_s is not None and _limit_s(task.but(**changes)) <= now_s:
            changes |= _stop(StopCode.USER, f"Time limit of {duration_text(task.time_limit_s)} reached", now_s)
        stopping = "desired" in changes
    if stopping:
        if not task.plain:
            runs = tuple(_not_started(was, run, now_s) for was, run in zip(seen, runs))
        stop = stoppable(runs, rules)
        if not stop:  # dependencies have no cycle, so every run has ended if none can be stopped
            changes |= {"state": TaskState.STOPPED, "stopped_at_s": now_s}
        return TaskProgress(task.but(runs=runs, **changes), stop=stop)
    after = task.but(runs=runs, **changes)
    if task.plain:
        return TaskProgress(after)
    start = tuple(run for was, run in zip(seen, runs) if _may_start_now(was, run))
    return TaskProgress(after, start=start, next_check_at_s=_next_check_at_s(after, rules, now_s))


def startable(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the runs that have not started and do not wait for another container."""
    return tuple([run for run in runs if run.state is RunState.PENDING and not run.waits])


def stoppable(runs: tuple[Run, ...], rules: Mapping[str, ContainerRules] = NO_RULES) -> tuple[Run, ...]:
    """Return the runs of a stopping task that can be stopped now, because no unfinished run depends on them."""
    left = _unfinished(runs)
    if not rules:
        return left
    needed = {name for run in left for name, _ in rules.get(run.container, DEFAULT_RULES).depends_on}
    return tuple(run for run in left if run.container not in needed)


def should_restart(run: Run, policy: RestartPolicy | None) -> bool:
    """Whether an ended run restarts.

    It restarts if its policy does not ignore the exit code, and if it ran for at least the policy's period.
    """
    if policy is None or run.exit_code is None or run.started_at_s is None or run.stopped_at_s is None:
        return False
    return run.exit_code not in policy.ignored_exit_codes and run.stopped_at_s - run.started_at_s >= policy.period_s


def task_health(verdicts: Collection[str | None]) -> str:
    """Return the health of a task: the worst health of its essential containers. None (unknown) is worse than HEALTHY."""
    if Health.UNHEALTHY in verdicts:
        return Health.UNHEALTHY.value
    return "UNKNOWN" if None in verdicts else Health.HEALTHY.value


def duration_text(seconds: float) -> str:
    """Write a duration as `4h`, `1h30m` or `90.5s`."""
    whole, text = int(seconds), ""
    if whole == seconds:
        for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
            if whole >= size:
                text, whole = f"{text}{whole // size}{unit}", whole % size
        return text + (f"{whole}s" if whole or not text else "")
    return f"{seconds:g}s"


def _unfinished(runs: tuple[Run, ...]) -> tuple[Run, ...]:
    return tuple([run for run in runs if run.state is not RunState.STOPPED])


def _is_up(runs: tuple[Run, ...]) -> bool:
    """Whether all containers have started, except containers that are not essential and failed to start."""
    has_started = False
    for run in runs:
        if run.started_at_s is not None or run.restarts:
            has_started = True
        elif run.state is not RunState.STOPPED or run.essential:
            return False
    return has_started


def _limit_s(task: Task) -> float:
    """Return when the time limit of a task is over. The time in which it is paused does not count."""
    if task.started_at_s is None or task.time_limit_s is None:
        return float("inf")
    if task.pause is None:
        return task.started_at_s + task.time_limit_s
    return float("inf") if task.pause.is_active else task.started_at_s + task.time_limit_s + task.pause.paused_s


def _restart(runs: tuple[Run, ...], rules: Mapping[str, ContainerRules]) -> tuple[Run, ...]:
    """Restart ended runs whose restart policy requires it. Such a run keeps its GPUs, because it does not become STOPPED."""
    return tuple(
        run.but(
            state=RunState.PENDING, restarts=run.restarts + 1, pid=None, exit_code=None, reason=None, health=None,
            started_at_s=None, stopped_at_s=None,
        )
        if run.state is RunState.STOPPED and should_restart(run, rules.get(run.container, DEFAULT_RULES).restart)
        else run
        for run in runs
    )  # fmt: skip


def _resolve(runs: tuple[Run, ...], rules: Mapping[str, ContainerRules], now_s: float) -> tuple[Run, ...]:
    """Check the dependencies of waiting runs, until nothing changes.

    A run may start if all its conditions hold. It fails if one of them can never hold.
    """
    while True:
        by_name = {run.container: run for run in runs}
        after = tuple(_resolve_one(run, by_name, rules, now_s) if run.waits else run for run in runs)
        if after == runs:
            return runs
        runs = after


def _resolve_one(run: Run, by_name: Mapping[str, Run], rules: Mapping[str, ContainerRules], now_s: float) -> Run:
    holds = True
    for name, condition in rules.get(run.container, DEFAULT_RULES).depends_on:
        needed = by_name[name]
        why = _why_never(needed, condition, run.container)
        if why is None and not _holds(needed, condition):
            holds = False
            if _times_out_at_s(needed, condition, rules) <= now_s:
                why = TIMED_OUT.format(name, run.container)
        if why is not None:
            return _failed(run, why, now_s)
    return run.but(waits=False) if holds else run


def _holds(needed: Run, condition: str) -> bool:
    ended = needed.state is RunState.STOPPED
    match condition:
        case "START":
            return needed.started_at_s is not None or needed.restarts > 0
        case "COMPLETE":
            return ended
        case "SUCCESS":
            return ended and needed.exit_code == 0
        case _:
            return needed.state is RunState.RUNNING and needed.health == Health.HEALTHY


def _why_never(needed: Run, condition: str, target: str) -> str | None:
    """Explain why a condition can never hold. Return None if it still can. A run that is STOPPED here does not restart."""
    if needed.state is not RunState.STOPPED:
        return None
    unresolved = UNRESOLVED.format(needed.container, target)
    if needed.started_at_s is None and not needed.restarts:
        return unresolved + "because dependency will never start"
    if condition == "SUCCESS" and needed.exit_code != 0:
        return unresolved + "as dependency did not exit successfully."
    if condition == "COMPLETE" and needed.exit_code is None:
        return unresolved + "as dependency did not exit."
    if condition == "HEALTHY":
        return unresolved + "as dependency exited before it was healthy."
    return None


def _times_out_at_s(needed: Run, condition: str, rules: Mapping[str, ContainerRules]) -> float:
    """Return when a dependency times out. As on ECS, startTimeout is measured from the start of the needed container.

    The condition START has no timeout.
    """
    timeout_s = rules.get(needed.container, DEFAULT_RULES).start_timeout_s
    if condition == "START" or timeout_s is None or needed.started_at_s is None:
        return float("inf")
    return needed.started_at_s + timeout_s


def _failed(run: Run, why: str, now_s: float) -> Run:
    return run.but(state=RunState.STOPPED, waits=False, stopped_at_s=now_s, reason=why)


def _may_start_now(was: Run, run: Run) -> bool:
    """Whether the run can start or restart now, but could not before this step."""
    return run.state is RunState.PENDING and (was.waits, was.restarts) != (run.waits, run.restarts)


def _not_started(was: Run, run: Run, now_s: float) -> Run:
    """If the task stops before a run was ordered to start, mark the run as failed."""
    still = was if _may_start_now(was, run) else run
    return _failed(still, STOPPED_BEFORE_START, now_s) if still.waits else still


def _cause_of_end(seen: tuple[Run, ...], runs: tuple[Run, ...]) -> Run | None:
    """Return the run whose end ends the task: an essential run, or the last run if none is essential.

    Prefer a run that its host reported as ended to a run that failed because of its dependencies.
    """
    ended = [run for run in runs if run.state is RunState.STOPPED]
    if not ended:
        return None
    essential = [run for run in ended if run.essential]
    if not essential:
        return ended[-1] if len(ended) == len(runs) else None
    if len(essential) == 1:
        return essential[0]
    return next((run for run in essential if run in seen), essential[0])


def _next_check_at_s(task: Task, rules: Mapping[str, ContainerRules], now_s: float) -> float | None:
    """Return when the next timeout of the task or of a dependency is reached."""
    by_name = {run.container: run for run in task.runs}
    due_s = [_limit_s(task)]
    for run in task.runs:
        if run.waits:
            due_s += [_times_out_at_s(by_name[name], condition, rules) for name, condition in rules[run.container].depends_on]
    return min((at_s for at_s in due_s if now_s < at_s < float("inf")), default=None)


def _ending(cause: Run, now_s: float) -> dict[str, Any]:
    """Return the stop code and the reason of a task that ends without a request to stop."""
    if cause.started_at_s is None and not cause.restarts:
        return _stop(StopCode.FAILED_TO_START, cause.reason or "the container did not start", now_s)
    if cause.exit_code is None and cause.started_at_s is not None:
        return _stop(StopCode.TERMINATION, cause.reason or "the container was lost", now_s)
    return _stop(StopCode.ESSENTIAL_EXITED, ESSENTIAL_EXITED, now_s)


def _stop(code: StopCode, reason: str, now_s: float) -> dict[str, Any]:
    return {"desired": TaskState.STOPPED, "stopping_at_s": now_s, "stop_code": code.value, "stopped_reason": reason}
