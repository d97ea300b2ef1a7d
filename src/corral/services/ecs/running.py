"""Running a task: what it is to be, where it goes, and the answer to the same request sent twice.

RunTask looks for a place; StartTask is told one.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import orjson

from corral.core import Tx
from corral.decide.place import place_newcomer, place_on, room_for_newcomer
from corral.model.placement import Placement, Unplaceable
from corral.model.run import RunState
from corral.model.task import Ask, Run, Task, TaskState
from corral.services.caller import Caller
from corral.services.ecs import fargate
from corral.services.ecs.constraints import failure_reason, rules_of
from corral.services.ecs.containers import is_host_image, is_plain, needs_others, time_limit_s
from corral.services.ecs.definition_rules import check_dependencies
from corral.services.ecs.definitions import cpu_units, gpus_asked, gpus_of_run, memory_mib
from corral.services.ecs.describing import described
from corral.services.ecs.environment_files import check_environment_files
from corral.services.ecs.naming import (
    DEFAULT_CLUSTER,
    HOST_PROVIDER,
    ClientException,
    ConflictException,
    InvalidParameterException,
    arn,
    find_cluster,
    find_definition,
    short,
)
from corral.services.ecs.placing import Way, pool_of, way_of
from corral.services.ecs.secrets import check_secrets
from corral.services.ecs.starting import start_runs, with_gpus, with_overrides
from corral.services.ecs.tags import task_tags
from corral.store import Store

TOKEN_S = 24 * 3600.0

# Fields that would change what a task does and that Corral does not act on yet: refused by name, never ignored.
REFUSED_IN_REQUEST = ("volumeConfigurations",)
ONLY_IN_CONTAINERS = ("links", "volumesFrom", "mountPoints")
REFUSED_IN_VOLUME = ("efsVolumeConfiguration", "fsxWindowsFileServerVolumeConfiguration", "configuredAtLaunch")


def run_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, about = find_cluster(tx, caller, params.get("cluster"))
    scope = f"{caller.region}/{cluster}/RunTask"
    if (known := _known(tx, scope, params)) is not None:
        return known
    revision, document = _active_definition(tx, caller, params)
    count = _count(params)
    way = way_of(params, caller.region, cluster, about, count)
    prototype = _prototype(tx, caller, params, cluster, revision, document, way)
    group = params.get("group") or f"family:{document['family']}"
    rules = rules_of(params, document, way.launch_type, f"{caller.region}/{cluster}", group)
    if rules is not None:
        prototype = prototype.but(ask=replace(prototype.ask, rules=rules))
    drawn = rules is not None and any(kind == "random" for kind, _ in rules.strategy)
    tasks: list[Task] = []
    failures: list[dict[str, str]] = []
    pool = tx.store.fleet.pool(prototype.pool)
    find = room_for_newcomer if way.waits else place_newcomer
    found: Placement | Unplaceable | None = None
    for at in range(count):
        if at == 0 or isinstance(found, Placement):  # what one of equal tasks was refused, the next one would be too
            found = find(pool, prototype.ask, tx.ids.hex32() if drawn else "")
        if isinstance(found, Unplaceable):
            failures.append(_failure(tx, prototype, found))
        else:
            tasks.append(_add(tx, _through(prototype, way, at), found))
    if pool.restless:
        tx.mark(f"pool:{prototype.pool}")  # somebody may have waited for this company
    reply = {"tasks": described(tx, tasks), "failures": failures}
    _remember(tx, scope, params, [task.id for task in tasks], failures)
    return reply


def start_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """One task on each of the given container instances, now or not at all. The caller chose: placement rules do not apply."""
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    revision, document = _active_definition(tx, caller, params)
    instances = params["containerInstances"]
    way = Way("EC2", pool_of(caller.region, cluster), waits=False)
    prototype = _prototype(tx, caller, {**params, "launchType": "EC2"}, cluster, revision, document, way)
    pool = tx.store.fleet.pool(way.pool)
    there = {slot.id for slot in pool.slots()} if cluster == DEFAULT_CLUSTER else set()
    tasks: list[Task] = []
    failures: list[dict[str, str]] = []
    for host_id in map(short, instances):
        found = place_on(pool, prototype.ask, host_id) if host_id in there else None
        if isinstance(found, Placement):
            tasks.append(_add(tx, prototype, found))
        else:
            instance_arn = arn(caller.account, caller.region, f"container-instance/{cluster}/{host_id}")
            why = {"reason": failure_reason(found.resource), "detail": found.detail} if found else {"reason": "MISSING"}
            failures.append({"arn": instance_arn, **why})
    if pool.restless:
        tx.mark(f"pool:{way.pool}")
    return {"tasks": described(tx, tasks), "failures": failures}


def _active_definition(tx: Tx[Store], caller: Caller, params: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    revision, status, document = find_definition(tx, caller, params["taskDefinition"])
    if status != "ACTIVE":
        raise ClientException("TaskDefinition is inactive")
    return revision, document


def _through(prototype: Task, way: Way, at: int) -> Task:
    """The provider that a task goes to is shown; the hosts' own goes without saying."""
    if not way.providers or way.providers[at] == HOST_PROVIDER:
        return prototype
    return prototype.but(details={**prototype.details, "capacityProviderName": way.providers[at]})


def _count(params: dict[str, Any]) -> int:
    count = params.get("count", 1)
    return int(count)


def _prototype(
    tx: Tx[Store], caller: Caller, params: dict[str, Any], cluster: str, revision: int, document: dict[str, Any], way: Way
) -> Task:
    """The task that is to be run, `count` times, still without ids."""
    for field in REFUSED_IN_REQUEST:
        if params.get(field):
            raise InvalidParameterException(f"Corral does not serve {field} yet.")
    overrides = params.get("overrides", {})
    names = {container["name"] for container in document["containerDefinitions"]}
    for override in overrides.get("containerOverrides", ()):
        if override.get("name") not in names:
            raise InvalidParameterException(
                f"Override for container named {override.get('name')} is not a container in the TaskDefinition."
            )
    containers = with_overrides(document, overrides)
    for container in containers.values():
        _check_runnable(tx, container)
    for volume in document.get("volumes", ()):
        for field in REFUSED_IN_VOLUME:
            if volume.get(field):
                raise ClientException(f"Volume {volume['name']}: Corral does not serve {field} yet.")
    plain = is_plain(containers.values())
    if not plain:
        check_dependencies(list(containers.values()))  # again: the first Corral registered any
    _check_network(params, document)
    kept = ("launchType", "networkConfiguration", "referenceId", "enableExecuteCommand")
    details: dict[str, Any] = {key: params[key] for key in kept if params.get(key)}
    if overrides:
        details["overrides"] = overrides
    if way.launch_type == "FARGATE":
        fargate.check_task(document, overrides, containers)
        details["platformVersion"] = fargate.platform_version(params.get("platformVersion"))
    elif params.get("platformVersion"):
        raise InvalidParameterException("The platform version must be null when specifying an EC2 launch type.")
    if tags := task_tags(params, cluster, document):
        details["tags"] = tags
    limit_s = time_limit_s(details.get("tags", ()))
    runs = tuple(
        Run(
            "", "", container["name"], at, container["essential"],
            0 if way.launch_type == "FARGATE" else gpus_of_run(container), RunState.PENDING,
            waits=needs_others(container),
        )
        for at, container in enumerate(containers.values())
    )  # fmt: skip
    return Task(
        id="",
        region=caller.region,
        cluster=cluster,
        definition_arn=arn(caller.account, caller.region, f"task-definition/{document['family']}:{revision}"),
        pool=way.pool,
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
        launch_type=way.launch_type,
    )


def _check_network(params: dict[str, Any], document: dict[str, Any]) -> None:
    """Kept on paper, and as ECS wants it: a task in awsvpc mode says which network, and no other task does."""
    if document.get("networkMode") == "awsvpc":
        if not params.get("networkConfiguration", {}).get("awsvpcConfiguration"):
            raise InvalidParameterException("Network Configuration must be provided when networkMode 'awsvpc' is specified.")
    elif params.get("networkConfiguration"):
        raise InvalidParameterException("Network Configuration is not valid for the given networkMode of this task definition.")


def _check_runnable(tx: Tx[Store], container: dict[str, Any]) -> None:
    check_environment_files(container)  # those of an override too
    check_secrets(container)
    has_command = container.get("command") or container.get("entryPoint")
    wanted = [field for field in ONLY_IN_CONTAINERS if container.get(field)]
    if (has_command and not wanted) or (not is_host_image(container["image"]) and _runs_containers(tx)):
        return
    if not has_command:
        why = "it has no command, so it needs an image: --runtime docker"
    else:
        why = f"{wanted[0]} needs a container of its own: --runtime docker"
    if is_host_image(container["image"]):
        raise ClientException(f"Container {container['name']}: {why}, and another image than {container['image']}.")
    raise ClientException(f"Container {container['name']}: {why}. Tasks run as processes of this machine here.")


def _runs_containers(tx: Tx[Store]) -> bool:
    """Is there a Docker engine, as far as is known, or must there be one?"""
    return tx.settings.runtime == "docker" or (tx.settings.runtime == "auto" and any(host["docker"] for host in tx.store.hosts()))


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
    instance_arn = arn(tx.settings.account, prototype.region, resource)
    return {"arn": instance_arn, "reason": failure_reason(why.resource), "detail": why.detail}


def _add(tx: Tx[Store], prototype: Task, found: Placement | None) -> Task:
    """One more task: placed with its GPUs in this very transaction, or a claim."""
    task_id = tx.ids.hex32()
    runs = tuple([run.but(id=tx.ids.hex32_by_time(tx.now_s), task_id=task_id) for run in prototype.runs])
    task = prototype.but(id=task_id, runs=runs)
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
