"""The health of the tasks of a service. It follows from health checks of containers or, without a check, from the age of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.tasks.circuit_breaker import SETTLED_S, breaker_of
from corral.model.ecs_service import HEALTHY, IN_PROGRESS, UNHEALTHY, UNKNOWN, Deployment, EcsService, ServiceTask, TaskCount
from corral.model.task import TaskState
from corral.services.ecs.lookup import split_definition
from corral.services.ecs.task_spec import health_check
from corral.store import Store

RUNNING = TaskState.RUNNING.value


def tasks_with_health(tx: Tx[Store], service: EcsService) -> list[ServiceTask]:
    """Return the tasks of a service that should run, with their health.

    A task is healthy when all essential containers with a health check are healthy. Within `healthCheckGracePeriodSeconds` after
    its start, the health of an unhealthy task counts as unknown. A task that does not run yet counts as healthy. `_settles` says
    when a running task without a health check is healthy. The service is reconciled again when the health of a task can change with
    its age.
    """
    healths = {each.id: _healths(tx, service, each) for each in service.deployments}
    settles = _settles(service)
    tasks = tx.store.ecs_services.tasks(service)
    found, again_s = [], set[float]()
    grace_s = service.details.get("healthCheckGracePeriodSeconds") or 0
    for task in tasks:
        known, started_s = healths[task.deployment], task.started_at_s or 0.0
        if task.state != RUNNING:
            health = HEALTHY
        elif known is not None:
            health = known.get(task.id, UNKNOWN)
            if health == UNHEALTHY and tx.now_s < started_s + grace_s:
                health = UNKNOWN
                again_s.add(started_s + grace_s)
        else:
            health = HEALTHY
            if settles and task.deployment == service.primary.id and tx.now_s < started_s + SETTLED_S:
                health = UNKNOWN
                again_s.add(started_s + SETTLED_S)
        found.append(task if health == task.health else replace(task, health=health))
    if again_s:
        tx.due(f"service:{service.key}", min(again_s))
    return found


def healthy_count(tx: Tx[Store], service: EcsService) -> int:
    """Count the healthy tasks of the primary deployment. The service is reconciled again when a task becomes healthy by its age."""
    running = tx.store.tasks.deployment_counts.of(service).get(service.primary.id, TaskCount()).running
    if (known := _healths(tx, service, service.primary)) is not None:
        return sum(health == HEALTHY for health in known.values())
    if not _settles(service):
        return running
    count, earliest_s = tx.store.ecs_services.settling(service, tx.now_s - SETTLED_S)
    if earliest_s is not None:
        tx.due(f"service:{service.key}", earliest_s + SETTLED_S)
    return running - count


def all_healthy(tx: Tx[Store], service: EcsService) -> bool:
    """Return whether all running tasks of the primary deployment are healthy. The query ends at the first unhealthy task."""
    if checked := _checked_containers(tx, service, service.primary):
        return not tx.store.ecs_services.has_not_healthy(service, checked)
    running = tx.store.tasks.deployment_counts.of(service).get(service.primary.id, TaskCount()).running
    return healthy_count(tx, service) >= running


def _settles(service: EcsService) -> bool:
    """Return whether a running task without a health check counts as healthy only SETTLED_S after its start."""
    configuration: Mapping[str, Any] = service.details["deploymentConfiguration"]
    return service.primary.rollout == IN_PROGRESS and breaker_of(configuration) is not None


def _healths(tx: Tx[Store], service: EcsService, deployment: Deployment) -> dict[str, str] | None:
    """Return the health of each running task of a deployment. Return None if no essential container has a health check."""
    checked = _checked_containers(tx, service, deployment)
    if not checked:
        return None
    verdicts: dict[str, list[str | None]] = {}
    for task_id, container, health in tx.store.ecs_services.healths(service, deployment.id):
        if container in checked:
            verdicts.setdefault(task_id, []).append(health)
    return {task_id: _worst(each) for task_id, each in verdicts.items()}


def _checked_containers(tx: Tx[Store], service: EcsService, deployment: Deployment) -> set[str]:
    """Return the names of the essential containers with a health check."""
    family, revision = split_definition(deployment.definition_arn)
    found = tx.store.definitions.get(service.region, family, revision)
    containers = found[2]["containerDefinitions"] if found is not None else ()
    return {each["name"] for each in containers if each.get("essential", True) and health_check(each) is not None}


def _worst(verdicts: list[str | None]) -> str:
    if UNHEALTHY in verdicts:
        return UNHEALTHY
    return UNKNOWN if None in verdicts else HEALTHY
