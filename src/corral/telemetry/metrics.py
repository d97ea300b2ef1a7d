"""SQL of metric series and their samples. A series is the values of one metric with one set of dimensions.

`packing.py` defines the format of a row, `rollup.py` converts old rows to longer steps, and `buffer.py` delays the writing of
Corral's own points.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from corral.core.database import CommitFailed, Database
from corral.model.durations import HOUR_S
from corral.model.metric import AHEAD_S, COLLECTOR_NAMESPACE, RETENTION_S, UNITS, Dimensions, Metric, Point, Summary
from corral.telemetry.alarms import Alarms
from corral.telemetry.buffer import Buffer
from corral.telemetry.dashboards import Dashboards, ResourceTags
from corral.telemetry.packing import STEPS, gather, newest_step, pack, repack

# Length of a step in seconds → maximum number of distinct values in the step. More values are stored as buckets.
VALUES_MAX = {1: 256, 60: 32, 300: 32, 3600: 32}
ROW_MAX_BYTES = 8 * 1024  # a longer row is repacked; then it is repacked again at this size plus twice its repacked size
ACTIVE_STEP_S = 1800  # the time of a series' last activity is written only this often
SERIES_CACHED_MAX = 100_000  # number of series whose ids are cached
# A collector, for example the CloudWatch agent in a task, writes to a series once a minute. For this time after its last datapoint,
# Corral itself does not write to the series.
COLLECTED_S = 180.0
COLLECTED_MAX = 10_000  # number of series of collectors that are remembered
STEP_ROWS = 200  # `listed` calls `step` once per this number of rows
AT_ONCE = 8  # alarms that `take_due` returns at once; a transaction has time for about so many
BLOCKS_MAX = 300  # if a time range has more blocks (times of one row) than this, the query first finds out which times have rows
UNIT_NUMBERS = {unit: number for number, unit in enumerate(UNITS)}

PackedRow = tuple[int, int, int, bytes]  # (unit, step, start, data)

FEW_BYTES = 256  # a flush does not look at the length of a row to which it appends less: a row gets few flushes, one every FLUSH_S

APPEND = (
    "INSERT INTO packed (step_s, at_s, series_id, unit, data) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET data = CAST(data || excluded.data AS BLOB)"
)
APPEND_AND_MEASURE = f"{APPEND} RETURNING length(data), packed_bytes"


class MetricStore(Database):
    alarms: Alarms

    MIGRATIONS = (
        # 2: owners. What exists belongs to the root user.
        "ALTER TABLE alarm ADD COLUMN owner TEXT NOT NULL DEFAULT 'root' CHECK (owner != '');\n"
        "ALTER TABLE dashboard ADD COLUMN owner TEXT NOT NULL DEFAULT 'root' CHECK (owner != '');\n",
    )

    @staticmethod
    @cache
    def schema() -> str:
        return "".join(Path(__file__).with_name(name).read_text() for name in ("metrics.sql", "alarms.sql"))

    def _compose(self) -> None:
        """Create the parts of this store. A read-only store has no alarms, and shares the buffer of the writer."""
        self.dashboards = Dashboards(self)
        self.tags = ResourceTags(self)
        self._series: dict[Metric, tuple[int, int]] = {}  # series → (id, active_s)
        self._collected: dict[Metric, float] = {}  # series → when a collector last wrote to it
        if self.reads_only:
            del self.alarms
        else:
            self.alarms = Alarms(self)
            self._buffer = Buffer(self._flushed(), self.undo_log)

    def owner_of_alarm(self, region: str, name: str) -> str | None:
        """Return the owner of an alarm. A read-only store can answer this, too."""
        row = self.execute("SELECT owner FROM alarm WHERE region = ? AND name = ?", (region, name)).fetchone()
        return str(row[0]) if row else None

    # Due keys: keys of reconcilers that run at a later time. Those of alarms are in memory (`Alarms.wake`), all others are rows.

    def next_due_s(self) -> float | None:
        row_s, wake_s = super().next_due_s(), self.alarms.next_wake_s()
        return min(row_s, wake_s) if row_s is not None and wake_s is not None else row_s if wake_s is None else wake_s

    def take_due(self, now_s: float, limit: int, together: Collection[str]) -> list[str]:
        found = super().take_due(now_s, limit, together)
        return found + self.alarms.take_woken(now_s, max(0, min(limit, AT_ONCE) - len(found)))

    def shift_due(self, by_s: float) -> None:
        """Move the times of reconcilers, evaluate all alarms anew, and forget who wrote to which series by the old clock."""
        super().shift_due(by_s)
        self._collected.clear()
        self.alarms.rebuild()

    def close(self) -> None:
        if not self.reads_only:
            with suppress(sqlite3.Error, CommitFailed):  # if the disk is full, the buffer is lost, as in a crash
                self.begin()
                self.flush()
                self.commit()
        super().close()

    # Points

    def append(self, points: Iterable[Point], now_s: float) -> None:
        """Store points. They are on disk after the commit."""
        fine_since_s = now_s - RETENTION_S[1]
        chunks: dict[tuple[int, int, int, int], bytes] = {}
        for metric, at_s, sample, unit, resolution_s in points:
            second = int(at_s)
            if second >= fine_since_s:
                step_s, at, step = 1, second - second % 60, second % 60 if resolution_s == 1 else 0
            else:
                step_s, at, step = 60, second - second % HOUR_S, second % HOUR_S // 60
            key = step_s, at, self._active(metric, now_s), UNIT_NUMBERS[unit]
            data = pack(step, sample)
            chunks[key] = chunks[key] + data if key in chunks else data
        for key, data in chunks.items():
            self.append_row(key, data)
        if self._buffer.is_due(now_s):
            self.flush()

    def append_buffered(self, points: Iterable[Point], now_s: float) -> None:
        """Buffer points of the current second. Readers see them after the commit. The next flush writes them to disk."""
        packed, series = [], self._series
        for metric, at_s, sample, unit, resolution_s in points:
            minute_s, second = divmod(int(at_s), 60)
            data = pack(second if resolution_s == 1 else 0, sample)
            known = series.get(metric)  # without a call, because there may be thousands of points in each second
            if known is not None and now_s - known[1] < ACTIVE_STEP_S:
                series_id = known[0]
            else:
                series_id = self._active(metric, now_s)
            packed.append((series_id, UNIT_NUMBERS[unit], 60 * minute_s, data))
        if packed:
            self._buffer.add(packed, now_s)
        if self._buffer.is_due(now_s):
            self.flush()

    def note_collected(self, points: Iterable[Point], now_s: float) -> None:
        """Record that a collector has written to the series of these points. Points of other namespaces are ignored."""
        for metric in {point.metric for point in points if point.metric.namespace == COLLECTOR_NAMESPACE}:
            before_s = self._collected.pop(metric, None)  # the series written last is at the end
            if len(self._collected) >= COLLECTED_MAX:
                del self._collected[next(iter(self._collected))]
            self._collected[metric] = now_s
            if before_s is None:
                self.undo_log.on_rollback(partial(self._collected.pop, metric, None))
            else:
                self.undo_log.on_rollback(partial(self._collected.__setitem__, metric, before_s))

    def without_collected(self, points: Sequence[Point], now_s: float) -> Sequence[Point]:
        """Return the points of series to which no collector has written for COLLECTED_S."""
        if not self._collected:
            return points
        since_s = now_s - COLLECTED_S
        return [point for point in points if self._collected.get(point.metric, since_s) <= since_s]

    def is_collected(self, metrics: Iterable[Metric], now_s: float) -> bool:
        """Whether a collector has written to one of these series within COLLECTED_S."""
        since_s = now_s - COLLECTED_S
        return any(self._collected.get(metric, since_s) > since_s for metric in metrics) if self._collected else False

    def flush(self) -> None:
        """Write the buffer to the database."""
        generation = self._buffer.flush()
        if generation is None:
            return
        number, buffered = generation
        few: dict[int, list[tuple[int, int, int, int, bytes]]] = {}  # by minute
        for series_id in sorted(buffered):
            for (unit, at_s), data in buffered[series_id].items():
                if len(data) > FEW_BYTES:
                    self.append_row((1, at_s, series_id, unit), data)
                else:
                    few.setdefault(at_s, []).append((1, at_s, series_id, unit, data))
        for at_s in sorted(few):  # in the order of the rows, which the database finds faster
            self.executemany(APPEND, few[at_s])
        self.execute("UPDATE flushed SET number = ?", (number,))

    def append_row(self, key: tuple[int, int, int, int], data: bytes) -> None:
        """Append records to a row. `key` is (step, start, series id, unit)."""
        ((length, packed_bytes),) = self.execute(APPEND_AND_MEASURE, (*key, data)).fetchall()
        if length > ROW_MAX_BYTES + 2 * packed_bytes:
            where = "WHERE step_s = ? AND at_s = ? AND series_id = ? AND unit = ?"
            (old,) = self.execute(f"SELECT data FROM packed {where}", key).fetchone()
            new = repack(old, VALUES_MAX[key[0]])
            self.execute(f"UPDATE packed SET data = ?, packed_bytes = ? {where}", (new, len(new), *key))

    # Series

    def find(self, metric: Metric) -> int | None:
        """Return the id of a series. Return None if the series does not exist."""
        known = self._series.get(metric)
        if known is not None:
            return known[0]
        row = self.execute(
            "SELECT id FROM series WHERE region = ? AND namespace = ? AND name = ? AND dimensions = ?",
            (*metric[:3], _dimensions_json(metric.dimensions)),
        ).fetchone()
        return row[0] if row else None

    def knows(self, metric: Metric) -> bool:
        """Whether the series is in the cache. If not, it may still exist."""
        return metric in self._series

    def set_entity(self, metric: Metric, entity: dict[str, Any]) -> None:
        self.execute("UPDATE series SET entity = ? WHERE id = ?", (json.dumps(entity), self.find(metric)))

    def forget(self, metric: Metric) -> None:
        """Remove a deleted series from the cache."""
        self._series.pop(metric, None)

    def _active(self, metric: Metric, now_s: float) -> int:
        """Return the id of a series that gets a new point. Create the series if it does not exist."""
        known = self._series.get(metric)
        if known is not None and now_s - known[1] < ACTIVE_STEP_S:
            return known[0]
        row = self.execute(
            "INSERT INTO series (region, namespace, name, dimensions, active_s) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING RETURNING id",
            (*metric[:3], _dimensions_json(metric.dimensions), int(now_s)),
        ).fetchone()
        if row is not None:
            series_id: int = row[0]
            rows = [(name, value, series_id) for name, value in metric.dimensions]
            self.executemany("INSERT OR IGNORE INTO series_dimension VALUES (?, ?, ?)", rows)
        else:
            found = self.find(metric)
            assert found is not None
            series_id = found
            self.execute("UPDATE series SET active_s = ? WHERE id = ?", (int(now_s), series_id))
        if len(self._series) >= SERIES_CACHED_MAX:
            del self._series[next(iter(self._series))]
        self._series[metric] = series_id, int(now_s)
        self.undo_log.on_rollback(partial(self._series.pop, metric, None))
        return series_id

    def listed(
        self,
        region: str,
        *,
        active_since_s: float,
        namespace: str | None = None,
        name: str | None = None,
        dimensions: Sequence[tuple[str, str | None]] = (),
        after: Metric | None = None,
        limit: int = -1,
        step: Callable[[], None] = lambda: None,
    ) -> list[Metric]:
        """Return series sorted by namespace, name and dimensions. A dimension with the value None matches any value.

        `step` is called repeatedly. It can raise an exception to stop the query.
        """
        # "+" disables the index on the column. The index on dimension values is better, because it selects fewer rows.
        plain = "+" if any(value is not None for _, value in dimensions) else ""
        sql = f"SELECT namespace, name, dimensions FROM series WHERE {plain}region = ? AND active_s >= ?"
        values: list[Any] = [region, active_since_s]
        order = ["namespace", "name", "dimensions"]
        for column, wanted in (("namespace", namespace), ("name", name)):
            if wanted is not None:
                sql, values = f"{sql} AND {plain}{column} = ?", [*values, wanted]
                order.remove(column)  # all rows have the same value in this column, so sorting by the column is not needed
        for key, value in dimensions:
            sql, values = f"{sql} AND id IN (SELECT series_id FROM series_dimension WHERE name = ?", [*values, key]
            sql, values = (f"{sql})", values) if value is None else (f"{sql} AND value = ?)", [*values, value])
        if after is not None:
            sql += f" AND ({', '.join(order)}) > ({', '.join('?' * len(order))})"
            last = {"namespace": after.namespace, "name": after.name, "dimensions": _dimensions_json(after.dimensions)}
            values += [last[column] for column in order]
        rows = self.execute(f"{sql} ORDER BY {', '.join(order)} LIMIT ?", (*values, limit))
        found: list[Metric] = []
        for space, named, dimensions_json in rows:
            if len(found) % STEP_ROWS == 0:
                step()
            found.append(Metric(region, space, named, parse_dimensions(dimensions_json)))
        return found

    # Reading

    def read(
        self,
        metric: Metric,
        *,
        start_s: int,
        end_s: int,
        period_s: int,
        now_s: float,
        unit: str | None = None,
        values: bool = False,
    ) -> dict[int, Summary]:
        """Return the summaries of the periods that have samples. The periods begin at `start_s`, `start_s + period_s`... before
        `end_s`.

        If `unit` is None, a summary covers the samples of all units together. Without `values`, a summary does not contain the
        single values (`weights`), and the method is much faster.
        """
        found: dict[int, Summary] = {}
        wanted = None if unit is None else UNIT_NUMBERS[unit]
        for row_unit, step_s, at_s, data in self._rows(metric, start_s, end_s, now_s):
            if wanted is None or row_unit == wanted:
                gather(data, at_s, step_s, start_s, end_s, period_s, found, values=values)
        return found

    def read_by_unit(
        self, metric: Metric, *, start_s: int, end_s: int, period_s: int, now_s: float, values: bool = False
    ) -> dict[str, dict[int, Summary]]:
        """Like `read`, but with separate summaries for each unit."""
        found: dict[str, dict[int, Summary]] = {}
        for unit, step_s, at_s, data in self._rows(metric, start_s, end_s, now_s):
            gather(data, at_s, step_s, start_s, end_s, period_s, found.setdefault(UNITS[unit], {}), values=values)
        return found

    def newest(self, metric: Metric, *, since_s: int, now_s: float, unit: str | None = None) -> tuple[int, Summary] | None:
        """Return the newest second at or after `since_s` that has samples, and their summary. Return None if there is none."""
        wanted = None if unit is None else UNIT_NUMBERS[unit]
        found: tuple[int, Summary] | None = None
        for row_unit, step_s, at_s, data in self._rows(metric, since_s, int(now_s) + AHEAD_S + 1, now_s):
            if wanted is not None and row_unit != wanted:
                continue
            step, summary = newest_step(data)
            second = at_s + step * step_s
            if second < since_s or (found is not None and second < found[0]):
                continue
            if found is not None and second == found[0]:
                found[1].merge(summary)
            else:
                found = second, summary
        return found

    def _rows(self, metric: Metric, start_s: int, end_s: int, now_s: float) -> list[PackedRow]:
        """Return all rows that may have samples of this time range, including rows in the buffer."""
        series_id = self.find(metric)
        if series_id is None:
            return []
        rows: list[PackedRow] = []
        for step_s in RETENTION_S:
            rows += self._written_rows(series_id, step_s, start_s, end_s)
            if start_s > now_s - RETENTION_S[step_s]:
                break  # rows with longer steps have only older samples
        if not self.reads_only:
            buffered = self._buffer.newer_than(self._buffer.flushed, series_id) + self._buffer.pending(series_id)
        else:
            buffered = self._buffer.newer_than(self._flushed(), series_id)
        begin = start_s - start_s % 60
        rows += [(unit, 1, at_s, data) for unit, at_s, data in buffered if begin <= at_s < end_s]
        return rows

    def _written_rows(self, series_id: int, step_s: int, start_s: int, end_s: int) -> list[PackedRow]:
        block_s = STEPS * step_s
        begin, end = start_s - start_s % block_s, end_s
        if end - begin > BLOCKS_MAX * block_s:  # the range of a request may reach from 1970 to the far future
            oldest, newest = self.execute(
                "SELECT (SELECT min(at_s) FROM packed WHERE step_s = ?1), (SELECT max(at_s) FROM packed WHERE step_s = ?1)",
                (step_s,),
            ).fetchone()
            if oldest is None:
                return []
            begin, end = max(oldest, begin), min(newest + 1, end)
        return self.execute(
            "WITH RECURSIVE block (at) AS (SELECT ?1 WHERE ?1 < ?2 UNION ALL SELECT at + ?3 FROM block WHERE at + ?3 < ?2) "
            "SELECT unit, step_s, at_s, data FROM block CROSS JOIN packed ON step_s = ?4 AND at_s = at AND series_id = ?5",
            (begin, end, block_s, step_s, series_id),
        ).fetchall()

    def _flushed(self) -> int:
        (number,) = self.execute("SELECT number FROM flushed").fetchone()
        return int(number)


def _dimensions_json(dimensions: Iterable[tuple[str, str]]) -> str:
    return json.dumps(dimensions, ensure_ascii=False, separators=(",", ":"))


def parse_dimensions(dimensions_json: str) -> Dimensions:
    return tuple((name, value) for name, value in json.loads(dimensions_json))
