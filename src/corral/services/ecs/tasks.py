"""ECS tasks that are there: stop, describe, list."""

from __future__ import annotations

from typing import Any

from corral.core import Tx, Wait
from corral.errors import api_error
from corral.model.task import StopCode, Task, TaskState
from corral.services.caller import Caller
from corral.services.ecs.describing import described
from corral.services.ecs.naming import PAGES, InvalidParameterException, arn, find_cluster, short
from corral.services.ecs.slots import find_slot
from corral.services.ecs.stopping import stop
from corral.store import Store

ServiceNotFoundException = api_error("ServiceNotFoundException")

STOPPED_BY_USER = "Task stopped by user"
WAIT_MAX_S = 60.0


def stop_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    task = tx.store.tasks.get(short(params["task"]))
    if task is None or (task.region, task.cluster) != (caller.region, cluster):
        raise InvalidParameterException("The referenced task was not found.")
    stopped = stop(tx, task, StopCode.USER, params.get("reason") or STOPPED_BY_USER)
    return {"task": described(tx, [stopped])[0]}


def describe_tasks(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    tasks, failures = [], []
    found = tx.store.tasks.several([short(given) for given in params["tasks"]])
    for given in params["tasks"]:
        task = found.get(short(given))
        if task is not None and (task.region, task.cluster) == (caller.region, cluster):
            tasks.append(task)
        else:
            task_arn = given if given.startswith("arn:") else arn(caller.account, caller.region, f"task/{cluster}/{given}")
            failures.append({"arn": task_arn, "reason": "MISSING"})
    if caller.wait_s and not tx.final and (awaited := _awaited(tasks, caller.seen)):
        raise Wait([f"task:{task.id}" for task in awaited], tx.now_s + min(caller.wait_s, WAIT_MAX_S))
    tags = "TAGS" in params.get("include", ())
    return {"tasks": described(tx, tasks, tags=tags), "failures": failures}


def _awaited(tasks: list[Task], seen: int | None) -> list[Task]:
    """Whose change the caller waits for: the end of all, or any news of the first beyond the version that was seen."""
    unfinished = [task for task in tasks if task.state is not TaskState.STOPPED]
    if seen is None:
        return unfinished
    return [task for task in unfinished if task is tasks[0] and task.version == seen]


def list_tasks(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    _check_filters(params)
    host = params.get("containerInstance")
    launch_type = params.get("launchType")
    if host:  # a Fargate task is on no container instance
        launch_type = launch_type or "EC2"
    nothing = (
        params.get("desiredStatus") == "PENDING"  # no task's desired status ever is
        or launch_type not in (None, "EC2", "FARGATE")
        or (host and (find_slot(tx, caller.region, cluster, short(host)) is None or launch_type != "EC2"))
        or "daemonName" in params
    )

    def listed(after: str, limit: int) -> list[tuple[str, str]]:
        if nothing:
            return []
        family, _, number = after.rpartition(" ")[0].partition(" ")
        found = tx.store.tasks.listed(
            caller.region,
            cluster,
            desired=params.get("desiredStatus", "RUNNING"),
            family=params.get("family"),
            started_by=params.get("startedBy"),
            instance_id=short(host) if host else None,
            launch_type=launch_type,
            after=(family, int(number or 0)),
            limit=limit,
        )
        return [(f"{family} {number} {task_id}", task_id) for family, number, task_id in found]

    ids, token = PAGES.page(params, listed)
    return {"taskArns": [arn(caller.account, caller.region, f"task/{cluster}/{task_id}") for task_id in ids], **token}


def _check_filters(params: dict[str, Any]) -> None:
    """`startedBy` stands alone, as ECS documents; the statuses are no filter in this sense. There are no services yet."""
    for other in ("family", "serviceName", "containerInstance", "daemonName"):
        if params.get("startedBy") and params.get(other):
            raise InvalidParameterException(f"startedBy must be the only filter: it cannot be used together with {other}.")
    if params.get("serviceName"):
        raise ServiceNotFoundException("Service not found.")
