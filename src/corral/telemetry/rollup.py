"""Roll-up of old samples into rows with longer steps, as on CloudWatch, and deletion of the oldest samples and series.

A row has the samples of a series for sixty time steps, which are seconds, minutes, five minutes or hours (`packing.py`).
"""

from __future__ import annotations

from itertools import pairwise

from corral.model.durations import DAY_S
from corral.model.metric import RETENTION_S, Metric, Summary
from corral.telemetry.metrics import VALUES_MAX, MetricStore, parse_dimensions
from corral.telemetry.packing import STEPS, gather, move, pack_summary

SERIES_RETENTION_S = RETENTION_S[3600] + 5 * DAY_S  # a series is deleted about five days after its last samples were deleted


def roll_up(store: MetricStore, now_s: float, limit: int) -> int:
    """Move about `limit` old rows into rows with longer steps, or delete them. Return the number of moved and deleted rows.

    If this number is less than `limit`, no old rows are left.
    """
    done = 0
    for fine_s, coarse_s in pairwise(RETENTION_S):
        rows = store.execute(
            "SELECT at_s, series_id, unit, data FROM packed WHERE step_s = ? AND at_s <= ? ORDER BY at_s, series_id LIMIT ?",
            (fine_s, int(now_s) - RETENTION_S[fine_s] - STEPS * fine_s, limit - done),
        ).fetchall()
        for at_s, series_id, unit, data in rows:
            _coarsen(store, fine_s, coarse_s, at_s, series_id, unit, data)
        store.executemany(
            "DELETE FROM packed WHERE step_s = ? AND at_s = ? AND series_id = ? AND unit = ?",
            [(fine_s, at_s, series_id, unit) for at_s, series_id, unit, _ in rows],
        )
        done += len(rows)
    return done + _drop_rows(store, now_s, limit - done) + _drop_series(store, now_s, limit - done)


def _coarsen(store: MetricStore, fine_s: int, coarse_s: int, at_s: int, series_id: int, unit: int, data: bytes) -> None:
    values_max = VALUES_MAX[coarse_s]
    block = at_s - at_s % (STEPS * coarse_s)  # the start of the coarse row that contains the whole fine row
    if STEPS * fine_s <= coarse_s:  # the whole fine row becomes one step
        store.append_row((coarse_s, block, series_id, unit), move(data, (at_s - block) // coarse_s, values_max))
        return
    found: dict[int, Summary] = {}
    gather(data, at_s, fine_s, at_s - at_s % coarse_s, at_s + STEPS * fine_s, coarse_s, found, values=True)
    for time_s, summary in found.items():
        store.append_row((coarse_s, block, series_id, unit), pack_summary((time_s - block) // coarse_s, summary, values_max))


def _drop_rows(store: MetricStore, now_s: float, limit: int) -> int:
    return store.execute(
        "DELETE FROM packed WHERE (step_s, at_s, series_id, unit) IN "
        "(SELECT step_s, at_s, series_id, unit FROM packed WHERE step_s = 3600 AND at_s <= ? ORDER BY at_s LIMIT ?)",
        (int(now_s) - RETENTION_S[3600] - STEPS * 3600, limit),
    ).rowcount


def _drop_series(store: MetricStore, now_s: float, limit: int) -> int:
    """Delete series that have had no new samples for SERIES_RETENTION_S."""
    rows = store.execute(
        "SELECT id, region, namespace, name, dimensions FROM series WHERE active_s < ? LIMIT ?",
        (int(now_s) - SERIES_RETENTION_S, limit),
    ).fetchall()
    for series_id, region, namespace, name, dimensions in rows:
        pairs = parse_dimensions(dimensions)
        store.forget(Metric(region, namespace, name, pairs))
        store.executemany(
            "DELETE FROM series_dimension WHERE name = ? AND value = ? AND series_id = ?", [(*pair, series_id) for pair in pairs]
        )
        store.execute("DELETE FROM series WHERE id = ?", (series_id,))
    return len(rows)
