"""SQL of the task queue: tasks that are held back, members of arrays, and tasks that Corral may replace after a failure.

`model/task_queue.py` defines the terms. The ids of all tasks in the queue, and of all chains and arrays that tasks wait for, are
also in memory. So Corral needs no query to learn that the end of a task does not matter to the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from corral.core.database import Database, Row
from corral.model.task_queue import EndNotice, QueuedTask, QueueState, TaskArray

COLUMNS = "task_id, chain, state, held, not_before, unmet, array, position, requeues, attempt, roams"
ARRAY_COLUMNS = "key, max_active, waiting, admitted, succeeded, failed"
SORTED_MAX = 2_000  # the most tasks that one query sorts by age
Need = tuple[str, bool]  # the id of a chain or array:KEY, and whether its failure also ends the wait (corral:after-any)


class TaskQueue:
    def __init__(self, database: Database) -> None:
        self._execute, self._executemany = database.execute, database.executemany
        self._undo_log = database.undo_log
        self._reads_only = database.reads_only
        self._queued: set[str] = set()  # the tasks in the queue
        self._needed: dict[str, int] = {}  # chain or array:KEY → the number of tasks that wait for it
        if not database.reads_only:
            self._queued.update(task_id for (task_id,) in self._execute("SELECT task_id FROM queued_task"))
            self._needed.update(self._execute("SELECT needed, count(*) FROM task_dependency GROUP BY needed").fetchall())

    def snapshot(self) -> tuple[set[str], dict[str, int]]:
        """A copy of the values in memory, for tests."""
        return set(self._queued), dict(self._needed)

    # Tasks

    def concerns(self, task_id: str) -> bool:
        """Whether the end of a task matters to the queue: the task is in the queue, or another task waits for it."""
        return task_id in self._queued or task_id in self._needed

    def is_needed(self, needed: str) -> bool:
        return needed in self._needed

    def get(self, task_id: str) -> QueuedTask | None:
        if task_id not in self._queued and not self._reads_only:
            return None
        row = self._execute(f"SELECT {COLUMNS} FROM queued_task WHERE task_id = ?", (task_id,)).fetchone()
        return None if row is None else _task_of(row)

    def of_chain(self, chain: str) -> str | None:
        """The unfinished task of a chain. None if the chain has ended, or if `chain` is a task that is not in the queue."""
        row = self._execute("SELECT task_id FROM queued_task WHERE chain = ?", (chain,)).fetchone()
        return None if row is None else str(row[0])

    def add(self, queued: QueuedTask, needs: Iterable[Need] = ()) -> None:
        """Add a task to the queue. `queued.unmet` must be the number of `needs`."""
        self._execute(f"INSERT INTO queued_task ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", _values(queued))
        self._queued.add(queued.task_id)
        self._undo_log.on_rollback(partial(self._queued.discard, queued.task_id))
        rows = [(needed, queued.task_id, any_end) for needed, any_end in needs]
        assert len(rows) == queued.unmet
        if rows:
            self._executemany("INSERT INTO task_dependency (needed, dependent, any_end) VALUES (?, ?, ?)", rows)
            for needed, _, _ in rows:
                self._count_needed(needed, 1)

    def change(self, queued: QueuedTask) -> None:
        self._execute(
            "UPDATE queued_task SET state = ?, held = ?, not_before = ?, unmet = ?, requeues = ? WHERE task_id = ?",
            (queued.state.value, queued.held, queued.not_before_s, queued.unmet, queued.requeues, queued.task_id),
        )

    def remove(self, task_id: str) -> None:
        """Remove a task that has ended from the queue. It no longer waits for other tasks."""
        sql = "DELETE FROM task_dependency WHERE dependent = ? RETURNING needed"
        for (needed,) in self._execute(sql, (task_id,)).fetchall():
            self._count_needed(needed, -1)
        self._execute("DELETE FROM queued_task WHERE task_id = ?", (task_id,))
        if task_id in self._queued:
            self._queued.remove(task_id)
            self._undo_log.on_rollback(partial(self._queued.add, task_id))

    def _count_needed(self, needed: str, change: int) -> None:
        self._change_needed(needed, change)
        self._undo_log.on_rollback(partial(self._change_needed, needed, -change))

    def _change_needed(self, needed: str, change: int) -> None:
        count = self._needed.get(needed, 0) + change
        if count:
            self._needed[needed] = count
        else:
            self._needed.pop(needed, None)

    def first_not_admitted(self, limit: int, cluster: tuple[str, str] | None = None) -> list[str]:
        """Ids of tasks that have no claim yet: first READY members of arrays by index, then tasks that are held back.

        With `cluster`, a region and a name, only tasks of this cluster. Tasks that are held back are sorted by age. If there are
        more than SORTED_MAX of them in all clusters, only SORTED_MAX of them, in no certain order, are considered.
        """
        condition, values = ("region = ? AND cluster = ?", cluster) if cluster is not None else ("TRUE", ())
        ready = self._execute(
            "SELECT task.id FROM queued_task CROSS JOIN task ON task.id = task_id WHERE queued_task.state = 'ready' "
            f"AND {condition} ORDER BY array, position LIMIT ?",
            (*values, limit),
        )
        found = [task_id for (task_id,) in ready]
        waiting = self._execute(
            "SELECT task.id FROM (SELECT task_id FROM queued_task WHERE state = 'waiting' LIMIT ?) CROSS JOIN task ON id = task_id "
            f"WHERE {condition} ORDER BY task.rowid LIMIT ?",
            (SORTED_MAX, *values, limit - len(found)),
        )
        return [*found, *(task_id for (task_id,) in waiting)]

    # Times

    def next_time_s(self) -> float | None:
        """The earliest time that a task waits for; None if no task waits for a time."""
        row = self._execute("SELECT min(not_before) FROM queued_task WHERE not_before IS NOT NULL").fetchone()
        return None if row[0] is None else float(row[0])

    def whose_time_has_come(self, now_s: float, limit: int) -> list[QueuedTask]:
        sql = f"SELECT {COLUMNS} FROM queued_task WHERE not_before <= ? ORDER BY not_before LIMIT ?"
        return [_task_of(row) for row in self._execute(sql, (now_s, limit)).fetchall()]

    # Dependencies

    def needs_of(self, task_id: str, limit: int) -> list[Need]:
        """The chains and arrays for which a task waits."""
        sql = "SELECT needed, any_end FROM task_dependency WHERE dependent = ? ORDER BY needed LIMIT ?"
        return [(needed, bool(any_end)) for needed, any_end in self._execute(sql, (task_id, limit))]

    def dependents(self, end: EndNotice, limit: int) -> list[tuple[str, bool]]:
        """The next tasks that a notice concerns. The second element of each pair says whether a failure also ends the wait."""
        # A notice that is not final reports a failed member of an array. It concerns only the tasks that need a success.
        most = 1 if end.final else 0
        sql = "SELECT dependent, any_end FROM task_dependency WHERE needed = ? AND any_end <= ? ORDER BY any_end, dependent LIMIT ?"
        return [(task_id, bool(any_end)) for task_id, any_end in self._execute(sql, (end.needed, most, limit))]

    def meet(self, needed: str, task_id: str) -> QueuedTask:
        """Delete a dependency, because the task is informed of the end of `needed`. Return the task with one unmet dependency less.

        The caller must write the task with `change`.
        """
        self._execute("DELETE FROM task_dependency WHERE needed = ? AND any_end IN (0, 1) AND dependent = ?", (needed, task_id))
        self._count_needed(needed, -1)
        queued = self.get(task_id)
        assert queued is not None
        return queued.but(unmet=queued.unmet - 1)

    def add_end(self, end: EndNotice) -> None:
        """Add a notice. If a notice about the same array exists, merge both notices, and keep the reason of the earlier notice."""
        self._execute(
            "INSERT INTO end_notice (needed, succeeded, final, reason) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (needed) DO UPDATE SET final = max(final, excluded.final), succeeded = min(succeeded, excluded.succeeded)",
            (end.needed, end.succeeded, end.final, end.reason),
        )

    def end(self, needed: str) -> EndNotice | None:
        row = self._execute("SELECT needed, succeeded, final, reason FROM end_notice WHERE needed = ?", (needed,)).fetchone()
        return None if row is None else EndNotice(row[0], bool(row[1]), bool(row[2]), row[3])

    def drop_end(self, needed: str) -> None:
        self._execute("DELETE FROM end_notice WHERE needed = ?", (needed,))

    # Arrays

    def array(self, key: str) -> TaskArray | None:
        row = self._execute(f"SELECT {ARRAY_COLUMNS} FROM task_array WHERE key = ?", (key,)).fetchone()
        return None if row is None else TaskArray(*row)

    def put_array(self, array: TaskArray, now_s: float) -> None:
        self._execute(
            f"INSERT INTO task_array ({ARRAY_COLUMNS}, changed_at) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
            "waiting = excluded.waiting, admitted = excluded.admitted, succeeded = excluded.succeeded, failed = excluded.failed, "
            "changed_at = excluded.changed_at",
            (array.key, array.limit, array.waiting, array.admitted, array.succeeded, array.failed, now_s),
        )

    def next_ready(self, key: str) -> QueuedTask | None:
        """The READY member of an array with the smallest index."""
        sql = f"SELECT {COLUMNS} FROM queued_task WHERE array = ? AND state = 'ready' ORDER BY position LIMIT 1"
        row = self._execute(sql, (key,)).fetchone()
        return None if row is None else _task_of(row)

    def drop_arrays(self, before_s: float, limit: int) -> int:
        """Delete arrays that ended before `before_s`. Return their number."""
        return self._execute(
            "DELETE FROM task_array WHERE key IN "
            "(SELECT key FROM task_array WHERE waiting = 0 AND admitted = 0 AND changed_at < ? LIMIT ?)",
            (before_s, limit),
        ).rowcount

    def oldest_ended_array_s(self) -> float | None:
        row = self._execute("SELECT min(changed_at) FROM task_array WHERE waiting = 0 AND admitted = 0").fetchone()
        return None if row[0] is None else float(row[0])


def _values(queued: QueuedTask) -> Row:
    return (
        queued.task_id, queued.chain, queued.state.value, queued.held, queued.not_before_s, queued.unmet, queued.array,
        queued.index, queued.requeues, queued.attempt, queued.roams,
    )  # fmt: skip


def _task_of(row: Row) -> QueuedTask:
    task_id, chain, state, held, not_before_s, unmet, array, index, requeues, attempt, roams = row
    return QueuedTask(
        task_id, chain, QueueState(state), bool(held), not_before_s, unmet, array, index, requeues, attempt, bool(roams)
    )
