"""RunTask and StartTask: from their parameters to a launch, and the answer to the same request sent twice.

RunTask looks for room; StartTask is told the container instances.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.ecs.capacity import Capacity, capacity_of
from corral.services.ecs.constraints import failure_reason
from corral.services.ecs.describing import described
from corral.services.ecs.launch import LaunchFailure, LaunchRequest, launch
from corral.services.ecs.naming import (
    ClientException,
    ConflictException,
    InvalidParameterException,
    arn,
    find_cluster,
    find_definition,
    short,
)
from corral.services.ecs.slots import pools_of
from corral.services.ecs.tags import task_tags
from corral.store import Store

TOKEN_S = 24 * 3600.0

# Fields that would change what a task does and that Corral does not act on yet: refused by name, never ignored.
REFUSED_IN_REQUEST = ("volumeConfigurations",)


def run_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, about = find_cluster(tx, caller, params.get("cluster"))
    scope = f"{caller.region}/{cluster}/RunTask"
    if (known := _known(tx, scope, params)) is not None:
        return known
    count = params.get("count", 1)
    launch_type, strategy = params.get("launchType"), params.get("capacityProviderStrategy")
    launched = launch(
        tx,
        LaunchRequest(
            **_common(tx, params, caller, cluster),
            capacity=capacity_of(tx, launch_type, strategy, caller.region, cluster, about, count),
            count=count,
            platform_version=params.get("platformVersion"),
            placement_constraints=params.get("placementConstraints", ()),
            placement_strategy=params.get("placementStrategy", ()),
        ),
    )
    failures = [_failure(caller, cluster, failure) for failure in launched.failures]
    _remember(tx, scope, params, [task.id for task in launched.tasks], failures)
    return {"tasks": described(tx, launched.tasks), "failures": failures}


def start_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """One task on each of the given container instances, now or not at all."""
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    instances = params["containerInstances"]
    launched = launch(
        tx,
        LaunchRequest(
            **_common(tx, params, caller, cluster),
            capacity=Capacity("EC2", pools_of(tx, caller.region, cluster), waits=False),
            instance_ids=[short(instance) for instance in instances],
        ),
    )
    failures = [_failure(caller, cluster, failure) for failure in launched.failures]
    return {"tasks": described(tx, launched.tasks), "failures": failures}


def _common(tx: Tx[Store], params: dict[str, Any], caller: Caller, cluster: str) -> dict[str, Any]:
    """The fields of a launch that both operations have."""
    revision, status, document = find_definition(tx, caller, params["taskDefinition"])
    if status != "ACTIVE":
        raise ClientException("TaskDefinition is inactive")
    for field in REFUSED_IN_REQUEST:
        if params.get(field):
            raise InvalidParameterException(f"Corral does not serve {field} yet.")
    return {
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
    }


def _failure(caller: Caller, cluster: str, failure: LaunchFailure) -> dict[str, str]:
    resource = f"container-instance/{cluster}/{failure.instance_id}" if failure.instance_id else f"cluster/{cluster}"
    shown = {"arn": arn(caller.account, caller.region, resource)}
    if failure.why is None:
        return {**shown, "reason": "MISSING"}
    return {**shown, "reason": failure_reason(failure.why.resource), "detail": failure.why.detail}


def _digest(params: dict[str, Any]) -> str:
    rest = {key: value for key, value in params.items() if key != "clientToken"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _known(tx: Tx[Store], scope: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The reply to the same request sent before, with its tasks as they are now."""
    token = params.get("clientToken")
    known = tx.store.tokens.get(scope, token, tx.now_s) if token else None
    if known is None:
        return None
    request, reply = known
    task_ids, failures = orjson.loads(reply)
    if request != _digest(params):
        raise ConflictException("The clientToken was used before with other parameters.", resourceIds=task_ids)
    tasks = [task for task_id in task_ids if (task := tx.store.tasks.get(task_id)) is not None]
    return {"tasks": described(tx, tasks), "failures": failures}


def _remember(tx: Tx[Store], scope: str, params: dict[str, Any], task_ids: list[str], failures: list[dict[str, str]]) -> None:
    token = params.get("clientToken")
    if token:
        reply = orjson.dumps([task_ids, failures]).decode()
        tx.store.tokens.put(scope, token, _digest(params), reply, tx.now_s + TOKEN_S)
