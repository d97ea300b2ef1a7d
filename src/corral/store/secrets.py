"""SQL of secrets and their versions."""

from __future__ import annotations

from typing import Any

import orjson

from corral.core.database import Database, Row
from corral.model.secret import SecretVersion, StoredSecret

COLUMNS = "region, name, suffix, owner, created_at, changed_at, accessed_at, delete_at, details, tags, policy"
VERSION_COLUMNS = "region, secret, id, number, value, is_binary, created_at, accessed_at, stages"
# Sort key of ListSecrets → SQL expression. Secrets with the same value are sorted by name.
SORTED_BY = {
    "created-date": "created_at",
    "last-accessed-date": "coalesce(accessed_at, 0.0)",
    "last-changed-date": "changed_at",
    "name": "name",
}


class Secrets:
    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, region: str, name: str) -> StoredSecret | None:
        sql = f"SELECT {COLUMNS} FROM secret WHERE region = ? AND name = ?"
        row = self._database.execute(sql, (region, name)).fetchone()
        return _secret(row) if row else None

    def add(self, secret: StoredSecret) -> None:
        marks = ", ".join("?" * len(COLUMNS.split(",")))
        self._database.execute(f"INSERT INTO secret ({COLUMNS}) VALUES ({marks})", _values(secret))

    def put(self, secret: StoredSecret) -> None:
        """Replace the row of a secret."""
        columns = ", ".join(f"{column} = ?" for column in COLUMNS.split(", "))
        sql = f"UPDATE secret SET {columns} WHERE region = ? AND name = ?"
        self._database.execute(sql, (*_values(secret), secret.region, secret.name))

    def drop(self, region: str, name: str) -> None:
        """Delete a secret with all its versions."""
        self._database.execute("DELETE FROM secret WHERE region = ? AND name = ?", (region, name))

    def listed(
        self, region: str, sort: str, after: tuple[str | float, str] | None, limit: int, *, descending: bool, with_deleted: bool
    ) -> list[tuple[str | float, StoredSecret]]:
        """Return secrets, each with its value of the sort key. `after` has the value and the name of the secret before them."""
        by, direction, compare = SORTED_BY[sort], *(("DESC", "<") if descending else ("ASC", ">"))
        rest = f" AND ({by}, name) {compare} (?, ?)" if after is not None else ""
        deleted = "" if with_deleted else " AND delete_at IS NULL"
        rows = self._database.execute(
            f"SELECT {by}, {COLUMNS} FROM secret WHERE region = ?{deleted}{rest} "
            f"ORDER BY {by} {direction}, name {direction} LIMIT ?",
            (region, *(after or ()), limit),
        )
        return [(row[0], _secret(row[1:])) for row in rows]

    # Versions

    def versions(self, region: str, name: str) -> list[SecretVersion]:
        """Return the versions of a secret. The oldest version is first."""
        sql = f"SELECT {VERSION_COLUMNS} FROM secret_version WHERE region = ? AND secret = ? ORDER BY number"
        return [_version(row) for row in self._database.execute(sql, (region, name))]

    def add_version(self, version: SecretVersion) -> None:
        marks = ", ".join("?" * len(VERSION_COLUMNS.split(",")))
        self._database.execute(
            f"INSERT INTO secret_version ({VERSION_COLUMNS}) VALUES ({marks})",
            (version.region, version.secret, version.id, version.number, version.value, int(version.is_binary),
             version.created_at_s, version.accessed_at_s, _dumps(version.stages)),
        )  # fmt: skip

    def drop_version(self, version: SecretVersion) -> None:
        sql = "DELETE FROM secret_version WHERE region = ? AND secret = ? AND number = ?"
        self._database.execute(sql, (version.region, version.secret, version.number))

    def set_stages(self, version: SecretVersion, stages: tuple[str, ...]) -> None:
        sql = "UPDATE secret_version SET stages = ? WHERE region = ? AND secret = ? AND number = ?"
        self._database.execute(sql, (_dumps(stages), version.region, version.secret, version.number))

    def set_accessed(self, version: SecretVersion, at_s: float) -> None:
        """Record that a version was read, and so its secret."""
        sql = "UPDATE secret_version SET accessed_at = ? WHERE region = ? AND secret = ? AND number = ?"
        self._database.execute(sql, (at_s, version.region, version.secret, version.number))
        self._database.execute(
            "UPDATE secret SET accessed_at = ? WHERE region = ? AND name = ?", (at_s, version.region, version.secret)
        )


def _values(secret: StoredSecret) -> tuple[str | float | None, ...]:
    return (
        secret.region, secret.name, secret.suffix, secret.owner, secret.created_at_s, secret.changed_at_s, secret.accessed_at_s,
        secret.delete_at_s, _dumps(secret.details), None if secret.tags is None else _dumps(secret.tags), secret.policy,
    )  # fmt: skip


def _secret(row: Row) -> StoredSecret:
    region, name, suffix, owner, created_at_s, changed_at_s, accessed_at_s, delete_at_s, details, tags, policy = row
    return StoredSecret(
        region, name, suffix, owner, created_at_s, changed_at_s, accessed_at_s, delete_at_s, orjson.loads(details),
        None if tags is None else orjson.loads(tags), policy,
    )  # fmt: skip


def _version(row: Row) -> SecretVersion:
    region, secret, id, number, value, is_binary, created_at_s, accessed_at_s, stages = row
    return SecretVersion(
        region, secret, id, number, value, bool(is_binary), created_at_s, accessed_at_s, tuple(orjson.loads(stages))
    )


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()
