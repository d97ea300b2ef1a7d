"""Operations that register, describe, list, deregister and delete ECS task definitions."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.numbers import whole_number
from corral.operations.pagination import names
from corral.services.ecs.definition_rules import check_definition, compatibilities
from corral.services.ecs.errors import ClientException, InvalidParameterException
from corral.services.ecs.gpu_requirements import gpus_required
from corral.services.ecs.host_access import check_isolated
from corral.services.ecs.lookup import PAGES, REVISION_REQUIRED, arn, find_definition, split_definition
from corral.services.ecs.tags import check_tags
from corral.services.ecs.task_spec import HEALTH_CHECK_DEFAULTS, cpu_units, memory_mib
from corral.store import Store

DELETION_SHOWN_S = 1.0  # a deleted revision has the status DELETE_IN_PROGRESS for at least this long
CONTAINER_DEFAULTS: dict[str, Any] = {
    "cpu": 0, "essential": True, "portMappings": [], "environment": [], "mountPoints": [], "volumesFrom": [], "systemControls": [],
}  # fmt: skip

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
    check_definition(document)
    if tx.settings.isolate:
        check_isolated(document)
    gpus_required(document["containerDefinitions"])
    document |= {
        "volumes": params.get("volumes", []),
        "placementConstraints": params.get("placementConstraints", []),
        "compatibilities": compatibilities(document),
        "requiresAttributes": [],
        "registeredAt": tx.now_s,
        "registeredBy": caller.principal.arn,
        "tags": tags,
    }
    revision = tx.store.definitions.add(caller.region, family, document, caller.owner)
    return {"taskDefinition": _response(caller, revision, "ACTIVE", document), "tags": document["tags"]}


def describe_task_definition(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    family, revision = split_definition(params["taskDefinition"])
    found = tx.store.definitions.get(caller.region, family, revision, caller.owner)
    if found is None:
        raise ClientException("Unable to describe task definition.")
    tags = found[2]["tags"] if "TAGS" in params.get("include", ()) else []
    return {"taskDefinition": _response(caller, *found), "tags": tags}


def deregister_task_definition(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    family, revision = split_definition(params["taskDefinition"])
    if revision is None:
        raise ClientException(REVISION_REQUIRED)
    _, status, document = find_definition(tx, caller, params["taskDefinition"])
    if status == "ACTIVE":
        status, document = "INACTIVE", {**document, "deregisteredAt": tx.now_s}
        tx.store.definitions.change(caller.region, family, revision, status, document)
    return {"taskDefinition": _response(caller, revision, status, document)}


def delete_task_definitions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Begin to delete revisions. `reconcile/tasks.py` deletes a revision when no running or stopped task refers to it."""
    given = params["taskDefinitions"]
    deleted, failures = [], []
    for name in given:
        family, revision = split_definition(name)
        if revision is None:
            raise InvalidParameterException(REVISION_REQUIRED)
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
        deleted.append(_response(caller, revision, "DELETE_IN_PROGRESS", document))
    return {"taskDefinitions": deleted, "failures": failures}


def list_task_definitions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """List revisions. As on ECS, `familyPrefix` is the complete name of a family."""
    status = params.get("status", "ACTIVE")

    def listed(after: str, limit: int) -> list[str]:
        family, _, revision = after.partition(":")
        number = whole_number(revision)
        if after and number is None:
            raise PAGES.wrong_token()
        found = tx.store.definitions.listed(
            caller.region,
            status,
            family=params.get("familyPrefix"),
            after=(family, number) if number is not None else None,
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


def _response(caller: Caller, revision: int, status: str, document: dict[str, Any]) -> dict[str, Any]:
    family = document["family"]
    return {
        **{key: value for key, value in document.items() if key != "tags"},
        "taskDefinitionArn": definition_arn(caller, family, revision),
        "revision": revision,
        "status": status,
    }


def _with_defaults(given: dict[str, Any], network_mode: str | None) -> dict[str, Any]:
    container = {**CONTAINER_DEFAULTS, **given}
    container["portMappings"] = [_with_ports(given, network_mode) for given in container["portMappings"]]
    if "healthCheck" in container:
        container["healthCheck"] = {**HEALTH_CHECK_DEFAULTS, **container["healthCheck"]}
    return container


def _with_ports(mapping: dict[str, Any], network_mode: str | None) -> dict[str, Any]:
    if "containerPort" not in mapping:  # a port range, or an error that `check_definition` reports
        return mapping
    same = network_mode in ("awsvpc", "host")
    return {"hostPort": mapping["containerPort"] if same else 0, "protocol": "tcp", **mapping}
