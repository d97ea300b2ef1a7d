"""What `corral status` and `corral top` show: hosts, their GPUs and who holds them, who runs and who waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

import corral
from corral.core import Tx
from corral.model.run import HEARTBEAT_S, GpuSample
from corral.model.task import Task
from corral.services.ecs.describing import why_waits
from corral.store import Store

TASKS_SHOWN_MAX = 20  # of those that run, and of those that wait
HISTORY_STEP_S = 2
HISTORY_POINTS = 60
SAMPLE_STALE_S = 2 * HEARTBEAT_S  # an idle GPU is sampled once a heartbeat
Past = Mapping[str, Iterable[tuple[float, GpuSample]]]


def status_of(tx: Tx[Store], samples: dict[str, GpuSample], about: dict[str, Any], history: Past | None = None) -> dict[str, Any]:
    hosts = []
    for host in tx.store.hosts():
        slot = tx.store.fleet.pool(host["pool"]).slot(host["id"])
        hosts.append(
            {
                "id": host["id"],
                "name": host["name"],
                "connected": bool(host["connected"]),
                "docker": host["docker"],
                "cpuUnits": {"total": slot.total.cpu_units, "free": slot.cpu_units},
                "memoryMiB": {"total": slot.total.memory_mib, "free": slot.memory_mib},
                "gpus": _gpus(tx, host["id"], samples, history or {}),
                "links": tx.store.links(host["id"]),
            }
        )
    waiting = [
        {**_task(tx.store.task(claim.task_id)), "sinceS": claim.since_s, "reason": why_waits(tx, pool, claim)}
        for pool in sorted({host["pool"] for host in tx.store.hosts()})
        for claim in list(tx.store.fleet.pool(pool).heads())[:TASKS_SHOWN_MAX]
    ]
    running = [_running(tx.store.task(task_id)) for task_id in tx.store.oldest_placed(TASKS_SHOWN_MAX)]
    counts = tx.store.task_counts()
    return {"version": corral.__version__, **about, "tasks": counts, "hosts": hosts, "running": running, "waiting": waiting}


def _gpus(tx: Tx[Store], host_id: str, samples: dict[str, GpuSample], history: Past) -> list[dict[str, Any]]:
    """Every GPU of a host, who has it, and why it is kept away: excluded, held for a reason, or used by others."""
    holders = {gpu_id: tx.store.task(task_id) for gpu_id, task_id in tx.store.holders(host_id).items()}
    holds, foreign = tx.store.holds(host_id), tx.store.foreign(host_id)
    devices = sorted([*tx.store.gpus(host_id), *tx.store.gpus(host_id, excluded=True)], key=lambda gpu: gpu.index)
    return [
        {
            **_gpu(asdict(gpu), holders.get(gpu.gpu_id), samples.get(gpu.gpu_id)),
            "excluded": gpu.excluded,
            "held": holds.get(gpu.gpu_id),
            "foreign": [{"pid": pid, "name": name} for pid, name in foreign.get(gpu.gpu_id, ())],
            "history": _history(list(history.get(gpu.gpu_id, ())), tx.now_s),
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
        "utilizationPercent": sample.utilization_percent if sample else None,
        "memoryUsedMiB": sample.memory_used_mib if sample else None,
        "powerW": sample.power_w if sample else None,
        "temperatureC": sample.temperature_c if sample else None,
    }


def _task(task: Task | None) -> dict[str, Any]:
    assert task is not None, "it was listed in this very transaction"
    return {"task": task.id, "taskDefinition": _definition(task)}


def _running(task: Task | None) -> dict[str, Any]:
    assert task is not None
    state = "STOPPING" if task.desired.value == "STOPPED" else task.state.value
    gpu_ids = [gpu_id for run in task.runs for gpu_id in run.gpu_ids]
    return {**_task(task), "state": state, "sinceS": task.started_at_s or task.created_at_s, "gpuIds": gpu_ids}


def _definition(task: Task) -> str:
    """family:revision"""
    return task.definition_arn.rpartition("/")[2]


def _history(past: list[tuple[float, GpuSample]], now_s: float) -> dict[str, Any]:
    """Evenly spaced, oldest first, None where nothing is known: samples come once a second or once a heartbeat."""
    busy: list[float | None] = []
    memory: list[int | None] = []
    at = 0
    for point in range(HISTORY_POINTS):
        until_s = now_s - (HISTORY_POINTS - 1 - point) * HISTORY_STEP_S
        while at < len(past) and past[at][0] <= until_s:
            at += 1
        known = at > 0 and past[at - 1][0] > until_s - SAMPLE_STALE_S
        busy.append(past[at - 1][1].utilization_percent if known else None)
        memory.append(past[at - 1][1].memory_used_mib if known else None)
    return {"stepS": HISTORY_STEP_S, "utilizationPercent": busy, "memoryUsedMiB": memory}
