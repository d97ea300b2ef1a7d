"""A buffer in memory for Corral's own datapoints, which are measured every second. It reduces disk writes.

The metric store flushes the buffer to the database every FLUSH_S seconds. A crash loses the points since the last flush. Points
from callers are not buffered.

`packing.py` describes the records of the points of a series.

Readers in other threads also read the buffer. The points between two flushes form a generation, which has a number. The database
stores the number of the last flushed generation. That generation also stays in the buffer, for a reader whose snapshot of the
database is older than the flush. A reader with a newer snapshot reads the number from the database, and so it skips this generation
in the buffer. So no point is counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from corral.core.undo_log import UndoLog

BufferedPoint = tuple[int, int, int, bytes]  # (series id, unit, minute, records)
Rows = dict[tuple[int, int], bytes]  # (unit, minute) → records
Generation = tuple[int, dict[int, Rows]]  # (number, series id → rows)

FLUSH_S = 10.0


class Buffer:
    """The buffered points. Only the thread of the metrics lane writes. Any thread may call `newer_than`."""

    def __init__(self, flushed: int, undo_log: UndoLog) -> None:
        self._undo_log = undo_log
        self._generations: tuple[Generation, ...] = ((flushed + 1, {}),)  # new points are added to the last generation
        self._since_s: float | None = None  # when the oldest point of the last generation arrived
        self._pending: list[BufferedPoint] = []  # of the current transaction
        self._pending_by_series: dict[int, list[tuple[int, int, bytes]]] | None = None  # None: not computed since the last change
        self._pending_s = 0.0  # when the last of them arrived
        self._flushing = False

    def add(self, points: Sequence[BufferedPoint], now_s: float) -> None:
        self._expect_commit()
        self._undo_log.on_rollback(partial(self._drop_after, len(self._pending)))
        self._pending += points
        self._pending_by_series, self._pending_s = None, now_s

    def is_due(self, now_s: float) -> bool:
        return self._since_s is not None and not 0 <= now_s - self._since_s < FLUSH_S

    def flush(self) -> Generation | None:
        """Return the generation that the caller must write in this transaction. Return None if there is nothing to write."""
        number, rows = self._generations[-1]
        if self._flushing or not rows:
            return None
        self._expect_commit()
        self._flushing = True
        self._undo_log.on_rollback(self._end_flush)
        return number, rows

    @property
    def flushed(self) -> int:
        """The number of the last flushed generation. It includes a flush in the current transaction."""
        return self._generations[-1][0] - (not self._flushing)

    def newer_than(self, flushed: int, series_id: int) -> list[tuple[int, int, bytes]]:
        """Return (unit, minute, records) of a series in all generations after the generation `flushed`.

        A reader passes the number of the last generation that its snapshot of the database contains.
        """
        found: list[tuple[int, int, bytes]] = []
        for number, by_series in self._generations:
            if number > flushed and series_id in by_series:
                found += [(unit, minute_s, data) for (unit, minute_s), data in list(by_series[series_id].items())]
        return found

    def pending(self, series_id: int) -> list[tuple[int, int, bytes]]:
        """Return (unit, minute, records) of a series in the current transaction. Only the writer sees them."""
        found = self._pending_by_series
        if found is None:
            found = self._pending_by_series = {}
            for each_id, unit, minute_s, data in self._pending:
                found.setdefault(each_id, []).append((unit, minute_s, data))
        return found.get(series_id, [])

    # The transaction

    def _expect_commit(self) -> None:
        if not (self._pending or self._flushing):
            self._undo_log.on_commit(self._committed)

    def _drop_after(self, count: int) -> None:
        del self._pending[count:]
        self._pending_by_series = None

    def _end_flush(self) -> None:
        self._flushing = False

    def _committed(self) -> None:
        """After a flush, start a new generation. Then add the points of this transaction, so that all readers see them."""
        if self._flushing:
            self._generations = (self._generations[-1], (self._generations[-1][0] + 1, {}))
            self._flushing, self._since_s = False, None
        by_series = self._generations[-1][1]
        for series_id, unit, minute_s, data in self._pending:
            rows, key = by_series.get(series_id), (unit, minute_s)
            if rows is None:
                by_series[series_id] = {key: data}
            else:
                rows[key] = rows[key] + data if key in rows else data
        if self._since_s is None and self._pending:
            self._since_s = self._pending_s
        self._pending.clear()
        self._pending_by_series = None
