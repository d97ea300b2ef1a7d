"""ECS task definitions: register, describe, list, deregister, delete."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from corral.core import Tx
from corral.model.task import ALL_GPUS, FREE_GPUS
from corral.services.caller import Caller
from corral.services.ecs import definition_rules
from corral.services.ecs.naming import PAGES, ClientException, InvalidParameterException, arn, find_definition, split_definition
from corral.services.ecs.tags import check_tags
from corral.services.pagination import names
from corral.store import Store

DECIMAL = re.compile(r"\d*\.\d+")
QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
DELETION_SHOWN_S = 1.0  # at least so long a revision is seen to be in deletion
CONTAINER_DEFAULTS: dict[str, Any] = {
    "cpu": 0, "essential": True, "portMappings": [], "environment": [], "mountPoints": [], "volumesFrom": [], "systemControls": [],
}  # fmt: skip
HEALTH_CHECK_DEFAULTS = {"interval": 30, "timeout": 5, "retries": 3}

NO_SUCH_REVISION = "The specified task definition does not exist. Specify a valid account, family, revision and try again."
STILL_ACTIVE = "The specified task definition is still in ACTIVE status. Please deregister the target and try again."


def register_task_definition(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    family = params["family"]
    tags = check_tags(params.get("tags", []))
    document = {key: value for key, value in params.items() if key != "tags"}
    for key, parse in (("cpu", cpu_units), ("memory", memory_mib)):
        if key in document:
            document[key] = str(parse(document[key]))
    mode = params.get("networkMode")
    document["containerDefinitions"] = [_with_defaults(given, mode) for given in params["containerDefinitions"]]
    definition_rules.check(document)
    gpus_asked(document["containerDefinitions"])
    document |= {
        "volumes": params.get("volumes", []),
        "placementConstraints": params.get("placementConstraints", []),
        "compatibilities": definition_rules.compatibilities(document),
        "requiresAttributes": [],
        "registeredAt": tx.now_s,
        "registeredBy": caller.principal,
        "tags": tags,
    }
    revision = tx.store.definitions.add(caller.region, family, document)
    return {"taskDefinition": shown(caller, revision, "ACTIVE", document), "tags": document["tags"]}


def describe_task_definition(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    family, revision = split_definition(params["taskDefinition"])
    found = tx.store.definitions.get(caller.region, family, revision)
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
        status, document = "INACTIVE", {**document, "deregisteredAt": tx.now_s}
        tx.store.definitions.change(caller.region, family, revision, status, document)
    return {"taskDefinition": shown(caller, revision, status, document)}


def delete_task_definitions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Revisions go when no task refers to them any more, not even one that has stopped and is still shown."""
    given = params["taskDefinitions"]
    deleted, failures = [], []
    for name in given:
        family, revision = split_definition(name)
        if revision is None:
            raise InvalidParameterException("Task definition must include a revision: family:revision.")
        found = tx.store.definitions.get(caller.region, family, revision)
        if found is None or found[1] == "ACTIVE":
            reason = STILL_ACTIVE if found else NO_SUCH_REVISION
            failures.append({"arn": definition_arn(caller, family, revision), "reason": reason})
            continue
        _, status, document = found
        if status == "INACTIVE":
            document = {**document, "deleteRequestedAt": tx.now_s}
            tx.store.definitions.change(caller.region, family, revision, "DELETE_IN_PROGRESS", document)
            tx.due("deletion:", tx.now_s + DELETION_SHOWN_S)
        deleted.append(shown(caller, revision, "DELETE_IN_PROGRESS", document))
    return {"taskDefinitions": deleted, "failures": failures}


def list_task_definitions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """`familyPrefix` is the whole name of a family here, as on ECS."""
    status = params.get("status", "ACTIVE")

    def listed(after: str, limit: int) -> list[str]:
        family, _, revision = after.partition(":")
        if after and not revision.isdigit():
            raise PAGES.wrong_token()
        found = tx.store.definitions.listed(
            caller.region,
            status,
            family=params.get("familyPrefix"),
            after=(family, int(revision)) if after else None,
            limit=limit,
            descending=params.get("sort") == "DESC",
        )
        return [f"{family}:{revision}" for family, revision in found]

    page, token = PAGES.page(params, names(listed))
    return {"taskDefinitionArns": [arn(caller.account, caller.region, f"task-definition/{name}") for name in page], **token}


def list_task_definition_families(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    prefix, status = params.get("familyPrefix", ""), params.get("status", "ALL")
    families = tx.store.definitions.families
    page, token = PAGES.page(params, names(lambda after, limit: families(caller.region, prefix, status, after, limit)))
    return {"families": page, **token}


def definition_arn(caller: Caller, family: str, revision: int) -> str:
    return arn(caller.account, caller.region, f"task-definition/{family}:{revision}")


def shown(caller: Caller, revision: int, status: str, document: dict[str, Any]) -> dict[str, Any]:
    """The document in ECS's shape; what AWS would show, as it was said."""
    family = document["family"]
    return {
        **{key: value for key, value in document.items() if key != "tags"},
        "taskDefinitionArn": definition_arn(caller, family, revision),
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
    """How many whole GPUs a container asks for, or ALL_GPUS."""
    asked = [need for need in container.get("resourceRequirements", ()) if need["type"] == "GPU"]
    if len(asked) > 1:
        raise ClientException(f"Container {container['name']}: at most one GPU resource requirement is allowed.")
    if not asked:
        return 0
    if "sharingStrategy" in asked[0]:
        raise ClientException("Corral does not serve GPU sharing (sharingStrategy) yet; GPUs are pinned whole.")
    value = asked[0].get("value", "")
    if value == "ALL":
        return ALL_GPUS
    if DECIMAL.fullmatch(value):
        raise ClientException(
            f"Invalid GPU value '{value}' for container {container['name']}: Corral does not serve parts of a GPU yet; "
            "GPUs are pinned whole."
        )
    if not value.isdigit() or not 1 <= int(value) <= 64:
        raise ClientException(
            f"Invalid GPU value '{value}' for container {container['name']}: give a whole number from 1 to 64, or ALL."
        )
    return int(value)


def gpus_asked(containers: Iterable[dict[str, Any]]) -> int:
    """How many GPUs the containers of a task need together. Whoever has all of them leaves none for another."""
    counts = [count for container in containers if (count := gpu_count(container))]
    if ALL_GPUS in counts and len(counts) > 1:
        raise ClientException(
            "Only one container of a task can ask for ALL GPUs of its instance, and then no other container can ask for any."
        )
    return ALL_GPUS if ALL_GPUS in counts else sum(counts)


def gpus_of_run(container: dict[str, Any]) -> int:
    """What a container is given: what it asks for, or in the old way (privileged, NVIDIA_VISIBLE_DEVICES) what nobody holds."""
    return gpu_count(container) or (FREE_GPUS if visible_gpus(container) else 0)


def visible_gpus(container: dict[str, Any]) -> str | None:
    """The GPUs that a container names in the old way: `all`, or indexes and ids with commas between. None: it names none."""
    for pair in container["environment"]:
        if pair["name"] == "NVIDIA_VISIBLE_DEVICES":
            value = str(pair.get("value", "")).strip()
            return None if value in ("", "none", "void") else value
    return "all" if container.get("privileged") else None


def names_gpus(container: dict[str, Any]) -> bool:
    """Does it say itself which GPUs it wants to see, be it none?"""
    return any(pair["name"] == "NVIDIA_VISIBLE_DEVICES" for pair in container["environment"])


def _quantity(what: str, text: str) -> tuple[float, str]:
    found = QUANTITY.fullmatch(text if not text.strip().startswith(".") else f"0{text.strip()}")
    if found is None:
        raise ClientException(f"Invalid '{what}' setting for task: {text}.")
    return float(found[1]), found[2].lower()


def _with_defaults(given: dict[str, Any], network_mode: str | None) -> dict[str, Any]:
    """A container with the defaults that ECS shows."""
    container = {**CONTAINER_DEFAULTS, **given}
    container["portMappings"] = [_with_ports(given, network_mode) for given in container["portMappings"]]
    if "healthCheck" in container:
        container["healthCheck"] = {**HEALTH_CHECK_DEFAULTS, **container["healthCheck"]}
    return container


def _with_ports(mapping: dict[str, Any], network_mode: str | None) -> dict[str, Any]:
    if "containerPort" not in mapping:  # a range, or a mistake
        return mapping
    same = network_mode in ("awsvpc", "host")
    return {"hostPort": mapping["containerPort"] if same else 0, "protocol": "tcp", **mapping}
