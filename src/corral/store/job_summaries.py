"""SQL of the summaries of array jobs: how many children of an array are in each state.

Each child changes the summary of its array several times. So a change is made in memory first. The row of the summary is written
once, at the end of the transaction.
"""

from __future__ import annotations

from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from corral.core.database import Database
from corral.model.job import JobState

CACHED_MAX = 1_000  # the most summaries in memory after a commit
STATES = tuple(JobState)  # the columns of job_summary have the names of the states, in lower case
_AT = {state: at for at, state in enumerate(STATES)}
_COLUMNS = [state.lower() for state in STATES]
_SELECT = f"SELECT {', '.join(_COLUMNS)}, updated_at FROM job_summary WHERE job = ?"
_UPDATE = f"UPDATE job_summary SET {', '.join(f'{column} = ?' for column in _COLUMNS)}, updated_at = ? WHERE job = ?"


class JobSummary(Struct, frozen=True):
    counts: tuple[int, ...]  # in the order of STATES
    updated_at_s: float

    def count(self, state: JobState) -> int:
        return self.counts[_AT[state]]


class JobSummaries:
    def __init__(self, database: Database) -> None:
        self._execute, self._executemany = database.execute, database.executemany
        self._undo_log = database.undo_log
        self._cached: dict[int, JobSummary] = {}  # number of the array → summary
        self._unwritten: dict[int, None] = {}  # arrays whose summary in memory may be newer than their row
        self._undo_log.before_commit.append(self._write)

    def add(self, number: int, size: int, now_s: float) -> None:
        """Add the summary of a new array. All its children are SUBMITTED."""
        self._execute("INSERT INTO job_summary (job, submitted, updated_at) VALUES (?, ?, ?)", (number, size, now_s))
        self._undo_log.on_rollback(partial(self._forget, number))
        self._cached[number] = JobSummary((size, *[0] * (len(STATES) - 1)), now_s)

    def get(self, number: int) -> JobSummary:
        found = self._cached.get(number)
        if found is None:
            *counts, updated_at_s = self._execute(_SELECT, (number,)).fetchone()
            found = JobSummary(tuple(counts), updated_at_s)
        return found

    def move(self, number: int, before: JobState, after: JobState, count: int, now_s: float) -> None:
        """Record that `count` children of an array have changed their state from `before` to `after`."""
        summary = self.get(number)
        counts = list(summary.counts)
        counts[_AT[before]] -= count
        counts[_AT[after]] += count
        assert counts[_AT[before]] >= 0, f"array {number} has fewer than {count} children in the state {before}"
        self._undo_log.on_rollback(partial(self._put, number, summary))
        self._put(number, replace(summary, counts=tuple(counts), updated_at_s=max(summary.updated_at_s, now_s)))

    def drop(self, number: int) -> None:
        summary = self.get(number)
        self._execute("DELETE FROM job_summary WHERE job = ?", (number,))
        self._forget(number)
        self._undo_log.on_rollback(partial(self._put, number, summary))

    def _put(self, number: int, summary: JobSummary) -> None:
        self._cached[number] = summary
        self._unwritten[number] = None

    def _forget(self, number: int) -> None:
        self._cached.pop(number, None)
        self._unwritten.pop(number, None)

    def _write(self) -> None:
        """Write the changed summaries. This runs before the commit."""
        if not self._unwritten:
            return
        rows = [(*self._cached[number].counts, self._cached[number].updated_at_s, number) for number in self._unwritten]
        self._executemany(_UPDATE, rows)
        self._unwritten.clear()
        while len(self._cached) > CACHED_MAX:
            del self._cached[next(iter(self._cached))]
