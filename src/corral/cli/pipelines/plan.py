"""Decides which jobs a pipeline submits to AWS Batch. These functions are pure: they call no service.

A **pipeline** is a list of steps. A **step** is one job or one array job. Each job of an execution has the name
PIPELINE-RUN-STEP, and tags by which every machine finds the execution again. The **attempt** of an execution is a number: 1 at
first, and one more after each `corral pipeline retry`.

In Batch, an array fails when one child fails, and a job fails when a job that it depends on fails. With `max_failed`, some children
of a step may fail, and the steps after it start anyway. So these later steps cannot use Batch's dependencies. They are
**deferred**: `corral pipeline` submits them when the step with `max_failed` has ended with few enough failures. The steps after a
deferred step are deferred, too, because a dependency names the id of a job, which exists only when the job has been submitted.

A retry submits only some children of an array. Batch cannot run chosen indexes of an array, so the retry is a smaller array. Its
environment variable CORRAL_ARRAY_INDEXES has the original indexes, for example `3,7,12-15`. A small shell script in front of the
command sets AWS_BATCH_JOB_ARRAY_INDEX to the original index.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from corral.cli.pipelines.file import DEFAULT_MEMORY_MIB, DEFAULT_VCPUS, Pipeline, PipelineQueues, PipelineStep
from corral.cli.pipelines.yaml_reader import PipelineFileError, Problem

TAG_PIPELINE, TAG_RUN, TAG_STEP, TAG_ATTEMPT, TAG_FILE, TAG_RECORD, TAG_STOPPED, TAG_USAGE, TAG_HASH = (
    f"corral:pipeline{suffix}"
    for suffix in ("", ":run", ":step", ":attempt", ":file", ":record", ":stopped", ":usage", ":definition")
)
RECORD_PREFIX = "corral-pipeline-"
INDEXES_VARIABLE = "CORRAL_ARRAY_INDEXES"
INDEXES_MAX_CHARS = 8_000  # of CORRAL_ARRAY_INDEXES; a request of SubmitJob can have 30 KiB
ARRAY_MIN = 2  # Batch refuses smaller arrays; a step with one child is a plain job
# Sets AWS_BATCH_JOB_ARRAY_INDEX and AWS_BATCH_JOB_ARRAY_SIZE to the values of the original array, removes CORRAL_ARRAY_INDEXES, and
# runs the command.
RESTORE_INDEX = (
    f"k=${{AWS_BATCH_JOB_ARRAY_INDEX:-0}}; IFS=,; set -f; for r in ${INDEXES_VARIABLE}; do "
    'a=${r%-*}; b=${r#*-}; n=$((b - a + 1)); if [ "$k" -lt "$n" ]; then '
    "AWS_BATCH_JOB_ARRAY_INDEX=$((a + k)); AWS_BATCH_JOB_ARRAY_SIZE=$ARRAY_SIZE; "
    f"export AWS_BATCH_JOB_ARRAY_INDEX AWS_BATCH_JOB_ARRAY_SIZE; unset IFS {INDEXES_VARIABLE}; set +f; "
    f'exec "$@"; fi; k=$((k - n)); done; echo "no index for child $k in {INDEXES_VARIABLE}" >&2; exit 1'
)


class PlannedStep(NamedTuple):
    step: PipelineStep
    size: int  # the number of children; 1 for a plain job
    queue: str
    gpus: int  # the number of GPUs of one child
    definition: dict[str, Any] | None  # the request of RegisterJobDefinition; None if the step names an existing definition
    allowed_failed: int  # if at most this many children fail, the steps after this step start anyway
    deferred_by: tuple[str, ...]  # the earlier steps that defer this step; empty: the step is submitted at once

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def is_array(self) -> bool:
        return self.step.array is not None or self.step.list_url is not None


class PipelinePlan(NamedTuple):
    pipeline: Pipeline
    execution: str
    steps: tuple[PlannedStep, ...]
    commands: Mapping[str, tuple[str, ...]]  # step -> command of its existing job definition

    @property
    def id(self) -> str:
        return f"{self.pipeline.name}-{self.execution}"

    def step(self, name: str) -> PlannedStep:
        return next(each for each in self.steps if each.name == name)

    @property
    def deferred(self) -> list[PlannedStep]:
        return [each for each in self.steps if each.deferred_by]


class SubmittedJob(NamedTuple):
    """A job of a step, and the original indexes of its children."""

    job_id: str
    indexes: tuple[int, ...]


class JobRequest(NamedTuple):
    """One job to submit.

    An element of `waits_for` has the name of a step, the job of this step to wait for, and whether the dependency is N_TO_N. The
    job is the id of a submitted job, or the index of a request in the same list of requests.
    """

    step: str
    indexes: tuple[int, ...]
    waits_for: tuple[tuple[str, int | str, bool], ...]


def make_plan(
    pipeline: Pipeline, execution: str, line_counts: Mapping[str, int], definitions: Mapping[str, Mapping[str, Any]]
) -> PipelinePlan:
    """Choose the queue, size and job definition of each step.

    `line_counts` has the number of lines of each step's list file. `definitions` has the descriptions of existing job definitions
    that steps name.
    """
    planned: dict[str, PlannedStep] = {}
    commands: dict[str, tuple[str, ...]] = {}
    for step in pipeline.steps:
        size = step.array or min(line_counts.get(step.name, 1), 10_000)
        existing = definitions.get(step.job_definition or "", {}).get("containerProperties", {})
        commands[step.name] = tuple(existing.get("command", ()))
        gpus = step.gpus if step.gpus is not None else _requirement(existing, "GPU")
        for after in step.after:
            before = planned[after.step]
            if after.each and before.size != size:
                sizes = f"{step.name} has {size} children and {before.name} has {before.size}"
                text = f"step {step.name} is after `each: {before.name}`, but {sizes}. Give both the same `array:`."
                raise PipelineFileError(pipeline.file, [Problem(step.line, text)])
        blocking = [
            planned[after.step] for after in step.after if planned[after.step].allowed_failed or planned[after.step].deferred_by
        ]
        planned[step.name] = PlannedStep(
            step=step,
            size=size,
            queue=choose_queue(pipeline, step, gpus),
            gpus=gpus,
            definition=None if step.job_definition else definition_request(pipeline.name, step),
            allowed_failed=step.max_failed.allowed(size) if step.max_failed else 0,
            deferred_by=tuple(each.name for each in blocking),
        )
    return PipelinePlan(pipeline, execution, tuple(planned.values()), commands)


def _requirement(container: Mapping[str, Any], kind: str) -> int:
    return next((int(each["value"]) for each in container.get("resourceRequirements", ()) if each["type"] == kind), 0)


def choose_queue(pipeline: Pipeline, step: PipelineStep, gpus: int) -> str:
    """Return the job queue of a step: the queue that the step names, or the queue of the first rule that matches the step's name.

    If there is neither, return the queue `gpu` or `cpu` of `queues:`. Raise PipelineFileError if that is missing, too.
    """
    queues: PipelineQueues = pipeline.queues
    kind = "gpu" if gpus else "cpu"
    rule = next((rule.queue for rule in queues.rules if fnmatch.fnmatchcase(step.name, rule.match)), None)
    queue = step.queue or rule or queues.named.get(kind)
    if queue is None:
        needs = f"needs {gpus} GPUs" if gpus else "needs no GPU"
        text = f"step {step.name} {needs}, but `queues:` has no `{kind}:`. Add it, or write `queue:` in the step."
        raise PipelineFileError(pipeline.file, [Problem(step.line, text)])
    return queues.named.get(queue, queue)


def definition_request(pipeline: str, step: PipelineStep) -> dict[str, Any]:
    """Return the request that registers the step's job definition.

    A tag has the hash of the request, so that an equal revision can be found and used again.
    """
    container: dict[str, Any] = {
        "image": step.image,
        "resourceRequirements": resource_requirements(
            step.vcpus or DEFAULT_VCPUS, step.memory_mib or DEFAULT_MEMORY_MIB, step.gpus or 0
        ),
        **({"command": list(step.command)} if step.command else {}),
        **({"environment": environment_pairs(step.environment)} if step.environment else {}),
        **({"jobRoleArn": step.role} if step.role else {}),
        **({"executionRoleArn": step.execution_role} if step.execution_role else {}),
    }
    request: dict[str, Any] = {
        "jobDefinitionName": f"{pipeline}-{step.name}",
        "type": "container",
        "containerProperties": container,
    }
    request |= _limits(step)
    return with_hash(request)


def _limits(step: PipelineStep) -> dict[str, Any]:
    return {
        **({"retryStrategy": {"attempts": step.retries + 1}} if step.retries is not None else {}),
        **({"timeout": {"attemptDurationSeconds": step.timeout_s}} if step.timeout_s is not None else {}),
    }


def with_hash(request: dict[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]
    return {**request, "tags": {TAG_HASH: digest}}


def resource_requirements(vcpus: str | None, memory_mib: int | None, gpus: int | None) -> list[dict[str, str]]:
    pairs = (("VCPU", vcpus), ("MEMORY", memory_mib), ("GPU", gpus or None))
    return [{"type": kind, "value": str(value)} for kind, value in pairs if value is not None]


def environment_pairs(values: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values]


# Which jobs, and what they wait for


def job_requests(
    plan: PipelinePlan, wanted: Mapping[str, Sequence[int]], existing: Mapping[str, Sequence[SubmittedJob]]
) -> list[JobRequest]:
    """Return the jobs that run the wanted indexes of each step, in an order in which each job follows the jobs that it waits for.

    `existing` has the unfinished jobs of other steps. A new job may have to wait for them, too.
    """
    requests: list[JobRequest] = []
    made: dict[str, list[tuple[int | str, tuple[int, ...]]]] = {
        step: [(job.job_id, job.indexes) for job in jobs] for step, jobs in existing.items() if step not in wanted
    }
    for planned in plan.steps:
        if planned.name not in wanted:
            continue
        own = made.setdefault(planned.name, [])
        for indexes in _parts(planned, sorted(wanted[planned.name]), made):
            own.append((len(requests), indexes))
            requests.append(JobRequest(planned.name, indexes, tuple(_waits(planned, indexes, made))))
    return requests


def _parts(
    planned: PlannedStep, indexes: Sequence[int], made: Mapping[str, list[tuple[int | str, tuple[int, ...]]]]
) -> Iterator[tuple[int, ...]]:
    """Split the indexes of a step into parts, one for each job.

    `made` has the jobs of each step: the id of an existing job or the index of a request, and the indexes that the job runs. If
    the step waits with `each` for several jobs of an earlier step, no part has indexes of two of these jobs.
    """
    groups: dict[tuple[int | str | None, ...], list[int]] = {}
    owners = [
        {index: job for job, covered in made.get(after.step, ()) for index in covered} for after in planned.step.after if after.each
    ]
    for index in indexes:
        groups.setdefault(tuple(owner.get(index) for owner in owners), []).append(index)
    for group in groups.values():
        yield from _chunks(group, planned.size)


def _chunks(indexes: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Split the indexes so that the value of CORRAL_ARRAY_INDEXES for each part fits into a request.

    If all indexes of a step are wanted, the request does not have this variable, and the indexes are not split.
    """
    if len(indexes) == size or len(format_indexes(indexes)) <= INDEXES_MAX_CHARS:
        yield tuple(indexes)
        return
    middle = len(indexes) // 2
    yield from _chunks(indexes[:middle], size)
    yield from _chunks(indexes[middle:], size)


def _waits(
    planned: PlannedStep, indexes: tuple[int, ...], made: Mapping[str, list[tuple[int | str, tuple[int, ...]]]]
) -> Iterator[tuple[str, int | str, bool]]:
    for after in planned.step.after:
        for job, covered in made.get(after.step, ()):
            if not after.each:
                yield after.step, job, False
            elif set(covered) & set(indexes):
                yield after.step, job, covered == indexes and len(indexes) >= ARRAY_MIN


def submit_request(
    plan: PipelinePlan,
    request: JobRequest,
    definition: str,
    attempt: int,
    record: str,
    job_ids: Mapping[int, str],
    *,
    wraps: bool = True,
) -> dict[str, Any]:
    """Return the request of SubmitJob.

    `record` is the job definition with the pipeline file (`executions.py`). `job_ids` has the ids of the jobs that were
    submitted before, by the index of their request. If `wraps` is True and the job runs only some indexes, RESTORE_INDEX starts the
    command.
    """
    planned = plan.step(request.step)
    step, is_part = planned.step, len(request.indexes) < planned.size
    depends_on = []
    for _, job, n_to_n in request.waits_for:
        job_id = job if isinstance(job, str) else job_ids[job]
        depends_on.append({"jobId": job_id, "type": "N_TO_N"} if n_to_n else {"jobId": job_id})
    environment = [
        *(step.environment if step.job_definition else ()),
        *_variables(plan, planned, request.indexes if is_part else None),
    ]
    overrides: dict[str, Any] = {"environment": environment_pairs(environment)}
    if command := _overriding_command(plan, step, wraps=wraps and is_part):
        overrides["command"] = list(command)
    if step.job_definition and (needs := resource_requirements(step.vcpus, step.memory_mib, step.gpus)):
        overrides["resourceRequirements"] = needs
    return {
        "jobName": f"{plan.id}-{step.name}",
        "jobQueue": planned.queue,
        "jobDefinition": definition,
        **({"arrayProperties": {"size": len(request.indexes)}} if len(request.indexes) >= ARRAY_MIN else {}),
        **({"dependsOn": depends_on} if depends_on else {}),
        "containerOverrides": overrides,
        **(_limits(step) if step.job_definition else {}),
        "tags": {
            TAG_PIPELINE: plan.pipeline.name,
            TAG_RUN: plan.execution,
            TAG_STEP: step.name,
            TAG_ATTEMPT: str(attempt),
            TAG_FILE: plan.pipeline.file_hash,
            TAG_RECORD: record,
        },
    }


def _variables(plan: PipelinePlan, planned: PlannedStep, indexes: tuple[int, ...] | None) -> Iterator[tuple[str, str]]:
    if planned.is_array:
        yield "ARRAY_SIZE", str(planned.size)
    if planned.step.list_url:
        yield "LIST_FILE_S3_PATH", planned.step.list_url
    if indexes is not None:
        yield INDEXES_VARIABLE, format_indexes(indexes)
    yield "CORRAL_PIPELINE", plan.pipeline.name
    yield "CORRAL_PIPELINE_RUN", plan.execution
    yield "CORRAL_PIPELINE_STEP", planned.name


def _overriding_command(plan: PipelinePlan, step: PipelineStep, *, wraps: bool) -> tuple[str, ...] | None:
    command = step.command if step.command else plan.commands.get(step.name) or None
    if wraps and command:
        return ("/bin/sh", "-c", RESTORE_INDEX, "corral-pipeline", *command)
    return step.command if step.job_definition else None


# Indexes as text


def format_indexes(indexes: Iterable[int]) -> str:
    """Format sorted indexes with ranges: `3,7,12-15`."""
    parts: list[list[int]] = []
    for index in indexes:
        if parts and parts[-1][1] == index - 1:
            parts[-1][1] = index
        else:
            parts.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def parse_indexes(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)
