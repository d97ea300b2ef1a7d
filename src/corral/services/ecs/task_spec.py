"""Task specs: a task definition, compiled once into what its launches need. Overrides change only the parts that they name.

Tasks with equal definition and overrides share one spec. The second half of this module reads single settings of task definitions
and container definitions: dependencies, health checks, restart policies and sizes. `gpu_requirements.py` reads the GPUs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.placement.backfill import longest_time_s
from corral.decide.tasks.lifecycle import NO_RULES
from corral.model.agent_protocol import HEARTBEAT_S
from corral.model.constant_result import ConstantResult
from corral.model.private_environment import is_private
from corral.model.run import STOP_GRACE_S, HealthCheck, RunState
from corral.model.task import ContainerRules, Demand, RestartPolicy, Run, Task, is_host_image
from corral.model.units import CPU_UNITS_PER_CORE
from corral.services.ecs.errors import ClientException, InvalidParameterException
from corral.services.ecs.gpu_requirements import (
    gpu_memory_of_run,
    gpus_of_run,
    gpus_required,
    sets_visible_devices,
    sharing_environment,
    sharing_strategy,
    visible_gpus,
)
from corral.services.ecs.lookup import split_definition
from corral.store import Store

CACHED_SPECS_MAX = 256  # a spec and what is kept with it have about 20 KB
MIB_PER_GB = 1024
RESTART_PERIOD_S = 300
HEALTH_CHECK_DEFAULTS = {"interval": 30, "timeout": 5, "retries": 3}
FENCE_TAG = "corral:fence-after"
FENCE_MIN_S, FENCE_MAX_S = 2 * HEARTBEAT_S, 30 * 86_400.0  # a host reports every HEARTBEAT_S
TIME_LIMIT_TAG = "corral:time-limit"
GPU_IDS_TAG = "corral:gpu-ids"
GPU_UUIDS, GPU_INDEXES = "uuid", "index"
REFUSED_IN_VOLUME = ("efsVolumeConfiguration", "fsxWindowsFileServerVolumeConfiguration", "configuredAtLaunch")

SIZE_FIELDS = frozenset({"cpu", "memory", "memoryReservation", "resourceRequirements"})
LIFECYCLE_FIELDS = frozenset({"dependsOn", "healthCheck", "restartPolicy"})
ONLY_IN_CONTAINERS = ("links", "volumesFrom", "mountPoints")
QUANTITY_MAX = 2**31 - 1
QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


class ContainerSpec(Struct, frozen=True, eq=False):
    """One container of a task: its definition, and values derived from the definition."""

    definition: dict[str, Any]  # in ECS's form, with overrides applied. Do not change it: it is shared
    image: str
    is_host_image: bool
    command: list[str]
    environment: dict[str, str]
    gpus: int  # a number of GPUs, or ALL_GPUS, or FREE_GPUS
    gpu_memory_mib: int  # 0: the container does not share a GPU
    visible_gpus: str | None  # see `gpu_requirements.visible_gpus`
    sets_visible_devices: bool  # its environment sets NVIDIA_VISIBLE_DEVICES
    sharing_environment: dict[str, str]  # the variables of a container that shares a GPU
    secrets: tuple[dict[str, str], ...]  # its secrets, and those of its log driver
    environment_files: tuple[str, ...]  # ARNs of S3 objects
    private_files: tuple[str, ...]  # ARNs of the objects with the variables of `corral run` (`model/private_environment.py`)
    only_in_container: str | None  # the first setting that only Docker supports, if there is one
    health_check: HealthCheck | None
    stop_grace_s: float
    log_options: dict[str, str] | None  # options of the log driver awslogs; None without this driver
    description: dict[str, Any]  # the members in DescribeTasks that all tasks with this spec share


class TaskSpec(Struct, frozen=True, eq=False):
    """A task definition with overrides."""

    document: dict[str, Any]  # the task definition. Do not change it: it is shared
    overrides: dict[str, Any]  # in ECS's form
    containers: dict[str, ContainerSpec]  # by name, in the order of the task definition
    cpu: str | None  # the task-level size; if None, the sum of the containers' sizes is used
    memory: str | None
    demand: Demand
    is_plain: bool  # no container has lifecycle rules or a health check
    rules: Mapping[str, ContainerRules]  # by container name; empty if `is_plain`
    runs: tuple[Run, ...]  # one run per container, without ids; a new task copies them and sets the ids
    role: str  # ARN or name of the task role; empty if there is none
    fault: str | None  # why Corral can never run the task; None if it can
    only_in_docker: tuple[ContainerSpec, ...]  # the containers that cannot run as plain processes
    # Parts of the request → the members in DescribeTasks that all tasks of equal requests share (`task_description.py`).
    descriptions: dict[Any, ConstantResult] = field(default_factory=dict)


# The key is the id() of the document and the overrides. A spec in the cache refers to its document, so this document still exists,
# and no other document can have the same id().
_cache: dict[Any, TaskSpec] = {}


def task_spec(document: dict[str, Any], overrides: dict[str, Any] | None = None) -> TaskSpec:
    """The spec of a task definition. `document` must be the object that the store caches, because this cache uses its id()."""
    key = (id(document), orjson.dumps(overrides)) if overrides else id(document)
    found = _cache.get(key)
    if found is None:
        found = _with_overrides(task_spec(document), overrides) if overrides else _without_overrides(document)
        if len(_cache) >= CACHED_SPECS_MAX:
            del _cache[next(iter(_cache))]
        _cache[key] = found
    return found


def spec_of(tx: Tx[Store], task: Task) -> TaskSpec:
    family, revision = split_definition(task.definition_arn)
    assert revision is not None
    return task_spec(tx.store.definitions.document(task.region, family, revision), task.details.get("overrides"))


def rules_by_container(tx: Tx[Store], task: Task) -> Mapping[str, ContainerRules]:
    """The lifecycle rules of each container, by container name."""
    return NO_RULES if task.plain else spec_of(tx, task).rules


def _without_overrides(document: dict[str, Any]) -> TaskSpec:
    definitions = document["containerDefinitions"]
    containers = {definition["name"]: _container(definition) for definition in definitions}
    plain, cpu, memory = is_plain(definitions), document.get("cpu"), document.get("memory")
    return TaskSpec(
        document=document,
        overrides={},
        containers=containers,
        cpu=cpu,
        memory=memory,
        demand=_demand(cpu, memory, definitions),
        is_plain=plain,
        rules=NO_RULES if plain else {definition["name"]: container_rules(definition) for definition in definitions},
        runs=tuple(
            Run(
                "", "", name, at, container.definition["essential"], container.gpus, RunState.PENDING,
                waits=needs_others(container.definition), gpu_memory_mib=container.gpu_memory_mib,
            )
            for at, (name, container) in enumerate(containers.items())
        ),
        role=document.get("taskRoleArn") or "",
        fault=_volume_fault(document),
        only_in_docker=_only_in_docker(containers),
    )  # fmt: skip


def _only_in_docker(containers: Mapping[str, ContainerSpec]) -> tuple[ContainerSpec, ...]:
    return tuple(each for each in containers.values() if not each.command or each.only_in_container is not None)


def _volume_fault(document: dict[str, Any]) -> str | None:
    for volume in document.get("volumes", ()):
        for name in REFUSED_IN_VOLUME:
            if volume.get(name):
                return f"Volume {volume['name']}: Corral does not serve {name} yet."
    return None


def _with_overrides(base: TaskSpec, overrides: dict[str, Any]) -> TaskSpec:
    containers, given = dict(base.containers), overrides.get("containerOverrides", ())
    sizes: dict[str, str] = {name: overrides[name] for name in ("cpu", "memory") if name in overrides}
    changes: dict[str, Any] = {"overrides": overrides, "containers": containers, "descriptions": {}, **sizes}
    for override in given:
        containers[override["name"]] = _with_override(containers[override["name"]], override)
    if sizes or any(not SIZE_FIELDS.isdisjoint(override) for override in given):
        definitions = [container.definition for container in containers.values()]
        changes["demand"] = _demand(sizes.get("cpu", base.cpu), sizes.get("memory", base.memory), definitions)
    found = [(run, containers[run.container]) for run in base.runs]
    if any((run.gpus, run.gpu_memory_mib) != (container.gpus, container.gpu_memory_mib) for run, container in found):
        changes["runs"] = tuple(run.but(gpus=container.gpus, gpu_memory_mib=container.gpu_memory_mib) for run, container in found)
    if overrides.get("taskRoleArn"):
        changes["role"] = overrides["taskRoleArn"]
    if any("command" in override for override in given):
        changes["only_in_docker"] = _only_in_docker(containers)
    return replace(base, **changes)


def _with_override(base: ContainerSpec, override: dict[str, Any]) -> ContainerSpec:
    """The container with its overrides: command, environment, environment files, sizes and GPUs."""
    definition = {**base.definition, **override}
    changes: dict[str, Any] = {"definition": definition}
    if "command" in override:
        changes["command"] = _command(definition)
    if "environment" in override:
        environment = base.environment | {pair["name"]: pair.get("value", "") for pair in override["environment"]}
        definition["environment"] = [{"name": name, "value": value} for name, value in environment.items()]
        changes["environment"] = environment
    if "environmentFiles" in override:
        changes |= _override_files(base, override)
    if "resourceRequirements" in override or "NVIDIA_VISIBLE_DEVICES" in changes.get("environment", ()):
        changes |= _gpu_values(definition)
    if not SIZE_FIELDS.isdisjoint(override):
        changes["description"] = _description(definition)
    return replace(base, **changes)


def _container(definition: dict[str, Any]) -> ContainerSpec:
    image, logging = definition["image"], definition.get("logConfiguration")
    return ContainerSpec(
        definition=definition,
        image=image,
        is_host_image=is_host_image(image),
        command=_command(definition),
        environment={pair["name"]: pair.get("value", "") for pair in definition["environment"]},
        **_gpu_values(definition),
        secrets=secrets_of(definition),
        environment_files=_environment_files(definition),
        private_files=(),
        only_in_container=next((field for field in ONLY_IN_CONTAINERS if definition.get(field)), None),
        health_check=health_check(definition),
        stop_grace_s=float(definition.get("stopTimeout", STOP_GRACE_S)),
        log_options=logging["options"] if logging and logging["logDriver"] == "awslogs" else None,
        description=_description(definition),
    )


def _gpu_values(definition: dict[str, Any]) -> dict[str, Any]:
    """The members of ContainerSpec that GPU requirements and the variable NVIDIA_VISIBLE_DEVICES decide."""
    return {
        "gpus": gpus_of_run(definition),
        "gpu_memory_mib": gpu_memory_of_run(definition),
        "visible_gpus": visible_gpus(definition),
        "sets_visible_devices": sets_visible_devices(definition),
        "sharing_environment": sharing_environment(definition),
    }


def secrets_of(definition: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    return (*definition.get("secrets", ()), *definition.get("logConfiguration", {}).get("secretOptions", ()))


def _environment_files(definition: dict[str, Any]) -> tuple[str, ...]:
    return tuple(file["value"] for file in definition.get("environmentFiles", ()))


def _override_files(base: ContainerSpec, override: dict[str, Any]) -> dict[str, Any]:
    """The files of an override replace those of the definition. The variables of `corral run` replace no files."""
    files = _environment_files(override)
    private = tuple(file for file in files if is_private(file))
    others = tuple(file for file in files if file not in private)
    return {"environment_files": others if others or not private else base.environment_files, "private_files": private}


def _command(definition: dict[str, Any]) -> list[str]:
    return [*definition.get("entryPoint", ()), *definition.get("command", ())]


def _description(definition: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": definition["name"],
        "image": definition["image"],
        "cpu": str(definition["cpu"]),
        "memory": str(definition["memory"]) if "memory" in definition else None,
        "memoryReservation": str(definition["memoryReservation"]) if "memoryReservation" in definition else None,
        "gpuSharingStrategy": sharing_strategy(definition),
    }


def _demand(cpu: str | None, memory: str | None, containers: Collection[dict[str, Any]]) -> Demand:
    """The resources that a task needs on an instance: its task-level sizes, or else the sum of its containers' sizes."""
    gpus, gpu_memory_mib = gpus_required(containers)
    return Demand(
        gpus=gpus,
        cpu_units=cpu_units(cpu) if cpu else sum(container["cpu"] for container in containers),
        memory_mib=memory_mib(memory)
        if memory
        else sum(container.get("memoryReservation", container.get("memory", 0)) for container in containers),
        gpu_memory_mib=gpu_memory_mib,
    )


# Settings of task and container definitions


def is_plain(containers: Iterable[dict[str, Any]]) -> bool:
    """Whether no container has dependencies, a health check or a restart policy. If so, the lifecycle needs no rules."""
    return all(LIFECYCLE_FIELDS.isdisjoint(container) and not needs_others(container) for container in containers)


def needs_others(container: dict[str, Any]) -> bool:
    """Whether the container must wait for other containers of its task before it starts."""
    return bool(container.get("dependsOn") or container.get("links") or container.get("volumesFrom"))


def dependencies(container: dict[str, Any]) -> dict[str, str]:
    """Names of the containers that this container needs, each with its condition. Links and volumesFrom also count."""
    sources = [source["sourceContainer"] for source in container.get("volumesFrom", ())]
    linked = [link.partition(":")[0] for link in container.get("links", ())]
    declared = {needed["containerName"]: needed["condition"] for needed in container.get("dependsOn", ())}
    return {**dict.fromkeys([*sources, *linked], "START"), **declared}


def container_rules(container: dict[str, Any]) -> ContainerRules:
    """The lifecycle rules of a container. Overrides cannot change them."""
    policy = container.get("restartPolicy") or {}
    restart = None
    if policy.get("enabled"):
        period_s = policy.get("restartAttemptPeriod", RESTART_PERIOD_S)
        restart = RestartPolicy(float(period_s), frozenset(policy.get("ignoredExitCodes", ())))
    return ContainerRules(
        depends_on=tuple(dependencies(container).items()),
        start_timeout_s=float(container["startTimeout"]) if container.get("startTimeout") else None,
        restart=restart,
    )


def health_check(container: dict[str, Any]) -> HealthCheck | None:
    """The health check of a container; None if it has none, or if the command of the check is NONE."""
    check = container.get("healthCheck")
    if not check:
        return None
    kind, *words = check["command"]
    if kind == "NONE":
        return None
    check = {**HEALTH_CHECK_DEFAULTS, **check}
    return HealthCheck(
        command=["/bin/sh", "-c", *words] if kind == "CMD-SHELL" else words,
        interval_s=float(check["interval"]),
        timeout_s=float(check["timeout"]),
        retries=check["retries"],
        start_period_s=float(check.get("startPeriod", 0)),
    )


def time_limit_s(tags: Iterable[dict[str, str]]) -> float | None:
    """The time limit that a tag of the task sets. The time counts from the start of the task."""
    given = next((tag.get("value", "") for tag in tags if tag.get("key") == TIME_LIMIT_TAG), None)
    if given is None:
        return None
    try:
        limit_s = float(given)
    except ValueError:
        limit_s = math.nan
    if not 0 < limit_s < math.inf:
        raise InvalidParameterException(f"The tag {TIME_LIMIT_TAG} must be a positive number of seconds, not '{given}'.")
    return limit_s


def fence_s(tags: Iterable[dict[str, str]]) -> float | None:
    """The time without an answer of the server after which the host ends a task, if a tag of the task sets it."""
    given = next((tag.get("value", "") for tag in tags if tag.get("key") == FENCE_TAG), None)
    if given is None:
        return None
    try:
        after_s = float(given)
    except ValueError:
        after_s = math.nan
    if not FENCE_MIN_S <= after_s <= FENCE_MAX_S:
        raise InvalidParameterException(
            f"The tag {FENCE_TAG} must be a number of seconds from {FENCE_MIN_S:.0f} to {FENCE_MAX_S:.0f}, not '{given}'."
        )
    return after_s


def longest_time_of(task: Task, spec: TaskSpec) -> float | None:
    """Return the longest time from the placement of a task until it has stopped. Return None if the task has no time limit.

    When the time limit ends, the containers of the task are stopped, and each may need its whole stop timeout.
    """
    if task.limit_s is None:
        return None
    return longest_time_s(task.limit_s, sum(container.stop_grace_s for container in spec.containers.values()))


def wants_gpu_indexes(tags: Iterable[dict[str, str]], default: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES contains the indexes of the task's GPUs instead of their ids, which are UUIDs."""
    given = next((tag.get("value", "") for tag in tags if tag.get("key") == GPU_IDS_TAG), default)
    if given not in (GPU_UUIDS, GPU_INDEXES):
        raise InvalidParameterException(f"The tag {GPU_IDS_TAG} must be {GPU_UUIDS} or {GPU_INDEXES}, not '{given}'.")
    return given == GPU_INDEXES


def cpu_units(text: str) -> int:
    """Convert `1024`, `1 vCPU` or `.5 vcpu` to CPU units."""
    number, unit = _quantity("cpu", text)
    if unit not in ("", "vcpu"):
        raise ClientException(f"Invalid 'cpu' setting for task: {text}. Give CPU units (1024) or vCPUs (1 vCPU).")
    return round(number * CPU_UNITS_PER_CORE) if unit else round(number)


def memory_mib(text: str) -> int:
    """Convert `2048` or `2 GB` to MiB."""
    number, unit = _quantity("memory", text)
    if unit not in ("", "gb"):
        raise ClientException(f"Invalid 'memory' setting for task: {text}. Give MiB (2048) or GB (2 GB).")
    return round(number * MIB_PER_GB) if unit else round(number)


def _quantity(setting: str, text: str) -> tuple[float, str]:
    found = QUANTITY.fullmatch(text if not text.strip().startswith(".") else f"0{text.strip()}")
    if found is None:
        raise ClientException(f"Invalid '{setting}' setting for task: {text}.")
    if (number := float(found[1])) > QUANTITY_MAX:
        raise ClientException(f"Invalid '{setting}' setting for task: {text[:100]}. It must be {QUANTITY_MAX} or less.")
    return number, found[2].lower()
