"""SQL of the dependencies between AWS Batch jobs.

A dependency has a row while the dependent job waits. When a job ends, each dependent job is checked: it becomes RUNNABLE, fails or
still waits for other jobs. Any number of jobs can depend on a job, and one transaction checks only a limited number of them. So an
ended job has another row, its notice, until all its dependent jobs have been checked.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from corral.core.database import Database

# Special values of `position`, in dependencies and notices. Other values are the index of a child.
WHOLE = -1  # the whole job
N_TO_N = -2  # each child of the dependent array needs the child with the same index
UNEXPANDED = -3  # in a notice: all children that have no row
FREE_MAX = 1_000  # the size of the cache `JobDependencies._free`


class Notice(Struct, frozen=True):
    """A job that has ended, or children of a job that have ended."""

    number: int
    job: int  # the number of the ended job, or of its parent
    position: int
    after: int  # dependent jobs with this number or a smaller number have been checked


class JobDependencies:
    def __init__(self, database: Database) -> None:
        self._execute, self._executemany = database.execute, database.executemany
        self._undo_log = database.undo_log
        self._free: dict[int, None] = {}  # a cache of the jobs on which no job depends; saves a query for each ended child

    def add(self, dependent: int, needed: Iterable[tuple[int, int]]) -> None:
        """Write the dependencies of a job.

        An element of `needed` has the number of the other job, and a position: WHOLE, N_TO_N or the index of a child.
        """
        rows = [(*each, dependent) for each in needed]
        for number, _, _ in rows:
            self._free.pop(number, None)
        self._executemany("INSERT OR IGNORE INTO job_dependency (needs, position, dependent) VALUES (?, ?, ?)", rows)

    def drop_n_to_n(self, dependent: int, needed: Iterable[int]) -> None:
        """Delete the N_TO_N dependencies of an array that has ended."""
        self._undo_log.on_rollback(self._free.clear)
        rows = [(each, N_TO_N, dependent) for each in needed]
        self._executemany("DELETE FROM job_dependency WHERE needs = ? AND position = ? AND dependent = ?", rows)

    def notify(self, job: int, position: int) -> bool:
        """Add a notice if other jobs depend on an ended job or child. Return True if a notice was added and is the only notice."""
        if job in self._free:
            return False
        where, values = _matching(job, position)
        if self._execute(f"SELECT 1 FROM job_dependency WHERE {where} LIMIT 1", values).fetchone() is None:
            if self._execute("SELECT 1 FROM job_dependency WHERE needs = ? LIMIT 1", (job,)).fetchone() is None:
                if len(self._free) >= FREE_MAX:
                    self._free.clear()
                self._free[job] = None
            return False
        first = self._execute("SELECT 1 FROM job_notice LIMIT 1").fetchone() is None
        self._execute("INSERT INTO job_notice (job, position, after) VALUES (?, ?, 0)", (job, position))
        return first

    def next_notice(self) -> Notice | None:
        row = self._execute("SELECT number, job, position, after FROM job_notice ORDER BY number LIMIT 1").fetchone()
        return None if row is None else Notice(*row)

    def dependents(self, notice: Notice, limit: int) -> list[int]:
        """Return the numbers of the next jobs that depend on the ended job or children."""
        where, values = _matching(notice.job, notice.position)
        sql = f"SELECT DISTINCT dependent FROM job_dependency WHERE {where} AND dependent > ? ORDER BY dependent LIMIT ?"
        return [number for (number,) in self._execute(sql, (*values, notice.after, limit))]

    def proceed(self, notice: Notice, after: int) -> None:
        """Record that the dependent jobs up to the number `after` have been checked."""
        self._drop_met(notice, after)
        self._execute("UPDATE job_notice SET after = ? WHERE number = ?", (after, notice.number))

    def finish(self, notice: Notice, after: int) -> None:
        """Delete a notice, because all dependent jobs have been checked."""
        self._drop_met(notice, after)
        self._execute("DELETE FROM job_notice WHERE number = ?", (notice.number,))

    def _drop_met(self, notice: Notice, after: int) -> None:
        """Delete the dependencies that a notice concerns, of the jobs that have been checked.

        Two kinds are kept. Dependencies on children without a row are deleted when the whole array has ended. `drop_n_to_n` deletes
        N_TO_N dependencies.
        """
        if notice.position == UNEXPANDED:
            return
        self._undo_log.on_rollback(self._free.clear)
        where, values = _matching(notice.job, notice.position)
        sql = f"DELETE FROM job_dependency WHERE {where} AND position != ? AND dependent > ? AND dependent <= ?"
        self._execute(sql, (*values, N_TO_N, notice.after, after))


def _matching(job: int, position: int) -> tuple[str, tuple[int, ...]]:
    """Return the SQL condition for the dependencies that a notice concerns, and its values.

    Several notices can concern the same dependency. Then the dependent job is checked several times, which does no harm.
    """
    if position == WHOLE:
        return "needs = ? AND position != ?", (job, N_TO_N)
    if position == UNEXPANDED:
        return "needs = ? AND position != ?", (job, WHOLE)
    return "needs = ? AND position IN (?, ?)", (job, position, N_TO_N)
