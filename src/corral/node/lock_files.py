"""Lock files, by which all processes of a run, of a health check or of a session can be found.

A session runs a command of ECS ExecuteCommand. Each of these processes inherits a lock from its parent. The kernel releases the
lock only when the last of these processes has ended or has closed the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterable

from corral.node.procfs import real_uid


def open_locked(path: str) -> int:
    """Open the file for appending and lock it. Processes that inherit the descriptor also hold the lock."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def is_held(path: str) -> bool:
    """Whether a process holds the lock of this file. The result is False if the file does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holders(paths: Iterable[str], uid: int | None = None) -> dict[str, list[int]]:
    """Return path → the pids of the processes that hold the lock. This is slow, because it reads all of /proc.

    With `uid`, return only the processes of this user: a process can pass the lock to one of another user through a socket, so that
    Corral would kill or stop that one as root.
    """
    wanted = _inodes(paths)
    found: dict[str, list[int]] = {path: [] for path in wanted.values()}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (uid is None or real_uid(entry) == uid):
            for path in _locked_by(entry, wanted):
                found[path].append(int(entry))
    return found


def kill_holders(paths: Iterable[str], uid: int | None = None) -> bool:
    """Send SIGKILL to every process that holds one of these locks; with `uid`, as in `holders`. Return whether there were any."""
    paths = list(paths)
    wanted = _inodes(paths)
    # Kill parents before their children. Otherwise a parent could report that its killed child ended normally. A parent has a
    # smaller pid than its children, unless the kernel began again with small pids between their starts.
    found = sorted({pid for pids in holders(paths, uid).values() for pid in pids})
    for pid in found:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            # Check again, because the pid may have been reused before pidfd_open, but not after it.
            if _locked_by(str(pid), wanted) and (uid is None or real_uid(pid) == uid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except OSError:
            pass  # the process has just ended, or another user owns it; in the second case its run is still alive
        finally:
            os.close(handle)
    return bool(found)


def _inodes(paths: Iterable[str]) -> dict[tuple[int, int], str]:
    wanted = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            about = os.stat(path)
            wanted[about.st_dev, about.st_ino] = path
    return wanted


def _locked_by(pid: str, wanted: dict[tuple[int, int], str]) -> set[str]:
    """Return the paths whose lock this process holds. It is not enough that the process has the file open."""
    found: set[str] = set()
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found  # the process has ended, or another user owns it
    for fd in fds:
        with contextlib.suppress(OSError):  # the process closed the descriptor in the meantime
            about = os.stat(f"/proc/{pid}/fd/{fd}")
            path = wanted.get((about.st_dev, about.st_ino))
            if path is not None and _has_flock(f"/proc/{pid}/fdinfo/{fd}"):
                found.add(path)
    return found


def _has_flock(fdinfo: str) -> bool:
    """Whether the descriptor holds a lock. The kernel lists the lock in the fdinfo of every such descriptor."""
    with open(fdinfo, "rb") as file:
        return b"FLOCK" in file.read()
