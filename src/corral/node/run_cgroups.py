"""Cgroups of runs that are processes. A cgroup lists the processes of a run, and limits their memory and their CPU share.

A process can leave its process group and its session, close all its descriptors and clear its environment. But it stays in its
cgroup, so the cgroup is a reliable list.

It joins the cgroup of a run, starts the main process of the run, and leaves the cgroup. A child process starts in the cgroup of its
parent, so every process of the run is in the cgroup from its start. The spawner sets the memory limit only after it has left the
cgroup. Otherwise the kernel could kill the spawner if the run exceeds the limit at once. The spawner sets the CPU share a little
later, because short runs do not need one.

With cgroups version 2, a run has one folder. If this user has no permission for the controllers memory and cpu, the cgroup only
lists the processes. With version 1, a run has two folders with the same name: one in the hierarchy of the controller memory, and
later one in the hierarchy of cpu. If version 2 is also mounted, the run has a third folder there, which lists the processes,
because version 2 shows in a short file (`cgroup.events`) whether a process is left. Otherwise the folder of memory lists them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path

ROOT = "/sys/fs/cgroup"
HOME = "spawner"  # the cgroup of the spawner itself
CPU_SHARES_MIN = 2  # the minimum on ECS, for a container without CPU units
CPU_SHARES_DEFAULT = 1024
SPARE_MAX = 500
SPARE_MAX_BYTES = 4 * 2**20  # a cgroup that still uses more memory, for example for files in /dev/shm, is not reused
OPEN_MAX = 250  # this many files of cgroups stay open, because opening one takes longer than using it
MOVED_MAX = 10_000  # maximum number of processes of a run that `share_cpu` moves, in case a run forks without end
MIB = 2**20


class RunCgroups:
    """The cgroups of one spawner. The cgroups of ended runs are reused, because creating a cgroup is slow."""

    def __init__(self, listing: str, memory: str | None, cpu: str | None) -> None:
        """`listing`, `memory` and `cpu` are the folders in which cgroups list processes, limit memory and share CPUs."""
        self.folders = list(dict.fromkeys(folder for folder in (listing, memory, cpu) if folder is not None))
        self._listing = listing
        self._joined = list(dict.fromkeys((listing, memory or listing)))
        self._shared: set[str] = set()  # names of cgroups whose CPU share was set
        self._spare: list[str] = []
        self._limited: set[str] = set()
        self._made: set[str] = set()  # names of the cgroups of this spawner, whose limits are known
        self._count = 0
        self._open: dict[str, int] = {}
        for folder in self.folders:
            for each in (folder, f"{folder}/{HOME}"):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(each)
                if each == folder:
                    _enable_controllers(folder)
        self._homes = [os.open(f"{folder}/{HOME}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in self._joined]
        self.leave()
        self._has_events = os.path.exists(f"{listing}/{HOME}/cgroup.events")
        self._memory_of_v1 = os.path.exists(f"{memory}/{HOME}/memory.limit_in_bytes")
        self._memory = memory if self._memory_of_v1 or os.path.exists(f"{memory}/{HOME}/memory.max") else None
        self._cpu_of_v1 = os.path.exists(f"{cpu}/{HOME}/cpu.shares")
        self._cpu = cpu if self._cpu_of_v1 or os.path.exists(f"{cpu}/{HOME}/cpu.weight") else None
        if self._cpu is not None:  # all runs together get the default share multiplied by the number of cores
            with contextlib.suppress(OSError):
                self._write_shares(self._cpu, CPU_SHARES_DEFAULT * (os.cpu_count() or 1))

    def reserve(self) -> str:
        """Return a cgroup without processes and limits. Raises OSError if none can be created."""
        if self._spare:
            return f"{self._listing}/{self._spare.pop()}"
        self._count += 1
        name = f"{os.getpid()}-{self._count}"
        for folder in self._joined:
            os.mkdir(f"{folder}/{name}")
        self._made.add(name)
        return f"{self._listing}/{name}"

    def enter(self, group: str) -> None:
        """Move the spawner into a cgroup. The processes that it starts are then in the same cgroup."""
        name = _name(group)
        for folder in self._joined:
            self._write(f"{folder}/{name}/cgroup.procs", b"0")

    def leave(self) -> None:
        for home in self._homes:
            os.write(home, b"0")

    def limit_memory(self, group: str, memory_mib: int | None) -> bool:
        """Set the memory limit of a run that has just started. Return False if the run already uses more memory."""
        if memory_mib is None or self._memory is None:
            return True
        name = _name(group)
        self._limited.add(name)
        try:
            self._write_memory_limit(name, b"%d" % (memory_mib * MIB))
        except OSError as error:
            return error.errno != errno.EBUSY
        return True

    def share_cpu(self, group: str, cpu_units: int) -> None:
        """Set the share of the CPUs that a run gets when all CPUs are busy.

        With version 1, move all processes of the run into its cgroup of cpu. Children that they start later are in that cgroup too.
        """
        if self._cpu is None:
            return
        name = _name(group)
        self._shared.add(name)
        with contextlib.suppress(OSError):
            if self._cpu_of_v1:
                os.mkdir(f"{self._cpu}/{name}")
            self._write_shares(f"{self._cpu}/{name}", max(CPU_SHARES_MIN, cpu_units))
        moved = set[int]()
        while self._cpu_of_v1 and (left := {*pids(group)} - moved) and len(moved) < MOVED_MAX:
            for pid in left:
                with contextlib.suppress(OSError):  # the process has just ended
                    _write(f"{self._cpu}/{name}/cgroup.procs", b"%d" % pid)
            moved |= left

    def is_empty(self, group: str) -> bool:
        if self._has_events and group.startswith(self._listing):
            return b"populated 0" in self._read(f"{group}/cgroup.events")
        return not pids(group)

    def ran_out_of_memory(self, group: str) -> bool:
        """Whether the kernel has killed a process of the run because of its memory limit."""
        if self._memory is None:
            return False
        file = "memory.oom_control" if self._memory_of_v1 else "memory.events"
        events = self._read(f"{self._memory}/{_name(group)}/{file}").split()
        return b"oom_kill" in events and events[events.index(b"oom_kill") + 1] != b"0"

    def release(self, group: str) -> None:
        """Keep the cgroup of an ended run for reuse, or remove it. One that an earlier spawner made can have limits."""
        folder, _, name = group.rpartition("/")
        if folder == self._listing and name in self._made and len(self._spare) < SPARE_MAX and self._is_clean(group, name):
            self._spare.append(name)
        else:
            self._remove(group)

    def _is_clean(self, group: str, name: str) -> bool:
        """Remove the limits of a cgroup. Return whether another run can use it, without any effect of the ended run."""
        try:
            if self._has_events and b"frozen 1" in self._read(f"{group}/cgroup.events"):
                return False  # it would also freeze the spawner, which joins it to start the next run
            if name in self._shared:
                self._unshare_cpu(name)
            if self._memory is not None:
                usage = self._read(f"{self._memory}/{name}/{'memory.usage_in_bytes' if self._memory_of_v1 else 'memory.current'}")
                if int(usage) > SPARE_MAX_BYTES or self.ran_out_of_memory(group):
                    return False
                if name in self._limited:
                    self._write_memory_limit(name, b"-1" if self._memory_of_v1 else b"max")
        except (OSError, ValueError):
            return False
        self._limited.discard(name)
        return True

    def group_of(self, pid: int) -> str | None:
        """Return the cgroup of a process, or None if the spawner did not create the cgroup."""
        for line in _read(f"/proc/{pid}/cgroup").decode().splitlines():
            path = line.split(":", 2)[2]
            if f"/{os.path.basename(self._listing)}/" in path and not path.endswith(f"/{HOME}"):
                return f"{self._listing}/{os.path.basename(path)}"
        return None

    def remove_unused(self, used: set[str]) -> None:
        """Remove the cgroups that an earlier spawner left. Cgroups in `used` and cgroups that contain processes stay."""
        for folder in self.folders:
            for entry in os.scandir(folder):
                known = entry.name == HOME or entry.name in self._spare or f"{self._listing}/{entry.name}" in used
                if entry.is_dir() and not known:
                    remove(entry.path)

    def close(self) -> None:
        """Remove all cgroups. Call this when no run is alive. The spawner moves to the parent cgroups first."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                _write(f"{os.path.dirname(folder)}/cgroup.procs", b"0")
            remove_empty(folder)

    def _remove(self, group: str) -> None:
        name = _name(group)
        self._made.discard(name)
        self._limited.discard(name)
        self._shared.discard(name)
        for path in [path for path in self._open if f"/{name}/" in path]:
            os.close(self._open.pop(path))
        remove(group)
        for folder in self.folders:
            remove(f"{folder}/{name}")

    def _unshare_cpu(self, name: str) -> None:
        self._shared.discard(name)
        if self._cpu_of_v1:
            remove(f"{self._cpu}/{name}")
        else:
            self._write_shares(f"{self._cpu}/{name}", CPU_SHARES_DEFAULT)

    def _write_shares(self, folder: str, shares: int) -> None:
        if self._cpu_of_v1:
            _write(f"{folder}/cpu.shares", b"%d" % shares)
        else:
            _write(f"{folder}/cpu.weight", b"%d" % (1 + (shares - 2) * 9999 // 262142))

    def _write_memory_limit(self, name: str, text: bytes) -> None:
        self._write(f"{self._memory}/{name}/{'memory.limit_in_bytes' if self._memory_of_v1 else 'memory.max'}", text)

    def _write(self, path: str, text: bytes) -> None:
        os.write(self._file(path, os.O_WRONLY), text)

    def _read(self, path: str) -> bytes:
        try:
            return os.pread(self._file(path, os.O_RDONLY), 4096, 0)
        except OSError:  # the cgroup was removed
            return b""

    def _file(self, path: str, flags: int) -> int:
        fd = self._open.get(path)
        if fd is None:
            fd = os.open(path, flags | os.O_CLOEXEC)
            if len(self._open) >= OPEN_MAX:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[path] = fd
        return fd


def _name(group: str) -> str:
    return group.rpartition("/")[2]  # faster than os.path.basename


def open_cgroups(data: Path, root: str = ROOT) -> RunCgroups | None:
    """Create the folders for the cgroups of this data folder's spawner. Return None if this user cannot create cgroups.

    The paths of the folders are stored in a file, so that a later spawner can remove leftover cgroups.
    """
    about, note = os.stat(data), data / "cgroups"
    cgroups = _open(f"corral-{about.st_dev:x}-{about.st_ino:x}", root)
    folders = cgroups.folders if cgroups is not None else []
    for old in note.read_text().splitlines() if note.exists() else ():
        if old not in folders:
            remove_empty(old)
            folders += [old] if os.path.exists(old) else []
    note.touch(0o600)
    note.write_text("".join(f"{folder}\n" for folder in folders))
    return cgroups


def _open(name: str, root: str) -> RunCgroups | None:
    for folders in _places(root):
        listing, memory, cpu = (f"{os.path.realpath(folder)}/{name}" if folder is not None else None for folder in folders)
        assert listing is not None
        try:
            return RunCgroups(listing, memory, cpu)
        except OSError:
            for folder in filter(None, (listing, memory, cpu)):
                remove_empty(folder)
    return None


def _places(root: str) -> list[tuple[str, str | None, str | None]]:
    """Return candidates for the folders in which to create cgroups, the best first. Each candidate is (listing, memory, cpu).

    The candidates are the cgroups of this process. With version 2, the parent of the cgroup of this process is a candidate too.
    """
    own = dict[str, str]()
    for line in _read("/proc/self/cgroup").decode().splitlines():
        _, controllers, path = line.split(":", 2)
        own |= {controller: path.rstrip("/") for controller in controllers.split(",")}
    places: list[tuple[str, str | None, str | None]] = []
    unified = root if os.path.exists(f"{root}/cgroup.controllers") else f"{root}/unified"
    has_unified = "" in own and os.access(f"{unified}{own['']}", os.W_OK)
    if "memory" in own:
        memory = f"{root}/memory{own['memory']}"
        cpu = f"{root}/cpu{own['cpu']}" if "cpu" in own and os.access(f"{root}/cpu{own['cpu']}", os.W_OK) else None
        places += [(f"{unified}{own['']}", memory, cpu)] if has_unified else []
        places.append((memory, memory, cpu))
    if "" in own:
        # A cgroup that contains processes cannot give controllers to its children, except the root cgroup. The cgroup of this
        # process contains at least this process, so also try its parent.
        candidates = [own[""], os.path.dirname(own[""]).rstrip("/")] if own[""] else [""]
        able = [f"{unified}{each}" for each in candidates if _enable_controllers(f"{unified}{each}")]
        places += [(folder, folder, folder) for folder in (*able[:1], f"{unified}{own['']}")]
    return places


def _enable_controllers(folder: str) -> bool:
    """Enable the controllers memory and cpu for the cgroups in a folder of version 2.

    Return whether this user can create cgroups there that limit memory.
    """
    for controller in (b"+memory", b"+cpu"):
        with contextlib.suppress(OSError):
            _write(f"{folder}/cgroup.subtree_control", controller)
    return b"memory" in _read(f"{folder}/cgroup.subtree_control").split() and os.access(folder, os.W_OK)


def pids(group: str) -> list[int]:
    """Return the pids of the processes in a cgroup. Return an empty list if the cgroup does not exist."""
    return [int(line) for line in _read(f"{group}/cgroup.procs").split()]


def kill(group: str) -> None:
    """Send SIGKILL to every process in a cgroup."""
    try:
        _write(f"{group}/cgroup.kill", b"1")  # exists in version 2 since Linux 5.14
        return
    except OSError:
        pass
    handles: list[tuple[int, int]] = []
    for pid in pids(group):
        with contextlib.suppress(OSError):
            handles.append((pid, os.pidfd_open(pid)))
    still = set(pids(group))  # check again, because a pid may have been reused before pidfd_open
    for pid, handle in handles:
        with contextlib.suppress(OSError):
            if pid in still:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def remove_empty(base: str) -> None:
    """Remove the cgroups in a folder that contain no processes. Also remove the folder if no cgroup is left."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            if entry.is_dir():
                remove(entry.path)
    remove(base)


def remove(group: str) -> None:
    """Remove a cgroup, unless it has processes or does not exist."""
    with contextlib.suppress(OSError):
        os.rmdir(group)


def _write(path: str, text: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        text = b""
        while part := os.read(fd, 65_536):
            text += part
        return text
    except OSError:  # the cgroup was just removed
        return b""
    finally:
        os.close(fd)
