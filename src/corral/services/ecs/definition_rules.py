"""What ECS refuses in a task definition, in its own words where they are known."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import orjson

from corral.services.ecs.constraints import check_definition_constraints
from corral.services.ecs.containers import dependencies
from corral.services.ecs.naming import ClientException

Document = dict[str, Any]
Container = dict[str, Any]

PORTS = re.compile(r"(\d{1,5})-(\d{1,5})")
DOCUMENT_MAX_BYTES = 65_536
TASK_CPU_UNITS = (128, 196_608)
PORT_MAX = 65_535

FARGATE_LOG_DRIVERS = ("awslogs", "splunk", "awsfirelens")
NOT_ON_FARGATE = (
    "privileged", "links", "dockerSecurityOptions", "disableNetworking", "dnsServers", "dnsSearchDomains", "extraHosts",
)  # fmt: skip
NOT_IN_FARGATE_LINUX = ("devices", "sharedMemorySize", "tmpfs", "maxSwap", "swappiness")

# CPU units of a Fargate task → the memory in MiB that it may have with them.
FARGATE_SIZES: dict[int, Collection[int]] = {
    256: (512, 1024, 2048),
    512: range(1024, 4096 + 1, 1024),
    1024: range(2048, 8192 + 1, 1024),
    2048: range(4096, 16_384 + 1, 1024),
    4096: range(8192, 30_720 + 1, 1024),
    8192: range(16_384, 61_440 + 1, 4096),
    16_384: range(32_768, 122_880 + 1, 8192),
}


def check(document: Document) -> None:
    """Refuse what ECS refuses. `cpu` and `memory` of the task are plain numbers by now."""
    if len(orjson.dumps(document)) > DOCUMENT_MAX_BYTES:
        raise ClientException(
            f"Actual length: '{len(orjson.dumps(document))}'. Max allowed length is '{DOCUMENT_MAX_BYTES}' bytes."
        )
    _check_task(document)
    _check_volumes(document)
    for container in document["containerDefinitions"]:
        for rule in CONTAINER_RULES:
            rule(container, document)
    check_dependencies(document["containerDefinitions"])
    if "FARGATE" in document.get("requiresCompatibilities", ()) and (problem := unfit_for_fargate(document)):
        raise ClientException(problem)


def compatibilities(document: Document) -> list[str]:
    """The launch types that could run it."""
    on_a_vpc = document.get("networkMode") == "awsvpc"
    return [*(() if on_a_vpc else ("EXTERNAL",)), "EC2", *(() if unfit_for_fargate(document) else ("FARGATE",))]


def unfit_for_fargate(document: Document) -> str | None:
    """Why Fargate does not take it; None: it does."""
    if document.get("networkMode") != "awsvpc":
        return "Fargate only supports network mode ‘awsvpc’."
    if problem := wrong_fargate_size(document.get("cpu"), document.get("memory")):
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
        if what := _not_on_fargate(container):
            return f"Fargate compatible task definitions do not support {what}"
    return None


def wrong_fargate_size(cpu: str | None, memory: str | None) -> str | None:
    """What is wrong with the sizes of a task for Fargate, in CPU units and MiB; None: nothing."""
    for name, value in (("cpu", cpu), ("memory", memory)):
        if value is None:
            return f"Fargate requires that '{name}' be defined at the task level."
    assert cpu is not None and memory is not None
    if int(memory) not in FARGATE_SIZES.get(int(cpu), ()):
        return (
            f"No Fargate configuration exists for given values: {cpu} CPU, {memory} memory. "
            "See the Amazon ECS documentation for the valid values."
        )
    return None


def _not_on_fargate(container: Container) -> str | None:
    linux = container.get("linuxParameters", {})
    for settings, names in ((container, NOT_ON_FARGATE), (linux, NOT_IN_FARGATE_LINUX)):
        for name in names:
            if settings.get(name):
                return name
    needed = [need["type"] for need in container.get("resourceRequirements", ())]
    if needed:
        return f"resourceRequirements of type {needed[0]}"
    driver = container.get("logConfiguration", {}).get("logDriver", "awslogs")
    if driver not in FARGATE_LOG_DRIVERS:
        return f"the log driver {driver}"
    if container.get("stopTimeout", 0) > 120:
        return "a stopTimeout above 120 seconds"
    if not 2 <= container.get("startTimeout", 2) <= 120:
        return "a startTimeout that is not between 2 and 120 seconds"
    return None


def _check_task(document: Document) -> None:
    containers = document["containerDefinitions"]
    names = [container.get("name", "") for container in containers]
    if len(set(names)) != len(names):
        raise ClientException("Container names must be unique within a task definition.")
    if not any(container["essential"] for container in containers):
        raise ClientException("A task definition must have at least one essential container.")
    if "cpu" in document:
        low, high = TASK_CPU_UNITS
        if not low <= int(document["cpu"]) <= high:
            raise ClientException(f"Invalid 'cpu' setting for task. It must be between {low} and {high} CPU units.")
        if sum(container["cpu"] for container in containers) > int(document["cpu"]):
            raise ClientException("The sum of all container 'cpu' values cannot be greater than the value of the task 'cpu'.")
    if "memory" in document:
        reserved = sum(container.get("memoryReservation", container.get("memory", 0)) for container in containers)
        if reserved > int(document["memory"]):
            raise ClientException("The sum of all container 'memory' values cannot be greater than the value of the task 'memory'.")
    check_definition_constraints(document.get("placementConstraints", ()))
    proxied = document.get("proxyConfiguration", {}).get("containerName")
    if proxied is not None and proxied not in names:
        raise ClientException(f"Proxy configuration names the container '{proxied}', which does not exist.")


def _check_volumes(document: Document) -> None:
    names = [volume.get("name") for volume in document.get("volumes", ())]
    for name in names:
        if name is None:
            raise ClientException("Volume name should not be null or empty.")
        if names.count(name) > 1:
            raise ClientException(f"Volume names must be unique within a task definition: '{name}'.")
    for volume in document.get("volumes", ()):
        kinds = [key for key in volume if key.endswith("VolumeConfiguration")]
        if len(kinds) > 1:
            raise ClientException(f"Only one volume configuration is allowed for the volume '{volume['name']}'.")


def _check_name_and_image(container: Container, _: Document) -> None:
    if "name" not in container:
        raise ClientException("Container.name should not be null or empty.")
    if not container.get("image"):
        raise ClientException("Container.image should not be null or empty.")


def _check_sizes(container: Container, document: Document) -> None:
    hard, soft, name = container.get("memory"), container.get("memoryReservation"), container["name"]
    if hard is None and soft is None and "memory" not in document:
        raise ClientException(
            f"Invalid setting for container '{name}'. At least one of 'memory' or 'memoryReservation' must be specified."
        )
    if hard is not None and soft is not None and hard < soft:
        raise ClientException(f"Invalid setting for container '{name}'. 'memory' must not be less than 'memoryReservation'.")


def _check_devices(container: Container, document: Document) -> None:
    known = {accelerator["deviceName"] for accelerator in document.get("inferenceAccelerators", ())}
    for need in container.get("resourceRequirements", ()):
        if need["type"] == "InferenceAccelerator" and need.get("value") not in known:
            raise ClientException(f"Unknown inference accelerator '{need.get('value')}' for container '{container['name']}'.")


def _check_logging(container: Container, _: Document) -> None:
    logging = container.get("logConfiguration")
    if logging and logging["logDriver"] == "awslogs" and not logging.get("options", {}).get("awslogs-group"):
        raise ClientException("Log driver awslogs requires options: awslogs-group, awslogs-region")


def _check_environment(container: Container, _: Document) -> None:
    if not all(pair.get("name") for pair in container["environment"]):
        raise ClientException(f"Environment variable names should not be null or empty for container '{container['name']}'.")
    taken = {pair["name"] for pair in container["environment"]}
    for secret in container.get("secrets", ()):
        if secret["name"] in taken:
            raise ClientException(
                "The secret name must be unique and not shared with any new or existing environment variables set on the "
                f"container, such as '{secret['name']}'."
            )
        taken.add(secret["name"])


def _check_network(container: Container, document: Document) -> None:
    mode, name = document.get("networkMode"), container["name"]
    if mode == "awsvpc" and container.get("hostname"):
        raise ClientException("hostname is not supported on container when networkMode=awsvpc.")
    if mode == "awsvpc" and container.get("links"):
        raise ClientException("Links are not supported when networkMode=awsvpc.")
    if mode == "none" and container["portMappings"]:
        raise ClientException("Port mappings are not supported when networkMode=none.")
    seen = set()
    for mapping in container["portMappings"]:
        port, host_port = mapping.get("containerPort"), mapping.get("hostPort", 0)
        if port is None:
            _check_port_range(name, mapping.get("containerPortRange"))
            continue
        if not 0 <= port <= PORT_MAX:
            raise ClientException(f"Invalid 'containerPort' setting for container '{name}'.")
        if not 0 <= host_port <= PORT_MAX:
            raise ClientException(f"Invalid 'hostPort' setting for container '{name}'.")
        if mode in ("awsvpc", "host") and host_port not in (0, port):
            raise ClientException(f"When networkMode={mode}, the host ports and container ports in port mappings must match.")
        if (port, mapping.get("protocol")) in seen:
            raise ClientException(f"Container port {port} is used in more than one port mapping for container {name}")
        seen.add((port, mapping.get("protocol")))


def _check_port_range(name: str, given: str | None) -> None:
    found = PORTS.fullmatch(given or "")
    if found is None or not 1 <= int(found[1]) <= int(found[2]) <= PORT_MAX:
        raise ClientException(f"Invalid 'containerPort' setting for container '{name}'.")


def _check_mounts(container: Container, document: Document) -> None:
    volumes = {volume["name"] for volume in document.get("volumes", ())}
    containers = {each.get("name") for each in document["containerDefinitions"]}
    for mount in container["mountPoints"]:
        if mount.get("sourceVolume") not in volumes:
            raise ClientException(f"Unknown volume '{mount.get('sourceVolume', 'null')}'.")
    for source in container["volumesFrom"]:
        if source.get("sourceContainer") not in containers - {container["name"]}:
            raise ClientException(f"Unknown source container '{source.get('sourceContainer', 'null')}' in volumesFrom.")
    for link in container.get("links", ()):
        if link.partition(":")[0] not in containers:
            raise ClientException(f"Unknown link '{link}' of container '{container['name']}'.")


def _check_health(container: Container, _: Document) -> None:
    health = container.get("healthCheck")
    if health is None:
        return
    command = health["command"]
    if not command or command[0] not in ("NONE", "CMD", "CMD-SHELL") or (command[0] != "NONE" and len(command) < 2):
        raise ClientException(
            f"Invalid 'healthCheck' setting for container '{container['name']}'. The command must begin with CMD or CMD-SHELL and "
            "name what to run, or be NONE."
        )


def _check_limits(container: Container, _: Document) -> None:
    names = [limit["name"] for limit in container.get("ulimits", ())]
    for limit in container.get("ulimits", ()):
        if names.count(limit["name"]) > 1:
            raise ClientException(f"Container '{container['name']}': the ulimit {limit['name']} is given more than once.")
        if limit["hardLimit"] != -1 and not -1 < limit["softLimit"] <= limit["hardLimit"]:
            raise ClientException(f"Container '{container['name']}': the softLimit of {limit['name']} is above its hardLimit.")


CONTAINER_RULES: tuple[Callable[[Container, Document], None], ...] = (
    _check_name_and_image,
    _check_sizes,
    _check_devices,
    _check_logging,
    _check_environment,
    _check_network,
    _check_mounts,
    _check_health,
    _check_limits,
)


def check_dependencies(containers: list[Container]) -> None:
    by_name = {container["name"]: container for container in containers}
    after = {name: list(dependencies(container)) for name, container in by_name.items()}
    for container in containers:
        for need in container.get("dependsOn", ()):
            other = by_name.get(need["containerName"])
            if other is None:
                raise ClientException(f"Cannot depend on container + '{need['containerName']}' because it does not exist")
            if need["condition"] in ("SUCCESS", "COMPLETE") and other["essential"]:
                raise ClientException("A dependency container with SUCCESS or COMPLETE condition cannot be an essential container")
            if need["condition"] == "HEALTHY" and other.get("healthCheck", {}).get("command", ["NONE"])[0] == "NONE":
                raise ClientException(
                    f"Container '{container['name']}' waits for '{other['name']}' to be HEALTHY, but that one has no health check"
                )
    if cycle := _in_a_cycle(after):
        raise ClientException(f"Container dependencies must not form a cycle: {', '.join(sorted(cycle))}")


def _in_a_cycle(after: dict[str, list[str]]) -> set[str]:
    """Those that could never start, because each waits for another of them."""
    left = dict(after)
    while free := [name for name, needed in left.items() if not any(other in left for other in needed)]:
        for name in free:
            del left[name]
    return set(left)
