"""GetJobQueueSnapshot: the first RUNNABLE jobs of a job queue, in the order in which they start.

A share has the jobs with one share identifier. The level of a share is its use of vCPUs, multiplied by its weight. The snapshot
merges the lines in the order in which `decide/tasks/job_order.py` ranks their jobs.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.tasks.job_order import weighted_vcpus
from corral.model.job_line import JobPlace
from corral.services.batch.errors import missing
from corral.services.batch.job_queues import JobQueue, find_queue
from corral.services.batch.line_claims import level_of
from corral.services.batch.names import JOB, QUEUE, arn, milliseconds
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
    """Return the first waiting jobs of a queue. Each job that starts raises the level of its share, so the shares take turns."""
    lines = tx.store.job_lines.lines_of(queue.region, queue.name)
    levels = {line.share: level_of(tx, queue, line.share) for line in lines}
    started = dict.fromkeys(levels, 0.0)  # share → the vCPUs of its jobs that are in `found`
    rows = {line.id: iter(tx.store.job_lines.places(line.id, limit)) for line in lines}
    heads = [(levels[line.share], line.first, line.id) for line in lines if next(rows[line.id], None) is not None]
    by_id, found = {line.id: line for line in lines}, list[JobPlace]()
    heapify(heads)
    while heads and len(found) < limit:
        level, place, line_id = heads[0]
        share = by_id[line_id].share
        if level != levels[share]:  # a job of another line of the same share has raised the level meanwhile
            heapreplace(heads, (levels[share], place, line_id))
            continue
        found.append(place)
        started[share] += weighted_vcpus(by_id[line_id].demand)
        levels[share] = level_of(tx, queue, share, started[share])
        following = next(rows[line_id], None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (levels[share], following, line_id))
    return found
