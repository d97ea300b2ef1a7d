"""Datapoints that arrive for an alarm wake it. `reconcile/alarms.py` judges it."""

from __future__ import annotations

from corral.core import Tx
from corral.decide.alarm import conclusive, is_level
from corral.model.alarm import Alarm
from corral.model.metric import Point
from corral.services.cloudwatch.watched import Watched, watched_by
from corral.telemetry import MetricStore


def arrived(tx: Tx[MetricStore], alarm: Alarm, point: Point) -> None:
    """Something new for an alarm: look at it now, or when the window ends in which it lies."""
    watched, alarms = watched_by(alarm), tx.store.alarms
    end_s = watched.last_end_s(point.at_s) + watched.step_s
    if end_s <= tx.now_s:  # it is late
        alarms.set_judged(alarm.id, 0.0)
        tx.mark(f"alarm:{alarm.id}")
        return
    alarms.wake(alarm.id, end_s)
    if tx.settings.alarm_timing == "fast" and (watched.own or may_speak_early(watched)):
        tx.mark(f"alarm:{alarm.id}")


def may_speak_early(watched: Watched) -> bool:
    """Whether the alarm may go off before a window ends."""
    if watched.series is None or watched.few_samples == "ignore":  # of the samples of a whole window
        return False
    kind = watched.series.statistic.kind
    return is_level(kind) or conclusive(kind, watched.criteria, 0.0)
