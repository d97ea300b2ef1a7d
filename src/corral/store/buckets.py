"""Buckets: their only SQL. They are remembered by name: almost every request of S3 names one, and they hardly ever change."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from corral.database import Database, Row
from corral.model.objects import BUCKET_ENCRYPTION, Bucket

TOLD = f"SELECT document FROM bucket_document AS told WHERE told.bucket = bucket.id AND told.kind = '{BUCKET_ENCRYPTION}'"
COLUMNS = f"id, name, region, created_at, versioning, has_lifecycle, has_notifications, ({TOLD})"


@dataclass(slots=True)
class Changes:
    """How often a commit has changed a bucket. The writer counts, and its readers compare."""

    count: int = 0


class Buckets:
    """A part of the state store: it shares the store's connection, transactions and savepoints."""

    def __init__(self, database: Database, changes: Changes) -> None:
        self._database = database
        self.changes = changes
        self._known: dict[str, Bucket] = {}  # as of so many changes:
        self._known_at = 0
        self._reading_at: int | None = None  # how many there were before the snapshot that is read

    def add(self, name: str, region: str, now_s: float) -> bool:
        """False: there is one of this name."""
        sql = "INSERT INTO bucket (name, region, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        if self._database.execute(sql, (name, region, now_s)).rowcount == 0:
            return False
        self.forget()
        return True

    def get(self, name: str) -> Bucket | None:
        count = self.changes.count if self._reading_at is None else self._reading_at
        if self._known_at != count:
            self._known.clear()
            self._known_at = count  # before the row is read: it may change right after
        if (known := self._known.get(name)) is not None:
            return known
        row = self._database.execute(f"SELECT {COLUMNS} FROM bucket WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        bucket = self._known[name] = _bucket(row)
        return bucket

    def numbered(self, bucket_id: int) -> Bucket:
        """One that is known to be there."""
        return _bucket(self._database.execute(f"SELECT {COLUMNS} FROM bucket WHERE id = ?", (bucket_id,)).fetchone())

    def named(self, *, after: str = "", prefix: str = "", region: str | None = None, limit: int = -1) -> list[Bucket]:
        """By name, from the one after `after` on; without a limit all of them."""
        rows = self._database.execute(
            f"SELECT {COLUMNS} FROM bucket WHERE name > ?1 AND name >= ?2 AND substr(name, 1, length(?2)) = ?2 "
            "AND (?3 IS NULL OR region = ?3) ORDER BY name LIMIT ?4",
            (after, prefix, region, limit),
        )
        return [_bucket(row) for row in rows]

    def set_versioning(self, bucket_id: int, versioning: str) -> None:
        self.forget()
        self._database.execute("UPDATE bucket SET versioning = ? WHERE id = ?", (versioning, bucket_id))

    def drop(self, bucket_id: int) -> None:
        """It holds nothing any more."""
        self.forget()
        self._database.execute("DELETE FROM bucket WHERE id = ?", (bucket_id,))

    def forget(self) -> None:
        """A bucket changes, or what is said of one."""
        self._known.clear()
        self._database.journal.on_rollback(self._known.clear)
        self._database.journal.on_commit(self._count_change)

    def _count_change(self) -> None:
        self.changes.count += 1

    def begin_reading(self) -> None:
        self._reading_at = self.changes.count

    def end_reading(self) -> None:
        self._reading_at = None


def _bucket(row: Row) -> Bucket:
    bucket_id, name, region, at_s, versioning, has_lifecycle, has_notifications, encryption = row
    told = None if encryption is None else orjson.loads(encryption)
    return Bucket(bucket_id, name, region, at_s, versioning, bool(has_lifecycle), bool(has_notifications), told)
