"""The status of the server: its hosts, their GPUs, the tasks that run, and what waits for capacity.

A pool is a set of instances. A claim is a task, an instance launch or a line of Batch jobs that waits for capacity in a pool. The
place of a claim is its position in the waiting list of the pool, counted from 1. A reader thread runs these operations. It has a
copy of the claims and of the free capacity that may be newer or older than its rows. So a task that has just stopped is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Any

from msgspec.structs import asdict

import corral
from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.placement.reservations import standing_reservation
from corral.decide.placement.start_estimates import estimates
from corral.fleet.clusters import slot_of_host
from corral.fleet.hosts import HostNames
from corral.model.agent_protocol import SAMPLE_MAX_AGE_S
from corral.model.allocation import is_allocation_cluster
from corral.model.gpu_metrics import GpuSample
from corral.model.instance import ec2_id, host_instance_id
from corral.model.joined_host import JoinedHost
from corral.model.placement import INSTANCE, JOB, TASK, Claim, Pool
from corral.model.task import Task
from corral.services.corral.errors import GpuNotFoundException
from corral.services.corral.idle import idle_rows
from corral.services.corral.instances import instances_status
from corral.services.corral.runs import gpu_ids_of, held_mib_of, needs_of, since_s_of
from corral.services.ecs.pause_texts import pause_state
from corral.services.ecs.queue_reasons import why_queued
from corral.services.ecs.task_description import WaitReasons, why_paused
from corral.store import Store

TASKS_SHOWN = 20  # the default of the parameter `tasks` of GetStatus
TASKS_SHOWN_MAX = 200
HISTORY_STEP_S = 2
HISTORY_POINTS = 60
_histories: dict[str, tuple[float, dict[str, Any]]] = {}  # GPU id → the end of its history, and its history
REVOKED = "its certificate was revoked: run `corral join` on it with a new token, or remove it with `corral hosts forget`"
SAMPLE_STALE_S = SAMPLE_MAX_AGE_S  # a sample older than this is not used


def get_status(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe the server, its hosts, running tasks, and what waits for capacity.

    `tasks` limits the running tasks, the claims of each pool, and the tasks that their tags hold back. If `hosts` is false, the
    response has no hosts, which are most of the work on a large cluster.
    """
    server, shown = tx.settings.server, max(0, min(params.get("tasks", TASKS_SHOWN), TASKS_SHOWN_MAX))
    has_hosts = params.get("hosts", True)
    waiting = [row for pool in tx.store.fleet.pools_with_claims() for row in _line(tx, pool, shown)]
    hosts = HostNames(tx)
    if has_hosts:
        server.read_samples()
    behind = tx.store.task_queue.first_not_admitted(shown)
    behind += tx.store.tasks.listing.for_turns(max(0, shown - len(behind)))
    waiting += [_behind(tx, task) for task in _tasks(tx, behind)]
    reasons = WaitReasons(tx)
    oldest, paused = (
        _tasks(tx, ids) for ids in (tx.store.tasks.listing.oldest_placed(shown), tx.store.tasks.listing.paused(shown))
    )
    return {
        "version": corral.__version__,
        **server.about,
        "tasks": tx.store.tasks.listing.counts(),
        "hosts": _hosts(tx) if has_hosts else [],
        **instances_status(tx),
        "running": [_running(tx, task, hosts.of(task.instance_id), reasons) for task in oldest],
        "paused": [_running(tx, task, hosts.of(task.instance_id), reasons) for task in paused],
        "waiting": waiting,
        "idle": idle_rows(tx),
        "failingHandovers": server.failing_handovers(),
        "problems": server.problems(),
        "quarantine": server.quarantine(),
        "instanceTypes": [mapping.line(name) for name, mapping in sorted(tx.settings.instance_types.items())],
    }


def describe_hosts(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe the hosts, also those that have joined and have not connected yet. Forgotten hosts are left out."""
    hosts, joined = _hosts(tx, has_history=params.get("history", True)), tx.store.joined_hosts.all().values()
    known = {host["id"] for host in hosts}
    new = [_new_host(tx, host) for host in joined if host.id not in known and host.forgotten_at_s is None]
    return {"hosts": [*hosts, *new]}


def describe_gpus(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found = {gpu["id"]: {**gpu, "hostId": host["id"]} for host in _hosts(tx) for gpu in host["gpus"]}
    for gpu_id in params.get("gpus", ()):
        if gpu_id not in found:
            raise GpuNotFoundException(f"GPU {gpu_id} does not exist. `corral status --json` lists the ids.")
    return {"gpus": [found[gpu_id] for gpu_id in params.get("gpus", found)]}


def _hosts(tx: Tx[Store], *, has_history: bool = True) -> list[dict[str, Any]]:
    hosts, reserved = [], _reserved_gpus(tx)
    options, joined = tx.store.hosts.options(), tx.store.joined_hosts.all()
    for host in tx.store.hosts.all():
        slot, own = slot_of_host(tx, host["id"]), tx.store.instances.get(host_instance_id(host["id"]))
        if slot is None or own is None:
            continue  # the host has just joined, or was forgotten
        wanted = options[host["id"]].options
        hosts.append(
            {
                "id": host["id"],
                "name": host["name"],
                "connected": bool(host["connected"]),
                **_joined(tx, joined.get(host["id"]), options[host["id"]].options.address),
                **_state(tx, joined.get(host["id"]), host, is_draining=slot.draining),
                "cluster": None if is_allocation_cluster(own.cluster) else own.cluster,
                "movesTo": slot.moves_to or None,
                "rack": wanted.rack or None,
                "labels": wanted.labels or None,
                "tasks": len(tx.store.tasks.on_host(host["id"])),
                "seenS": host["seen_at"],
                "docker": host["docker"],
                "cpuUnits": {"total": slot.total.cpu_units, "free": slot.cpu_units},
                "memoryMiB": {"total": slot.total.memory_mib, "free": slot.memory_mib},
                "gpus": _gpus(tx, host["id"], reserved, has_history=has_history),
                "links": tx.store.hosts.links(host["id"]),
            }
        )
    return hosts


def _joined(tx: Tx[Store], host: JoinedHost | None, address: str = "") -> dict[str, Any]:
    """Return what is known of a host that has joined from another machine. The agent of this machine has the server's version.

    `address` is the address for tasks on other hosts.
    """
    if host is None:
        return {"joined": False, "address": address or None, "agent": tx.settings.server.about.get("build", corral.__version__)}
    return {"joined": True, "address": address or host.address or None, "agent": host.version or None}


def _state(tx: Tx[Store], joined: JoinedHost | None, host: dict[str, Any], *, is_draining: bool) -> dict[str, str | None]:
    """Return the state of a host, and why it is in this state."""
    old = len(tx.store.hosts.old_runs(host["id"]))
    reason = _why_refused(joined)
    if joined is not None and joined.revoked_at_s is not None:
        state, reason = "REVOKED", REVOKED
    elif host["lost_at"] is not None:
        state, reason = "LOST", reason or host["lost_reason"]
    elif not host["connected"]:
        state, reason = "SILENT", reason or (_why_silent(joined) if joined is not None else None)
    elif old:
        state, reason = "ENDING", f"it still ends {old} container{'s' * (old != 1)} of tasks that were given up"
    else:
        state = "DRAINING" if is_draining else "UP"
    return {"state": state, "reason": reason}


def _why_refused(host: JoinedHost | None) -> str | None:
    """Describe another machine that has presented the certificate of a host."""
    if host is None or not host.refused:
        return None
    return (
        f"another machine, at {host.refused_address}, was refused: it has a copy of the certificate, or is this host with other "
        "hardware"
    )


def _why_silent(host: JoinedHost) -> str:
    where = f" ({host.address})" if host.address else ""
    return (
        f"it does not report: run `corral join` on it{where}, or check its network. "
        f"If it is lost: `corral hosts forget {host.name}`"
    )


def _new_host(tx: Tx[Store], host: JoinedHost) -> dict[str, Any]:
    """Describe a host that has joined, and has not connected yet."""
    nothing = {"total": 0, "free": 0}
    return {
        "id": host.id,
        "name": host.name,
        "connected": False,
        **_joined(tx, host),
        "state": "SILENT" if host.revoked_at_s is None else "REVOKED",
        "reason": _why_refused(host) or (_why_silent(host) if host.revoked_at_s is None else REVOKED),
        "cluster": None if is_allocation_cluster(host.cluster) else host.cluster or None,
        "movesTo": None,
        "rack": host.rack or None,
        "labels": None,
        "tasks": 0,
        "seenS": None,
        "docker": "",
        "cpuUnits": nothing,
        "memoryMiB": nothing,
        "gpus": [],
        "links": None,
    }


def _tasks(tx: Tx[Store], ids: Iterable[str]) -> list[Task]:
    found = tx.store.tasks.several(ids := list(ids))
    return [found[task_id] for task_id in ids if task_id in found]


def _line(tx: Tx[Store], pool_name: str, shown: int) -> list[dict[str, Any]]:
    """Describe the first `shown` claims of a pool, with their places. Also describe other instance launches without a place.

    Of the other launches with equal demands, only the first is described, and at most `shown` of them.
    """
    pool = tx.store.fleet.pool(pool_name)
    first = list(enumerate(islice(pool.in_order(), shown), 1))
    listed = {claim.id for _, claim in first}
    launches = [(None, claim) for claim in pool.heads() if claim.kind == INSTANCE and claim.id not in listed]
    reasons, starts_s = WaitReasons(tx), estimates(pool, tx.now_s)
    shown_claims = [*first, *launches[:shown]]
    tasks = tx.store.tasks.several([claim.id for _, claim in shown_claims if claim.kind == TASK])
    return [
        {
            **claimant,
            "place": place,
            "needs": needs_of(claim.demand),
            "startsAtS": starts_s.get(claim.id),
            "reason": reasons.reason(pool_name, claim),
        }
        for place, claim in shown_claims
        if (claimant := _claimant(tx, claim, tasks.get(claim.id))) is not None
    ]


def _behind(tx: Tx[Store], task: Task) -> dict[str, Any]:
    """Describe a task that its tags hold back. Such a task has no claim, so it has no place."""
    needs, reason = needs_of(task.demand), why_queued(tx, task)
    return {**_task(task), "sinceS": task.created_at_s, "place": None, "needs": needs, "startsAtS": None, "reason": reason}


def _reserved_gpus(tx: Tx[Store]) -> dict[str, dict[str, Any]]:
    """Return the free GPUs that the scheduler keeps for a claim which needs more than is free, each with this claim."""
    found: dict[str, dict[str, Any]] = {}
    for name in tx.store.fleet.pools_with_claims():
        pool = tx.store.fleet.pool(name)
        reservation = standing_reservation(pool)
        if reservation is not None and reservation.claim.demand.gpus:
            claimant = _claimant(tx, reservation.claim, tx.store.tasks.get(reservation.claim.id)) or {}
            found |= {gpu_id: claimant for slot_id in reservation.wanted for gpu_id in pool.slot(slot_id).gpus}
            found |= _kept_gpus(tx, pool)
    return found


def _kept_gpus(tx: Tx[Store], pool: Pool) -> dict[str, dict[str, Any]]:
    """Return the free GPUs for which paused tasks wait, each with the first of these tasks."""
    found: dict[str, dict[str, Any]] = {}
    for claim in pool.heads():
        task = tx.store.tasks.get(claim.id) if claim.demand.own_gpus else None
        if task is not None and task.instance_id is not None and task.instance_id in pool:
            free = set(pool.slot(task.instance_id).gpus)
            found = {gpu_id: _task(task) for gpu_id in claim.demand.own_gpus if gpu_id in free} | found
    return found


def _gpus(tx: Tx[Store], host_id: str, reserved: dict[str, dict[str, Any]], *, has_history: bool) -> list[dict[str, Any]]:
    """Describe every GPU of a host.

    The description says which task has the GPU, which fault it has, and whether it is excluded, held by a user, reserved for a
    claim, or used by other processes. If several tasks share a GPU, `task` is the first of them, and `sharedBy` lists all of them.
    """
    samples, before = tx.settings.server.samples, tx.settings.server.samples_before
    held_by = tx.store.hosts.holders(host_id)
    tasks = tx.store.tasks.several(list({task_id for task_ids in held_by.values() for task_id in task_ids}))
    holders = {gpu_id: [tasks[each] for each in task_ids if each in tasks] for gpu_id, task_ids in held_by.items()}
    allocated_mib = tx.store.hosts.allocated_mib(host_id)
    owners, foreign = tx.store.hosts.gpu_owners(host_id), tx.store.hosts.foreign(host_id)
    faults = tx.store.hosts.faults(host_id)
    own_id, holds = host_instance_id(host_id), tx.store.instances.holds_on_host(host_id)
    devices = sorted([*tx.store.hosts.gpus(host_id), *tx.store.hosts.gpus(host_id, excluded=True)], key=lambda gpu: gpu.index)
    return [
        {
            **_gpu(asdict(gpu), next(iter(holders.get(gpu.gpu_id, ())), None), samples.get(gpu.gpu_id)),
            "allocatedMiB": allocated_mib.get(gpu.gpu_id),
            "sharedBy": [_task(task) for task in holders.get(gpu.gpu_id, ())] if gpu.gpu_id in allocated_mib else [],
            "excluded": gpu.excluded,
            "instance": ec2_id(owners[gpu.gpu_id]) if owners[gpu.gpu_id] != own_id else None,
            "held": holds.get(gpu.gpu_id),
            "fault": faults[gpu.gpu_id].text if gpu.gpu_id in faults else None,
            "reservedFor": reserved.get(gpu.gpu_id),
            "foreign": [{"pid": pid, "name": name} for pid, name in foreign.get(gpu.gpu_id, ())],
            "history": _history_at(gpu.gpu_id, list(before.get(gpu.gpu_id, ())), tx.now_s) if has_history else None,
        }
        for gpu in devices
    ]


def _gpu(device: dict[str, Any], holder: Task | None, sample: GpuSample | None) -> dict[str, Any]:
    return {
        "id": device["gpu_id"],
        "index": device["index"],
        "model": device["model"],
        "memoryMiB": device["memory_mib"],
        "simulated": device["simulated"],
        "task": holder.id if holder else None,
        "taskDefinition": _definition(holder) if holder else None,
        "taskName": holder.name if holder else None,
        "arrayIndex": holder.array_index if holder else None,
        "owner": holder.owner if holder else None,
        "utilizationPercent": sample.utilization_percent if sample else None,
        "memoryUsedMiB": sample.memory_used_mib if sample else None,
        "powerW": sample.power_w if sample else None,
        "temperatureC": sample.temperature_c if sample else None,
    }


def _claimant(tx: Tx[Store], claim: Claim, task: Task | None) -> dict[str, Any] | None:
    """Describe what waits. Return None if it does not exist any more. `task` is the task of the claim, if a task waits."""
    if claim.kind == TASK:  # a paused task that waits to continue is a running task
        return None if task is None or task.instance_id is not None else {**_task(task), "sinceS": task.created_at_s}
    if claim.kind == JOB:
        line = tx.store.job_lines.get(int(claim.id.partition("/")[0]))
        if line is None:
            return None
        return {"job": line.head, "jobQueue": line.queue, "jobs": line.count, "sinceS": line.since_s, "owner": line.key.owner}
    instance = tx.store.instances.get(claim.id)
    if instance is None:
        return None
    found = {"instance": ec2_id(instance.id), "instanceType": instance.type, "sinceS": instance.created_at_s}
    return {**found, "owner": instance.owner}


def _task(task: Task) -> dict[str, Any]:
    place = {"region": task.region, "cluster": task.cluster, "owner": task.owner}
    return {"task": task.id, "taskDefinition": _definition(task), "taskName": task.name, "arrayIndex": task.array_index, **place}


def _running(tx: Tx[Store], task: Task, host: str | None, reasons: WaitReasons) -> dict[str, Any]:
    """Describe a placed task. Only a paused task has a reason."""
    state = "STOPPING" if task.desired.value == "STOPPED" else pause_state(task) or task.state.value
    found = {**_task(task), "state": state, "sinceS": since_s_of(task), "host": host, "gpuIds": gpu_ids_of(task)}
    paused = {"reason": why_paused(tx, task, reasons), "hostMemoryMiB": held_mib_of(task)} if pause_state(task) else {}
    return {**found, "gpuMemoryMiB": task.demand.gpu_memory_mib, **paused}


def _definition(task: Task) -> str:
    return task.definition_arn.rpartition("/")[2]


def _history_at(gpu_id: str, past: list[tuple[float, GpuSample]], now_s: float) -> dict[str, Any]:
    """Return `_history` until the newest sample, or until now if this is old. It is computed once for each sample."""
    newest_s = past[-1][0] if past else 0.0
    until_s = newest_s if newest_s > now_s - HISTORY_STEP_S else float(int(now_s))
    known = _histories.get(gpu_id)
    if known is None or known[0] != until_s:
        known = _histories[gpu_id] = until_s, _history(past, until_s)
    return known[1]


def _history(past: list[tuple[float, GpuSample]], now_s: float) -> dict[str, Any]:
    """Return the values at HISTORY_POINTS times, HISTORY_STEP_S apart, oldest first.

    The value at a time is the last sample before this time. It is None if this sample is older than SAMPLE_STALE_S.
    """
    found = [past[at][1] if at is not None else None for at in _last_before(tuple([at_s for at_s, _ in past]), now_s)]
    return {
        "stepS": HISTORY_STEP_S,
        "utilizationPercent": [sample.utilization_percent if sample is not None else None for sample in found],
        "memoryUsedMiB": [sample.memory_used_mib if sample is not None else None for sample in found],
    }


@lru_cache(maxsize=8)  # the samples of all GPUs of a host have the same times
def _last_before(times_s: tuple[float, ...], now_s: float) -> list[int | None]:
    """Return the index of the sample of each point in `_history`."""
    points_s = [now_s - back * HISTORY_STEP_S for back in range(HISTORY_POINTS - 1, -1, -1)]
    ats = [bisect_right(times_s, until_s) - 1 for until_s in points_s]
    return [at if at >= 0 and times_s[at] > until_s - SAMPLE_STALE_S else None for at, until_s in zip(ats, points_s)]
