"""SubmitJob: checks a request and stores the job. Of an array or a multi-node job, it stores only the parent."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.limits import limited_time_s, why_refused
from corral.fleet.shares import must_wait, waiting_gpus, why_too_many_wait
from corral.model.job import Dependency, Job, JobKind, JobState
from corral.model.limits import limited_amounts
from corral.model.task import Demand
from corral.operations.tags import TAGS_MAX
from corral.services.batch import job_progress
from corral.services.batch.definition_rules import FARGATE
from corral.services.batch.environments import find_environment
from corral.services.batch.errors import ClientException
from corral.services.batch.image_configs import remember
from corral.services.batch.job_definitions import ACTIVE, JobDefinition, find_definition
from corral.services.batch.job_queues import JobQueue, find_queue
from corral.services.batch.job_specs import job_spec, node_count
from corral.services.batch.line_claims import offers
from corral.services.batch.names import JOB, NAME, arn
from corral.services.ecs.host_access import is_kept_from_host, may_use_account
from corral.store import Store

ARRAY_SIZE = (2, 10_000)
DEPENDENCIES_MAX = 20
SHARES_MAX = 500  # the quota of AWS for a queue: share identifiers that have waiting or running jobs
N_TO_N, SEQUENTIAL = "N_TO_N", "SEQUENTIAL"
SHARE = re.compile(r"[A-Za-z0-9]{1,255}\*?")


def submit_job(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    remember(params)
    name = params["jobName"]
    if not NAME.fullmatch(name):
        raise ClientException(
            f"Job name should match valid pattern: '{name[:200]}' must have up to 128 letters, digits, hyphens and underscores, "
            "and begin with a letter or digit."
        )
    if params.get("eksPropertiesOverride"):
        raise ClientException("Corral does not serve eksPropertiesOverride: it runs jobs as ECS tasks. Use containerOverrides.")
    queue = _queue(tx, caller.region, params["jobQueue"])
    definition = _definition(tx, caller, params["jobDefinition"])
    _check_platform(tx, queue, definition)
    _check_share(tx, queue, params.get("shareIdentifier"))
    size = _array_size(params.get("arrayProperties") or {}, definition)
    depends_on = _dependencies(tx, caller.region, params.get("dependsOn") or [], size)
    spec = job_spec(tx, definition, params)
    if tx.store.limits.of:
        if (why := why_refused(tx, caller.owner, spec.demand, spec.timeout_s)) is not None:
            raise ClientException(why)
        if (why := _why_too_many_wait(tx, caller.owner, queue, spec.demand, size or 1)) is not None:
            raise ClientException(why)
        spec = replace(spec, timeout_s=limited_time_s(tx, caller.owner, spec.timeout_s))
    if is_kept_from_host(tx, caller):
        spec = replace(spec, only_in_docker=True, as_account=may_use_account(caller))
    kind = JobKind.SINGLE
    if definition.is_multinode:
        kind, size = JobKind.MULTI_NODE, node_count(definition, params)
    elif size:
        kind = JobKind.ARRAY
    job = Job(
        id=tx.ids.uuid(),
        region=caller.region,
        queue=queue.name,
        name=name,
        kind=kind,
        state=JobState.SUBMITTED,
        spec=spec,
        created_at_s=tx.now_s,
        size=size,
        depends_on=depends_on,
        owner=caller.owner,
    )
    job = job_progress.submit(tx, job)
    if spec.propagate_tags and len({*definition.document["tags"], *spec.tags}) > TAGS_MAX:
        reason = (
            f"The job and its job definition have more than {TAGS_MAX} tags together, so the tags cannot be propagated to the task."
        )
        job_progress.end(tx, job, JobState.FAILED, reason)
    return {"jobArn": arn(caller.account, caller.region, f"{JOB}/{job.id}"), "jobName": name, "jobId": job.id}


def _why_too_many_wait(tx: Tx[Store], owner: str, queue: JobQueue, demand: Demand, size: int) -> str | None:
    """Return why the limits of an owner refuse a job that would wait. None: they do not, or the job would start at once."""
    gpus, pools = limited_amounts(demand)[0] * size, [offer.pool for offer in offers(tx, queue)]
    why = why_too_many_wait(tx, owner, gpus)
    if why is None or waiting_gpus(tx, [owner]) or must_wait(tx, pools, owner, demand):
        return why
    return why if gpus > sum([tx.store.fleet.pool(name).free_gpus for name in pools]) else None


def _queue(tx: Tx[Store], region: str, given: str) -> JobQueue:
    queue = find_queue(tx, region, given)
    if queue is None:
        raise ClientException(f"JobQueue {given[:300]} not found.")
    if not queue.accepts_jobs:
        raise ClientException(
            f"JobQueue {queue.name} does not accept jobs: its state is {queue.state} and its status is {queue.status}. Submit the "
            "job to a queue that is ENABLED and VALID."
        )
    return queue


def _definition(tx: Tx[Store], caller: Caller, given: str) -> JobDefinition:
    definition = find_definition(tx, caller.region, given, caller.owner)
    if given.startswith("arn:") and definition is None:
        raise ClientException(f"JobDefinition {given[:300]} not found.")
    if given.startswith("arn:") and definition is not None and definition.status != ACTIVE:
        raise ClientException(f"JobDefinition {given[:300]} is not in ACTIVE status")
    if definition is None or definition.status != ACTIVE:
        raise ClientException(f"JobDefinition name {given[:300]} does not exist or is not in ACTIVE status")
    return definition


def _check_platform(tx: Tx[Store], queue: JobQueue, definition: JobDefinition) -> None:
    """Refuse a definition that cannot run in the environments of the queue.

    This function checks the first environment only, because all environments of a queue are on Fargate, or none is.
    """
    environment = find_environment(tx, queue.region, queue.environments[0]) if queue.environments else None
    if environment is not None and environment.is_fargate != (definition.platform == FARGATE):
        raise ClientException(
            f"The platform capability {definition.platform} of job definition {definition.name}:{definition.revision} does not fit "
            f"the compute environments of job queue {queue.name}. Submit the job to another queue."
        )


def _check_share(tx: Tx[Store], queue: JobQueue, share: str | None) -> None:
    if not queue.policy_arn:
        if share:
            raise ClientException(
                f"shareIdentifier cannot be specified, because job queue {queue.name} has no fair-share scheduling policy."
            )
        return
    if not share:
        raise ClientException(
            f"shareIdentifier must be specified, because job queue {queue.name} has a fair-share scheduling policy."
        )
    if not SHARE.fullmatch(share):
        raise ClientException(
            f"shareIdentifier '{share[:100]}' is not valid: use up to 255 letters and digits, and * only at the end."
        )
    uses = tx.store.job_holdings.shares(queue.region, queue.name)
    if share in uses:
        return
    active = {line.share for line in tx.store.job_lines.lines_of(queue.region, queue.name)}
    active |= {each for each, use in uses.items() if use.held}
    if share not in active and len(active) >= SHARES_MAX:
        raise ClientException(
            f"shareIdentifier '{share}' is not possible now: jobs with {SHARES_MAX} other share identifiers wait or run in job "
            f"queue {queue.name}, which is the maximum. Use one of them, or submit the job again when their jobs have ended."
        )


def _array_size(given: dict[str, Any], definition: JobDefinition) -> int:
    """Return the number of children of an array job, or 0 for other jobs."""
    size: int | None = given.get("size")
    if size is None:
        return 0
    least, most = ARRAY_SIZE
    if not least <= size <= most:
        raise ClientException(f"arrayProperties.size {size} is not valid: the size of an array job must be from {least} to {most}.")
    if definition.is_multinode:
        raise ClientException("A multi-node job cannot be an array job. Remove arrayProperties.")
    return size


def _dependencies(tx: Tx[Store], region: str, given: list[dict[str, str]], size: int) -> tuple[Dependency, ...]:
    """Check and return the dependencies of a job. `size` is the number of the job's children; it is 0 if the job is no array."""
    if len(given) > DEPENDENCIES_MAX:
        raise ClientException(f"A job can depend on at most {DEPENDENCIES_MAX} jobs; dependsOn has {len(given)}.")
    found: list[Dependency] = []
    for each in given:
        job_id, kind = each.get("jobId") or "", each.get("type") or ""
        if kind == SEQUENTIAL:
            if not size or job_id:
                raise ClientException(
                    "A dependency of type SEQUENTIAL is only possible for an array job, and must not have a jobId."
                )
        elif not job_id:
            raise ClientException("A dependency needs a jobId, unless it has the type SEQUENTIAL.")
        else:
            _check_dependency(tx, region, job_id, kind, size)
        dependency = Dependency(job_id, kind)
        if dependency not in found:
            found.append(dependency)
    return tuple(found)


def _check_dependency(tx: Tx[Store], region: str, job_id: str, kind: str, size: int) -> None:
    other = tx.store.jobs.get(job_id)
    if other is None or other.region != region:
        raise ClientException(f"dependsOn names the job {job_id[:200]}, which does not exist.")
    if other.kind is JobKind.NODE:
        raise ClientException(
            f"dependsOn names the node {job_id}: a job can depend on the whole multi-node job {other.parent_id} only."
        )
    if kind == N_TO_N and (other.kind is not JobKind.ARRAY or other.size != size):
        own = f"an array job of size {size}" if size else "no array job"
        its = f"an array job of size {other.size}" if other.kind is JobKind.ARRAY else "no array job"
        raise ClientException(
            f"A dependency of type N_TO_N needs two array jobs of equal size: this job is {own}, and job {job_id} is {its}."
        )
