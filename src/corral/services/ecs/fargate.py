"""Fargate: tasks that name no container instance. Here they run on the hosts' own pool, in whatever cluster they are asked for."""

from __future__ import annotations

from corral.errors import api_error
from corral.services.ecs.definition_rules import unfit_for_fargate, wrong_fargate_size
from corral.services.ecs.definitions import cpu_units, gpu_count, memory_mib
from corral.services.ecs.naming import ClientException, InvalidParameterException
from corral.services.ecs.task_spec import TaskSpec

PlatformUnknownException = api_error("PlatformUnknownException")

PLATFORM_VERSION = "1.4.0"  # what LATEST stands for
PLATFORM_VERSIONS = ("1.0.0", "1.1.0", "1.2.0", "1.3.0", PLATFORM_VERSION)
STORAGE_GIB = 20  # unless the task definition says otherwise


def check_task(spec: TaskSpec) -> None:
    """Refuse a task that cannot run on Fargate, as ECS does."""
    document, overrides = spec.document, spec.overrides
    problem = unfit_for_fargate(document)
    if problem is None and any(gpu_count(container.definition) for container in spec.containers.values()):  # by an override
        problem = "Fargate compatible task definitions do not support resourceRequirements of type GPU"
    if problem is not None:
        raise InvalidParameterException(f"Task definition does not support launch_type FARGATE. {problem}")
    if "cpu" in overrides or "memory" in overrides:
        assert spec.cpu is not None and spec.memory is not None, "a task definition that fits Fargate has sizes"
        if problem := wrong_fargate_size(str(cpu_units(spec.cpu)), str(memory_mib(spec.memory))):
            raise ClientException(problem)


def platform_version(given: str | None) -> str:
    if given is None or given == "LATEST":
        return PLATFORM_VERSION
    if given not in PLATFORM_VERSIONS:
        raise PlatformUnknownException(f"The specified platform version does not exist: {given}.")
    return given
