"""SQL of dashboards, and of the tags of dashboards and alarms. They are part of the metric store."""

from __future__ import annotations

from msgspec import Struct

from corral.core.database import Database
from corral.model.principal import ROOT


class Dashboard(Struct, frozen=True):
    name: str
    body: str  # the JSON text of PutDashboard, unchanged
    modified_s: float
    owner: str = ROOT


class Dashboards:
    def __init__(self, database: Database) -> None:
        self._execute = database.execute

    def put(self, dashboard: Dashboard) -> None:
        """Add a dashboard. If it exists, replace its body; it keeps its owner."""
        sql = "INSERT INTO dashboard VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        row = dashboard.name, dashboard.body, dashboard.modified_s, dashboard.owner
        self._execute(sql + "body = excluded.body, modified_s = excluded.modified_s", row)

    def get(self, name: str) -> Dashboard | None:
        row = self._execute("SELECT name, body, modified_s, owner FROM dashboard WHERE name = ?", (name,)).fetchone()
        return Dashboard(*row) if row else None

    def drop(self, name: str) -> bool:
        """Delete a dashboard. Return False if it does not exist."""
        return self._execute("DELETE FROM dashboard WHERE name = ?", (name,)).rowcount == 1

    def page(self, prefix: str, after: str, limit: int) -> list[Dashboard]:
        """Return the dashboards whose names begin with `prefix` and are greater than `after`, sorted by name."""
        rows = self._execute(
            "SELECT name, body, modified_s, owner FROM dashboard WHERE name > ? AND name >= ? AND name < ? ORDER BY name LIMIT ?",
            (after, prefix, prefix + "\U0010ffff", limit),
        )
        return [Dashboard(*row) for row in rows]


class ResourceTags:
    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, arn: str) -> dict[str, str]:
        return dict(self._database.execute("SELECT key, value FROM tag WHERE arn = ? ORDER BY key", (arn,)).fetchall())

    def put(self, arn: str, tags: dict[str, str]) -> None:
        """Replace all tags of a resource."""
        self._database.execute("DELETE FROM tag WHERE arn = ?", (arn,))
        self._database.executemany("INSERT INTO tag VALUES (?, ?, ?)", [(arn, key, value) for key, value in tags.items()])
