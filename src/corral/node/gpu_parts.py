"""Divides the load of a GPU among the runs that share it.

The driver measures the load of each process on the GPU. A process belongs to a run if it descends from the main process of the run,
is in its session, or was started with the run's environment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from corral.model.gpu_metrics import GpuPart
from corral.node.procfs import NO_OWNER, owner_of, with_variable
from corral.node.spawner_protocol import RUN_VARIABLE


def run_of(pid: int, runs: Mapping[str, int]) -> str | None:
    """Return the run to which a process belongs. `runs` is run id → the pid of its main process.

    Return an empty text if it belongs to none of these runs, and None if /proc does not show the process.
    """
    by_pid = {main: run_id for run_id, main in runs.items()}
    owner = owner_of(pid, by_pid)
    if owner is None:
        return None
    if owner != NO_OWNER:
        return by_pid[owner]
    mark = with_variable(RUN_VARIABLE, [pid]).get(pid, "")
    return next((run_id for run_id in runs if mark.endswith(f"/{run_id}")), "")


def divide(
    runs: Iterable[str], load: Iterable[tuple[str, float]], memory_mib: Iterable[tuple[str, float]] | None, busy_percent: float
) -> dict[str, GpuPart]:
    """Return run id → the part of the run. `load` and `memory_mib` have one pair (run id, value) for each process.

    Processes of different runs can compute at the same time, so the sum of their loads can exceed the load of the GPU. The parts
    are reduced then: all parts together are at most `busy_percent`, the load of the GPU. So the parts become smaller if further
    runs share the GPU, and a scaling policy on them does not add tasks without end. The load of processes of no run (their run id
    is empty) counts for the sum.
    """
    loads, memory = defaultdict[str, float](float), defaultdict[str, float](float)
    for run_id, percent in load:
        loads[run_id] += percent
    for run_id, used_mib in memory_mib or ():
        memory[run_id] += used_mib
    total = sum(loads.values())
    factor = busy_percent / total if total > busy_percent else 1.0
    return {
        run_id: GpuPart(round(loads[run_id] * factor, 1), None if memory_mib is None else int(memory[run_id])) for run_id in runs
    }
