"""The reconciler `job-limits` cancels jobs that wait too long for the same reason (`jobStateTimeLimitActions` of their job queue).

Only the first job of each line is checked, because the other jobs wait for the first job.
"""

from __future__ import annotations

from typing import Any

from corral.core.transactions import Tx
from corral.services.batch import job_progress
from corral.services.batch.job_queues import find_queue
from corral.services.batch.waiting_reasons import line_reason
from corral.store import Store

CHECK_S = 60.0  # the longest time between two checks; the reason of a job can change without a change in its job queue


def reconcile_limits(tx: Tx[Store], key: str) -> None:
    """Cancel the jobs of a queue that have reached a time limit. Check again when the next job reaches its limit, or after CHECK_S.

    The time is counted only while a job is the first of its line, and waits for the reason that the time limit names. If the reason
    changes, the time begins again at zero.
    """
    region, _, name = key.partition("/")
    queue, before = find_queue(tx, region, name), tx.store.job_lines.blocked(region, name)
    blocked: dict[str, tuple[str, float]] = {}
    due_s: list[float] = []
    expired: list[tuple[str, dict[str, Any]]] = []
    lines = tx.store.job_lines.lines_of(region, name) if queue is not None and queue.time_limits else []
    for line in lines:
        code = line_reason(tx, line, queue).code
        limit = next((each for each in queue.time_limits if each["reason"] == code), None) if queue is not None and code else None
        if limit is None:
            continue
        known = before.get(line.head)
        since_s = known[1] if known is not None and known[0] == code else tx.now_s
        blocked[line.head] = code, since_s
        if since_s + limit["maxTimeSeconds"] <= tx.now_s:
            expired.append((line.head, limit))
        else:
            due_s.append(since_s + limit["maxTimeSeconds"])
    if blocked != before:
        tx.store.job_lines.set_blocked(region, name, blocked)
    if lines:
        tx.due(f"job-limits:{key}", min([tx.now_s + CHECK_S, *due_s]))
    for job_id, limit in expired:
        job = tx.store.jobs.get(job_id)
        if job is not None:
            reason = f"Cancelled after {limit['maxTimeSeconds']} seconds in the state RUNNABLE: {limit['reason']}"
            job_progress.cancel(tx, job, reason)
