"""Fargate: the checks that refuse task definitions and requests that Fargate does not support.

A Fargate task has no container instance in its description. Corral places it on the hosts, whatever the cluster of the request is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from corral.services.ecs.errors import (
    ClientException,
    InvalidParameterException,
    PlatformTaskDefinitionIncompatibilityException,
    PlatformUnknownException,
)
from corral.services.ecs.gpu_requirements import gpu_count
from corral.services.ecs.task_spec import TaskSpec, cpu_units, memory_mib

PLATFORM_VERSION = "1.4.0"  # the version that LATEST means
PLATFORM_VERSIONS = ("1.0.0", "1.1.0", "1.2.0", "1.3.0", PLATFORM_VERSION)
UNFIT = "Task definition does not support launch_type FARGATE. {}"
STORAGE_GIB = 20  # the default of `ephemeralStorage`
START_TIMEOUT_S = (2, 120)
STOP_TIMEOUT_MAX_S = 120

LOG_DRIVERS = ("awslogs", "splunk", "awsfirelens")
REFUSED_IN_CONTAINER = (
    "privileged", "links", "dockerSecurityOptions", "disableNetworking", "dnsServers", "dnsSearchDomains", "extraHosts",
)  # fmt: skip
REFUSED_IN_LINUX_PARAMETERS = ("devices", "sharedMemorySize", "tmpfs", "maxSwap", "swappiness")

# CPU units of a Fargate task → the allowed amounts of memory in MiB.
SIZES: dict[int, Collection[int]] = {
    256: (512, 1024, 2048),
    512: range(1024, 4096 + 1, 1024),
    1024: range(2048, 8192 + 1, 1024),
    2048: range(4096, 16_384 + 1, 1024),
    4096: range(8192, 30_720 + 1, 1024),
    8192: range(16_384, 61_440 + 1, 4096),
    16_384: range(32_768, 122_880 + 1, 8192),
}


def check_task(spec: TaskSpec) -> None:
    """Refuse a task that cannot run on Fargate, as ECS does."""
    document, overrides = spec.document, spec.overrides
    problem = unfit_for_fargate(document)
    # An override can require GPUs even if the definition does not.
    if problem is None and any(gpu_count(container.definition) for container in spec.containers.values()):
        problem = "Fargate compatible task definitions do not support resourceRequirements of type GPU"
    if problem is not None:
        raise InvalidParameterException(UNFIT.format(problem))
    if "cpu" in overrides or "memory" in overrides:
        assert spec.cpu is not None and spec.memory is not None, "a task definition for Fargate has a CPU and a memory size"
        if problem := _wrong_size(str(cpu_units(spec.cpu)), str(memory_mib(spec.memory))):
            raise ClientException(problem)


def platform_version(given: str | None) -> str:
    if given is None or given == "LATEST":
        return PLATFORM_VERSION
    if given not in PLATFORM_VERSIONS:
        raise PlatformUnknownException(f"The specified platform version does not exist: {given}.")
    return given


def check_definition(document: dict[str, Any], version: str) -> None:
    """Refuse a task definition of a service that cannot run on Fargate."""
    if problem := unfit_for_fargate(document):
        raise InvalidParameterException(UNFIT.format(problem))
    check_platform(document, version)


def check_platform(document: dict[str, Any], version: str) -> None:
    """Refuse an older platform version for a task definition that needs the newest one."""
    if version == PLATFORM_VERSION:
        return
    containers = document["containerDefinitions"]
    capabilities = [each.get("linuxParameters", {}).get("capabilities", {}).get("add") for each in containers]
    needs_newest = (
        "ephemeralStorage" in document or any(capabilities) or any(container.get("environmentFiles") for container in containers)
    )
    if needs_newest:
        raise PlatformTaskDefinitionIncompatibilityException("One or more of the requested capabilities are not supported.")


def unfit_for_fargate(document: dict[str, Any]) -> str | None:
    """Return why Fargate refuses a task definition. Return None if Fargate accepts it."""
    if document.get("networkMode") != "awsvpc":
        return "Fargate only supports network mode ‘awsvpc’."
    if problem := _wrong_size(document.get("cpu"), document.get("memory")):
        return problem
    if document.get("placementConstraints"):
        return "Fargate compatible task definitions do not support placement constraints"
    if document.get("inferenceAccelerators"):
        return "Fargate compatible task definitions do not support inferenceAccelerators"
    if document.get("pidMode") == "host":
        return "Fargate compatible task definitions do not support pidMode=host"
    for volume in document.get("volumes", ()):
        if volume.get("host", {}).get("sourcePath") or "dockerVolumeConfiguration" in volume:
            return "Fargate compatible task definitions do not support host.sourcePath and dockerVolumeConfiguration"
    for container in document["containerDefinitions"]:
        if refused := _refused_setting(container):
            return f"Fargate compatible task definitions do not support {refused}"
    return None


def _wrong_size(cpu: str | None, memory: str | None) -> str | None:
    """Return why Fargate refuses the size of a task, in CPU units and MiB. Return None if Fargate accepts it."""
    for name, value in (("cpu", cpu), ("memory", memory)):
        if value is None:
            return f"Fargate requires that '{name}' be defined at the task level."
    assert cpu is not None and memory is not None
    if int(memory) not in SIZES.get(int(cpu), ()):
        return (
            f"No Fargate configuration exists for given values: {cpu} CPU, {memory} memory. "
            "See the Amazon ECS documentation for the valid values."
        )
    return None


def _refused_setting(container: dict[str, Any]) -> str | None:
    linux = container.get("linuxParameters", {})
    for settings, names in ((container, REFUSED_IN_CONTAINER), (linux, REFUSED_IN_LINUX_PARAMETERS)):
        for name in names:
            if settings.get(name):
                return name
    needed = [need["type"] for need in container.get("resourceRequirements", ())]
    if needed:
        return f"resourceRequirements of type {needed[0]}"
    driver = container.get("logConfiguration", {}).get("logDriver", "awslogs")
    if driver not in LOG_DRIVERS:
        return f"the log driver {driver}"
    if container.get("stopTimeout", 0) > STOP_TIMEOUT_MAX_S:
        return f"a stopTimeout above {STOP_TIMEOUT_MAX_S} seconds"
    least, most = START_TIMEOUT_S
    if not least <= container.get("startTimeout", least) <= most:
        return f"a startTimeout that is not between {least} and {most} seconds"
    return None
