"""The history of alarms grows old."""

from __future__ import annotations

from corral.core import Tx
from corral.telemetry import MetricStore

FORGET_EVERY_S = 6 * 3600.0
HISTORY_S = 30 * 86_400.0  # CloudWatch keeps an alarm's history as long
ITEMS_MAX = 500


def forget_history(tx: Tx[MetricStore], _: str) -> None:
    dropped = tx.store.alarms.drop_history(tx.now_s - HISTORY_S, ITEMS_MAX)
    tx.due("history:", tx.now_s if dropped >= ITEMS_MAX else tx.now_s + FORGET_EVERY_S)
