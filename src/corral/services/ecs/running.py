"""Running a task: what it is to be, where it goes, and the answer to the same request sent twice."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from corral.core import Tx
from corral.decide.place import place_newcomer
from corral.model.placement import Placement, Unplaceable
from corral.model.run import RunState
from corral.model.task import Ask, Run, Task, TaskState
from corral.services.caller import Caller
from corral.services.ecs.containers import is_plain, time_limit_s
from corral.services.ecs.definition_rules import check_dependencies
from corral.services.ecs.definitions import cpu_units, gpus_asked, gpus_of_run, memory_mib
from corral.services.ecs.describing import described
from corral.services.ecs.naming import (
    DEFAULT_CLUSTER,
    HOST_PROVIDER,
    ClientException,
    ConflictException,
    InvalidParameterException,
    arn,
    find_cluster,
    find_definition,
)
from corral.services.ecs.starting import start_runs, with_gpus, with_overrides
from corral.services.ecs.tags import task_tags
from corral.store import HOST_POOL, Store

COUNT_MAX = 10
TOKEN_S = 24 * 3600.0

# Fields that would change what a task does and that Corral does not act on yet: refused by name, never ignored.
REFUSED_IN_REQUEST = ("placementConstraints", "placementStrategy", "volumeConfigurations")
REFUSED_IN_CONTAINER = ("secrets", "environmentFiles", "links", "volumesFrom", "mountPoints")


def run_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    scope = f"{caller.region}/{cluster}/RunTask"
    if (known := _known(tx, scope, params)) is not None:
        return known
    revision, status, document = find_definition(tx, caller, params["taskDefinition"])
    if status != "ACTIVE":
        raise ClientException("TaskDefinition is inactive")
    waits = _may_wait(params, cluster)
    prototype = _prototype(tx, caller, params, cluster, revision, document)
    tasks: list[Task] = []
    failures: list[dict[str, str]] = []
    pool = tx.store.fleet.pool(prototype.pool)
    found: Placement | Unplaceable | None = None
    for _ in range(_count(params)):
        if not isinstance(found, Unplaceable):  # what one of equal tasks was refused, the next one would be too
            found = place_newcomer(pool, prototype.ask)
        if isinstance(found, Unplaceable) and not waits:
            failures.append(_failure(tx, prototype, found))
        else:
            tasks.append(_add(tx, prototype, found))
    reply = {"tasks": described(tx, tasks), "failures": failures}
    _remember(tx, scope, params, [task.id for task in tasks], failures)
    return reply


def _may_wait(params: dict[str, Any], cluster: str) -> bool:
    """With a launch type a task starts now or not at all; through the cluster's capacity provider it waits for room."""
    for field in REFUSED_IN_REQUEST:
        if params.get(field):
            raise InvalidParameterException(f"Corral does not serve {field} yet.")
    launch_type, strategy = params.get("launchType"), params.get("capacityProviderStrategy")
    if launch_type and strategy:
        raise InvalidParameterException("Specify either a launch type or a capacity provider strategy, not both.")
    if launch_type and launch_type != "EC2":
        raise InvalidParameterException(
            f"Corral does not serve the launch type {launch_type} yet; use EC2, or none to wait for room."
        )
    for item in strategy or ():
        if cluster != DEFAULT_CLUSTER or item["capacityProvider"] != HOST_PROVIDER:
            raise InvalidParameterException(
                f"The specified capacity provider strategy cannot contain a capacity provider that is not associated "
                f"with the cluster: {item['capacityProvider']}."
            )
    if cluster != DEFAULT_CLUSTER:
        raise InvalidParameterException("No Container Instances were found in your cluster.")
    return launch_type is None


def _count(params: dict[str, Any]) -> int:
    count = params.get("count", 1)
    if not 1 <= count <= COUNT_MAX:
        raise InvalidParameterException(f"Count must be between 1 and {COUNT_MAX}.")
    return int(count)


def _prototype(
    tx: Tx[Store], caller: Caller, params: dict[str, Any], cluster: str, revision: int, document: dict[str, Any]
) -> Task:
    """The task that is to be run, `count` times, still without ids."""
    overrides = params.get("overrides", {})
    names = {container["name"] for container in document["containerDefinitions"]}
    for override in overrides.get("containerOverrides", ()):
        if override.get("name") not in names:
            raise InvalidParameterException(
                f"Override for container named {override.get('name')} is not a container in the TaskDefinition."
            )
    containers = with_overrides(document, overrides)
    for container in containers.values():
        _check_runnable(container)
    plain = is_plain(containers.values())
    if not plain:
        check_dependencies(list(containers.values()))  # again: the first Corral registered any
    kept = ("launchType", "networkConfiguration", "referenceId")
    details: dict[str, Any] = {key: params[key] for key in kept if key in params}
    if overrides:
        details["overrides"] = overrides
    if tags := task_tags(params, cluster, document):
        details["tags"] = tags
    limit_s = time_limit_s(details.get("tags", ()))
    runs = tuple(
        Run(
            "", "", container["name"], at, container["essential"], gpus_of_run(container), RunState.PENDING,
            waits=bool(container.get("dependsOn")),
        )
        for at, container in enumerate(containers.values())
    )  # fmt: skip
    return Task(
        id="",
        region=caller.region,
        cluster=cluster,
        definition_arn=arn(caller.account, caller.region, f"task-definition/{document['family']}:{revision}"),
        pool=HOST_POOL,
        state=TaskState.PROVISIONING,
        desired=TaskState.RUNNING,
        ask=_ask(document, overrides, containers),
        created_at_s=tx.now_s,
        family=document["family"],
        group=params.get("group") or f"family:{document['family']}",
        started_by=params.get("startedBy"),
        details=details,
        runs=runs,
        plain=plain and limit_s is None,
        time_limit_s=limit_s,
    )


def _check_runnable(container: dict[str, Any]) -> None:
    for field in REFUSED_IN_CONTAINER:
        if container.get(field):
            raise ClientException(f"Container {container['name']}: Corral does not serve {field} yet.")
    if not container.get("command") and not container.get("entryPoint"):
        raise ClientException(
            f"Container {container['name']} has no command: it needs an image, and the process runtime ignores images. "
            "Give it a command; running images (--runtime docker) is not served yet."
        )


def _ask(document: dict[str, Any], overrides: dict[str, Any], containers: dict[str, dict[str, Any]]) -> Ask:
    """What the task takes of a host: its own sizes where it has them, else the sum of its containers'."""
    cpu, memory = overrides.get("cpu", document.get("cpu")), overrides.get("memory", document.get("memory"))
    return Ask(
        gpus=gpus_asked(containers.values()),
        cpu_units=cpu_units(cpu) if cpu else sum(container["cpu"] for container in containers.values()),
        memory_mib=memory_mib(memory)
        if memory
        else sum(container.get("memoryReservation", container.get("memory", 0)) for container in containers.values()),
    )


def _failure(tx: Tx[Store], prototype: Task, why: Unplaceable) -> dict[str, str]:
    """ECS names the container instance that it tried; where there is a host, so do we."""
    host = next(iter(tx.store.fleet.pool(prototype.pool).slots()), None)
    resource = f"container-instance/{prototype.cluster}/{host.id}" if host else f"cluster/{prototype.cluster}"
    reason = "AGENT" if why.resource == "AGENT" else f"RESOURCE:{why.resource}"
    return {"arn": arn(tx.settings.account, prototype.region, resource), "reason": reason, "detail": why.detail}


def _add(tx: Tx[Store], prototype: Task, found: Placement | Unplaceable) -> Task:
    """One more task: placed with its GPUs in this very transaction, or a claim."""
    task_id = tx.ids.hex32()
    task = prototype.but(id=task_id, runs=tuple(run.but(id=tx.ids.hex32(), task_id=task_id) for run in prototype.runs))
    if isinstance(found, Placement):
        runs = with_gpus(tx, task, found)
        task = task.but(state=TaskState.PENDING, host_id=found.slot_id, placed_at_s=tx.now_s, runs=runs)
    tx.store.add_task(task)
    if task.host_id is not None:
        start_runs(tx, task)
    return task


def _digest(params: dict[str, Any]) -> str:
    rest = {key: value for key, value in params.items() if key != "clientToken"}
    return hashlib.sha256(orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _known(tx: Tx[Store], scope: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The reply to the same request sent before, with its tasks as they are now."""
    token = params.get("clientToken")
    known = tx.store.remembered(scope, token, tx.now_s) if token else None
    if known is None:
        return None
    request, reply = known
    task_ids, failures = orjson.loads(reply)
    if request != _digest(params):
        raise ConflictException("The clientToken was used before with other parameters.", resourceIds=task_ids)
    tasks = [task for task_id in task_ids if (task := tx.store.task(task_id)) is not None]
    return {"tasks": described(tx, tasks), "failures": failures}


def _remember(tx: Tx[Store], scope: str, params: dict[str, Any], task_ids: list[str], failures: list[dict[str, str]]) -> None:
    token = params.get("clientToken")
    if token:
        reply = orjson.dumps([task_ids, failures]).decode()
        tx.store.remember(scope, token, _digest(params), reply, tx.now_s + TOKEN_S)
