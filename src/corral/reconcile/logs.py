"""Log events: those of deleted groups and those past their retention go, some at a time."""

from __future__ import annotations

from corral.core import Tx
from corral.telemetry import LogStore

SWEEP_EVERY_S = 60.0
SHIPMENTS_S = 7 * 86_400.0
EXPIRE_EVERY_S = 3600.0  # events may arrive that are older than those we know
ROWS_MAX = 500
BYTES_MAX = 8 * 1024 * 1024


def purge_logs(tx: Tx[LogStore], _: str) -> None:
    """What deleted groups and streams held: millions of events must not stall anybody."""
    if tx.store.purge(ROWS_MAX, BYTES_MAX):
        tx.due("purge:", tx.now_s)


def expire_events(tx: Tx[LogStore], _: str) -> None:
    """Events older than their group's retention. Nobody sees them any more; here they go, some at a time."""
    if not tx.store.has_retention():
        return
    now_ms, expiry = round(tx.now_s * 1000), tx.store.next_expiry()
    next_s = tx.now_s + EXPIRE_EVERY_S
    if expiry is not None:
        group_id, at_ms = expiry
        if at_ms < now_ms:
            tx.store.expire(group_id, now_ms, ROWS_MAX, BYTES_MAX)
            next_s = tx.now_s
        else:
            next_s = min(max(at_ms / 1000, tx.now_s + SWEEP_EVERY_S), next_s)
    tx.due("expire:", next_s)


def sweep_logs(tx: Tx[LogStore], _: str) -> None:
    """Drop the notes on chunks of logs that hosts have shipped."""
    dropped = tx.store.drop_shipments(round((tx.now_s - SHIPMENTS_S) * 1000), ROWS_MAX)
    tx.due("sweep:", tx.now_s if dropped >= ROWS_MAX else tx.now_s + SWEEP_EVERY_S)
