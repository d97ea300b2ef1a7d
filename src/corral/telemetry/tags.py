"""Tags of whatever has an ARN in CloudWatch: alarms and dashboards."""

from __future__ import annotations

from corral.database import Database


class Tags:
    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, arn: str) -> dict[str, str]:
        return dict(self._database.execute("SELECT key, value FROM tag WHERE arn = ? ORDER BY key", (arn,)).fetchall())

    def put(self, arn: str, tags: dict[str, str]) -> None:
        """These, and no others."""
        self._database.execute("DELETE FROM tag WHERE arn = ?", (arn,))
        self._database.executemany("INSERT INTO tag VALUES (?, ?, ?)", [(arn, key, value) for key, value in tags.items()])
