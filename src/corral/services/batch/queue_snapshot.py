"""GetJobQueueSnapshot: the first RUNNABLE jobs of a job queue, in the order in which they start.

A share has the jobs with one share identifier. The level of a share is its use of vCPUs, multiplied by its weight. The snapshot
merges the lines in the order in which `decide/tasks/job_order.py` ranks their jobs, after the levels of their owners.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.tasks.job_order import weighted_vcpus
from corral.fleet.shares import level_after
from corral.model.job_line import JobPlace, WaitingLine
from corral.model.limits import limited_amounts
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
    """Return the first waiting jobs of a queue. Each job that starts raises the levels of its owner and its share."""
    lines = {line.id: line for line in tx.store.job_lines.lines_of(queue.region, queue.name)}
    started = {line.share: 0.0 for line in lines.values()}  # share → the vCPUs of its jobs that are in `found`
    levels = {share: level_of(tx, queue, share) for share in started}
    held = {line.key.owner: 0.0 for line in lines.values()}  # owner → the GPUs of its jobs that are in `found`
    owner_levels = {owner: level_after(tx, owner, 0.0) for owner in held}
    rows = {line_id: iter(tx.store.job_lines.places(line_id, limit)) for line_id in lines}

    def entry(line: WaitingLine, place: JobPlace) -> tuple[float, float, JobPlace, int]:
        return owner_levels[line.key.owner], levels[line.share], place, line.id

    heads = [entry(line, line.first) for line in lines.values() if next(rows[line.id], None) is not None]
    found: list[JobPlace] = []
    heapify(heads)
    while heads and len(found) < limit:
        place, line = heads[0][2], lines[heads[0][3]]
        if heads[0] != entry(line, place):  # a job of another line of the same owner or share has raised a level meanwhile
            heapreplace(heads, entry(line, place))
            continue
        found.append(place)
        started[line.share] += weighted_vcpus(line.demand)
        levels[line.share] = level_of(tx, queue, line.share, started[line.share])
        if len(held) > 1 and any(tx.store.fleet.pool(pool).waiting_lines.counts_gpus(line.key.owner) for pool, _ in line.pools):
            held[line.key.owner] += limited_amounts(line.demand)[0]
            owner_levels[line.key.owner] = level_after(tx, line.key.owner, held[line.key.owner])
        following = next(rows[line.id], None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, entry(line, following))
    return found
