"""SQL of AWS Batch jobs, and of their children and nodes.

The table `job_child` has the children of arrays and the nodes of multi-node jobs. A row of `job_child` has only the columns in
which a child differs from its parent. The children of an array get their rows in steps. A child without a row is computed from its
parent. A spec has everything that the attempts of a job need. Jobs with equal specs share one row of `job_spec`.
`job_dependencies.py` has the dependencies between jobs, `job_summaries.py` has the counts of children by state, and
`job_listing.py` has the lists of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from msgspec.structs import replace

from corral.core.database import Database
from corral.model.job import ENDED, MOVES, Job, JobKind, JobSpec, JobState, child_id, parent_and_index
from corral.store.job_dependencies import JobDependencies
from corral.store.job_listing import JobListing
from corral.store.job_rows import (
    CHILD_COLUMNS,
    INSERT_JOB,
    JOB_COLUMNS,
    STATES,
    changes,
    child_of,
    child_without_row,
    job_of,
    spec_of,
    spec_text,
    values_of_job,
)
from corral.store.job_summaries import JobSummaries

CACHED_MAX = 20_000
SPECS_MAX = 1_000
LIVE = "state IN ('PENDING', 'RUNNABLE', 'STARTING', 'RUNNING')"


class Jobs:
    def __init__(self, database: Database) -> None:
        self._execute, self._executemany = database.execute, database.executemany
        self._undo_log = database.undo_log
        self._caches = not database.reads_only
        self._cached: dict[str, Job] = {}  # id → job; only jobs that have not ended
        self._specs: dict[int, JobSpec] = {}  # number of the row → spec
        self._spec_numbers: dict[int, tuple[JobSpec, int]] = {}  # id() of a spec → the spec and the number of its row
        self.dependencies = JobDependencies(database)
        self.summaries = JobSummaries(database)
        listing = JobListing(database)
        self.listed, self.listed_children, self.with_resource = listing.listed, listing.children, listing.with_resource
        self.matching = listing.matching

    # Writing

    def add(self, job: Job) -> Job:
        """Add a job that has no parent. Return it with its number."""
        number = self._execute(INSERT_JOB, values_of_job(job, self._spec_number(job.spec))).lastrowid
        assert number is not None
        if job.kind is JobKind.ARRAY:
            self.summaries.add(number, job.size, job.created_at_s)
        self._evict_on_rollback(job.id)
        return self._cache(job.but(number=number))

    def add_children(self, parent: Job, states: Sequence[JobState], now_s: float) -> tuple[Job, list[Job]]:
        """Add the rows of the next children of an array. Return the array and the new children.

        `states` has the state of each child: PENDING or RUNNABLE. If `add_early` has already added a child, its element of `states`
        is ignored.
        """
        first = max(parent.expanded, 0)
        sql = "SELECT position FROM job_child WHERE job = ? AND position >= ? AND position < ?"
        early = {index for (index,) in self._execute(sql, (parent.number, first, first + len(states)))}
        added = [(index, state) for index, state in enumerate(states, first) if index not in early]
        runnable = sum(state is JobState.RUNNABLE for _, state in added)
        children = [
            Job(
                f"{parent.id}:{index}", parent.region, parent.queue, parent.name, JobKind.CHILD, state, parent.spec, now_s,
                index=index, parent_id=parent.id, runnable_at_s=now_s if state is JobState.RUNNABLE else None, number=parent.number,
                owner=parent.owner,
            )
            for index, state in added
        ]  # fmt: skip
        self._executemany(
            "INSERT INTO job_child (job, position, state, created_at, runnable_at) VALUES (?, ?, ?, ?, ?)",
            [(child.number, child.index, child.state.value, now_s, child.runnable_at_s) for child in children],
        )
        self.summaries.move(parent.number, JobState.SUBMITTED, JobState.PENDING, len(added) - runnable, now_s)
        self.summaries.move(parent.number, JobState.SUBMITTED, JobState.RUNNABLE, runnable, now_s)
        for child in children:
            self._evict_on_rollback(child.id)
            self._cache(child)
        return self.change(parent, parent.but(expanded=first + len(states))), children

    def add_early(self, parent: Job, index: int, now_s: float) -> Job:
        """Add the row of one child before `add_children` reaches it, so that the child can be stopped. The child is PENDING."""
        sql = "INSERT INTO job_child (job, position, state, created_at) VALUES (?, ?, 'PENDING', ?)"
        self._execute(sql, (parent.number, index, now_s))
        self.summaries.move(parent.number, JobState.SUBMITTED, JobState.PENDING, 1, now_s)
        self._evict_on_rollback(child_id(parent, index))
        return self.child(parent, index)

    def change(self, before: Job, after: Job, now_s: float = 0.0) -> Job:
        """Write the changed columns of a job. If a child of an array changes its state, update the summary of the array."""
        assert after.state is before.state or after.state in MOVES[before.state], f"job {before.id}: {before.state} → {after.state}"
        sql, values = changes(before, after)
        if not values:
            return after
        self._evict_on_rollback(before.id)
        if before.index is None:
            changed = self._execute(f"UPDATE job SET {sql} WHERE number = ?", (*values, before.number)).rowcount
        else:
            key = (before.number, before.index)
            changed = self._execute(f"UPDATE job_child SET {sql} WHERE job = ? AND position = ?", (*values, *key)).rowcount
            if after.state is not before.state and before.kind is JobKind.CHILD:
                self.summaries.move(before.number, before.state, after.state, 1, now_s)
        assert changed == 1, f"job {before.id} has no row"
        return self._cache(after)

    def fail_unexpanded(self, parent: Job, now_s: float) -> bool:
        """Count the children of an array that have no row as FAILED. The array was stopped, so they never get a row.

        Return True if there are such children.
        """
        count = self.summaries.get(parent.number).count(JobState.SUBMITTED)
        if count:
            self.summaries.move(parent.number, JobState.SUBMITTED, JobState.FAILED, count, now_s)
        return count > 0

    def set_tags(self, job: Job, tags: dict[str, str]) -> None:
        """Replace the tags of a job. The tags are a part of the spec, so the job gets another spec."""
        self._set_spec(job, replace(job.spec, tags=tags), job.owner)

    def set_owner(self, job: Job, owner: str, passed_from: str) -> None:
        """Pass a job and its children to another owner. `JobSpec.passed_from` is a part of the spec."""
        self._set_spec(job, replace(job.spec, passed_from=passed_from) if passed_from else job.spec, owner)

    def _set_spec(self, job: Job, spec: JobSpec, owner: str) -> None:
        (before,) = self._execute("SELECT spec FROM job WHERE number = ?", (job.number,)).fetchone()
        children = () if job.kind is JobKind.SINGLE else [each for each in self._cached if each[: len(job.id)] == job.id]
        for each in (job.id, *children):
            self._cached.pop(each, None)
            self._evict_on_rollback(each)
        self._execute("UPDATE job SET spec = ?, owner = ? WHERE number = ?", (self._spec_number(spec), owner, job.number))
        self._drop_spec(before)

    def set_nodes(self, parent: Job, task_ids: Sequence[str], environment: str, now_s: float) -> None:
        """Record that the nodes of a multi-node job are STARTING, with these tasks. The first attempt adds the rows of nodes."""
        self._evict_nodes(parent)
        self._executemany(
            "INSERT INTO job_child (job, position, state, created_at, task_id, environment) VALUES (?, ?, 'STARTING', ?, ?, ?) "
            "ON CONFLICT (job, position) DO UPDATE SET state = excluded.state, task_id = excluded.task_id, started_at = NULL, "
            "stopped_at = NULL, status_reason = '', environment = excluded.environment",
            [(parent.number, at, now_s, task_id, environment) for at, task_id in enumerate(task_ids)],
        )

    def move_nodes(self, parent: Job, state: JobState) -> None:
        """Set the state of all nodes of a multi-node job. If the job has ended, change only the nodes that have not ended."""
        self._evict_nodes(parent)
        if state in ENDED:
            self._execute(
                f"UPDATE job_child SET state = ?, stopped_at = ?, status_reason = ? WHERE job = ? AND {LIVE}",
                (state.value, parent.stopped_at_s, parent.status_reason, parent.number),
            )
        else:
            self._execute("UPDATE job_child SET state = ? WHERE job = ?", (state.value, parent.number))

    def _evict_nodes(self, parent: Job) -> None:
        for index in range(parent.size):
            self._cached.pop(child_id(parent, index), None)
            self._evict_on_rollback(child_id(parent, index))

    def drop_ended(self, before_s: float, limit: int) -> int:
        """Delete up to `limit` rows of jobs that ended before this time. Return how many rows were deleted.

        A job is not deleted while dependencies on it exist, because the dependent jobs may still read its state.
        """
        left = limit
        sql = (
            "SELECT number, spec, kind = 'array' FROM job WHERE stopped_at < ? "
            "AND NOT EXISTS (SELECT 1 FROM job_dependency WHERE needs = job.number) ORDER BY stopped_at LIMIT ?"
        )
        for number, spec, is_array in self._execute(sql, (before_s, limit)).fetchall():
            children = "SELECT position FROM job_child WHERE job = ? LIMIT ?"
            left -= self._execute(
                f"DELETE FROM job_child WHERE job = ? AND position IN ({children})", (number, number, left)
            ).rowcount
            if left <= 0:
                return limit
            if is_array:
                self.summaries.drop(number)
            self._execute("DELETE FROM job WHERE number = ?", (number,))
            self._drop_spec(spec)
            left -= 1
            if left <= 0:
                return limit
        return limit - left

    def oldest_end_s(self) -> float | None:
        """Return the earliest end of all ended jobs. Return None if no job has ended."""
        found: float | None = self._execute("SELECT min(stopped_at) FROM job WHERE stopped_at IS NOT NULL").fetchone()[0]
        return found

    # Specs

    def _spec_number(self, spec: JobSpec) -> int:
        """Return the number of the row of a spec. Equal specs share a row."""
        known = self._spec_numbers.get(id(spec))
        if known is not None:
            return known[1]
        text = spec_text(spec)
        digest = blake2b(text, digest_size=16).digest()
        row = self._execute("SELECT number FROM job_spec WHERE digest = ?", (digest,)).fetchone()
        if row is None:
            sql = "INSERT INTO job_spec (digest, document) VALUES (?, ?) RETURNING number"
            row = self._execute(sql, (digest, text.decode())).fetchone()
            self._undo_log.on_rollback(self._forget_specs)
        if len(self._spec_numbers) >= SPECS_MAX:
            self._forget_specs()
        self._spec_numbers[id(spec)] = spec, row[0]
        self._specs[row[0]] = spec
        return int(row[0])

    def _spec(self, number: int) -> JobSpec:
        spec = self._specs.get(number)
        if spec is None:
            spec = spec_of(self._execute("SELECT document FROM job_spec WHERE number = ?", (number,)).fetchone()[0])
            if len(self._specs) >= SPECS_MAX:
                self._forget_specs()
            self._specs[number] = spec
        return spec

    def _drop_spec(self, number: int) -> None:
        sql = "DELETE FROM job_spec WHERE number = ? AND NOT EXISTS (SELECT 1 FROM job WHERE spec = ?)"
        if self._execute(sql, (number, number)).rowcount:
            self._forget_specs()

    def _forget_specs(self) -> None:
        self._specs.clear()
        self._spec_numbers.clear()

    # Reading

    def get(self, job_id: str) -> Job | None:
        """Return a job, a child or a node. If a child has no row, compute it from its parent."""
        cached = self._cached.get(job_id)
        if cached is not None:
            return cached
        split = parent_and_index(job_id)
        if split is not None:
            parent = self.get(split[0])
            if parent is None or split[1] >= parent.size or child_id(parent, split[1]) != job_id:
                return None
            return self.child(parent, split[1])
        row = self._execute(f"SELECT {JOB_COLUMNS} FROM job WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else self._cache(job_of(row, self._spec(row[7])))

    def by_number(self, number: int) -> Job | None:
        row = self._execute("SELECT id FROM job WHERE number = ?", (number,)).fetchone()
        return None if row is None else self.get(row[0])

    def child(self, parent: Job, index: int) -> Job:
        cached = self._cached.get(child_id(parent, index))
        if cached is not None:
            return cached
        sql = f"SELECT {CHILD_COLUMNS} FROM job_child WHERE job = ? AND position = ?"
        row = self._execute(sql, (parent.number, index)).fetchone()
        return child_without_row(parent, index) if row is None else self._cache(child_of(parent, row))

    def state_of(self, job_id: str) -> JobState | None:
        """Return the state of a job, a child or a node. Return None if it does not exist."""
        cached = self._cached.get(job_id)
        if cached is not None:
            return cached.state
        if parent_and_index(job_id) is not None:
            job = self.get(job_id)
            return None if job is None else job.state
        row = self._execute("SELECT state FROM job WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else STATES[row[0]]

    def live_children(self, parent: Job, first: int, limit: int, *, unstopped: bool = False) -> list[Job]:
        """Return children that have not ended and whose index is `first` or more.

        With `unstopped`, return only nodes that have no status reason: Corral has not begun to stop them.
        """
        rows = self._execute(
            f"SELECT {CHILD_COLUMNS} FROM job_child WHERE job = ? AND position >= ? AND {LIVE} "
            f"{'AND status_reason = ?' if unstopped else ''} ORDER BY position LIMIT ?",
            (parent.number, first, *([""] if unstopped else []), limit),
        ).fetchall()
        return [self._cached.get(child_id(parent, row[0])) or self._cache(child_of(parent, row)) for row in rows]

    def summary(self, job: Job) -> dict[JobState, int]:
        """Return how many children of an array are in each state."""
        return dict(zip(JobState, self.summaries.get(job.number).counts))

    def ended_children(self, number: int) -> tuple[int, int]:
        """Return how many children of an array have succeeded and failed."""
        summary = self.summaries.get(number)
        return summary.count(JobState.SUCCEEDED), summary.count(JobState.FAILED)

    def not_ended(self, region: str, queue: str, limit: int, *, terminated: bool) -> list[Job]:
        """Return jobs of a queue that have not ended, without children and nodes.

        With `terminated`, return only jobs that are being terminated. Without it, return only the other jobs.
        """
        rows = self._execute(
            f"SELECT {JOB_COLUMNS} FROM job WHERE region = ? AND queue = ? AND (state = 'SUBMITTED' OR {LIVE}) "
            "AND terminated = ? LIMIT ?",
            (region, queue, terminated, limit),
        ).fetchall()
        return [self._cached.get(row[1]) or self._cache(job_of(row, self._spec(row[7]))) for row in rows]

    # The cache

    def _cache(self, job: Job) -> Job:
        if job.state in ENDED:
            self._cached.pop(job.id, None)
        elif self._caches:
            if job.id not in self._cached and len(self._cached) >= CACHED_MAX:
                del self._cached[next(iter(self._cached))]
            self._cached[job.id] = job
        return job

    def _evict_on_rollback(self, job_id: str) -> None:
        """Evict a job from the cache if the transaction is rolled back. Call this before you change its row."""
        self._undo_log.on_rollback(partial(self._cached.pop, job_id, None))
