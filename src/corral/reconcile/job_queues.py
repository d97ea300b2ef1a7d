"""The reconciler `job-queue`. It runs after each change of a job queue, of its scheduling policy or of its compute environments.

The reconciler updates the order in which the waiting jobs of the queue get capacity. If the queue is being deleted, the reconciler
terminates the jobs, a limited number in each transaction, and deletes the queue when the last job has ended.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.services.batch import job_progress, waiting_jobs
from corral.services.batch.job_queues import find_queue
from corral.services.batch.names import DELETING, QUEUE, SERVICE, queue_key
from corral.store import Store

JOBS_PER_TRANSACTION = 50  # the most jobs that one transaction terminates
AGAIN_S = 1.0  # the time between two checks whether all jobs of a queue that is being deleted have ended
REASON = "JobQueue deleted"


def reconcile_queue(tx: Tx[Store], place: str) -> None:
    """Reconcile a queue. `place` is REGION/NAME."""
    region, _, name = place.partition("/")
    queue = find_queue(tx, region, name)
    if queue is not None:
        waiting_jobs.refresh_queue(tx, region, name)
        if queue.status == DELETING:
            _end_jobs(tx, region, name)


def _end_jobs(tx: Tx[Store], region: str, name: str) -> None:
    """Terminate the next jobs of a queue. Delete the queue if all its jobs have ended."""
    key = queue_key(region, name)
    jobs = tx.store.jobs.not_ended(region, name, JOBS_PER_TRANSACTION, terminated=False)
    for job in jobs:
        job_progress.terminate(tx, job, REASON)
    if jobs:
        tx.due(key, tx.now_s)
    elif tx.store.jobs.not_ended(region, name, 1, terminated=True):
        tx.due(key, tx.now_s + AGAIN_S)
    else:
        tx.store.job_holdings.drop_shares(region, name)
        tx.store.stored.drop(SERVICE, QUEUE, region, name)
        tx.changed(key)
