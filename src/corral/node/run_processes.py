"""Find the living processes of runs that an earlier spawner started, and find their main processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from corral.node import lock_files, procfs, run_cgroups
from corral.node.spawner_protocol import RUN_VARIABLE, SpawnedRun, run_mark


def find_processes(data: Path, outputs: Mapping[str, SpawnedRun]) -> dict[str, list[int]]:
    """Return run id → the pids of its processes.

    A process of a run holds the lock of the run's output file, has the variable RUN_VARIABLE in its environment, or is in the run's
    cgroup.
    """
    if not outputs:
        return {}
    found = {outputs[path].run_id: pids for path, pids in lock_files.holders(outputs).items()}
    run_ids = {run_mark(data, run.run_id): run.run_id for run in outputs.values()}
    for pid, mark in procfs.with_variable(RUN_VARIABLE).items():
        if mark in run_ids and pid not in found.setdefault(run_ids[mark], []):
            found[run_ids[mark]].append(pid)
    for run in outputs.values():
        if run.group is not None:
            found[run.run_id] = sorted({*found.get(run.run_id, ()), *run_cgroups.pids(run.group)})
    return found


def main_process(pids: list[int]) -> int:
    """Return the main process of a run, which is the leader of its session. If it has ended, return the smallest pid."""
    return next((pid for pid in pids if _session(pid) == pid), min(pids))


def is_same_process(run: SpawnedRun) -> bool:
    """Whether the pid still belongs to the run's main process. Another process with the same pid has a different start time."""
    if run.pid is None or run.started_boot_s is None:
        return False
    since = procfs.started_boot_s(run.pid)
    return since is not None and -0.02 <= since - run.started_boot_s < 1.0  # the kernel's times have a precision of 0.01 seconds


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
