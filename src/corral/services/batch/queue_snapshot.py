"""GetJobQueueSnapshot: the first RUNNABLE jobs of a job queue, in the order in which they start.

A line has the RUNNABLE jobs of a job queue that need the same resources and have the same share identifier. The snapshot merges the
lines of the queue by the rank of each job: the job with the smallest rank starts first.
"""

from __future__ import annotations

from heapq import merge
from itertools import islice
from typing import Any

from corral.core import Tx
from corral.model.job_line import JobPlace
from corral.services.batch.errors import missing
from corral.services.batch.job_queues import JobQueue, find_queue
from corral.services.batch.line_claims import line_rank
from corral.services.batch.names import JOB, QUEUE, arn, milliseconds
from corral.services.caller import Caller
from corral.store import Store

JOBS_MAX = 100


def get_job_queue_snapshot(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    queue = find_queue(tx, caller.region, params["jobQueue"])
    if queue is None:
        raise missing(QUEUE, params["jobQueue"])
    moved_at_s = tx.store.job_lines.moved_at.get((queue.region, queue.name), 0.0)
    jobs = []
    for place in first_jobs(tx, queue, JOBS_MAX):
        job = tx.store.jobs.get(place.job_id)
        since_s = place.since_s if job is None else job.runnable_at_s or place.since_s
        jobs.append(
            {
                "jobArn": arn(caller.account, caller.region, f"{JOB}/{place.job_id}"),
                "earliestTimeAtPosition": milliseconds(max(since_s, moved_at_s)),
            }
        )
    return {"frontOfQueue": {"jobs": jobs, "lastUpdatedAt": milliseconds(tx.now_s)}}


def first_jobs(tx: Tx[Store], queue: JobQueue, limit: int) -> list[JobPlace]:
    """Return the first waiting jobs of a queue. Jobs of a share that has used little capacity come first."""
    ranked = []
    for line in tx.store.job_lines.lines_of(queue.region, queue.name):
        level = line_rank(tx, line, queue, 0.0)[:4]  # these elements of the rank are equal for all jobs of a line
        ranked.append([(level, place) for place in tx.store.job_lines.places(line.id, limit)])
    return [place for _, place in islice(merge(*ranked), limit)]
