"""Reconcilers of Batch jobs.

To check a job is to make it RUNNABLE, or to end it, if the jobs that it depends on have ended. The check of a child of an array
also stops the child if the array was stopped. `job` updates a job from its tasks. `job-array` adds the children of an array, and
checks them. `job-dependents` checks the jobs that depend on ended jobs. `jobs` deletes old jobs. Each call handles a limited number
of jobs, because an array may have 10,000 children and a job may have any number of dependent jobs. Later transactions handle the
rest.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.model.job import DEPENDENCY_FAILED, Job, JobKind, JobState
from corral.services.batch import waiting_jobs
from corral.services.batch.job_attempts import follow
from corral.services.batch.job_progress import (
    NOTICES,
    SHOWN_S,
    SWEEP,
    array_key,
    check,
    check_children,
    child_state,
    end,
)
from corral.store import Store
from corral.store.job_dependencies import Notice

ADDED_MAX = 100  # the most children that one transaction adds to an array and to the job queue: about 5 ms of work
CHECKED_MAX = 40  # the most children or dependent jobs that one transaction checks: about 5 ms of work if all of them fail
ROWS_MAX = 500  # the most old jobs that one transaction deletes
SWEEP_EVERY_S = 3600.0  # the time between two deletions of old jobs


def reconcile_job(tx: Tx[Store], job_id: str) -> None:
    follow(tx, job_id)


def reconcile_array(tx: Tx[Store], job_id: str) -> None:
    """Check the children that must be checked. If there are none, add the next children."""
    array = tx.store.jobs.get(job_id)
    if array is None or array.has_ended:
        return
    if array.check_from is not None:
        array = _check_children(tx, array, array.check_from)
    elif 0 <= array.expanded < array.size and not array.is_stopping:
        array = _add_children(tx, array)
    adds = 0 <= array.expanded < array.size and not array.is_stopping
    if not array.has_ended and (array.check_from is not None or adds):
        tx.due(array_key(array), tx.now_s)


def _check_children(tx: Tx[Store], array: Job, first: int) -> Job:
    """Check at most CHECKED_MAX children, beginning with the index `first`. Return the updated array.

    The children are checked in the order of their indexes, so that a failure reaches the next child of a SEQUENTIAL array at once.
    """
    last = None
    children = tx.store.jobs.live_children(array, first, CHECKED_MAX)
    for child in children:
        check(tx, child)
        last = child.index
    array = tx.store.jobs.get(array.id) or array
    if array.has_ended:
        return array
    more = last is not None and len(children) == CHECKED_MAX
    return tx.store.jobs.change(array, array.but(check_from=last + 1 if more and last is not None else None), tx.now_s)


def _add_children(tx: Tx[Store], array: Job) -> Job:
    """Add the next children of an array. Return the updated array.

    Each child becomes RUNNABLE, waits for other jobs, or fails because a job that it depends on has failed.
    """
    waits = any(each.type for each in array.depends_on)
    indexes = range(array.expanded, min(array.expanded + ADDED_MAX, array.size))
    verdicts = [child_state(tx, array, index) if waits else JobState.SUCCEEDED for index in indexes]
    states = [JobState.RUNNABLE if verdict is JobState.SUCCEEDED else JobState.PENDING for verdict in verdicts]
    array, children = tx.store.jobs.add_children(array, states, tx.now_s)
    if array.state is JobState.SUBMITTED:
        array = tx.store.jobs.change(array, array.but(state=JobState.PENDING), tx.now_s)
    runnable = [child for child in children if child.state is JobState.RUNNABLE]
    if runnable:
        waiting_jobs.enqueue(tx, *runnable)
    failed = {index for index, verdict in zip(indexes, verdicts) if verdict is JobState.FAILED}
    for child in children:
        if child.index in failed:
            end(tx, child, JobState.FAILED, DEPENDENCY_FAILED)
    return tx.store.jobs.get(array.id) or array


def reconcile_dependents(tx: Tx[Store], _: str) -> None:
    """Check the jobs that depend on ended jobs. The dependents of the job that ended first are checked first.

    A notice is a row about an ended job whose dependents must be checked. If a checked job fails, a notice about this job is added.
    """
    left = CHECKED_MAX
    dependencies = tx.store.jobs.dependencies
    while left > 0 and (notice := dependencies.next_notice()) is not None:
        dependents = dependencies.dependents(notice, left)
        for number in dependents:
            _check_dependent(tx, notice, number)
        after = dependents[-1] if dependents else notice.after
        if len(dependents) < left:
            dependencies.finish(notice, after)
        else:
            dependencies.proceed(notice, after)
        left -= len(dependents) + 1
    if dependencies.next_notice() is not None:
        tx.due(NOTICES, tx.now_s)


def _check_dependent(tx: Tx[Store], notice: Notice, number: int) -> None:
    job = tx.store.jobs.by_number(number)
    if job is None or job.has_ended:
        return
    check(tx, job)
    if job.kind is JobKind.ARRAY and notice.position >= 0 and notice.position < job.expanded:
        check(tx, tx.store.jobs.child(job, notice.position))
    elif job.kind is JobKind.ARRAY and notice.position < 0 and job.expanded > 0:
        check_children(tx, job, 0)


def drop_ended_jobs(tx: Tx[Store], _: str) -> None:
    """Delete jobs that ended more than SHOWN_S ago, and schedule the next call."""
    dropped = tx.store.jobs.drop_ended(tx.now_s - SHOWN_S, ROWS_MAX)
    if dropped >= ROWS_MAX:
        tx.due(SWEEP, tx.now_s)
    elif tx.store.jobs.oldest_end_s() is not None:
        tx.due(SWEEP, tx.now_s + SWEEP_EVERY_S)
