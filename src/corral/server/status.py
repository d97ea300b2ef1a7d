"""What `corral status` shows: hosts, their GPUs and who holds them, and who waits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import corral
from corral.core import Tx
from corral.model.run import GpuSample
from corral.services.ecs.describing import why_waits
from corral.store import Store

CLAIMS_SHOWN_MAX = 20


def status_of(tx: Tx[Store], samples: dict[str, GpuSample], about: dict[str, Any]) -> dict[str, Any]:
    hosts = []
    for host in tx.store.hosts():
        held = tx.store.holders(host["id"])
        slot = tx.store.fleet.pool(host["pool"]).slot(host["id"])
        gpus = [_gpu(asdict(gpu), held.get(gpu.gpu_id), samples.get(gpu.gpu_id)) for gpu in tx.store.gpus(host["id"])]
        hosts.append(
            {
                "id": host["id"],
                "name": host["name"],
                "connected": bool(host["connected"]),
                "cpuUnits": {"total": slot.total.cpu_units, "free": slot.cpu_units},
                "memoryMiB": {"total": slot.total.memory_mib, "free": slot.memory_mib},
                "gpus": gpus,
            }
        )
    waiting = [
        {"task": claim.task_id, "sinceS": claim.since_s, "reason": why_waits(tx, pool, claim)}
        for pool in sorted({host["pool"] for host in tx.store.hosts()})
        for claim in list(tx.store.fleet.pool(pool).heads())[:CLAIMS_SHOWN_MAX]
    ]
    return {"version": corral.__version__, **about, "tasks": tx.store.task_counts(), "hosts": hosts, "waiting": waiting}


def _gpu(device: dict[str, Any], task_id: str | None, sample: GpuSample | None) -> dict[str, Any]:
    return {
        "id": device["gpu_id"],
        "index": device["index"],
        "model": device["model"],
        "memoryMiB": device["memory_mib"],
        "simulated": device["simulated"],
        "task": task_id,
        "utilizationPercent": sample.utilization_percent if sample else None,
        "memoryUsedMiB": sample.memory_used_mib if sample else None,
        "powerW": sample.power_w if sample else None,
        "temperatureC": sample.temperature_c if sample else None,
    }
