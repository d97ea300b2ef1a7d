"""Facts about EC2 instances and about workers of SQS queues that AWS's APIs do not have.

These facts are the reasons of launches, waits and ends, and the overcommitted hosts. A host is overcommitted if its instances and
its own tasks may use more CPU or memory than the host has. The server knows the arrivals of messages in an empty queue, and the
first receive of each task, only since its start.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.placement.shortages import why_waiting
from corral.fleet.clusters import slot_of_host
from corral.fleet.hosts import HostNames
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.model.placement import INSTANCE, Claim
from corral.operations.pagination import Pagination
from corral.services.corral.errors import InvalidRequestException
from corral.services.ecs.task_description import why_claim_waits
from corral.store import Store

INSTANCES_SHOWN_MAX = 50  # the most instances in one response
PAGES = Pagination(InvalidRequestException, limit=None, default=INSTANCES_SHOWN_MAX)


def describe_instances(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe the instances of the region, including terminated instances, and count the living instances of other regions."""
    region = caller.region
    shown, more = PAGES.page(
        params, lambda after, limit: [(each.id, each) for each in tx.store.instances.listed(region, after, limit)]
    )
    hosts = HostNames(tx)
    return {
        "instances": [{**_instance(tx, each, hosts), **_reasons(tx, each)} for each in shown],
        "elsewhere": Counter(each.region for each in tx.store.instances.slices() if each.region != region),
        **more,
    }


def describe_queue_workers(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return the arrivals of messages in the empty queue, and for each task its first receive and the messages that it holds."""
    queues, task_ids = tx.store.queues, params.get("tasks", [])
    queue = queues.queue(caller.region, params["queue"])
    held = queues.held_by_each(task_ids, round(tx.now_s * 1000))
    return {
        "wakes": [{"atMs": at_ms, "sender": sender} for at_ms, sender in queues.wakes(queue.pile)] if queue is not None else [],
        "tasks": {
            task_id: {
                "firstReceiveMs": queues.first_receive_ms(task_id),
                "held": sum(each.messages for each in held.get(task_id, ())),
                "leaving": task_id in tx.store.tasks.leaving,
            }
            for task_id in task_ids
        },
    }


def instances_status(tx: Tx[Store]) -> dict[str, Any]:
    """Return the data about instances for GetStatus: counts by state, the oldest instances, and overcommitted hosts.

    Pending instances come last.
    """
    living = tx.store.instances.slices()
    hosts = HostNames(tx)
    living.sort(key=lambda each: (each.state is InstanceState.PENDING, each.created_at_s, each.id))
    return {
        "instanceCounts": Counter(each.state.value for each in living),
        "instances": [_instance(tx, each, hosts) for each in living[:INSTANCES_SHOWN_MAX]],
        "overcommitted": _overcommitted(tx, living),
    }


def _instance(tx: Tx[Store], instance: Instance, hosts: HostNames) -> dict[str, Any]:
    pool = tx.store.fleet.pool(instance.pool) if instance.pool is not None else None
    slot = pool.slot(instance.id) if pool is not None and instance.id in pool else None
    has_host = instance.host_id is not None and instance.state is not InstanceState.TERMINATED
    return {
        "id": ec2_id(instance.id),
        "type": instance.type,
        "region": instance.region,
        "state": instance.state.value,
        "group": instance.group or None,
        "cluster": instance.cluster or None,
        "host": hosts.of(instance.id),
        "gpus": instance.gpus,
        "gpuIds": [gpu.gpu_id for gpu in tx.store.instances.gpus(instance.id)] if has_host and instance.gpus else [],
        "tasks": slot.running + slot.pending if slot is not None else 0,
        "sinceS": instance.launched_at_s or instance.created_at_s,
        "owner": instance.owner,
    }


def _reasons(tx: Tx[Store], instance: Instance) -> dict[str, Any]:
    claim = tx.store.claims.get(INSTANCE, instance.id) if instance.state is InstanceState.PENDING else None
    return {
        "launchReason": instance.launch_reason or None,
        "waitReason": _why_waiting(tx, claim) if claim is not None else None,
        "endReason": instance.end_reason or None,
    }


def _why_waiting(tx: Tx[Store], claim: Claim) -> str:
    """Return why a claim (a launch that waits for GPUs) waits.

    If no older claim has the same demand, the reason also names what holds the GPUs. To compute this for all claims would take too
    long.
    """
    name = tx.store.claims.pool_of(INSTANCE, claim.id)
    assert name is not None, "a claim that waits in no pool"
    pool = tx.store.fleet.pool(name)
    claim = pool.ranked(claim)
    return why_claim_waits(tx, name, claim) if claim in pool.heads() or not pool.is_open(claim) else why_waiting(pool, claim)


def _overcommitted(tx: Tx[Store], living: list[Instance]) -> list[dict[str, Any]]:
    cpu_units, memory_mib = Counter[str](), Counter[str]()
    for instance in living:
        if instance.host_id is not None:
            cpu_units[instance.host_id] += instance.cpu_units
            memory_mib[instance.host_id] += instance.memory_mib
    found = []
    for host_id in sorted(cpu_units):
        if (slot := slot_of_host(tx, host_id)) is None:
            continue
        cpu = {"total": slot.total.cpu_units, "promised": slot.total.cpu_units - slot.cpu_units + cpu_units[host_id]}
        memory = {"total": slot.total.memory_mib, "promised": slot.total.memory_mib - slot.memory_mib + memory_mib[host_id]}
        if cpu["promised"] > cpu["total"] or memory["promised"] > memory["total"]:
            host = tx.store.hosts.get(host_id)
            assert host is not None, "an instance has this host"
            found.append({"host": host["name"], "hostId": host_id, "cpuUnits": cpu, "memoryMiB": memory})
    return found
