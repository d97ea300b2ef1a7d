"""Faults of Batch that test_job_graphs.py plants. Each of them replaces one decision of the server."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.placement.place import place, serve
from corral.model.job import ENDED, Job, JobKind, JobState, parent_and_index
from corral.model.job_line import Holding, JobPlace, LineKey, WaitingLine
from corral.model.placement import Placement
from corral.model.task import TaskState
from corral.reconcile import STATE
from corral.reconcile.scheduler import GRANTS
from corral.services.batch import dispatch, job_attempts, job_progress, line_claims
from corral.store import Store
from corral.store.job_dependencies import JobDependencies, Notice
from corral.store.job_holdings import JobHoldings
from corral.store.job_lines import JobLines
from corral.store.job_summaries import STATES, JobSummaries
from corral.store.jobs import Jobs
from simulation.job_graphs import JobParts
from simulation.lanes import SimStore, with_part

# Dependencies


class RunningIsEnough(Jobs):
    """A dependency is met when the needed job runs."""

    def state_of(self, job_id: str) -> JobState | None:
        found = super().state_of(job_id)
        return JobState.SUCCEEDED if found is JobState.RUNNING else found


class NeedsTheNextChild(Jobs):
    """A child waits for the child with the next index."""

    def state_of(self, job_id: str) -> JobState | None:
        split = parent_and_index(job_id)
        parent = None if split is None else self.get(split[0])
        if split is None or parent is None:
            return super().state_of(job_id)
        return super().state_of(f"{split[0]}:{min(split[1] + 1, parent.size - 1)}")


class FailedChildrenAreEnough(Jobs):
    """The next child of a SEQUENTIAL array starts after a failed one."""

    def state_of(self, job_id: str) -> JobState | None:
        found = super().state_of(job_id)
        return JobState.SUCCEEDED if found is JobState.FAILED and ":" in job_id else found


class LosesNotices(JobDependencies):
    """Jobs that depend on a child do not learn about its end."""

    def notify(self, job: int, position: int) -> bool:
        return position < 0 and super().notify(job, position)


class ForgetsOtherDependents(JobDependencies):
    """Only the oldest dependent job learns about an end."""

    def dependents(self, notice: Notice, limit: int) -> list[int]:
        return super().dependents(notice, limit)[:1]


def _with_dependencies(faulty: type[JobDependencies]) -> type[SimStore]:
    class Faulty(SimStore):
        def _compose(self) -> None:
            super()._compose()
            self.jobs.dependencies.__class__ = faulty

    return Faulty


# Attempts


def launch_again(tx: Tx[Store]) -> None:
    """After a restart, jobs whose tasks have not started yet are put into their lines again."""
    for (job_id,) in tx.store.execute("SELECT job_id FROM job_holding").fetchall():
        job = tx.store.jobs.get(job_id)
        if job is not None and job.state is JobState.STARTING and job.kind is not JobKind.MULTI_NODE:
            dispatch.attempt_ended(tx, job)
            job_progress.make_runnable(tx, job, job.but(task_id="", environment=""))


class KeepsRunningCount(JobSummaries):
    """The summary of an array still counts a retried child as RUNNING."""

    def move(self, number: int, before: JobState, after: JobState, count: int, now_s: float) -> None:
        super().move(number, before, after, count, now_s)
        if after is JobState.RUNNABLE and before is JobState.RUNNING:
            summary = self.get(number)
            counts = [old + count * (state is JobState.RUNNING) for state, old in zip(STATES, summary.counts)]
            self._put(number, replace(summary, counts=tuple(counts)))


class WithFaultySummaries(SimStore):
    def _compose(self) -> None:
        super()._compose()
        self.jobs.summaries.__class__ = KeepsRunningCount


def retry_terminated(tx: Tx[Store], job_id: str) -> None:
    """TerminateJob stops the task, and the job is retried."""
    job = tx.store.jobs.get(job_id)
    if job is not None and job.terminated and job.state in job_attempts.WITH_TASKS and job.kind is not JobKind.NODE:
        task = tx.store.tasks.get(job.task_id)
        if task is not None and task.state is TaskState.STOPPED:
            tx.store.jobs.change(job, job.but(terminated=False, status_reason=""), tx.now_s)
    job_attempts.follow(tx, job_id)


class OneMoreAttempt(Jobs):
    def add(self, job: Job) -> Job:
        return super().add(job.but(spec=replace(job.spec, attempts_max=job.spec.attempts_max + 1)))


class IgnoresExitRules(Jobs):
    """All failed attempts are retried."""

    def add(self, job: Job) -> Job:
        return super().add(job.but(spec=replace(job.spec, exit_rules=())))


class ForgetsTimeLimits(SimStore):
    """After a restart, running jobs have no time limit."""

    def _compose(self) -> None:
        super()._compose()
        self.execute("DELETE FROM due WHERE key LIKE 'job:%'")


class EndsArraysEarly(Jobs):
    """An array ends before its last child."""

    def ended_children(self, number: int) -> tuple[int, int]:
        succeeded, failed = super().ended_children(number)
        return succeeded + bool(succeeded), failed


class KeepsJobsOfFailedCommands(Jobs):
    """The cache keeps what a failed command has written."""

    def _evict_on_rollback(self, job_id: str) -> None:
        pass


# Lines and capacity


class ForgetsToDequeue(JobLines):
    """A cancelled job stays in its line, unless it is the first."""

    def remove(self, key: LineKey, place: JobPlace, now_s: float) -> WaitingLine | None:
        line = self.find(key)
        return line if line is not None and line.head != place.job_id else super().remove(key, place, now_s)


class KeepsHoldings(JobHoldings):
    """Consumable resources are not given back."""

    def drop(self, holding: Holding) -> None:
        if not holding.resources:
            super().drop(holding)


def one_node_less(tx: Tx[Store], pool_name: str) -> None:
    """The last node of a multi-node job gets no slot."""
    line_claims.rank_claims(tx, pool_name)
    for claim, placement in serve(tx.store.fleet.pool(pool_name), tx.now_s):
        GRANTS[claim.kind](tx, claim, replace(placement, nodes=placement.nodes[:-1]))


def nothing_is_reserved(tx: Tx[Store], pool_name: str) -> None:
    """A job that fits overtakes a job that does not."""
    line_claims.rank_claims(tx, pool_name)
    pool, granted = tx.store.fleet.pool(pool_name), True
    while granted:
        granted = False
        for claim in sorted(pool.heads()):
            found = place(pool, claim.demand) if not claim.demand.nodes else None
            if isinstance(found, Placement):
                GRANTS[claim.kind](tx, claim, found)
                granted = True
                break
    STATE["pool"](tx, pool_name)


def ended_jobs_wake_no_pool(tx: Tx[Store], job_id: str) -> None:
    """The claims of jobs that wait for a consumable resource are not set when the resource is given back."""
    job = tx.store.jobs.get(job_id)
    job_attempts.follow(tx, job_id)
    after = tx.store.jobs.get(job_id)
    if job is not None and job.spec.resources and after is not None and after.state in ENDED:
        for line in tx.store.job_lines.with_resource(job.region, "licence"):
            tx.store.job_lines.set_claims(line, {})


def equal_weights(operation: str, params: dict[str, Any]) -> dict[str, Any]:
    """All shares get the same capacity."""
    if operation == "create_scheduling_policy":
        return {**params, "fairsharePolicy": {**params["fairsharePolicy"], "shareDistribution": []}}
    return params


def equal_priorities(operation: str, params: dict[str, Any]) -> dict[str, Any]:
    return {**params, "priority": 1} if operation == "create_job_queue" else params


JOB_FAULTS: dict[str, JobParts] = {
    "a job starts while a needed job runs": JobParts(store=with_part("jobs", RunningIsEnough)),
    "N_TO_N needs the next index": JobParts(store=with_part("jobs", NeedsTheNextChild)),
    "SEQUENTIAL ignores failures": JobParts(store=with_part("jobs", FailedChildrenAreEnough)),
    "the end of a child is not told": JobParts(store=_with_dependencies(LosesNotices)),
    "only one dependent job is told": JobParts(store=_with_dependencies(ForgetsOtherDependents)),
    "a job is launched twice after a restart": JobParts(after_restart=launch_again),
    "the summary is not decremented by a retry": JobParts(store=WithFaultySummaries),
    "a terminated job is retried": JobParts(reconcilers={**STATE, "job": retry_terminated}),
    "one attempt too many": JobParts(store=with_part("jobs", OneMoreAttempt)),
    "evaluateOnExit is ignored": JobParts(store=with_part("jobs", IgnoresExitRules)),
    "time limits are lost at a restart": JobParts(store=ForgetsTimeLimits),
    "an array ends before its last child": JobParts(store=with_part("jobs", EndsArraysEarly)),
    "a failed command stays in the cache": JobParts(store=with_part("jobs", KeepsJobsOfFailedCommands)),
    "a cancelled job stays in its line": JobParts(store=with_part("job_lines", ForgetsToDequeue)),
    "consumable resources are not given back": JobParts(store=with_part("job_holdings", KeepsHoldings)),
    "a given back resource wakes no job": JobParts(reconcilers={**STATE, "job": ended_jobs_wake_no_pool}),
    "a multi-node job is placed partly": JobParts(reconcilers={**STATE, "pool": one_node_less}),
    "a large job reserves nothing": JobParts(reconcilers={**STATE, "pool": nothing_is_reserved}),
    "fair shares ignore weights": JobParts(params=equal_weights),
    "queues ignore priorities": JobParts(params=equal_priorities),
}
