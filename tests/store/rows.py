"""Rows for tests: a host with GPUs, tasks and their runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.core.undo_log import UndoLog
from corral.model.agent_protocol import Hello, HostOptions
from corral.model.gpu import GpuDevice
from corral.model.instance import host_instance_id, host_pool
from corral.model.run import RunState
from corral.model.task import Demand, PlacementRules, Run, Task, TaskState
from corral.store import Store
from corral.store.claims import Claims
from corral.store.fleet import Fleet
from corral.store.instances import Instances
from corral.store.job_lines import JobLines

OWN = host_instance_id("h")  # the own instance of the host `h`


def hello(
    host_id: str = "h", gpus: int = 4, *, boot_id: str = "boot", cpu_units: int = 4096, memory_mib: int = 4096,
    gpu_memory_mib: int = 16_000, options: HostOptions | None = None,
) -> Hello:  # fmt: skip
    shown = [GpuDevice(f"GPU-{host_id}-{at}", at, "Simulated", gpu_memory_mib, simulated=True) for at in range(gpus)]
    return Hello(host_id, boot_id, f"host {host_id}", cpu_units, memory_mib, shown, [], options or HostOptions())


def claim(
    task_id: str, gpus: int = 1, *, since_s: float = 1.0, cpu_units: int = 0, memory_mib: int = 0,
    rules: PlacementRules | None = None, pool: str = host_pool("default"), gpu_memory_mib: int = 0,
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
        owner="root",
    )


def derived_fleet(store: Store) -> Fleet:
    """A fleet index that is rebuilt from the rows."""
    return derived_index(store)[0]


def derived_index(store: Store) -> tuple[Fleet, Claims]:
    fleet = Fleet(UndoLog())
    claims = Claims(store, fleet, None)
    Instances(store, fleet, claims, store.owner_uses).rebuild_slots()
    claims.rebuild()
    JobLines(store, fleet).rebuild()
    return fleet, claims


class FromRows:
    """A value that is derived from the rows of a store. It is derived again only after a row was written."""

    def __init__(self, derive: Callable[[Store], Any]) -> None:
        self._derive = derive
        self._at: tuple[Store, int] | None = None
        self._value: Any = None

    def value(self, store: Store) -> Any:
        at = (store, store.connection.total_changes)  # also counts the changes that were rolled back
        if at != self._at:
            assert not store.connection.in_transaction  # a rollback would change rows without being counted
            self._value, self._at = self._derive(store), at
        return self._value


def fleet_of_rows() -> FromRows:
    """The snapshot of a fleet index that is rebuilt from the rows."""
    return FromRows(lambda store: derived_fleet(store).snapshot())
