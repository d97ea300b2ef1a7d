"""Rows for tests: a host with GPUs, tasks and their runs."""

from __future__ import annotations

from corral.journal import Journal
from corral.model.instance import HOST_POOL, host_instance_id
from corral.model.run import GpuDevice, Hello, RunState
from corral.model.task import Demand, PlacementRules, Run, Task, TaskState
from corral.store import Store
from corral.store.claims import Claims
from corral.store.fleet import Fleet
from corral.store.instances import Instances
from corral.store.job_lines import JobLines

OWN = host_instance_id("h")  # the own instance of the host `h`


def hello(
    host_id: str = "h", gpus: int = 4, *, boot_id: str = "boot", cpu_units: int = 4096, memory_mib: int = 4096,
    gpu_memory_mib: int = 16_000,
) -> Hello:  # fmt: skip
    shown = [GpuDevice(f"GPU-{host_id}-{at}", at, "Simulated", gpu_memory_mib, simulated=True) for at in range(gpus)]
    return Hello(host_id, boot_id, f"host {host_id}", "sim", cpu_units, memory_mib, shown, [])


def claim(
    task_id: str, gpus: int = 1, *, since_s: float = 1.0, cpu_units: int = 0, memory_mib: int = 0,
    rules: PlacementRules | None = None, pool: str = HOST_POOL, gpu_memory_mib: int = 0,
) -> Task:  # fmt: skip
    """A task that waits for capacity."""
    run = Run(f"run-{task_id}", task_id, "c", 0, True, gpus, RunState.PENDING, gpu_memory_mib=gpu_memory_mib)
    return Task(
        task_id,
        "r",
        "default",
        "arn",
        pool,
        TaskState.PROVISIONING,
        TaskState.RUNNING,
        Demand(gpus, cpu_units, memory_mib, rules, gpu_memory_mib=gpu_memory_mib),
        since_s,
        runs=(run,),
    )


def derived_fleet(store: Store) -> Fleet:
    """A fleet index that is rebuilt from the rows."""
    return derived_index(store)[0]


def derived_index(store: Store) -> tuple[Fleet, Claims]:
    fleet = Fleet(Journal())
    claims = Claims(store, fleet)
    Instances(store, fleet, claims).rebuild_slots()
    claims.rebuild()
    JobLines(store, fleet).rebuild()
    return fleet, claims
