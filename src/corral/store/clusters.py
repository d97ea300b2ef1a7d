"""SQL of ECS clusters, and task counts by cluster."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import orjson

from corral.core.database import Database
from corral.model.principal import ROOT

CACHED_MAX = 1_000
REGIONS_OF_OWNER_MAX = 20  # in so many regions of one user, the metrics of hosts are published


class Clusters:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached: dict[tuple[str, str], tuple[str, dict[str, Any]] | None] = {}  # region and name → what `get` returns

    def put(self, region: str, name: str, status: str, details: dict[str, Any], owner: str = ROOT) -> None:
        """Add or change a cluster. `owner` is the owner of a new cluster, or of one that was deleted before."""
        self._cached.pop((region, name), None)
        self._database.undo_log.on_rollback(partial(self._cached.pop, (region, name), None))
        self._database.execute(
            "INSERT INTO cluster (region, name, status, details, owner) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (region, name) DO UPDATE SET status = excluded.status, details = excluded.details, "
            "owner = iif(status = 'INACTIVE' AND excluded.status = 'ACTIVE', excluded.owner, owner)",
            (region, name, status, orjson.dumps(details).decode(), owner),
        )

    def get(self, region: str, name: str) -> tuple[str, dict[str, Any]] | None:
        """Return (status, details). Return None if there is no such cluster. The caller must not change the details."""
        key = region, name
        if key in self._cached:
            return self._cached[key]
        row = self._database.execute("SELECT status, details FROM cluster WHERE region = ? AND name = ?", key).fetchone()
        found = (row[0], orjson.loads(row[1])) if row else None
        if not self._database.reads_only:
            if len(self._cached) >= CACHED_MAX:
                self._cached.clear()
            self._cached[key] = found
        return found

    def owner(self, region: str, name: str) -> str | None:
        """Return the owner of a cluster. Return None if the cluster has no row, or was deleted."""
        sql = "SELECT owner FROM cluster WHERE region = ? AND name = ? AND status = 'ACTIVE'"
        row = self._database.execute(sql, (region, name)).fetchone()
        return str(row[0]) if row else None

    def names(self, region: str, after: str, limit: int) -> list[str]:
        rows = self._database.execute(
            "SELECT name FROM cluster WHERE region = ? AND status = 'ACTIVE' AND name > ? ORDER BY name LIMIT ?",
            (region, after, limit),
        )
        return [name for (name,) in rows]

    def with_insights(self) -> list[tuple[str, str, str]]:
        """Return (region, name, setting) of the active clusters with Container Insights. The setting is `enabled` or `enhanced`."""
        return self._database.execute(
            "SELECT region, cluster.name, setting.value ->> 'value' FROM cluster, json_each(details, '$.settings') AS setting "
            "WHERE status = 'ACTIVE' AND setting.value ->> 'name' = 'containerInsights' "
            "AND setting.value ->> 'value' != 'disabled' ORDER BY 1, 2"
        ).fetchall()

    def has_tasks(self, region: str, name: str) -> bool:
        return (
            self._database.execute("SELECT 1 FROM task WHERE region = ? AND cluster = ? LIMIT 1", (region, name)).fetchone()
            is not None
        )

    def left_behind(self, region: str) -> list[str]:
        """Return the clusters that have tasks but no row.

        This machine was in these clusters (`corral up --cluster`), and has left them. The query makes one index look-up for each
        cluster.
        """
        rows = self._database.execute(
            "WITH RECURSIVE used (cluster) AS (SELECT min(cluster) FROM task WHERE region = ?1 UNION ALL "
            "SELECT (SELECT min(cluster) FROM task WHERE region = ?1 AND cluster > used.cluster) FROM used "
            "WHERE cluster IS NOT NULL) "
            "SELECT cluster FROM used WHERE cluster IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM cluster WHERE region = ?1 AND name = used.cluster)",
            (region,),
        )
        return [name for (name,) in rows]

    def regions(self) -> list[str]:
        """Regions that have a cluster or a task. The query makes one index look-up per region."""
        rows = self._database.execute(
            "WITH RECURSIVE used (region) AS (SELECT min(region) FROM task "
            "UNION ALL SELECT (SELECT min(region) FROM task WHERE region > used.region) FROM used WHERE region IS NOT NULL) "
            "SELECT region FROM used WHERE region IS NOT NULL UNION SELECT region FROM cluster WHERE status = 'ACTIVE' ORDER BY 1"
        )
        return [region for (region,) in rows]

    def measured_regions(self) -> list[str]:
        """The regions in which the metrics of hosts are published: those of `regions`, but a limited number for each user.

        A region belongs to the owners of its clusters, or, without clusters, to the owner of one of its tasks.
        """
        owners = self._database.execute("SELECT DISTINCT region, owner FROM cluster WHERE status = 'ACTIVE'").fetchall()
        with_cluster = {region for region, _ in owners}
        of_task = "SELECT owner FROM task WHERE region = ? LIMIT 1"
        for region in self.regions():
            if region not in with_cluster:
                owners += [(region, owner) for (owner,) in self._database.execute(of_task, (region,))]
        found: dict[str, None] = {}
        of_owner = Counter[str]()
        for region, owner in sorted(owners):
            of_owner[owner] += 1
            if owner == ROOT or of_owner[owner] <= REGIONS_OF_OWNER_MAX:
                found[region] = None
        return list(found)

    def active_tasks(self, region: str, name: str) -> dict[str, int]:
        """The number of tasks in each state except STOPPED."""
        rows = self._database.execute(
            "SELECT state, count(*) FROM task WHERE region = ? AND cluster = ? AND state != 'STOPPED' GROUP BY state",
            (region, name),
        )
        return dict(rows.fetchall())

    def task_statistics(self, region: str, name: str) -> dict[tuple[str, str], int]:
        """The number of tasks of the cluster by (launch type, state). STOPPED tasks are not counted."""
        rows = self._database.execute(
            "SELECT iif(coalesce(json_extract(details, '$.launchType'), json_extract(details, '$.capacityProviderName')) "
            "LIKE 'FARGATE%', 'FARGATE', 'EC2'), state, count(*) FROM task "
            "WHERE region = ? AND cluster = ? AND state != 'STOPPED' GROUP BY 1, 2",
            (region, name),
        )
        return {(launch_type, state): count for launch_type, state, count in rows}

    def with_provider(self, region: str, provider: str) -> list[str]:
        """The names of the active clusters that use this capacity provider."""
        rows = self._database.execute(
            "SELECT name FROM cluster, json_each(details, '$.capacityProviders') "
            "WHERE region = ? AND status = 'ACTIVE' AND value = ? ORDER BY name",
            (region, provider),
        )
        return [name for (name,) in rows]

    def runs_on(self, region: str, name: str, provider: str) -> bool:
        """Whether the cluster has a task that was started with this capacity provider and has not stopped."""
        return bool(self.tasks_on(region, name, provider, 1))

    def tasks_on(self, region: str, name: str, provider: str, limit: int) -> list[str]:
        """Return ids of tasks that were started with this capacity provider and have not stopped. Tasks that must stop are last."""
        sql = (
            "SELECT id FROM task WHERE region = ? AND cluster = ? AND state != 'STOPPED' "
            "AND json_extract(details, '$.capacityProviderName') = ? ORDER BY desired = 'STOPPED' LIMIT ?"
        )
        return [task_id for (task_id,) in self._database.execute(sql, (region, name, provider, limit))]
