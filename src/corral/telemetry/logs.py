"""SQL of log groups, streams and events. `log_search.py` searches many streams."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from corral.core.database import Database
from corral.model.durations import DAY_MS

Position = tuple[int, int]  # (milliseconds, number): the position of an event in its stream

EVENT_OVERHEAD_BYTES = 26  # CloudWatch Logs adds this to the size of each message
LAST_MS = 2**62  # a time after all events


class LogGroup(Struct, frozen=True):
    id: int
    name: str
    created_ms: int
    retention_days: int | None
    bytes: int
    details: dict[str, Any]
    owner: str


class LogStream(Struct, frozen=True):
    id: int
    group_id: int
    name: str
    created_ms: int
    first_ms: int | None
    last_ms: int | None
    ingested_ms: int | None
    events: int  # how many events were ever added to the stream; the next event gets this number in its position
    group: str
    retention_days: int | None
    region: str
    owner: str


class LogEvent(Struct, frozen=True):
    position: Position
    ingested_ms: int
    message: str


class MetricFilter(Struct, frozen=True):
    group: str
    name: str
    created_ms: int
    details: dict[str, Any]


FILTERS_CACHED_MAX = 10_000
GROUP_COLUMNS = "id, name, created_ms, retention_days, bytes, details, owner"
STREAMS = (
    "SELECT s.id, s.group_id, s.name, s.created_ms, s.first_ms, s.last_ms, s.ingested_ms, s.events, g.name, g.retention_days, "
    "g.region, s.owner FROM log_group g JOIN log_stream s ON s.group_id = g.id WHERE "
)


class LogStore(Database):
    MIGRATIONS = (
        # 2: owners. What exists belongs to the root user.
        "".join(
            f"ALTER TABLE {table} ADD COLUMN owner TEXT NOT NULL DEFAULT 'root' CHECK (owner != '');\n"
            for table in ("log_group", "log_stream", "shipment")
        ),
    )

    @staticmethod
    @cache
    def schema() -> str:
        return Path(__file__).with_name("logs.sql").read_text()

    def _compose(self) -> None:
        self._filters: dict[int, list[dict[str, Any]]] = {}  # a cache: group id → metric filters

    # Groups

    def add_group(self, region: str, name: str, details: dict[str, Any], now_ms: int, owner: str) -> bool:
        """Add a group. Returns False if the name already exists."""
        sql = "INSERT OR IGNORE INTO log_group (region, name, created_ms, details, owner) VALUES (?, ?, ?, ?, ?)"
        return self.execute(sql, (region, name, now_ms, json.dumps(details), owner)).rowcount == 1

    def group(self, region: str, name: str) -> LogGroup | None:
        row = self.execute(f"SELECT {GROUP_COLUMNS} FROM log_group WHERE region = ? AND name = ?", (region, name)).fetchone()
        return _group(row) if row else None

    def group_by_id(self, group_id: int) -> LogGroup | None:
        row = self.execute(f"SELECT {GROUP_COLUMNS} FROM log_group WHERE id = ? AND name IS NOT NULL", (group_id,)).fetchone()
        return _group(row) if row else None

    def groups(
        self,
        region: str,
        *,
        after: str,
        limit: int,
        prefix: str = "",
        part: str = "",
        classes: Sequence[str] = (),
        names: Sequence[str] | None = None,
    ) -> list[LogGroup]:
        """Return groups with names greater than `after`, sorted by name. A name must begin with `prefix` and contain `part`.

        If `classes` is empty, groups of all classes are listed. If `names` is None, groups with any name are listed.
        """
        sql = f"SELECT {GROUP_COLUMNS} FROM log_group WHERE region = ? AND name > ? AND name >= ? AND name < ?"
        values: list[Any] = [region, after, prefix, _beyond(prefix)]
        if part:
            sql, values = sql + " AND instr(name, ?) > 0", [*values, part]
        if classes:
            sql += f" AND coalesce(json_extract(details, '$.logGroupClass'), 'STANDARD') IN ({_marks(classes)})"
            values += classes
        if names is not None:
            sql, values = sql + f" AND name IN ({_marks(names)})", [*values, *names]
        return [_group(row) for row in self.execute(sql + " ORDER BY name LIMIT ?", (*values, limit))]

    def set_details(self, group_id: int, details: dict[str, Any]) -> None:
        self.execute("UPDATE log_group SET details = ? WHERE id = ?", (json.dumps(details), group_id))

    def set_retention(self, group_id: int, days: int | None) -> None:
        self.execute("UPDATE log_group SET retention_days = ? WHERE id = ?", (days, group_id))

    def drop_group(self, group_id: int) -> None:
        """Hide the group from all requests. `purge` deletes its streams and events later."""
        self._clear_filters()
        self.execute("DELETE FROM metric_filter WHERE group_id = ?", (group_id,))
        self.execute("UPDATE log_group SET name = NULL WHERE id = ?", (group_id,))

    # Streams

    def add_stream(self, group_id: int, name: str, now_ms: int, owner: str) -> int | None:
        """Add a stream, and return its id. Return None if the name already exists."""
        sql = "INSERT OR IGNORE INTO log_stream (group_id, name, created_ms, owner) VALUES (?, ?, ?, ?)"
        added = self.execute(sql, (group_id, name, now_ms, owner))
        return added.lastrowid if added.rowcount == 1 else None

    def stream_id(self, group_id: int, name: str, now_ms: int, owner: str) -> int:
        """Return the id of a stream. Create the stream if it does not exist."""
        sql = "SELECT id FROM log_stream WHERE group_id = ? AND name = ?"
        return self.add_stream(group_id, name, now_ms, owner) or int(self.execute(sql, (group_id, name)).fetchone()[0])

    def stream_of_task(self, group_id: int, name: str, now_ms: int, owner: str) -> int:
        """Return the id of the stream for the output of a task. The stream belongs to the owner of the task.

        A stream that another owner has created in advance changes its owner, so that this owner cannot read the output.
        """
        stream_id = self.stream_id(group_id, name, now_ms, owner)
        self.execute("UPDATE log_stream SET owner = ? WHERE id = ? AND owner != ?", (owner, stream_id, owner))
        return stream_id

    def stream(self, region: str, group: str, name: str) -> LogStream | None:
        row = self.execute(f"{STREAMS} g.region = ? AND g.name = ? AND s.name = ?", (region, group, name)).fetchone()
        return LogStream(*row) if row else None

    def owner_of_stream(self, region: str, group: str, name: str) -> str | None:
        sql = "SELECT s.owner FROM log_group g JOIN log_stream s ON s.group_id = g.id "
        row = self.execute(f"{sql} WHERE g.region = ? AND g.name = ? AND s.name = ?", (region, group, name)).fetchone()
        return str(row[0]) if row else None

    def stream_by_id(self, stream_id: int) -> LogStream | None:
        row = self.execute(f"{STREAMS} s.id = ? AND g.name IS NOT NULL", (stream_id,)).fetchone()
        return LogStream(*row) if row else None

    def streams_by_name(self, group_id: int, prefix: str, after: str | None, limit: int, *, descending: bool) -> list[LogStream]:
        sign, order = ("<", "DESC") if descending else (">", "ASC")
        here = "" if after is None else f" AND s.name {sign} ?"
        rows = self.execute(
            f"{STREAMS} s.group_id = ? AND s.name >= ? AND s.name < ?{here} ORDER BY s.name {order} LIMIT ?",
            (group_id, prefix, _beyond(prefix), *(() if after is None else (after,)), limit),
        )
        return [LogStream(*row) for row in rows]

    def streams_by_time(self, group_id: int, after: tuple[int, str] | None, limit: int, *, descending: bool) -> list[LogStream]:
        """Return streams sorted by the time of their last event. A stream without events sorts like one with an event at time 0."""
        sign, order = ("<", "DESC") if descending else (">", "ASC")
        here = "" if after is None else f" AND (coalesce(s.last_ms, 0), s.name) {sign} (?, ?)"
        rows = self.execute(
            f"{STREAMS} s.group_id = ?{here} ORDER BY coalesce(s.last_ms, 0) {order}, s.name {order} LIMIT ?",
            (group_id, *(after or ()), limit),
        )
        return [LogStream(*row) for row in rows]

    def drop_stream(self, stream: LogStream) -> None:
        """Move the stream to a new group that is marked as deleted. `purge` deletes the stream later."""
        sql = "INSERT INTO log_group (region, name, created_ms, details) VALUES ('', NULL, 0, '{}') RETURNING id"
        (deleted_group_id,) = self.execute(sql).fetchone()
        sql = "UPDATE log_group SET bytes = bytes - (SELECT bytes FROM log_stream WHERE id = ?) WHERE id = ?"
        self.execute(sql, (stream.id, stream.group_id))
        self.execute("UPDATE log_stream SET group_id = ? WHERE id = ?", (deleted_group_id, stream.id))

    def set_entity(self, stream_id: int, entity: dict[str, Any]) -> None:
        self.execute("UPDATE log_stream SET entity = ? WHERE id = ?", (json.dumps(entity), stream_id))

    # Events

    def append(self, stream: LogStream, events: Iterable[tuple[int, str]], now_ms: int) -> None:
        rows = [(stream.id, at_ms, stream.events + at, now_ms, text) for at, (at_ms, text) in enumerate(events)]
        if not rows:
            return
        self.executemany("INSERT INTO log_event VALUES (?, ?, ?, ?, ?)", rows)
        times = [row[1] for row in rows]
        first_ms, last_ms = min(times), max(times)
        size = sum(len(row[4]) if row[4].isascii() else len(row[4].encode()) for row in rows) + EVENT_OVERHEAD_BYTES * len(rows)
        counted = (stream.events + len(rows), len(rows), size, now_ms, max(last_ms, stream.last_ms or 0))
        if stream.first_ms is None or first_ms < stream.first_ms:
            self.execute(
                "UPDATE log_stream SET events = ?, stored = stored + ?, bytes = bytes + ?, ingested_ms = ?, last_ms = ?, "
                "first_ms = ? WHERE id = ?",
                (*counted, first_ms, stream.id),
            )
        else:  # do not write first_ms, because SQLite would also write its index
            self.execute(
                "UPDATE log_stream SET events = ?, stored = stored + ?, bytes = bytes + ?, ingested_ms = ?, last_ms = ? "
                "WHERE id = ?",
                (*counted, stream.id),
            )
        self.execute("UPDATE log_group SET bytes = bytes + ? WHERE id = ?", (size, stream.group_id))

    def purge(self, limit: int, max_bytes: int) -> bool:
        """Delete events of deleted groups: at most `limit` rows, with about `max_bytes` together. A stream is deleted after its
        events, and a group is deleted after its streams.

        Return False if nothing is left to delete.
        """
        while limit > 0 and max_bytes > 0:
            row = self.execute(
                "SELECT g.id, s.id, s.stored, s.bytes FROM log_group g LEFT JOIN log_stream s ON s.group_id = g.id "
                "WHERE g.name IS NULL LIMIT 1"
            ).fetchone()
            if row is None:
                return False
            group_id, stream_id, stored, size = row
            limit -= 1
            if stream_id is None:
                self.execute("DELETE FROM log_group WHERE id = ?", (group_id,))
                continue
            rows = min(limit, _rows_of(max_bytes, stored, size))
            removed, removed_bytes = self._cut(stream_id, LAST_MS, rows)
            if removed < rows:
                self.execute("DELETE FROM log_stream WHERE id = ?", (stream_id,))
            limit, max_bytes = limit - removed, max_bytes - removed_bytes
        return True

    def has_retention(self) -> bool:
        return self.execute("SELECT 1 FROM log_group WHERE retention_days IS NOT NULL AND name IS NOT NULL").fetchone() is not None

    def next_expiry(self) -> tuple[int, int] | None:
        """Return the group id and the expiry time (ms) of the event that expires first. Return None if no event will expire."""
        row: tuple[int, int] | None = self.execute(
            f"SELECT id, (SELECT min(first_ms) FROM log_stream WHERE group_id = log_group.id) + retention_days * {DAY_MS} AS at "
            "FROM log_group WHERE retention_days IS NOT NULL AND name IS NOT NULL AND at IS NOT NULL ORDER BY at LIMIT 1"
        ).fetchone()
        return row

    def expire(self, group_id: int, now_ms: int, limit: int, max_bytes: int) -> None:
        """Delete expired events from the stream of the group that has the oldest event: at most `limit`, with about `max_bytes`
        together.
        """
        row = self.execute(
            f"SELECT s.id, s.stored, s.bytes, ? - g.retention_days * {DAY_MS} "
            "FROM log_group g JOIN log_stream s ON s.group_id = g.id "
            "WHERE g.id = ? AND s.first_ms IS NOT NULL ORDER BY s.first_ms LIMIT 1",
            (now_ms, group_id),
        ).fetchone()
        if row is None:
            return
        stream_id, stored, size, before_ms = row
        removed, removed_bytes = self._cut(stream_id, before_ms, min(limit, _rows_of(max_bytes, stored, size)))
        self.execute(
            "UPDATE log_stream SET stored = stored - ?, bytes = bytes - ?, "
            "first_ms = (SELECT min(at_ms) FROM log_event WHERE stream_id = log_stream.id) WHERE id = ?",
            (removed, removed_bytes, stream_id),
        )
        self.execute("UPDATE log_group SET bytes = bytes - ? WHERE id = ?", (removed_bytes, group_id))

    def _cut(self, stream_id: int, before_ms: int, limit: int) -> tuple[int, int]:
        """Delete the oldest events of a stream: at most `limit`, and only events before `before_ms`.

        Return (number of deleted events, number of deleted bytes).
        """
        beyond = self.execute(
            "SELECT at_ms, number FROM log_event WHERE stream_id = ? AND at_ms < ? ORDER BY at_ms, number LIMIT 1 OFFSET ?",
            (stream_id, before_ms, limit),
        ).fetchone()
        sizes = self.execute(
            "DELETE FROM log_event WHERE stream_id = ? AND (at_ms, number) < (?, ?) RETURNING length(CAST(message AS BLOB))",
            (stream_id, *(beyond or (before_ms, 0))),
        ).fetchall()
        return len(sizes), sum(size for (size,) in sizes) + EVENT_OVERHEAD_BYTES * len(sizes)

    # Metric filters

    def put_metric_filter(self, group_id: int, name: str, details: dict[str, Any], now_ms: int) -> None:
        self._clear_filters()
        self.execute(
            "INSERT INTO metric_filter VALUES (?, ?, ?, ?) ON CONFLICT (group_id, name) DO UPDATE SET details = excluded.details",
            (group_id, name, now_ms, json.dumps(details)),
        )

    def metric_filters(self, region: str, group: str | None = None, prefix: str = "") -> list[MetricFilter]:
        """Return the metric filters of one group, or of all groups in a region, sorted by name."""
        rows = self.execute(
            "SELECT g.name, f.name, f.created_ms, f.details FROM log_group g JOIN metric_filter f ON f.group_id = g.id "
            "WHERE g.region = ? AND g.name = coalesce(?, g.name) AND f.name >= ? AND f.name < ? ORDER BY f.name, g.name",
            (region, group, prefix, _beyond(prefix)),
        )
        return [MetricFilter(group, name, created_ms, json.loads(details)) for group, name, created_ms, details in rows]

    def filters_of(self, group_id: int) -> list[dict[str, Any]]:
        """Return the details of a group's metric filters. They are cached, because each call that stores events needs them."""
        found = self._filters.get(group_id)
        if found is None:
            rows = self.execute("SELECT details FROM metric_filter WHERE group_id = ? ORDER BY name", (group_id,))
            if len(self._filters) >= FILTERS_CACHED_MAX:
                self._filters.clear()
            found = self._filters[group_id] = [json.loads(details) for (details,) in rows]
        return found

    def _clear_filters(self) -> None:
        """Clear the cache, because filters change. Clear it again on a rollback: it may then contain uncommitted filters."""
        self._filters.clear()
        self.undo_log.on_rollback(self._filters.clear)

    def metric_filter_counts(self, group_ids: Sequence[int]) -> dict[int, int]:
        sql = f"SELECT group_id, count(*) FROM metric_filter WHERE group_id IN ({_marks(group_ids)}) GROUP BY group_id"
        return dict(self.execute(sql, tuple(group_ids)).fetchall())

    def drop_metric_filter(self, group_id: int, name: str) -> bool:
        """Delete a filter. Returns False if the group does not have it."""
        self._clear_filters()
        return self.execute("DELETE FROM metric_filter WHERE group_id = ? AND name = ?", (group_id, name)).rowcount == 1

    # Shipments. A shipment is a row that says how many bytes of a run's output have been stored, and in which stream. While the row
    # of a run that has ended says that the run has printed more, the log of the run is not complete.

    def open_shipment(self, run_id: str, group_id: int, stream_id: int | None, now_ms: int, owner: str) -> None:
        """Add a shipment before a run starts. `stream_id` is None if the stream's name is not known yet.

        `name_shipment` sets the stream when the container has started. `owner` is the owner of the task.
        """
        self.execute(
            "INSERT INTO shipment VALUES (?, ?, ?, 0, 0, ?, ?) "
            "ON CONFLICT (run_id) DO UPDATE SET stream_id = coalesce(stream_id, excluded.stream_id)",
            (run_id, group_id, stream_id, now_ms, owner),
        )

    def name_shipment(self, run_id: str, stream: str, now_ms: int) -> None:
        """Create the stream of a shipment that has none. If the log group was deleted, delete the shipment."""
        row = self.execute("SELECT group_id, owner FROM shipment WHERE run_id = ? AND stream_id IS NULL", (run_id,)).fetchone()
        if row is None:
            return
        if self.group_by_id(row[0]) is None:
            self.execute("DELETE FROM shipment WHERE run_id = ?", (run_id,))
        else:
            stream_id = self.stream_of_task(row[0], stream, now_ms, row[1])
            self.execute("UPDATE shipment SET stream_id = ?, touched_ms = ? WHERE run_id = ?", (stream_id, now_ms, run_id))

    def shipment(self, run_id: str) -> tuple[int | None, int] | None:
        """Return (stream id, bytes stored) of a run, or None if it has no shipment.

        The stream id is None until `name_shipment` has created the stream.
        """
        row = self.execute("SELECT stream_id, shipped FROM shipment WHERE run_id = ?", (run_id,)).fetchone()
        return (row[0], row[1]) if row else None

    def set_shipped(self, run_id: str, shipped: int, size: int, now_ms: int) -> None:
        sql = "UPDATE shipment SET shipped = ?, size = ?, touched_ms = ? WHERE run_id = ?"
        self.execute(sql, (shipped, max(shipped, size), now_ms, run_id))

    def add_dropped(self, stream_id: int, dropped: int) -> None:
        self.execute("UPDATE log_stream SET dropped = dropped + ? WHERE id = ?", (dropped, stream_id))

    def missing_bytes(self, region: str, group: str, name: str) -> tuple[int, int] | None:
        """Return how many bytes of a stream are not stored yet, and how many were dropped. None: the stream does not exist."""
        row = self.execute(
            "SELECT (SELECT coalesce(sum(size - shipped), 0) FROM shipment WHERE stream_id = s.id AND size > shipped), s.dropped "
            "FROM log_group g JOIN log_stream s ON s.group_id = g.id WHERE g.region = ? AND g.name = ? AND s.name = ?",
            (region, group, name),
        ).fetchone()
        return (row[0], row[1]) if row else None

    def drop_shipments(self, before_ms: int, limit: int) -> int:
        return self.execute(
            "DELETE FROM shipment WHERE run_id IN (SELECT run_id FROM shipment WHERE touched_ms < ? LIMIT ?)", (before_ms, limit)
        ).rowcount


def read_events(
    connection: sqlite3.Connection,
    stream_id: int,
    *,
    start: Position,
    end: Position,
    limit: int,
    max_bytes: int,
    descending: bool,
) -> list[LogEvent]:
    """Return the first events with `start` <= position < `end`, or with `descending` the last ones. They are sorted by position.

    `connection` is the writer's or a reader's connection.
    """
    order = "DESC" if descending else "ASC"
    rows = connection.execute(
        "SELECT at_ms, number, ingested_ms, message FROM log_event WHERE stream_id = ? AND (at_ms, number) >= (?, ?) "
        f"AND (at_ms, number) < (?, ?) ORDER BY at_ms {order}, number {order} LIMIT ?",
        (stream_id, *start, *end, limit),
    )
    found: list[LogEvent] = []
    for at_ms, number, ingested_ms, message in rows:
        max_bytes -= len(message) if message.isascii() else len(message.encode())
        if max_bytes < 0 and found:
            break
        found.append(LogEvent((at_ms, number), ingested_ms, message))
    return found[::-1] if descending else found


def _group(row: tuple[Any, ...]) -> LogGroup:
    group_id, name, created_ms, retention_days, size, details, owner = row
    return LogGroup(group_id, name, created_ms, retention_days, size, json.loads(details), owner)


def _rows_of(max_bytes: int, stored: int, size: int) -> int:
    """Return about how many events of a stream have `max_bytes` together, if the stream has `stored` events of `size` bytes."""
    return max(1, max_bytes * max(stored, 1) // max(size, 1))


def _beyond(prefix: str) -> str:
    """Return a text that is greater than every text with this prefix."""
    return prefix + "\U0010ffff"


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
