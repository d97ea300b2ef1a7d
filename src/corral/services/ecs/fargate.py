"""Fargate: tasks that name no container instance. Here they run on the hosts' own pool, in whatever cluster they are asked for."""

from __future__ import annotations

from typing import Any

from corral.errors import api_error
from corral.services.ecs.definition_rules import unfit_for_fargate, wrong_fargate_size
from corral.services.ecs.definitions import cpu_units, gpu_count, memory_mib
from corral.services.ecs.naming import ClientException, InvalidParameterException

PlatformUnknownException = api_error("PlatformUnknownException")

PLATFORM_VERSION = "1.4.0"  # what LATEST stands for
PLATFORM_VERSIONS = ("1.0.0", "1.1.0", "1.2.0", "1.3.0", PLATFORM_VERSION)
STORAGE_GIB = 20  # unless the task definition says otherwise


def check_task(document: dict[str, Any], overrides: dict[str, Any], containers: dict[str, dict[str, Any]]) -> None:
    """Whether a task of this definition can run on Fargate, as ECS would have it."""
    problem = unfit_for_fargate(document)
    if problem is None and any(gpu_count(container) for container in containers.values()):  # by an override
        problem = "Fargate compatible task definitions do not support resourceRequirements of type GPU"
    if problem is not None:
        raise InvalidParameterException(f"Task definition does not support launch_type FARGATE. {problem}")
    if "cpu" in overrides or "memory" in overrides:
        cpu, memory = overrides.get("cpu", document["cpu"]), overrides.get("memory", document["memory"])
        if problem := wrong_fargate_size(str(cpu_units(cpu)), str(memory_mib(memory))):
            raise ClientException(problem)


def platform_version(given: str | None) -> str:
    if given is None or given == "LATEST":
        return PLATFORM_VERSION
    if given not in PLATFORM_VERSIONS:
        raise PlatformUnknownException(f"The specified platform version does not exist: {given}.")
    return given
