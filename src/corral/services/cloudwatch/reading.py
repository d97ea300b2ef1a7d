"""Values of one series: for whoever asks, and for whoever judges them."""

from __future__ import annotations

from corral.core import Tx
from corral.decide.periods import is_kept
from corral.decide.statistics import Statistic, value_of
from corral.model.metric import Metric
from corral.telemetry import MetricStore


def values(
    tx: Tx[MetricStore], metric: Metric, statistic: Statistic, *, start_s: int, end_s: int, period_s: int, unit: str | None = None
) -> dict[int, float]:
    """One value for each period that has samples, by the second at which it begins. The periods begin at `start_s`."""
    summaries = tx.store.read(
        metric, start_s=start_s, end_s=end_s, period_s=period_s, now_s=tx.now_s, unit=unit, values=statistic.needs_values
    )
    found = ((at_s, value_of(summary, statistic)) for at_s, summary in sorted(summaries.items()))
    return {at_s: value for at_s, value in found if value is not None and is_kept(at_s, period_s, tx.now_s)}


def newest_second(
    tx: Tx[MetricStore], metric: Metric, statistic: Statistic, *, since_s: int, unit: str | None = None
) -> tuple[int, float] | None:
    """The newest second with samples, from `since_s` on, and its value."""
    newest = tx.store.newest(metric, since_s=since_s, now_s=tx.now_s, unit=unit)
    if newest is None:
        return None
    value = value_of(newest[1], statistic)
    return None if value is None else (newest[0], value)
