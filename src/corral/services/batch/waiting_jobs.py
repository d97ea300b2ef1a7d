"""RUNNABLE jobs in their lines: add and remove jobs, and update the claims of the lines."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.model.compute_environment import ComputeEnvironment, environment_key
from corral.model.job import Job
from corral.model.job_line import WaitingLine
from corral.services.batch.job_queues import JobQueue, find_queue
from corral.services.batch.line_claims import affected, job_place, line_key, offers, refresh_lines
from corral.store import Store


def enqueue(tx: Tx[Store], job: Job, *more: Job) -> None:
    """Put a RUNNABLE job into its line. If there is room for the job, the scheduler may dispatch it in this transaction.

    The job is a single job, the parent of the nodes of a multi-node job, or a child of an array. `more` are other children of the
    array, in the order of their indexes.
    """
    queue = find_queue(tx, job.region, job.queue)
    line, is_first = tx.store.job_lines.add(line_key(job, queue), [job_place(each, queue) for each in (job, *more)])
    if is_first:
        _mark_pools(tx, [line])  # run the scheduler: the job may come before the claim for which free capacity is reserved
        refresh_lines(tx, affected(tx, line.key, queue, _environments(tx, queue)))
        mark_limits(tx, queue)
    _mark_environments(tx, job, queue)


def dequeue(tx: Tx[Store], job: Job) -> None:
    """Remove a RUNNABLE job from its line, because it was cancelled or has ended. Do nothing if it is in no line."""
    queue = find_queue(tx, job.region, job.queue)
    key, place = line_key(job, queue), job_place(job, queue)
    before = tx.store.job_lines.find(key)
    if before is None:
        return
    tx.store.job_lines.remove(key, place, tx.now_s)
    if before.head == job.id:
        _mark_pools(tx, [before])  # run the scheduler: other claims may use slots that were reserved for this job
        refresh_lines(tx, affected(tx, key, queue, _environments(tx, queue)))
        mark_limits(tx, queue)
    _mark_environments(tx, job, queue)


def pass_on(tx: Tx[Store], job: Job, owner: str, passed_from: str) -> None:
    """Pass a job that has no parent to another owner, with its children. Those that wait join the line of this owner."""
    queue = find_queue(tx, job.region, job.queue)
    tx.store.jobs.set_owner(job, owner, passed_from)
    before = line_key(job, queue)
    places = tx.store.job_lines.take(before, job_place(job, queue).priority, job.number)
    if not places:
        return
    line, _ = tx.store.job_lines.add(replace(before, owner=owner), places)
    left = tx.store.job_lines.find(before)
    lines = [line] if left is None else [left, line]
    _mark_pools(tx, lines)
    refresh_lines(tx, lines)


def refresh_queue(tx: Tx[Store], region: str, queue: str) -> None:
    """Update the claims of a job queue, because the queue, its policy or its environments have changed."""
    lines = tx.store.job_lines.lines_of(region, queue)
    _mark_pools(tx, lines)  # run the scheduler: with new ranks, another claim may reserve the free capacity
    refresh_lines(tx, lines)
    # This reconciler also runs if the queue has no time limits any more: then it deletes the waiting times that it has recorded.
    tx.mark(f"job-limits:{region}/{queue}")


def resource_changed(tx: Tx[Store], region: str, name: str) -> None:
    """Update the claims of the lines that need a consumable resource, because the quantity of the resource has changed."""
    refresh_lines(tx, tx.store.job_lines.with_resource(region, name))


def _environments(tx: Tx[Store], queue: JobQueue | None) -> list[ComputeEnvironment]:
    return [offer.environment for offer in offers(tx, queue)]


def _mark_environments(tx: Tx[Store], job: Job, queue: JobQueue | None) -> None:
    """Run the reconcilers that scale the environments of a queue, because the number of its waiting jobs has changed."""
    for name in queue.environments if queue is not None else ():
        tx.mark(environment_key(job.region, name))


def mark_environments(tx: Tx[Store], queues: Iterable[tuple[str, str]]) -> None:
    """Scale the environments of queues, because the limits of owners may let more or fewer jobs start."""
    for region, name in sorted(queues):
        for environment in _environments(tx, find_queue(tx, region, name)):
            if environment.scales:
                tx.mark(environment.key)


def _mark_pools(tx: Tx[Store], lines: Iterable[WaitingLine]) -> None:
    """Run the scheduler for the pools in which lines have a claim."""
    for line in lines:
        for pool, _ in line.pools:
            tx.mark(f"pool:{pool}")


def mark_limits(tx: Tx[Store], queue: JobQueue | None) -> None:
    if queue is not None and queue.time_limits:
        tx.mark(f"job-limits:{queue.region}/{queue.name}")
