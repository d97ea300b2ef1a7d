"""SQL of the task history: the records of stopped tasks, and the GPU use of tasks that run.

Rows have consecutive numbers in the order in which the tasks stopped. Only the oldest rows are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from heapq import nlargest
from typing import Any

import msgspec
from msgspec import Struct

from corral.core.database import Database, Row
from corral.model.gpu_metrics import GpuSample
from corral.model.task import Task
from corral.model.task_record import GpuUse, TaskRecord, is_failure, task_record, with_sample

NAMES_MAX = 1_000  # the most names with which a glob is compared
COUNTED_MAX = 1_000  # the largest result of `count`
SHORT_ID = 8  # the number of digits of an id that are in the index
LAST_CHARACTER = "\U0010ffff"

_encode = msgspec.json.Encoder().encode
_COLUMNS = "number, id, region, cluster, name, failed, record"


class HistoryFilter(Struct, frozen=True):
    """Selects records. Empty texts and None select all records."""

    region: str
    cluster: str = ""
    name: str = ""  # a name, or a glob such as `lr*`
    id: str = ""  # the beginning of an id
    array: str = ""  # the id of an array: only its members
    failed: bool = False  # True: only failed tasks
    since_s: float = 0.0
    before: int | None = None  # only records with a smaller number; the number of the last record of the previous page


class StoredTask(Struct, frozen=True):
    number: int
    id: str
    region: str
    cluster: str
    name: str
    failed: bool
    record: TaskRecord


class TaskHistory:
    """The task history in the state store. The rows of a transaction are written together before its commit."""

    def __init__(self, database: Database) -> None:
        self._execute, self._executemany = database.execute, database.executemany
        self._undo_log = database.undo_log
        self._new: dict[str, tuple[Task, GpuUse | None]] = {}  # tasks that this transaction has stopped, by id
        self._gpu_use: dict[str, GpuUse] = {}  # task id → its GPU use until now
        self._saved: dict[str, GpuUse] = {}  # task id → its row in task_gpu_use
        if not database.reads_only:
            database.undo_log.before_commit.append(self._write)
            for task_id, *values in self._execute("SELECT * FROM task_gpu_use").fetchall():
                self._gpu_use[task_id] = self._saved[task_id] = GpuUse(*values)

    # Writing

    def add(self, task: Task) -> None:
        """Record a task that stops in this transaction."""
        use = self._gpu_use.get(task.id)
        if use is not None:
            self._forget_use(task.id, use)
        self._new[task.id] = task, use
        self._undo_log.on_rollback(partial(self._new.pop, task.id, None))

    def change_tags(self, task: Task) -> None:
        """Update the tags in the record of a stopped task.

        Tags can change after the end of a task, for example when a later transaction launches the task that replaces it.
        """
        before = self._new.get(task.id)
        if before is not None:
            self._new[task.id] = task, before[1]
            self._undo_log.on_rollback(partial(self._new.__setitem__, task.id, before))
        elif (stored := self.get(task.id)) is not None:
            record = msgspec.structs.replace(stored.record, tags=task.details.get("tags") or [])
            self._execute("UPDATE task_history SET record = ? WHERE number = ?", (_encode(record), stored.number))

    def _write(self) -> None:
        if self._new:
            self._executemany(
                "INSERT INTO task_history (id, region, cluster, name, failed, stopped_at, record) VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (task.id, task.region, task.cluster, task.name, is_failure(task), task.stopped_at_s,
                     _encode(task_record(task, use)))
                    for task, use in self._new.values()
                ],
            )  # fmt: skip
            self._new.clear()

    def drop_oldest(self, now_s: float, kept_s: float, rows_max: int, limit: int) -> int:
        """Delete up to `limit` rows: those of tasks that stopped more than `kept_s` ago, and the oldest rows above `rows_max`.

        Rows more than `kept_s` in the future are also deleted, because the clock was wrong when they were written. Otherwise these
        rows would stay the oldest rows, and prevent the deletion of later rows.
        """
        # Two subqueries, because SQLite reads all rows for a query with both min and max.
        sql = "SELECT (SELECT min(number) FROM task_history), (SELECT max(number) FROM task_history)"
        first, last = self._execute(sql).fetchone()
        if first is None:
            return 0
        return self._execute(
            "DELETE FROM task_history WHERE number < ? AND (stopped_at NOT BETWEEN ? AND ? OR number <= ?)",
            (first + limit, now_s - kept_s, now_s + kept_s, last - rows_max),
        ).rowcount

    # GPU use of tasks that run. These are measurements: a rollback does not undo them.

    def add_sample(self, task_id: str, sample: GpuSample) -> None:
        self._gpu_use[task_id] = with_sample(self._gpu_use.get(task_id), sample)

    def gpu_use(self, task_id: str) -> GpuUse | None:
        return self._gpu_use.get(task_id)

    def save_gpu_use(self) -> None:
        """Write the GPU use of running tasks, so that a restart of the server keeps it."""
        changed = {task_id: use for task_id, use in self._gpu_use.items() if self._saved.get(task_id) is not use}
        rows = [(task_id, *msgspec.structs.astuple(use)) for task_id, use in changed.items()]
        self._executemany("INSERT OR REPLACE INTO task_gpu_use VALUES (?, ?, ?, ?, ?)", rows)
        for task_id, use in changed.items():
            self._undo_log.on_rollback(partial(self._set_saved, task_id, self._saved.get(task_id)))
            self._saved[task_id] = use

    def _set_saved(self, task_id: str, use: GpuUse | None) -> None:
        if use is None:
            self._saved.pop(task_id, None)
        else:
            self._saved[task_id] = use

    def _forget_use(self, task_id: str, use: GpuUse) -> None:
        del self._gpu_use[task_id]
        self._undo_log.on_rollback(partial(self._gpu_use.__setitem__, task_id, use))
        saved = self._saved.pop(task_id, None)
        if saved is not None:
            self._execute("DELETE FROM task_gpu_use WHERE task_id = ?", (task_id,))
            self._undo_log.on_rollback(partial(self._set_saved, task_id, saved))

    # Reading

    def get(self, task_id: str) -> StoredTask | None:
        """Return the record of a task that stopped in an earlier transaction."""
        rows = self._execute(
            f"SELECT {_COLUMNS} FROM task_history WHERE substr(id, 1, 8) = ? AND id = ?", (task_id[:SHORT_ID], task_id)
        ).fetchall()
        return _stored(rows[0]) if rows else None

    def listed(self, wanted: HistoryFilter, limit: int) -> list[StoredTask]:
        """Return the newest records that match `wanted`, newest first."""
        if wanted.name and is_glob(wanted.name):
            numbers = [row[0] for name in self._matching(wanted) for row in self._select("number", wanted, limit, name)]
            chosen = msgspec.json.encode(nlargest(limit, numbers)).decode()
            sql = f"SELECT {_COLUMNS} FROM task_history WHERE number IN (SELECT value FROM json_each(?)) ORDER BY number DESC"
            return [_stored(row) for row in self._execute(sql, (chosen,)).fetchall()]
        return [_stored(row) for row in self._select(_COLUMNS, wanted, limit, wanted.name)]

    def stopped_since(self, since_s: float) -> Iterator[tuple[str, str, TaskRecord]]:
        """Yield region, name and record of the tasks that have stopped since a time."""
        sql = "SELECT region, name, record FROM task_history WHERE stopped_at >= ?"
        for region, name, record in self._execute(sql, (since_s,)):
            yield region, name, msgspec.json.decode(record, type=TaskRecord)

    def latest(self, wanted: HistoryFilter) -> list[StoredTask]:
        """Return the newest record of each matching name, newest first."""
        names = self._matching(wanted) if is_glob(wanted.name) else [wanted.name]
        found = [_stored(row) for name in names for row in self._select(_COLUMNS, wanted, 1, name)]
        return sorted(found, key=lambda each: -each.number)

    def count(self, wanted: HistoryFilter) -> int:
        """Return how many records match `wanted`, at most COUNTED_MAX. The name must not be a glob."""
        return len(self._select("1", wanted, COUNTED_MAX, wanted.name))

    def _matching(self, wanted: HistoryFilter) -> list[str]:
        return [name for name in self.names(wanted.region) if fnmatchcase(name, wanted.name)]

    def names(self, region: str, prefix: str = "", limit: int = NAMES_MAX) -> list[str]:
        """Return the names in a region that begin with a prefix, sorted. Each name of any region needs two index look-ups."""
        found = list[str]()
        in_region = "SELECT 1 FROM task_history WHERE name = ? AND region = ? LIMIT 1"
        (following,) = self._execute("SELECT min(name) FROM task_history WHERE name >= ?", (prefix,)).fetchone()
        while following is not None and following.startswith(prefix) and len(found) < limit:
            if self._execute(in_region, (following, region)).fetchone():
                found.append(following)
            (following,) = self._execute("SELECT min(name) FROM task_history WHERE name > ?", (following,)).fetchone()
        return found

    def _select(self, columns: str, wanted: HistoryFilter, limit: int, name: str) -> list[Row]:
        """Select rows with this name, newest first. An empty name selects rows with any name."""
        parts = list(_conditions(wanted, name))
        where, values = " AND ".join(part for part, *_ in parts), [value for _, *values in parts for value in values]
        order = "+number" if wanted.id else "number"  # the plus lets SQLite use the index of ids, and then sort
        return self._execute(
            f"SELECT {columns} FROM task_history WHERE {where} ORDER BY {order} DESC LIMIT ?", (*values, limit)
        ).fetchall()


def _stored(row: Row) -> StoredTask:
    number, task_id, region, cluster, name, failed, record = row
    return StoredTask(number, task_id, region, cluster, name, bool(failed), msgspec.json.decode(record, type=TaskRecord))


def is_glob(text: str) -> bool:
    return any(character in text for character in "*?[")


def _conditions(wanted: HistoryFilter, name: str) -> Iterator[tuple[Any, ...]]:
    """Yield the conditions of a WHERE clause, each with its values."""
    yield "region = ?", wanted.region
    if wanted.cluster:
        yield "cluster = ?", wanted.cluster
    if name:
        yield "name = ?", name
    if wanted.id:
        if len(wanted.id) < SHORT_ID:
            yield "substr(id, 1, 8) >= ? AND substr(id, 1, 8) < ?", wanted.id, wanted.id + LAST_CHARACTER
        else:
            yield "substr(id, 1, 8) = ?", wanted.id[:SHORT_ID]
            yield "substr(id, 1, ?) = ?", len(wanted.id), wanted.id
    if wanted.array:  # the tag corral:array begins with the id. No index helps, so this reads all rows
        yield "instr(record, ?)", _encode(f"{wanted.array} ")[:-1]
    if wanted.failed:
        yield ("failed = 1",)
    if wanted.since_s:
        yield "stopped_at >= ?", wanted.since_s
    if wanted.before is not None:
        yield "number < ?", wanted.before
