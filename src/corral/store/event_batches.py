"""SQL of the batches of messages that event source mappings of Lambda have received and not settled yet."""

from __future__ import annotations

import orjson

from corral.core.database import Database, Row
from corral.model.function import EventBatch

COLUMNS = "invocation, mapping, queue, receipts"


class EventBatches:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, batch: EventBatch) -> None:
        self._database.execute(
            f"INSERT INTO event_batch ({COLUMNS}) VALUES (?, ?, ?, ?)",
            (batch.invocation, batch.mapping, batch.queue, orjson.dumps(batch.receipts).decode()),
        )

    def drop(self, batch: EventBatch) -> None:
        self._database.execute("DELETE FROM event_batch WHERE invocation = ?", (batch.invocation,))

    def mapping_of(self, invocation: str) -> str | None:
        row = self._database.execute("SELECT mapping FROM event_batch WHERE invocation = ?", (invocation,)).fetchone()
        return str(row[0]) if row else None

    def count(self, mapping: str) -> int:
        return int(self._database.execute("SELECT count(*) FROM event_batch WHERE mapping = ?", (mapping,)).fetchone()[0])

    def ended(self, mapping: str, limit: int) -> list[EventBatch]:
        """Return batches whose invocation has ended, or was lost because Corral ended."""
        rows = self._database.execute(
            "SELECT event_batch.invocation, mapping, queue, receipts FROM event_batch LEFT JOIN invocation ON id = invocation "
            "WHERE mapping = ? AND (state IS NULL OR state IN ('succeeded', 'failed')) LIMIT ?",
            (mapping, limit),
        )
        return [_batch(row) for row in rows]

    def mappings(self) -> list[str]:
        """Return the mappings that have batches."""
        return [mapping for (mapping,) in self._database.execute("SELECT DISTINCT mapping FROM event_batch")]


def _batch(row: Row) -> EventBatch:
    invocation, mapping, queue, receipts = row
    return EventBatch(invocation, mapping, queue, [(message_id, handle) for message_id, handle in orjson.loads(receipts)])
