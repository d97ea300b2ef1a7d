"""What has been kept long enough is dropped, some at a time."""

from __future__ import annotations

from corral.core import Tx
from corral.store import Store
from corral.telemetry import LogStore

SWEEP_EVERY_S = 60.0
STOPPED_TASKS_S = 3600.0  # ECS shows a stopped task for an hour
SHIPMENTS_S = 7 * 86_400.0
ROWS_MAX = 500


def sweep_state(tx: Tx[Store], _: str) -> None:
    dropped = tx.store.drop_stopped_tasks(tx.now_s - STOPPED_TASKS_S, ROWS_MAX) + tx.store.drop_tokens(tx.now_s, ROWS_MAX)
    tx.due("sweep:", tx.now_s if dropped >= ROWS_MAX else tx.now_s + SWEEP_EVERY_S)


def finish_deletions(tx: Tx[Store], _: str) -> None:
    """Task definitions in deletion go once no task refers to them; stopped tasks do as long as they are shown."""
    if tx.store.drop_deleted_definitions(tx.settings.account, ROWS_MAX):
        tx.due("deletion:", tx.now_s + SWEEP_EVERY_S)


def sweep_logs(tx: Tx[LogStore], _: str) -> None:
    dropped = tx.store.drop_shipments(round((tx.now_s - SHIPMENTS_S) * 1000), ROWS_MAX)
    tx.due("sweep:", tx.now_s if dropped >= ROWS_MAX else tx.now_s + SWEEP_EVERY_S)


def purge_stream(tx: Tx[LogStore], stream_id: str) -> None:
    """Events of a deleted stream: millions of them must not stall anybody."""
    if tx.store.purge_events(int(stream_id), ROWS_MAX) == ROWS_MAX:
        tx.due(f"purge:{stream_id}", tx.now_s)
