"""Dashboards: kept as they came."""

from __future__ import annotations

from dataclasses import dataclass

from corral.database import Database


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str
    body: str
    modified_s: float


class Dashboards:
    def __init__(self, database: Database) -> None:
        self._execute = database.execute

    def put(self, dashboard: Dashboard) -> None:
        sql = "INSERT INTO dashboard VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
        self._execute(
            sql + "body = excluded.body, modified_s = excluded.modified_s", (dashboard.name, dashboard.body, dashboard.modified_s)
        )

    def get(self, name: str) -> Dashboard | None:
        row = self._execute("SELECT name, body, modified_s FROM dashboard WHERE name = ?", (name,)).fetchone()
        return Dashboard(*row) if row else None

    def drop(self, name: str) -> bool:
        """False: there is none."""
        return self._execute("DELETE FROM dashboard WHERE name = ?", (name,)).rowcount == 1

    def page(self, prefix: str, after: str, limit: int) -> list[Dashboard]:
        """By name."""
        rows = self._execute(
            "SELECT name, body, modified_s FROM dashboard WHERE name > ? AND name >= ? AND name < ? ORDER BY name LIMIT ?",
            (after, prefix, prefix + "\U0010ffff", limit),
        )
        return [Dashboard(*row) for row in rows]
