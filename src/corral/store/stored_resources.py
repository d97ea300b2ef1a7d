"""SQL of stored-only resources. A row has one JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from corral.database import Database

Document = dict[str, Any]  # a resource with the service's member names; responses omit members that begin with "_"
ROWS_PER_READ = 100


class StoredResources:
    """The stored-only resources in the state store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, service: str, type_: str, region: str, name: str, document: Document, now_s: float) -> bool:
        """Add a resource. If the name exists, change nothing and return False."""
        sql = "INSERT INTO stored_resource VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        return self._changed(sql, (service, type_, region, name, now_s, _dumps(document)))

    def change(self, service: str, type_: str, region: str, name: str, document: Document) -> bool:
        """Replace the document of a resource. Returns False if the resource does not exist."""
        sql = "UPDATE stored_resource SET document = ? WHERE service = ? AND type = ? AND region = ? AND name = ?"
        return self._changed(sql, (_dumps(document), service, type_, region, name))

    def put(self, service: str, type_: str, region: str, name: str, document: Document, now_s: float) -> None:
        """Add a resource. If it exists, replace its document."""
        if not self.add(service, type_, region, name, document, now_s):
            self.change(service, type_, region, name, document)

    def drop(self, service: str, type_: str, region: str, name: str) -> bool:
        """Delete a resource. Returns False if it does not exist."""
        sql = "DELETE FROM stored_resource WHERE service = ? AND type = ? AND region = ? AND name = ?"
        return self._changed(sql, (service, type_, region, name))

    def get(self, service: str, type_: str, region: str, name: str) -> Document | None:
        text = self.text(service, type_, region, name)
        return orjson.loads(text) if text is not None else None

    def text(self, service: str, type_: str, region: str, name: str) -> str | None:
        """Return the document as JSON. A caller that reads it often can cache what it parses from this text."""
        sql = "SELECT document FROM stored_resource WHERE service = ? AND type = ? AND region = ? AND name = ?"
        row = self._database.execute(sql, (service, type_, region, name)).fetchone()
        return row[0] if row else None

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

    def _changed(self, sql: str, values: tuple[str | float, ...]) -> bool:
        return self._database.execute(sql, values).rowcount == 1


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()
