"""SQL of ECS services and their events, and queries of their tasks."""

from __future__ import annotations

from typing import Any

import msgspec

from corral.database import Database
from corral.model.ecs_service import STARTED_BY, Deployment, EcsService, ServiceTask, StoppedTask

EVENTS_MAX = 100  # per service, as in ECS
DOCUMENT = ("desired", "created_at_s", "deployments", "details", "is_steady", "problem", "paced_at_s")

_encode, _decode = msgspec.json.encode, msgspec.json.decode
# SQL expressions: settings of the newest deployment of a service
LAUNCH_TYPE = "json_extract(document, '$.deployments[0].settings.launchType')"
FIRST_PROVIDER = "json_extract(document, '$.deployments[0].settings.capacityProviderStrategy[0].capacityProvider')"


class EcsServices:
    """The part of the state store (`Store`) with ECS services."""

    def __init__(self, database: Database) -> None:
        self._execute = database.execute

    def put(self, service: EcsService) -> None:
        document = _encode({name: getattr(service, name) for name in DOCUMENT}).decode()
        self._execute(
            "INSERT OR REPLACE INTO ecs_service (region, cluster, name, status, strategy, deleted_at, document) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (service.region, service.cluster, service.name, service.status, service.strategy, service.deleted_at_s, document),
        )

    def get(self, region: str, cluster: str, name: str) -> EcsService | None:
        row = self._execute(
            "SELECT status, strategy, deleted_at, document FROM ecs_service WHERE region = ? AND cluster = ? AND name = ?",
            (region, cluster, name),
        ).fetchone()
        if row is None:
            return None
        document = _decode(row[3])
        document["deployments"] = tuple(msgspec.convert(each, Deployment) for each in document["deployments"])
        return EcsService(region, cluster, name, row[0], row[1], deleted_at_s=row[2], **document)

    def listed(
        self, region: str, cluster: str, after: str, limit: int, strategy: str | None = None, launch_type: str | None = None
    ) -> list[str]:
        """Return the names of services that were not deleted. A limit of -1 means no limit."""
        rows = self._execute(
            "SELECT name FROM ecs_service WHERE region = ? AND cluster = ? AND name > ? AND status = 'ACTIVE' "
            f"AND strategy = coalesce(?, strategy) AND coalesce({LAUNCH_TYPE}, '') = coalesce(?, {LAUNCH_TYPE}, '') "
            "ORDER BY name LIMIT ?",
            (region, cluster, after, strategy, launch_type, limit),
        )
        return [name for (name,) in rows]

    def with_provider(self, region: str, cluster: str, provider: str) -> bool:
        """Return whether an active service of the cluster starts its new tasks with this capacity provider."""
        sql = (
            "SELECT 1 FROM ecs_service, json_each(document, '$.deployments[0].settings.capacityProviderStrategy') AS item "
            "WHERE region = ? AND cluster = ? AND status = 'ACTIVE' AND json_extract(item.value, '$.capacityProvider') = ? LIMIT 1"
        )
        return self._execute(sql, (region, cluster, provider)).fetchone() is not None

    def daemons(self, cluster: str, region: str | None = None) -> list[tuple[str, str]]:
        """Return region and name of each DAEMON service of a cluster, in one region or in all regions."""
        rows = self._execute(
            "SELECT region, name FROM ecs_service WHERE cluster = ? AND region = coalesce(?, region) "
            "AND strategy = 'DAEMON' AND status = 'ACTIVE'",
            (cluster, region),
        )
        return rows.fetchall()

    def count(self, region: str, cluster: str) -> int:
        """Count the services of a cluster that are not INACTIVE."""
        sql = "SELECT count(*) FROM ecs_service WHERE region = ? AND cluster = ? AND status != 'INACTIVE'"
        return int(self._execute(sql, (region, cluster)).fetchone()[0])

    def statistics(self, region: str, cluster: str) -> dict[tuple[str, str], int]:
        """Count the services of a cluster that are not INACTIVE, by status and launch type."""
        rows = self._execute(
            f"SELECT status, iif(coalesce({LAUNCH_TYPE}, {FIRST_PROVIDER}) LIKE 'FARGATE%', 'FARGATE', 'EC2'), "
            "count(*) FROM ecs_service WHERE region = ? AND cluster = ? AND status != 'INACTIVE' GROUP BY 1, 2",
            (region, cluster),
        )
        return {(status, launch_type): count for status, launch_type, count in rows}

    def drop_deleted(self, before_s: float, limit: int) -> int:
        """Delete services that became INACTIVE before this time, with their events. Return how many were deleted."""
        rows = self._execute(
            "SELECT region, cluster, name FROM ecs_service WHERE status = 'INACTIVE' AND deleted_at < ? LIMIT ?", (before_s, limit)
        ).fetchall()
        for row in rows:
            self.drop_events(*row)
            self._execute("DELETE FROM ecs_service WHERE region = ? AND cluster = ? AND name = ?", row)
        return len(rows)

    # Events

    def add_event(self, service: EcsService, event_id: str, at_s: float, message: str) -> None:
        """Add an event, and delete all but the newest EVENTS_MAX events of the service."""
        place = service.region, service.cluster, service.name
        self._execute("INSERT INTO ecs_service_event VALUES (NULL, ?, ?, ?, ?, ?, ?)", (event_id, *place, at_s, message))
        self._execute(
            "DELETE FROM ecs_service_event WHERE number IN (SELECT number FROM ecs_service_event "
            "WHERE region = ? AND cluster = ? AND name = ? ORDER BY number DESC LIMIT -1 OFFSET ?)",
            (*place, EVENTS_MAX),
        )

    def events(self, service: EcsService) -> list[dict[str, Any]]:
        """Return the events as ECS describes them, newest first."""
        rows = self._execute(
            "SELECT id, at, message FROM ecs_service_event WHERE region = ? AND cluster = ? AND name = ? ORDER BY number DESC",
            (service.region, service.cluster, service.name),
        )
        return [{"id": event_id, "createdAt": at, "message": message} for event_id, at, message in rows]

    def drop_events(self, region: str, cluster: str, name: str) -> None:
        self._execute("DELETE FROM ecs_service_event WHERE region = ? AND cluster = ? AND name = ?", (region, cluster, name))

    # Tasks of services. `started_by` is the id of the deployment, and each query uses its index.

    def tasks(self, service: EcsService) -> list[ServiceTask]:
        """Return the tasks of all deployments, without those that are stopping or have stopped."""
        marks = ", ".join("?" * len(service.deployments))
        rows = self._execute(
            "SELECT id, started_by, state, instance_id, pool, created_at FROM task WHERE region = ? AND cluster = ? "
            f"AND desired = 'RUNNING' AND started_by IN ({marks})",
            (service.region, service.cluster, *(deployment.id for deployment in service.deployments)),
        )
        return [ServiceTask(*row) for row in rows]

    def newest_stopped(self, service: EcsService, limit: int) -> list[StoppedTask]:
        """Return the newest tasks of the primary deployment that are stopping or have stopped, newest first."""
        family = service.primary.definition_arn.rpartition("/")[2].rpartition(":")[0]
        rows = self._execute(
            "SELECT stop_code, created_at, started_at, coalesce(stopped_at, stopping_at) FROM task WHERE region = ? "
            "AND cluster = ? AND desired = 'STOPPED' AND started_by = ? AND family = ? ORDER BY rowid DESC LIMIT ?",
            (service.region, service.cluster, service.primary.id, family, limit),
        )
        return [StoppedTask(*row) for row in rows]

    def count_stopping(self, service: EcsService) -> int:
        """Count the running tasks of the service that are being stopped."""
        sql = (
            "SELECT count(*) FROM task WHERE instance_id > '' AND state = 'RUNNING' AND desired = 'STOPPED' AND +region = ? "
            "AND +cluster = ? AND task_group = ? AND started_by LIKE ?"
        )
        values = service.region, service.cluster, service.group, f"{STARTED_BY}%"
        return int(self._execute(sql, values).fetchone()[0])

    def still_stopping(self, service: EcsService) -> bool:
        """Return whether a placed task of the service is still stopping. Tasks of deployments that are no longer shown count too.

        The query reads the placed tasks of all instances, which are few. Because of the `+`, SQLite does not read all tasks of the
        cluster.
        """
        row = self._execute(
            "SELECT 1 FROM task WHERE instance_id > '' AND state IN ('PENDING', 'RUNNING') AND +region = ? AND +cluster = ? "
            "AND task_group = ? AND started_by LIKE ? LIMIT 1",
            (service.region, service.cluster, service.group, f"{STARTED_BY}%"),
        ).fetchone()
        return row is not None
