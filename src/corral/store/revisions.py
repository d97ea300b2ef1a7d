"""SQL of definitions with revisions: ECS task definitions and Batch job definitions.

Each kind has two tables: TABLE has one row per revision, and TABLE_family has the number of the last revision of each family. The
family of a job definition is its name.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson

from corral.core.database import Database
from corral.model.principal import ROOT

DOCUMENTS_CACHED_MAX = 1_000
Revision = tuple[int, str, dict[str, Any]]  # its number, its status, and its document
LAST_CHARACTER = (
    "\U0010ffff"  # the largest character: every name that begins with a prefix sorts before the prefix plus this character
)


class Revisions:
    """The definitions of one kind in the state store."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table
        self._documents: dict[tuple[str, str, int], dict[str, Any]] = {}  # a cache of parsed documents
        self._found: dict[tuple[str, str, int], Revision] = {}  # a cache of what `get` returns
        self._newest: dict[tuple[str, str], dict[str, int]] = {}  # a cache: region and family → owner → the newest active revision

    def add(self, region: str, family: str, document: dict[str, Any], owner: str) -> int:
        """Store a new revision and return its number. Numbers are never reused."""
        (revision,) = self._database.execute(
            f"INSERT INTO {self._table}_family (region, name, latest) VALUES (?, ?, 1) "
            "ON CONFLICT (region, name) DO UPDATE SET latest = latest + 1 RETURNING latest",
            (region, family),
        ).fetchone()
        self._database.execute(
            f"INSERT INTO {self._table} (region, family, revision, status, document, owner) VALUES (?, ?, ?, 'ACTIVE', ?, ?)",
            (region, family, revision, orjson.dumps(document).decode(), owner),
        )
        self._evict((region, family, revision))
        return int(revision)

    def get(self, region: str, family: str, revision: int | None, owner: str = ROOT) -> Revision | None:
        """Return a revision. If `revision` is None, return the newest active revision of `owner`. The caller must not change the
        document.

        If the owner has no active revision of the family, return the newest of all owners.
        """
        if revision is None and (revision := self._newest_active(region, family, owner)) is None:
            return None
        found = self._found.get((region, family, revision))
        if found is not None:
            return found
        row = self._database.execute(
            f"SELECT revision, status FROM {self._table} WHERE region = ? AND family = ? AND revision = ?",
            (region, family, revision),
        ).fetchone()
        if row is None:
            return None
        found = row[0], row[1], self.document(region, family, row[0])
        if not self._database.reads_only:
            if len(self._found) > DOCUMENTS_CACHED_MAX:
                self._found.clear()
            self._found[region, family, revision] = found
        return found

    def _newest_active(self, region: str, family: str, owner: str) -> int | None:
        found = self._newest.get((region, family), {}).get(owner)
        if found is not None:
            return found
        sql = f"SELECT revision FROM {self._table} WHERE region = ? AND family = ? AND status = 'ACTIVE'"
        newest_first = "ORDER BY revision DESC LIMIT 1"
        execute = self._database.execute
        row = execute(f"{sql} AND owner = ? {newest_first}", (region, family, owner)).fetchone()
        row = row or execute(f"{sql} {newest_first}", (region, family)).fetchone()
        if row is None:
            return None
        if not self._database.reads_only:
            if len(self._newest) > DOCUMENTS_CACHED_MAX:
                self._newest.clear()
            self._newest.setdefault((region, family), {})[owner] = row[0]
        return int(row[0])

    def owner(self, region: str, family: str, revision: int) -> str | None:
        """Return the owner of a revision, or None if it does not exist."""
        sql = f"SELECT owner FROM {self._table} WHERE region = ? AND family = ? AND revision = ?"
        row = self._database.execute(sql, (region, family, revision)).fetchone()
        return str(row[0]) if row else None

    def document(self, region: str, family: str, revision: int) -> dict[str, Any]:
        """The document of an existing revision. The caller must not change the document."""
        key = (region, family, revision)
        found = self._documents.get(key)
        if found is None:
            sql = f"SELECT document FROM {self._table} WHERE region = ? AND family = ? AND revision = ?"
            found = orjson.loads(self._database.execute(sql, key).fetchone()[0])
            if len(self._documents) > DOCUMENTS_CACHED_MAX:
                self._documents.clear()
            self._documents[key] = found
        return found

    def change(self, region: str, family: str, revision: int, status: str, document: dict[str, Any]) -> None:
        """Change the status or the tags of a revision. The rest of the document never changes."""
        self._database.execute(
            f"UPDATE {self._table} SET status = ?, document = ? WHERE region = ? AND family = ? AND revision = ?",
            (status, orjson.dumps(document).decode(), region, family, revision),
        )
        self._evict((region, family, revision))

    def set_owner(self, region: str, family: str, revision: int, owner: str) -> None:
        sql = f"UPDATE {self._table} SET owner = ? WHERE region = ? AND family = ? AND revision = ?"
        self._database.execute(sql, (owner, region, family, revision))
        self._evict((region, family, revision))

    def listed(
        self, region: str, status: str | None, *, family: str | None, after: tuple[str, int] | None, limit: int, descending: bool
    ) -> list[tuple[str, int]]:
        """Return (family, revision) pairs after the pair `after`, sorted by family and revision. Status None means any status."""
        sql = f"SELECT family, revision FROM {self._table} WHERE region = ?"
        values: list[str | int] = [region]
        if status is not None:
            sql, values = sql + " AND status = ?", [*values, status]
        order, beyond = ("DESC", "<") if descending else ("ASC", ">")
        if family is not None:
            sql, values = sql + " AND family = ?", [*values, family]
        if after is not None and family is not None:
            sql, values = sql + f" AND revision {beyond} ?", [*values, after[1]]
        elif after is not None:
            sql, values = sql + f" AND (family, revision) {beyond} (?, ?)", [*values, *after]
        return self._database.execute(f"{sql} ORDER BY family {order}, revision {order} LIMIT ?", (*values, limit)).fetchall()

    def families(self, region: str, prefix: str, status: str, after: str, limit: int) -> list[str]:
        """The names of families that begin with `prefix`, are greater than `after`, and have this status, sorted.

        ACTIVE: families with an active revision. INACTIVE: families that have revisions, but no active one. ALL: families with any
        revision.
        """
        active = f"EXISTS (SELECT 1 FROM {self._table} d WHERE d.region = f.region AND d.status = 'ACTIVE' AND d.family = f.name)"
        exists = f"EXISTS (SELECT 1 FROM {self._table} d WHERE d.region = f.region AND d.family = f.name)"
        wanted = {"ACTIVE": active, "INACTIVE": f"NOT {active} AND {exists}", "ALL": exists}[status]
        rows = self._database.execute(
            f"SELECT name FROM {self._table}_family f WHERE region = ? AND name >= ? AND name < ? AND name > ? AND {wanted} "
            "ORDER BY name LIMIT ?",
            (region, prefix, prefix + LAST_CHARACTER, after, limit),
        )
        return [name for (name,) in rows]

    def _evict(self, key: tuple[str, str, int]) -> None:
        """Evict a revision from the caches now, and again if the transaction is rolled back."""
        self._forget(key)
        self._database.undo_log.on_rollback(partial(self._forget, key))

    def _forget(self, key: tuple[str, str, int]) -> None:
        self._documents.pop(key, None)
        self._found.pop(key, None)
        self._newest.pop(key[:2], None)


class Definitions(Revisions):
    def __init__(self, database: Database) -> None:
        super().__init__(database, "task_definition")

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
