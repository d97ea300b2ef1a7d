"""Task sets: groups of tasks of a service with the deployment controller EXTERNAL. Another program creates and scales them.

A task set is a deployment with a scale. `reconcile/ecs_task_sets.py` starts and stops its tasks.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.ecs_service import ACTIVE, COMPLETED, DRAINING, EcsService, TaskSet
from corral.services.ecs import errors
from corral.services.ecs.lookup import find_cluster, short
from corral.services.ecs.rollouts import new_deployment
from corral.services.ecs.service_description import task_set_description
from corral.services.ecs.services import definition_arn_of, deployment_settings, find_service
from corral.services.ecs.tags import check_tags
from corral.store import Store

TASK_SETS_MAX = 5  # per service, as in ECS
STORED_MEMBERS = ("externalId", "loadBalancers", "serviceRegistries", "clientToken")


def create_task_set(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    service, about = _external(tx, params, caller)
    token = params.get("clientToken")
    if token and (same := next((each for each in service.task_sets if each.details.get("clientToken") == token), None)):
        return {"taskSet": task_set_description(tx, service, same)}
    if len(service.task_sets) >= TASK_SETS_MAX:
        raise errors.LimitExceededException(f"A service can have at most {TASK_SETS_MAX} task sets: delete one first.")
    settings = deployment_settings(tx, params, about, caller, service.cluster)
    definition = definition_arn_of(tx, caller, params["taskDefinition"], settings, params)
    deployment = replace(new_deployment(tx, caller, definition, settings), rollout=COMPLETED)
    details = {member: params[member] for member in STORED_MEMBERS if member in params}
    details["tags"] = check_tags(params.get("tags", []))
    made = TaskSet(deployment.id, _scale(params), tx.now_s, tx.now_s, details, stability_at_s=tx.now_s)
    changed = service.but(
        task_sets=(*service.task_sets, made), deployments=(*service.deployments, deployment), is_steady=False
    )  # fmt: skip
    _write(tx, changed)
    return {"taskSet": task_set_description(tx, changed, made)}


def update_task_set(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    service, _ = _external(tx, params, caller)
    found = _find(service, params["taskSet"])
    if found.status == DRAINING:
        raise errors.InvalidParameterException("The task set is draining, so its scale cannot be changed.")
    return _change(tx, service, found, scale=_scale(params))


def delete_task_set(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Delete a task set. Its status is DRAINING until its last task has stopped.

    With `force`, also busy tasks (`fleet/leaving_tasks.py`) stop at once.
    """
    service, _ = _external(tx, params, caller)
    found = _find(service, params["taskSet"])
    if found.desired(service.desired) and not params.get("force"):
        raise errors.InvalidParameterException(
            "The task set cannot be deleted while it is scaled above 0: scale it to 0, or use force."
        )
    details = {**found.details, "force": True} if params.get("force") else found.details
    return _change(tx, service, found, status=DRAINING, scale=0.0, details=details)


def update_service_primary_task_set(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Make a task set the primary task set. Then descriptions of the service have the task definition of this task set."""
    service, _ = _external(tx, params, caller)
    found = _find(service, params["primaryTaskSet"])
    if found.status == DRAINING:
        raise errors.InvalidParameterException("A task set that is draining cannot be the primary task set.")
    others = tuple(replace(each, status=ACTIVE) if each.status == "PRIMARY" else each for each in service.task_sets)
    ordered = sorted(service.deployments, key=lambda each: each.id != found.id)
    return _change(tx, service.but(task_sets=others, deployments=tuple(ordered)), found, status="PRIMARY")


def describe_task_sets(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    service, _ = _external(tx, params, caller)
    given = params.get("taskSets") or [each.id for each in service.task_sets]
    described, failures = [], []
    for name in given:
        try:
            found = _find(service, name)
        except errors.TaskSetNotFoundException:
            failures.append({"arn": name, "reason": "MISSING"})
            continue
        description = task_set_description(tx, service, found)
        if "TAGS" not in params.get("include", ()):
            del description["tags"]
        described.append(description)
    return {"taskSets": described, "failures": failures}


def _external(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[EcsService, dict[str, Any]]:
    """Return the service of a request, and the details of its cluster."""
    cluster, about = find_cluster(tx, caller, params["cluster"])
    service = find_service(tx, caller, cluster, params["service"])
    if service.status != ACTIVE:
        raise errors.ServiceNotActiveException("Service was not ACTIVE.")
    if not service.is_external:
        raise errors.InvalidParameterException("Task sets need a service with the deployment controller EXTERNAL.")
    return service, about


def _find(service: EcsService, given: str) -> TaskSet:
    """Find a task set by its id (ecs-svc/NUMBER) or by its ARN, which ends with the id."""
    for each in service.task_sets:
        if short(each.id) == short(given):
            return each
    raise errors.TaskSetNotFoundException("The specified task set was not found.")


def _scale(params: dict[str, Any]) -> float:
    scale = float((params.get("scale") or {}).get("value", 100.0))
    if not 0 <= scale <= 100:
        raise errors.InvalidParameterException("The scale of a task set must be between 0 and 100 percent.")
    return scale


def _change(tx: Tx[Store], service: EcsService, before: TaskSet, **changes: Any) -> dict[str, Any]:
    after = replace(before, **changes, updated_at_s=tx.now_s, is_steady=False, stability_at_s=tx.now_s)
    task_sets = tuple(after if each.id == before.id else each for each in service.task_sets)
    changed = service.but(task_sets=task_sets, is_steady=False)
    _write(tx, changed)
    return {"taskSet": task_set_description(tx, changed, after)}


def _write(tx: Tx[Store], service: EcsService) -> None:
    tx.store.ecs_services.put(service)
    tx.mark(f"service:{service.key}")
