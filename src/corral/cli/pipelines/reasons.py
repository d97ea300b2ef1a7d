"""Explains why the jobs of a step wait, have failed or did not run.

The server's reason of a waiting job is a short answer and many details. A screen shows the short answers. The children of an array
that have the same reason are counted together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from corral.cli.pipelines.plan import format_indexes
from corral.cli.pipelines.state import FAILED, NOT_RUN, WAITING, PipelineJob, StepReason, StepState, original_index
from corral.cli.printing.output import shorten_ids
from corral.cli.runs.tasks import short_reason

CHILDREN_READ_MAX = 100  # the reasons of at most this many waiting, and of as many failed children of an array are read
REASONS_SHOWN_MAX = 3
NOT_SUBMITTED, AFTER = "NOT SUBMITTED", "after "
DEPENDENCY_FAILED = "Dependent Job failed"  # Batch's reason for a job that did not run because a job before it has failed
ESSENTIAL_EXITED = "Essential container in task exited"
NEVER = "cannot start: "
_CODE = re.compile(r"([A-Z_]+(?::[A-Z_]+)?) - (.+)", re.DOTALL)  # the code of AWS in front of a reason
_ENVIRONMENT = re.compile(r"[Ee]nvironment \S+: ")
_NEEDS = re.compile(r"needs [^;]+")
_DETAIL = re.compile(r"(more than )?[0-9,]+ jobs? with the same needs before it|job \S+ ends at the latest at |held by jobs? ")


def with_reasons(batch: Any, pipeline: str, steps: Sequence[StepState]) -> tuple[StepState, ...]:
    """Return the steps of a pipeline with the reasons of their jobs, and with a summary of these reasons.

    In `steps`, as in a plan, each step follows the steps that must end before it.
    """
    found: dict[str, StepState] = {}
    for step in steps:
        reasons = _reasons(batch, step, found)
        found[step.name] = step._replace(reasons=reasons)
        if reasons or not step.reason:
            found[step.name] = step._replace(reasons=reasons, reason=_summary(pipeline, step, reasons, found))
    return tuple(found.values())


def _reasons(batch: Any, step: StepState, before: Mapping[str, StepState]) -> tuple[StepReason, ...]:
    """Return the reasons of jobs that wait for capacity, and of jobs that have failed."""
    if step.state in ("SUCCEEDED", NOT_SUBMITTED):
        return ()
    reasons: list[StepReason] = []
    for job in step.jobs:
        if not job.is_array and job.status == "RUNNABLE" and job.reason:
            reasons.append(StepReason(WAITING, job.reason, 1, job.indexes or ()))
        elif not job.is_array and job.status == "FAILED" and job is step.jobs[-1]:
            reasons.append(StepReason(*_failure(job.described, step, before), 1, job.indexes or ()))
        elif job.is_array and not job.ended and (runnable := _children_in(job, "RUNNABLE")):
            reasons += _of_children(batch, job, step, before, "RUNNABLE", runnable)
    failed = [job for job in step.jobs if job.is_array and job.counts.failed]
    if failed and step.counts.failed:
        reasons += _of_children(batch, failed[-1], step, before, "FAILED", failed[-1].counts.failed)
    return tuple(reasons)


def _of_children(
    batch: Any, job: PipelineJob, step: StepState, before: Mapping[str, StepState], status: str, number: int
) -> list[StepReason]:
    """Return the different reasons of the first waiting or failed children of an array.

    The most frequent reason is first. Its number also counts the children that were not read.
    """
    listed = batch.list_jobs(arrayJobId=job.id, jobStatus=status, maxResults=CHILDREN_READ_MAX)["jobSummaryList"]
    found: dict[tuple[str, str], list[int]] = {}
    for child in listed:
        key = _failure(child, step, before) if status == "FAILED" else (WAITING, child.get("statusReason", ""))
        found.setdefault(key, []).append(original_index(job, child["arrayProperties"]["index"]))
    reasons = [StepReason(*key, len(indexes), tuple(sorted(indexes))) for key, indexes in found.items() if key[1]]
    reasons.sort(key=lambda each: (-each.jobs, each.indexes))
    if reasons and number > len(listed):
        reasons[0] = reasons[0]._replace(jobs=reasons[0].jobs + number - len(listed))
    return reasons


def _children_in(job: PipelineJob, status: str) -> int:
    return int(((job.described.get("arrayProperties") or {}).get("statusSummary") or {}).get(status, 0))


def _failure(described: Mapping[str, Any], step: StepState, before: Mapping[str, StepState]) -> tuple[str, str]:
    """Return whether a job has failed or did not run, and why."""
    if described.get("statusReason") == DEPENDENCY_FAILED and not described.get("startedAt"):
        return NOT_RUN, ", ".join(_failed_before(step, before)) or DEPENDENCY_FAILED
    container = described.get("container") or {}
    code = f"exit code {container['exitCode']}" if container.get("exitCode") is not None else ""
    reason = container.get("reason") or described.get("statusReason", "")
    return FAILED, ", ".join(filter(None, (code, reason if reason != ESSENTIAL_EXITED or not code else "")))


def _failed_before(step: StepState, before: Mapping[str, StepState]) -> list[str]:
    """Return the steps whose jobs have failed, so that jobs of `step` did not run."""
    found: dict[str, None] = {}
    for name in step.after:
        if before[name].counts.failed and not before[name].never_ran:
            found[name] = None
        elif before[name].counts.failed:
            found |= dict.fromkeys(_failed_before(before[name], before))
    return list(found)


# Texts


def _summary(pipeline: str, step: StepState, reasons: Sequence[StepReason], before: Mapping[str, StepState]) -> str:
    """Return the reasons of a step in one text: of waiting jobs first, then of failed jobs and of jobs that did not run."""
    is_array = any(job.is_array for job in step.jobs)
    shown: dict[tuple[str, str], StepReason] = {}
    for each in reasons:
        text = short_job_reason(each.text, pipeline) if each.kind == WAITING else each.text
        if (same := shown.get((each.kind, text))) is not None:
            each = each._replace(jobs=same.jobs + each.jobs, indexes=same.indexes + each.indexes)
        shown[each.kind, text] = each
    parts = [_part(kind, text, each, step, is_array=is_array) for (kind, text), each in list(shown.items())[:REASONS_SHOWN_MAX]]
    if len(shown) > REASONS_SHOWN_MAX:
        parts.append(f"and {len(shown) - REASONS_SHOWN_MAX} more reasons")
    blocked = sum(_children_in(job, "PENDING") + _children_in(job, "SUBMITTED") for job in step.jobs)
    unfinished = [name for name in step.after if not before[name].ended]
    if is_array and blocked and unfinished:
        parts.append(f"{blocked} {AFTER}{', '.join(unfinished)}")
    return "; ".join(parts)


def _part(kind: str, text: str, reason: StepReason, step: StepState, *, is_array: bool) -> str:
    if kind == WAITING:
        return f"{reason.jobs} {'waits' if reason.jobs == 1 else 'wait'}: {text}" if is_array else text
    text = f"not run, because {text} failed" if kind == NOT_RUN else text
    if not is_array or reason.jobs == step.counts.total:
        return text
    more = reason.jobs - len(reason.indexes)
    return f"[{format_indexes(sorted(reason.indexes))}]{f' and {more} more' if more > 0 else ''} {text}"


def short_job_reason(reason: str, pipeline: str) -> str:
    """Return the short answer why a job waits, without ids, places in line, and the name of the only compute environment.

    A step of the same pipeline is named as in the file: its tasks belong to the family `batch-PIPELINE-STEP`.
    """
    match = _CODE.fullmatch(reason)
    code, text = (match[1], match[2]) if match else ("", reason)
    if len(_ENVIRONMENT.findall(text)) == 1:
        text = _ENVIRONMENT.sub("", text, count=1)
    text = "; ".join(part for part in text.split("; ") if not _DETAIL.match(part)).replace(f"batch-{pipeline}-", "")
    needs = _NEEDS.search(text) if code.startswith("MISCONFIGURATION") else None
    short = short_reason(shorten_ids(text))
    if needs is not None and needs[0] not in short:
        short = f"{short}; {needs[0]}"
    return f"{NEVER}{short}" if code.startswith("MISCONFIGURATION") else short
