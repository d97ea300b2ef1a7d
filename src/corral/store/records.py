"""Records: clusters and task definitions. They hold no capacity, so no index follows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from corral.database import Database, Migration

DOCUMENTS_KEPT_MAX = 1_000
LAST_CHARACTER = "\U0010ffff"  # sorts after every other: the end of all names with one prefix


class Records(Database):
    def __init__(self, path: Path | None, schema: str, migrations: Sequence[Migration], *, checked: bool = False) -> None:
        super().__init__(path, schema, migrations, checked=checked)
        self._definitions: dict[tuple[str, str, int], dict[str, Any]] = {}  # parsed documents
        self._unsettled: set[tuple[str, str, int]] = set()  # documents of this transaction: it may be taken back

    def commit(self) -> None:
        super().commit()
        self._unsettled.clear()

    def rollback(self) -> None:
        super().rollback()
        self._unsettled.clear()

    # Clusters

    def put_cluster(self, region: str, name: str, status: str, details: dict[str, Any]) -> None:
        self.execute(
            "INSERT INTO cluster (region, name, status, details) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (region, name) DO UPDATE SET status = excluded.status, details = excluded.details",
            (region, name, status, _dumps(details)),
        )

    def cluster(self, region: str, name: str) -> tuple[str, dict[str, Any]] | None:
        """(status, details)"""
        row = self.execute("SELECT status, details FROM cluster WHERE region = ? AND name = ?", (region, name)).fetchone()
        return (row[0], orjson.loads(row[1])) if row else None

    def cluster_names(self, region: str, after: str, limit: int) -> list[str]:
        rows = self.execute(
            "SELECT name FROM cluster WHERE region = ? AND status = 'ACTIVE' AND name > ? ORDER BY name LIMIT ?",
            (region, after, limit),
        )
        return [name for (name,) in rows]

    def regions(self) -> list[str]:
        """Those that have a cluster or a task; one look into an index for each."""
        rows = self.execute(
            "WITH RECURSIVE used (region) AS (SELECT min(region) FROM task "
            "UNION ALL SELECT (SELECT min(region) FROM task WHERE region > used.region) FROM used WHERE region IS NOT NULL) "
            "SELECT region FROM used WHERE region IS NOT NULL UNION SELECT region FROM cluster WHERE status = 'ACTIVE' ORDER BY 1"
        )
        return [region for (region,) in rows]

    def active_tasks_of_cluster(self, region: str, name: str) -> dict[str, int]:
        """How many tasks there are in each state but STOPPED."""
        rows = self.execute(
            "SELECT state, count(*) FROM task WHERE region = ? AND cluster = ? AND state != 'STOPPED' GROUP BY state",
            (region, name),
        )
        return dict(rows.fetchall())

    def task_statistics(self, region: str, name: str) -> dict[tuple[str, str], int]:
        """(launch type, state) → how many tasks of the cluster there are but STOPPED ones."""
        rows = self.execute(
            "SELECT iif(coalesce(json_extract(details, '$.launchType'), json_extract(details, '$.capacityProviderName')) "
            "LIKE 'FARGATE%', 'FARGATE', 'EC2'), state, count(*) FROM task "
            "WHERE region = ? AND cluster = ? AND state != 'STOPPED' GROUP BY 1, 2",
            (region, name),
        )
        return {(launch_type, state): count for launch_type, state, count in rows}

    def cluster_with_provider(self, region: str, provider: str) -> str | None:
        """The name of an active cluster with this capacity provider."""
        row = self.execute(
            "SELECT name FROM cluster, json_each(details, '$.capacityProviders') "
            "WHERE region = ? AND status = 'ACTIVE' AND value = ? LIMIT 1",
            (region, provider),
        ).fetchone()
        return row[0] if row else None

    def cluster_runs_on(self, region: str, name: str, provider: str) -> bool:
        """Whether a task of the cluster that has not stopped came through this capacity provider."""
        sql = (
            "SELECT 1 FROM task WHERE region = ? AND cluster = ? AND state != 'STOPPED' "
            "AND json_extract(details, '$.capacityProviderName') = ? LIMIT 1"
        )
        return self.execute(sql, (region, name, provider)).fetchone() is not None

    # Task definitions

    def add_definition(self, region: str, family: str, document: dict[str, Any]) -> int:
        """Keep a new revision and return its number; numbers are never used again."""
        (revision,) = self.execute(
            "INSERT INTO task_definition_family (region, name, latest) VALUES (?, ?, 1) "
            "ON CONFLICT (region, name) DO UPDATE SET latest = latest + 1 RETURNING latest",
            (region, family),
        ).fetchone()
        self.execute(
            "INSERT INTO task_definition (region, family, revision, status, document) VALUES (?, ?, ?, 'ACTIVE', ?)",
            (region, family, revision, _dumps(document)),
        )
        self._unsettled.add((region, family, revision))
        return int(revision)

    def definition(self, region: str, family: str, revision: int | None) -> tuple[int, str, dict[str, Any]] | None:
        """(revision, status, document); without a revision the newest active one. The document must not be changed."""
        if revision is None:
            row = self.execute(
                "SELECT max(revision), 'ACTIVE' FROM task_definition WHERE region = ? AND family = ? AND status = 'ACTIVE'",
                (region, family),
            ).fetchone()
        else:
            row = self.execute(
                "SELECT revision, status FROM task_definition WHERE region = ? AND family = ? AND revision = ?",
                (region, family, revision),
            ).fetchone()
        if row is None or row[0] is None:
            return None
        return row[0], row[1], self.document(region, family, row[0])

    def document(self, region: str, family: str, revision: int) -> dict[str, Any]:
        """The document of a revision that is known to be there. It must not be changed."""
        key = (region, family, revision)
        found = self._definitions.get(key)
        if found is None:
            sql = "SELECT document FROM task_definition WHERE region = ? AND family = ? AND revision = ?"
            found = orjson.loads(self.execute(sql, key).fetchone()[0])
            if len(self._definitions) > DOCUMENTS_KEPT_MAX:
                self._definitions.clear()
            if key not in self._unsettled:
                self._definitions[key] = found
        return found

    def change_definition(self, region: str, family: str, revision: int, status: str, document: dict[str, Any]) -> None:
        """Another status, or other tags; what a revision runs never changes."""
        self.execute(
            "UPDATE task_definition SET status = ?, document = ? WHERE region = ? AND family = ? AND revision = ?",
            (status, _dumps(document), region, family, revision),
        )
        self._forget_definition((region, family, revision))

    def definitions(
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
        return self.execute(f"{sql} ORDER BY family {way}, revision {way} LIMIT ?", (*values, limit)).fetchall()

    def families(self, region: str, prefix: str, status: str, after: str, limit: int) -> list[str]:
        """Families with an ACTIVE revision; INACTIVE: with revisions, none of them active; ALL: with any."""
        active = "EXISTS (SELECT 1 FROM task_definition d WHERE d.region = f.region AND d.status = 'ACTIVE' AND d.family = f.name)"
        any_at_all = "EXISTS (SELECT 1 FROM task_definition d WHERE d.region = f.region AND d.family = f.name)"
        wanted = {"ACTIVE": active, "INACTIVE": f"NOT {active} AND {any_at_all}", "ALL": any_at_all}[status]
        rows = self.execute(
            f"SELECT name FROM task_definition_family f WHERE region = ? AND name >= ? AND name < ? AND name > ? AND {wanted} "
            "ORDER BY name LIMIT ?",
            (region, prefix, prefix + LAST_CHARACTER, after, limit),
        )
        return [name for (name,) in rows]

    def drop_deleted_definitions(self, account: str, limit: int) -> int:
        """Forget revisions that are to be deleted and that no task refers to; how many such revisions are left."""
        unused = self.execute(
            "SELECT region, family, revision FROM task_definition d WHERE status = 'DELETE_IN_PROGRESS' AND NOT EXISTS ("
            "SELECT 1 FROM task WHERE definition_arn = "
            "'arn:aws:ecs:' || d.region || ':' || ? || ':task-definition/' || d.family || ':' || d.revision) LIMIT ?",
            (account, limit),
        ).fetchall()
        self.executemany("DELETE FROM task_definition WHERE region = ? AND family = ? AND revision = ?", unused)
        for key in unused:
            self._forget_definition(key)
        return int(self.execute("SELECT count(*) FROM task_definition WHERE status = 'DELETE_IN_PROGRESS'").fetchone()[0])

    def _forget_definition(self, key: tuple[str, str, int]) -> None:
        self._definitions.pop(key, None)
        self._unsettled.add(key)


def _dumps(value: Any) -> str:
    return orjson.dumps(value).decode()
