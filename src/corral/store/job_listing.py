"""SQL of lists of AWS Batch jobs.

Unless a method says otherwise, it uses an index, so that a page costs the same for any number of jobs.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from corral.core.database import Database, Row
from corral.model.job import ENDED, Job, JobState, ListedJob
from corral.store.job_rows import KINDS, STATES, attempts_of, child_of, child_without_row

COLUMNS = (
    "number, id, name, kind, state, definition, revision, created_at, started_at, stopped_at, status_reason, share, size, "
    "cancelled, terminated, attempts"
)
CHILD_COLUMNS = (
    "position, state, created_at, started_at, stopped_at, runnable_at, status_reason, task_id, environment, attempts, cancelled, "
    "terminated"
)
COLLATIONS = {"name": " COLLATE NOCASE", "definition": ""}
WINDOW = 1000  # the most jobs that one search for a prefix reads
LAST = "\U0010ffff"  # sorts after every character of a name
Cursor = tuple[float, ...]


class JobListing:
    """Lists of jobs. Children and nodes are only in the list of their parent.

    A cursor is the position of a job in its list. A page begins after a cursor. The first page has an empty cursor.
    """

    def __init__(self, database: Database) -> None:
        self._execute = database.execute

    def listed(
        self, region: str, queue: str, after: Cursor, limit: int, *, state: JobState | None = None, share: str | None = None,
        name: str | None = None, definition: str | None = None, revision: int | None = None, before_s: float | None = None,
        after_s: float | None = None,
    ) -> list[ListedJob]:  # fmt: skip
        """Return the jobs of a queue that match a filter, newest first. Without a filter, return all jobs.

        Filters cannot be combined, except `share` with `state`, `definition` with `revision`, and `before_s` with `after_s`.
        """
        if share is not None:
            return self._by_share(region, queue, share, state, after, limit)
        if name is not None:
            return self._newest(region, queue, f"name = ?{COLLATIONS['name']}", (name,), after, limit)
        if definition is not None and revision is not None:
            return self._newest(region, queue, "definition = ? AND revision = ?", (definition, revision), after, limit)
        if definition is not None:
            return self._newest(region, queue, "definition = ?", (definition,), after, limit)
        if state is not None:
            return self._newest(region, queue, "state = ?", (state.value,), after, limit)
        return self._by_time(region, queue, after, limit, before_s, after_s)

    def with_resource(self, region: str, name: str, before: int, window: int) -> tuple[list[int], int]:
        """Return numbers of jobs that may need a consumable resource, newest first, and the value of `before` for the next call.

        The method searches for the name in the JSON text of the spec, so the caller must check each job. It reads at most `window`
        jobs of the region, with smaller numbers than `before`. The second result is 0 if the oldest job was read.
        """
        sql = (
            "SELECT job.number, instr(job_spec.document, ?) > 0 FROM job JOIN job_spec ON job_spec.number = job.spec "
            "WHERE job.region = ? AND job.number < ? ORDER BY job.number DESC LIMIT ?"
        )
        rows = self._execute(sql, (f'["{name}",', region, before, window)).fetchall()
        return [number for number, matches in rows if matches], rows[-1][0] if len(rows) == window else 0

    def _by_share(
        self, region: str, queue: str, share: str, state: JobState | None, after: Cursor, limit: int
    ) -> list[ListedJob]:  # fmt: skip
        """Return the jobs with a share identifier, newest first."""
        found: list[ListedJob] = []
        for each in [state] if state is not None else JobState:
            where = "share != '' AND share = ? AND state = ?"  # SQLite uses the partial index only with its condition share != ''
            found += self._newest(region, queue, where, (share, each.value), after, limit)
        return sorted(found, key=lambda job: -job.cursor[0])[:limit]

    def _by_time(
        self, region: str, queue: str, after: Cursor, limit: int, before_s: float | None, after_s: float | None
    ) -> list[ListedJob]:  # fmt: skip
        """Return the jobs that were created before `before_s` and after `after_s`, newest first. None means no limit."""
        values: tuple[Any, ...]
        where, values = (
            "created_at < ? AND created_at > ?",
            (1e300 if before_s is None else before_s, -1.0 if after_s is None else after_s),
        )
        if after:
            where, values = f"{where} AND (created_at, number) < (?, ?)", (*values, *after)
        rows = self._execute(
            f"SELECT {COLUMNS} FROM job WHERE region = ? AND queue = ? AND {where} ORDER BY created_at DESC, number DESC LIMIT ?",
            (region, queue, *values, limit),
        )
        return [_listed(row, (row[7], row[0])) for row in rows]

    def matching(
        self, region: str, queue: str, column: str, prefix: str, after: Cursor, limit: int, *, window: int = WINDOW
    ) -> tuple[list[ListedJob], Cursor]:  # fmt: skip
        """Return jobs whose name or definition begins with a prefix, newest first, and the cursor of the next page.

        The cursor is () after the last page. `column` is `name` or `definition`. If more than `window` jobs match, one call reads
        only `window` jobs, so a page may be short or empty.
        """
        name = f"{column}{COLLATIONS[column]}"
        where, values = f"region = ? AND queue = ? AND {name} >= ? AND {name} < ?", (region, queue, prefix, prefix + LAST)
        numbers = [number for (number,) in self._execute(f"SELECT number FROM job WHERE {where} LIMIT ?", (*values, window + 1))]
        if len(numbers) <= window:
            chosen = sorted((number for number in numbers if not after or number < after[1]), reverse=True)[: limit + 1]
            marks = ", ".join("?" * len(chosen))
            rows = self._execute(f"SELECT {COLUMNS} FROM job WHERE number IN ({marks}) ORDER BY number DESC", chosen).fetchall()
            rest: Cursor = (rows[limit - 1][7], rows[limit - 1][0]) if len(rows) > limit else ()
            return [_listed(row, ()) for row in rows[:limit]], rest
        found: list[ListedJob] = []
        read = self._by_time(region, queue, after, window, None, None)
        for job in read:
            is_name = column == "name"
            matches = job.name.lower().startswith(prefix.lower()) if is_name else job.definition.startswith(prefix)
            found += [job] * matches
            if len(found) == limit:
                return found, job.cursor
        return found, read[-1].cursor if len(read) == window else ()

    def _newest(
        self, region: str, queue: str, where: str, values: tuple[Any, ...], after: Cursor, limit: int
    ) -> list[ListedJob]:  # fmt: skip
        if after:
            where, values = f"{where} AND number < ?", (*values, after[0])
        rows = self._execute(
            f"SELECT {COLUMNS} FROM job WHERE region = ? AND queue = ? AND {where} ORDER BY number DESC LIMIT ?",
            (region, queue, *values, limit),
        )
        return [_listed(row, (row[0],)) for row in rows]

    def children(self, parent: Job, state: JobState, after: Cursor, limit: int) -> list[ListedJob]:
        """Return the children or nodes of a job that are in a state, sorted by index.

        This reads all children of the job, at most 10,000.
        """
        first = int(after[0]) + 1 if after else 0
        rows = self._execute(
            f"SELECT {CHILD_COLUMNS} FROM job_child WHERE job = ? AND state = ? AND position >= ? ORDER BY position LIMIT ?",
            (parent.number, state.value, first, limit),
        ).fetchall()
        found = [child_of(parent, row) for row in rows]
        if child_without_row(parent, 0).state is state:
            found = sorted([*found, *self._rowless(parent, first, limit)], key=lambda child: child.index or 0)[:limit]
        return [_listed_child(child) for child in found]

    def _rowless(self, parent: Job, first: int, limit: int) -> list[Job]:
        """Return the next children that have no row in `job_child`."""
        first = max(first, parent.expanded, 0)
        sql = "SELECT position FROM job_child WHERE job = ? AND position >= ?"
        early = {index for (index,) in self._execute(sql, (parent.number, first))}
        indexes = (index for index in range(first, parent.size) if index not in early)
        return [child_without_row(parent, index) for index in islice(indexes, limit)]


def _listed(row: Row, cursor: Cursor) -> ListedJob:
    attempts = attempts_of(row[15])
    return ListedJob(
        number=row[0], id=row[1], name=row[2], kind=KINDS[row[3]], state=STATES[row[4]], definition=f"{row[5]}:{row[6]}",
        created_at_s=row[7], started_at_s=row[8], stopped_at_s=row[9], status_reason=row[10], share=row[11], size=row[12],
        index=None, cancelled=bool(row[13]), terminated=bool(row[14]), attempt=attempts[-1] if attempts else None, cursor=cursor,
    )  # fmt: skip


def _listed_child(child: Job) -> ListedJob:
    assert child.index is not None
    return ListedJob(
        number=0, id=child.id, name=child.name, kind=child.kind, state=child.state, definition=child.definition,
        created_at_s=child.created_at_s, started_at_s=child.started_at_s, stopped_at_s=child.stopped_at_s,
        status_reason=child.status_reason, share=child.spec.share, size=0, index=child.index,
        cancelled=child.cancelled and child.state in ENDED, terminated=child.terminated,
        attempt=child.attempts[-1] if child.attempts else None, cursor=(child.index,),
    )  # fmt: skip
