"""The processes of runs: find processes that an earlier spawner started, and pause all processes of a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from corral.node import lock_files, procfs, run_cgroups
from corral.node.spawner_protocol import RUN_VARIABLE, SpawnedRun, run_mark

PAUSE_ROUNDS = 10
START_SHORT_S = 0.5  # less than the difference that `is_same_process` accepts


def find_processes(data: Path, outputs: Mapping[str, SpawnedRun]) -> dict[str, list[int]]:
    """Return run id → the pids of its processes. `outputs` maps the path of an output file to its run.

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
        if run.uid is not None:  # a process of another account can have the lock and the variable, too
            found[run.run_id] = [pid for pid in found.get(run.run_id, ()) if procfs.real_uid(pid) == run.uid]
        if run.group is not None:
            found[run.run_id] = sorted({*found.get(run.run_id, ()), *run_cgroups.pids(run.group)})
    return found


def main_process(pids: list[int]) -> int:
    """Return the main process of a run, which is the leader of its session. If it has ended, return the smallest pid."""
    return next((pid for pid in pids if _session(pid) == pid), min(pids))


def process_started_boot_s(pid: int, before_boot_s: float) -> float:
    """Return the start time of a child that was started just now, but not before `before_boot_s`.

    If the start took long, because the machine is busy, ask the kernel: `is_same_process` needs a good estimate.
    """
    if procfs.boot_s() - before_boot_s < START_SHORT_S:
        return before_boot_s
    since = procfs.started_boot_s(pid)
    return before_boot_s if since is None else since


def is_same_process(run: SpawnedRun) -> bool:
    """Whether the pid still belongs to the run's main process. Another process with the same pid has a different start time."""
    if run.pid is None or run.started_boot_s is None:
        return False
    since = procfs.started_boot_s(run.pid)
    return since is not None and -0.02 <= since - run.started_boot_s < 1.0  # the kernel's times have a precision of 0.01 seconds


def pause(run: SpawnedRun, *, but_not: int) -> None:
    """Stop the processes of a run, except `but_not`, until `resume` or SIGKILL.

    If the run has no cgroup, stop only its process group.
    """
    if run.group is None:
        _signal_group(run, signal.SIGSTOP)
        return
    paused = {but_not}
    for _ in range(PAUSE_ROUNDS):  # a process may fork before it is stopped
        fresh = [pid for pid in run_cgroups.pids(run.group) if pid not in paused]
        if not fresh:
            return
        _signal_each(fresh, signal.SIGSTOP)
        paused.update(fresh)


def pause_writers(output: str, uid: int | None) -> list[int]:
    """Stop the processes that hold the lock of an output file, in any process group. Return their pids. `uid` is of the run."""
    pids = lock_files.holders([output], uid).get(output, [])
    _signal_each(pids, signal.SIGSTOP)
    return pids


def resume(run: SpawnedRun, others: Iterable[int] = ()) -> None:
    """Continue the processes of a run. `others` are stopped processes of the run outside its process group."""
    if run.group is not None:
        _signal_each(run_cgroups.pids(run.group), signal.SIGCONT)
    else:
        _signal_group(run, signal.SIGCONT)
    _signal_each(others, signal.SIGCONT)


def _signal_group(run: SpawnedRun, number: signal.Signals) -> None:
    if run.pid is not None and is_same_process(run):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(run.pid, number)


def _signal_each(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
