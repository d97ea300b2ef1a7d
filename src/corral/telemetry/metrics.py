"""Series of metrics and their samples: the only SQL that changes them.

`packing.py` says what a row holds, `rollup.py` what becomes of old ones, `buffer.py` why some points are held back.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from corral.database import CommitFailed, Database, Migration
from corral.model.metric import UNITS, Dimensions, Metric, Point, Summary
from corral.telemetry.alarms import Alarms
from corral.telemetry.buffer import Buffer
from corral.telemetry.dashboards import Dashboards
from corral.telemetry.packing import STEPS, gather, newest_step, pack, repack
from corral.telemetry.tags import Tags

HOUR_S = 3600
DAY_S = 86_400
KEPT_S = {1: 3 * HOUR_S, 60: 15 * DAY_S, 300: 63 * DAY_S, 3600: 455 * DAY_S}  # how long samples keep their steps, as on CloudWatch
VALUES_MAX = {1: 256, 60: 32, 300: 32, 3600: 32}  # different values of one step, before they are bucketed
ROW_MAX_BYTES = 8 * 1024  # a longer row is packed anew, and then again when it has doubled
ACTIVE_STEP_S = 1800  # how exactly it is known when a series was last active
SERIES_KEPT_MAX = 100_000  # names whose number is remembered
BLOCKS_MAX = 300  # rows that are looked for without asking whether there may be so many
UNIT_NUMBERS = {unit: number for number, unit in enumerate(UNITS)}

Row = tuple[int, int, int, bytes]  # unit, step, begin, data

APPEND = (
    "INSERT INTO packed (step_s, at_s, series_id, unit, data) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET data = CAST(data || excluded.data AS BLOB) RETURNING length(data), packed_bytes"
)


def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


class MetricStore(Database):
    MIGRATIONS: tuple[Migration, ...] = ()
    alarms: Alarms

    def __init__(self, path: Path | None, *, checked: bool = False) -> None:
        super().__init__(path, _script("metrics.sql") + _script("alarms.sql"), self.MIGRATIONS, checked=checked)

    def _compose(self) -> None:
        """A reader sees the rows and the buffer; the index of alarms belongs to the writer."""
        self.dashboards = Dashboards(self)
        self.tags = Tags(self)
        self._series: dict[Metric, tuple[int, int]] = {}  # series → its id, and when it was last said to be active
        if self.reads_only:
            del self.alarms
        else:
            self.alarms = Alarms(self)
            self._buffer = Buffer(self._flushed(), self.journal)

    # What is due: rows, and alarms whose windows end.

    def next_due_s(self) -> float | None:
        row_s, wake_s = super().next_due_s(), self.alarms.next_wake_s()
        return min(row_s, wake_s) if row_s is not None and wake_s is not None else row_s if wake_s is None else wake_s

    def take_due(self, now_s: float, limit: int) -> list[str]:
        found = super().take_due(now_s, limit)
        return found + self.alarms.take_woken(now_s, limit - len(found))

    def close(self) -> None:
        if not self.reads_only:
            with suppress(sqlite3.Error, CommitFailed):  # a full disk: what was held is lost, as in a crash
                self.begin()
                self.flush()
                self.commit()
        super().close()

    # Points

    def append(self, points: Iterable[Point], now_s: float) -> None:
        """Keep points; they are on disk with the commit."""
        fine_since_s = now_s - KEPT_S[1]
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

    def hold(self, points: Iterable[Point], now_s: float) -> None:
        """Keep points of this very moment; they are on disk with the next flush, and everybody sees them with the commit."""
        for metric, at_s, sample, unit, resolution_s in points:
            second = int(at_s)
            data = pack(second % 60 if resolution_s == 1 else 0, sample)
            self._buffer.hold(self._active(metric, now_s), UNIT_NUMBERS[unit], second - second % 60, data, now_s)
        if self._buffer.is_due(now_s):
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        generation = self._buffer.flush()
        if generation is None:
            return
        number, held = generation
        for series_id, rows in held.items():
            for (unit, at_s), data in rows.items():
                self.append_row((1, at_s, series_id, unit), data)
        self.execute("UPDATE flushed SET number = ?", (number,))

    def append_row(self, key: tuple[int, int, int, int], data: bytes) -> None:
        """Add records to the row of a step, a beginning, a series and a unit."""
        ((length, packed_bytes),) = self.execute(APPEND, (*key, data)).fetchall()
        if length > ROW_MAX_BYTES + 2 * packed_bytes:
            where = "WHERE step_s = ? AND at_s = ? AND series_id = ? AND unit = ?"
            (long,) = self.execute(f"SELECT data FROM packed {where}", key).fetchone()
            short = repack(long, VALUES_MAX[key[0]])
            self.execute(f"UPDATE packed SET data = ?, packed_bytes = ? {where}", (short, len(short), *key))

    # Series

    def find(self, metric: Metric) -> int | None:
        """The number of a series, if it ever had a point."""
        known = self._series.get(metric)
        if known is not None:
            return known[0]
        row = self.execute(
            "SELECT id FROM series WHERE region = ? AND namespace = ? AND name = ? AND dimensions = ?",
            (*metric[:3], _written(metric.dimensions)),
        ).fetchone()
        return row[0] if row else None

    def knows(self, metric: Metric) -> bool:
        """Whether a point came for it lately. False says nothing."""
        return metric in self._series

    def set_entity(self, metric: Metric, entity: dict[str, Any]) -> None:
        self.execute("UPDATE series SET entity = ? WHERE id = ?", (json.dumps(entity), self.find(metric)))

    def forget(self, metric: Metric) -> None:
        """Its row is gone."""
        self._series.pop(metric, None)

    def _active(self, metric: Metric, now_s: float) -> int:
        """The number of a series that has something new; it is made if it is not there."""
        known = self._series.get(metric)
        if known is not None and now_s - known[1] < ACTIVE_STEP_S:
            return known[0]
        row = self.execute(
            "INSERT INTO series (region, namespace, name, dimensions, active_s) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING RETURNING id",
            (*metric[:3], _written(metric.dimensions), int(now_s)),
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
        if len(self._series) >= SERIES_KEPT_MAX:
            del self._series[next(iter(self._series))]
        self._series[metric] = series_id, int(now_s)
        self.journal.on_rollback(partial(self._series.pop, metric, None))
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
    ) -> list[Metric]:
        """Series in the order of their names. A dimension without a value is one with any value."""
        plain = "+" if any(value is not None for _, value in dimensions) else ""  # a dimension's value finds few: begin with them
        sql = f"SELECT namespace, name, dimensions FROM series WHERE {plain}region = ? AND active_s >= ?"
        values: list[Any] = [region, active_since_s]
        order = ["namespace", "name", "dimensions"]
        for column, wanted in (("namespace", namespace), ("name", name)):
            if wanted is not None:
                sql, values = f"{sql} AND {plain}{column} = ?", [*values, wanted]
                order.remove(column)  # it is the same for all, and an index can give the rest in order
        for key, value in dimensions:
            sql, values = f"{sql} AND id IN (SELECT series_id FROM series_dimension WHERE name = ?", [*values, key]
            sql, values = (f"{sql})", values) if value is None else (f"{sql} AND value = ?)", [*values, value])
        if after is not None:
            sql += f" AND ({', '.join(order)}) > ({', '.join('?' * len(order))})"
            last = {"namespace": after.namespace, "name": after.name, "dimensions": _written(after.dimensions)}
            values += [last[column] for column in order]
        rows = self.execute(f"{sql} ORDER BY {', '.join(order)} LIMIT ?", (*values, limit))
        return [Metric(region, space, named, read_dimensions(written)) for space, named, written in rows]

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
        """The periods that begin at `start_s`, `start_s + period_s`... before `end_s` and have samples.

        Of one unit, or of all units together. Without `values` the summaries know no values: that is much cheaper.
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
        """The same, for each unit apart."""
        found: dict[str, dict[int, Summary]] = {}
        for unit, step_s, at_s, data in self._rows(metric, start_s, end_s, now_s):
            gather(data, at_s, step_s, start_s, end_s, period_s, found.setdefault(UNITS[unit], {}), values=values)
        return found

    def newest(self, metric: Metric, *, since_s: int, now_s: float, unit: str | None = None) -> tuple[int, Summary] | None:
        """The newest second that has samples, and what it has; None if there is none after `since_s`."""
        wanted = None if unit is None else UNIT_NUMBERS[unit]
        found: tuple[int, Summary] | None = None
        for row_unit, step_s, at_s, data in self._rows(metric, since_s, int(now_s) + 2 * HOUR_S + 1, now_s):
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

    def _rows(self, metric: Metric, start_s: int, end_s: int, now_s: float) -> list[Row]:
        """All rows that may hold samples of that time, those in memory too."""
        series_id = self.find(metric)
        if series_id is None:
            return []
        rows: list[Row] = []
        for step_s in KEPT_S:
            rows += self._written_rows(series_id, step_s, start_s, end_s)
            if start_s > now_s - KEPT_S[step_s]:
                break  # coarser rows hold only what is older
        if not self.reads_only:
            held = self._buffer.newer_than(self._buffer.flushed, series_id) + self._buffer.pending(series_id)
        else:
            held = self._buffer.newer_than(self._flushed(), series_id)
        begin = start_s - start_s % 60
        rows += [(unit, 1, at_s, data) for unit, at_s, data in held if begin <= at_s < end_s]
        return rows

    def _written_rows(self, series_id: int, step_s: int, start_s: int, end_s: int) -> list[Row]:
        block_s = STEPS * step_s
        begin, end = start_s - start_s % block_s, end_s
        if end - begin > BLOCKS_MAX * block_s:  # a range may reach from the epoch to the end of time
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


def _written(dimensions: Iterable[tuple[str, str]]) -> str:
    return json.dumps(dimensions, ensure_ascii=False, separators=(",", ":"))


def read_dimensions(written: str) -> Dimensions:
    return tuple((name, value) for name, value in json.loads(written))
