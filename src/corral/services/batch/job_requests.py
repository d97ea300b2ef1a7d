"""CancelJob and TerminateJob. As on AWS, a request for a job that does not exist succeeds: the job may have been deleted."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.model.job import Job
from corral.services.batch.errors import ClientException
from corral.services.batch.job_progress import cancel, terminate
from corral.services.caller import Caller
from corral.store import Store

REASON_MAX = 1024  # characters


def cancel_job(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    job = _job(tx, params, caller)
    if job is not None:
        cancel(tx, job, params["reason"])
    return {}


def terminate_job(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    job = _job(tx, params, caller)
    if job is not None:
        terminate(tx, job, params["reason"])
    return {}


def _job(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Job | None:
    """Check a request. Return its job, or None if the job does not exist."""
    for member in ("jobId", "reason"):
        if not params[member]:
            raise ClientException(f"{member} is empty: it must have at least 1 character.")
    if len(params["reason"]) > REASON_MAX:
        raise ClientException(
            f"reason has {len(params['reason'])} characters: it may have at most {REASON_MAX}. Give a shorter reason."
        )
    job = tx.store.jobs.get(params["jobId"])
    return job if job is not None and job.region == caller.region else None
