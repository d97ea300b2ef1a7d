"""Log groups, streams and events: the only SQL about them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from corral.database import Database, Migration

Position = tuple[int, int]  # (milliseconds, number): where an event stands in its stream


@dataclass(frozen=True, slots=True)
class Stream:
    id: int
    group: str
    name: str
    created_ms: int
    first_ms: int | None
    last_ms: int | None
    ingested_ms: int | None
    events: int


@dataclass(frozen=True, slots=True)
class Event:
    position: Position
    ingested_ms: int
    message: str


STREAM_COLUMNS = "id, group_name, name, created_ms, first_ms, last_ms, ingested_ms, events"


class LogStore(Database):
    MIGRATIONS: tuple[Migration, ...] = ()

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, files(__package__).joinpath("logs.sql").read_text(), self.MIGRATIONS)

    # Groups

    def add_group(self, region: str, name: str, details: dict[str, Any], now_ms: int) -> bool:
        """False: it is there already."""
        sql = "INSERT OR IGNORE INTO log_group VALUES (?, ?, ?, ?)"
        return self.execute(sql, (region, name, now_ms, json.dumps(details))).rowcount == 1

    def has_group(self, region: str, name: str) -> bool:
        return self.execute("SELECT 1 FROM log_group WHERE region = ? AND name = ?", (region, name)).fetchone() is not None

    def groups(self, region: str, prefix: str, after: str, limit: int) -> list[tuple[str, int, dict[str, Any]]]:
        """(name, created, details), by name."""
        rows = self.execute(
            "SELECT name, created_ms, details FROM log_group WHERE region = ? AND name > ? AND name >= ? AND name < ? "
            "ORDER BY name LIMIT ?",
            (region, after, prefix, prefix + "\U0010ffff", limit),
        )
        return [(name, created_ms, json.loads(details)) for name, created_ms, details in rows]

    def drop_group(self, region: str, name: str) -> list[int]:
        """Remove a group and its streams; the ids of the streams, whose events are still to be purged."""
        ids = self.execute("DELETE FROM log_stream WHERE region = ? AND group_name = ? RETURNING id", (region, name)).fetchall()
        self.execute("DELETE FROM log_group WHERE region = ? AND name = ?", (region, name))
        return [stream_id for (stream_id,) in ids]

    # Streams

    def add_stream(self, region: str, group: str, name: str, now_ms: int) -> bool:
        """False: it is there already."""
        return (
            self.execute(
                "INSERT OR IGNORE INTO log_stream (region, group_name, name, created_ms) VALUES (?, ?, ?, ?)",
                (region, group, name, now_ms),
            ).rowcount
            == 1
        )

    def stream(self, region: str, group: str, name: str) -> Stream | None:
        row = self.execute(
            f"SELECT {STREAM_COLUMNS} FROM log_stream WHERE region = ? AND group_name = ? AND name = ?", (region, group, name)
        ).fetchone()
        return Stream(*row) if row else None

    def stream_by_id(self, stream_id: int) -> Stream | None:
        row = self.execute(f"SELECT {STREAM_COLUMNS} FROM log_stream WHERE id = ?", (stream_id,)).fetchone()
        return Stream(*row) if row else None

    def streams(self, region: str, group: str, prefix: str, *, by_time: bool, descending: bool) -> list[Stream]:
        order = "coalesce(last_ms, 0), name" if by_time else "name"
        if descending:
            order = "coalesce(last_ms, 0) DESC, name DESC" if by_time else "name DESC"
        rows = self.execute(
            f"SELECT {STREAM_COLUMNS} FROM log_stream WHERE region = ? AND group_name = ? AND name >= ? AND name < ? "
            f"ORDER BY {order}",
            (region, group, prefix, prefix + "\U0010ffff"),
        )
        return [Stream(*row) for row in rows]

    def drop_stream(self, stream_id: int) -> None:
        self.execute("DELETE FROM log_stream WHERE id = ?", (stream_id,))

    def purge_events(self, stream_id: int, limit: int) -> int:
        """Remove events of a stream that is gone, some at a time; how many were removed."""
        return self.execute(
            "DELETE FROM log_event WHERE (stream_id, at_ms, number) IN "
            "(SELECT stream_id, at_ms, number FROM log_event WHERE stream_id = ? LIMIT ?)",
            (stream_id, limit),
        ).rowcount

    # Events

    def append(self, stream: Stream, events: Iterable[tuple[int, str]], now_ms: int) -> None:
        rows = [(stream.id, at_ms, stream.events + at, now_ms, text) for at, (at_ms, text) in enumerate(events)]
        if not rows:
            return
        self.executemany("INSERT INTO log_event VALUES (?, ?, ?, ?, ?)", rows)
        times = [row[1] for row in rows]
        self.execute(
            "UPDATE log_stream SET events = ?, ingested_ms = ?, first_ms = ?, last_ms = ? WHERE id = ?",
            (
                stream.events + len(rows),
                now_ms,
                min(times) if stream.first_ms is None else min(stream.first_ms, *times),
                max(times) if stream.last_ms is None else max(stream.last_ms, *times),
                stream.id,
            ),
        )

    # Runs' output

    def open_shipment(self, run_id: str, stream_id: int, now_ms: int) -> None:
        self.execute("INSERT OR IGNORE INTO shipment VALUES (?, ?, 0, ?)", (run_id, stream_id, now_ms))

    def shipment(self, run_id: str) -> tuple[int, int] | None:
        """(stream id, bytes shipped)"""
        row = self.execute("SELECT stream_id, shipped FROM shipment WHERE run_id = ?", (run_id,)).fetchone()
        return (row[0], row[1]) if row else None

    def set_shipped(self, run_id: str, shipped: int, now_ms: int) -> None:
        self.execute("UPDATE shipment SET shipped = ?, touched_ms = ? WHERE run_id = ?", (shipped, now_ms, run_id))

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
) -> list[Event]:
    """Events with `start` <= position < `end`, in order of position; with `descending` the last ones of them.

    Works on any connection: the writer's, or a reader beside it.
    """
    way = "DESC" if descending else "ASC"
    rows = connection.execute(
        "SELECT at_ms, number, ingested_ms, message FROM log_event WHERE stream_id = ? AND (at_ms, number) >= (?, ?) "
        f"AND (at_ms, number) < (?, ?) ORDER BY at_ms {way}, number {way} LIMIT ?",
        (stream_id, *start, *end, limit),
    )
    found: list[Event] = []
    for at_ms, number, ingested_ms, message in rows:
        max_bytes -= len(message) * 4 if not message.isascii() else len(message)
        if max_bytes < 0 and found:
            break
        found.append(Event((at_ms, number), ingested_ms, message))
    return found[::-1] if descending else found
