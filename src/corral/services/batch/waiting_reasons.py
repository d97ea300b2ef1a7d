"""Explains why RUNNABLE Batch jobs wait, and what will end the wait.

A reason is computed from the current state at each call, so it is never out of date. If AWS has a code for the reason, the text
begins with this code, because `jobStateTimeLimitActions` refers to the codes. Then the text says what the job needs, what is free,
which jobs use the rest, which jobs are before it, and what will end the wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from msgspec import Struct

from corral.core.transactions import Tx
from corral.decide.placement.find import could_hold
from corral.decide.tasks.job_order import vcpus_of
from corral.model.compute_environment import ComputeEnvironment
from corral.model.job import Job, JobKind, JobState
from corral.model.job_line import WaitingLine
from corral.services.batch.environment_capacity import misfit_of, why_no_room
from corral.services.batch.environments import find_environment
from corral.services.batch.job_queues import JobQueue, find_queue
from corral.services.batch.line_claims import (
    Offer,
    job_place,
    leaves_reservation,
    line_key,
    offers,
    open_lines,
    shortage,
)
from corral.services.ecs.task_description import why_claim_waits
from corral.store import Store

MAX_RESOURCE = "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"
REQUIREMENT = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"
CAPACITY = "CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY"
ACTION = "ACTION_REQUIRED"
# `_offer_reason` returns one of these codes for each environment that accepts jobs. The job gets the code that is first in this
# tuple. "" means no code, because the end of another job will make room.
CODES = ("", CAPACITY, MAX_RESOURCE, REQUIREMENT)
COUNTED_MAX = 10_000  # the text says how many jobs are before a job; if there are more than this, it says "more than"
HOLDERS_READ_MAX = 100  # the maximum number of running jobs that `_next_end` reads to find the earliest time limit
HOLDERS_NAMED_MAX = 3


class Reason(Struct, frozen=True):
    """Why the first job of a line waits."""

    code: str  # AWS's code; empty if none fits
    text: str


def reason(tx: Tx[Store], job: Job) -> str:
    """Return why a job waits for capacity, or "" if it does not wait. For a node, return the reason of the multi-node job."""
    if job.kind is JobKind.NODE:
        parent = tx.store.jobs.get(job.parent_id)
        return "" if parent is None else reason(tx, parent)
    if job.state is not JobState.RUNNABLE or job.kind is JobKind.ARRAY:
        return ""
    queue = find_queue(tx, job.region, job.queue)
    line = tx.store.job_lines.find(line_key(job, queue))
    if line is None:
        return ""
    found = line_reason(tx, line, queue)
    return _shown(found.code, f"{found.text}; {_place(tx, job, line, queue)}")


def reasons(tx: Tx[Store], queue: JobQueue, jobs: Iterable[Job]) -> dict[str, str]:
    """Return why RUNNABLE jobs of a queue wait, by job id.

    This costs less than a call of `reason` for each job: the texts do not contain the places of the jobs in the queue, so all jobs
    of a line have the same text.
    """
    by_line: dict[int, str] = {}
    found: dict[str, str] = {}
    for job in jobs:
        waiting = job if job.kind is not JobKind.NODE else tx.store.jobs.get(job.parent_id) or job
        line = tx.store.job_lines.find(line_key(waiting, queue))
        if line is None:
            continue
        if line.id not in by_line:
            why = line_reason(tx, line, queue)
            by_line[line.id] = _shown(why.code, why.text)
        found[job.id] = by_line[line.id]
    return found


def _shown(code: str, text: str) -> str:
    return f"{code} - {text}" if code else text


def line_reason(tx: Tx[Store], line: WaitingLine, queue: JobQueue | None) -> Reason:
    if queue is None:
        return Reason(ACTION, f"The job queue {line.queue} does not exist")
    usable = offers(tx, queue)
    if not usable:
        return Reason(ACTION, _closed_environments(tx, queue))
    short = shortage(tx, line)
    if short is not None:
        holders = tx.store.job_holdings.holders_of_resource(line.key.region, short.name, HOLDERS_NAMED_MAX + 1)
        text = f"Needs {short.needed} of the consumable resource {short.name}: {short.available} of {short.total} are available"
        return Reason("", text + _held_by(holders))
    if not leaves_reservation(tx, line, queue):
        return Reason("", f"The share {line.share} leaves the rest of the capacity to shares without jobs (computeReservation)")
    found = [_offer_reason(tx, line, offer) for offer in usable]
    codes = {each.code for each in found}
    text = "; ".join(dict.fromkeys(each.text for each in found))
    return Reason(next(code for code in CODES if code in codes), text[:1].upper() + text[1:])


def _offer_reason(tx: Tx[Store], line: WaitingLine, offer: Offer) -> Reason:
    """Return why the first job of a line does not start in one environment."""
    environment = offer.environment
    if environment.is_fargate:
        refused = _fargate_reason(tx, line, environment)
        if refused is not None:
            return refused
    claim = tx.store.job_lines.claims_of(line.id).get(offer.pool)
    if claim is None:
        return Reason("", f"the compute environment {environment.name} is tried next")
    waits = why_claim_waits(tx, offer.pool, claim).replace("; first in line", "")  # `_place` describes the place of the job
    text, grows = f"environment {environment.name}: {waits}", why_no_room(tx, environment, line.demand)
    if grows:
        text += f"; {grows}"
    if could_hold(tx.store.fleet.pool(offer.pool), claim.demand):
        return Reason("", text + _next_end(tx, environment))
    if not environment.scales:
        return Reason(REQUIREMENT, text)
    misfit = misfit_of(tx, environment, line.demand)
    return Reason(CAPACITY if misfit is None else MAX_RESOURCE if misfit.is_limit else REQUIREMENT, text)


def _fargate_reason(tx: Tx[Store], line: WaitingLine, environment: ComputeEnvironment) -> Reason | None:
    if line.demand.nodes:
        return Reason(REQUIREMENT, f"environment {environment.name}: a Fargate environment runs no multi-node jobs")
    vcpus, most = vcpus_of(line.demand), environment.max_vcpus
    if vcpus > most:
        return Reason(MAX_RESOURCE, f"environment {environment.name}: needs {vcpus:g} vCPUs, and maxvCpus is {most}")
    if line.id in open_lines(tx, environment):
        return None
    held = tx.store.job_holdings.vcpus(environment.region, environment.name)
    text = f"environment {environment.name}: needs {vcpus:g} vCPUs, and {held:g} of at most {most} vCPUs (maxvCpus) are in use"
    if held + vcpus <= most:
        text += ", but an earlier job waits for them"
    return Reason("", text + _next_end(tx, environment))


def _closed_environments(tx: Tx[Store], queue: JobQueue) -> str:
    """Explain why no environment of a queue accepts jobs."""
    if queue.status != "VALID":
        return f"The job queue {queue.name} is {queue.status}"
    parts = []
    for name in queue.environments:
        environment = find_environment(tx, queue.region, name)
        if environment is None:
            parts.append(f"{name} does not exist")
        elif environment.state != "ENABLED":
            parts.append(f"{name} is {environment.state}")
        else:
            parts.append(f"{name} is {environment.status} ({environment.status_reason})".replace(" ()", ""))
    return f"No compute environment of the job queue {queue.name} takes jobs: {', '.join(parts)}"


def _place(tx: Tx[Store], job: Job, line: WaitingLine, queue: JobQueue | None) -> str:
    if line.head == job.id:
        return "first in line"
    before = tx.store.job_lines.count_before(line.id, job_place(job, queue), COUNTED_MAX + 1)
    count = f"more than {COUNTED_MAX:,}" if before > COUNTED_MAX else f"{before:,}"
    return f"{count} job{'s' * (before != 1)} with the same needs before it, first job {line.head}"


def _held_by(holders: list[str]) -> str:
    if not holders:
        return ""
    more = " and others" if len(holders) > HOLDERS_NAMED_MAX else ""
    named = holders[:HOLDERS_NAMED_MAX]
    return f"; held by job{'s' * (len(named) > 1)} {', '.join(named)}{more}"


def _next_end(tx: Tx[Store], environment: ComputeEnvironment) -> str:
    """Name the running job of an environment whose time limit ends first, if a time limit is known."""
    ends: list[tuple[float, str]] = []
    for job_id in tx.store.job_holdings.holders_in(environment.region, environment.name, HOLDERS_READ_MAX):
        job = tx.store.jobs.get(job_id)
        if job is not None and job.started_at_s is not None and job.spec.timeout_s is not None:
            ends.append((job.started_at_s + job.spec.timeout_s, job_id))
    if not ends:
        return ""
    at_s, job_id = min(ends)
    end = datetime.fromtimestamp(tx.steps.wall_s(at_s), UTC)
    return f"; job {job_id} ends at the latest at {end:%Y-%m-%dT%H:%M:%SZ} (its time limit)"
