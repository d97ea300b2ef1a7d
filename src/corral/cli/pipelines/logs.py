"""Prints and follows the log of one job of an execution: STEP, or STEP[INDEX] for a child of an array."""

from __future__ import annotations

import re
import time
from typing import Any

from corral.cli.client.endpoint import Endpoint, client
from corral.cli.pipelines.executions import children
from corral.cli.pipelines.plan import PipelinePlan
from corral.cli.pipelines.state import ENDED_STATES, Execution, PipelineJob, StepState, original_index
from corral.cli.pipelines.yaml_reader import suggestion
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_message
from corral.cli.runs.log_printer import LogPrinter
from corral.cli.runs.log_states import TaskLogStream, log_states, report_dropped, report_unstored
from corral.cli.runs.task_logs import LogStart, pages, pages_until_complete

DEFAULT_GROUP = "/aws/batch/job"
POLL_S = 0.5
FAILED_SHOWN = 5
_NAME = re.compile(r"([^\[\]:]+)(?:\[([0-9]{1,5})\]|:([0-9]{1,5}))?")


def find_log_job(endpoint: Endpoint, plan: PipelinePlan, state: Execution, given: str) -> str:
    """Return the id of the job that STEP[INDEX] names. After a retry, this is the newest job with this index."""
    match = _NAME.fullmatch(given)
    names = [step.name for step in state.steps]
    if match is None or match[1] not in names:
        fix = suggestion(given, names) or f" Its steps are {', '.join(names)}."
        raise CliError(f"{state.id} has no step '{given}'.{fix} Write STEP, or STEP[INDEX] for a child of an array.")
    step, index = state.step(match[1]), match[2] or match[3]
    if not step.jobs:
        raise CliError(f"step {step.name} of {state.id} has no log: it was not submitted ({step.reason}).")
    planned = plan.step(step.name)
    if not planned.is_array:
        if index is not None:
            raise CliError(f"step {step.name} is no array. Write `corral pipeline logs {step.name}`.")
        return step.jobs[-1].id
    if index is None and planned.size > 1:
        raise CliError(f"step {step.name} is an array with {planned.size} children. Choose one: {_examples(endpoint, step)}.")
    number = int(index or 0)
    for job in sorted(step.jobs, key=lambda job: (job.attempt, job.created_s), reverse=True):
        if job.indexes is None and number < planned.size:
            return f"{job.id}:{number}" if job.is_array else job.id
        if job.indexes is not None and number in job.indexes:
            return f"{job.id}:{job.indexes.index(number)}" if job.is_array else job.id
    raise CliError(f"step {step.name} has no child {number}: its indexes are 0 to {planned.size - 1}.")


def _examples(endpoint: Endpoint, step: StepState) -> str:
    """Return examples for a message: the first children that failed, or the first child if none failed."""
    failed = [index for job in step.jobs if job.is_array and job.counts.failed for index in _failed(endpoint, job)]
    if failed:
        return f"for example {', '.join(f'{step.name}[{index}]' for index in failed[:FAILED_SHOWN])}, which failed"
    return f"for example {step.name}[0]"


def _failed(endpoint: Endpoint, job: PipelineJob) -> list[int]:
    found = children(client(endpoint, "batch"), job, "FAILED")
    return [original_index(job, each["arrayProperties"]["index"]) for each in found]


def print_log(endpoint: Endpoint, job_id: str, *, following: bool, tail: int | None, timestamps: bool, as_json: bool) -> None:
    """Print the log of a job's last attempt. With `following`, print new lines until the job has ended."""
    batch = client(endpoint, "batch")
    printer = LogPrinter([job_id], timestamps=timestamps, as_json=as_json)
    start, token, at = LogStart(tail), None, None
    while True:
        described = _describe(batch, job_id)
        has_ended = described["status"] in ENDED_STATES  # read before the log, so that the last lines are not missed
        stream = _stream(described)
        if stream is not None:
            if stream != at:
                token, at = None, stream  # a new attempt has its own log
            if has_ended and following:
                for page in pages_until_complete(endpoint, stream, f"job {job_id}", start, token):
                    printer.show(stream, page.events)
                break
            states = {} if following else log_states(endpoint, [stream])
            for page in pages(endpoint, stream, start, token):
                printer.show(stream, page.events)
                token = page.token
            report_unstored(f"job {job_id}", states.get(stream), "; --follow waits for them")
            report_dropped(f"job {job_id}", states.get(stream))
        if has_ended or not following:
            break
        time.sleep(POLL_S)
    if at is None:
        print_message(f"the job {job_id} is {described['status']} and has no log. {described.get('statusReason', '')}".rstrip())


def _describe(batch: Any, job_id: str) -> dict[str, Any]:
    found = batch.describe_jobs(jobs=[job_id])["jobs"]
    if not found:
        raise CliError(f"the job {job_id} does not exist any more.")
    return dict(found[0])


def _stream(described: dict[str, Any]) -> TaskLogStream | None:
    container = described.get("container") or {}
    attempts = described.get("attempts") or [{}]
    name = container.get("logStreamName") or (attempts[-1].get("container") or {}).get("logStreamName")
    options = (container.get("logConfiguration") or {}).get("options") or {}
    return (
        TaskLogStream("default", options.get("awslogs-region"), options.get("awslogs-group", DEFAULT_GROUP), name) if name else None
    )
