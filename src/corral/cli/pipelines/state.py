"""Derives the state of an execution of a pipeline from its jobs. These functions are pure: they call no service.

A step of the pipeline is one job or one array job. A retry adds jobs to a step. If several jobs of a step ran the same index, only
the newest of them counts. The counts of a step are the numbers of children that are done, running, failed and waiting. A job
without children counts as one child.

With `max_failed`, some children of a step may fail. The steps after such a step are deferred, and so are the steps after a deferred
step. `corral pipeline run` and `corral pipeline watch` submit them later. All other steps are submitted when the execution starts.

With `after: {each: X}` in the pipeline file, each child of a step depends only on the child of step X with the same index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from corral.cli.pipelines.plan import (
    INDEXES_VARIABLE,
    TAG_ATTEMPT,
    TAG_PIPELINE,
    TAG_RUN,
    TAG_STEP,
    TAG_STOPPED,
    PipelinePlan,
    PlannedStep,
    SubmittedJob,
    parse_indexes,
)

WAITING_STATES = ("SUBMITTED", "PENDING", "RUNNABLE")
RUNNING_STATES = ("STARTING", "RUNNING")
ENDED_STATES = ("SUCCEEDED", "FAILED")
WAITING, FAILED, NOT_RUN = "waiting", "failed", "not run"  # kinds of StepReason
OF_STATUS = (
    dict.fromkeys(WAITING_STATES, "waiting") | dict.fromkeys(RUNNING_STATES, "running") | {"SUCCEEDED": "done", "FAILED": "failed"}
)


@dataclass(frozen=True, slots=True)
class StepCounts:
    done: int = 0
    running: int = 0
    failed: int = 0
    waiting: int = 0

    @property
    def total(self) -> int:
        return self.done + self.running + self.failed + self.waiting

    @property
    def active(self) -> int:
        return self.running + self.waiting

    def __add__(self, other: StepCounts) -> StepCounts:
        return StepCounts(
            self.done + other.done, self.running + other.running, self.failed + other.failed, self.waiting + other.waiting
        )


@dataclass(frozen=True, slots=True)
class PipelineJob:
    """One job of an execution, as DescribeJobs describes it. Times are in seconds since 1970."""

    id: str
    arn: str
    queue: str
    step: str
    attempt: int
    status: str
    size: int  # the number of children; 1 for a plain job
    is_array: bool
    counts: StepCounts
    indexes: tuple[int, ...] | None  # the indexes of the step that the job runs; None: all indexes of the step
    created_s: float
    started_s: float | None
    stopped_s: float | None
    reason: str
    tags: Mapping[str, str]
    described: Mapping[str, Any] = field(compare=False)

    @property
    def ended(self) -> bool:
        return self.status in ENDED_STATES


def read_job(described: Mapping[str, Any]) -> PipelineJob | None:
    """Return a job of a pipeline, or None if the job has no tags of a pipeline."""
    tags: Mapping[str, str] = described.get("tags") or {}
    if not all(key in tags for key in (TAG_PIPELINE, TAG_RUN, TAG_STEP)):
        return None
    array = described.get("arrayProperties") or {}
    size, status = array.get("size", 1), described["status"]
    environment = {each["name"]: each.get("value", "") for each in (described.get("container") or {}).get("environment", ())}
    text = environment.get(INDEXES_VARIABLE)
    attempt = tags.get(TAG_ATTEMPT, "1")
    return PipelineJob(
        id=described["jobId"],
        arn=described.get("jobArn", ""),
        queue=described["jobQueue"].rpartition("/")[2],
        step=tags[TAG_STEP],
        attempt=int(attempt) if attempt.isdecimal() else 1,
        status=status,
        size=size,
        is_array="size" in array,
        counts=_counts(array.get("statusSummary") or {}, size, status) if "size" in array else StepCounts(**{OF_STATUS[status]: 1}),
        indexes=parse_indexes(text) if text else None,
        created_s=described["createdAt"] / 1000,
        started_s=described["startedAt"] / 1000 if described.get("startedAt") else None,
        stopped_s=described["stoppedAt"] / 1000 if described.get("stoppedAt") else None,
        reason=described.get("statusReason", ""),
        tags=tags,
        described=described,
    )


def _counts(summary: Mapping[str, int], size: int, status: str) -> StepCounts:
    """Return the counts of an array. If the summary lacks children, derive their status from the status of the array."""
    numbers = {"done": 0, "running": 0, "failed": 0, "waiting": 0}
    for name, number in summary.items():
        numbers[OF_STATUS[name]] += number
    if status in ENDED_STATES:  # AWS updates the summary late, so children that have not ended in it get the status of the array
        rest = numbers["running"] + numbers["waiting"] + max(0, size - sum(numbers.values()))
        numbers |= {"running": 0, "waiting": 0, OF_STATUS[status]: numbers[OF_STATUS[status]] + rest}
    else:
        numbers["waiting"] += max(0, size - sum(numbers.values()))
    return StepCounts(**numbers)


def original_index(job: PipelineJob, position: int) -> int:
    """Return the index of a child in the first array of its step. A retry is a smaller array with indexes from 0."""
    return job.indexes[position] if job.indexes is not None else position


class StepReason(NamedTuple):
    """Why some jobs of a step wait, have failed or did not run."""

    kind: str
    text: str  # the server's reason. If jobs did not run: the names of the earlier steps that failed
    jobs: int  # the number of plain jobs or children with this reason
    indexes: tuple[int, ...]  # original indexes of children with this reason, not always all; empty for a plain job


class StepState(NamedTuple):
    name: str
    state: str  # NOT SUBMITTED, WAITING, RUNNING, SUCCEEDED, FAILED, or TOLERATED: children failed, but at most `max_failed`
    counts: StepCounts
    jobs: tuple[PipelineJob, ...]  # oldest first
    after: tuple[str, ...]
    queue: str
    gpus: int
    max_failed: str = ""
    reason: str = ""  # why the step waits or has failed
    ends_in_s: float | None = None  # estimate of the seconds until the end
    reasons: tuple[StepReason, ...] = ()  # all reasons; `reason` summarizes them

    @property
    def never_ran(self) -> bool:
        """Whether the step has failed only because steps before it failed."""
        return self.state == "FAILED" and bool(self.reasons) and all(each.kind == NOT_RUN for each in self.reasons)

    @property
    def started_s(self) -> float | None:
        return min((job.started_s for job in self.jobs if job.started_s), default=None)

    @property
    def stopped_s(self) -> float | None:
        return max((job.stopped_s for job in self.jobs if job.stopped_s), default=None) if self.ended else None

    @property
    def ended(self) -> bool:
        return self.state in ("SUCCEEDED", "TOLERATED", "FAILED")


class Execution(NamedTuple):
    name: str
    execution: str
    # RUNNING, SUCCEEDED, FAILED, STOPPED, or WAITING: all submitted jobs have ended, and deferred steps can be submitted
    state: str
    steps: tuple[StepState, ...]
    ready: tuple[str, ...]  # deferred steps that can be submitted now
    created_s: float
    stopped_s: float | None
    attempt: int
    ends_in_s: float | None = None

    @property
    def id(self) -> str:
        return f"{self.name}-{self.execution}"

    @property
    def ended(self) -> bool:
        return self.state in ("SUCCEEDED", "FAILED", "STOPPED")

    @property
    def jobs(self) -> list[PipelineJob]:
        return [job for step in self.steps for job in step.jobs]

    def step(self, name: str) -> StepState:
        return next(each for each in self.steps if each.name == name)


def execution_state(plan: PipelinePlan, jobs: Sequence[PipelineJob], idle: frozenset[str] = frozenset()) -> Execution:
    """Derive the state from all jobs of an execution. `idle` names deferred steps without an index to run: they are not ready."""
    ordered = sorted(jobs, key=lambda job: (job.created_s, job.id))
    by_step: dict[str, list[PipelineJob]] = {}
    for job in ordered:
        by_step.setdefault(job.step, []).append(job)
    steps: dict[str, StepState] = {}
    for planned in plan.steps:
        steps[planned.name] = _step_state(planned, tuple(by_step.get(planned.name, ())), steps)
    was_stopped = any(TAG_STOPPED in job.tags for job in jobs)
    ready = () if was_stopped else tuple(each.name for each in plan.deferred if each.name not in idle and _is_ready(each, steps))
    return Execution(
        name=plan.pipeline.name,
        execution=plan.execution,
        state=_state(list(steps.values()), ready, was_stopped=was_stopped),
        steps=tuple(steps.values()),
        ready=ready,
        created_s=ordered[0].created_s if ordered else 0.0,
        stopped_s=max((job.stopped_s for job in jobs if job.stopped_s), default=None) if all(job.ended for job in jobs) else None,
        attempt=max((job.attempt for job in jobs), default=1),
    )


def _state(steps: Sequence[StepState], ready: tuple[str, ...], *, was_stopped: bool) -> str:
    if any(step.state in ("WAITING", "RUNNING") for step in steps):
        return "RUNNING"
    if was_stopped:
        return "STOPPED"
    if ready:
        return "WAITING"
    return "FAILED" if any(step.state in ("FAILED", "NOT SUBMITTED") for step in steps) else "SUCCEEDED"


def _step_state(planned: PlannedStep, jobs: tuple[PipelineJob, ...], others: Mapping[str, StepState]) -> StepState:
    counts = merge_counts(jobs, planned.size)
    missing = planned.size - counts.total if jobs and not any(after.each for after in planned.step.after) else 0
    counts += StepCounts(waiting=max(0, missing) if jobs else planned.size)
    after = tuple(each.step for each in planned.step.after)
    state, reason = "", ""
    if not jobs:
        state, reason = "NOT SUBMITTED", _why_not_submitted(planned, others)
    elif counts.active:
        state = "RUNNING" if counts.running or counts.done else "WAITING"
        unfinished = [name for name in after if not others[name].ended]
        if not counts.running:
            reason = f"after {', '.join(unfinished)}" if unfinished else next((job.reason for job in jobs if not job.ended), "")
    elif counts.failed > planned.allowed_failed:
        state, reason = "FAILED", next((job.reason for job in reversed(jobs) if job.reason and job.status == "FAILED"), "")
    else:
        state = "TOLERATED" if counts.failed else "SUCCEEDED"
    return StepState(
        name=planned.name,
        state=state,
        counts=counts,
        jobs=jobs,
        after=after,
        queue=planned.queue,
        gpus=planned.gpus,
        max_failed=str(planned.step.max_failed) if planned.step.max_failed else "",
        reason=reason,
    )


def merge_counts(jobs: Sequence[PipelineJob], size: int) -> StepCounts:
    """Add the counts of a step's jobs, attempt by attempt.

    If the jobs of an attempt run all indexes, the earlier attempts do not count. If they run only some indexes, these indexes had
    failed before. So the same number of earlier failures is subtracted.
    """
    merged = StepCounts()
    for attempt in sorted({job.attempt for job in jobs}):
        counts = StepCounts()
        for job in jobs:
            if job.attempt == attempt:
                counts += job.counts
        if counts.total >= size:
            merged = counts
        else:
            left = max(0, merged.failed - counts.total)
            merged = StepCounts(merged.done, merged.running, left, merged.waiting) + counts
    return merged


def _why_not_submitted(planned: PlannedStep, others: Mapping[str, StepState]) -> str:
    """Return why a deferred step has not been submitted."""
    for after in planned.step.after:
        other = others[after.step]
        if other.state == "FAILED":
            over = f" ({other.counts.failed} failed, max_failed is {other.max_failed})" if other.max_failed else ""
            return f"not run: {other.name} has failed{over}"
    for name in planned.deferred_by:
        other = others[name]
        if other.max_failed and not other.ended:
            return f"`watch` submits it when {name} has ended with at most {other.max_failed} failed"
        if not other.jobs:
            return f"`watch` submits it as soon as {name} has been submitted"
    return "ready: `corral pipeline watch` submits it"


def _is_ready(planned: PlannedStep, steps: Mapping[str, StepState]) -> bool:
    """Return whether a deferred step can be submitted: for the first time, or again because an earlier step was retried."""
    own = steps[planned.name]
    mine = max((job.attempt for job in own.jobs), default=0)
    before = [steps[after.step] for after in planned.step.after]
    newest = max((job.attempt for step in before for job in step.jobs), default=0)
    if (own.counts.active and own.jobs) or newest <= mine:
        return False
    if any(not step.jobs or step.state == "FAILED" for step in before):
        return False
    return all(steps[name].ended for name in planned.deferred_by if steps[name].max_failed)


def wanted_now(
    plan: PipelinePlan, state: Execution, succeeded: Callable[[str], frozenset[int]]
) -> tuple[dict[str, list[int]], dict[str, list[SubmittedJob]]]:
    """Return two things: the indexes of each step that can be submitted now, and the unfinished jobs of all steps.

    If a step depends on `each` child of a step with `max_failed`, its indexes are those that have succeeded in that earlier step,
    and have not yet succeeded in the step itself. Otherwise the step runs all its indexes. `succeeded` is a function that returns
    the indexes of a step that have succeeded.
    """
    wanted: dict[str, list[int]] = {}
    for planned in plan.steps:
        name = planned.name
        if name not in state.ready:
            continue
        if any(after.step in state.ready for after in planned.step.after):
            continue  # the next call submits this step, because then the jobs of the earlier step exist
        tolerant = [after.step for after in planned.step.after if after.each and plan.step(after.step).allowed_failed]
        indexes = set(range(planned.size))
        if tolerant:
            for step in tolerant:
                indexes &= succeeded(step)
            indexes -= succeeded(name)
        if indexes:
            wanted[name] = sorted(indexes)
    return wanted, unfinished_jobs(plan, state)


def unfinished_jobs(plan: PipelinePlan, state: Execution) -> dict[str, list[SubmittedJob]]:
    found: dict[str, list[SubmittedJob]] = {}
    for step in state.steps:
        everything = tuple(range(plan.step(step.name).size))
        jobs = [SubmittedJob(job.id, job.indexes or everything) for job in step.jobs if not job.ended]
        if jobs:
            found[step.name] = jobs
    return found


def wanted_again(plan: PipelinePlan, failed: Mapping[str, frozenset[int]]) -> dict[str, list[int]]:
    """Return the indexes that a retry submits: the indexes that failed, and the indexes of later steps that depend on them.

    If step B depends on `each` child of step A, B runs the same indexes as A again. If B depends on A as a whole, B runs all its
    indexes again. A deferred step is left out if it must wait for a step that runs again: it is submitted later.
    """
    again: dict[str, set[int]] = {}
    for planned in plan.steps:
        indexes = set(failed.get(planned.name, frozenset()))
        for after in planned.step.after:
            earlier = again.get(after.step, set())
            if earlier:
                indexes |= earlier if after.each else set(range(planned.size))
        again[planned.name] = indexes
    blocked: set[str] = set()
    for planned in plan.deferred:
        if any(again[name] for name in planned.deferred_by):
            blocked.add(planned.name)
    return {name: sorted(indexes) for name, indexes in again.items() if indexes and name not in blocked}
