"""Events of many streams in the order of time: a bounded amount of looking at a time, whatever there is to look through.

Each stream is read in chunks, and the database itself drops what cannot match, without our interpreter. A stream knows how far
it has been read, its horizon; what lies before the nearest horizon is in order and may be given out. The stream with the nearest
horizon is read next. So nothing is read that is not needed, except at most one chunk per stream.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from corral.model.log_search import EVERY_MESSAGE, AllOf, AnyOf, Contains, Hint, Lacks
from corral.telemetry.logs import LAST_MS, Position

Place = tuple[int, int, int]  # (milliseconds, stream id, number): where an event stands among those of all streams
FIRST: Place = (0, 0, 0)
LAST: Place = (LAST_MS, 0, 0)
Key = tuple[int, int, int]  # a place in the order of the search: turned around when that goes backwards
LOWEST: Key = (-(2**63), 0, 0)
NEVER: Key = (2**63, 0, 0)

ROW_BYTES = 100  # a row costs as much as so many bytes beside its message,
SEEK_BYTES = 2_000  # a chunk as much as these,
MATCH_BYTES = 500  # and a message that we have to look at ourselves


@dataclass(frozen=True, slots=True)
class Effort:
    """What one search may look at, and how."""

    budget_bytes: int = 24 * 1024 * 1024  # tens of milliseconds of work
    chunk_first_rows: int = 25_000  # of all streams together, when each is read for the first time
    chunk_min_rows: int = 16
    chunk_max_rows: int = 16_384
    chunk_max_bytes: int = 4 * 1024 * 1024
    held_max_bytes: int = 16 * 1024 * 1024  # messages kept while earlier ones are looked for; further ones are read again
    listed_at_once: int = 1_000  # streams


@dataclass(frozen=True, slots=True)
class Scope:
    """Which streams of a group: those named, or those with a prefix, which may be empty."""

    group_id: int
    names: tuple[str, ...] | None = None
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    place: Place
    stream: str
    ingested_ms: int
    message: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Events with `start` <= place < `end` that fit."""

    hint: Hint = EVERY_MESSAGE
    matches: Callable[[str], bool] | None = None  # None: the hint says it all
    start: Place = FIRST
    end: Place = LAST
    backwards: bool = False
    limit: int = 10_000
    max_bytes: int = 1024 * 1024

    @property
    def everything(self) -> bool:
        return self.matches is None and self.hint == EVERY_MESSAGE


@dataclass(slots=True)
class _Scan:
    """A stream that is being read: between these positions nothing has been looked at yet."""

    stream_id: int
    name: str
    stored: int
    event_bytes: int  # on average
    start: Position
    end: Position
    rows: int = 0  # of the last chunk


class Search:
    """One look through a group, on any connection."""

    def __init__(self, connection: sqlite3.Connection, scope: Scope, wanted: Wanted, effort: Effort | None = None) -> None:
        self._connection = connection
        self._scope = scope
        self._wanted = wanted
        self._effort = effort or Effort()
        self._hint, self._hint_values = _as_sql(wanted.hint)
        self._scans: list[tuple[Key, _Scan]] = []  # a heap: the nearest horizon first
        self._listed_to = LOWEST  # horizons of streams that are not listed yet lie beyond this
        self._last_listed: tuple[int, int] | None = None
        self._hits: list[tuple[Key, int, str, str | None]] = []  # a heap: (place, ingested, stream, message)
        self._held_bytes = 0
        self._spent_bytes = 0

    def page(self) -> tuple[list[Found], Place | None]:
        """What was found, and where the next page starts (ends, when backwards); None after the last one."""
        found, go_on = self._page()
        sign = -1 if self._wanted.backwards else 1
        found.sort(key=lambda event: (sign * event.place[0], sign * event.ingested_ms))  # in a millisecond, by arrival
        return found, go_on

    def _page(self) -> tuple[list[Found], Place | None]:
        wanted, page, left_bytes = self._wanted, list[Found](), self._wanted.max_bytes
        origin = self._horizon_key(wanted.end if wanted.backwards else wanted.start)
        while True:
            while self._listed_to != NEVER and (not self._scans or self._scans[0][0] >= self._listed_to):
                self._list_more()
            horizon = self._scans[0][0] if self._scans else NEVER
            while self._hits and self._hits[0][0] < horizon:
                event = self._taken(heappop(self._hits))
                left_bytes -= _size(event.message)
                if left_bytes < 0 and page:
                    return page, event.place if not wanted.backwards else _next(event.place)
                page.append(event)
                if len(page) == wanted.limit:
                    return page, event.place if wanted.backwards else _next(event.place)
            if not self._scans:
                return page, None
            if self._spent_bytes >= self._effort.budget_bytes and horizon > origin:
                return page, self._horizon(horizon)
            _, scan = heappop(self._scans)
            if self._read(scan):
                self._push(scan)

    # Streams, in the order in which their horizons come

    def _list_more(self) -> None:
        wanted, scope = self._wanted, self._scope
        values: list[Any] = [scope.group_id, wanted.start[0], wanted.end[0]]
        sql = (
            "SELECT id, name, first_ms, last_ms, stored, bytes FROM log_stream "
            "WHERE group_id = ? AND last_ms >= ? AND first_ms <= ?"
        )
        if scope.names is not None:
            sql, values = sql + f" AND name IN ({', '.join('?' * len(scope.names))})", [*values, *scope.names]
        elif scope.prefix:
            sql, values = sql + " AND name >= ? AND name < ?", [*values, scope.prefix, scope.prefix + "\U0010ffff"]
        edge, sign, way = ("last_ms", "<", "DESC") if wanted.backwards else ("first_ms", ">", "ASC")
        if self._last_listed is not None:
            sql, values = sql + f" AND ({edge}, id) {sign} (?, ?)", [*values, *self._last_listed]
        rows = self._connection.execute(
            f"{sql} ORDER BY {edge} {way}, id {way} LIMIT ?", (*values, self._effort.listed_at_once)
        ).fetchall()
        self._spent_bytes += ROW_BYTES * len(rows)
        for stream_id, name, first_ms, last_ms, stored, size in rows:
            start = max((first_ms, 0), _in_stream(wanted.start, stream_id))
            end = min((last_ms + 1, 0), _in_stream(wanted.end, stream_id))
            if start < end:
                self._push(_Scan(stream_id, name, stored, size // max(stored, 1), start, end))
        if len(rows) < self._effort.listed_at_once:
            self._listed_to = NEVER
            return
        stream_id, _, first_ms, last_ms, *_ = rows[-1]
        self._last_listed = (last_ms if wanted.backwards else first_ms, stream_id)
        self._listed_to = (-(last_ms + 1), -stream_id, 0) if wanted.backwards else (first_ms, stream_id, 0)

    def _push(self, scan: _Scan) -> None:
        at_ms, number = scan.end if self._wanted.backwards else scan.start
        heappush(self._scans, (self._horizon_key((at_ms, scan.stream_id, number)), scan))

    # Events of one stream

    def _read(self, scan: _Scan) -> bool:
        """Look at the next chunk; False when there is none after it."""
        wanted, backwards = self._wanted, self._wanted.backwards
        scan.rows = self._chunk_rows(scan)
        self._spent_bytes += SEEK_BYTES + min(scan.rows, scan.stored) * (ROW_BYTES + scan.event_bytes)
        edge = self._chunk_edge(scan)
        start, end = (edge or scan.start, scan.end) if backwards else (scan.start, edge or scan.end)
        way = "DESC" if backwards else "ASC"
        rows = self._connection.execute(
            "SELECT at_ms, number, ingested_ms, message FROM log_event WHERE stream_id = ? AND (at_ms, number) >= (?, ?) "
            f"AND (at_ms, number) < (?, ?){self._hint} ORDER BY at_ms {way}, number {way}",
            (scan.stream_id, *start, *end, *self._hint_values),
        )
        hits = hit_bytes = 0
        for at_ms, number, ingested_ms, message in rows:
            if wanted.matches is not None:
                self._spent_bytes += MATCH_BYTES
                if not wanted.matches(message):
                    continue
            size = _size(message)
            hits, hit_bytes = hits + 1, hit_bytes + size
            hold = self._held_bytes + size <= self._effort.held_max_bytes
            self._held_bytes += size if hold else 0
            key = self._key((at_ms, scan.stream_id, number))
            heappush(self._hits, (key, ingested_ms, scan.name, message if hold else None))
            if hits >= wanted.limit or hit_bytes > wanted.max_bytes:  # a page is full: the rest of the chunk can wait
                edge = (at_ms, number) if backwards else (at_ms, number + 1)
                break
        rows.close()
        if edge is None:
            return False
        scan.start, scan.end = (scan.start, edge) if backwards else (edge, scan.end)
        return scan.start < scan.end

    def _chunk_rows(self, scan: _Scan) -> int:
        """Few rows where many streams are read side by side; more the longer a stream is read."""
        first = max(self._effort.chunk_min_rows, self._effort.chunk_first_rows // (len(self._scans) + 1))
        rows = min(scan.rows * 2 or first, self._effort.chunk_max_rows, self._effort.chunk_max_bytes // max(scan.event_bytes, 1))
        return max(1, min(rows, self._wanted.limit) if self._wanted.everything else rows)

    def _chunk_edge(self, scan: _Scan) -> Position | None:
        """Where the chunk ends, and the next one goes on; None when it is the last."""
        way, offset = ("DESC", scan.rows - 1) if self._wanted.backwards else ("ASC", scan.rows)
        row: Position | None = self._connection.execute(
            "SELECT at_ms, number FROM log_event WHERE stream_id = ? AND (at_ms, number) >= (?, ?) AND (at_ms, number) < (?, ?) "
            f"ORDER BY at_ms {way}, number {way} LIMIT 1 OFFSET ?",
            (scan.stream_id, *scan.start, *scan.end, offset),
        ).fetchone()
        return row

    def _taken(self, hit: tuple[Key, int, str, str | None]) -> Found:
        (at_ms, stream_id, number), ingested_ms, stream, message = hit
        place = (-at_ms, -stream_id, -number) if self._wanted.backwards else (at_ms, stream_id, number)
        if message is None:
            (message,) = self._connection.execute(
                "SELECT message FROM log_event WHERE stream_id = ? AND at_ms = ? AND number = ?", (place[1], place[0], place[2])
            ).fetchone()
        else:
            self._held_bytes -= _size(message)
        return Found(place, stream, ingested_ms, message)

    # Places as keys: what comes first in the search is the smallest.

    def _key(self, place: Place) -> Key:
        return (-place[0], -place[1], -place[2]) if self._wanted.backwards else place

    def _horizon_key(self, place: Place) -> Key:
        """Not greater than the key of any event not looked at: at `place` or after it, or before it when backwards."""
        return (-place[0], -place[1], 1 - place[2]) if self._wanted.backwards else place

    def _horizon(self, key: Key) -> Place:
        return (-key[0], -key[1], 1 - key[2]) if self._wanted.backwards else key


def _in_stream(place: Place, stream_id: int) -> Position:
    """The first position of a stream that is not before `place`."""
    at_ms, of_stream_id, number = place
    return (at_ms, number) if stream_id == of_stream_id else (at_ms + (stream_id < of_stream_id), 0)


def _next(place: Place) -> Place:
    return (place[0], place[1], place[2] + 1)


def _size(message: str) -> int:
    return len(message) if message.isascii() else len(message.encode())


def _as_sql(hint: Hint) -> tuple[str, tuple[str, ...]]:
    if hint == EVERY_MESSAGE:
        return "", ()
    values: list[str] = []

    def said(hint: Hint) -> str:
        match hint:
            case Contains(text):
                values.append(text)
                return "instr(message, ?) > 0"
            case Lacks(text):
                values.append(text)
                return "instr(message, ?) = 0"
            case AllOf(parts):
                return f"({' AND '.join(map(said, parts))})"
            case AnyOf(parts):
                return f"({' OR '.join(map(said, parts))})"

    return f" AND {said(hint)}", tuple(values)
