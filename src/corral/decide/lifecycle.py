"""What a task becomes as its runs do."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
        return replace(run, state=RunState.RUNNING, pid=seen.pid, started_at_s=seen.started_at_s)
    return replace(
        run,
        state=RunState.STOPPED,
        pid=seen.pid or run.pid,
        started_at_s=run.started_at_s or seen.started_at_s,
        stopped_at_s=seen.stopped_at_s,
        exit_code=seen.exit_code,
        reason=seen.reason,
    )


def advance(task: Task, now_s: float) -> Progress:
    """Follow the runs: running once all have started, stopping once an essential one has ended, then stopped."""
    if task.state in (TaskState.STOPPED, TaskState.PROVISIONING):
        return Progress(task)
    ended = [run for run in task.runs if run.state is RunState.STOPPED]
    fallen = next((run for run in ended if run.essential), None)
    if task.state is TaskState.PENDING and all(run.started_at_s is not None for run in task.runs):
        task = replace(task, state=TaskState.RUNNING, started_at_s=max(run.started_at_s or 0.0 for run in task.runs))
    if task.desired is TaskState.RUNNING and (fallen is not None or len(ended) == len(task.runs)):
        task = _ending(task, fallen or ended[-1], now_s)
    if len(ended) == len(task.runs):
        return Progress(replace(task, state=TaskState.STOPPED, stopped_at_s=max(now_s, task.stopping_at_s or 0.0)))
    if task.desired is TaskState.STOPPED:
        return Progress(task, tuple(run.id for run in task.runs if run.state is not RunState.STOPPED))
    return Progress(task)


def _ending(task: Task, cause: Run, now_s: float) -> Task:
    if cause.started_at_s is None:
        code, reason = StopCode.FAILED_TO_START, cause.reason or "the container did not start"
    elif cause.exit_code is None:
        code, reason = StopCode.TERMINATION, cause.reason or "the container was lost"
    else:
        code, reason = StopCode.ESSENTIAL_EXITED, ESSENTIAL_EXITED
    return replace(task, desired=TaskState.STOPPED, stopping_at_s=now_s, stop_code=code.value, stopped_reason=reason)
