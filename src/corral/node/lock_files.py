"""Lock files: every process of a run, of a health check or of a session inherits a lock, by which it can be found.

A lock belongs to an open file description. Child processes inherit it, so the lock is held until the last of them has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterable


def open_locked(path: str) -> int:
    """Open the file for appending and lock it. Processes that inherit the descriptor keep the lock."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def is_held(path: str) -> bool:
    """Whether a process holds the lock that `open_locked` took. A missing file is not held."""
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


def holders(paths: Iterable[str]) -> dict[str, list[int]]:
    """The pids that hold each lock. This reads all of /proc, so it is not for the common case."""
    wanted = _inodes(paths)
    found: dict[str, list[int]] = {path: [] for path in wanted.values()}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            for path in _locked_by(entry, wanted):
                found[path].append(int(entry))
    return found


def kill_holders(paths: Iterable[str]) -> None:
    """Send SIGKILL to every process that holds one of these locks."""
    paths = list(paths)
    wanted = _inodes(paths)
    # Parents first (pids grow): a parent must not live to report that its killed child ended by itself.
    for pid in sorted({pid for pids in holders(paths).values() for pid in pids}):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _locked_by(str(pid), wanted):  # check again: from here on the pid cannot be reused
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except OSError:
            pass  # it has just ended, or another user owns it: then its run has not ended
        finally:
            os.close(handle)


def _inodes(paths: Iterable[str]) -> dict[tuple[int, int], str]:
    wanted = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            about = os.stat(path)
            wanted[about.st_dev, about.st_ino] = path
    return wanted


def _locked_by(pid: str, wanted: dict[tuple[int, int], str]) -> set[str]:
    """The files whose lock this process holds. Processes that only have a file open for reading do not count."""
    found: set[str] = set()
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found  # the process has ended, or another user owns it
    for fd in fds:
        with contextlib.suppress(OSError):  # the process closed the descriptor in between
            about = os.stat(f"/proc/{pid}/fd/{fd}")
            path = wanted.get((about.st_dev, about.st_ino))
            if path is not None and _has_flock(f"/proc/{pid}/fdinfo/{fd}"):
                found.add(path)
    return found


def _has_flock(fdinfo: str) -> bool:
    """The kernel lists a lock only for the open file description that holds it."""
    with open(fdinfo, "rb") as file:
        return b"FLOCK" in file.read()
