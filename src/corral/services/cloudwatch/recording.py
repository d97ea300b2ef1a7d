"""The one way in for points: PutMetricData, what is found in logs, and what Corral measures itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corral.core import Tx
from corral.model.metric import Metric, Point, Sample
from corral.telemetry import MetricStore

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


def hand_over_points(tx: Tx[Any], points: Sequence[Point]) -> None:
    """For lanes that find points: `receive_points` records them. Those of another age are left out, as CloudWatch does."""
    series: dict[tuple[Metric, str, int], list[tuple[float, Sample]]] = {}
    for metric, at_s, sample, unit, resolution_s in points:
        if tx.now_s - PAST_S <= at_s <= tx.now_s + AHEAD_S:
            series.setdefault((metric, unit, resolution_s), []).append((at_s, sample))
    if series:
        payload = [[*metric, unit, resolution_s, samples] for (metric, unit, resolution_s), samples in series.items()]
        tx.hand_over("metrics", "points", payload)


def receive_points(tx: Tx[MetricStore], series: list[list[Any]]) -> None:
    points = []
    for region, namespace, name, dimensions, unit, resolution_s, samples in series:
        metric = Metric(region, namespace, name, tuple((key, value) for key, value in dimensions))
        points += [Point(metric, at_s, sample, unit, resolution_s) for at_s, sample in samples]
    record(tx, points)
