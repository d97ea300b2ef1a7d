"""Rules for task definitions. A definition that violates a rule is refused, with the error text of ECS where it is known."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from corral.services.ecs.errors import ClientException
from corral.services.ecs.fargate import unfit_for_fargate
from corral.services.ecs.gpu_requirements import sharing_strategy
from corral.services.ecs.placement_rules import check_definition_constraints
from corral.services.ecs.task_spec import dependencies

Definition = dict[str, Any]
Container = dict[str, Any]

PORTS = re.compile(r"(\d{1,5})-(\d{1,5})")
DOCUMENT_MAX_BYTES = 65_536
TASK_CPU_UNITS = (128, 196_608)
PORT_MAX = 65_535


def check_definition(definition: Definition) -> None:
    """Raise ClientException if ECS would refuse the definition.

    The caller has already converted `cpu` and `memory` of the task to CPU units and MiB.
    """
    if len(orjson.dumps(definition)) > DOCUMENT_MAX_BYTES:
        raise ClientException(
            f"Actual length: '{len(orjson.dumps(definition))}'. Max allowed length is '{DOCUMENT_MAX_BYTES}' bytes."
        )
    _check_task(definition)
    _check_volumes(definition)
    for container in definition["containerDefinitions"]:
        for rule in CONTAINER_RULES:
            rule(container, definition)
    check_dependencies(definition["containerDefinitions"])
    if "FARGATE" in definition.get("requiresCompatibilities", ()) and (problem := unfit_for_fargate(definition)):
        raise ClientException(problem)
    if "EXTERNAL" in definition.get("requiresCompatibilities", ()) and _shares_a_gpu(definition):
        raise ClientException("A task definition that requires the compatibility EXTERNAL cannot use sharingStrategy for a GPU.")


def compatibilities(definition: Definition) -> list[str]:
    """Return the launch types that can run the definition."""
    unfit_for_external = definition.get("networkMode") == "awsvpc" or _shares_a_gpu(definition)
    return [*(() if unfit_for_external else ("EXTERNAL",)), "EC2", *(() if unfit_for_fargate(definition) else ("FARGATE",))]


def _shares_a_gpu(definition: Definition) -> bool:
    return any(sharing_strategy(container) is not None for container in definition["containerDefinitions"])


def _check_task(definition: Definition) -> None:
    containers = definition["containerDefinitions"]
    names = [container.get("name", "") for container in containers]
    if len(set(names)) != len(names):
        raise ClientException("Container names must be unique within a task definition.")
    if not any(container["essential"] for container in containers):
        raise ClientException("A task definition must have at least one essential container.")
    if "cpu" in definition:
        low, high = TASK_CPU_UNITS
        if not low <= int(definition["cpu"]) <= high:
            raise ClientException(
                f"Invalid 'cpu' setting for task: {definition['cpu']}. It must be between {low} and {high} CPU units."
            )
        if sum(container["cpu"] for container in containers) > int(definition["cpu"]):
            raise ClientException("The sum of all container 'cpu' values cannot be greater than the value of the task 'cpu'.")
    if "memory" in definition:
        reserved = sum(container.get("memoryReservation", container.get("memory", 0)) for container in containers)
        if reserved > int(definition["memory"]):
            raise ClientException("The sum of all container 'memory' values cannot be greater than the value of the task 'memory'.")
    check_definition_constraints(definition.get("placementConstraints", ()))
    proxied = definition.get("proxyConfiguration", {}).get("containerName")
    if proxied is not None and proxied not in names:
        raise ClientException(f"proxyConfiguration names the container '{proxied}', which the task definition does not have.")


def _check_volumes(definition: Definition) -> None:
    names = [volume.get("name") for volume in definition.get("volumes", ())]
    for name in names:
        if name is None:
            raise ClientException("Volume name should not be null or empty.")
        if names.count(name) > 1:
            raise ClientException(f"Volume names must be unique within a task definition: '{name}'.")
    for volume in definition.get("volumes", ()):
        kinds = [key for key in volume if key.endswith("VolumeConfiguration")]
        if len(kinds) > 1:
            raise ClientException(f"Only one volume configuration is allowed for the volume '{volume['name']}'.")


def _check_name_and_image(container: Container, _: Definition) -> None:
    if "name" not in container:
        raise ClientException("Container.name should not be null or empty.")
    if not container.get("image"):
        raise ClientException("Container.image should not be null or empty.")


def _check_sizes(container: Container, definition: Definition) -> None:
    hard, soft, name = container.get("memory"), container.get("memoryReservation"), container["name"]
    if hard is None and soft is None and "memory" not in definition:
        raise ClientException(
            f"Invalid setting for container '{name}'. At least one of 'memory' or 'memoryReservation' must be specified."
        )
    if hard is not None and soft is not None and hard < soft:
        raise ClientException(f"Invalid setting for container '{name}'. 'memory' must not be less than 'memoryReservation'.")


def _check_devices(container: Container, definition: Definition) -> None:
    known = {accelerator["deviceName"] for accelerator in definition.get("inferenceAccelerators", ())}
    for need in container.get("resourceRequirements", ()):
        if need["type"] == "InferenceAccelerator" and need.get("value") not in known:
            raise ClientException(f"Unknown inference accelerator '{need.get('value')}' for container '{container['name']}'.")


def _check_logging(container: Container, _: Definition) -> None:
    logging = container.get("logConfiguration")
    if logging and logging["logDriver"] == "awslogs" and not logging.get("options", {}).get("awslogs-group"):
        raise ClientException("Log driver awslogs requires options: awslogs-group, awslogs-region")


def _check_environment(container: Container, _: Definition) -> None:
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


def _check_network(container: Container, definition: Definition) -> None:
    mode, name = definition.get("networkMode"), container["name"]
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
            raise ClientException(f"Invalid 'hostPort' setting for container '{name}': {host_port}. Use 0 to {PORT_MAX}.")
        if mode in ("awsvpc", "host") and host_port not in (0, port):
            raise ClientException(f"When networkMode={mode}, the host ports and container ports in port mappings must match.")
        if (port, mapping.get("protocol")) in seen:
            raise ClientException(f"Container port {port} is used in more than one port mapping for container {name}")
        seen.add((port, mapping.get("protocol")))


def _check_port_range(name: str, given: str | None) -> None:
    found = PORTS.fullmatch(given or "")
    if found is None or not 1 <= int(found[1]) <= int(found[2]) <= PORT_MAX:
        raise ClientException(f"Invalid 'containerPort' setting for container '{name}'.")


def _check_mounts(container: Container, definition: Definition) -> None:
    volumes = {volume["name"] for volume in definition.get("volumes", ())}
    containers = {each.get("name") for each in definition["containerDefinitions"]}
    for mount in container["mountPoints"]:
        if mount.get("sourceVolume") not in volumes:
            raise ClientException(f"Unknown volume '{mount.get('sourceVolume', 'null')}'.")
    for source in container["volumesFrom"]:
        if source.get("sourceContainer") not in containers - {container["name"]}:
            raise ClientException(f"Unknown source container '{source.get('sourceContainer', 'null')}' in volumesFrom.")
    for link in container.get("links", ()):
        if link.partition(":")[0] not in containers:
            raise ClientException(f"Unknown link '{link}' of container '{container['name']}': the task has no such container.")


def _check_health(container: Container, _: Definition) -> None:
    health = container.get("healthCheck")
    if health is None:
        return
    command = health["command"]
    if not command or command[0] not in ("NONE", "CMD", "CMD-SHELL") or (command[0] != "NONE" and len(command) < 2):
        raise ClientException(
            f"Invalid 'healthCheck' setting for container '{container['name']}'. The command must be NONE, or start with CMD or "
            "CMD-SHELL followed by the command to run."
        )


def _check_limits(container: Container, _: Definition) -> None:
    names = [limit["name"] for limit in container.get("ulimits", ())]
    for limit in container.get("ulimits", ()):
        if names.count(limit["name"]) > 1:
            raise ClientException(f"Container '{container['name']}' sets the ulimit {limit['name']} more than once.")
        if limit["hardLimit"] != -1 and not -1 < limit["softLimit"] <= limit["hardLimit"]:
            raise ClientException(
                f"Container '{container['name']}': the softLimit of {limit['name']} must not be above its hardLimit."
            )


CONTAINER_RULES: tuple[Callable[[Container, Definition], None], ...] = (
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
                    f"Container '{container['name']}' depends on '{other['name']}' with the condition HEALTHY, but "
                    f"'{other['name']}' has no health check"
                )
    if cycle := _in_a_cycle(after):
        raise ClientException(f"Container dependencies must not form a cycle: {', '.join(sorted(cycle))}")


def _in_a_cycle(after: dict[str, list[str]]) -> set[str]:
    """Return the containers that can never start, because each of them waits for another of them."""
    left = dict(after)
    while free := [name for name, needed in left.items() if not any(other in left for other in needed)]:
        for name in free:
            del left[name]
    return set(left)
