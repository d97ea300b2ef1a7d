"""Reconcilers of job queues: start the jobs that get capacity, and cancel jobs that wait for too long."""

from __future__ import annotations

from corral.core import Tx
from corral.model.job import JobState
from corral.model.placement import Claim, Placement
from corral.services.batch import dispatch, job_progress
from corral.store import Store


def dispatch_job(tx: Tx[Store], claim: Claim, placement: Placement) -> None:
    """Start the first job of a line. If its launch is refused, the job fails with the reason."""
    refused = dispatch.grant(tx, claim, placement)
    if refused is not None:
        job_progress.end(tx, refused.job, JobState.FAILED, refused.reason)
