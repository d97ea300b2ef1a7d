"""SQL of resources that are stored as JSON documents.

Some of these resources are stored only: Corral stores and describes them, but they have no effect. The others have an effect, but
need no table of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson

from corral.core.database import Database
from corral.store.iam_index import IamIndex

Document = dict[str, Any]  # a resource with the service's member names; responses omit members that begin with "_"
ROWS_PER_READ = 100
TEXTS_MAX = 1_000


class StoredResources:
    def __init__(self, database: Database, iam: IamIndex) -> None:
        self._database = database
        self._iam = iam
        # Documents that `text` has read; None: the resource does not exist. They are cached, because each start of a Batch job
        # reads its queue and its compute environments several times. A read-only connection caches nothing, because it does not
        # notice the changes of the writer.
        self._texts: dict[tuple[str, str, str, str], str | None] = {}
        if not database.reads_only:
            for name, user in self.listed("iam", "user", ""):
                iam.changed("user", name, user)

    def add(self, service: str, type_: str, region: str, name: str, document: Document, now_s: float, owner: str = "") -> bool:
        """Add a resource. If the name exists, change nothing and return False. A record that is no resource has no owner."""
        sql = "INSERT INTO stored_resource VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        values = service, type_, region, name, now_s, owner, _dumps(document)
        return self._changed(sql, values, (service, type_, region, name), document)

    def change(self, service: str, type_: str, region: str, name: str, document: Document) -> bool:
        """Replace the document of a resource. Returns False if the resource does not exist."""
        sql = "UPDATE stored_resource SET document = ? WHERE service = ? AND type = ? AND region = ? AND name = ?"
        key = service, type_, region, name
        return self._changed(sql, (_dumps(document), *key), key, document)

    def put(self, service: str, type_: str, region: str, name: str, document: Document, now_s: float, owner: str = "") -> None:
        """Add a resource. If it exists, replace its document; it keeps its owner."""
        if not self.add(service, type_, region, name, document, now_s, owner):
            self.change(service, type_, region, name, document)

    def drop(self, service: str, type_: str, region: str, name: str) -> bool:
        """Delete a resource. Returns False if it does not exist."""
        sql = "DELETE FROM stored_resource WHERE service = ? AND type = ? AND region = ? AND name = ?"
        key = service, type_, region, name
        return self._changed(sql, key, key, None)

    def get(self, service: str, type_: str, region: str, name: str) -> Document | None:
        text = self._read((service, type_, region, name))
        return orjson.loads(text) if text is not None else None

    def owner(self, service: str, type_: str, region: str, name: str) -> str:
        """Return the owner of a resource, or an empty text if there is no such resource."""
        sql = "SELECT owner FROM stored_resource WHERE service = ? AND type = ? AND region = ? AND name = ?"
        row = self._database.execute(sql, (service, type_, region, name)).fetchone()
        return str(row[0]) if row else ""

    def text(self, service: str, type_: str, region: str, name: str) -> str | None:
        """Return the document as JSON text, or None if there is no such resource. The text can be the key of a cache."""
        key = service, type_, region, name
        if key in self._texts:
            return self._texts[key]
        text = self._read(key)
        if not self._database.reads_only:
            if len(self._texts) >= TEXTS_MAX:
                del self._texts[next(iter(self._texts))]
            self._texts[key] = text
        return text

    def _read(self, key: tuple[str, str, str, str]) -> str | None:
        sql = "SELECT document FROM stored_resource WHERE service = ? AND type = ? AND region = ? AND name = ?"
        row = self._database.execute(sql, key).fetchone()
        return row[0] if row else None

    def _forget(self, key: tuple[str, str, str, str]) -> None:
        """Forget the cached text of a resource that changes now. If the change is rolled back, forget it again."""
        self._texts.pop(key, None)
        self._database.undo_log.on_rollback(partial(self._texts.pop, key, None))

    def has(self, service: str, type_: str) -> bool:
        sql = "SELECT 1 FROM stored_resource WHERE service = ? AND type = ? LIMIT 1"
        return self._database.execute(sql, (service, type_)).fetchone() is not None

    def count(self, service: str, type_: str, region: str) -> int:
        sql = "SELECT count(*) FROM stored_resource WHERE service = ? AND type = ? AND region = ?"
        return int(self._database.execute(sql, (service, type_, region)).fetchone()[0])

    def listed(self, service: str, type_: str, region: str, after: str = "", limit: int = -1) -> list[tuple[str, Document]]:
        """Return (name, document) pairs with names greater than `after`, sorted by name. `limit` -1 means no limit."""
        sql = (
            "SELECT name, document FROM stored_resource WHERE service = ? AND type = ? AND region = ? AND name > ? "
            "ORDER BY name LIMIT ?"
        )
        rows = self._database.execute(sql, (service, type_, region, after, limit))
        return [(name, orjson.loads(document)) for name, document in rows]

    def containing(self, service: str, type_: str, region: str, text: str) -> list[tuple[str, Document]]:
        """Return (name, document) pairs whose documents contain a text, sorted by name."""
        sql = (
            "SELECT name, document FROM stored_resource WHERE service = ? AND type = ? AND region = ? AND instr(document, ?) "
            "ORDER BY name"
        )
        rows = self._database.execute(sql, (service, type_, region, text))
        return [(name, orjson.loads(document)) for name, document in rows]

    def with_prefix(self, service: str, type_: str, region: str, prefix: str, after: str = "") -> Iterator[tuple[str, Document]]:
        """Yield (name, document) pairs whose names begin with `prefix` and are greater than `after`, sorted by name."""
        after = max(prefix, after)
        while True:
            rows = self.listed(service, type_, region, after, ROWS_PER_READ)
            for name, document in rows:
                if not name.startswith(prefix):
                    return
                yield name, document
            if len(rows) < ROWS_PER_READ:
                return
            after = rows[-1][0]

    def _changed(
        self, sql: str, values: tuple[str | float, ...], key: tuple[str, str, str, str], document: Document | None
    ) -> bool:
        """Execute a statement that sets the document of a resource, or deletes it (None). Return whether it has changed a row."""
        self._forget(key)
        if self._database.execute(sql, values).rowcount != 1:
            return False
        service, type_, _, name = key
        if service == "iam":
            self._database.undo_log.on_commit(partial(self._iam.changed, type_, name, document))
        return True


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()
