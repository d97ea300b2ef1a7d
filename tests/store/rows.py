"""Rows to begin with: a host with GPUs, tasks and their runs."""

from __future__ import annotations

from corral.model.rules import Rules
from corral.model.run import GpuDevice, Hello, RunState
from corral.model.task import Ask, Run, Task, TaskState
from corral.store import HOST_POOL


def hello(host_id: str = "h", gpus: int = 4, *, boot_id: str = "boot", cpu_units: int = 4096, memory_mib: int = 4096) -> Hello:
    shown = [GpuDevice(f"GPU-{host_id}-{at}", at, "Simulated", 16_000, simulated=True) for at in range(gpus)]
    return Hello(host_id, boot_id, f"host {host_id}", "sim", cpu_units, memory_mib, shown, [])


def claim(
    task_id: str, gpus: int = 1, *, since_s: float = 1.0, cpu_units: int = 0, memory_mib: int = 0, rules: Rules | None = None
) -> Task:
    """A task that waits."""
    run = Run(f"run-{task_id}", task_id, "c", 0, True, gpus, RunState.PENDING)
    return Task(
        task_id,
        "r",
        "default",
        "arn",
        HOST_POOL,
        TaskState.PROVISIONING,
        TaskState.RUNNING,
        Ask(gpus, cpu_units, memory_mib, rules),
        since_s,
        runs=(run,),
    )
