"""The operations of AWS Batch and their handlers. Service environments, service jobs and quota shares are not served."""

from __future__ import annotations

from corral.aws.handlers import handlers_in
from corral.operations.services import Fetch, Handler, Split
from corral.services.batch import (
    compute_environments,
    image_configs,
    job_definitions,
    job_description,
    job_listing,
    job_requests,
    queue_requests,
    queue_snapshot,
    resource_jobs,
    resource_requests,
    resource_tags,
    scheduling_policies,
    submit,
)

HANDLERS: dict[str, Handler] = handlers_in("batch", globals())
FETCH: dict[str, Fetch] = {"SubmitJob": image_configs.fetch}
PIECES: dict[str, Split] = {"CancelJobs": job_requests.split, "TerminateJobs": job_requests.split}
