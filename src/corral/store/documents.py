"""What is said of buckets beside their objects: policies, CORS rules, lifecycles and the like, one document per row."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from corral.database import Database
from corral.store.buckets import Buckets

PARSED_MAX = 512
# Those that act on objects, and the column of a bucket that says whether it has one: most have none, and nobody has to look.
ACTING = {"BucketLifecycleConfiguration": "has_lifecycle", "BucketNotificationConfiguration": "has_notifications"}


class Documents:
    """A part of the state store: it shares the store's connection, transactions and savepoints."""

    def __init__(self, database: Database, buckets: Buckets) -> None:
        self._database = database
        self._buckets = buckets

    def put(self, bucket_id: int, kind: str, document: Any, now_s: float, name: str = "") -> None:
        """`document` None says that there is none, where there would be one by default."""
        self._database.execute(
            "INSERT OR REPLACE INTO bucket_document VALUES (?, ?, ?, ?, ?)",
            (bucket_id, kind, name, now_s, orjson.dumps(document).decode()),
        )
        self._note(bucket_id, kind, bool(document))

    def drop(self, bucket_id: int, kind: str, name: str = "") -> bool:
        """False: there was none."""
        self._note(bucket_id, kind, False)
        sql = "DELETE FROM bucket_document WHERE bucket = ? AND kind = ? AND name = ?"
        return self._database.execute(sql, (bucket_id, kind, name)).rowcount == 1

    def get(self, bucket_id: int, kind: str, name: str = "") -> tuple[Any, float] | None:
        """The document and when it was put; it must not be changed."""
        found = self.text(bucket_id, kind, name)
        return None if found is None else (_parsed(found[0]), found[1])

    def text(self, bucket_id: int, kind: str, name: str = "") -> tuple[str, float] | None:
        """The same, as it is written: who keeps what it means can tell by it whether that still holds."""
        sql = "SELECT document, put_at FROM bucket_document WHERE bucket = ? AND kind = ? AND name = ?"
        row: tuple[str, float] | None = self._database.execute(sql, (bucket_id, kind, name)).fetchone()
        return row

    def named(self, bucket_id: int, kind: str, after: str = "", limit: int = -1) -> list[tuple[str, Any]]:
        """(name, document) of a kind of which a bucket may have several, by name."""
        rows = self._database.execute(
            "SELECT name, document FROM bucket_document WHERE bucket = ? AND kind = ? AND name > ? ORDER BY name LIMIT ?",
            (bucket_id, kind, after, limit),
        )
        return [(name, _parsed(text)) for name, text in rows]

    def _note(self, bucket_id: int, kind: str, there: bool) -> None:
        self._buckets.forget()
        if kind in ACTING:
            self._database.execute(f"UPDATE bucket SET {ACTING[kind]} = ? WHERE id = ?", (there, bucket_id))


@lru_cache(PARSED_MAX)
def _parsed(text: str) -> Any:
    return orjson.loads(text)
