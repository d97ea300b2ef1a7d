"""SQL of parameters and their versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from corral.core.database import Database, Row
from corral.model.parameter import Parameter

COLUMNS = "v.region, v.name, v.version, v.type, v.value, v.modified_at, v.modified_by, v.details, v.labels"
LATEST = (
    f"SELECT {COLUMNS} FROM parameter p JOIN parameter_version v "
    "ON v.region = p.region AND v.name = p.name AND v.version = p.latest"
)
ONE = f"SELECT {COLUMNS} FROM parameter_version v WHERE v.region = ? AND v.name = ?"
LAST_CHARACTER = "\U0010ffff"  # the largest character: every name with a prefix is smaller than the prefix plus this character


class Parameters:
    def __init__(self, database: Database) -> None:
        self._database = database

    def latest(self, region: str, name: str) -> Parameter | None:
        return self._one(f"{LATEST} WHERE p.region = ? AND p.name = ?", (region, name))

    def version(self, region: str, name: str, version: int) -> Parameter | None:
        return self._one(f"{ONE} AND v.version = ?", (region, name, version))

    def labelled(self, region: str, name: str, label: str) -> Parameter | None:
        return self._one(f"{ONE} AND EXISTS (SELECT 1 FROM json_each(v.labels) WHERE value = ?)", (region, name, label))

    def oldest(self, region: str, name: str) -> Parameter | None:
        return self._one(f"{ONE} ORDER BY v.version LIMIT 1", (region, name))

    def count(self, region: str, name: str) -> int:
        sql = "SELECT count(*) FROM parameter_version WHERE region = ? AND name = ?"
        return int(self._database.execute(sql, (region, name)).fetchone()[0])

    def history(self, region: str, name: str, after: int, limit: int) -> list[Parameter]:
        """The versions of a parameter with numbers greater than `after`. The oldest version is first."""
        rows = self._database.execute(f"{ONE} AND v.version > ? ORDER BY v.version LIMIT ?", (region, name, after, limit))
        return [_parameter(row) for row in rows]

    def listed(self, region: str, prefix: str, after: str, limit: int, *, slashless: int | None = None) -> list[Parameter]:
        """The latest versions of parameters whose names begin with `prefix` and are greater than `after`, sorted by name.

        If `slashless` is a number N, names with a slash anywhere after their first N characters are excluded, because they are at a
        deeper level.
        """
        flat = "" if slashless is None else f"AND instr(substr(p.name, {slashless + 1}), '/') = 0 "
        rows = self._database.execute(
            f"{LATEST} WHERE p.region = ? AND p.name >= ? AND p.name < ? AND p.name > ? {flat}ORDER BY p.name LIMIT ?",
            (region, prefix, prefix + LAST_CHARACTER, after, limit),
        )
        return [_parameter(row) for row in rows]

    def put(self, parameter: Parameter, owner: str) -> None:
        """Add a version, which becomes the latest version of the parameter. A parameter that exists keeps its owner."""
        region, name, version = parameter.region, parameter.name, parameter.version
        self._database.execute(
            "INSERT INTO parameter (region, name, latest, owner) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (region, name) DO UPDATE SET latest = excluded.latest",
            (region, name, version, owner),
        )
        self._database.execute(
            "INSERT INTO parameter_version VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (region, name, version, parameter.type, parameter.value, parameter.modified_at_s, parameter.modified_by,
             _dumps(parameter.details), _dumps(parameter.labels)),
        )  # fmt: skip

    def drop(self, region: str, name: str) -> bool:
        """Delete a parameter with all its versions. Returns False if it does not exist."""
        return self._database.execute("DELETE FROM parameter WHERE region = ? AND name = ?", (region, name)).rowcount == 1

    def drop_version(self, parameter: Parameter) -> None:
        sql = "DELETE FROM parameter_version WHERE region = ? AND name = ? AND version = ?"
        self._database.execute(sql, (parameter.region, parameter.name, parameter.version))

    def set_labels(self, parameter: Parameter, labels: Iterable[str]) -> None:
        sql = "UPDATE parameter_version SET labels = ? WHERE region = ? AND name = ? AND version = ?"
        self._database.execute(sql, (_dumps(tuple(labels)), parameter.region, parameter.name, parameter.version))

    def tags(self, region: str, name: str) -> dict[str, str] | None:
        row = self._database.execute("SELECT tags FROM parameter WHERE region = ? AND name = ?", (region, name)).fetchone()
        return orjson.loads(row[0]) if row else None

    def owner(self, region: str, name: str) -> str | None:
        """The owner of a parameter; None if it does not exist."""
        row = self._database.execute("SELECT owner FROM parameter WHERE region = ? AND name = ?", (region, name)).fetchone()
        return row[0] if row else None

    def set_tags(self, region: str, name: str, tags: dict[str, str]) -> None:
        self._database.execute("UPDATE parameter SET tags = ? WHERE region = ? AND name = ?", (_dumps(tags), region, name))

    def _one(self, sql: str, values: tuple[Any, ...]) -> Parameter | None:
        row = self._database.execute(sql, values).fetchone()
        return _parameter(row) if row else None


def _parameter(row: Row) -> Parameter:
    region, name, version, kind, value, at_s, by, details, labels = row
    return Parameter(region, name, version, kind, value, at_s, by, orjson.loads(details), tuple(orjson.loads(labels)))


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()
