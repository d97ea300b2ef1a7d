"""CancelJob and TerminateJob."""

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
    cancel(tx, _job(tx, params, caller), params["reason"])
    return {}


def terminate_job(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    terminate(tx, _job(tx, params, caller), params["reason"])
    return {}


def _job(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Job:
    """Return the job of a request."""
    for member in ("jobId", "reason"):
        if not params[member]:
            raise ClientException(f"{member} is empty: it must have at least 1 character.")
    if len(params["reason"]) > REASON_MAX:
        raise ClientException(
            f"reason has {len(params['reason'])} characters: it may have at most {REASON_MAX}. Give a shorter reason."
        )
    job = tx.store.jobs.get(params["jobId"])
    if job is None or job.region != caller.region:
        raise ClientException(
            f"Job {params['jobId']} does not exist in {caller.region}: jobs are deleted seven days after their end. "
            "ListJobs returns the existing ids."
        )
    return job
