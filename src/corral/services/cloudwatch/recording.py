"""The one way in for points: PutMetricData, EMF found in logs, and what Corral measures itself."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core import Tx
from corral.model.metric import Point
from corral.telemetry import MetricStore


def record(tx: Tx[MetricStore], points: Sequence[Point], *, own: bool = False) -> None:
    """Keep points, and wake whoever watches their series.

    They are on disk with this transaction. `own` points, which Corral makes itself each second, are held in memory and
    written every few seconds; everybody sees them at once, and a crash may lose the last of them.
    """
    if own:
        tx.store.hold(points, tx.now_s)
    else:
        tx.store.append(points, tx.now_s)
    watchers = tx.store.watchers
    if watchers:
        for point in points:
            for key in watchers.get(point.metric, ()):
                tx.mark(key)
