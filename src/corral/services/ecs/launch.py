"""Launching tasks: from a request to tasks that are placed or wait for capacity.

RunTask and StartTask build a request from their parameters. Services and jobs will build theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from corral.core import Tx
from corral.decide.claim_order import rank
from corral.decide.place import place_newcomer, place_on, room_for_newcomer
from corral.model.placement import Placement, Unplaceable
from corral.model.task import Ask, Task, TaskState
from corral.services.ecs import fargate
from corral.services.ecs.capacity import Capacity
from corral.services.ecs.constraints import placement_rules
from corral.services.ecs.containers import time_limit_s
from corral.services.ecs.naming import ClientException, InvalidParameterException, arn
from corral.services.ecs.orders import start_runs
from corral.services.ecs.secrets import check_secrets
from corral.services.ecs.slots import HOST_PROVIDER, find_slot
from corral.services.ecs.starting import with_gpus
from corral.services.ecs.task_spec import ContainerSpec, TaskSpec, task_spec
from corral.store import Store

REFUSED_IN_VOLUME = ("efsVolumeConfiguration", "fsxWindowsFileServerVolumeConfiguration", "configuredAtLaunch")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaunchRequest:
    """Equal tasks to launch. Documents (the definition, overrides, constraints…) have ECS's shape."""

    region: str
    cluster: str
    definition: dict[str, Any]  # the task definition's document, as the store keeps it
    revision: int
    capacity: Capacity
    count: int = 1
    instance_ids: Sequence[str] = ()  # one task on each of these, now or not at all, instead of `count` where there is room
    overrides: dict[str, Any] = field(default_factory=dict)
    group: str = ""  # empty: the definition's family names it
    started_by: str | None = None
    tags: list[dict[str, str]] = field(default_factory=list)  # all of them, also those of the definition or a service
    network_configuration: dict[str, Any] | None = None
    platform_version: str | None = None
    reference_id: str | None = None
    enable_execute_command: bool = False
    placement_constraints: Sequence[dict[str, Any]] = ()  # in addition to the definition's
    placement_strategy: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """A task that was not launched."""

    instance_id: str | None  # the container instance that was tried; None: there is none to name
    why: Unplaceable | None  # None: the cluster has no such container instance


@dataclass(frozen=True, slots=True)
class Launched:
    tasks: list[Task]
    failures: list[LaunchFailure]


def launch(tx: Tx[Store], request: LaunchRequest) -> Launched:
    """Make the tasks of a request: each is placed and told to start in this transaction, or waits as a claim, or fails."""
    _check_override_names(request)
    spec = task_spec(request.definition, request.overrides)
    _check_spec(tx, spec)
    _check_network(request)
    prototype = _prototype(tx, request, spec)
    launched = _on_instances(tx, request, spec, prototype) if request.instance_ids else _anywhere(tx, request, spec, prototype)
    for pool in {task.pool for task in launched.tasks}:
        if tx.store.fleet.pool(pool).restless:
            tx.mark(f"pool:{pool}")  # a claim may have waited for a task of this group
    return launched


def _anywhere(tx: Tx[Store], request: LaunchRequest, spec: TaskSpec, prototype: Task) -> Launched:
    scope = f"{request.region}/{request.cluster}"
    constraints = [*spec.document["placementConstraints"], *request.placement_constraints]
    rules = placement_rules(constraints, request.placement_strategy, prototype.launch_type, scope, prototype.group)
    if rules is not None:
        prototype = prototype.but(ask=replace(prototype.ask, rules=rules))
    draws = rules is not None and any(kind == "random" for kind, _ in rules.strategy)
    tasks: list[Task] = []
    failures: list[LaunchFailure] = []
    capacity, pool = request.capacity, prototype.pool
    found: Placement | Unplaceable | None = None
    for at in range(request.count):
        if at == 0 or isinstance(found, Placement):  # what one of equal tasks was refused, the next one would be too
            pool, found = _find(tx, capacity, prototype.ask, tx.ids.hex32() if draws else "")
        if isinstance(found, Unplaceable):
            tried = next(iter(tx.store.fleet.pool(pool).slots()), None)  # ECS names one
            failures.append(LaunchFailure(tried.id if tried else None, found))
        else:
            provider = capacity.providers[at] if capacity.providers else None
            chosen = prototype if pool == prototype.pool else prototype.but(pool=pool)
            tasks.append(_add(tx, _through(chosen, provider), spec, found))
    return Launched(tasks, failures)


def _find(tx: Tx[Store], capacity: Capacity, ask: Ask, seed: str) -> tuple[str, Placement | Unplaceable | None]:
    """A pool, and a placement in it. Without room: None for a task that waits, else the reason of the first pool with slots."""
    first = capacity.pools[0]
    if capacity.waits:
        return first, room_for_newcomer(tx.store.fleet.pool(first), ask, seed)
    refused: tuple[str, Unplaceable] | None = None
    for name in capacity.pools:
        pool = tx.store.fleet.pool(name)
        if len(pool):
            found = place_newcomer(pool, ask, seed)
            if isinstance(found, Placement):
                return name, found
            refused = refused or (name, found)
    return refused or (first, place_newcomer(tx.store.fleet.pool(first), ask, seed))


def _on_instances(tx: Tx[Store], request: LaunchRequest, spec: TaskSpec, prototype: Task) -> Launched:
    """The caller chose the instances: placement rules do not apply."""
    tasks: list[Task] = []
    failures: list[LaunchFailure] = []
    for instance_id in request.instance_ids:
        member = find_slot(tx, request.region, request.cluster, instance_id)
        if member is None:
            failures.append(LaunchFailure(instance_id, None))
            continue
        pool = member[0]
        found = place_on(tx.store.fleet.pool(pool), prototype.ask, instance_id)
        if isinstance(found, Placement):
            tasks.append(_add(tx, prototype.but(pool=pool), spec, found))
        else:
            failures.append(LaunchFailure(instance_id, found))
    return Launched(tasks, failures)


def _add(tx: Tx[Store], prototype: Task, spec: TaskSpec, found: Placement | None) -> Task:
    """One more task: placed with its GPUs in this transaction, or a claim."""
    task_id = tx.ids.hex32()
    runs = tuple([run.but(id=tx.ids.hex32_by_time(tx.now_s), task_id=task_id) for run in prototype.runs])
    if found is None:
        task = prototype.but(id=task_id, runs=runs)
        tx.store.tasks.add(task, rank(task.created_at_s))
        return task
    runs = with_gpus(tx, prototype.pool, runs, found, spec)
    task = prototype.but(id=task_id, runs=runs, state=TaskState.PENDING, instance_id=found.slot_id, placed_at_s=tx.now_s)
    tx.store.tasks.add(task)
    start_runs(tx, task, spec)
    return task


def _through(prototype: Task, provider: str | None) -> Task:
    """Record the capacity provider of a task, unless it is the host's own, which is the default."""
    if provider is None or provider == HOST_PROVIDER:
        return prototype
    return prototype.but(details={**prototype.details, "capacityProviderName": provider})


def _prototype(tx: Tx[Store], request: LaunchRequest, spec: TaskSpec) -> Task:
    """The task to launch, still without ids."""
    family, capacity = spec.document["family"], request.capacity
    limit_s = time_limit_s(request.tags) if request.tags else None
    runs = spec.runs
    if capacity.launch_type == "FARGATE":
        runs = tuple(run.but(gpus=0) for run in runs)
    return Task(
        id="",
        region=request.region,
        cluster=request.cluster,
        definition_arn=arn(tx.settings.account, request.region, f"task-definition/{family}:{request.revision}"),
        pool=capacity.pools[0],
        state=TaskState.PROVISIONING,
        desired=TaskState.RUNNING,
        ask=spec.ask,
        created_at_s=tx.now_s,
        family=family,
        group=request.group or f"family:{family}",
        started_by=request.started_by,
        details=_details(request, spec),
        runs=runs,
        plain=spec.is_plain and limit_s is None,
        time_limit_s=limit_s,
        launch_type=capacity.launch_type,
    )


def _details(request: LaunchRequest, spec: TaskSpec) -> dict[str, Any]:
    """What the task is shown with again."""
    capacity, given = request.capacity, request.platform_version
    platform_version = None
    if capacity.launch_type == "FARGATE":
        fargate.check_task(spec)
        platform_version = fargate.platform_version(given)
    elif given:
        raise InvalidParameterException("The platform version must be null when specifying an EC2 launch type.")
    details = {
        "launchType": None if capacity.providers else capacity.launch_type,
        "networkConfiguration": request.network_configuration,
        "referenceId": request.reference_id,
        "enableExecuteCommand": request.enable_execute_command,
        "overrides": request.overrides,
        "platformVersion": platform_version,
        "tags": request.tags,
    }
    return {name: value for name, value in details.items() if value}


# What must hold for any launch


def _check_override_names(request: LaunchRequest) -> None:
    overrides = request.overrides.get("containerOverrides", ())
    names = {container["name"] for container in request.definition["containerDefinitions"]} if overrides else ()
    for override in overrides:
        if override.get("name") not in names:
            raise InvalidParameterException(
                f"Override for container named {override.get('name')} is not a container in the TaskDefinition."
            )


def _check_spec(tx: Tx[Store], spec: TaskSpec) -> None:
    for container in spec.containers.values():
        check_secrets(container.definition)
        _check_runnable(tx, container)
    for volume in spec.document.get("volumes", ()):
        for name in REFUSED_IN_VOLUME:
            if volume.get(name):
                raise ClientException(f"Volume {volume['name']}: Corral does not serve {name} yet.")


def _check_runnable(tx: Tx[Store], container: ContainerSpec) -> None:
    if container.command and container.only_in_container is None:
        return
    if not container.is_host_image and _runs_containers(tx):
        return
    if not container.command:
        why = "it has no command, so it needs an image: --runtime docker"
    else:
        why = f"{container.only_in_container} needs a container of its own: --runtime docker"
    name = container.definition["name"]
    if container.is_host_image:
        raise ClientException(f"Container {name}: {why}, and another image than {container.image}.")
    raise ClientException(f"Container {name}: {why}. Tasks run as processes of this machine here.")


def _runs_containers(tx: Tx[Store]) -> bool:
    """Is there a Docker engine, as far as is known, or must there be one?"""
    return tx.settings.runtime == "docker" or (
        tx.settings.runtime == "auto" and any(host["docker"] for host in tx.store.hosts.all())
    )


def _check_network(request: LaunchRequest) -> None:
    """A task in awsvpc mode says which network, and no other task does, as on ECS. The network itself is stored only."""
    given: Mapping[str, Any] = request.network_configuration or {}
    if request.definition.get("networkMode") == "awsvpc":
        if not given.get("awsvpcConfiguration"):
            raise InvalidParameterException("Network Configuration must be provided when networkMode 'awsvpc' is specified.")
    elif given:
        raise InvalidParameterException("Network Configuration is not valid for the given networkMode of this task definition.")
