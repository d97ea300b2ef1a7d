"""Reconcilers of logs. They delete events of deleted groups and streams, events past their retention, and old shipments.

A shipment is a row that says how much output of a run (a container of a task) is stored. Each transaction deletes a limited number
of rows, because the deletion of millions of events at once would delay requests.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.model.durations import DAY_S, HOUR_S, MINUTE_S
from corral.telemetry import LogStore

SWEEP_EVERY_S = 1.0 * MINUTE_S  # the shortest time between two deletions, if the first one has deleted all old rows
SHIPMENT_RETENTION_S = 7.0 * DAY_S
# The longest time between two searches for expired events. The reconciler cannot wait for the next known expiry, because a client
# may add older events.
EXPIRE_EVERY_S = 1.0 * HOUR_S
ROWS_MAX = 500  # the most rows that one transaction deletes
BYTES_MAX = 8 * 1024 * 1024  # the most bytes of events that one transaction deletes


def purge_logs(tx: Tx[LogStore], _: str) -> None:
    """Delete the next events of deleted groups and streams. Schedule the next call if more are left."""
    if tx.store.purge(ROWS_MAX, BYTES_MAX):
        tx.due("purge:", tx.now_s)


def expire_events(tx: Tx[LogStore], _: str) -> None:
    """Delete the next events that are older than the retention of their group. Responses already omit these events."""
    if not tx.store.has_retention():
        return
    now_ms, expiry = round(tx.expiry_s * 1000), tx.store.next_expiry()
    next_s = tx.now_s + EXPIRE_EVERY_S
    if expiry is not None:
        group_id, at_ms = expiry
        if at_ms < now_ms:
            tx.store.expire(group_id, now_ms, ROWS_MAX, BYTES_MAX)
            next_s = tx.now_s
        else:
            next_s = min(max(tx.now_s + at_ms / 1000 - tx.expiry_s, tx.now_s + SWEEP_EVERY_S), next_s)
    tx.due("expire:", next_s)


def sweep_shipments(tx: Tx[LogStore], _: str) -> None:
    """Delete shipments SHIPMENT_RETENTION_S after the last output of their run."""
    dropped = tx.store.drop_shipments(round((tx.expiry_s - SHIPMENT_RETENTION_S) * 1000), ROWS_MAX)
    tx.due("sweep:", tx.now_s if dropped >= ROWS_MAX else tx.now_s + SWEEP_EVERY_S)
