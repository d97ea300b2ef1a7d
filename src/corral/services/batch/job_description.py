"""DescribeJobs: jobs, children of arrays and nodes of multi-node jobs, as Batch describes them."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.job import Attempt, Job, JobKind, JobState
from corral.services.batch.definition_rules import FARGATE
from corral.services.batch.errors import ClientException
from corral.services.batch.job_definitions import JobDefinition, definition_of
from corral.services.batch.job_queues import find_queue
from corral.services.batch.names import JOB, QUEUE, arn, milliseconds, short
from corral.services.batch.node_ranges import owners
from corral.services.batch.task_documents import CONTAINER, merged_container, task_properties
from corral.services.batch.waiting_reasons import reason, reasons
from corral.services.ecs.lookup import arn as ecs_arn
from corral.services.ecs.run_spec import log_target
from corral.services.ecs.task_spec import spec_of
from corral.store import Store

Description = dict[str, Any]

DESCRIBED_MAX = 100
PLACES_MAX = 3  # if a request names more waiting jobs than this, their reasons do not contain their places in the queue


class _Execution(Struct, frozen=True):
    """The current or the last attempt of a job."""

    task_arn: str
    instance_arn: str | None  # None on Fargate
    containers: dict[str, Description]  # by container name: exitCode, reason and logStreamName


def describe_jobs(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    wanted = params["jobs"]
    if len(wanted) > DESCRIBED_MAX:
        raise ClientException(f"jobs can have at most {DESCRIBED_MAX} elements, not {len(wanted)}.")
    ids = dict.fromkeys(short(JOB, caller.region, given) for given in wanted)
    found = [job for job_id in ids if job_id and (job := tx.store.jobs.get(job_id)) is not None and job.region == caller.region]
    why = _waiting_reasons(tx, [job for job in found if job.state is JobState.RUNNABLE])
    return {"jobs": [_detail(tx, job, why.get(job.id) or job.status_reason) for job in found]}


def _waiting_reasons(tx: Tx[Store], waiting: list[Job]) -> dict[str, str]:
    """Return why RUNNABLE jobs wait, by job id.

    The text contains a job's place in the queue only if the request names few jobs, because places are slow to count.
    """
    if len(waiting) <= PLACES_MAX:
        return {job.id: reason(tx, job) for job in waiting}
    found: dict[str, str] = {}
    for name in {job.queue for job in waiting}:
        queue = find_queue(tx, waiting[0].region, name)
        if queue is not None:
            found |= reasons(tx, queue, [job for job in waiting if job.queue == name])
    return found


def _detail(tx: Tx[Store], job: Job, status_reason: str) -> Description:
    """Describe a job in the form of DescribeJobs. The serializer leaves out members that are None."""
    account, spec = tx.settings.account, job.spec
    definition = definition_of(tx, job.region, spec.definition_arn)
    strategy = spec.request.get("retryStrategy") or definition.document.get("retryStrategy") or {}
    detail: Description = {
        "jobArn": arn(account, job.region, f"{JOB}/{job.id}"),
        "jobName": job.name,
        "jobId": job.id,
        "jobQueue": arn(account, job.region, f"{QUEUE}/{job.queue}"),
        "status": job.state.value,
        "shareIdentifier": spec.share or None,
        "schedulingPriority": spec.priority if spec.share else None,
        "attempts": [_attempt(tx, job, attempt, definition) for attempt in job.attempts],
        "statusReason": status_reason or None,
        "createdAt": milliseconds(job.created_at_s),
        "startedAt": milliseconds(job.started_at_s) if job.started_at_s is not None else None,
        "stoppedAt": milliseconds(job.stopped_at_s) if job.stopped_at_s is not None else None,
        "retryStrategy": {"attempts": spec.attempts_max, "evaluateOnExit": strategy.get("evaluateOnExit", [])},
        "dependsOn": [_members(jobId=each.job_id or None, type=each.type or None) for each in job.depends_on],
        "jobDefinition": spec.definition_arn,
        "parameters": spec.parameters,
        "timeout": {"attemptDurationSeconds": int(spec.timeout_s)} if spec.timeout_s is not None else None,
        "tags": spec.tags,
        "propagateTags": spec.propagate_tags,
        "platformCapabilities": definition.document.get("platformCapabilities", []),
        "eksAttempts": [],
        "isCancelled": job.cancelled,
        "isTerminated": job.terminated,
    }
    if spec.resources:
        listed = [{"consumableResource": name, "quantity": quantity} for name, quantity in spec.resources]
        detail["consumableResourceProperties"] = {"consumableResourceList": listed}
    if job.kind is JobKind.ARRAY:
        detail["arrayProperties"] = {
            "size": job.size,
            **status_summary(tx, job.number),
        }
    elif job.kind is JobKind.CHILD:
        detail["arrayProperties"] = {"index": job.index}
    elif job.kind is JobKind.NODE:
        detail["nodeDetails"] = {"nodeIndex": job.index, "isMainNode": job.index == spec.main_node}
    if job.kind is JobKind.MULTI_NODE:
        detail["nodeProperties"] = {**definition.document["nodeProperties"], "numNodes": job.size}
    else:
        detail |= _containers(tx, job, definition)
    return detail


def status_summary(tx: Tx[Store], array: int) -> Description:
    """Return the number of children of an array in each state, and the time of the last change. `array` is its number in the store.

    As on AWS, states without children are listed, too.
    """
    summary = tx.store.jobs.summaries.get(array)
    return {
        "statusSummary": {state.value: summary.count(state) for state in JobState},
        "statusSummaryLastUpdatedAt": milliseconds(summary.updated_at_s),
    }


# Containers


def _containers(tx: Tx[Store], job: Job, definition: JobDefinition) -> Description:
    """Return the member `container` of a job with one container, or `ecsProperties` of a job with several containers."""
    properties, member, overrides = _properties(job, definition)
    execution = _execution(tx, job, definition)
    if member in properties:
        container = merged_container(properties[member], overrides.get("containerOverrides") or {})
        return {"container": container | _of_execution(execution) | _outcome(execution, None)}
    [task] = properties["ecsProperties"]["taskProperties"]
    changes = (overrides.get("ecsPropertiesOverride") or {}).get("taskProperties") or [{}]
    names = [each["name"] for each in task_properties(properties, member)["containers"]]
    by_name = {each.get("name") or names[0]: each for each in changes[0].get("containers", ())}
    containers = [
        {**merged_container(each, by_name.get(name, {})), "name": name, **_outcome(execution, name)}
        for name, each in zip(names, task["containers"])
    ]
    described = {**task, "containers": containers, **_of_execution(execution)}
    return {"container": {}, "ecsProperties": {"taskProperties": [described]}}


def _properties(job: Job, definition: JobDefinition) -> tuple[Description, str, Description]:
    """Return the properties of a job or node, the name of the member that describes a single container, and the overrides."""
    request = job.spec.request
    if job.kind is not JobKind.NODE:
        return definition.document, "containerProperties", request
    assert job.index is not None
    nodes = max(group.last for group in job.spec.nodes) + 1
    ranges = definition.document["nodeProperties"]["nodeRangeProperties"]
    at = owners([each["targetNodes"] for each in ranges], nodes)[job.index]
    assert at is not None, "RegisterJobDefinition checks that the ranges include all nodes"
    changes = (request.get("nodeOverrides") or {}).get("nodePropertyOverrides", [])
    change_at = owners([each["targetNodes"] for each in changes], nodes)[job.index]
    return ranges[at], "container", changes[change_at] if change_at is not None else {}


def _execution(tx: Tx[Store], job: Job, definition: JobDefinition) -> _Execution | None:
    """Return the current attempt of a job, or its last attempt. Return None before the first attempt."""
    task = tx.store.tasks.get(job.task_id) if job.task_id else None
    if task is not None:
        account = tx.settings.account
        instance = task.instance_id if task.launch_type == "EC2" else None
        spec = spec_of(tx, task)
        containers = {}
        for run in task.runs:
            log = log_target(task, run, spec.containers[run.container]) if run.started_at_s is not None else None
            containers[run.container] = _members(
                exitCode=run.exit_code, reason=run.reason, logStreamName=log.stream if log is not None else None
            )
        return _Execution(
            ecs_arn(account, task.region, f"task/{task.cluster}/{task.id}"),
            ecs_arn(account, task.region, f"container-instance/{task.cluster}/{instance}") if instance else None,
            containers,
        )
    if job.attempts and job.attempts[-1].task_id:
        return _past(tx, job, job.attempts[-1], definition)
    return None


def _past(tx: Tx[Store], job: Job, attempt: Attempt, definition: JobDefinition) -> _Execution:
    account, cluster = tx.settings.account, attempt.cluster
    instance = attempt.instance_id if definition.platform != FARGATE else ""
    outcome = _members(exitCode=attempt.exit_code, reason=attempt.reason or None, logStreamName=attempt.log_stream or None)
    return _Execution(
        ecs_arn(account, job.region, f"task/{cluster}/{attempt.task_id}"),
        ecs_arn(account, job.region, f"container-instance/{cluster}/{instance}") if instance else None,
        {attempt.container or CONTAINER: outcome},
    )


def _of_execution(execution: _Execution | None) -> Description:
    if execution is None:
        return {}
    return _members(taskArn=execution.task_arn, containerInstanceArn=execution.instance_arn)


def _outcome(execution: _Execution | None, name: str | None) -> Description:
    """Return the exit code, reason and log stream of a container. If `name` is None, use the first container."""
    containers = execution.containers if execution is not None else {}
    name = next(iter(containers), "") if name is None else name
    return {**containers.get(name, {}), "networkInterfaces": []}


def _attempt(tx: Tx[Store], job: Job, attempt: Attempt, definition: JobDefinition) -> Description:
    detail = _members(
        startedAt=milliseconds(attempt.started_at_s) if attempt.started_at_s is not None else None,
        stoppedAt=milliseconds(attempt.stopped_at_s),
        statusReason=attempt.status_reason or None,
    )
    if not attempt.task_id:
        return {"container": {}, **detail}
    past = _past(tx, job, attempt, definition)
    task = _of_execution(past)
    [(name, outcome)] = past.containers.items()
    if job.kind is not JobKind.MULTI_NODE and "ecsProperties" in _properties(job, definition)[0]:
        containers = [{"name": name, **outcome, "networkInterfaces": []}]
        return {"container": {}, "taskProperties": [{**task, "containers": containers}], **detail}
    return {"container": {**task, **outcome, "networkInterfaces": []}, **detail}


def _members(**members: Any) -> Description:
    return {name: value for name, value in members.items() if value is not None}
