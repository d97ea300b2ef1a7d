"""Conversion between database rows and `Job` records.

In this module, a child is a child of an array or a node of a multi-node job.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec

from corral.core.database import Row
from corral.model.job import ENDED, WAITS, Attempt, Dependency, Job, JobKind, JobSpec, JobState, child_id

JOB_COLUMNS = (
    "number, id, region, queue, name, kind, state, spec, created_at, size, depends_on, started_at, stopped_at, runnable_at, "
    "status_reason, task_id, environment, attempts, cancelled, terminated, expanded, check_from, owner"
)
CHILD_COLUMNS = (
    "position, state, created_at, started_at, stopped_at, runnable_at, status_reason, task_id, environment, attempts, cancelled, "
    "terminated"
)
INSERT_JOB = (
    "INSERT INTO job (id, region, queue, name, kind, state, spec, created_at, size, depends_on, started_at, stopped_at, "
    "runnable_at, status_reason, task_id, environment, attempts, cancelled, terminated, expanded, check_from, definition, "
    f"revision, share, owner) VALUES ({', '.join('?' * 25)})"
)
# (column, field) pairs that can change. The rows of children do not have the last two columns.
CHANGES = (
    ("state", "state"), ("started_at", "started_at_s"), ("stopped_at", "stopped_at_s"), ("runnable_at", "runnable_at_s"),
    ("status_reason", "status_reason"), ("task_id", "task_id"), ("environment", "environment"), ("attempts", "attempts"),
    ("cancelled", "cancelled"), ("terminated", "terminated"), ("expanded", "expanded"), ("check_from", "check_from"),
)  # fmt: skip
STATES = {state.value: state for state in JobState}
_CHANGING = attrgetter(*[name for _, name in CHANGES])
_SET = [f"{column} = ?" for column, _ in CHANGES]
KINDS = {kind.value: kind for kind in JobKind}
_attempts = msgspec.json.Decoder(tuple[Attempt, ...])
_dependencies = msgspec.json.Decoder(tuple[Dependency, ...])
_encode = msgspec.json.encode


def values_of_job(job: Job, spec: int) -> tuple[Any, ...]:
    """Return the values for INSERT_JOB. `spec` is the number of the spec's row."""
    name, _, revision = job.definition.rpartition(":")
    return (
        job.id, job.region, job.queue, job.name, job.kind.value, job.state.value, spec, job.created_at_s, job.size,
        text_of(job.depends_on), job.started_at_s, job.stopped_at_s, job.runnable_at_s, job.status_reason, job.task_id,
        job.environment, text_of(job.attempts), job.cancelled, job.terminated, job.expanded, job.check_from, name, int(revision),
        job.spec.share, job.owner,
    )  # fmt: skip


def changes(before: Job, after: Job) -> tuple[str, list[Any]]:
    """Return the columns in which two versions of a job differ, and the new values, for an UPDATE."""
    columns, values = [], []
    for sql, old, new in zip(_SET, _CHANGING(before), _CHANGING(after)):
        if new is not old and new != old:
            columns.append(sql)
            values.append(_column_value(new))
    return ", ".join(columns), values


def _column_value(value: Any) -> Any:
    if isinstance(value, JobState):
        return value.value
    return text_of(value) if isinstance(value, tuple) else value


def text_of(values: tuple[Any, ...]) -> str:
    return _encode(values).decode() if values else ""


def attempts_of(text: str) -> tuple[Attempt, ...]:
    return _attempts.decode(text) if text else ()


def spec_text(spec: JobSpec) -> bytes:
    return _encode(spec)


def spec_of(text: str) -> JobSpec:
    return msgspec.json.decode(text, type=JobSpec)


def job_of(row: Row, spec: JobSpec) -> Job:
    return Job(
        number=row[0], id=row[1], region=row[2], queue=row[3], name=row[4], kind=KINDS[row[5]], state=STATES[row[6]], spec=spec,
        created_at_s=row[8], size=row[9], depends_on=_dependencies.decode(row[10]) if row[10] else (), started_at_s=row[11],
        stopped_at_s=row[12], runnable_at_s=row[13], status_reason=row[14], task_id=row[15], environment=row[16],
        attempts=attempts_of(row[17]), cancelled=bool(row[18]), terminated=bool(row[19]), expanded=row[20], check_from=row[21],
        owner=row[22],
    )  # fmt: skip


def child_of(parent: Job, row: Row) -> Job:
    """Return the child that a row describes. Fields that are not in the row have the values of the parent."""
    return Job(
        number=parent.number, id=child_id(parent, row[0]), region=parent.region, queue=parent.queue, name=parent.name,
        kind=kind_of_children(parent), state=STATES[row[1]], spec=parent.spec, created_at_s=row[2], index=row[0],
        parent_id=parent.id, started_at_s=row[3], stopped_at_s=row[4], runnable_at_s=row[5], status_reason=row[6], task_id=row[7],
        environment=row[8], attempts=attempts_of(row[9]), cancelled=bool(row[10]), terminated=bool(row[11]),
        owner=parent.owner,
    )  # fmt: skip


def kind_of_children(parent: Job) -> JobKind:
    return JobKind.CHILD if parent.kind is JobKind.ARRAY else JobKind.NODE


def child_without_row(parent: Job, index: int) -> Job:
    """Return a child that has no row.

    A node has the state of its parent. A child of an array is SUBMITTED, or FAILED if the array is being stopped or has ended.
    """
    state = parent.state
    if parent.kind is JobKind.ARRAY:
        state = JobState.FAILED if parent.is_stopping or parent.has_ended else JobState.SUBMITTED
    ended = state in ENDED
    return Job(
        number=parent.number, id=child_id(parent, index), region=parent.region, queue=parent.queue, name=parent.name,
        kind=kind_of_children(parent), state=state, spec=parent.spec, created_at_s=parent.created_at_s, index=index,
        parent_id=parent.id, stopped_at_s=(parent.stopped_at_s or parent.created_at_s) if ended else None,
        status_reason=parent.status_reason if ended else "", cancelled=ended and parent.cancelled,
        terminated=ended and parent.terminated, expanded=WAITS, owner=parent.owner,
    )  # fmt: skip
