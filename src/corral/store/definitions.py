"""SQL of task definitions."""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson

from corral.database import Database

DOCUMENTS_CACHED_MAX = 1_000
LAST_CHARACTER = "\U0010ffff"  # the largest character: every name with a prefix is smaller than the prefix plus this character


class Definitions:
    """The task definitions in the state store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._documents: dict[tuple[str, str, int], dict[str, Any]] = {}  # a cache of parsed documents

    def add(self, region: str, family: str, document: dict[str, Any]) -> int:
        """Store a new revision and return its number. Numbers are never reused."""
        (revision,) = self._database.execute(
            "INSERT INTO task_definition_family (region, name, latest) VALUES (?, ?, 1) "
            "ON CONFLICT (region, name) DO UPDATE SET latest = latest + 1 RETURNING latest",
            (region, family),
        ).fetchone()
        self._database.execute(
            "INSERT INTO task_definition (region, family, revision, status, document) VALUES (?, ?, ?, 'ACTIVE', ?)",
            (region, family, revision, orjson.dumps(document).decode()),
        )
        self._evict((region, family, revision))
        return int(revision)

    def get(self, region: str, family: str, revision: int | None) -> tuple[int, str, dict[str, Any]] | None:
        """Return (revision, status, document). If `revision` is None, return the newest active revision.

        The caller must not change the document.
        """
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
        """The document of an existing revision. The caller must not change the document."""
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
        """Change the status or the tags of a revision. The rest of the document never changes."""
        self._database.execute(
            "UPDATE task_definition SET status = ?, document = ? WHERE region = ? AND family = ? AND revision = ?",
            (status, orjson.dumps(document).decode(), region, family, revision),
        )
        self._evict((region, family, revision))

    def listed(
        self, region: str, status: str, *, family: str | None, after: tuple[str, int] | None, limit: int, descending: bool
    ) -> list[tuple[str, int]]:
        """Return (family, revision) pairs after the pair `after`, sorted by family and revision."""
        sql = "SELECT family, revision FROM task_definition WHERE region = ? AND status = ?"
        values: list[str | int] = [region, status]
        order, beyond = ("DESC", "<") if descending else ("ASC", ">")
        if family is not None:
            sql, values = sql + " AND family = ?", [*values, family]
        if after is not None and family is not None:
            sql, values = sql + f" AND revision {beyond} ?", [*values, after[1]]
        elif after is not None:
            sql, values = sql + f" AND (family, revision) {beyond} (?, ?)", [*values, *after]
        return self._database.execute(f"{sql} ORDER BY family {order}, revision {order} LIMIT ?", (*values, limit)).fetchall()

    def families(self, region: str, prefix: str, status: str, after: str, limit: int) -> list[str]:
        """Family names by status.

        ACTIVE: families with an active revision. INACTIVE: families that have only inactive revisions. ALL: families with any
        revision.
        """
        active = "EXISTS (SELECT 1 FROM task_definition d WHERE d.region = f.region AND d.status = 'ACTIVE' AND d.family = f.name)"
        exists = "EXISTS (SELECT 1 FROM task_definition d WHERE d.region = f.region AND d.family = f.name)"
        wanted = {"ACTIVE": active, "INACTIVE": f"NOT {active} AND {exists}", "ALL": exists}[status]
        rows = self._database.execute(
            f"SELECT name FROM task_definition_family f WHERE region = ? AND name >= ? AND name < ? AND name > ? AND {wanted} "
            "ORDER BY name LIMIT ?",
            (region, prefix, prefix + LAST_CHARACTER, after, limit),
        )
        return [name for (name,) in rows]

    def drop_deleted(self, account: str, limit: int) -> int:
        """Delete DELETE_IN_PROGRESS revisions that no task uses. Return how many DELETE_IN_PROGRESS revisions are left."""
        unused = self._database.execute(
            "SELECT region, family, revision FROM task_definition d WHERE status = 'DELETE_IN_PROGRESS' AND NOT EXISTS ("
            "SELECT 1 FROM task WHERE definition_arn = "
            "'arn:aws:ecs:' || d.region || ':' || ? || ':task-definition/' || d.family || ':' || d.revision) LIMIT ?",
            (account, limit),
        ).fetchall()
        self._database.executemany("DELETE FROM task_definition WHERE region = ? AND family = ? AND revision = ?", unused)
        for key in unused:
            self._evict(key)
        return int(self._database.execute("SELECT count(*) FROM task_definition WHERE status = 'DELETE_IN_PROGRESS'").fetchone()[0])

    def _evict(self, key: tuple[str, str, int]) -> None:
        """Evict a revision from the cache now, and again if the transaction is rolled back."""
        self._documents.pop(key, None)
        self._database.journal.on_rollback(partial(self._documents.pop, key, None))
