"""EC2 instances on Corral's own pages, with facts that AWS's APIs do not have.

These facts are the reasons of launches, waits and ends, and the overcommitted hosts. A host is overcommitted if its instances and
its own tasks may use more CPU or memory than the host has.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from corral.core.transactions import Tx
from corral.decide.placement.place import why_waiting
from corral.model.instance import HOST_POOL, Instance, InstanceState, ec2_id, host_instance_id
from corral.model.placement import INSTANCE, Claim
from corral.services.ecs.task_description import why_claim_waits
from corral.store import Store

INSTANCES_SHOWN_MAX = 50  # the most instances on one page


def instances_page(tx: Tx[Store], region: str, after: str) -> dict[str, Any]:
    """Return a page of the instances of a region, including terminated instances.

    The page begins after the instance `after`. `next` is the `after` of the next page, or None on the last page.
    `elsewhere` has the number of instances in other regions that have not ended.
    """
    found = tx.store.instances.listed(region, after, INSTANCES_SHOWN_MAX + 1)
    shown = found[:INSTANCES_SHOWN_MAX]
    return {
        "instances": [{**_instance(tx, each), **_reasons(tx, each)} for each in shown],
        "next": shown[-1].id if len(found) > len(shown) else None,
        "elsewhere": Counter(each.region for each in tx.store.instances.slices() if each.region != region),
    }


def instances_status(tx: Tx[Store]) -> dict[str, Any]:
    """Return the data about instances for the status page: counts by state, the oldest instances, and overcommitted hosts.

    Pending instances come last.
    """
    living = tx.store.instances.slices()
    living.sort(key=lambda each: (each.state is InstanceState.PENDING, each.created_at_s, each.id))
    return {
        "instanceCounts": Counter(each.state.value for each in living),
        "instances": [_instance(tx, each) for each in living[:INSTANCES_SHOWN_MAX]],
        "overcommitted": _overcommitted(tx, living),
    }


def _instance(tx: Tx[Store], instance: Instance) -> dict[str, Any]:
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
        "gpus": instance.gpus,
        "gpuIds": [gpu.gpu_id for gpu in tx.store.instances.gpus(instance.id)] if has_host and instance.gpus else [],
        "tasks": slot.running + slot.pending if slot is not None else 0,
        "sinceS": instance.launched_at_s or instance.created_at_s,
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
    pool = tx.store.fleet.pool(HOST_POOL)
    return why_claim_waits(tx, HOST_POOL, claim) if claim in pool.heads() else why_waiting(pool, claim)


def _overcommitted(tx: Tx[Store], living: list[Instance]) -> list[dict[str, Any]]:
    """List the overcommitted hosts."""
    cpu_units, memory_mib = Counter[str](), Counter[str]()
    for instance in living:
        if instance.host_id is not None:
            cpu_units[instance.host_id] += instance.cpu_units
            memory_mib[instance.host_id] += instance.memory_mib
    found = []
    for host_id in sorted(cpu_units):
        slot = tx.store.fleet.pool(HOST_POOL).slot(host_instance_id(host_id))
        cpu = {"total": slot.total.cpu_units, "promised": slot.total.cpu_units - slot.cpu_units + cpu_units[host_id]}
        memory = {"total": slot.total.memory_mib, "promised": slot.total.memory_mib - slot.memory_mib + memory_mib[host_id]}
        if cpu["promised"] > cpu["total"] or memory["promised"] > memory["total"]:
            host = tx.store.hosts.get(host_id)
            assert host is not None, "an instance has this host"
            found.append({"host": host["name"], "hostId": host_id, "cpuUnits": cpu, "memoryMiB": memory})
    return found
