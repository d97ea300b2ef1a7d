"""Searches many log streams for events, sorted by time. A search finds one page of events, and limits its work for this page.

Each stream is read in chunks. SQLite drops rows that cannot match before Python sees them. The horizon of a stream is the position
up to which the stream has been read. All events before the earliest horizon have been read, so a page can contain them. The stream
with the earliest horizon is read next. So a search reads at most one chunk per stream more than the page needs. A hit is an event
that matches the filter of the search.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any

from msgspec import Struct

from corral.model.message_hint import EVERY_MESSAGE, AllHints, AnyHint, Contains, Hint, Lacks
from corral.telemetry.logs import LAST_MS, Position

EventPlace = tuple[int, int, int]  # (milliseconds, stream id, number): the position of an event among all streams
FIRST: EventPlace = (0, 0, 0)
LAST: EventPlace = (LAST_MS, 0, 0)
SearchKey = tuple[int, int, int]  # a place, negated in a backward search, so that the next event has the smallest key
LOWEST: SearchKey = (-(2**63), 0, 0)
NEVER: SearchKey = (2**63, 0, 0)

STEP_ROWS = 64  # the callback `step` (see `LogSearch`) is called once per this number of rows
# The budget of a search is in bytes. The cost of other work is also counted in bytes, with these constants.
ROW_BYTES = 100  # the cost of a row, in addition to the length of its message
SEEK_BYTES = 2_000  # the cost of starting a chunk
MATCH_BYTES = 1_500  # the cost of a message that Python must match
UNLIMITED = 2**63
CHECK_HITS = 1_000  # after this number of new hits, the search checks whether the page is complete


class SearchBudget(Struct, frozen=True):
    budget_bytes: int = 12 * 1024 * 1024  # reading this much takes tens of milliseconds
    first_share: float = 0.8  # the fraction of the budget that the first chunks of all streams may use
    chunk_min_rows: int = 16
    chunk_max_rows: int = 16_384
    chunk_max_bytes: int = 1024 * 1024  # a chunk must fit in SQLite's cache, because it is read twice, first to find its end
    held_max_bytes: int = 16 * 1024 * 1024  # messages held in memory; other messages are read again for the page
    listed_at_once: int = 1_000  # number of streams that one query lists


class SearchScope(Struct, frozen=True):
    """The streams to search in a group: by their names, or by a prefix of the name. An empty prefix means all streams."""

    group_id: int
    names: tuple[str, ...] | None = None
    prefix: str = ""


class FoundEvent(Struct, frozen=True):
    place: EventPlace
    stream: str
    ingested_ms: int
    message: str


class EventFilter(Struct, frozen=True):
    """The events to find: `start` <= place < `end`, and the message matches `hint` and `matches`."""

    hint: Hint = EVERY_MESSAGE  # a simple condition, which SQLite checks first
    matches: Callable[[str], bool] | None = None  # the whole condition, which Python checks; None: the hint is the whole condition
    start: EventPlace = FIRST
    end: EventPlace = LAST
    backwards: bool = False
    limit: int = 10_000
    max_bytes: int = 1024 * 1024

    @property
    def everything(self) -> bool:
        return self.matches is None and self.hint == EVERY_MESSAGE


class _Scan(Struct):
    """The reading state of a stream. The events from `start` to `end` have not been read yet."""

    stream_id: int
    name: str
    stored: int
    event_bytes: int  # average size
    events_per_ms: float  # average rate
    start: Position
    end: Position
    rows: int = 0  # number of rows in the last chunk


_Hit = tuple[SearchKey, int, int, str, str | None]  # (key, ingested_ms, bytes, stream, message)


class LogSearch:
    """The search for one page. It works on any connection, the writer's or a reader's."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        scope: SearchScope,
        event_filter: EventFilter,
        budget: SearchBudget | None = None,
        step: Callable[[], None] = lambda: None,
    ) -> None:
        """`step` is called repeatedly during the search. It can raise an exception to stop the search."""
        self._connection = connection
        self._scope = scope
        self._filter = event_filter
        self._budget = budget or SearchBudget()
        self._step = step
        self._hint, self._hint_values = _as_sql(event_filter.hint)
        self._has_hinted_matches = event_filter.matches is not None and event_filter.hint != EVERY_MESSAGE
        self._tried_rows, self._dropped_rows = 0, 0  # rows that satisfied the hint, and rows that did not
        self._scans: list[tuple[SearchKey, _Scan]] = []  # a heap, sorted by horizon
        self._listed_to = LOWEST  # all streams up to this horizon have been listed
        self._last_listed: tuple[int, int] | None = None
        self._hits: list[_Hit] = []  # the hits that are not in `_ready`, not sorted
        self._ready: list[_Hit] = []  # the hits that were before the earliest horizon at the last check, sorted
        self._ready_bytes = 0
        self._held_bytes = 0
        self._spent_bytes = 0
        self._window_ms = 0.0  # the estimated time range of a page
        self._read_last: _Scan | None = None

    def page(self) -> tuple[list[FoundEvent], EventPlace | None]:
        """Return the events of one page, and the place where the next page starts. After the last page, the place is None.

        In a backward search, the place is the end of the next page.
        """
        event_filter = self._filter
        origin = self._horizon_key(event_filter.end if event_filter.backwards else event_filter.start)
        unchecked = 0
        while True:
            self._step()
            while self._listed_to != NEVER and (not self._scans or self._scans[0][0] >= self._listed_to):
                self._list_more()
            horizon = self._scans[0][0] if self._scans else NEVER
            spent = horizon == NEVER or (self._spent_bytes >= self._budget.budget_bytes and self._has_moved(origin))
            if spent or len(self._hits) - unchecked >= CHECK_HITS:
                self._take_ready(horizon)
                unchecked = len(self._hits)
                if spent or len(self._ready) >= event_filter.limit or self._ready_bytes > event_filter.max_bytes:
                    return self._cut(self._ready, horizon)
            _, scan = heappop(self._scans)
            if self._read(scan):
                self._push(scan)

    def _take_ready(self, horizon: SearchKey) -> None:
        """Sort the hits before the horizon, and append them to `_ready`.

        The hits that are already in `_ready` come first, because they were before an earlier horizon. So each hit is sorted once,
        in a short list. To sort a long list would block all other threads for milliseconds.
        """
        ready = [hit for hit in self._hits if hit[0] < horizon]
        if ready:
            self._hits = [hit for hit in self._hits if hit[0] >= horizon]
            ready.sort(key=itemgetter(0))
            self._ready += ready
            self._ready_bytes += sum(hit[2] for hit in ready)

    def _has_moved(self, origin: SearchKey) -> bool:
        """Whether every stream has been read beyond `origin`, where the search has started.

        If not, the next page would begin at the same place and repeat this work.
        """
        horizon, scan = self._scans[0]
        return horizon > origin and (scan.rows > 0 or abs(horizon[0] - origin[0]) > 1)

    def _cut(self, ready: list[_Hit], horizon: SearchKey) -> tuple[list[FoundEvent], EventPlace | None]:
        """Make the page from the events before the horizon, up to the limits."""
        event_filter, left_bytes, taken = self._filter, self._filter.max_bytes, 0
        for hit in ready[: event_filter.limit]:
            left_bytes -= hit[2]
            if left_bytes < 0 and taken:
                break
            taken += 1
        page = [self._found(hit) for hit in ready[:taken]]
        if taken < len(ready):  # the next page continues after the last event of this page
            at_ms, stream_id, number = page[-1].place
            next_place: EventPlace | None = (at_ms, stream_id, number) if event_filter.backwards else (at_ms, stream_id, number + 1)
        else:
            next_place = None if horizon == NEVER else self._horizon(horizon)
        sign = -1 if event_filter.backwards else 1
        # Events of the same millisecond are sorted by the time of their arrival.
        page.sort(key=lambda event: (sign * event.place[0], sign * event.ingested_ms))
        return page, next_place

    # Listing of streams, sorted by horizon

    def _list_more(self) -> None:
        event_filter, scope = self._filter, self._scope
        values: list[Any] = [scope.group_id, event_filter.start[0], event_filter.end[0]]
        sql = (
            "SELECT id, name, first_ms, last_ms, stored, bytes FROM log_stream "
            "WHERE group_id = ? AND last_ms >= ? AND first_ms <= ?"
        )
        if scope.names is not None:
            sql, values = sql + f" AND name IN ({', '.join('?' * len(scope.names))})", [*values, *scope.names]
        elif scope.prefix:
            sql, values = sql + " AND name >= ? AND name < ?", [*values, scope.prefix, scope.prefix + "\U0010ffff"]
        edge, sign, order = ("last_ms", "<", "DESC") if event_filter.backwards else ("first_ms", ">", "ASC")
        if self._last_listed is not None:
            sql, values = sql + f" AND ({edge}, id) {sign} (?, ?)", [*values, *self._last_listed]
        rows = self._connection.execute(
            f"{sql} ORDER BY {edge} {order}, id {order} LIMIT ?", (*values, self._budget.listed_at_once)
        ).fetchall()
        self._spent_bytes += ROW_BYTES * len(rows)
        for stream_id, name, first_ms, last_ms, stored, size in rows:
            start = max((first_ms, 0), _in_stream(event_filter.start, stream_id))
            end = min((last_ms + 1, 0), _in_stream(event_filter.end, stream_id))
            if start < end:
                event_bytes, events_per_ms = size // max(stored, 1), stored / (last_ms - first_ms + 1)
                self._push(_Scan(stream_id, name, stored, event_bytes, events_per_ms, start, end))
        if len(rows) < self._budget.listed_at_once:
            self._listed_to = NEVER
            return
        stream_id, _, first_ms, last_ms, *_ = rows[-1]
        self._last_listed = (last_ms if event_filter.backwards else first_ms, stream_id)
        self._listed_to = (-(last_ms + 1), -stream_id, 0) if event_filter.backwards else (first_ms, stream_id, 0)

    def _push(self, scan: _Scan) -> None:
        at_ms, number = scan.end if self._filter.backwards else scan.start
        heappush(self._scans, (self._horizon_key((at_ms, scan.stream_id, number)), scan))

    # Reading of one stream

    def _read(self, scan: _Scan) -> bool:
        """Read the next chunk of a stream. Return False if it was the last chunk."""
        event_filter, backwards, stream_id = self._filter, self._filter.backwards, scan.stream_id
        matches, everything = event_filter.matches, event_filter.everything
        budget_bytes, held_max_bytes = self._budget.budget_bytes, self._budget.held_max_bytes
        scan.rows = self._chunk_rows(scan)
        self._spent_bytes += SEEK_BYTES + min(scan.rows, scan.stored) * (ROW_BYTES + scan.event_bytes)
        tries_max = self._tries_max(scan) if self._has_hinted_matches else UNLIMITED
        edge = None if everything else self._chunk_edge(scan)
        start, end = (edge or scan.start, scan.end) if backwards else (scan.start, edge or scan.end)
        order = "DESC" if backwards else "ASC"
        rows = self._connection.execute(
            "SELECT at_ms, number, ingested_ms, message FROM log_event WHERE stream_id = ? AND (at_ms, number) >= (?, ?) "
            f"AND (at_ms, number) < (?, ?){self._hint} ORDER BY at_ms {order}, number {order} LIMIT ?",
            (stream_id, *start, *end, *self._hint_values, scan.rows),
        )
        hits, hit_bytes, tried = 0, 0, 0
        for tried, (at_ms, number, ingested_ms, message) in enumerate(rows, 1):
            if tried % STEP_ROWS == 0:
                self._step()
            if matches is not None:
                self._spent_bytes += MATCH_BYTES
                if not matches(message):
                    if self._spent_bytes < budget_bytes and tried < tries_max:
                        continue
                    edge = (at_ms, number) if backwards else (at_ms, number + 1)
                    break
            size = len(message) if message.isascii() else len(message.encode())
            hold = self._held_bytes + size <= held_max_bytes
            key = (-at_ms, -stream_id, -number) if backwards else (at_ms, stream_id, number)
            self._hits.append((key, ingested_ms, size, scan.name, message if hold else None))
            self._held_bytes += size * hold
            hits, hit_bytes = hits + 1, hit_bytes + size
            enough = hits >= event_filter.limit or hit_bytes > event_filter.max_bytes or (everything and hits == scan.rows)
            if enough or tried >= tries_max:
                edge = (at_ms, number) if backwards else (at_ms, number + 1)
                break
        else:
            self._dropped_rows += max(0, min(scan.rows, scan.stored) - tried)
        self._tried_rows += tried
        rows.close()
        if edge is None:
            return False
        scan.start, scan.end = (scan.start, edge) if backwards else (edge, scan.end)
        return scan.start < scan.end

    def _chunk_rows(self, scan: _Scan) -> int:
        """Return how many rows the next chunk of a stream has. The chunks of all streams cover about the same time range.

        If the previous chunk of the search was from the same stream, the number doubles.
        """
        budget = self._budget
        self._window_ms = self._window_ms or self._page_ms(scan)
        if scan is self._read_last:
            rows = scan.rows * 2
        else:
            rows = int(scan.events_per_ms * self._window_ms) // (4 if scan.rows else 1)
            if self._has_hinted_matches:  # the window assumes that no message satisfies the hint
                rows = int(rows * (ROW_BYTES + scan.event_bytes) / self._planned_cost(scan))
        self._read_last = scan
        return min(
            max(rows, budget.chunk_min_rows), budget.chunk_max_rows, max(1, budget.chunk_max_bytes // (scan.event_bytes + 1))
        )

    def _page_ms(self, first: _Scan) -> float:
        """Return the estimated time range of a page. The estimate uses the streams that start at the same time as `first`."""
        edge_ms = first.end[0] if self._filter.backwards else first.start[0]
        scans = [first, *(scan for key, scan in self._scans if abs(abs(key[0]) - edge_ms) <= 1)]
        if self._filter.everything:
            page_events = min(self._filter.limit, self._filter.max_bytes * len(scans) / sum(scan.event_bytes + 1 for scan in scans))
            return page_events / sum(scan.events_per_ms for scan in scans)
        each, share = ROW_BYTES, self._budget.first_share
        if self._has_hinted_matches:
            share /= 2  # because a chunk may cost up to twice its planned cost (`_tries_max`)
        elif self._filter.matches is not None:
            each += MATCH_BYTES
        per_ms = sum(scan.events_per_ms * (each + scan.event_bytes) for scan in scans)
        return share * self._budget.budget_bytes / per_ms

    def _planned_cost(self, scan: _Scan) -> float:
        """Return the planned cost of a row, in bytes, if Python matches only messages that satisfy the hint.

        It is the expected cost, from the share of rows that satisfied the hint in earlier chunks. But it is at most half of the
        cost of a row that Python matches. This is enough, because no row costs more, and because a chunk may cost up to twice its
        planned cost (`_tries_max`).
        """
        tried = self._tried_rows / ((self._tried_rows + self._dropped_rows) or 1)
        read = ROW_BYTES + scan.event_bytes
        return min(read + MATCH_BYTES * tried, (read + MATCH_BYTES) / 2)

    def _tries_max(self, scan: _Scan) -> int:
        """Return how many messages of a chunk Python may match, so that the chunk costs at most twice as much as planned."""
        match_bytes = scan.rows * (2 * self._planned_cost(scan) - ROW_BYTES - scan.event_bytes)
        return max(self._budget.chunk_min_rows, int(match_bytes / MATCH_BYTES))

    def _chunk_edge(self, scan: _Scan) -> Position | None:
        """Return the position where the chunk ends and the next chunk starts. Return None if this is the last chunk."""
        order, offset = ("DESC", scan.rows - 1) if self._filter.backwards else ("ASC", scan.rows)
        row: Position | None = self._connection.execute(
            "SELECT at_ms, number FROM log_event WHERE stream_id = ? AND (at_ms, number) >= (?, ?) AND (at_ms, number) < (?, ?) "
            f"ORDER BY at_ms {order}, number {order} LIMIT 1 OFFSET ?",
            (scan.stream_id, *scan.start, *scan.end, offset),
        ).fetchone()
        return row

    def _found(self, hit: _Hit) -> FoundEvent:
        key, ingested_ms, _, stream, message = hit
        place = (-key[0], -key[1], -key[2]) if self._filter.backwards else key
        if message is None:
            (message,) = self._connection.execute(
                "SELECT message FROM log_event WHERE stream_id = ? AND at_ms = ? AND number = ?", (place[1], place[0], place[2])
            ).fetchone()
        return FoundEvent(place, stream, ingested_ms, message)

    # Conversion between places and keys

    def _horizon_key(self, place: EventPlace) -> SearchKey:
        """Return the horizon of a stream that has been read up to `place`. No unread event of the stream has a smaller key."""
        return (-place[0], -place[1], 1 - place[2]) if self._filter.backwards else place

    def _horizon(self, key: SearchKey) -> EventPlace:
        return (-key[0], -key[1], 1 - key[2]) if self._filter.backwards else key


def _in_stream(place: EventPlace, stream_id: int) -> Position:
    """Return the first position in a stream that is not before `place`."""
    at_ms, of_stream_id, number = place
    return (at_ms, number) if stream_id == of_stream_id else (at_ms + (stream_id < of_stream_id), 0)


def _as_sql(hint: Hint) -> tuple[str, tuple[str, ...]]:
    if hint == EVERY_MESSAGE:
        return "", ()
    values: list[str] = []

    def condition(hint: Hint) -> str:
        match hint:
            case Contains(text):
                values.append(text)
                return "instr(message, ?) > 0"
            case Lacks(text):
                values.append(text)
                return "instr(message, ?) = 0"
            case AllHints(parts):
                return f"({' AND '.join(map(condition, parts))})"
            case AnyHint(parts):
                return f"({' OR '.join(map(condition, parts))})"

    return f" AND {condition(hint)}", tuple(values)
