"""SQL of the table `private_environment`: how long Corral keeps the S3 objects with the environment variables of `corral run`.

`model/private_environment.py` describes these objects.
"""

from __future__ import annotations

from corral.core.database import Database


class PrivateEnvironments:
    """For each object: how many tasks that have not ended refer to it, and until when it is kept without such tasks."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, key: str, until_s: float, uploader: str) -> None:
        """Keep an object at least until this time. If the object is already known, its uploader does not change."""
        self._database.execute(
            "INSERT INTO private_environment VALUES (?, 0, ?, ?) "
            "ON CONFLICT (key) DO UPDATE SET kept_until = max(kept_until, excluded.kept_until)",
            (key, until_s, uploader),
        )

    def uploader(self, key: str) -> str | None:
        """Return the session that has uploaded an object, or an empty text for the root user. Return None for unknown objects."""
        row = self._database.execute("SELECT uploader FROM private_environment WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def use(self, key: str) -> None:
        """Count a new task that refers to the object."""
        self._database.execute(
            "INSERT INTO private_environment VALUES (?, 1, 0, '') ON CONFLICT (key) DO UPDATE SET tasks = tasks + 1", (key,)
        )

    def release(self, key: str, keep_until_s: float) -> None:
        """Count the end of a task that refers to the object. If no such task is left, the object is kept until `keep_until_s`."""
        self._database.execute(
            "UPDATE private_environment SET tasks = tasks - 1, kept_until = ? WHERE key = ? AND tasks > 0", (keep_until_s, key)
        )

    def get(self, key: str) -> tuple[int, float] | None:
        """Return the number of tasks that refer to the object, and the time until which it is kept without them."""
        row = self._database.execute("SELECT tasks, kept_until FROM private_environment WHERE key = ?", (key,)).fetchone()
        return (int(row[0]), float(row[1])) if row else None

    def drop(self, key: str) -> None:
        self._database.execute("DELETE FROM private_environment WHERE key = ?", (key,))
