"""Samples of metrics and the history of alarms grow old."""

from __future__ import annotations

from corral.core import Tx
from corral.telemetry import MetricStore
from corral.telemetry.rollup import roll_up

ROLL_UP_EVERY_S = 300.0
FORGET_EVERY_S = 6 * 3600.0
HISTORY_S = 30 * 86_400.0  # CloudWatch keeps an alarm's history as long
ITEMS_MAX = 500
ROWS_MAX = 100  # of a minute of seconds each, some milliseconds of work; the rest follows in the next batch


def roll_up_metrics(tx: Tx[MetricStore], _: str) -> None:
    tx.store.flush()
    moved = roll_up(tx.store, tx.now_s, ROWS_MAX)
    tx.due("rollup:", tx.now_s if moved >= ROWS_MAX else tx.now_s + ROLL_UP_EVERY_S)


def forget_history(tx: Tx[MetricStore], _: str) -> None:
    dropped = tx.store.alarms.drop_history(tx.now_s - HISTORY_S, ITEMS_MAX)
    tx.due("history:", tx.now_s if dropped >= ITEMS_MAX else tx.now_s + FORGET_EVERY_S)
