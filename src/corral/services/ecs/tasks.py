"""Operations on ECS tasks: run, start, stop, describe and list.

RunTask chooses container instances that have capacity. In StartTask, the caller names the instances. Both operations build a
`LaunchRequest`.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.commands import Wait
from corral.core.transactions import Tx
from corral.fleet.clusters import pools_of
from corral.fleet.private_environments import foreign_object
from corral.model.numbers import whole_number
from corral.model.private_environment import BUCKET
from corral.model.queue_options import NO_OPTIONS
from corral.model.task import StopCode, Task, TaskState
from corral.services.ecs import errors
from corral.services.ecs.capacity_providers import capacity_of
from corral.services.ecs.host_access import is_kept_from_host, may_use_account
from corral.services.ecs.launch import LaunchFailure, LaunchRequest, launch
from corral.services.ecs.lookup import PAGES, arn, find_cluster, find_definition, find_slot, instance_id_in, task_id_in
from corral.services.ecs.placement_rules import failure_reason
from corral.services.ecs.services import find_service
from corral.services.ecs.tags import task_tags
from corral.services.ecs.task_capacity import Capacity
from corral.services.ecs.task_description import task_descriptions
from corral.services.ecs.task_progress import begin_stop
from corral.services.ecs.task_queue import check_start_options, read_options
from corral.store import Store

CLIENT_TOKEN_S = 24 * 3600.0
STOPPED_BY_USER = "Task stopped by user"
WAIT_MAX_S = 60.0
OVERRIDES_MAX = 8_192  # characters of the overrides as JSON text
REFUSED_IN_REQUEST = ("volumeConfigurations",)  # if Corral ignored these members, a task would not do what its user expects


def run_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _check_overrides(params)
    cluster, about = find_cluster(tx, caller, params.get("cluster"))
    scope = f"{caller.region}/{cluster}/RunTask"
    if (previous := _previous_response(tx, scope, params)) is not None:
        return previous
    count = params.get("count", 1)
    launch_type, strategy = params.get("launchType"), params.get("capacityProviderStrategy")
    common = _common(tx, params, caller, cluster)
    launched = launch(
        tx,
        LaunchRequest(
            **common,
            options=read_options(common["tags"], count) if common["tags"] else NO_OPTIONS,
            capacity=capacity_of(tx, launch_type, strategy, caller.region, cluster, about, count),
            count=count,
            platform_version=params.get("platformVersion"),
            placement_constraints=params.get("placementConstraints", ()),
            placement_strategy=params.get("placementStrategy", ()),
        ),
    )
    failures = [_failure(caller, cluster, failure) for failure in launched.failures]
    _store_response(tx, scope, params, [task.id for task in launched.tasks], failures)
    return {"tasks": task_descriptions(tx, launched.tasks), "failures": failures}


def start_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Start one task on each given container instance. If a task does not fit on its instance, it fails at once."""
    _check_overrides(params)
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    common = _common(tx, params, caller, cluster)
    if common["tags"]:
        check_start_options(common["tags"])
    launched = launch(
        tx,
        LaunchRequest(
            **common,
            capacity=Capacity("EC2", pools_of(tx, caller.region, cluster), waits=False),
            instance_ids=[instance_id_in(caller, cluster, given) for given in params["containerInstances"]],
        ),
    )
    failures = [_failure(caller, cluster, failure) for failure in launched.failures]
    return {"tasks": task_descriptions(tx, launched.tasks), "failures": failures}


def _common(tx: Tx[Store], params: dict[str, Any], caller: Caller, cluster: str) -> dict[str, Any]:
    """The fields of a LaunchRequest that RunTask and StartTask both set."""
    revision, status, document = find_definition(tx, caller, params["taskDefinition"])
    if status != "ACTIVE":
        raise errors.ClientException("TaskDefinition is inactive")
    if params.get("group", "").startswith("service:"):  # the group of the tasks of a service
        raise errors.InvalidParameterException("Invalid namespace for group.")
    for field in REFUSED_IN_REQUEST:
        if params.get(field):
            raise errors.InvalidParameterException(f"Corral does not serve {field} yet.")
    if "overrides" in params and (key := foreign_object(tx, params["overrides"], caller)) is not None:
        raise errors.AccessDeniedException(
            f"The overrides name the object {key} of the bucket {BUCKET}, which another caller has uploaded: upload the "
            "variables of the task as a new object."
        )
    return {
        "owner": caller.owner,
        "region": caller.region,
        "cluster": cluster,
        "definition": document,
        "revision": revision,
        "overrides": params.get("overrides", {}),
        "group": params.get("group", ""),
        "started_by": params.get("startedBy"),
        "tags": task_tags(params, cluster, document),
        "network_configuration": params.get("networkConfiguration"),
        "reference_id": params.get("referenceId"),
        "enable_execute_command": params.get("enableExecuteCommand", False),
        "from_owner": True,
        "only_in_docker": is_kept_from_host(tx, caller),
        "as_account": may_use_account(caller),
    }


def _check_overrides(params: dict[str, Any]) -> None:
    """Check the length of the overrides as JSON text, which ECS limits."""
    text = orjson.dumps(params["overrides"]) if "overrides" in params else b""
    if len(text) > OVERRIDES_MAX and (length := len(text.decode())) > OVERRIDES_MAX:
        raise errors.InvalidParameterException(
            f"Container Overrides length must be at most {OVERRIDES_MAX}: these overrides have {length} characters as JSON. "
            "Move large values to the task definition, to an environment file or to S3."
        )


def _failure(caller: Caller, cluster: str, failure: LaunchFailure) -> dict[str, str]:
    resource = f"container-instance/{cluster}/{failure.instance_id}" if failure.instance_id else f"cluster/{cluster}"
    failed = {"arn": arn(caller.account, caller.region, resource)}
    if failure.why is None:
        return {**failed, "reason": "MISSING"}
    return {**failed, "reason": failure_reason(failure.why.resource), "detail": failure.why.detail}


def _digest(params: dict[str, Any]) -> str:
    rest = {key: value for key, value in params.items() if key != "clientToken"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _previous_response(tx: Tx[Store], scope: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The response to an earlier request with the same clientToken; None if there was no such request.

    The response describes the current state of the tasks.
    """
    token = params.get("clientToken")
    stored = tx.store.tokens.get(scope, token, tx.now_s) if token else None
    if stored is None:
        return None
    request, response = stored
    task_ids, failures = orjson.loads(response)
    if request != _digest(params):
        raise errors.ConflictException(
            "The clientToken was used before with other parameters: use a new clientToken for a new request.", resourceIds=task_ids
        )
    tasks = [task for task_id in task_ids if (task := tx.store.tasks.get(task_id)) is not None]
    return {"tasks": task_descriptions(tx, tasks), "failures": failures}


def _store_response(tx: Tx[Store], scope: str, params: dict[str, Any], task_ids: list[str], failures: list[dict[str, str]]) -> None:
    token = params.get("clientToken")
    if token:
        response = orjson.dumps([task_ids, failures]).decode()
        tx.store.tokens.put(scope, token, _digest(params), response, tx.now_s + CLIENT_TOKEN_S)


def stop_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    task = tx.store.tasks.get(task_id_in(caller, cluster, params["task"]))
    if task is None or (task.region, task.cluster) != (caller.region, cluster):
        raise errors.InvalidParameterException("The referenced task was not found.")
    stopped = begin_stop(tx, task, StopCode.USER, params.get("reason") or STOPPED_BY_USER)
    return {"task": task_descriptions(tx, [stopped])[0]}


def describe_tasks(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    tasks, failures = [], []
    ids = [task_id_in(caller, cluster, given) for given in params["tasks"]]
    found = tx.store.tasks.several(ids)
    for task_id in ids:
        task = found.get(task_id)
        if task is not None and task.region == caller.region and task.cluster == cluster:
            tasks.append(task)
        else:
            failures.append({"arn": arn(caller.account, caller.region, f"task/{cluster}/{task_id}"), "reason": "MISSING"})
    if caller.wait_s and not tx.final and (awaited := _awaited(tasks, caller.seen)):
        raise Wait([f"task:{task.id}" for task in awaited], tx.now_s + min(caller.wait_s, WAIT_MAX_S))
    tags = "TAGS" in params.get("include", ())
    return {"tasks": task_descriptions(tx, tasks, tags=tags), "failures": failures}


def _awaited(tasks: list[Task], seen: int | None) -> list[Task]:
    """The tasks whose change the caller waits for.

    If `seen` is None, the caller waits for all tasks that have not stopped. Otherwise it waits only for the first task, while that
    task has not stopped and still has version `seen`.
    """
    unfinished = [task for task in tasks if task.state is not TaskState.STOPPED]
    if seen is None:
        return unfinished
    return [task for task in unfinished if task is tasks[0] and task.version == seen]


def list_tasks(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    _check_filters(params)
    service = find_service(tx, caller, cluster, params["serviceName"]) if params.get("serviceName") else None
    host = instance_id_in(caller, cluster, params["containerInstance"]) if params.get("containerInstance") else None
    launch_type = params.get("launchType")
    if host:  # only EC2 tasks have a container instance
        launch_type = launch_type or "EC2"
    nothing = (
        params.get("desiredStatus") == "PENDING"  # no task has this desired status
        or launch_type not in (None, "EC2", "FARGATE")
        or (host and (find_slot(tx, caller.region, cluster, host) is None or launch_type != "EC2"))
        or "daemonName" in params
    )

    def listed(after: str, limit: int) -> list[tuple[str, str]]:
        if nothing:
            return []
        family, _, digits = after.rpartition(" ")[0].partition(" ")
        number = whole_number(digits or "0")
        if number is None:
            raise PAGES.wrong_token()
        found = tx.store.tasks.listing.listed(
            caller.region,
            cluster,
            desired=params.get("desiredStatus", "RUNNING"),
            family=params.get("family"),
            started_by=params.get("startedBy"),
            instance_id=host,
            launch_type=launch_type,
            group=f"service:{service.name}" if service is not None else None,
            id_prefix=caller.id_prefix,
            after=(family, number),
            limit=limit,
        )
        return [(f"{family} {number} {task_id}", task_id) for family, number, task_id in found]

    ids, token = PAGES.page(params, listed)
    return {"taskArns": [arn(caller.account, caller.region, f"task/{cluster}/{task_id}") for task_id in ids], **token}


def _check_filters(params: dict[str, Any]) -> None:
    """Check the filters of ListTasks. As on ECS, `startedBy` can be combined only with desiredStatus and launchType."""
    for other in ("family", "serviceName", "containerInstance", "daemonName"):
        if params.get("startedBy") and params.get(other):
            raise errors.InvalidParameterException(f"startedBy must be the only filter: it cannot be used together with {other}.")
