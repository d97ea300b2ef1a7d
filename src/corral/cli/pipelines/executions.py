"""Finds the executions of pipelines and reads their state from AWS Batch.

The machine on which the command runs stores nothing about an execution. Jobs have the name PIPELINE-RUN-STEP, and their tags name
the pipeline, the execution, the step and the attempt. The **record** of an execution is a job definition that contains the pipeline
file and its parameters. No job is submitted with this job definition. Every machine with the same AWS account can read the tags and
the record, so it can find an execution, continue it and retry it.

A retry of an array is a smaller array with indexes from 0. The **original index** of a child is its index in the first array of the
step.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from corral.cli.client.endpoint import Endpoint, client
from corral.cli.pipelines.estimate import StepTimes, with_estimates
from corral.cli.pipelines.file import Pipeline, parse_pipeline
from corral.cli.pipelines.plan import RECORD_PREFIX, TAG_PIPELINE, TAG_RECORD, TAG_RUN, PipelinePlan, make_plan, with_hash
from corral.cli.pipelines.reasons import with_reasons
from corral.cli.pipelines.state import Execution, PipelineJob, StepState, execution_state, original_index, read_job, wanted_now
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import parsed_date

DESCRIBE_MAX = 100
LISTED_MAX = 5_000  # a search stops after about this many jobs of a queue
KEPT_S = 7 * 86_400.0  # AWS keeps ended jobs for at least seven days
SAMPLE_MAX = 100  # an estimate uses the mean time of at most this many succeeded children of an array
RECORD_PLAIN_MAX = 12_000  # characters; a job definition can have 24 KiB, so a longer record is compressed
_JOB_NAME = re.compile(r".+-[0-9a-f]{8}-.+")
_RUN = re.compile(r"(?:(.+)-)?([0-9a-f]{8})")


class FoundExecution(NamedTuple):
    """An execution, and its jobs that Batch still lists."""

    name: str
    execution: str
    jobs: tuple[PipelineJob, ...]

    @property
    def id(self) -> str:
        return f"{self.name}-{self.execution}"

    @property
    def created_s(self) -> float:
        return min(job.created_s for job in self.jobs)

    @property
    def first(self) -> PipelineJob:
        """The oldest job. One of its tags names the record of the execution."""
        return min(self.jobs, key=lambda job: (job.created_s, job.id))


# Find


def find_executions(endpoint: Endpoint, name: str | None = None, execution: str | None = None) -> list[FoundExecution]:
    """Return the executions of the pipeline `name`, or only its execution `execution`, newest first.

    If `name` is None, return all executions, of any pipeline, that have a job from the last seven days.
    """
    batch = client(endpoint, "batch")
    if name is not None:
        filters = [{"name": "JOB_NAME", "values": [f"{name}-{execution}-*" if execution else f"{name}-*"]}]
    else:
        now = server_now(batch.describe_job_queues(maxResults=1))
        filters = [{"name": "AFTER_CREATED_AT", "values": [str(int((now - KEPT_S) * 1000))]}]
    ids = [
        each["jobId"]
        for queue in queue_names(endpoint)
        for each in _list_jobs(batch, jobQueue=queue, filters=filters)
        if _JOB_NAME.fullmatch(each["jobName"])
    ]
    found: dict[tuple[str, str], list[PipelineJob]] = {}
    for described in describe_jobs(batch, ids):
        job = read_job(described)
        if job is not None and name in (None, job.tags[TAG_PIPELINE]) and execution in (None, job.tags[TAG_RUN]):
            found.setdefault((job.tags[TAG_PIPELINE], job.tags[TAG_RUN]), []).append(job)
    executions = [FoundExecution(*key, tuple(jobs)) for key, jobs in found.items()]
    return sorted(executions, key=lambda each: each.created_s, reverse=True)


def find_execution(endpoint: Endpoint, given: str | None) -> FoundExecution:
    """Return the execution with the id `given` (NAME-RUN or RUN), or the last execution of the pipeline `given`.

    If `given` is None, return the last execution of all pipelines. Raise a CliError if there is no such execution.
    """
    if given is None:
        found = find_executions(endpoint)
        if not found:
            raise CliError("no pipeline has run in the last seven days. Start one with `corral pipeline run FILE`.")
        return found[0]
    match = _RUN.fullmatch(given)
    found = find_executions(endpoint, match[1], match[2]) if match else []
    found = found or find_executions(endpoint, given)
    if not found:
        raise CliError(f"no run of a pipeline has the id or the name '{given}'. `corral pipeline list` shows the runs.")
    return found[0]


def queue_names(endpoint: Endpoint) -> list[str]:
    pages = client(endpoint, "batch").get_paginator("describe_job_queues").paginate()
    return [each["jobQueueName"] for page in pages for each in page["jobQueues"]]


def _list_jobs(batch: Any, **request: Any) -> Iterator[dict[str, Any]]:
    seen = 0
    for page in batch.get_paginator("list_jobs").paginate(**request):
        yield from page["jobSummaryList"]
        seen += len(page["jobSummaryList"])
        if seen >= LISTED_MAX:
            return


def describe_jobs(batch: Any, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    for start in range(0, len(ids), DESCRIBE_MAX):
        yield from batch.describe_jobs(jobs=list(ids[start : start + DESCRIBE_MAX]))["jobs"]


def server_now(reply: Mapping[str, Any]) -> float:
    """Return the server's time in seconds since 1970, from the Date header."""
    at = parsed_date(reply["ResponseMetadata"]["HTTPHeaders"].get("date"))
    assert at is not None, "every HTTP response has a Date header"
    return at.timestamp()


# The record


def record_request(pipeline: Pipeline, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the request that registers the record of an execution."""
    text = json.dumps(
        {"file": pipeline.text, "parameters": dict(pipeline.parameters), "name": pipeline.name, "lines": dict(counts)}
    )
    if len(text) > RECORD_PLAIN_MAX:
        text = "zlib:" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    if len(text) > 2 * RECORD_PLAIN_MAX - 2_000:
        raise CliError(f"{pipeline.file} is too long: Batch cannot store it with the run. Put long lists into S3, and use `list:`.")
    container = {
        "image": "corral/pipeline-record",
        "command": ["true"],
        "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "16"}],
    }
    name = RECORD_PREFIX + pipeline.name
    request = {"jobDefinitionName": name, "type": "container", "parameters": {"pipeline": text}, "containerProperties": container}
    return with_hash(request)


def load_plan(endpoint: Endpoint, found: FoundExecution) -> PipelinePlan:
    """Read the record of an execution, and plan the pipeline again."""
    record = found.first.tags.get(TAG_RECORD, "")
    definitions = client(endpoint, "batch").describe_job_definitions(jobDefinitions=[record])["jobDefinitions"] if record else []
    if not definitions:
        raise CliError(f"the job definition {record or 'with the pipeline file'} of {found.id} does not exist any more.")
    text = definitions[0].get("parameters", {}).get("pipeline", "")
    if text.startswith("zlib:"):
        text = zlib.decompress(base64.b64decode(text.removeprefix("zlib:"))).decode()
    read = json.loads(text)
    pipeline = parse_pipeline(f"the file of {found.id}", read["file"], read["parameters"], read["name"])
    return make_plan(pipeline, found.execution, read["lines"], existing_definitions(endpoint, pipeline))


def existing_definitions(endpoint: Endpoint, pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Describe the job definitions that steps name by NAME, NAME:REVISION or ARN. NAME means its newest ACTIVE revision."""
    batch = client(endpoint, "batch")
    found: dict[str, dict[str, Any]] = {}
    for step in pipeline.steps:
        name = step.job_definition
        if name is None or name in found:
            continue
        if name.startswith("arn:") or ":" in name:
            described = batch.describe_job_definitions(jobDefinitions=[name])["jobDefinitions"]
        else:
            pages = batch.get_paginator("describe_job_definitions").paginate(jobDefinitionName=name, status="ACTIVE")
            described = [each for page in pages for each in page["jobDefinitions"]]
        active = [each for each in described if each.get("status") != "INACTIVE"]
        if not active:
            raise CliError(f"step {step.name}: the job definition '{name}' does not exist, or has no active revision.")
        found[name] = max(active, key=lambda each: each["revision"])
    return found


def count_lines(endpoint: Endpoint, pipeline: Pipeline) -> dict[str, int]:
    """Return the number of lines of each step's list file, without empty lines. Omit steps with `array:`, which sets their size."""
    counts: dict[str, int] = {}
    for step in pipeline.steps:
        if step.list_url is None or step.array is not None:
            continue
        bucket, _, key = step.list_url.removeprefix("s3://").partition("/")
        s3 = client(endpoint, "s3")
        try:
            content = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        except (s3.exceptions.NoSuchKey, s3.exceptions.NoSuchBucket):
            raise CliError(f"step {step.name}: the list {step.list_url} does not exist. Upload it with `aws s3 cp`.") from None
        counts[step.name] = sum(bool(line.strip()) for line in content.split(b"\n"))
        if not counts[step.name]:
            raise CliError(f"step {step.name}: the list {step.list_url} has no lines. Write one item per line.")
    return counts


# Read


def read_state(endpoint: Endpoint, plan: PipelinePlan, earlier: Mapping[str, StepTimes] | None = None) -> tuple[Execution, float]:
    """Return the state of an execution with reasons and estimates, and the server's time. `earlier` has times of an earlier one."""
    batch = client(endpoint, "batch")
    ids = list(
        dict.fromkeys(
            each["jobId"] for queue in {step.queue: 0 for step in plan.steps} for each in _list_execution(batch, plan, queue)
        )
    )
    jobs = [job for described in describe_jobs(batch, ids) if (job := read_job(described)) is not None]
    jobs = [job for job in jobs if (job.tags[TAG_PIPELINE], job.tags[TAG_RUN]) == (plan.pipeline.name, plan.execution)]
    now_s = server_now(batch.describe_job_queues(maxResults=1))
    state = execution_state(plan, jobs)
    if state.ready:
        wanted, _ = wanted_now(plan, state, lambda step: succeeded_indexes(endpoint, plan, state.step(step)))
        following = [each.name for each in plan.steps if any(after.step in state.ready for after in each.step.after)]
        idle = frozenset(name for name in state.ready if name not in wanted and name not in following)
        state = execution_state(plan, jobs, idle) if idle else state
    steps = with_reasons(batch, plan.pipeline.name, state.steps)
    means = {step.name: mean for step in steps if not step.ended and (mean := _mean_s(batch, step)) is not None}
    return with_estimates(state._replace(steps=steps), now_s, means, earlier or {}), now_s


def _list_execution(batch: Any, plan: PipelinePlan, queue: str) -> Iterator[dict[str, Any]]:
    return _list_jobs(batch, jobQueue=queue, filters=[{"name": "JOB_NAME", "values": [f"{plan.id}-*"]}])


def _mean_s(batch: Any, step: StepState) -> float | None:
    times: list[float] = []
    for job in step.jobs:
        if job.is_array and job.counts.done:
            done = batch.list_jobs(arrayJobId=job.id, jobStatus="SUCCEEDED", maxResults=SAMPLE_MAX)["jobSummaryList"]
            times += [
                (each["stoppedAt"] - each["startedAt"]) / 1000 for each in done if each.get("startedAt") and each.get("stoppedAt")
            ]
    return sum(times) / len(times) if times else None


def children(batch: Any, job: PipelineJob, status: str) -> Iterable[dict[str, Any]]:
    for page in batch.get_paginator("list_jobs").paginate(arrayJobId=job.id, jobStatus=status):
        yield from page["jobSummaryList"]


def succeeded_indexes(endpoint: Endpoint, plan: PipelinePlan, step: StepState) -> frozenset[int]:
    """Return the original indexes whose newest job has succeeded."""
    batch, found = client(endpoint, "batch"), set[int]()
    everything = range(plan.step(step.name).size)
    for job in sorted(step.jobs, key=lambda job: (job.attempt, job.created_s)):
        covered = set(job.indexes if job.indexes is not None else everything)
        found -= covered
        if job.status == "SUCCEEDED":
            found |= covered
        elif job.is_array:
            found |= {original_index(job, each["arrayProperties"]["index"]) for each in children(batch, job, "SUCCEEDED")}
    return frozenset(found)


def failed_indexes(endpoint: Endpoint, plan: PipelinePlan, step: StepState) -> frozenset[int]:
    """Return the original indexes that were submitted and have not succeeded."""
    everything = range(plan.step(step.name).size)
    covered = {index for job in step.jobs for index in (job.indexes if job.indexes is not None else everything)}
    if step.counts.failed == 0 and not step.counts.active:
        return frozenset()
    return frozenset(covered) - succeeded_indexes(endpoint, plan, step)
