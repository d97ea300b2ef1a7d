"""Submits the jobs of an execution of a pipeline to AWS Batch, and stops an execution.

Jobs are submitted at the start of the execution, for a retry, and when a deferred step is ready. A deferred step cannot use Batch's
dependencies for a step with `max_failed` (`plan.py`), so it is submitted when that step has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.cli.client.endpoint import Endpoint, client
from corral.cli.pipelines.executions import FoundExecution, describe_jobs, failed_indexes, record_request, succeeded_indexes
from corral.cli.pipelines.plan import (
    TAG_HASH,
    TAG_RECORD,
    TAG_STOPPED,
    JobRequest,
    PipelinePlan,
    job_requests,
    submit_request,
)
from corral.cli.pipelines.state import Execution, StepState, read_job, unfinished_jobs, wanted_again, wanted_now
from corral.cli.printing.errors import CliError, error_line
from corral.cli.printing.output import count

STOP_REASON = "Stopped by `corral pipeline stop`."


def ensure_definition(batch: Any, request: Mapping[str, Any]) -> str:
    """Return NAME:REVISION of an ACTIVE job definition with the same hash. Register one if there is none."""
    name = request["jobDefinitionName"]
    for page in batch.get_paginator("describe_job_definitions").paginate(jobDefinitionName=name, status="ACTIVE"):
        for each in page["jobDefinitions"]:
            if each.get("tags", {}).get(TAG_HASH) == request["tags"][TAG_HASH]:
                return f"{name}:{each['revision']}"
    return f"{name}:{batch.register_job_definition(**request)['revision']}"


def start_execution(endpoint: Endpoint, plan: PipelinePlan, counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Submit all steps that are not deferred. Return the ids of the jobs of each step."""
    batch = client(endpoint, "batch")
    _check_queues(batch, plan)
    record = ensure_definition(batch, record_request(plan.pipeline, counts))
    wanted = {each.name: range(each.size) for each in plan.steps if not each.deferred_by}
    for each in plan.deferred:  # register now, so that a mistake is found before anything runs
        if each.definition is not None:
            ensure_definition(batch, each.definition)
    return _submit(batch, plan, job_requests(plan, wanted, {}), 1, record)


def _check_queues(batch: Any, plan: PipelinePlan) -> None:
    names = list({step.queue: 0 for step in plan.steps})
    known = {
        name
        for each in batch.describe_job_queues(jobQueues=names)["jobQueues"]
        for name in (each["jobQueueName"], each["jobQueueArn"])
    }
    for step in plan.steps:
        if step.queue not in known:
            raise CliError(
                f"step {step.name}: the job queue '{step.queue}' does not exist. `aws batch describe-job-queues` lists them."
            )


def _submit(
    batch: Any, plan: PipelinePlan, requests: Sequence[JobRequest], attempt: int, record: str, *, wraps: bool = True
) -> dict[str, list[str]]:
    """Submit jobs in the order of `requests`, and return their ids by step.

    If Batch refuses a job, terminate the jobs that this call has submitted before it.
    """
    definitions: dict[str, str] = {}
    ids: dict[int, str] = {}
    by_step: dict[str, list[str]] = {}
    try:
        for number, request in enumerate(requests):
            planned = plan.step(request.step)
            if planned.name not in definitions:
                named = planned.step.job_definition
                definitions[planned.name] = named or ensure_definition(batch, planned.definition or {})
            sent = submit_request(plan, request, definitions[planned.name], attempt, record, ids, wraps=wraps)
            ids[number] = batch.submit_job(**sent)["jobId"]
            by_step.setdefault(request.step, []).append(ids[number])
    except Exception as error:
        for job_id in reversed(ids.values()):
            batch.terminate_job(jobId=job_id, reason="A later job of the same pipeline was refused.")
        line = error_line(error)
        if line is None or isinstance(error, CliError):
            raise
        done = f" Terminated {count(len(ids), 'job')} that had been submitted before it." if ids else " Nothing was submitted."
        raise CliError(f"step {requests[len(ids)].step} was not submitted: {line.rstrip('.')}.{done}") from None
    return by_step


def advance(endpoint: Endpoint, plan: PipelinePlan, state: Execution) -> dict[str, list[str]]:
    """Submit the deferred steps that are ready. Return the ids of the jobs of each submitted step."""
    if not state.ready:
        return {}
    batch = client(endpoint, "batch")
    record = min(state.jobs, key=lambda job: (job.created_s, job.id)).tags.get(TAG_RECORD, "")
    wanted, existing = wanted_now(plan, state, lambda step: succeeded_indexes(endpoint, plan, state.step(step)))
    submitted = _submit(batch, plan, job_requests(plan, wanted, existing), state.attempt, record)
    return {step: ids for step, ids in submitted.items() if not _withdrawn(batch, plan, state, step, ids)}


def _withdrawn(batch: Any, plan: PipelinePlan, state: Execution, step: str, ids: Sequence[str]) -> bool:
    """If another `corral pipeline watch` has submitted the same step earlier, terminate the jobs with these ids.

    Return whether these jobs were terminated.
    """
    listed = batch.list_jobs(jobQueue=plan.step(step).queue, filters=[{"name": "JOB_NAME", "values": [f"{plan.id}-{step}"]}])[
        "jobSummaryList"
    ]
    jobs = [job for each in describe_jobs(batch, [each["jobId"] for each in listed]) if (job := read_job(each)) is not None]
    rivals = [job for job in jobs if job.attempt == state.attempt and job.id not in ids]
    known = {job.id for job in state.step(step).jobs}
    own = min(((job.created_s, job.id) for job in jobs if job.id in ids), default=None)
    if own is None or not any((job.created_s, job.id) < own for job in rivals if job.id not in known):
        return False
    for job_id in ids:
        batch.terminate_job(jobId=job_id, reason="Another `corral pipeline watch` has submitted this step.")
    return True


def stop_execution(endpoint: Endpoint, found: FoundExecution, state: Execution, now: str) -> list[dict[str, Any]]:
    """Terminate the jobs that run and cancel the jobs that wait, last steps first. Return the action for each step."""
    batch, done = client(endpoint, "batch"), []
    batch.tag_resource(resourceArn=found.first.arn, tags={TAG_STOPPED: now})  # so that no `watch` submits a deferred step
    for step in reversed(state.steps):
        jobs = [job for job in step.jobs if not job.ended]
        for job in jobs:
            batch.terminate_job(jobId=job.id, reason=STOP_REASON)
        if jobs or not step.jobs:
            action = "not submitted" if not step.jobs else "terminated" if step.counts.running else "cancelled"
            done.append({"step": step.name, "action": action, "running": step.counts.running, "waiting": step.counts.waiting})
    return done


def retry_execution(
    endpoint: Endpoint, plan: PipelinePlan, found: FoundExecution, state: Execution, *, wraps: bool
) -> dict[str, Any]:
    """Submit the failed jobs and children again, and the steps after them. Return the indexes and job ids of each step."""
    batch = client(endpoint, "batch")
    failed = {step.name: failed_indexes(endpoint, plan, step) for step in state.steps if step.jobs}
    wanted = wanted_again(plan, failed)
    was_stopped = TAG_STOPPED in found.first.tags
    if not wanted and not (was_stopped and any(not step.jobs for step in state.steps)):
        raise CliError(f"{found.id} has nothing to retry: no job has failed.")
    if was_stopped:
        batch.untag_resource(resourceArn=found.first.arn, tagKeys=[TAG_STOPPED])
    requests = job_requests(plan, wanted, unfinished_jobs(plan, state))
    ids = _submit(batch, plan, requests, state.attempt + 1, found.first.tags[TAG_RECORD], wraps=wraps)
    return {name: {"indexes": indexes, "jobs": ids[name], "failed": len(failed.get(name, ()))} for name, indexes in wanted.items()}


def describe_stop(step: StepState, action: str) -> str:
    """Describe in one line what `stop` did with a step."""
    running, waiting = step.counts.running, step.counts.waiting
    if action == "not submitted":
        return f"{step.name}: was not submitted"
    parts = [f"{number} {word}" for number, word in ((running, "running"), (waiting, "waiting")) if number]
    return f"{step.name}: {action} ({' and '.join(parts)})"
