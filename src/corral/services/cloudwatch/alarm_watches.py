"""Reports of alarm states to the state lane. A deployment of an ECS service watches alarms, and fails if one is in ALARM."""

from __future__ import annotations

from typing import Any

from corral.core.transactions import Tx
from corral.model.alarm import COMPOSITE, Alarm, AlarmState
from corral.services.cloudwatch.alarm_config import alarm_config
from corral.telemetry import MetricStore


def receive_alarm_watches(tx: Tx[MetricStore], payload: dict[str, Any]) -> None:
    """Replace the alarms that a deployment (the watcher) watches. Without alarms, delete the watcher."""
    watcher, region = payload["watcher"], payload["region"]
    tx.store.alarms.set_watches(watcher, region, payload["alarms"])
    if payload["alarms"]:
        # A report with a key replaces an earlier report with the same key that has not been received yet. The first report has no
        # key, because the watcher needs it: the watcher ignores alarms that are in ALARM at the start.
        _report(tx, watcher, region, key=None)


def report_to_watchers(tx: Tx[MetricStore], alarm: Alarm) -> None:
    """Report a changed state to all watchers of the alarm."""
    for watcher in tx.store.alarms.watchers_of(alarm.region, alarm.name):
        _report(tx, watcher, alarm.region, key=watcher)


def _report(tx: Tx[MetricStore], watcher: str, region: str, *, key: str | None) -> None:
    found = [alarm for name in tx.store.alarms.watches(watcher) if (alarm := tx.store.alarms.get(region, name)) is not None]
    in_alarm = [alarm.name for alarm in found if alarm.state is AlarmState.ALARM]
    window_s = max((_window_s(alarm) for alarm in found), default=0)
    tx.hand_over("state", "watched alarms", {"watcher": watcher, "in_alarm": in_alarm, "window_s": window_s}, key=key)


def _window_s(alarm: Alarm) -> int:
    """Return how many seconds an evaluation of the alarm covers. The result is 0 for a composite alarm."""
    if alarm.kind == COMPOSITE:
        return 0
    config = alarm_config(alarm)
    return config.period_s * config.criteria.periods
