"""Stored-only resources: documents that are stored, shown and deleted, and have no work to do. Their only SQL."""

from __future__ import annotations

from typing import Any

import orjson

from corral.database import Database

KEY = "service = ? AND kind = ? AND region = ? AND name = ?"


class StoredResources:
    """A part of the state store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, service: str, kind: str, region: str, name: str, document: dict[str, Any], now_s: float) -> bool:
        """False: there is one of this name, and it stays as it is."""
        sql = "INSERT INTO stored_resource VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        return self._database.execute(sql, (service, kind, region, name, now_s, _dumps(document))).rowcount == 1

    def change(self, service: str, kind: str, region: str, name: str, document: dict[str, Any]) -> bool:
        """False: there is none of this name."""
        sql = f"UPDATE stored_resource SET document = ? WHERE {KEY}"
        return self._database.execute(sql, (_dumps(document), service, kind, region, name)).rowcount == 1

    def drop(self, service: str, kind: str, region: str, name: str) -> bool:
        """False: there was none of this name."""
        return self._database.execute(f"DELETE FROM stored_resource WHERE {KEY}", (service, kind, region, name)).rowcount == 1

    def get(self, service: str, kind: str, region: str, name: str) -> dict[str, Any] | None:
        sql = f"SELECT document FROM stored_resource WHERE {KEY}"
        row = self._database.execute(sql, (service, kind, region, name)).fetchone()
        return orjson.loads(row[0]) if row else None

    def listed(self, service: str, kind: str, region: str, after: str = "", limit: int = -1) -> list[tuple[str, dict[str, Any]]]:
        """(name, document) by name, from the one after `after` on; without a limit all of them."""
        rows = self._database.execute(
            "SELECT name, document FROM stored_resource WHERE service = ? AND kind = ? AND region = ? AND name > ? "
            "ORDER BY name LIMIT ?",
            (service, kind, region, after, limit),
        )
        return [(name, orjson.loads(document)) for name, document in rows]


def _dumps(document: dict[str, Any]) -> str:
    return orjson.dumps(document).decode()
