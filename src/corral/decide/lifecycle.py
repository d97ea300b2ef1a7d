"""What a task becomes as its runs do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corral.model.run import Observed, RunState
from corral.model.task import Run, StopCode, Task, TaskState

ESSENTIAL_EXITED = "Essential container in task exited"


@dataclass(frozen=True, slots=True)
class Progress:
    """The task as it should be now, and the runs of it that must be told to stop."""

    task: Task
    stop: tuple[str, ...] = ()


def observe(run: Run, seen: Observed) -> Run:
    """The run after a host's word on it. Runs only go forward: a late word changes nothing."""
    if run.state is RunState.STOPPED:
        return run
    if seen.stopped_at_s is None:
        if run.state is RunState.RUNNING or seen.started_at_s is None:
            return run
        return run.but(state=RunState.RUNNING, pid=seen.pid, started_at_s=seen.started_at_s)
    return run.but(
        state=RunState.STOPPED,
        pid=seen.pid or run.pid,
        started_at_s=run.started_at_s or seen.started_at_s,
        stopped_at_s=seen.stopped_at_s,
        exit_code=seen.exit_code,
        reason=seen.reason,
    )


def unfinished(runs: tuple[Run, ...]) -> tuple[str, ...]:
    """The ids of those that must be told to stop if the task is to stop."""
    return tuple(run.id for run in runs if run.state is not RunState.STOPPED)


def advance(task: Task, runs: tuple[Run, ...], now_s: float) -> Progress:
    """Follow the runs: running once all have started, stopping once an essential one has ended, then stopped."""
    if task.state in (TaskState.STOPPED, TaskState.PROVISIONING):
        return Progress(task)
    changes: dict[str, Any] = {"runs": runs}
    ended = [run for run in runs if run.state is RunState.STOPPED]
    fallen = next((run for run in ended if run.essential), None)
    all_ended, stopping = len(ended) == len(runs), task.desired is TaskState.STOPPED
    if task.state is TaskState.PENDING and all(run.started_at_s is not None for run in runs):
        changes |= {"state": TaskState.RUNNING, "started_at_s": max(run.started_at_s or 0.0 for run in runs)}
    if not stopping and (fallen is not None or all_ended):
        stopping = True
        changes |= _ending(fallen or ended[-1], now_s)
    if all_ended:
        changes |= {"state": TaskState.STOPPED, "stopped_at_s": now_s}
    stop = unfinished(runs) if stopping else ()
    return Progress(task.but(**changes), stop)


def _ending(cause: Run, now_s: float) -> dict[str, Any]:
    """Why a task stops that nobody asked to stop."""
    if cause.started_at_s is None:
        code, reason = StopCode.FAILED_TO_START, cause.reason or "the container did not start"
    elif cause.exit_code is None:
        code, reason = StopCode.TERMINATION, cause.reason or "the container was lost"
    else:
        code, reason = StopCode.ESSENTIAL_EXITED, ESSENTIAL_EXITED
    return {"desired": TaskState.STOPPED, "stopping_at_s": now_s, "stop_code": code.value, "stopped_reason": reason}
