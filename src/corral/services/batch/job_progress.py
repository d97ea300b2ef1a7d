"""Changes of the state of a Batch job: submit it, make it RUNNABLE when its dependencies are met, end, cancel or terminate it.

An array is a job with children that run the same command. `check` reads the states of the jobs that a job depends on. Then it makes
the job RUNNABLE, or ends it if one of these jobs has failed. One transaction checks or stops a limited number of children. The
reconcilers `job-array` and `job-dependents` (`reconcile/jobs.py`) continue in later transactions. `job_attempts.py` changes the
state of a job when the state of its ECS task changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corral.core.transactions import Tx
from corral.model.job import (
    CHILD_FAILED,
    DEPENDENCY_FAILED,
    WAITS,
    Dependency,
    Job,
    JobKind,
    JobState,
    child_id,
)
from corral.model.task import Task
from corral.services.batch import waiting_jobs
from corral.services.batch.node_addresses import release
from corral.store import Store
from corral.store.job_dependencies import N_TO_N, UNEXPANDED, WHOLE

SHOWN_S = 7 * 24 * 3600.0  # how long an ended job is shown; AWS shows it for at least seven days
NOTICES = "job-dependents:"  # the key of the reconciler that checks dependent jobs after other jobs have ended
SWEEP = "jobs:"  # the key of the reconciler that deletes ended jobs
BEFORE_START = frozenset({JobState.SUBMITTED, JobState.PENDING, JobState.RUNNABLE})


def submit(tx: Tx[Store], job: Job) -> Job:
    """Store a new job. It becomes RUNNABLE, or waits for the jobs that it depends on, or fails because one of them has failed."""
    verdict = _dependency_state(tx, job)
    state, expanded, runnable_at_s = JobState.PENDING, WAITS if job.kind is JobKind.ARRAY else 0, None
    if verdict is JobState.SUCCEEDED and job.kind is JobKind.ARRAY:
        state, expanded = JobState.SUBMITTED, 0
    elif verdict is JobState.SUCCEEDED:
        state, runnable_at_s = JobState.RUNNABLE, tx.now_s
    added = tx.store.jobs.add(job.but(state=state, expanded=expanded, runnable_at_s=runnable_at_s))
    if job.depends_on:
        tx.store.jobs.dependencies.add(added.number, _rows_of_dependencies(tx, job.depends_on))
    if verdict is JobState.FAILED:
        return _fail(tx, added, DEPENDENCY_FAILED)
    if state is JobState.RUNNABLE:
        waiting_jobs.enqueue(tx, added)
    elif state is JobState.SUBMITTED:
        tx.mark(array_key(added))
    return tx.store.jobs.get(job.id) or added


def _rows_of_dependencies(tx: Tx[Store], depends_on: tuple[Dependency, ...]) -> Iterator[tuple[int, int]]:
    """Return the rows to write for dependencies.

    A dependency on an ended job needs no row. N_TO_N is an exception: its row keeps the ended array from being deleted.
    """
    for each in depends_on:
        needed = tx.store.jobs.get(each.job_id) if each.job_id else None
        if needed is None:
            continue
        if each.type == "N_TO_N":
            yield needed.number, N_TO_N
        elif not needed.has_ended:
            yield needed.number, WHOLE if needed.index is None else needed.index


def _dependency_state(tx: Tx[Store], job: Job) -> JobState:
    """Return SUCCEEDED if all jobs that a job needs have succeeded, FAILED if one has failed, otherwise PENDING.

    A needed job that was deleted counts as succeeded: if it had failed, this job would have failed before the deletion.
    """
    verdict = JobState.SUCCEEDED
    for job_id in _needed(tx, job):
        state = tx.store.jobs.state_of(job_id)
        if state is JobState.FAILED:
            return state
        if state is not None and state is not JobState.SUCCEEDED:
            verdict = JobState.PENDING
    return verdict


def _needed(tx: Tx[Store], job: Job) -> Iterator[str]:
    """Return the ids of the jobs that must succeed before this job can start."""
    if job.kind is not JobKind.CHILD:
        yield from (each.job_id for each in job.depends_on if not each.type)
        return
    parent = parent_of(tx, job)
    assert job.index is not None
    for each in parent.depends_on:
        if each.type == "N_TO_N":
            yield f"{each.job_id}:{job.index}"
        elif each.type == "SEQUENTIAL" and job.index:
            yield child_id(parent, job.index - 1)


def child_state(tx: Tx[Store], parent: Job, index: int) -> JobState:
    """Return `_dependency_state` of a child of an array. The child may have no row yet."""
    return _dependency_state(tx, tx.store.jobs.child(parent, index))


def check(tx: Tx[Store], job: Job) -> None:
    """Make a job RUNNABLE if all jobs that it waits for have succeeded. End it if one of them has failed.

    A cancelled job ends in both cases. Also stop a child whose array was stopped.
    """
    if job.kind is JobKind.CHILD:
        parent = parent_of(tx, job)
        if parent.terminated:
            terminate(tx, job, parent.status_reason)
            return
        if parent.cancelled:
            _cancel_now(tx, job, parent.status_reason)
            return
    if job.state is not JobState.PENDING or (job.kind is JobKind.ARRAY and job.expanded != WAITS):
        return
    verdict = _dependency_state(tx, job)
    if job.cancelled and verdict is not JobState.PENDING:
        _cancel_now(tx, job, job.status_reason)
    elif verdict is JobState.FAILED:
        _fail(tx, job, DEPENDENCY_FAILED)
    elif verdict is JobState.SUCCEEDED and job.kind is JobKind.ARRAY:
        tx.store.jobs.change(job, job.but(expanded=0), tx.now_s)
        tx.mark(array_key(job))
    elif verdict is JobState.SUCCEEDED:
        make_runnable(tx, job, job)


def make_runnable(tx: Tx[Store], job: Job, changed: Job) -> None:
    """Make a job RUNNABLE, so that it waits for capacity.

    `job` is the stored job. `changed` is the job with other changes to write.
    """
    runnable = changed.but(state=JobState.RUNNABLE, runnable_at_s=tx.now_s, status_reason="")
    waiting_jobs.enqueue(tx, tx.store.jobs.change(job, runnable, tx.now_s))


def started(tx: Tx[Store], job: Job, tasks: Sequence[Task], environment: str) -> Job:
    """Write that the tasks of a new attempt were launched. The RUNNABLE job becomes STARTING. The dispatcher calls this.

    A multi-node job has one task for each node, in the order of the nodes. Other jobs have one task.
    """
    main = tasks[job.spec.main_node if job.kind is JobKind.MULTI_NODE else 0]
    if job.kind is JobKind.MULTI_NODE:
        tx.store.jobs.set_nodes(job, [task.id for task in tasks], environment, tx.now_s)
    starting = job.but(state=JobState.STARTING, task_id=main.id, environment=environment, status_reason="")
    tx.changed(f"job:{job.id}")
    return tx.store.jobs.change(job, starting, tx.now_s)


# The end of a job


def end(tx: Tx[Store], job: Job, state: JobState, reason: str) -> Job:
    """End a job that has no task. Terminate a job that has a task, and an array: they end later, when their tasks have ended."""
    if job.kind is JobKind.ARRAY or job.state not in BEFORE_START:
        terminate(tx, job, reason)
        return tx.store.jobs.get(job.id) or job
    return finish(tx, job, job.but(state=state, status_reason=reason))


def finish(tx: Tx[Store], job: Job, ended: Job) -> Job:
    """Write the end of a job. Update its array, and notify its dependent jobs.

    `job` is the job as it is stored now. `ended` is the job as it will be stored.
    """
    if job.state is JobState.RUNNABLE:
        waiting_jobs.dequeue(tx, job)
    ended = tx.store.jobs.change(job, ended.but(stopped_at_s=tx.now_s, check_from=None), tx.now_s)
    tx.changed(f"job:{job.id}")
    if job.kind is JobKind.CHILD:
        _child_ended(tx, ended)
    else:
        tx.due(SWEEP, tx.now_s + SHOWN_S)
    if job.kind is JobKind.MULTI_NODE:
        tx.store.jobs.move_nodes(ended, ended.state)
        release(tx, ended)
    elif job.kind is JobKind.ARRAY:
        _release_needed(tx, ended)
    _notify(tx, job.number, WHOLE if job.index is None else job.index)
    return ended


def _fail(tx: Tx[Store], job: Job, reason: str) -> Job:
    """End a job that waits for other jobs. If it is an array, its children become FAILED, too. None of them has a task."""
    if job.kind is JobKind.ARRAY and tx.store.jobs.fail_unexpanded(job, tx.now_s):
        _notify(tx, job.number, UNEXPANDED)
    return finish(tx, job, job.but(state=JobState.FAILED, status_reason=reason))


def _notify(tx: Tx[Store], number: int, position: int) -> None:
    """Write a notice: a row that makes a reconciler check the dependent jobs.

    If other notices exist, the reconciler is already due.
    """
    if tx.store.jobs.dependencies.notify(number, position):
        tx.mark(NOTICES)


def _release_needed(tx: Tx[Store], array: Job) -> None:
    """Allow the deletion of the arrays that this ended array needed."""
    needed = [tx.store.jobs.get(each.job_id) for each in array.depends_on if each.type == "N_TO_N"]
    if needed:
        tx.store.jobs.dependencies.drop_n_to_n(array.number, [each.number for each in needed if each is not None])


def _child_ended(tx: Tx[Store], child: Job) -> None:
    """Update the array of a child that has ended: end the array if this was its last child.

    If the array is SEQUENTIAL, check the next child.
    """
    parent = parent_of(tx, child)
    if _finish_array(tx, parent):
        return
    assert child.index is not None
    next_index = child.index + 1
    if next_index < parent.expanded and any(each.type == "SEQUENTIAL" for each in parent.depends_on):
        if child.state is JobState.FAILED:
            check_children(tx, parent, next_index)  # all later children fail, too: a limited number in each transaction
        else:
            check(tx, tx.store.jobs.child(parent, next_index))


def _finish_array(tx: Tx[Store], parent: Job) -> bool:
    """End an array if all its children have ended. Return whether it has ended."""
    succeeded, failed = tx.store.jobs.ended_children(parent.number)
    if succeeded + failed < parent.size:
        return False
    reason = parent.status_reason if parent.is_stopping else CHILD_FAILED if failed else ""
    finish(tx, parent, parent.but(state=JobState.FAILED if failed else JobState.SUCCEEDED, status_reason=reason))
    return True


def check_children(tx: Tx[Store], parent: Job, first: int) -> None:
    """Let the reconciler of an array check the children with the index `first` or more.

    If `check_from` of the array is set, the reconciler is already due.
    """
    if parent.check_from is None:
        tx.store.jobs.change(parent, parent.but(check_from=first), tx.now_s)
        tx.mark(array_key(parent))
    elif first < parent.check_from:
        tx.store.jobs.change(parent, parent.but(check_from=first), tx.now_s)


# CancelJob and TerminateJob


def cancel(tx: Tx[Store], job: Job, reason: str) -> None:
    """End a job that has not started. Do nothing if it has started. In an array, cancel each child that has not started.

    As on AWS, a job that waits for other jobs ends only when these jobs have ended: `check` ends it then. But an array that waits
    for other jobs ends at once.
    """
    job = parent_of(tx, job) if job.kind is JobKind.NODE else job
    if job.kind is JobKind.ARRAY:
        if not job.has_ended and not job.is_stopping:
            _stop_array(tx, job, job.but(cancelled=True, status_reason=reason))
    elif job.state is not JobState.PENDING or _dependency_state(tx, job) is not JobState.PENDING:
        _cancel_now(tx, job, reason)
    elif not job.cancelled:
        tx.store.jobs.change(job, job.but(cancelled=True, status_reason=reason), tx.now_s)
        tx.changed(f"job:{job.id}")


def _cancel_now(tx: Tx[Store], job: Job, reason: str) -> None:
    """End a job that has not started. A started job continues."""
    job = _stoppable(tx, job)
    if job.state in BEFORE_START:
        finish(tx, job, job.but(state=JobState.FAILED, status_reason=reason, cancelled=True))


def terminate(tx: Tx[Store], job: Job, reason: str) -> None:
    """End a job, and stop its tasks. A job with tasks ends when they have stopped."""
    job = _stoppable(tx, job)
    if job.has_ended or job.terminated:
        return
    if job.kind is JobKind.ARRAY:
        _stop_array(tx, job, job.but(terminated=True, status_reason=reason))
    elif job.state in BEFORE_START:
        finish(tx, job, job.but(state=JobState.FAILED, status_reason=reason, terminated=True))
    else:
        tx.store.jobs.change(job, job.but(terminated=True, status_reason=reason), tx.now_s)
        tx.mark(f"job:{job.id}")


def _stoppable(tx: Tx[Store], job: Job) -> Job:
    """Return the job that a request to stop `job` must stop. For a node, this is the whole multi-node job.

    If `job` is a child without a row, add its row.
    """
    if job.kind is JobKind.NODE:
        return parent_of(tx, job)
    if job.kind is JobKind.CHILD and job.state is JobState.SUBMITTED:
        assert job.index is not None
        return tx.store.jobs.add_early(parent_of(tx, job), job.index, tx.now_s)
    return job


def _stop_array(tx: Tx[Store], array: Job, stopped: Job) -> None:
    """Stop an array. Children without a row become FAILED at once. The reconciler of the array stops the other children."""
    waits = array.check_from is not None
    stopped = tx.store.jobs.change(array, stopped.but(check_from=0), tx.now_s)
    if tx.store.jobs.fail_unexpanded(stopped, tx.now_s):
        _notify(tx, stopped.number, UNEXPANDED)
    if not _finish_array(tx, stopped) and not waits:
        tx.mark(array_key(stopped))


def parent_of(tx: Tx[Store], child: Job) -> Job:
    parent = tx.store.jobs.get(child.parent_id)
    assert parent is not None, f"job {child.id} has no parent"
    return parent


def array_key(array: Job) -> str:
    """Return the key of the reconciler that adds, checks and stops the children of an array."""
    return f"job-array:{array.id}"
