"""ECS container instances: the hosts, as members of the cluster `default`."""

from __future__ import annotations

from typing import Any

import corral
from corral.core import Tx
from corral.services.caller import Caller
from corral.services.ecs import paging
from corral.services.ecs.naming import DEFAULT_CLUSTER, HOST_PROVIDER, arn, find_cluster, short
from corral.services.ecs.tags import instance_tags
from corral.store import HOST_POOL, Store


def list_container_instances(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    ids = sorted(host["id"] for host in tx.store.hosts()) if cluster == DEFAULT_CLUSTER else []
    page, token = paging.page(params, lambda after, limit: [host_id for host_id in ids if host_id > after][:limit])
    arns = [arn(caller.account, caller.region, f"container-instance/{cluster}/{host_id}") for host_id in page]
    return {"containerInstanceArns": arns, **token}


def describe_container_instances(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    instances, failures = [], []
    for given in params["containerInstances"]:
        host = tx.store.host(short(given)) if cluster == DEFAULT_CLUSTER else None
        instance_arn = arn(caller.account, caller.region, f"container-instance/{cluster}/{short(given)}")
        if host is None:
            failures.append({"arn": instance_arn, "reason": "MISSING"})
        else:
            shown = _described(tx, caller, host, instance_arn)
            tags = instance_tags(tx, caller.region, host["id"]) if "TAGS" in params.get("include", ()) else []
            instances.append({**shown, "tags": tags})
    return {"containerInstances": instances, "failures": failures}


def _described(tx: Tx[Store], caller: Caller, host: dict[str, Any], instance_arn: str) -> dict[str, Any]:
    slot = tx.store.fleet.pool(HOST_POOL).slot(host["id"])
    gpus = tx.store.gpus(host["id"])
    held = tx.store.holders(host["id"])
    tasks = [task.state.value for task in tx.store.tasks_on(host["id"])]
    models = sorted({gpu.model for gpu in gpus})
    attributes = {
        "ecs.instance-type": "corral.host",
        "ecs.availability-zone": f"{caller.region}a",
        "ecs.os-type": "linux",
        "corral.host-name": host["name"],
        "corral.gpu-model": ", ".join(models),
        "corral.gpus-simulated": "true" if any(gpu.simulated for gpu in gpus) else "false",
    }
    return {
        "containerInstanceArn": instance_arn,
        "ec2InstanceId": f"i-{host['id'][:17]}",
        "capacityProviderName": HOST_PROVIDER,
        "version": 1,
        "versionInfo": {"agentVersion": corral.__version__},
        "status": "ACTIVE",
        "agentConnected": bool(host["connected"]),
        "registeredResources": _resources(slot.total.cpu_units, slot.total.memory_mib, [gpu.gpu_id for gpu in gpus]),
        "remainingResources": _resources(slot.cpu_units, slot.memory_mib, slot.gpus),
        "runningTasksCount": tasks.count("RUNNING"),
        "pendingTasksCount": tasks.count("PENDING"),
        "attributes": [{"name": name, "value": value} if value else {"name": name} for name, value in attributes.items()],
        "registeredAt": host["registered_at"],
        "attachments": [],
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
