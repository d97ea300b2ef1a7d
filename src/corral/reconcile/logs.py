"""Reconcilers of logs. They delete events of deleted groups and streams, and events past their retention, in small batches."""

from __future__ import annotations

from corral.core import Tx
from corral.model.durations import DAY_S, HOUR_S, MINUTE_S
from corral.telemetry import LogStore

SWEEP_EVERY_S = 1.0 * MINUTE_S
SHIPMENT_RETENTION_S = 7.0 * DAY_S
# The interval between two searches for expired events. The next expiry cannot be scheduled, because a client may add old events.
EXPIRE_EVERY_S = 1.0 * HOUR_S
ROWS_MAX = 500
BYTES_MAX = 8 * 1024 * 1024


def purge_logs(tx: Tx[LogStore], _: str) -> None:
    """Delete the next batch of events of deleted groups and streams. To delete millions of events at once would delay requests."""
    if tx.store.purge(ROWS_MAX, BYTES_MAX):
        tx.due("purge:", tx.now_s)


def expire_events(tx: Tx[LogStore], _: str) -> None:
    """Delete the next batch of events that are older than the retention of their group. Responses already omit these events."""
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


def sweep_shipments(tx: Tx[LogStore], _: str) -> None:
    """Delete shipments a week after the last output of their run. A shipment says how much output of a run is stored."""
    dropped = tx.store.drop_shipments(round((tx.now_s - SHIPMENT_RETENTION_S) * 1000), ROWS_MAX)
    tx.due("sweep:", tx.now_s if dropped >= ROWS_MAX else tx.now_s + SWEEP_EVERY_S)
