"""CancelJob and TerminateJob, and the same for several jobs: CancelJobs and TerminateJobs.

CancelJob and TerminateJob refuse a job that does not exist, so that a typing error is not a silent success. In a request for
several jobs, an error for one job does not affect the others, and AWS documents that a job which cannot be found counts as
successful. The server runs these requests in parts, so that a request for many jobs does not delay other requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.job import Job
from corral.operations.stored_resources import Params
from corral.services.batch.errors import ClientException
from corral.services.batch.job_progress import cancel, terminate
from corral.services.batch.names import JOB, arn, short
from corral.store import Store

REASON_MAX = 1024  # characters
JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}([:#][0-9]{1,5})?")  # of a job, a child or a node
JOBS_MAX = 50
JOBS_PER_PIECE = 5


def cancel_job(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    cancel(tx, _existing(tx, params, caller), params["reason"])
    return {}


def terminate_job(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    terminate(tx, _existing(tx, params, caller), params["reason"])
    return {}


def _existing(tx: Tx[Store], params: Params, caller: Caller) -> Job:
    job = _job(tx, params, caller)
    if job is None:
        raise ClientException(
            f"Job {params['jobId']} does not exist in {caller.region}. Pass the id or the ARN of a job that ListJobs shows."
        )
    return job


def _job(tx: Tx[Store], params: Params, caller: Caller) -> Job | None:
    """Check a request. Return its job, or None if the job does not exist."""
    for member in ("jobId", "reason"):
        if not params[member]:
            raise ClientException(f"{member} is empty: it must have at least 1 character.")
    if len(params["reason"]) > REASON_MAX:
        raise ClientException(
            f"reason has {len(params['reason'])} characters: it may have at most {REASON_MAX}. Give a shorter reason."
        )
    given = params["jobId"]
    job_id = short(JOB, caller.region, given)
    if not JOB_ID.fullmatch(job_id) or given not in (job_id, arn(caller.account, caller.region, f"{JOB}/{job_id}")):
        raise ClientException(f"jobId {given[:200]!r} is not valid: pass the id or the ARN of a job in {caller.region}.")
    job = tx.store.jobs.get(job_id)
    return job if job is not None and job.region == caller.region else None


# Requests for several jobs


def cancel_jobs(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _each(tx, params, caller, cancel)


def terminate_jobs(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _each(tx, params, caller, terminate)


def split(params: Params) -> list[Params]:
    """Split a request into parts of a few jobs. A request with too many jobs stays whole, and its handler refuses it."""
    jobs = params["jobs"]
    if not 1 <= len(jobs) <= JOBS_MAX:
        return [params]
    return [{**params, "jobs": jobs[at : at + JOBS_PER_PIECE]} for at in range(0, len(jobs), JOBS_PER_PIECE)]


def _each(tx: Tx[Store], params: Params, caller: Caller, end: Callable[[Tx[Store], Job, str], None]) -> dict[str, Any]:
    jobs = params["jobs"]
    if not 1 <= len(jobs) <= JOBS_MAX:
        raise ClientException(f"jobs must have 1 to {JOBS_MAX} job ids: it has {len(jobs)}.")
    successful: list[str] = []
    errors: list[dict[str, str]] = []
    for job_id in jobs:
        request = {"jobId": job_id, "reason": params["reason"]}
        try:
            job = _job(tx, request, caller)
            if job is not None:
                tx.attempt(lambda job=job: end(tx, job, params["reason"]))  # type: ignore[misc]
        except ApiError as error:
            errors.append({"job": job_id, "code": error.code, "message": error.message})
        else:
            successful.append(job_id)
    return {"successful": successful, "errors": errors}
