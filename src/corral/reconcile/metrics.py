"""Reconcilers of the metric store. They roll up old samples, and delete old items of alarm histories."""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.model.durations import DAY_S, HOUR_S
from corral.telemetry import MetricStore
from corral.telemetry.rollup import roll_up

ROLL_UP_EVERY_S = 300.0
ROWS_MAX = 100  # the most rows that one transaction rolls up: a few milliseconds; a row has sixty time steps of a series
EXPIRE_HISTORY_EVERY_S = 6.0 * HOUR_S
HISTORY_RETENTION_S = 30.0 * DAY_S  # the same as on CloudWatch
ITEMS_MAX = 500  # the most items of alarm histories that one transaction deletes


def roll_up_metrics(tx: Tx[MetricStore], _: str) -> None:
    tx.store.flush()
    moved = roll_up(tx.store, tx.now_s, ROWS_MAX)
    tx.due("rollup:", tx.now_s if moved >= ROWS_MAX else tx.now_s + ROLL_UP_EVERY_S)


def expire_alarm_history(tx: Tx[MetricStore], _: str) -> None:
    dropped = tx.store.alarms.drop_history(tx.now_s - HISTORY_RETENTION_S, ITEMS_MAX)
    tx.due("history:", tx.now_s if dropped >= ITEMS_MAX else tx.now_s + EXPIRE_HISTORY_EVERY_S)
