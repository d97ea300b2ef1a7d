"""Read facts about the processes of this machine from /proc."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NO_OWNER = 0  # no process has this pid


class Process(NamedTuple):
    pid: int
    session: int
    user_s: float
    system_s: float
    reaped_user_s: float  # CPU time of its descendants that have ended and were waited for
    reaped_system_s: float
    threads: int
    started_boot_s: float
    memory_bytes: int  # resident memory

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s

    @property
    def memory_mib(self) -> float:
        return self.memory_bytes / 2**20


def processes() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = _stat(entry)
        except OSError:
            continue  # the process has just ended
        yield Process(
            pid=int(entry),
            session=int(fields[3]),
            user_s=int(fields[11]) / _CLOCK_TICKS_PER_S,
            system_s=int(fields[12]) / _CLOCK_TICKS_PER_S,
            reaped_user_s=int(fields[13]) / _CLOCK_TICKS_PER_S,
            reaped_system_s=int(fields[14]) / _CLOCK_TICKS_PER_S,
            threads=int(fields[17]),
            started_boot_s=int(fields[19]) / _CLOCK_TICKS_PER_S,
            memory_bytes=int(fields[21]) * _PAGE_BYTES,
        )


def waited_s(pid: int) -> float:
    """Return how long the first thread of a process was ready to run and had no core. Return 0 if /proc does not show it."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):  # the process has just ended, or the kernel does not count
        return 0.0


def boot_s() -> float:
    """Return the time since boot, including suspended time.

    All timers of the spawner (`spawner.py`) use this time, so a later spawner of the same boot can continue them.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def started_boot_s(pid: int) -> float | None:
    """Return when the process started, on CLOCK_BOOTTIME. Return None if the process does not exist."""
    try:
        return int(_stat(pid)[19]) / _CLOCK_TICKS_PER_S
    except (FileNotFoundError, ProcessLookupError):
        return None


class OwnChildren:
    """The direct children of this process. The process must have only one thread, because /proc lists the children of one thread.

    The file in /proc stays open, because opening it takes longer than reading it.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        try:
            self._fd = os.open(f"/proc/{self._pid}/task/{self._pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # the kernel was built without CONFIG_PROC_CHILDREN
            self._fd = -1

    def pids(self) -> list[int]:
        if self._fd < 0:
            return [child for child in _pids() if _parent(child) == self._pid]
        text, at = b"", 0
        while part := os.pread(self._fd, 65_536, at):
            text, at = text + part, at + len(part)
        return [int(child) for child in text.split()]


def environment(pid: int | str) -> bytes:
    """Return the environment with which a process was started. Raises OSError if it has ended or another user owns it."""
    found, fd = b"", os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, 65_536):
            found += part
    finally:
        os.close(fd)
    return found


def with_variable(name: str, among: Iterable[int] | None = None) -> dict[int, str]:
    """Return pid → value for the processes that were started with this environment variable. `among` limits the search."""
    found, prefix = {}, name.encode() + b"="
    for pid in _pids() if among is None else among:
        try:
            pairs = environment(pid).split(b"\0")
        except OSError:
            continue  # the process has just ended, or another user owns it
        value = next((pair[len(prefix) :] for pair in pairs if pair.startswith(prefix)), None)
        if value is not None:
            found[pid] = value.decode(errors="replace")
    return found


def kill_with_variable(name: str, value: str, among: Iterable[int] | None = None) -> bool:
    """Send SIGKILL to the processes that were started with this value of the variable. Return whether there were any."""
    found = [pid for pid, its in with_variable(name, among).items() if its == value]
    for pid in found:
        with suppress(OSError):  # the process has just ended
            handle = os.pidfd_open(pid)
            try:
                # Check again, because the pid may have been reused before pidfd_open.
                if with_variable(name, [pid]).get(pid) == value:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
    return bool(found)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _stat(pid: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat that follow the name: the state, the parent, the process group, the session, and others.

    Raises OSError if the process has ended.
    """
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).rpartition(b")")[2].split()
    finally:
        os.close(fd)


def _parent(pid: int) -> int | None:
    try:
        return int(_stat(pid)[1])
    except OSError:
        return None


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    return state(pid) in b"Tt"


def state(pid: int) -> bytes:
    """Return the letter of the state of a process, for example R. Return X if it has ended."""
    try:
        return _stat(pid)[0]
    except OSError:
        return b"X"


def real_uid(pid: int | str) -> int | None:
    """Return the user that has started a process. A setuid program does not change it. Return None if the process has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(b"Uid:"))
    except (OSError, StopIteration):
        return None


def why_silent(pid: int | None) -> str:
    """Return the end of an error message about a process of Corral that does not respond: its pid, and whether it is stopped."""
    if pid is None:
        return ""
    return f": process {pid} is stopped; continue it with `kill -CONT {pid}`" if is_stopped(pid) else f" (process {pid})"


def read_and_written(pid: int) -> tuple[int, int]:
    """Return the bytes that a process and its ended children have read from disk, and have written to disk.

    Return zeros if /proc does not show them.
    """
    counters: dict[bytes, int] = {}
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            for line in file:
                name, _, value = line.partition(b":")
                counters[name] = int(value)
    except OSError:
        pass  # the process has just ended, or another user owns it
    return counters.get(b"read_bytes", 0), counters.get(b"write_bytes", 0)


def host_cpu_s() -> float:
    """Return the CPU time of all cores since the boot, including idle time."""
    with open("/proc/stat", "rb") as file:
        ticks = file.readline().split()[1:8]  # user, nice, system, idle, iowait, irq, softirq
    return sum(int(tick) for tick in ticks) / _CLOCK_TICKS_PER_S


def is_ours(pid: int, ours: Collection[int]) -> bool | None:
    """Whether a process descends from one of these pids, or belongs to a session that one of them leads.

    Return None if /proc does not show the process.
    """
    owner = owner_of(pid, ours)
    return None if owner is None else owner != NO_OWNER


def owner_of(pid: int, owners: Collection[int]) -> int | None:
    """Return the pid of `owners` from which a process descends, or which leads the session of the process or of an ancestor.

    Return NO_OWNER if there is none, and None if /proc does not show the process.
    """
    at = pid
    while at > 1:
        try:
            fields = _stat(at)
        except OSError:
            return None if at == pid else NO_OWNER
        if at in owners:
            return at
        if int(fields[3]) in owners:
            return int(fields[3])
        at = int(fields[1])
    return NO_OWNER


def process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def become_subreaper() -> None:
    """Make this process the new parent of its orphaned descendants, so that it can find them.

    Otherwise init would be their parent.
    """
    import ctypes  # imported here, because only the spawner needs it

    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
