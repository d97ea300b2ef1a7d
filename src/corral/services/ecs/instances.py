"""ECS container instances: the hosts, as members of the cluster `default`.

A host belongs to no region. Its status and its attributes are its own, the same in every region's `default`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

import corral
from corral.core import Tx
from corral.decide.query import parse
from corral.decide.rules import ZONE, instance_id, values_of, zone_of
from corral.errors import api_error
from corral.model.placement import Slot
from corral.services.caller import Caller
from corral.services.ecs.constraints import check_expression
from corral.services.ecs.naming import (
    DEFAULT_CLUSTER,
    HOST_PROVIDER,
    PAGES,
    ClientException,
    InvalidParameterException,
    arn,
    find_cluster,
    short,
)
from corral.services.ecs.tags import instance_tags
from corral.services.pages import among
from corral.store import HOST_POOL, Store

TargetNotFoundException = api_error("TargetNotFoundException")
AttributeLimitExceededException = api_error("AttributeLimitExceededException")

ATTRIBUTES_MAX = 10  # of a host; what holds GPUs is not counted
VALUE = re.compile(r"(?! )[a-zA-Z0-9_.@/\\: -]{1,128}(?<! )")
HOLD = "corral.hold."  # followed by a GPU's id: that GPU is kept away, and the value says for what
HELD_FOR = re.compile(r"[^\x00-\x1f]{0,128}")
BUILT_IN = ("ecs.", "com.amazonaws.", "corral.")


def list_container_instances(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    status, expression = params.get("status"), params.get("filter")
    scope = f"{caller.region}/{cluster}"
    query = parse(check_expression(expression)) if expression else None
    found = {
        slot.id: _arn(caller, cluster, slot.id)
        for slot in _slots(tx, cluster)
        if (not status or status == _status(slot)) and (query is None or query.matches(values_of(slot, scope)))
    }
    page, token = PAGES.page(params, among(found))
    return {"containerInstanceArns": page, **token}


def describe_container_instances(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    given = params["containerInstances"]
    include = params.get("include", ())
    return _each(tx, caller, cluster, given, lambda host: _described(tx, caller, host, _arn(caller, cluster, host["id"]), include))


def update_container_instances_state(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """A draining host gets nothing new; what runs there runs on. Who waits may find room on one that is active again."""
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    given, status = params["containerInstances"], params["status"]

    def update(host: dict[str, Any]) -> dict[str, Any]:
        tx.store.set_host_status(host["id"], status)
        return _described(tx, caller, host, _arn(caller, cluster, host["id"]), ())

    tx.mark(f"pool:{HOST_POOL}")
    return _each(tx, caller, cluster, given, update)


def put_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    targets = _targets(tx, params, caller)
    for host_id, attribute in targets:
        name, value = attribute["name"], attribute.get("value", "")
        _check_attribute(name, value)
        tx.store.put_attribute(host_id, name, value)
    for host_id in {host_id for host_id, _ in targets}:
        custom = [name for name in tx.store.attributes(host_id) if not name.startswith(HOLD)]
        if len(custom) > ATTRIBUTES_MAX:
            raise AttributeLimitExceededException(f"A container instance can have up to {ATTRIBUTES_MAX} custom attributes.")
    tx.mark(f"pool:{HOST_POOL}")  # whoever waits for such a host may have it now
    return {"attributes": [attribute for _, attribute in targets]}


def delete_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    targets = _targets(tx, params, caller)
    for host_id, attribute in targets:
        _check_attribute(attribute["name"], "")
        tx.store.drop_attribute(host_id, attribute["name"])
    tx.mark(f"pool:{HOST_POOL}")
    return {"attributes": [attribute for _, attribute in targets]}


def list_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    name, value = params.get("attributeName"), params.get("attributeValue")
    if value is not None and name is None:
        raise InvalidParameterException("An attribute value can only be given together with an attribute name.")
    found = {
        f"{slot.id} {attribute}": {
            "name": attribute,
            **({"value": its} if its else {}),
            "targetId": _arn(caller, cluster, slot.id),
        }
        for slot in _slots(tx, cluster)
        for attribute, its in _attributes(slot, caller.region).items()
        if (name is None or attribute == name) and (value is None or its == value)
    }
    page, token = PAGES.page(params, among(found))
    return {"attributes": page, **token}


def refuse(operation: str, instead: str) -> Callable[[Tx[Store], dict[str, Any], Caller], dict[str, Any]]:
    """A handler for what only agents of ECS's own do."""

    def refused(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> NoReturn:
        raise ClientException(f"Corral does not serve {operation}: {instead}")

    return refused


def _slots(tx: Tx[Store], cluster: str) -> list[Slot]:
    return list(tx.store.fleet.pool(HOST_POOL).slots()) if cluster == DEFAULT_CLUSTER else []


def _arn(caller: Caller, cluster: str, host_id: str) -> str:
    return arn(caller.account, caller.region, f"container-instance/{cluster}/{host_id}")


def _each(
    tx: Tx[Store], caller: Caller, cluster: str, given: list[str], show: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Those that are there, shown, and a failure for each that is not."""
    instances, failures = [], []
    for name in given:
        host = tx.store.host(short(name)) if cluster == DEFAULT_CLUSTER else None
        if host is None:
            failures.append({"arn": _arn(caller, cluster, short(name)), "reason": "MISSING"})
        else:
            instances.append(show(host))
    return {"containerInstances": instances, "failures": failures}


def _targets(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> list[tuple[str, dict[str, Any]]]:
    """(host, attribute) of a request, in its order."""
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    found = []
    for attribute in params["attributes"]:
        target = attribute.get("targetId")
        if not target:
            raise InvalidParameterException("Every attribute needs a targetId: the container instance that it is of.")
        if not target.startswith("arn:") and "targetType" not in attribute:
            raise InvalidParameterException("The target type must be container-instance.")
        if cluster != DEFAULT_CLUSTER or tx.store.host(short(target)) is None:
            raise TargetNotFoundException(f"The specified target was not found: {target}.")
        found.append((short(target), attribute))
    return found


def _check_attribute(name: str, value: str) -> None:
    if name.startswith(HOLD):
        if not HELD_FOR.fullmatch(value):
            raise InvalidParameterException(f"The value of {name} can have up to 128 characters.")
    elif name.startswith(BUILT_IN):
        raise InvalidParameterException(f"The attribute {name} is built in; choose a name that begins otherwise.")
    elif value and not VALUE.fullmatch(value):
        raise InvalidParameterException(
            f"Invalid value of the attribute {name}: use 1 to 128 letters, digits, spaces (not at the ends) and - _ . @ / \\ :"
        )


def _status(slot: Slot) -> str:
    return "DRAINING" if slot.draining else "ACTIVE"


def _attributes(slot: Slot, region: str) -> dict[str, str]:
    return {ZONE: zone_of(region), **slot.attributes}


def _described(tx: Tx[Store], caller: Caller, host: dict[str, Any], instance_arn: str, include: Any) -> dict[str, Any]:
    slot = tx.store.fleet.pool(HOST_POOL).slot(host["id"])
    gpus = tx.store.gpus(host["id"])
    held = tx.store.holders(host["id"])
    shown = {
        "containerInstanceArn": instance_arn,
        "ec2InstanceId": instance_id(host["id"]),
        "capacityProviderName": HOST_PROVIDER,
        "version": 1,
        "versionInfo": {"agentVersion": corral.__version__},
        "status": _status(slot),
        "agentConnected": slot.connected,
        "registeredResources": _resources(slot.total.cpu_units, slot.total.memory_mib, [gpu.gpu_id for gpu in gpus]),
        "remainingResources": _resources(slot.cpu_units, slot.memory_mib, slot.gpus),
        "runningTasksCount": slot.running,
        "pendingTasksCount": slot.pending,
        "attributes": [
            {"name": name, "value": value} if value else {"name": name} for name, value in _attributes(slot, caller.region).items()
        ],
        "registeredAt": host["registered_at"],
        "attachments": [],
        "tags": instance_tags(tx, caller.region, host["id"]) if "TAGS" in include else [],
        "gpuDevices": [
            {
                "gpuId": gpu.gpu_id,
                "sharingMode": "DEDICATED" if gpu.gpu_id in held else "IDLE",
                "totalMemoryInMiB": gpu.memory_mib,
                "remainingMemoryInMiB": 0 if gpu.gpu_id in held else gpu.memory_mib,
                "containerCount": 1 if gpu.gpu_id in held else 0,
            }
            for gpu in gpus
        ],
    }
    if "CONTAINER_INSTANCE_HEALTH" in include:
        shown["healthStatus"] = _health(slot, host["seen_at"])
    return shown


def _health(slot: Slot, seen_at_s: float) -> dict[str, Any]:
    """What is known of a host's health: whether it is heard."""
    status = "OK" if slot.connected else "IMPAIRED"
    check = {"type": "AGENT_CONNECTIVITY", "status": status, "lastUpdated": seen_at_s}
    return {"overallStatus": status, "details": [check]}


def _resources(cpu: int, memory: int, gpus: list[str]) -> list[dict[str, Any]]:
    numbers = [
        {"name": name, "type": "INTEGER", "doubleValue": 0.0, "longValue": 0, "integerValue": value}
        for name, value in (("CPU", cpu), ("MEMORY", memory))
    ]
    sets = [
        {"name": name, "type": "STRINGSET", "doubleValue": 0.0, "longValue": 0, "integerValue": 0, "stringSetValue": value}
        for name, value in (("PORTS", []), ("PORTS_UDP", []), ("GPU", gpus))
    ]
    return [*numbers, *sets]
