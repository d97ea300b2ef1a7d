"""Metrics: old samples are rolled up."""

from __future__ import annotations

from corral.core import Tx
from corral.telemetry import MetricStore
from corral.telemetry.rollup import roll_up

ROLL_UP_EVERY_S = 300.0
ROWS_MAX = 100  # of a minute of seconds each, some milliseconds of work; the rest follows in the next batch


def roll_up_metrics(tx: Tx[MetricStore], _: str) -> None:
    tx.store.flush()
    moved = roll_up(tx.store, tx.now_s, ROWS_MAX)
    tx.due("rollup:", tx.now_s if moved >= ROWS_MAX else tx.now_s + ROLL_UP_EVERY_S)
