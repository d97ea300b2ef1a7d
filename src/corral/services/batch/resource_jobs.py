"""ListJobsByConsumableResource: lists the jobs that need a consumable resource. It lists arrays, but not their children."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.job import Job, JobState
from corral.model.numbers import INT64_MAX, whole_number
from corral.operations.stored_resources import Params
from corral.services.batch.consumable_resources import ConsumableResource, find_resource
from corral.services.batch.errors import missing, refused
from corral.services.batch.names import JOB, PAGES, QUEUE, RESOURCE, arn, milliseconds
from corral.services.batch.resource_requests import name_filter
from corral.store import Store

STATUS, NAME = "JOB_STATUS", "JOB_NAME"
WINDOW = 1000  # one request reads at most this many jobs. If more exist, the response has a nextToken, even if it lists no job


def list_jobs_by_consumable_resource(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    resource = find_resource(tx, caller.region, params["consumableResource"])
    if resource is None:
        raise missing(RESOURCE, params["consumableResource"])
    filters = params.get("filters", [])
    matches = name_filter(filters, (STATUS, NAME))
    for value in (each for given in filters if given["name"] == STATUS for each in given.get("values", ())):
        if value.upper() not in list(JobState):
            raise refused(STATUS, value, f"it must be one of {', '.join(JobState)}.")
    limit = PAGES.limit_of(params) or WINDOW
    numbers, last = tx.store.jobs.with_resource(caller.region, resource.name, PAGES.position(params, _number), WINDOW)
    found: list[Job] = []
    for number in numbers:
        job = tx.store.jobs.by_number(number)
        if job is None or not _quantity(job, resource) or not (matches[STATUS](job.state) and matches[NAME](job.name)):
            continue
        if len(found) == limit:
            last = found[-1].number
            break
        found.append(job)
    jobs = [_summary(caller, job, resource) for job in found]
    return {"jobs": jobs, **PAGES.more(str(last) if last else None)}


def _number(text: str) -> int:
    """Return the position that a nextToken contains. Raise ValueError if it is not a number."""
    if not text:
        return INT64_MAX
    found = whole_number(text)
    if found is None:
        raise ValueError(text)
    return found


def _quantity(job: Job, resource: ConsumableResource) -> int:
    return sum(quantity for name, quantity in job.spec.resources if name == resource.name)


def _summary(caller: Caller, job: Job, resource: ConsumableResource) -> dict[str, Any]:
    wanted = [{"consumableResource": name, "quantity": quantity} for name, quantity in job.spec.resources]
    optional = {
        "shareIdentifier": job.spec.share,
        "statusReason": job.status_reason,
        "startedAt": milliseconds(job.started_at_s) if job.started_at_s is not None else None,
    }
    return {
        "jobArn": arn(caller.account, caller.region, f"{JOB}/{job.id}"),
        "jobQueueArn": arn(caller.account, caller.region, f"{QUEUE}/{job.queue}"),
        "jobName": job.name,
        "jobDefinitionArn": job.spec.definition_arn,
        "jobStatus": job.state.value,
        "quantity": _quantity(job, resource),
        "createdAt": milliseconds(job.created_at_s),
        "consumableResourceProperties": {"consumableResourceList": wanted},
        **{member: value for member, value in optional.items() if value},
    }
