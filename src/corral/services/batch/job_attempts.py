"""Attempts of Batch jobs: follow the ECS tasks of a job, enforce its time limit, and retry or end the job after an attempt.

An attempt of a job is an ECS task. An attempt of a multi-node job has one task for each node. When the task of the main node ends,
Corral stops the other tasks, and the attempt ends. The attempt also ends when a task cannot start. While the other tasks stop,
`Job.status_reason` says why the attempt ends.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.fleet.instances import TERMINATED
from corral.model.instance import ec2_id
from corral.model.job import HOST_TERMINATED, TIMED_OUT, Attempt, ExitRule, Job, JobKind, JobSpec, JobState
from corral.model.task import StopCode, Task, TaskState
from corral.services.batch import dispatch
from corral.services.batch.job_progress import check, finish, make_runnable, parent_of
from corral.services.batch.node_addresses import start_waiting_nodes
from corral.services.ecs.run_spec import log_target
from corral.services.ecs.task_progress import begin_stop
from corral.services.ecs.task_spec import spec_of
from corral.store import Store

FAILED_TO_START = "Task failed to start"
NODE_STOPPED = "the attempt of the multi-node job has ended"
LOST = "the task of the attempt no longer exists"
STOPS_MAX = 50  # the maximum number of nodes that one transaction stops
WITH_TASKS = frozenset({JobState.STARTING, JobState.RUNNING})


def follow(tx: Tx[Store], job_id: str) -> None:
    """Update a job from the jobs that it depends on, or from its tasks if an attempt has begun."""
    job = tx.store.jobs.get(job_id)
    if job is None or job.has_ended:
        return
    if job.kind is JobKind.NODE:
        _follow_node(tx, parent_of(tx, job), job)
    elif job.state not in WITH_TASKS:
        check(tx, job)
    elif job.kind is JobKind.MULTI_NODE:
        _follow_nodes(tx, job)
    else:
        _follow_task(tx, job)


def _follow_task(tx: Tx[Store], job: Job) -> None:
    task = tx.store.tasks.get(job.task_id)
    if task is None or task.state is TaskState.STOPPED:
        attempt = _attempt(tx, job, task)
        succeeded = _succeeded(task, attempt) and not job.terminated
        if job.terminated:
            attempt = replace(attempt, status_reason=job.status_reason)
        _conclude(tx, job, attempt, succeeded=succeeded, is_final=job.terminated or attempt.status_reason == TIMED_OUT)
        return
    if task.state is TaskState.RUNNING and job.state is JobState.STARTING:
        job = tx.store.jobs.change(job, job.but(state=JobState.RUNNING, started_at_s=task.started_at_s), tx.now_s)
        tx.changed(f"job:{job.id}")
    if job.terminated:
        begin_stop(tx, task, StopCode.USER, job.status_reason)
    elif _is_too_long(tx, job):
        begin_stop(tx, task, StopCode.USER, TIMED_OUT)


def _is_too_long(tx: Tx[Store], job: Job) -> bool:
    """Return whether the time limit of an attempt has passed. If not, schedule `follow` for the end of the time limit."""
    if job.spec.timeout_s is None or job.started_at_s is None:
        return False
    task, paused_s = tx.store.tasks.get(job.task_id) if job.task_id else None, 0.0
    if task is not None and task.pause is not None:
        if task.pause.is_active:
            return False  # this function is called again when the task continues
        paused_s = task.pause.paused_s
    deadline_s = job.started_at_s + job.spec.timeout_s + paused_s
    if deadline_s > tx.now_s:
        tx.due(f"job:{job.id}", deadline_s)
    return deadline_s <= tx.now_s


def _conclude(tx: Tx[Store], job: Job, attempt: Attempt, *, succeeded: bool, is_final: bool) -> None:
    """End the attempt of a job. The job ends, or becomes RUNNABLE again. `is_final`: the job must not be retried."""
    dispatch.attempt_ended(tx, job)
    changed = job.but(
        attempts=(*job.attempts, attempt),
        started_at_s=attempt.started_at_s or job.started_at_s,
        status_reason=attempt.status_reason,
    )
    if succeeded:
        finish(tx, job, changed.but(state=JobState.SUCCEEDED))
        return
    # The children of a stopped array are not retried.
    is_final = is_final or (job.kind is JobKind.CHILD and parent_of(tx, job).is_stopping)
    if is_final or not retries(job.spec, len(changed.attempts), attempt):
        finish(tx, job, changed.but(state=JobState.FAILED))
        return
    if job.kind is JobKind.MULTI_NODE:
        tx.store.jobs.move_nodes(job, JobState.RUNNABLE)
    make_runnable(tx, job, changed.but(task_id="", environment="", started_at_s=None))
    tx.changed(f"job:{job.id}")


def _attempt(tx: Tx[Store], job: Job, task: Task | None) -> Attempt:
    """Describe an ended attempt. Its exit code and reason are those of the essential container that ended first."""
    if task is None:
        return Attempt(job.task_id, "", "", job.started_at_s, tx.now_s, None, LOST, LOST, "")
    run = min(task.runs, key=lambda each: (not each.essential, each.stopped_at_s or tx.now_s, each.position))
    started = run.started_at_s is not None
    log = log_target(task, run, spec_of(tx, task).containers[run.container]) if started else None
    return Attempt(
        task_id=task.id,
        cluster=task.cluster,
        instance_id=task.instance_id or "",
        started_at_s=run.started_at_s,
        stopped_at_s=run.stopped_at_s or tx.now_s,
        exit_code=run.exit_code,
        reason=run.reason or ("" if started else task.stopped_reason or ""),
        status_reason=_status_reason(task),
        log_stream=log.stream if log is not None else "",
        container=run.container,
    )


def _status_reason(task: Task) -> str:
    """Return the status reason of an attempt, in the words of AWS, because users write retry rules that match these words."""
    ended = task.stop_code == StopCode.TERMINATION and (task.stopped_reason or "").startswith(TERMINATED)
    if ended and task.instance_id is not None:
        return HOST_TERMINATED.format(ec2_id(task.instance_id))
    if task.stop_code == StopCode.FAILED_TO_START:
        return FAILED_TO_START
    return task.stopped_reason or ""


def _succeeded(task: Task | None, attempt: Attempt) -> bool:
    """Return whether an attempt succeeded. An attempt whose task was stopped has failed, even if the program exited with 0."""
    return task is not None and task.stop_code == StopCode.ESSENTIAL_EXITED and attempt.exit_code == 0


# Multi-node jobs


def _follow_node(tx: Tx[Store], parent: Job, node: Job) -> None:
    """Write the state of a node's task to the node and, if it is the main node, to the job."""
    if parent.state not in WITH_TASKS or node.state not in WITH_TASKS:
        return
    task = tx.store.tasks.get(node.task_id)
    is_main = node.index == parent.spec.main_node
    if task is None or task.state is TaskState.STOPPED:
        attempt = _attempt(tx, node, task)
        state = JobState.SUCCEEDED if _succeeded(task, attempt) else JobState.FAILED
        changed = node.but(
            state=state, attempts=(*node.attempts, attempt), started_at_s=attempt.started_at_s, stopped_at_s=tx.now_s,
            status_reason=attempt.status_reason,
        )  # fmt: skip
        tx.store.jobs.change(node, changed, tx.now_s)
        if not parent.status_reason and (is_main or attempt.started_at_s is None):
            ending = parent.but(status_reason=attempt.status_reason or FAILED_TO_START)
            parent = tx.store.jobs.change(parent, ending, tx.now_s)
    elif task.state is TaskState.RUNNING and node.state is JobState.STARTING:
        tx.store.jobs.change(node, node.but(state=JobState.RUNNING, started_at_s=task.started_at_s), tx.now_s)
        if is_main and parent.state is JobState.STARTING:
            running = parent.but(state=JobState.RUNNING, started_at_s=task.started_at_s)
            parent = tx.store.jobs.change(parent, running, tx.now_s)
            tx.changed(f"job:{parent.id}")
    if is_main and task is not None and task.state is TaskState.RUNNING:
        start_waiting_nodes(tx, parent)
    _follow_nodes(tx, parent)


def _follow_nodes(tx: Tx[Store], job: Job) -> None:
    """Stop the nodes of an attempt that ends. When all nodes have ended, end the attempt."""
    if not job.status_reason and _is_too_long(tx, job):
        job = tx.store.jobs.change(job, job.but(status_reason=TIMED_OUT), tx.now_s)
    if not job.status_reason:
        return
    why = job.status_reason if job.terminated or job.status_reason == TIMED_OUT else NODE_STOPPED
    unstopped = tx.store.jobs.live_children(job, 0, STOPS_MAX, unstopped=True)
    for node in unstopped:
        tx.store.jobs.change(node, node.but(status_reason=why), tx.now_s)
        task = tx.store.tasks.get(node.task_id)
        if task is not None and task.state is not TaskState.STOPPED:
            begin_stop(tx, task, StopCode.USER, why)
        else:
            tx.mark(f"job:{node.id}")
    if len(unstopped) == STOPS_MAX:
        tx.due(f"job:{job.id}", tx.now_s)
    elif not tx.store.jobs.live_children(job, 0, 1):
        main = tx.store.jobs.child(job, job.spec.main_node)
        is_final = job.terminated or job.status_reason == TIMED_OUT
        attempt = replace(main.attempts[-1], status_reason=job.status_reason)
        succeeded = main.state is JobState.SUCCEEDED and not is_final
        _conclude(tx, job, attempt, succeeded=succeeded, is_final=is_final)


def retries(spec: JobSpec, ended: int, attempt: Attempt) -> bool:
    """Return whether a job gets another attempt. `ended` is the number of its ended attempts, including this failed attempt.

    The first rule of `evaluateOnExit` whose patterns all match decides. If no rule matches, the job is retried.
    """
    if ended >= spec.attempts_max:
        return False
    return next((rule.retries for rule in spec.exit_rules if matches(rule, attempt)), True)


def matches(rule: ExitRule, attempt: Attempt) -> bool:
    """Return whether all patterns of a rule match a failed attempt. A pattern that is not given matches everything."""
    code = "" if attempt.exit_code is None else str(attempt.exit_code)
    return (
        _matches(rule.on_status_reason, attempt.status_reason)
        and _matches(rule.on_reason, attempt.reason)
        and _matches(rule.on_exit_code, code)
    )


def _matches(pattern: str, value: str) -> bool:
    """Match a pattern as AWS documents it: an exact text, or the beginning of a text if the pattern ends with an asterisk.

    Upper and lower case differ. The pattern "*" also matches a missing reason or exit code.
    """
    if not pattern:
        return True
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern
