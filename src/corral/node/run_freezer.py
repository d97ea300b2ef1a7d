"""Stops and continues all processes of a run, for a pause.

A cgroup of version 2 is frozen as a whole. Other processes of a run get SIGSTOP: all of them if there is no such cgroup, and
otherwise those that have left the cgroup and those of sessions of ECS Exec.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from corral.node import lock_files, node_folder, procfs, run_cgroups
from corral.node.run_journal import last_record
from corral.node.run_processes import find_processes, resume
from corral.node.spawner_protocol import SpawnedRun

FREEZE_MAX_S = 20.0
POLL_S = 0.005
MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))  # of versions 2 and 1
UNLIMITED = 1 << 60
STOPPED = b"TtZXxD"  # a process in an uninterruptible call stops before it executes code of its program


class CannotFreeze(Exception):
    """The processes of a run cannot be stopped or continued. The message says why."""


class PausableRun(Protocol):
    """The processes of a run. Methods raise CannotFreeze."""

    others: list[tuple[int, float]]  # the processes that are stopped one by one: pid, start time

    def freeze(self) -> list[int]:
        """Stop all processes. Return their pids. An empty list: the run has ended."""
        ...

    def thaw(self) -> list[int]:
        """Continue all processes, whatever has stopped them. Return their pids."""
        ...

    def memory(self) -> dict[str, tuple[int, int]]:
        """Return where the run has a memory limit → (limit, use), in bytes."""
        ...

    def set_limit(self, where: str, size: int) -> None: ...

    def room(self) -> int | None:
        """Return how many bytes the cgroups above that of the run have left. None: they have no limit."""
        ...


class ProcessRun:
    """A run of the spawner."""

    def __init__(self, data: Path, run: SpawnedRun, sessions: Iterable[str], others: Iterable[tuple[int, float]]) -> None:
        self._data = data
        self._run = run
        self._sessions = list(sessions)
        self.others = list(others)

    def pids(self) -> list[int]:
        found = find_processes(self._data, {f"{self._data}/output/{self._run.run_id}": self._run}).get(self._run.run_id, [])
        if self._sessions:
            found += [pid for pids in lock_files.holders(self._sessions, self._run.uid).values() for pid in pids]
        return sorted({*found} - {os.getpid(), self._spawner()})

    def _spawner(self) -> int | None:
        return node_folder.lock_owner(self._data / "spawner.lock")

    def freeze(self) -> list[int]:
        group, give_up_s = self._run.group, time.monotonic() + FREEZE_MAX_S
        frozen = group is not None and self._spawner() not in run_cgroups.pids(group) and set_frozen(group, frozen=True)
        while group is not None and frozen and not is_frozen(group):
            _check_time(give_up_s, "its cgroup does not freeze")
            time.sleep(POLL_S)
        inside = {*run_cgroups.pids(group)} if group is not None and frozen else set[int]()
        stopped = set[int]()
        while True:  # a process may fork before it is stopped
            pids = self.pids()
            fresh = [pid for pid in pids if pid not in inside and pid not in stopped]
            for pid in fresh:
                if (since := procfs.started_boot_s(pid)) is not None:
                    self.others.append((pid, since))
                    _signal(pid, signal.SIGSTOP)
            while not all(procfs.state(pid) in STOPPED for pid in fresh):
                _check_time(give_up_s, "a process does not stop")
                time.sleep(POLL_S)
            if not fresh:
                return pids
            stopped.update(fresh)
            _check_time(give_up_s, "it starts processes all the time")

    def thaw(self) -> list[int]:
        thaw(self._run, self.others)
        self.others = []
        pids = self.pids()
        for pid in pids:
            if procfs.is_stopped(pid):  # by the output guard, or before the pause program was killed
                _signal(pid, signal.SIGCONT)
        return pids

    def memory(self) -> dict[str, tuple[int, int]]:
        return {where: memory for folder in self._folders() for where, memory in memory_limits(folder)}

    def room(self) -> int | None:
        return min((room for folder in self._folders() for room in rooms_above(folder)), default=None)

    def _folders(self) -> list[Path]:
        """Return the folders of the cgroup of the run, in each hierarchy."""
        name = (self._run.group or "").rpartition("/")[2]
        return [Path(line) / name for line in (self._data / "cgroups").read_text().splitlines()] if name else []

    def set_limit(self, where: str, size: int) -> None:
        try:
            Path(where).write_text(str(size))
        except OSError as error:
            raise CannotFreeze(f"its memory limit cannot be set: {where}: {error.strerror}") from None


def memory_limits(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the memory limit of a cgroup: the path of its file, the limit, and how much is used."""
    for limit, use in MEMORY_FILES:
        with contextlib.suppress(OSError, ValueError):  # ValueError: the limit is "max"
            size = int((folder / limit).read_text())
            if size < UNLIMITED:
                yield str(folder / limit), (size, int((folder / use).read_text()))


def rooms_above(folder: Path) -> Iterator[int]:
    """Yield how many bytes each cgroup above this one has left. A lender such as Slurm limits the cgroup of its job."""
    for above in folder.parents:
        for _, (limit, used) in memory_limits(above):
            stat = dict(line.split()[:2] for line in (above / "memory.stat").read_text().splitlines())
            files = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))  # the kernel can drop them; version 1 or 2
            yield max(0, limit - used + files)


def process_run(data: Path, run_id: str, sessions: Iterable[str], others: Iterable[tuple[int, float]]) -> ProcessRun | None:
    """Return a run of the spawner, or None if it has ended."""
    run = last_record(data / "journal", run_id)
    return None if run is None or not run.alive else ProcessRun(data, run, sessions, others)


def thaw(run: SpawnedRun, others: Iterable[tuple[int, float]]) -> None:
    """Continue the processes of a run. `others` are stopped processes outside its cgroup."""
    if run.group is not None:
        set_frozen(run.group, frozen=False)
    resume(run, [pid for pid, since in others if procfs.started_boot_s(pid) == since])


def set_frozen(group: str, *, frozen: bool) -> bool:
    """Freeze or thaw a cgroup. Return False if that is not possible: the cgroup has version 1, or does not exist."""
    try:
        fd = os.open(f"{group}/cgroup.freeze", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, b"1" if frozen else b"0")
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def is_frozen(group: str) -> bool:
    try:
        return "frozen 1" in Path(f"{group}/cgroup.events").read_text()
    except OSError:
        return True  # the run has ended


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _check_time(give_up_s: float, why: str) -> None:
    if time.monotonic() > give_up_s:
        raise CannotFreeze(f"the processes of the run cannot be stopped within {FREEZE_MAX_S:g} s: {why}")
