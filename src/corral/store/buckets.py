"""SQL of buckets and their documents.

Buckets are cached by name, because almost every S3 request needs a bucket, and buckets rarely change. A document is one stored
configuration of a bucket, such as its policy, CORS rules or lifecycle rules.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson
from msgspec import Struct

from corral.core.database import Database, Row
from corral.model.objects import BUCKET_ENCRYPTION, BUCKET_LIFECYCLE, BUCKET_NOTIFICATION, BUCKET_POLICY, Bucket

ENCRYPTION, POLICY = (
    f"SELECT document FROM bucket_document AS d WHERE d.bucket = bucket.id AND d.kind = '{kind}'"
    for kind in (BUCKET_ENCRYPTION, BUCKET_POLICY)
)
COLUMNS = f"id, name, region, created_at, owner, versioning, has_lifecycle, has_notifications, ({ENCRYPTION}), ({POLICY})"
PARSED_MAX = 512  # the number of parsed documents in the cache
# Kind of a document → the column of `bucket` that says whether the bucket has such a document. The columns are read with the
# bucket, so requests for objects need no query to learn that there is no such document.
FLAGS = {BUCKET_LIFECYCLE: "has_lifecycle", BUCKET_NOTIFICATION: "has_notifications"}


class BucketChangeCount(Struct):
    """The number of commits that changed a bucket or a document. The writer and the readers share it.

    Each of them compares it with the count at which it filled its cache. If the counts differ, the cache is outdated.
    """

    count: int = 0


class Buckets:
    def __init__(self, database: Database, changes: BucketChangeCount) -> None:
        self._database = database
        self.changes = changes
        self._known: dict[str, Bucket] = {}
        self._known_at = 0  # the change count at which `_known` was filled
        self._reading_at: int | None = None  # the change count before the current read snapshot began; None: no snapshot

    def add(self, name: str, region: str, now_s: float, owner: str) -> bool:
        """Add a bucket; return False if the name is taken."""
        sql = "INSERT INTO bucket (name, region, created_at, owner) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
        if self._database.execute(sql, (name, region, now_s, owner)).rowcount == 0:
            return False
        self.forget()
        return True

    def get(self, name: str) -> Bucket | None:
        count = self.changes.count if self._reading_at is None else self._reading_at
        if self._known_at != count:
            self._known.clear()
            self._known_at = count  # from before the read: if a commit changes the row later, the counts differ
        if (known := self._known.get(name)) is not None:
            return known
        row = self._database.execute(f"SELECT {COLUMNS} FROM bucket WHERE name = ?", (name,)).fetchone()
        if row is None:
            return None
        bucket = self._known[name] = _bucket(row)
        return bucket

    def by_id(self, bucket_id: int) -> Bucket:
        """The bucket with this id, which must exist."""
        return _bucket(self._database.execute(f"SELECT {COLUMNS} FROM bucket WHERE id = ?", (bucket_id,)).fetchone())

    def named(self, *, after: str = "", prefix: str = "", region: str | None = None, limit: int = -1) -> list[Bucket]:
        """Buckets with names greater than `after`, sorted by name. `limit` -1 means no limit."""
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
        """Delete an empty bucket."""
        self.forget()
        self._database.execute("DELETE FROM bucket WHERE id = ?", (bucket_id,))

    def forget(self) -> None:
        """Clear the cache, because this transaction changes a bucket or a document."""
        self._known.clear()
        self._database.undo_log.on_rollback(self._known.clear)
        self._database.undo_log.on_commit(self._count_change)

    def _count_change(self) -> None:
        self.changes.count += 1

    def begin_reading(self) -> None:
        self._reading_at = self.changes.count

    def end_reading(self) -> None:
        self._reading_at = None


def _bucket(row: Row) -> Bucket:
    bucket_id, name, region, at_s, owner, versioning, has_lifecycle, has_notifications, *documents = row
    parsed = [None if each is None else orjson.loads(each) for each in documents]
    return Bucket(bucket_id, name, region, at_s, owner, versioning, bool(has_lifecycle), bool(has_notifications), *parsed)


class BucketDocuments:
    def __init__(self, database: Database, buckets: Buckets) -> None:
        self._database = database
        self._buckets = buckets

    def put(self, bucket_id: int, kind: str, document: Any, now_s: float, name: str = "") -> None:
        """Store a document. None is stored too: it says that the bucket has no document of this kind, not even the default one."""
        self._database.execute(
            "INSERT OR REPLACE INTO bucket_document VALUES (?, ?, ?, ?, ?)",
            (bucket_id, kind, name, now_s, orjson.dumps(document).decode()),
        )
        self._document_changed(bucket_id, kind, bool(document))

    def drop(self, bucket_id: int, kind: str, name: str = "") -> bool:
        """Delete a document. Returns False if it did not exist."""
        self._document_changed(bucket_id, kind, False)
        sql = "DELETE FROM bucket_document WHERE bucket = ? AND kind = ? AND name = ?"
        return self._database.execute(sql, (bucket_id, kind, name)).rowcount == 1

    def get(self, bucket_id: int, kind: str, name: str = "") -> tuple[Any, float] | None:
        """The document and the time when it was stored; None if there is none. The caller must not change the document."""
        found = self.text(bucket_id, kind, name)
        return None if found is None else (_parsed(found[0]), found[1])

    def text(self, bucket_id: int, kind: str, name: str = "") -> tuple[str, float] | None:
        """The document as JSON text, and the time when it was stored. The text can be the key of a cache."""
        sql = "SELECT document, put_at FROM bucket_document WHERE bucket = ? AND kind = ? AND name = ?"
        row: tuple[str, float] | None = self._database.execute(sql, (bucket_id, kind, name)).fetchone()
        return row

    def named(self, bucket_id: int, kind: str, after: str = "", limit: int = -1) -> list[tuple[str, Any]]:
        """The (name, document) pairs of one kind, sorted by name."""
        rows = self._database.execute(
            "SELECT name, document FROM bucket_document WHERE bucket = ? AND kind = ? AND name > ? ORDER BY name LIMIT ?",
            (bucket_id, kind, after, limit),
        )
        return [(name, _parsed(text)) for name, text in rows]

    def _document_changed(self, bucket_id: int, kind: str, exists: bool) -> None:
        self._buckets.forget()
        if kind in FLAGS:
            self._database.execute(f"UPDATE bucket SET {FLAGS[kind]} = ? WHERE id = ?", (exists, bucket_id))


@lru_cache(PARSED_MAX)
def _parsed(text: str) -> Any:
    return orjson.loads(text)
