"""What a task is to run: its task definition with its overrides, merged once and shared by all that need it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from corral.core import Tx
from corral.decide.lifecycle import NO_RULES
from corral.model.run import STOP_GRACE_S, HealthCheck, RunState
from corral.model.task import Ask, ContainerRules, Run, Task
from corral.services.ecs.containers import container_rules, health_check, is_host_image, is_plain, needs_others
from corral.services.ecs.definitions import cpu_units, gpus_asked, gpus_of_run, memory_mib
from corral.services.ecs.naming import split_definition
from corral.store import Store

SPECS_KEPT_MAX = 1_000
SIZES = frozenset({"cpu", "memory", "memoryReservation", "resourceRequirements"})
ONLY_IN_CONTAINERS = ("links", "volumesFrom", "mountPoints")


# Created once for all tasks of a definition, and for every task that has overrides of its own. They are not frozen, because frozen
# ones take three times as long to create; they are never changed.


@dataclass(slots=True, eq=False)
class ContainerSpec:
    """One container of a task: its definition, and what is derived from it."""

    definition: dict[str, Any]  # in ECS's shape, with the task's overrides. It must not be changed
    image: str
    is_host_image: bool
    command: list[str]
    environment: dict[str, str]
    gpus: int  # or ALL_GPUS, or FREE_GPUS
    only_in_container: str | None  # the first setting that a plain process cannot have; None: it can be one
    health_check: HealthCheck | None
    stop_grace_s: float
    log_options: dict[str, str] | None  # of the log driver awslogs; None: it has another one, or none
    shown: dict[str, Any]  # the part of a described container that is the same for all tasks


@dataclass(slots=True, eq=False)
class TaskSpec:
    """A task definition with overrides. Tasks that have both in common share one."""

    document: dict[str, Any]  # the task definition. It must not be changed
    overrides: dict[str, Any]  # in ECS's shape
    containers: dict[str, ContainerSpec]  # by name, in the order of the task definition
    cpu: str | None  # the task's own size; None: it has the sum of its containers'
    memory: str | None
    ask: Ask
    is_plain: bool  # nothing of it has to be looked up again as its containers start and end
    rules: Mapping[str, ContainerRules]  # by container; empty where it is plain
    runs: tuple[Run, ...]  # one for each container, still without ids
    role: str  # the task role, by ARN or by name; empty: it has none


_kept: dict[Any, TaskSpec] = {}  # a spec holds its document, so the document's id names no other one while it is kept


def task_spec(document: dict[str, Any], overrides: dict[str, Any] | None = None) -> TaskSpec:
    """The document is one that the store keeps: it is known by its identity."""
    key = (id(document), orjson.dumps(overrides)) if overrides else id(document)
    found = _kept.get(key)
    if found is None:
        found = _with_overrides(task_spec(document), overrides) if overrides else _without_overrides(document)
        if len(_kept) >= SPECS_KEPT_MAX:
            del _kept[next(iter(_kept))]
        _kept[key] = found
    return found


def spec_of(tx: Tx[Store], task: Task) -> TaskSpec:
    family, revision = split_definition(task.definition_arn)
    assert revision is not None
    return task_spec(tx.store.definitions.document(task.region, family, revision), task.details.get("overrides"))


def rules_of(tx: Tx[Store], task: Task) -> Mapping[str, ContainerRules]:
    """By container."""
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
        ask=_ask(cpu, memory, definitions),
        is_plain=plain,
        rules=NO_RULES if plain else {definition["name"]: container_rules(definition) for definition in definitions},
        runs=tuple(
            Run(
                "", "", name, at, container.definition["essential"], container.gpus, RunState.PENDING,
                waits=needs_others(container.definition),
            )
            for at, (name, container) in enumerate(containers.items())
        ),
        role=document.get("taskRoleArn") or "",
    )  # fmt: skip


def _with_overrides(base: TaskSpec, overrides: dict[str, Any]) -> TaskSpec:
    containers, runs, ask = dict(base.containers), base.runs, base.ask
    cpu, memory = overrides.get("cpu", base.cpu), overrides.get("memory", base.memory)
    resized = "cpu" in overrides or "memory" in overrides
    for override in overrides.get("containerOverrides", ()):
        name = override["name"]
        containers[name] = _with_override(containers[name], override)
        resized = resized or not SIZES.isdisjoint(override)
    if resized:
        ask = _ask(cpu, memory, [container.definition for container in containers.values()])
    if any(containers[run.container].gpus != run.gpus for run in runs):
        runs = tuple(run.but(gpus=containers[run.container].gpus) for run in runs)
    role = overrides.get("taskRoleArn") or base.role
    return TaskSpec(base.document, overrides, containers, cpu, memory, ask, base.is_plain, base.rules, runs, role)


def _with_override(base: ContainerSpec, override: dict[str, Any]) -> ContainerSpec:
    """An override may change the command, environment, environment files, sizes and GPUs of a container, and nothing else."""
    definition, environment, gpus = {**base.definition, **override}, base.environment, base.gpus
    if "environment" in override:
        environment = environment | {pair["name"]: pair.get("value", "") for pair in override["environment"]}
        definition["environment"] = [{"name": name, "value": value} for name, value in environment.items()]
    if "resourceRequirements" in override or "NVIDIA_VISIBLE_DEVICES" in environment:
        gpus = gpus_of_run(definition)
    return ContainerSpec(
        definition, base.image, base.is_host_image, _command(definition), environment, gpus, base.only_in_container,
        base.health_check, base.stop_grace_s, base.log_options, base.shown if SIZES.isdisjoint(override) else _shown(definition),
    )  # fmt: skip


def _container(definition: dict[str, Any]) -> ContainerSpec:
    image, logging = definition["image"], definition.get("logConfiguration")
    return ContainerSpec(
        definition=definition,
        image=image,
        is_host_image=is_host_image(image),
        command=_command(definition),
        environment={pair["name"]: pair.get("value", "") for pair in definition["environment"]},
        gpus=gpus_of_run(definition),
        only_in_container=next((field for field in ONLY_IN_CONTAINERS if definition.get(field)), None),
        health_check=health_check(definition),
        stop_grace_s=float(definition.get("stopTimeout", STOP_GRACE_S)),
        log_options=logging["options"] if logging and logging["logDriver"] == "awslogs" else None,
        shown=_shown(definition),
    )


def _command(definition: dict[str, Any]) -> list[str]:
    return [*definition.get("entryPoint", ()), *definition.get("command", ())]


def _shown(definition: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": definition["name"],
        "image": definition["image"],
        "cpu": str(definition["cpu"]),
        "memory": str(definition["memory"]) if "memory" in definition else None,
        "memoryReservation": str(definition["memoryReservation"]) if "memoryReservation" in definition else None,
    }


def _ask(cpu: str | None, memory: str | None, containers: Collection[dict[str, Any]]) -> Ask:
    """What a task takes of an instance: its own sizes where it has them, else the sum of its containers'."""
    return Ask(
        gpus=gpus_asked(containers),
        cpu_units=cpu_units(cpu) if cpu else sum(container["cpu"] for container in containers),
        memory_mib=memory_mib(memory)
        if memory
        else sum(container.get("memoryReservation", container.get("memory", 0)) for container in containers),
    )
