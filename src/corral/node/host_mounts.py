"""Bind the host paths of containers, opened as the Unix account of the task's owner, into a folder that only root can change.

The Docker engine is root, and finds a path by its name. If it mounted the path itself, the owner of a folder could replace it by a
link to any other path after a check. So a process with the rights of the account opens the path (`path_opener.py`), the descriptor
is bound to `mounts/RUN/NUMBER`, and the engine mounts this. The bind is removed as soon as the container has started, because the
container has a mount of its own then. Otherwise, a person who deletes the data folder would delete files of users. A new agent
removes the binds that a killed agent has left.

A container has one group only: the primary group of the account, or another of its groups if only that one may read all the paths.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from corral.node import mount_calls, path_opener
from corral.node.account_process import Account

FOLDER = "mounts"  # in the folder of the node
OPEN_MAX_S = 10.0
GROUPS_MAX = 64
MESSAGE_BYTES = 4096

log = logging.getLogger("corral.node")


class CannotMount(Exception):
    """A host path cannot be mounted. The message says why, and names the account."""


class HostPath(Struct, frozen=True):
    path: str
    read_only: bool  # the container does not write to it


class BoundPath(Struct, frozen=True):
    source: str  # where the path is bound
    read_only: bool


class BoundPaths(Struct, frozen=True):
    """The host paths of a run, in the order in which they were given, and the user and group with which they were opened."""

    uid: int
    gid: int
    paths: tuple[BoundPath, ...]


class _Opened(Struct):
    descriptor: int = -1
    folder: bool = False
    writable: bool = False
    error: str = ""


class HostMounts:
    """All methods block, so the agent calls them in threads."""

    def __init__(self, data: Path) -> None:
        self._folder = data / FOLDER
        self._lock = threading.Lock()

    def bind(self, run_id: str, account: Account, wanted: Sequence[HostPath]) -> BoundPaths:
        """Open host paths as the account and bind them. Raise CannotMount if the account may not read one of them."""
        if not wanted:  # another container of the task mounts a path of the host
            return BoundPaths(account.uid, account.gid, ())
        gid, opened = _open_best(account, wanted)
        try:
            with self._lock:
                return BoundPaths(account.uid, gid, self._bind(run_id, opened, wanted))
        except OSError as error:
            self.release(run_id)
            raise CannotMount(f"the host paths of the account {account.name} cannot be bound: {error}") from None
        finally:
            _close(opened)

    def _bind(self, run_id: str, opened: Sequence[_Opened], wanted: Sequence[HostPath]) -> tuple[BoundPath, ...]:
        folder = self._folder / run_id
        self._release(folder)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if not mount_calls.is_mount(self._folder):
            mount_calls.bind_to_itself(self._folder)
        folder.mkdir(mode=0o700)
        found = []
        for number, (each, path) in enumerate(zip(opened, wanted, strict=True)):
            target, read_only = folder / str(number), path.read_only or not each.writable
            if each.folder:
                target.mkdir(mode=0o700)
            else:
                target.touch(mode=0o600)
            mount_calls.bind_descriptor(each.descriptor, target, read_only=read_only)
            found.append(BoundPath(str(target), read_only))
        return tuple(found)

    def release(self, run_id: str) -> None:
        """Remove the binds of a run. Does nothing if it has none."""
        with self._lock:
            self._release(self._folder / run_id)
            if mount_calls.is_mount(self._folder) and not any(self._folder.iterdir()):
                mount_calls.unmount(self._folder)

    def release_all(self) -> None:
        """Remove the binds that an earlier agent has left."""
        with self._lock, contextlib.suppress(FileNotFoundError):
            for folder in list(self._folder.iterdir()):
                self._release(folder)
            while mount_calls.is_mount(self._folder):
                mount_calls.unmount(self._folder)

    def _release(self, folder: Path) -> None:
        """Remove the binds in the folder of a run. It uses no call that could delete a file in what is mounted there."""
        try:
            for point, _ in reversed(mount_calls.mounts_below(folder)):
                with contextlib.suppress(FileNotFoundError):  # it was below another one, which is unmounted
                    mount_calls.unmount(point)
            for target in list(folder.iterdir()):
                target.rmdir() if target.is_dir() else target.unlink()
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("the binds in %s cannot be removed: %s", folder, error)


def _open_best(account: Account, wanted: Sequence[HostPath]) -> tuple[int, list[_Opened]]:
    """Open all paths as the account, with the group that lets it read all of them and write to most. Return this group, too."""
    name, paths = account.name, [each.path for each in wanted]
    best: tuple[int, int, list[_Opened]] | None = None
    readable: set[str] = set()
    faults: dict[str, str] = {}
    groups = os.getgrouplist(name, account.gid)
    for gid in [account.gid, *(each for each in groups if each != account.gid)][:GROUPS_MAX]:
        opened = open_as(account.uid, gid, paths)
        readable |= {path for path, each in zip(paths, opened) if not each.error}
        faults = {**{path: each.error for path, each in zip(paths, opened) if each.error}, **faults}
        limited = sum(not path.read_only and not each.writable for path, each in zip(wanted, opened))
        if any(each.error for each in opened) or (best is not None and limited >= best[1]):
            _close(opened)
            continue
        if best is not None:
            _close(best[2])
        best = gid, limited, opened
        if not limited:
            break
    if best is not None:
        return best[0], best[2]
    for path in paths:
        if path not in readable:
            raise CannotMount(f"the account {name} cannot open {path}: {faults[path]}")
    raise CannotMount(f"a container has one group, and none of the groups of {name} may read all of {', '.join(paths)}")


def open_as(uid: int, gid: int, paths: Sequence[str]) -> list[_Opened]:
    """Open paths in a process with this user and this one group."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.settimeout(OPEN_MAX_S)
        with theirs:
            command = [sys.executable, "-I", "-S", path_opener.__file__, str(uid), str(gid), str(theirs.fileno()), *paths]
            opener = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}, cwd="/",
                pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        opened: list[_Opened] = []
        try:
            for _ in paths:
                data, descriptors, _, _ = socket.recv_fds(ours, MESSAGE_BYTES, 1)
                opened.append(_Opened(descriptors[0] if descriptors else -1))
                if not data:
                    raise OSError("the process that opens them has ended")
                about = json.loads(data)
                opened[-1].folder, opened[-1].writable = bool(about.get("folder")), bool(about.get("writable"))
                opened[-1].error = str(about.get("error") or ("" if descriptors else "there is no descriptor"))
        except (OSError, ValueError) as error:
            _close(opened)
            why = f"no answer within {OPEN_MAX_S:.0f} seconds" if isinstance(error, TimeoutError) else str(error)
            raise CannotMount(f"the host paths cannot be opened: {why}") from None
        finally:
            opener.kill()
            opener.wait()
    return opened


def _close(opened: Sequence[_Opened]) -> None:
    for each in opened:
        if each.descriptor >= 0:
            os.close(each.descriptor)
            each.descriptor = -1


def host_paths_fault(engine: str, *, maps_ids: bool) -> str:
    """Return why an engine at this address cannot mount what this process binds. Return an empty text if it can."""
    path = engine.removeprefix("unix://")
    if path == engine:
        return f"the Docker engine at {engine} is not reached by a socket of this host"
    if maps_ids:
        return "the Docker engine maps user ids (userns-remap or rootless mode), so the account would not be itself in a container"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        try:
            connection.connect(path)
            (pid,) = memoryview(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)).cast("i")[:1]
            if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
                return ""
        except OSError as error:
            return f"the process of the Docker engine is not known: {error}"
    return "Corral and the Docker engine have different mount namespaces. Run both in the same (systemd: without PrivateMounts=)"
