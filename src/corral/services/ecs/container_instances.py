"""Operations on ECS container instances and their attributes.

A container instance is an EC2 instance that has joined a cluster, or the own instance of a host, which has all GPUs of the host
that no EC2 instance has. The own instance of a host belongs to no region: its status and its attributes are the same in every
region.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

import corral
from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.placement.instance_query import parse_instance_query
from corral.decide.placement.strategies import ZONE, values_of, zone_of
from corral.fleet import instances
from corral.fleet.clusters import slots_of
from corral.model.gpu import GpuDevice
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.model.placement import Slot
from corral.model.stop_reasons import HOST_FORGOTTEN
from corral.operations.pagination import among
from corral.services.ecs import errors, host_loss
from corral.services.ecs.capacity_providers import provider_of_instance
from corral.services.ecs.lookup import PAGES, arn, find_cluster, find_slot, instance_id_in, name_in, short
from corral.services.ecs.placement_rules import check_expression
from corral.services.ecs.tags import instance_tags
from corral.store import HOLD_PREFIX, Store

ATTRIBUTES_MAX = 10  # custom attributes of one instance; attributes that reserve GPUs (HOLD_PREFIX) do not count
ATTRIBUTE_VALUE = re.compile(r"(?! )[a-zA-Z0-9_.@/\\: -]{1,128}(?<! )")
HOLD_REASON = re.compile(r"[^\x00-\x1f]{0,128}")
BUILT_IN_PREFIXES = ("ecs.", "com.amazonaws.", "corral.")


def list_container_instances(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    status, expression = params.get("status"), params.get("filter")
    scope = f"{caller.region}/{cluster}"
    query = parse_instance_query(check_expression(expression)) if expression else None
    found = {
        slot.id: _arn(caller, cluster, slot.id)
        for slot in slots_of(tx, caller.region, cluster)
        if (not status or status == _status(slot)) and (query is None or query.matches(values_of(slot, scope)))
    }
    page, token = PAGES.page(params, among(found))
    return {"containerInstanceArns": page, **token}


def describe_container_instances(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    given = params["containerInstances"]
    include = params.get("include", ())
    response = _for_each_slot(tx, caller, cluster, given, lambda slot: _description(tx, caller, cluster, slot, include))
    missing = [short(each["arn"]) for each in response["failures"]]
    ended = {
        _arn(caller, cluster, each.id): each for name in missing if (each := _terminated(tx, caller, cluster, name)) is not None
    }
    response["containerInstances"] += [_inactive(instance_arn, instance) for instance_arn, instance in ended.items()]
    response["failures"] = [each for each in response["failures"] if each["arn"] not in ended]
    return response


def update_container_instances_state(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Set instances to ACTIVE or DRAINING. A draining instance gets no new tasks, but its tasks continue."""
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    given, status = params["containerInstances"], params["status"]

    def update(slot: Slot) -> dict[str, Any]:
        instance = tx.store.instances.get(slot.id)
        if instance is not None and instance.status != "INACTIVE":  # a deregistered instance stays INACTIVE
            instances.set_status(tx, instance, status)
        _, renewed = find_slot(tx, caller.region, cluster, slot.id) or ("", slot)
        return _description(tx, caller, cluster, renewed, ())

    return _for_each_slot(tx, caller, cluster, given, update)


def deregister_container_instance(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Take an instance out of its cluster. Refuse this if tasks run on it. With `force`, stop these tasks instead."""
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    found = find_slot(tx, caller.region, cluster, instance_id_in(caller, cluster, params["containerInstance"]))
    instance = tx.store.instances.get(found[1].id) if found is not None else None
    if found is None or instance is None:
        raise errors.InvalidParameterException("Referenced container instance was not found.")
    if instance.is_host:
        return {"containerInstance": _forget_host(tx, params, caller, cluster, found[1], str(instance.host_id))}
    if tx.store.tasks.on(instance.id) and not params.get("force"):
        raise errors.InvalidParameterException("Found running tasks on the instance. Stop them, or set force to true.")
    described = _description(tx, caller, cluster, found[1], ("TAGS",))
    instances.deregister(tx, instance)
    return {"containerInstance": {**described, "status": "INACTIVE"}}


def _forget_host(tx: Tx[Store], params: dict[str, Any], caller: Caller, cluster: str, slot: Slot, host_id: str) -> dict[str, Any]:
    """Forget a host that does not report, as `corral hosts forget` does. It needs the same permission (`permissions.py`)."""
    if tx.store.joined_hosts.find(host_id) is None:
        raise errors.ClientException(
            "This machine's own instance cannot leave its cluster: set it to DRAINING, or start Corral with another --cluster."
        )
    if why := host_loss.why_not_forgotten(tx, host_id):
        raise errors.ClientException(f"The own instance of a host leaves its cluster only with the host, and the host {why}.")
    if tx.store.tasks.on(slot.id) and not params.get("force"):
        raise errors.InvalidParameterException("Found running tasks on the instance. Stop them, or set force to true.")
    described = _description(tx, caller, cluster, slot, ("TAGS",))
    host_loss.forget(tx, host_id, HOST_FORGOTTEN)
    return {**described, "status": "INACTIVE"}


def put_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    targets = _targets(tx, params, caller)
    for pool, slot_id, attribute in targets:
        name, value = attribute["name"], attribute.get("value", "")
        _check_attribute(name, value)
        tx.store.instances.put_attribute(slot_id, name, value)
        tx.mark(f"pool:{pool}")  # a waiting task may require this attribute
        tx.mark(f"daemons:{pool}")
    for slot_id in {slot_id for _, slot_id, _ in targets}:
        custom = [name for name in tx.store.instances.attributes(slot_id) if not name.startswith(HOLD_PREFIX)]
        if len(custom) > ATTRIBUTES_MAX:
            raise errors.AttributeLimitExceededException(f"A container instance can have up to {ATTRIBUTES_MAX} custom attributes.")
    return {"attributes": [attribute for _, _, attribute in targets]}


def delete_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    targets = _targets(tx, params, caller)
    for pool, slot_id, attribute in targets:
        _check_attribute(attribute["name"], "")
        tx.store.instances.drop_attribute(slot_id, attribute["name"])
        tx.mark(f"pool:{pool}")
        tx.mark(f"daemons:{pool}")
    return {"attributes": [attribute for _, _, attribute in targets]}


def list_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    name, value = params.get("attributeName"), params.get("attributeValue")
    if value is not None and name is None:
        raise errors.InvalidParameterException("attributeValue needs attributeName: specify both, or no attributeValue.")
    found = {
        f"{slot.id} {attribute}": {
            "name": attribute,
            **({"value": attribute_value} if attribute_value else {}),
            "targetId": _arn(caller, cluster, slot.id),
        }
        for slot in slots_of(tx, caller.region, cluster)
        for attribute, attribute_value in _attributes(slot, caller.region).items()
        if (name is None or attribute == name) and (value is None or attribute_value == value)
    }
    page, token = PAGES.page(params, among(found))
    return {"attributes": page, **token}


def refuse(operation: str, instead: str) -> Callable[[Tx[Store], dict[str, Any], Caller], dict[str, Any]]:
    """Return a handler for an operation that Corral does not serve. The handler raises an error that ends with `instead`."""

    def refused(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> NoReturn:
        raise errors.ClientException(f"Corral does not serve {operation}: {instead}")

    return refused


def _arn(caller: Caller, cluster: str, slot_id: str) -> str:
    return arn(caller.account, caller.region, f"container-instance/{cluster}/{slot_id}")


def _for_each_slot(
    tx: Tx[Store], caller: Caller, cluster: str, given: list[str], describe: Callable[[Slot], dict[str, Any]]
) -> dict[str, Any]:
    """Call `describe` for each container instance that exists, and return a failure for each that does not exist."""
    instances, failures = [], []
    for slot_id in [instance_id_in(caller, cluster, each) for each in given]:
        found = find_slot(tx, caller.region, cluster, slot_id)
        if found is None:
            failures.append({"arn": _arn(caller, cluster, slot_id), "reason": "MISSING"})
        else:
            instances.append(describe(found[1]))
    return {"containerInstances": instances, "failures": failures}


def _targets(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (pool, slot id, attribute) for each attribute in a request, in the same order."""
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    found = []
    for attribute in params["attributes"]:
        target = attribute.get("targetId")
        if not target:
            raise errors.InvalidParameterException("Every attribute needs a targetId: the id or ARN of a container instance.")
        if not target.startswith("arn:") and "targetType" not in attribute:
            raise errors.InvalidParameterException("The target type must be container-instance if targetId is not an ARN.")
        slot = find_slot(tx, caller.region, cluster, name_in(caller, cluster, "container-instance", target))
        if slot is None:
            raise errors.TargetNotFoundException(f"The specified target was not found: {target}.")
        found.append((slot[0], slot[1].id, attribute))
    return found


def _check_attribute(name: str, value: str) -> None:
    if name.startswith(HOLD_PREFIX):
        if not HOLD_REASON.fullmatch(value):
            raise errors.InvalidParameterException(f"The value of {name} can have up to 128 characters, and no control characters.")
    elif name.startswith(BUILT_IN_PREFIXES):
        raise errors.InvalidParameterException(
            f"The attribute {name} is built in: choose a name that does not begin with {', '.join(BUILT_IN_PREFIXES)}."
        )
    elif value and not ATTRIBUTE_VALUE.fullmatch(value):
        raise errors.InvalidParameterException(
            f"Invalid value of the attribute {name}: use 1 to 128 letters, digits, spaces (not at the ends) and - _ . @ / \\ :"
        )


def _status(slot: Slot) -> str:
    return "DRAINING" if slot.draining else "ACTIVE"


def _attributes(slot: Slot, region: str) -> dict[str, str]:
    return {ZONE: zone_of(region), **slot.attributes}


def _description(tx: Tx[Store], caller: Caller, cluster: str, slot: Slot, include: Any) -> dict[str, Any]:
    instance = tx.store.instances.get(slot.id)
    assert instance is not None
    gpus, leases = tx.store.instances.gpus(slot.id), tx.store.instances.leases(slot.id)
    description = {
        "containerInstanceArn": _arn(caller, cluster, slot.id),
        "ec2InstanceId": ec2_id(slot.id),
        "capacityProviderName": provider_of_instance(tx, caller, instance, cluster),
        "version": 1,
        "versionInfo": {"agentVersion": corral.__version__},
        "status": "INACTIVE" if instance.status == "INACTIVE" else _status(slot),
        "agentConnected": slot.connected,
        "registeredResources": _resources(slot.total.cpu_units, slot.total.memory_mib, [gpu.gpu_id for gpu in gpus]),
        "remainingResources": _resources(slot.cpu_units, slot.memory_mib, slot.gpus),
        "runningTasksCount": slot.running,
        "pendingTasksCount": slot.pending,
        "attributes": [
            {"name": name, "value": value} if value else {"name": name} for name, value in _attributes(slot, caller.region).items()
        ],
        "registeredAt": slot.registered_at_s,
        "attachments": [],
        "tags": instance_tags(tx, caller.region, slot.id) if "TAGS" in include else [],
        "gpuDevices": [_gpu_device(gpu, *leases.get(gpu.gpu_id, (0, 0))) for gpu in gpus],
    }
    if "CONTAINER_INSTANCE_HEALTH" in include:
        description["healthStatus"] = _health(tx, slot, instance)
    return description


def _gpu_device(gpu: GpuDevice, containers: int, allocated_mib: int) -> dict[str, Any]:
    """Describe a GPU that `containers` containers use. If they share it, `allocated_mib` is the sum of their GPU memory, else 0."""
    mode = "NVIDIA_MPS" if allocated_mib else "DEDICATED" if containers else "IDLE"
    return {
        "gpuId": gpu.gpu_id,
        "sharingMode": mode,
        "totalMemoryInMiB": gpu.memory_mib,
        "remainingMemoryInMiB": 0 if mode == "DEDICATED" else max(0, gpu.memory_mib - allocated_mib),
        "containerCount": containers,
    }


def _terminated(tx: Tx[Store], caller: Caller, cluster: str, instance_id: str) -> Instance | None:
    """Return a terminated instance that was in the cluster at its end.

    Return None if there is no such instance, or if DescribeInstances no longer shows it.
    """
    instance = tx.store.instances.get(instance_id)
    is_ended = instance is not None and instance.state is InstanceState.TERMINATED
    return instance if instance and is_ended and (instance.region, instance.cluster) == (caller.region, cluster) else None


def _inactive(instance_arn: str, instance: Instance) -> dict[str, Any]:
    return {
        "containerInstanceArn": instance_arn,
        "ec2InstanceId": ec2_id(instance.id),
        "version": 1,
        "versionInfo": {"agentVersion": corral.__version__},
        "status": "INACTIVE",
        "agentConnected": False,
        "registeredResources": _resources(instance.cpu_units, instance.memory_mib, []),
        "remainingResources": _resources(0, 0, []),
        "runningTasksCount": 0,
        "pendingTasksCount": 0,
        "attributes": [{"name": "ecs.instance-type", "value": instance.type}],
        "registeredAt": instance.created_at_s,
        "attachments": [],
        "tags": [],
    }


def _health(tx: Tx[Store], slot: Slot, instance: Instance) -> dict[str, Any]:
    """Describe the health of an instance: whether the agent of its host is connected, and whether its GPUs work."""
    host_id = str(instance.host_id)
    seen_at_s = (tx.store.hosts.get(host_id) or {}).get("seen_at")
    checks = [{"type": "AGENT_CONNECTIVITY", "status": "OK" if slot.connected else "IMPAIRED", "lastUpdated": seen_at_s}]
    faults = {gpu_id: fault for gpu_id, fault in tx.store.hosts.faults(host_id).items() if fault.owner == instance.id}
    if faults or tx.store.instances.gpus(instance.id):
        check = {"type": "ACCELERATED_COMPUTE", "status": "IMPAIRED" if faults else "OK", "lastUpdated": seen_at_s}
        if faults:
            check["statusReason"] = "; ".join(f"{gpu_id} failed: {fault.text}" for gpu_id, fault in sorted(faults.items()))
            check["lastStatusChange"] = max(fault.at_s for fault in faults.values())
        checks.append(check)
    impaired = any(check["status"] == "IMPAIRED" for check in checks)
    return {"overallStatus": "IMPAIRED" if impaired else "OK", "details": checks}


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
