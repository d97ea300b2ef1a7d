"""What a task is to run: its task definition with its overrides, merged once and shared by all that need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
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
ONLY_IN_CONTAINERS = ("links", "volumesFrom", "mountPoints")


@dataclass(frozen=True, eq=False)
class ContainerSpec:
    """One container of a task. Everything else is derived from its definition, once, when somebody first asks."""

    definition: dict[str, Any]  # in ECS's shape, with the task's overrides. It must not be changed

    @cached_property
    def image(self) -> str:
        image: str = self.definition["image"]
        return image

    @cached_property
    def command(self) -> list[str]:
        return [*self.definition.get("entryPoint", ()), *self.definition.get("command", ())]

    @cached_property
    def environment(self) -> dict[str, str]:
        return {pair["name"]: pair.get("value", "") for pair in self.definition["environment"]}

    @cached_property
    def gpus(self) -> int:
        """A number, ALL_GPUS or FREE_GPUS."""
        return gpus_of_run(self.definition)

    @cached_property
    def is_host_image(self) -> bool:
        return is_host_image(self.definition["image"])

    @cached_property
    def only_in_container(self) -> str | None:
        """The first setting that a plain process cannot have; None: it can be a plain process."""
        return next((field for field in ONLY_IN_CONTAINERS if self.definition.get(field)), None)

    @cached_property
    def health_check(self) -> HealthCheck | None:
        return health_check(self.definition)

    @cached_property
    def stop_grace_s(self) -> float:
        return float(self.definition.get("stopTimeout", STOP_GRACE_S))

    @cached_property
    def log_options(self) -> dict[str, str] | None:
        """Those of the log driver awslogs; None: it has another one, or none."""
        logging = self.definition.get("logConfiguration")
        return logging["options"] if logging and logging["logDriver"] == "awslogs" else None

    @cached_property
    def shown(self) -> dict[str, Any]:
        """The part of a described container that is the same for all tasks of this specification."""
        container = self.definition
        return {
            "name": container["name"],
            "image": container["image"],
            "cpu": str(container["cpu"]),
            "memory": str(container["memory"]) if "memory" in container else None,
            "memoryReservation": str(container["memoryReservation"]) if "memoryReservation" in container else None,
        }


@dataclass(frozen=True, eq=False)
class TaskSpec:
    """A task definition with overrides. Tasks that have both in common share one."""

    document: dict[str, Any]  # the task definition. It must not be changed
    overrides: dict[str, Any]  # in ECS's shape
    containers: dict[str, ContainerSpec]  # by name, in the order of the task definition

    @cached_property
    def cpu(self) -> str | None:
        """The task's own size; None: it has the sum of its containers'."""
        cpu: str | None = self.overrides.get("cpu", self.document.get("cpu"))
        return cpu

    @cached_property
    def memory(self) -> str | None:
        """The task's own size; None: it has the sum of its containers'."""
        memory: str | None = self.overrides.get("memory", self.document.get("memory"))
        return memory

    @cached_property
    def ask(self) -> Ask:
        """What a task takes of an instance: its own sizes where it has them, else the sum of its containers'."""
        containers = [container.definition for container in self.containers.values()]
        memory_mibs = [container.get("memoryReservation", container.get("memory", 0)) for container in containers]
        return Ask(
            gpus=gpus_asked(containers),
            cpu_units=cpu_units(self.cpu) if self.cpu else sum(container["cpu"] for container in containers),
            memory_mib=memory_mib(self.memory) if self.memory else sum(memory_mibs),
        )

    @cached_property
    def is_plain(self) -> bool:
        """Nothing of it has to be looked up again as its containers start and end."""
        return is_plain(container.definition for container in self.containers.values())

    @cached_property
    def rules(self) -> Mapping[str, ContainerRules]:
        """By container."""
        return {name: container_rules(container.definition) for name, container in self.containers.items()}

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """One for each container, still without ids."""
        return tuple(
            Run(
                "", "", name, at, container.definition["essential"], container.gpus, RunState.PENDING,
                waits=needs_others(container.definition),
            )
            for at, (name, container) in enumerate(self.containers.items())
        )  # fmt: skip

    @cached_property
    def role(self) -> str:
        """The task role, by ARN or by name; empty: it has none."""
        role: str = self.overrides.get("taskRoleArn") or self.document.get("taskRoleArn") or ""
        return role


_kept: dict[Any, TaskSpec] = {}  # a spec holds its document, so the document's id names no other one while it is kept


def task_spec(document: dict[str, Any], overrides: dict[str, Any] | None = None) -> TaskSpec:
    """The document is one that the store keeps: it is known by its identity."""
    key = (id(document), orjson.dumps(overrides)) if overrides else id(document)
    found = _kept.get(key)
    if found is None:
        found = TaskSpec(document, overrides or {}, _merged(document, overrides or {}))
        if len(_kept) >= SPECS_KEPT_MAX:
            del _kept[next(iter(_kept))]
        _kept[key] = found
    return found


def spec_of(tx: Tx[Store], task: Task) -> TaskSpec:
    family, revision = split_definition(task.definition_arn)
    assert revision is not None
    return task_spec(tx.store.document(task.region, family, revision), task.details.get("overrides"))


def rules_of(tx: Tx[Store], task: Task) -> Mapping[str, ContainerRules]:
    """By container."""
    return NO_RULES if task.plain else spec_of(tx, task).rules


def _merged(document: dict[str, Any], overrides: dict[str, Any]) -> dict[str, ContainerSpec]:
    by_name = {container["name"]: container for container in document["containerDefinitions"]}
    for override in overrides.get("containerOverrides", ()):
        container = by_name[override["name"]]
        merged = {**container, **override}
        if "environment" in override:
            environment = {pair["name"]: pair.get("value", "") for pair in (*container["environment"], *override["environment"])}
            merged["environment"] = [{"name": name, "value": value} for name, value in environment.items()]
        by_name[override["name"]] = merged
    return {name: ContainerSpec(container) for name, container in by_name.items()}
