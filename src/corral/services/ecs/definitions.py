"""ECS task definitions: register, describe, list, deregister."""

from __future__ import annotations

import re
from typing import Any

from corral.core import Tx
from corral.services.caller import Caller
from corral.services.ecs import paging
from corral.services.ecs.naming import ClientException, InvalidParameterException, arn, find_definition, split_definition
from corral.store import Store

NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")
QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
CONTAINER_DEFAULTS: dict[str, Any] = {
    "cpu": 0, "essential": True, "portMappings": [], "environment": [], "mountPoints": [], "volumesFrom": [], "systemControls": [],
}  # fmt: skip


def register_task_definition(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    family = params["family"]
    if not NAME.fullmatch(family):
        raise ClientException("Family contains invalid characters: use up to 255 letters, digits, hyphens and underscores.")
    document = {key: value for key, value in params.items() if key != "tags"}
    for key, parse in (("cpu", cpu_units), ("memory", memory_mib)):
        if key in document:
            document[key] = str(parse(document[key]))
    document["containerDefinitions"] = [{**CONTAINER_DEFAULTS, **given} for given in params["containerDefinitions"]]
    _check(document)
    document |= {
        "volumes": params.get("volumes", []),
        "placementConstraints": params.get("placementConstraints", []),
        "compatibilities": ["EXTERNAL", "EC2"],
        "requiresAttributes": [],
        "registeredAt": tx.now_s,
        "registeredBy": caller.principal,
        "tags": params.get("tags", []),
    }
    revision = tx.store.add_definition(caller.region, family, document)
    return {"taskDefinition": shown(caller, revision, "ACTIVE", document), "tags": document["tags"]}


def describe_task_definition(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    family, revision = split_definition(params["taskDefinition"])
    found = tx.store.definition(caller.region, family, revision)
    if found is None:
        raise ClientException("Unable to describe task definition.")
    tags = found[2]["tags"] if "TAGS" in params.get("include", ()) else []
    return {"taskDefinition": shown(caller, *found), "tags": tags}


def deregister_task_definition(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    family, revision = split_definition(params["taskDefinition"])
    if revision is None:
        raise ClientException("Task definition must include a revision: family:revision.")
    _, status, document = find_definition(tx, caller, params["taskDefinition"])
    if status == "ACTIVE":
        document = {**document, "deregisteredAt": tx.now_s}
        tx.store.retire_definition(caller.region, family, revision, document)
    return {"taskDefinition": shown(caller, revision, "INACTIVE", document)}


def list_task_definitions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found = tx.store.definitions(caller.region, params.get("familyPrefix"), params.get("status", "ACTIVE"))
    # Revisions count as numbers: pad them for the order, so that a page can say where it ended.
    ordered = sorted(f"{family}:{revision:010d}" for family, revision in found)
    if params.get("sort") == "DESC":
        ordered.reverse()

    def names(after: str, limit: int) -> list[str]:
        start = ordered.index(after) + 1 if after in ordered else 0
        return ordered[start : start + limit]

    page, token = paging.page(params, names)
    arns = [arn(caller.account, caller.region, f"task-definition/{name[:-10]}{int(name[-10:])}") for name in page]
    return {"taskDefinitionArns": arns, **token}


def list_task_definition_families(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    prefix, status = params.get("familyPrefix", ""), params.get("status", "ALL")
    active = {family for family, _ in tx.store.definitions(caller.region, None, "ACTIVE")}
    inactive = {family for family, _ in tx.store.definitions(caller.region, None, "INACTIVE")} - active
    chosen = {"ACTIVE": active, "INACTIVE": inactive}.get(status, active | inactive)
    ordered = sorted(family for family in chosen if family.startswith(prefix))
    page, token = paging.page(params, lambda after, limit: [family for family in ordered if family > after][:limit])
    return {"families": page, **token}


def shown(caller: Caller, revision: int, status: str, document: dict[str, Any]) -> dict[str, Any]:
    """The document in ECS's shape; what AWS would show, as it was said."""
    family = document["family"]
    return {
        **{key: value for key, value in document.items() if key != "tags"},
        "taskDefinitionArn": arn(caller.account, caller.region, f"task-definition/{family}:{revision}"),
        "revision": revision,
        "status": status,
    }


def cpu_units(text: str) -> int:
    """`1024`, `1 vCPU`, `.5 vcpu` → CPU units."""
    number, unit = _quantity("cpu", text)
    if unit not in ("", "vcpu"):
        raise ClientException(f"Invalid 'cpu' setting for task: {text}. Give CPU units (1024) or vCPUs (1 vCPU).")
    return round(number * 1024) if unit else round(number)


def memory_mib(text: str) -> int:
    """`2048`, `2 GB` → MiB."""
    number, unit = _quantity("memory", text)
    if unit not in ("", "gb"):
        raise ClientException(f"Invalid 'memory' setting for task: {text}. Give MiB (2048) or GB (2 GB).")
    return round(number * 1024) if unit else round(number)


def gpu_count(container: dict[str, Any]) -> int:
    """How many whole GPUs a container asks for."""
    asked = [need for need in container.get("resourceRequirements", ()) if need["type"] == "GPU"]
    if len(asked) > 1:
        raise ClientException(f"Container {container['name']}: at most one GPU resource requirement is allowed.")
    if not asked:
        return 0
    if "sharingStrategy" in asked[0]:
        raise ClientException("Corral does not serve GPU sharing (sharingStrategy) yet; GPUs are pinned whole.")
    value = asked[0]["value"]
    if not value.isdigit() or not 1 <= int(value) <= 64:
        raise ClientException(f"Invalid GPU value '{value}' for container {container['name']}: give a whole number from 1 to 64.")
    return int(value)


def _quantity(what: str, text: str) -> tuple[float, str]:
    found = QUANTITY.fullmatch(text if not text.strip().startswith(".") else f"0{text.strip()}")
    if found is None:
        raise ClientException(f"Invalid '{what}' setting for task: {text}.")
    return float(found[1]), found[2].lower()


def _check(document: dict[str, Any]) -> None:
    containers = document["containerDefinitions"]
    if not containers:
        raise ClientException("Container list cannot be empty.")
    names = [container.get("name", "") for container in containers]
    if len(set(names)) != len(names):
        raise ClientException("Container names must be unique within a task definition.")
    if not any(container["essential"] for container in containers):
        raise ClientException("A task definition must have at least one essential container.")
    for container in containers:
        _check_container(container, task_memory="memory" in document)


def _check_container(container: dict[str, Any], *, task_memory: bool) -> None:
    name = container.get("name", "")
    if not NAME.fullmatch(name):
        raise ClientException("Container.name contains invalid characters: use up to 255 letters, digits, hyphens and underscores.")
    if not container.get("image"):
        raise ClientException("Container.image should not be null or empty.")
    hard, soft = container.get("memory"), container.get("memoryReservation")
    if hard is None and soft is None and not task_memory:
        raise ClientException(
            f"Invalid setting for container '{name}'. At least one of 'memory' or 'memoryReservation' must be specified."
        )
    if any(value is not None and value < 6 for value in (hard, soft)):
        raise ClientException(f"Invalid setting for container '{name}'. 'memory' and 'memoryReservation' must be at least 6 MiB.")
    if hard is not None and soft is not None and hard < soft:
        raise ClientException(f"Invalid setting for container '{name}'. 'memory' must not be less than 'memoryReservation'.")
    gpu_count(container)
    logging = container.get("logConfiguration")
    if logging and logging["logDriver"] == "awslogs" and not logging.get("options", {}).get("awslogs-group"):
        raise ClientException("Log driver awslogs requires options: awslogs-group, awslogs-region")
    if not 0 <= container.get("stopTimeout", 30) <= 86_400:
        raise InvalidParameterException(f"Invalid stopTimeout for container '{name}'.")
