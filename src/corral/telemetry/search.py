"""Events of many streams in the order of time: a bounded amount of looking at a time, whatever there is to look through.

Each stream is read in chunks, and the database itself drops what cannot match, without our interpreter. A stream knows how far
it has been read, its horizon; what lies before the nearest horizon is in order and may be given out. The stream with the nearest
horizon is read next. So nothing is read that is not needed, except at most one chunk per stream.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
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
MATCH_BYTES = 1_500  # and a message that we have to look at ourselves
CHECK_AGAIN = 1.25  # a page that is not full is looked at again when there is so much more


@dataclass(frozen=True, slots=True)
class Effort:
    """What one search may look at, and how."""

    budget_bytes: int = 12 * 1024 * 1024  # tens of milliseconds of work
    first_share: float = 0.8  # of the budget, for reading each stream for the first time
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
    events_per_ms: float  # also on average
    start: Position
    end: Position
    rows: int = 0  # of the last chunk


_Hit = tuple[Key, int, int, str, str | None]  # place, ingested, bytes, stream, message


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
        self._hits: list[_Hit] = []  # sorted when a page may be full
        self._hit_bytes = 0
        self._held_bytes = 0
        self._spent_bytes = 0
        self._window_ms = 0.0  # what a page may cover, if streams are as even as their averages
        self._read_last: _Scan | None = None

    def page(self) -> tuple[list[Found], Place | None]:
        """What was found, and where the next page starts (ends, when backwards); None after the last one."""
        wanted = self._wanted
        origin = self._horizon_key(wanted.end if wanted.backwards else wanted.start)
        enough, enough_bytes = wanted.limit, wanted.max_bytes
        while True:
            while self._listed_to != NEVER and (not self._scans or self._scans[0][0] >= self._listed_to):
                self._list_more()
            horizon = self._scans[0][0] if self._scans else NEVER
            spent = horizon == NEVER or (self._spent_bytes >= self._effort.budget_bytes and self._has_moved(origin))
            if spent or len(self._hits) >= enough or self._hit_bytes > enough_bytes:
                self._hits.sort()
                ready = self._hits[: bisect_left(self._hits, (horizon,))]
                if spent or len(ready) >= wanted.limit or sum(hit[2] for hit in ready) > wanted.max_bytes:
                    return self._cut(ready, horizon)
                enough, enough_bytes = int(len(self._hits) * CHECK_AGAIN) + 1, int(self._hit_bytes * CHECK_AGAIN) + 1
            _, scan = heappop(self._scans)
            if self._read(scan):
                self._push(scan)

    def _has_moved(self, origin: Key) -> bool:
        """Every stream that was there at the start has been read: a next page will not do the same again."""
        horizon, scan = self._scans[0]
        return horizon > origin and (scan.rows > 0 or abs(horizon[0] - origin[0]) > 1)

    def _cut(self, ready: list[_Hit], horizon: Key) -> tuple[list[Found], Place | None]:
        """The page, from what lies before the horizon."""
        wanted, left_bytes, taken = self._wanted, self._wanted.max_bytes, 0
        for hit in ready[: wanted.limit]:
            left_bytes -= hit[2]
            if left_bytes < 0 and taken:
                break
            taken += 1
        page = [self._found(hit) for hit in ready[:taken]]
        if taken < len(ready):  # the next page starts after the last event, and ends with it when backwards
            at_ms, stream_id, number = page[-1].place
            go_on: Place | None = (at_ms, stream_id, number) if wanted.backwards else (at_ms, stream_id, number + 1)
        else:
            go_on = None if horizon == NEVER else self._horizon(horizon)
        sign = -1 if wanted.backwards else 1
        page.sort(key=lambda event: (sign * event.place[0], sign * event.ingested_ms))  # within a millisecond by arrival
        return page, go_on

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
                event_bytes, events_per_ms = size // max(stored, 1), stored / (last_ms - first_ms + 1)
                self._push(_Scan(stream_id, name, stored, event_bytes, events_per_ms, start, end))
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
        wanted, backwards, stream_id = self._wanted, self._wanted.backwards, scan.stream_id
        matches, everything = wanted.matches, wanted.everything
        budget_bytes, held_max_bytes = self._effort.budget_bytes, self._effort.held_max_bytes
        scan.rows = self._chunk_rows(scan)
        self._spent_bytes += SEEK_BYTES + min(scan.rows, scan.stored) * (ROW_BYTES + scan.event_bytes)
        edge = None if everything else self._chunk_edge(scan)
        start, end = (edge or scan.start, scan.end) if backwards else (scan.start, edge or scan.end)
        way = "DESC" if backwards else "ASC"
        rows = self._connection.execute(
            "SELECT at_ms, number, ingested_ms, message FROM log_event WHERE stream_id = ? AND (at_ms, number) >= (?, ?) "
            f"AND (at_ms, number) < (?, ?){self._hint} ORDER BY at_ms {way}, number {way} LIMIT ?",
            (stream_id, *start, *end, *self._hint_values, scan.rows),
        )
        hits, hit_bytes = 0, 0
        for at_ms, number, ingested_ms, message in rows:
            if matches is not None:
                self._spent_bytes += MATCH_BYTES
                if not matches(message):
                    if self._spent_bytes < budget_bytes:
                        continue
                    edge = (at_ms, number) if backwards else (at_ms, number + 1)
                    break
            size = len(message) if message.isascii() else len(message.encode())
            hold = self._held_bytes + size <= held_max_bytes
            key = (-at_ms, -stream_id, -number) if backwards else (at_ms, stream_id, number)
            self._hits.append((key, ingested_ms, size, scan.name, message if hold else None))
            self._held_bytes += size * hold
            hits, hit_bytes = hits + 1, hit_bytes + size
            if hits >= wanted.limit or hit_bytes > wanted.max_bytes or (everything and hits == scan.rows):
                edge = (at_ms, number) if backwards else (at_ms, number + 1)  # a page is full: the rest can wait
                break
        rows.close()
        self._hit_bytes += hit_bytes
        if edge is None:
            return False
        scan.start, scan.end = (scan.start, edge) if backwards else (edge, scan.end)
        return scan.start < scan.end

    def _chunk_rows(self, scan: _Scan) -> int:
        """So many that the streams come about equally far; twice as many each time for one that lags behind."""
        effort = self._effort
        self._window_ms = self._window_ms or self._page_ms(scan)
        if scan is self._read_last:
            rows = scan.rows * 2
        else:
            rows = int(scan.events_per_ms * self._window_ms) // (4 if scan.rows else 1)
        self._read_last = scan
        return min(
            max(rows, effort.chunk_min_rows), effort.chunk_max_rows, max(1, effort.chunk_max_bytes // (scan.event_bytes + 1))
        )

    def _page_ms(self, first: _Scan) -> float:
        """How long a time a page may cover, judged by the streams that are read side by side at first."""
        edge_ms = first.end[0] if self._wanted.backwards else first.start[0]
        beside = [scan for key, scan in self._scans if abs(abs(key[0]) - edge_ms) <= 1]
        together = [first, *beside]
        if self._wanted.everything:
            page_events = min(
                self._wanted.limit, self._wanted.max_bytes * len(together) / sum(scan.event_bytes + 1 for scan in together)
            )
            return page_events / sum(scan.events_per_ms for scan in together)
        each = ROW_BYTES + MATCH_BYTES * (self._wanted.matches is not None)
        per_ms = sum(scan.events_per_ms * (each + scan.event_bytes) for scan in together)
        return self._effort.first_share * self._effort.budget_bytes / per_ms

    def _chunk_edge(self, scan: _Scan) -> Position | None:
        """Where the chunk ends, and the next one goes on; None when it is the last."""
        way, offset = ("DESC", scan.rows - 1) if self._wanted.backwards else ("ASC", scan.rows)
        row: Position | None = self._connection.execute(
            "SELECT at_ms, number FROM log_event WHERE stream_id = ? AND (at_ms, number) >= (?, ?) AND (at_ms, number) < (?, ?) "
            f"ORDER BY at_ms {way}, number {way} LIMIT 1 OFFSET ?",
            (scan.stream_id, *scan.start, *scan.end, offset),
        ).fetchone()
        return row

    def _found(self, hit: _Hit) -> Found:
        (at_ms, stream_id, number), ingested_ms, _, stream, message = hit
        place = (-at_ms, -stream_id, -number) if self._wanted.backwards else (at_ms, stream_id, number)
        if message is None:
            (message,) = self._connection.execute(
                "SELECT message FROM log_event WHERE stream_id = ? AND at_ms = ? AND number = ?", (place[1], place[0], place[2])
            ).fetchone()
        return Found(place, stream, ingested_ms, message)

    # Places as keys: what comes first in the search is the smallest.

    def _horizon_key(self, place: Place) -> Key:
        """Not greater than the key of any event not looked at: at `place` or after it, or before it when backwards."""
        return (-place[0], -place[1], 1 - place[2]) if self._wanted.backwards else place

    def _horizon(self, key: Key) -> Place:
        return (-key[0], -key[1], 1 - key[2]) if self._wanted.backwards else key


def _in_stream(place: Place, stream_id: int) -> Position:
    """The first position of a stream that is not before `place`."""
    at_ms, of_stream_id, number = place
    return (at_ms, number) if stream_id == of_stream_id else (at_ms + (stream_id < of_stream_id), 0)


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
