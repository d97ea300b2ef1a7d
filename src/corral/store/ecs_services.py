"""SQL of ECS services, their events and their service deployments, and queries of their tasks.

A deployment is an element of `deployments` in DescribeServices. A service deployment is what DescribeServiceDeployments describes:
the move of the service to another service revision. Here it is called a rollout (`ServiceRollout`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from corral.core.database import Database
from corral.model.ecs_service import (
    FAILED_CHECKS,
    STARTED_BY,
    Deployment,
    EcsService,
    ServiceRollout,
    ServiceTask,
    StoppedTask,
    TaskSet,
)

EVENTS_MAX = 100  # per service, as in ECS
ROLLOUTS_MAX = 100  # service deployments that are kept per service
DOCUMENT = (  # the fields of EcsService that are in the column `document`
    "desired", "created_at_s", "deployments", "details", "is_steady", "problem", "paced_at_s", "rollout", "completed", "task_sets",
)  # fmt: skip

_encode, _decode = msgspec.json.encode, msgspec.json.decode
# SQL expressions: settings of the newest deployment of a service
LAUNCH_TYPE = "json_extract(document, '$.deployments[0].settings.launchType')"
FIRST_PROVIDER = "json_extract(document, '$.deployments[0].settings.capacityProviderStrategy[0].capacityProvider')"


class EcsServices:
    def __init__(self, database: Database) -> None:
        self._execute = database.execute

    def put(self, service: EcsService) -> None:
        document = _encode({name: getattr(service, name) for name in DOCUMENT}).decode()
        self._execute(
            "INSERT OR REPLACE INTO ecs_service (region, cluster, name, status, strategy, deleted_at, owner, document) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                service.region,
                service.cluster,
                service.name,
                service.status,
                service.strategy,
                service.deleted_at_s,
                service.owner,
                document,
            ),
        )

    def get(self, region: str, cluster: str, name: str) -> EcsService | None:
        row = self._execute(
            "SELECT status, strategy, deleted_at, owner, document FROM ecs_service WHERE region = ? AND cluster = ? AND name = ?",
            (region, cluster, name),
        ).fetchone()
        if row is None:
            return None
        document = _decode(row[4])
        document["deployments"] = tuple(msgspec.convert(each, Deployment) for each in document["deployments"])
        document["task_sets"] = tuple(msgspec.convert(each, TaskSet) for each in document["task_sets"])
        if document["completed"] is not None:
            document["completed"] = msgspec.convert(document["completed"], Deployment)
        return EcsService(region, cluster, name, row[0], row[1], deleted_at_s=row[2], owner=row[3], **document)

    def listed(
        self, region: str, cluster: str, after: str, limit: int, strategy: str | None = None, launch_type: str | None = None
    ) -> list[str]:
        """Return the names of the ACTIVE services whose name is greater than `after`, sorted. A limit of -1 means no limit."""
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
        """Return region and name of each active DAEMON service of a cluster. If `region` is None, include all regions."""
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

    def count_wanted(self) -> int:
        """Count the services of all clusters that should have tasks."""
        sql = "SELECT count(*) FROM ecs_service WHERE status = 'ACTIVE' AND (strategy = 'DAEMON' OR document ->> 'desired' > 0)"
        return int(self._execute(sql).fetchone()[0])

    def statistics(self, region: str, cluster: str) -> dict[tuple[str, str], int]:
        """Count the services of a cluster that are not INACTIVE, by status and launch type."""
        rows = self._execute(
            f"SELECT status, iif(coalesce({LAUNCH_TYPE}, {FIRST_PROVIDER}) LIKE 'FARGATE%', 'FARGATE', 'EC2'), "
            "count(*) FROM ecs_service WHERE region = ? AND cluster = ? AND status != 'INACTIVE' GROUP BY 1, 2",
            (region, cluster),
        )
        return {(status, launch_type): count for status, launch_type, count in rows}

    def drop_deleted(self, before_s: float, limit: int) -> int:
        """Delete services that became INACTIVE before this time, with their history. Return how many were deleted."""
        rows = self._execute(
            "SELECT region, cluster, name FROM ecs_service WHERE status = 'INACTIVE' AND deleted_at < ? LIMIT ?", (before_s, limit)
        ).fetchall()
        for row in rows:
            self.drop_history(*row)
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

    def drop_history(self, region: str, cluster: str, name: str) -> None:
        """Delete the events and the service deployments of a service."""
        for table in ("ecs_service_event", "ecs_service_deployment"):
            self._execute(f"DELETE FROM {table} WHERE region = ? AND cluster = ? AND name = ?", (region, cluster, name))

    # Service deployments (rollouts)

    def add_rollout(self, region: str, cluster: str, name: str, rollout: ServiceRollout) -> None:
        """Add a service deployment, and delete all but the newest ROLLOUTS_MAX service deployments of the service."""
        place = region, cluster, name
        self._execute(
            "INSERT INTO ecs_service_deployment VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
            (rollout.id, *place, rollout.target, rollout.status, _encode(rollout).decode()),
        )
        self._execute(
            "DELETE FROM ecs_service_deployment WHERE number IN (SELECT number FROM ecs_service_deployment "
            "WHERE region = ? AND cluster = ? AND name = ? ORDER BY number DESC LIMIT -1 OFFSET ?)",
            (*place, ROLLOUTS_MAX),
        )

    def put_rollout(self, service: EcsService, rollout: ServiceRollout) -> None:
        self._execute(
            "UPDATE ecs_service_deployment SET status = ?, document = ? WHERE region = ? AND cluster = ? AND name = ? AND id = ?",
            (rollout.status, _encode(rollout).decode(), service.region, service.cluster, service.name, rollout.id),
        )

    def rollout(self, region: str, cluster: str, name: str, rollout_id: str) -> ServiceRollout | None:
        return self._rollout("id", (region, cluster, name, rollout_id))

    def rollout_of_revision(self, region: str, cluster: str, name: str, revision: str) -> ServiceRollout | None:
        return self._rollout("revision", (region, cluster, name, revision))

    def _rollout(self, column: str, values: tuple[str, ...]) -> ServiceRollout | None:
        row = self._execute(
            f"SELECT document FROM ecs_service_deployment WHERE region = ? AND cluster = ? AND name = ? AND {column} = ?", values
        ).fetchone()
        return _decode(row[0], type=ServiceRollout) if row is not None else None

    def rollouts(self, region: str, cluster: str, name: str, before: int) -> list[tuple[int, ServiceRollout]]:
        """Return the service deployments of a service with numbers less than `before`, with their numbers, newest first."""
        rows = self._execute(
            "SELECT number, document FROM ecs_service_deployment WHERE region = ? AND cluster = ? AND name = ? AND number < ? "
            "ORDER BY number DESC",
            (region, cluster, name, before),
        )
        return [(number, _decode(document, type=ServiceRollout)) for number, document in rows]

    # Tasks of services. `started_by` is the id of the deployment of a task. In the SQL, a plus before a column prevents the use of
    # an index on this column.

    def tasks(self, service: EcsService) -> list[ServiceTask]:
        """Return the tasks of all deployments, except tasks that are stopping or have stopped."""
        marks = ", ".join("?" * len(service.deployments))
        rows = self._execute(
            "SELECT id, started_by, state, instance_id, pool, created_at, started_at FROM task WHERE region = ? AND cluster = ? "
            f"AND desired = 'RUNNING' AND started_by IN ({marks})",
            (service.region, service.cluster, *(deployment.id for deployment in service.deployments)),
        )
        return [ServiceTask(*row) for row in rows]

    def newest_waiting(self, service: EcsService, now_s: float, limit: int) -> list[str]:
        """Return the newest tasks of the primary deployment that wait for capacity and are not protected, newest first."""
        rows = self._execute(
            "SELECT id FROM task WHERE region = ? AND cluster = ? AND desired = 'RUNNING' AND started_by = ? AND "
            "state = 'PROVISIONING' AND coalesce(json_extract(details, '$.protectedUntil'), 0) <= ? "
            "ORDER BY created_at DESC, id LIMIT ?",
            (service.region, service.cluster, service.primary.id, now_s, limit),
        )
        return [row[0] for row in rows]

    def newest_stopped(self, service: EcsService, limit: int) -> list[StoppedTask]:
        """Return the newest tasks of the primary deployment that are stopping or have stopped, newest first."""
        family = service.primary.definition_arn.rpartition("/")[2].rpartition(":")[0]
        rows = self._execute(
            "SELECT stop_code, created_at, started_at, coalesce(stopped_at, stopping_at), stopped_reason FROM task "
            "WHERE region = ? AND cluster = ? AND desired = 'STOPPED' AND started_by = ? AND family = ? "
            "ORDER BY rowid DESC LIMIT ?",
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

    def failed_count(self, service: EcsService, short_run_s: float) -> int:
        """Count the failed tasks of the primary deployment.

        A failed task did not start, ended within `short_run_s` of its start, or failed its health checks.
        """
        row = self._execute(
            "SELECT count(*) FROM task WHERE region = ? AND cluster = ? AND desired = 'STOPPED' AND started_by = ? "
            "AND (stopped_reason = ? OR (stop_code IN ('EssentialContainerExited', 'TaskFailedToStart') "
            "AND coalesce(coalesce(stopped_at, stopping_at) - started_at, 0) < ?))",
            (service.region, service.cluster, service.primary.id, FAILED_CHECKS, short_run_s),
        ).fetchone()
        return int(row[0])

    def healths(self, service: EcsService, deployment: str) -> list[tuple[str, str, str | None]]:
        """Return (task, container, health) of the essential containers of the running tasks of a deployment."""
        return self._execute(
            "SELECT task.id, run.container, run.health FROM task JOIN run ON run.task_id = task.id "
            "WHERE task.region = ? AND task.cluster = ? AND task.desired = 'RUNNING' AND task.started_by = ? "
            "AND task.state = 'RUNNING' AND run.essential",
            (service.region, service.cluster, deployment),
        ).fetchall()

    def has_not_healthy(self, service: EcsService, containers: Collection[str]) -> bool:
        """Return whether one of these containers of a running task of the primary deployment is not healthy.

        The query ends at the first such container. It reads the newest tasks first, because these often are not healthy yet.
        """
        marks = ", ".join("?" * len(containers))
        row = self._execute(
            "SELECT 1 FROM task CROSS JOIN run ON run.task_id = task.id WHERE task.region = ? AND task.cluster = ? "
            "AND task.desired = 'RUNNING' AND task.started_by = ? AND task.state = 'RUNNING' "
            f"AND run.health IS NOT 'HEALTHY' AND run.container IN ({marks}) ORDER BY task.family DESC, task.rowid DESC LIMIT 1",
            (service.region, service.cluster, service.primary.id, *containers),
        ).fetchone()
        return row is not None

    def has_unhealthy(self, service: EcsService) -> bool:
        """Return whether an essential container of the service is unhealthy, in a task whose desired status is RUNNING.

        The query uses an index that has only the unhealthy containers, which are few.
        """
        row = self._execute(
            "SELECT 1 FROM run CROSS JOIN task ON task.id = run.task_id WHERE run.health = 'UNHEALTHY' AND run.state != 'STOPPED' "
            "AND run.essential AND task.desired = 'RUNNING' AND task.region = ? AND task.cluster = ? AND task.task_group = ? "
            "LIMIT 1",
            (service.region, service.cluster, service.group),
        ).fetchone()
        return row is not None

    def settling(self, service: EcsService, started_after_s: float) -> tuple[int, float | None]:
        """Count the running tasks of the primary deployment that started after this time. Return also their earliest start."""
        row = self._execute(
            "SELECT count(*), min(started_at) FROM task WHERE region = ? AND cluster = ? AND desired = 'RUNNING' "
            "AND started_by = ? AND state = 'RUNNING' AND started_at > ?",
            (service.region, service.cluster, service.primary.id, started_after_s),
        ).fetchone()
        return int(row[0]), row[1]

    def started_since(self, service: EcsService, since_s: float) -> tuple[int, float | None]:
        """Count the running tasks of all deployments that started after this time. Return also their earliest start."""
        marks = ", ".join("?" * len(service.deployments))
        row = self._execute(
            "SELECT count(*), min(started_at) FROM task WHERE region = ? AND cluster = ? AND desired = 'RUNNING' "
            f"AND started_by IN ({marks}) AND state = 'RUNNING' AND started_at > ?",
            (service.region, service.cluster, *(deployment.id for deployment in service.deployments), since_s),
        ).fetchone()
        return int(row[0]), row[1]

    def stopped_since(self, service: EcsService, since_s: float) -> int:
        """Count the tasks of all deployments that stopped after this time. Tasks that never started are not counted."""
        marks = ", ".join("?" * len(service.deployments))
        row = self._execute(
            "SELECT count(*) FROM task WHERE region = ? AND cluster = ? AND desired = 'STOPPED' "
            f"AND started_by IN ({marks}) AND state = 'STOPPED' AND started_at IS NOT NULL AND stopped_at > ?",
            (service.region, service.cluster, *(deployment.id for deployment in service.deployments), since_s),
        ).fetchone()
        return int(row[0])

    def still_stopping(self, service: EcsService) -> bool:
        """Return whether a placed task of the service has not stopped yet.

        Tasks of deployments that DescribeServices no longer shows are included. With the index on the instance, the query reads the
        placed tasks of all clusters. These are few. The index on the cluster also has all stopped tasks.
        """
        row = self._execute(
            "SELECT 1 FROM task WHERE instance_id > '' AND state IN ('PENDING', 'RUNNING') AND +region = ? AND +cluster = ? "
            "AND task_group = ? AND started_by LIKE ? LIMIT 1",
            (service.region, service.cluster, service.group, f"{STARTED_BY}%"),
        ).fetchone()
        return row is not None
