"""The one way in for points: PutMetricData, what is found in logs, and what Corral measures itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from corral.core import Tx
from corral.decide.emf import embedded_points
from corral.model.metric import Point
from corral.telemetry import MetricStore

if TYPE_CHECKING:
    from corral.decide.metric_filter import Meter

PAST_S = 14 * 86_400
AHEAD_S = 2 * 3600


def record(tx: Tx[MetricStore], points: Sequence[Point], *, own: bool = False) -> None:
    """Keep points, and wake whoever watches their series.

    They are on disk with this transaction. `own` points, which Corral makes itself each second, are held in memory and
    written every few seconds; everybody sees them at once, and a crash may lose the last of them.
    """
    if own:
        tx.store.hold(points, tx.now_s)
    else:
        tx.store.append(points, tx.now_s)
    watching = tx.store.alarms.watching
    if watching:
        from corral.services.cloudwatch.arrivals import arrived  # only here: most have no alarms

        for point in points:
            if point.metric in watching:
                for alarm in tx.store.alarms.watchers(point.metric):
                    arrived(tx, alarm, point)


def record_embedded(tx: Tx[MetricStore], *, region: str, events: Sequence[tuple[int, str]]) -> None:
    """Metrics found in log events, each with its time in milliseconds. Those of another age are left out, as CloudWatch does."""
    _record_found(tx, [point for at_ms, message in events for point in embedded_points(message, region, at_ms)])


def record_filtered(tx: Tx[MetricStore], *, meters: Sequence[Meter], events: Sequence[tuple[int, str]], last: bool) -> None:
    """What metric filters make of log events; `last`: there are no more of this batch."""
    found = [point for meter in meters for point in meter.points(events)]
    _record_found(tx, [*found, *(point for meter in meters for point in meter.defaults())] if last else found)


def _record_found(tx: Tx[MetricStore], found: Sequence[Point]) -> None:
    points = [point for point in found if tx.now_s - PAST_S <= point.at_s <= tx.now_s + AHEAD_S]
    if points:
        record(tx, points)
