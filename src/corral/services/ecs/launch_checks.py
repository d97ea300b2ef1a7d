"""Checks of a request to launch tasks: its overrides, its network configuration, and what its containers need from this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.transactions import Tx
from corral.fleet.host_options import all_run_containers, runs_containers
from corral.fleet.unix_accounts import why_nowhere
from corral.model.task import Task
from corral.services.ecs.errors import ClientException, InvalidParameterException
from corral.services.ecs.host_access import ACCOUNT, check_isolated, mounts_host_path
from corral.services.ecs.task_spec import ContainerSpec, TaskSpec
from corral.store import Store


def check_container_overrides(definition: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    given = overrides.get("containerOverrides", ())
    names = {container["name"] for container in definition["containerDefinitions"]} if given else ()
    for override in given:
        if override.get("name") not in names:
            raise InvalidParameterException(
                f"Override for container named {override.get('name')} is not a container in the TaskDefinition."
            )
        if not all(pair.get("name") for pair in override.get("environment", ())):
            raise InvalidParameterException(
                f"Environment variable names should not be null or empty in the override for container {override['name']}."
            )


def check_spec(tx: Tx[Store], spec: TaskSpec) -> None:
    if tx.settings.isolate:
        check_isolated(spec.document)
    if spec.fault is not None:
        raise ClientException(spec.fault)
    for container in spec.only_in_docker:
        _check_runnable(tx, container)


def required_account(tx: Tx[Store], task: Task, spec: TaskSpec) -> str:
    """Return the Unix account that the host of a task must have. Return an empty text if the task uses none.

    A task with an account may become a plain process on a host without a Docker engine. Raise ClientException if no host can run
    processes as the account.
    """
    account: str = task.details.get(ACCOUNT, "")
    if not account:
        return ""
    are_processes = not all_run_containers(tx) or any(each.is_host_image for each in spec.containers.values())
    if not are_processes and not mounts_host_path(spec.document):
        return ""
    if why := why_nowhere(tx, account):
        raise ClientException(why)
    return account


def _check_runnable(tx: Tx[Store], container: ContainerSpec) -> None:
    if not container.is_host_image and runs_containers(tx):
        return
    if not container.command:
        why = "it has no command, so it needs the command of an image, which only Docker can run"
    else:
        why = f"{container.only_in_container} works in Docker containers only"
    name = container.definition["name"]
    if container.is_host_image:
        raise ClientException(
            f"Container {name}: {why}. The image {container.image} runs as a plain process of this machine. Use another image, "
            "and start Corral with `corral up --runtime docker`."
        )
    raise ClientException(
        f"Container {name}: {why}, but this Corral runs tasks as plain processes. Start it with `corral up --runtime docker`."
    )


def check_network(definition: Mapping[str, Any], configuration: Mapping[str, Any] | None) -> None:
    """With the network mode awsvpc, a request must have a network configuration. With all other modes, it must have none.

    The configuration is stored, but has no effect.
    """
    if definition.get("networkMode") == "awsvpc":
        if not configuration or not configuration.get("awsvpcConfiguration"):
            raise InvalidParameterException("Network Configuration must be provided when networkMode 'awsvpc' is specified.")
    elif configuration:
        raise InvalidParameterException("Network Configuration is not valid for the given networkMode of this task definition.")
