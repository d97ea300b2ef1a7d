"""Task definitions: their only SQL."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson

from corral.database import Database

DOCUMENTS_CACHED_MAX = 1_000
LAST_CHARACTER = "\U0010ffff"  # sorts after every other: the end of all names with one prefix


class Definitions:
    """A part of the state store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._documents: dict[tuple[str, str, int], dict[str, Any]] = {}  # parsed

    def add(self, region: str, family: str, document: dict[str, Any]) -> int:
        """Keep a new revision and return its number; numbers are never used again."""
        (revision,) = self._database.execute(
            "INSERT INTO task_definition_family (region, name, latest) VALUES (?, ?, 1) "
            "ON CONFLICT (region, name) DO UPDATE SET latest = latest + 1 RETURNING latest",
            (region, family),
        ).fetchone()
        self._database.execute(
            "INSERT INTO task_definition (region, family, revision, status, document) VALUES (?, ?, ?, 'ACTIVE', ?)",
            (region, family, revision, orjson.dumps(document).decode()),
        )
        self._forget((region, family, revision))
        return int(revision)

    def get(self, region: str, family: str, revision: int | None) -> tuple[int, str, dict[str, Any]] | None:
        """(revision, status, document); without a revision the newest active one. The document must not be changed."""
        if revision is None:
            row = self._database.execute(
                "SELECT max(revision), 'ACTIVE' FROM task_definition WHERE region = ? AND family = ? AND status = 'ACTIVE'",
                (region, family),
            ).fetchone()
        else:
            row = self._database.execute(
                "SELECT revision, status FROM task_definition WHERE region = ? AND family = ? AND revision = ?",
                (region, family, revision),
            ).fetchone()
        if row is None or row[0] is None:
            return None
        return row[0], row[1], self.document(region, family, row[0])

    def document(self, region: str, family: str, revision: int) -> dict[str, Any]:
        """The document of a revision that is known to be there. It must not be changed."""
        key = (region, family, revision)
        found = self._documents.get(key)
        if found is None:
            sql = "SELECT document FROM task_definition WHERE region = ? AND family = ? AND revision = ?"
            found = orjson.loads(self._database.execute(sql, key).fetchone()[0])
            if len(self._documents) > DOCUMENTS_CACHED_MAX:
                self._documents.clear()
            self._documents[key] = found
        return found

    def change(self, region: str, family: str, revision: int, status: str, document: dict[str, Any]) -> None:
        """Another status, or other tags; what a revision runs never changes."""
        self._database.execute(
            "UPDATE task_definition SET status = ?, document = ? WHERE region = ? AND family = ? AND revision = ?",
            (status, orjson.dumps(document).decode(), region, family, revision),
        )
        self._forget((region, family, revision))

    def listed(
        self, region: str, status: str, *, family: str | None, after: tuple[str, int] | None, limit: int, descending: bool
    ) -> list[tuple[str, int]]:
        """(family, revision) by family and then number, from the one after `after` on."""
        sql = "SELECT family, revision FROM task_definition WHERE region = ? AND status = ?"
        values: list[str | int] = [region, status]
        way, beyond = ("DESC", "<") if descending else ("ASC", ">")
        if family is not None:
            sql, values = sql + " AND family = ?", [*values, family]
        if after is not None and family is not None:
            sql, values = sql + f" AND revision {beyond} ?", [*values, after[1]]
        elif after is not None:
            sql, values = sql + f" AND (family, revision) {beyond} (?, ?)", [*values, *after]
        return self._database.execute(f"{sql} ORDER BY family {way}, revision {way} LIMIT ?", (*values, limit)).fetchall()

    def families(self, region: str, prefix: str, status: str, after: str, limit: int) -> list[str]:
        """Families with an ACTIVE revision; INACTIVE: with revisions, none of them active; ALL: with any."""
        active = "EXISTS (SELECT 1 FROM task_definition d WHERE d.region = f.region AND d.status = 'ACTIVE' AND d.family = f.name)"
        any_at_all = "EXISTS (SELECT 1 FROM task_definition d WHERE d.region = f.region AND d.family = f.name)"
        wanted = {"ACTIVE": active, "INACTIVE": f"NOT {active} AND {any_at_all}", "ALL": any_at_all}[status]
        rows = self._database.execute(
            f"SELECT name FROM task_definition_family f WHERE region = ? AND name >= ? AND name < ? AND name > ? AND {wanted} "
            "ORDER BY name LIMIT ?",
            (region, prefix, prefix + LAST_CHARACTER, after, limit),
        )
        return [name for (name,) in rows]

    def drop_deleted(self, account: str, limit: int) -> int:
        """Forget revisions that are to be deleted and that no task refers to; how many such revisions are left."""
        unused = self._database.execute(
            "SELECT region, family, revision FROM task_definition d WHERE status = 'DELETE_IN_PROGRESS' AND NOT EXISTS ("
            "SELECT 1 FROM task WHERE definition_arn = "
            "'arn:aws:ecs:' || d.region || ':' || ? || ':task-definition/' || d.family || ':' || d.revision) LIMIT ?",
            (account, limit),
        ).fetchall()
        self._database.executemany("DELETE FROM task_definition WHERE region = ? AND family = ? AND revision = ?", unused)
        for key in unused:
            self._forget(key)
        return int(self._database.execute("SELECT count(*) FROM task_definition WHERE status = 'DELETE_IN_PROGRESS'").fetchone()[0])

    def _forget(self, key: tuple[str, str, int]) -> None:
        """Call when a revision changes: what is cached from then on may never be committed."""
        self._documents.pop(key, None)
        self._database.journal.on_rollback(partial(self._documents.pop, key, None))
