"""Functions for the tasks of ECS services. They prepare launches, wait for busy tasks, stop tasks, and name tasks in events.

A busy task holds SQS messages in flight, or is protected (UpdateTaskProtection). A leaving task is a busy task that must stop: it
gets no new messages, and it stops when it is idle or when the setting `busy_wait_s` has passed (`fleet/leaving_tasks.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.leaving_tasks import busy_of, choose, named, still_awaited, withdraw
from corral.model.ecs_service import DAEMON, EcsService, ServiceTask
from corral.model.task import StopCode, TaskState
from corral.services.ecs.launch import LaunchRequest
from corral.services.ecs.lookup import find_definition
from corral.services.ecs.rollouts import write_event
from corral.services.ecs.tags import merge_tags
from corral.services.ecs.task_capacity import Capacity
from corral.services.ecs.task_progress import begin_stop
from corral.store import Store

STARTS_MAX = 20  # the most tasks that one transaction starts: about 5 ms of work
STOPS_MAX = 20  # the most tasks that one transaction stops
PACE_S = 0.001  # the time until the next transaction continues
PROVISIONING = TaskState.PROVISIONING.value
NAMED_MAX = 10  # the most tasks that one event names
RETRY_S = 30.0  # the time until the next attempt, after a launch was refused


def launch_request(tx: Tx[Store], caller: Caller, service: EcsService, count: int, capacity: Capacity) -> LaunchRequest:
    revision, document = definition_of(tx, caller, service)
    details, settings = service.details, service.primary.settings
    constraints = list(details.get("placementConstraints", ()))
    if service.strategy == DAEMON:
        constraints.append({"type": "distinctInstance"})
    return LaunchRequest(
        owner=service.owner,
        region=service.region,
        cluster=service.cluster,
        definition=document,
        revision=revision,
        capacity=capacity,
        count=count,
        group=service.group,
        started_by=service.primary.id,
        tags=_tags(service, document),
        network_configuration=settings.get("networkConfiguration"),
        platform_version=settings.get("platformVersion"),
        enable_execute_command=details.get("enableExecuteCommand", False),
        placement_constraints=constraints,
        placement_strategy=() if service.strategy == DAEMON else details.get("placementStrategy", ()),
        only_in_docker=service.primary.only_in_docker,
        as_account=service.primary.as_account,
        passed_from=service.primary.passed_from,
    )


def definition_of(tx: Tx[Store], caller: Caller, service: EcsService) -> tuple[int, dict[str, Any]]:
    revision, _, document = find_definition(tx, caller, service.primary.definition_arn)
    return revision, document


def _tags(service: EcsService, document: dict[str, Any]) -> list[dict[str, str]]:
    propagate = service.details.get("propagateTags", "NONE")
    tags: list[dict[str, str]] = []
    if propagate != "NONE":
        tags = service.details["tags"] if propagate == "SERVICE" else document["tags"]
    if service.details.get("enableECSManagedTags"):
        managed = {"aws:ecs:clusterName": service.cluster, "aws:ecs:serviceName": service.name}
        tags = merge_tags(tags, [{"key": key, "value": value} for key, value in managed.items()])
    return tags


def stop_task(tx: Tx[Store], service: EcsService, task_id: str, reason: str = "") -> None:
    task = tx.store.tasks.get(task_id)
    assert task is not None
    begin_stop(tx, task, StopCode.SERVICE, reason or f"Scaling activity initiated by (deployment {service.primary.id})")


def make_room(tx: Tx[Store], service: EcsService) -> None:
    """Reconcile the service again if it has an unhealthy task. Call this if new tasks wait for capacity.

    An unhealthy task stops at once if the task that replaces it waits for capacity.
    """
    if tx.store.ecs_services.has_unhealthy(service):
        tx.mark(f"service:{service.key}")


def protected_tasks(tx: Tx[Store], service: EcsService, tasks: list[ServiceTask], busy: Collection[str]) -> set[str]:
    """Return the ids of the protected tasks, which must not be stopped. Schedule the reconciler for the end of each protection.

    `busy` has the busy tasks. Of the tasks that wait for capacity, it has none.
    """
    protected = set[str]()
    for each in tasks:
        if each.state != PROVISIONING and each.id not in busy:
            continue
        task = tx.store.tasks.get(each.id)
        until_s = task.details.get("protectedUntil", 0.0) if task is not None else 0.0
        if until_s > tx.now_s:
            protected.add(each.id)
            tx.due(f"service:{service.key}", until_s)
    return protected


def wait_for_busy(
    tx: Tx[Store], service: EcsService, chosen: Sequence[str], busy: Collection[str] | None = None
) -> list[str]:  # fmt: skip
    """Mark the busy tasks among the tasks that must stop (`chosen`) as leaving. Return the tasks that can stop now.

    `busy` has the busy tasks, if the caller knows them. The service is reconciled again when a busy task becomes idle, and when the
    service has waited for it for `busy_wait_s`.
    """
    key = f"service:{service.key}"
    since = tx.store.tasks.leaving.chosen_by(key)
    awaited, again_s = still_awaited(
        tx, {task_id: since.get(task_id, tx.now_s) for task_id in chosen if busy is None or task_id in busy}
    )
    if again_s is not None:
        tx.due(key, again_s)
    new = [each for each in awaited if each.id not in since]
    if new:
        choose(tx, [each.id for each in new], key)
        write_event(tx, service, f"is waiting to stop {named(new)}.")
    waiting = {each.id for each in awaited}
    stopped = [task_id for task_id in chosen if task_id not in waiting]
    if late := busy_of(tx, [task_id for task_id in stopped if task_id in since]):
        write_event(tx, service, f"has waited for {tx.settings.scaling.busy_wait_s:g} s, and stops {named(late)}.")
    return stopped


def withdraw_others(tx: Tx[Store], service: EcsService, chosen: Collection[str]) -> None:
    """Let leaving tasks continue if they do not have to stop any more: they are not in `chosen`."""
    key, kept = f"service:{service.key}", set(chosen)
    withdraw(tx, [task_id for task_id in tx.store.tasks.leaving.chosen_by(key) if task_id not in kept], key)


def busy_ranks(tx: Tx[Store], tasks: Sequence[ServiceTask]) -> dict[str, int]:
    """Return the ranks of busy tasks, by id. Idle tasks stop first, then leaving tasks (rank 1), then other busy tasks (rank 2)."""
    busy = tx.store.tasks.leaving.busy_among([task.id for task in tasks], tx.now_s)
    return {task_id: 1 if task_id in tx.store.tasks.leaving else 2 for task_id in busy}


def task_names(task_ids: Sequence[str]) -> str:
    more = f" and {len(task_ids) - NAMED_MAX} more" if len(task_ids) > NAMED_MAX else ""
    return " ".join(f"(task {task_id})" for task_id in task_ids[:NAMED_MAX]) + more
