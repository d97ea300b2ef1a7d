"""SQL of the lists and the counts of tasks. It chooses the indexes, because there may be many tasks."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.database import Database
from corral.model.ecs_service import STARTED_BY as STARTED_BY_SERVICE

_QUEUED = "SELECT task_id FROM queued_task WHERE state != 'admitted'"
# Unfinished tasks that were paused, that lend their GPUs or that take turns: they have an index of their own.
_WITH_PAUSE = "SELECT id FROM task WHERE pause IS NOT NULL AND state != 'STOPPED'"
# Tasks that wait for resources. The claims of paused tasks, which wait to continue, are left out.
_IN_LINE = f"SELECT id FROM claim WHERE kind = 'task' AND id NOT IN ({_WITH_PAUSE} AND instance_id IS NOT NULL)"
# Tasks that wait until fewer tasks take turns on a GPU. They have no claim yet.
_FOR_TURNS = (
    f"{_WITH_PAUSE} AND state = 'PROVISIONING' AND id NOT IN (SELECT id FROM claim WHERE kind = 'task') AND id NOT IN ({_QUEUED})"
)
# Tasks that are being paused, are paused or are about to continue.
_PAUSED = (
    f"{_WITH_PAUSE} AND state = 'RUNNING' AND desired = 'RUNNING' "
    "AND coalesce(json_extract(pause, '$.phase'), 'running') != 'running'"
)
_WAITING = f"{_IN_LINE} UNION ALL {_QUEUED} UNION ALL {_FOR_TURNS}"


class TaskListing:
    def __init__(self, database: Database) -> None:
        self._execute = database.execute

    def listed(
        self, region: str, cluster: str, *, desired: str, after: tuple[str, int], limit: int, family: str | None = None,
        started_by: str | None = None, instance_id: str | None = None, launch_type: str | None = None, group: str | None = None,
        id_prefix: str = "",
    ) -> list[tuple[str, int, str]]:  # fmt: skip
        """Return (family, number, id) tuples, sorted by family and number. A newer task has a larger number.

        The SQL contains only the given filters, so that SQLite can use an index.
        """
        filters = {"started_by": started_by, "instance_id": instance_id, "launch_type": launch_type, "task_group": group}
        given = {column: value for column, value in filters.items() if value is not None}
        values: tuple[str | int, ...]
        if id_prefix:  # a plus disables the indexes on other columns, so that SQLite uses the index on the id
            if family is not None:
                given["family"] = family
            where = "".join(f" AND +{column} = ?" for column in ("region", "cluster", "desired", *given))
            sql = f"SELECT family, rowid, id FROM task WHERE id >= ? AND id < ? AND (family, rowid) > (?, ?){where}"
            bounds = (id_prefix, f"{id_prefix}g")  # the digits of an id end at f
            values = (*bounds, *after, region, cluster, desired, *given.values(), limit)
            return self._execute(f"{sql} ORDER BY family, rowid LIMIT ?", values).fetchall()
        where = "region = ? AND cluster = ? AND desired = ?" + "".join(f" AND {column} = ?" for column in given)
        if launch_type is not None and launch_type != "EC2":
            where += " AND launch_type != 'EC2'"  # SQLite needs this condition to use the partial index task_not_on_ec2
        if instance_id is not None and desired == "RUNNING":
            # A plus disables the index on a column. SQLite then uses the index on the instance, which selects fewer rows.
            where = where.replace("region", "+region").replace("cluster", "+cluster").replace("desired", "+desired")
            where += " AND state IN ('PENDING', 'RUNNING')"
        chosen = f"SELECT family, rowid, id FROM task WHERE {where}"
        values = (region, cluster, desired, *given.values())
        if family is not None:
            sql, values = f"{chosen} AND family = ? AND rowid > ?", (*values, family, after[1])
        else:  # the remaining tasks of the previous page's last family, then all later families
            sql = f"{chosen} AND family = ? AND rowid > ? UNION ALL {chosen} AND family > ?"
            values = (*values, *after, *values, after[0])
        return self._execute(f"{sql} ORDER BY family, rowid LIMIT ?", (*values, limit)).fetchall()

    def counts(self) -> dict[str, int]:
        """The number of tasks in each state, over all clusters. Each SELECT uses an index, because there may be many tasks."""
        return dict(
            self._execute(
                "SELECT state, count(*) FROM task WHERE state IN ('PENDING', 'RUNNING') GROUP BY state "
                f"UNION ALL SELECT 'PROVISIONING', count(*) FROM ({_WAITING}) HAVING count(*) > 0 "
                "UNION ALL SELECT 'STOPPED', count(*) FROM task WHERE state = 'STOPPED' HAVING count(*) > 0"
            ).fetchall()
        )

    def oldest_placed(self, limit: int) -> list[str]:
        """Ids of placed tasks, sorted by instance. The oldest task of an instance is first."""
        sql = (
            "SELECT id FROM task WHERE instance_id IS NOT NULL AND state IN ('PENDING', 'RUNNING') "
            "ORDER BY instance_id, rowid LIMIT ?"
        )
        return [task_id for (task_id,) in self._execute(sql, (limit,))]

    def with_pause(self) -> list[str]:
        """Ids of placed tasks that were paused, lend their GPUs or take turns, and of tasks with a claim that will take turns."""
        claimed = "coalesce(json_extract(pause, '$.turn_s'), 0) > 0 AND id IN (SELECT id FROM claim WHERE kind = 'task')"
        return [task_id for (task_id,) in self._execute(f"{_WITH_PAUSE} AND (instance_id IS NOT NULL OR ({claimed}))")]

    def in_turn_lines(self) -> list[tuple[str, str, str]]:
        """Id, pool and owner of each task that waits until fewer tasks take turns, oldest first."""
        sql = f"SELECT id, pool, owner FROM task WHERE id IN ({_FOR_TURNS}) ORDER BY created_at, id"
        return [(task_id, pool, owner) for task_id, pool, owner in self._execute(sql)]

    def for_turns(self, limit: int, cluster: tuple[str, str] | None = None) -> list[str]:
        """Ids of tasks that wait until fewer tasks take turns, oldest first. `cluster` is a region and a name, or None for all."""
        where, values = (" AND +region = ? AND +cluster = ?", cluster) if cluster is not None else ("", ())
        sql = f"{_FOR_TURNS}{where} ORDER BY created_at, id LIMIT ?"
        return [task_id for (task_id,) in self._execute(sql, (*values, limit))]

    def paused(self, limit: int) -> list[str]:
        """Ids of tasks of all clusters that are being paused, are paused or are about to continue, oldest first."""
        return [task_id for (task_id,) in self._execute(f"{_PAUSED} ORDER BY created_at, id LIMIT ?", (limit,))]

    def lending(self, pool: str, limit: int) -> list[str]:
        """Ids of running tasks of a pool that lend their GPUs, take turns or were paused, oldest first."""
        sql = f"{_WITH_PAUSE} AND state = 'RUNNING' AND desired = 'RUNNING' AND +pool = ? ORDER BY created_at, id LIMIT ?"
        return [task_id for (task_id,) in self._execute(sql, (pool, limit))]

    def paused_count(self) -> int:
        return int(self._execute(f"SELECT count(*) FROM ({_PAUSED})").fetchone()[0])

    def not_stopping(self, limit: int) -> list[str]:
        """Ids of tasks of all clusters whose stop has not begun: all placed tasks, and waiting tasks that belong to no service."""
        sql = (
            "SELECT id FROM task WHERE instance_id IS NOT NULL AND state IN ('PENDING', 'RUNNING') AND desired = 'RUNNING' "
            f"UNION ALL SELECT id FROM task WHERE id IN ({_WAITING}) AND coalesce(started_by, '') NOT LIKE ? LIMIT ?"
        )
        return [task_id for (task_id,) in self._execute(sql, (f"{STARTED_BY_SERVICE}%", limit))]

    def placed_in(self, region: str, cluster: str, limit: int) -> list[str]:
        """Ids of the placed tasks of a cluster, oldest first."""
        sql = (  # a plus disables the index on the cluster, which also has all waiting and all stopped tasks of the cluster
            "SELECT id FROM task WHERE instance_id IS NOT NULL AND state IN ('PENDING', 'RUNNING') "
            "AND +region = ? AND +cluster = ? ORDER BY rowid LIMIT ?"
        )
        return [task_id for (task_id,) in self._execute(sql, (region, cluster, limit))]

    def in_cluster(self, region: str, cluster: str, task_ids: Sequence[str]) -> set[str]:
        marks = ", ".join("?" * len(task_ids))
        sql = f"SELECT id FROM task WHERE id IN ({marks}) AND +region = ? AND +cluster = ?"
        return {task_id for (task_id,) in self._execute(sql, (*task_ids, region, cluster))}

    def unfinished_counts(self, region: str, cluster: str) -> dict[str, int]:
        """Count the unfinished tasks of a cluster: PENDING, RUNNING, STOPPING (placed, but must stop) and WAITING (not placed).

        There may be many waiting tasks. So one query counts the placed tasks, and another query counts, with an index, all tasks
        whose desired status is RUNNING. WAITING is the difference.
        """
        placed = self._execute(
            "SELECT state, desired, count(*) FROM task WHERE instance_id IS NOT NULL AND state IN ('PENDING', 'RUNNING') "
            "AND +region = ? AND +cluster = ? GROUP BY state, desired",
            (region, cluster),
        ).fetchall()
        sql = "SELECT count(*) FROM task WHERE region = ? AND cluster = ? AND desired = 'RUNNING'"
        unfinished = self._execute(sql, (region, cluster)).fetchone()[0]
        counts = {"PENDING": 0, "RUNNING": 0, "STOPPING": 0}
        for state, desired, count in placed:
            counts["STOPPING" if desired == "STOPPED" else state] += count
        return {**counts, "WAITING": unfinished - counts["PENDING"] - counts["RUNNING"]}

    def elsewhere(self, region: str, cluster: str, limit: int) -> list[tuple[str, str, int]]:
        """Return other clusters with tasks that run or wait: region, name and number of these tasks, at most `limit` clusters."""
        sql = (  # finds each cluster with one look at the index `task_of_cluster`, because there may be many tasks
            "WITH RECURSIVE place(region, cluster) AS (VALUES ('', '') UNION ALL SELECT task.region, task.cluster FROM place, task "
            "WHERE task.id = (SELECT id FROM task WHERE (region, cluster) > (place.region, place.cluster) ORDER BY region, cluster "
            "LIMIT 1)) SELECT region, cluster, (SELECT count(*) FROM task WHERE task.region = place.region AND "
            "task.cluster = place.cluster AND desired = 'RUNNING') AS tasks FROM place WHERE (region, cluster) != (?, ?) AND tasks "
            "LIMIT ?"
        )
        return self._execute(sql, (region, cluster, limit)).fetchall()
