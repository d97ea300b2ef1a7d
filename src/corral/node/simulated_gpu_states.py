"""The state of processes on simulated GPUs. It is kept in files, so it survives a kill of the pause program.

A process uses a simulated GPU if it leads a session and belongs to a run with GPUs: so the main process of the run does, and those
that a program starts with setsid. Variables of the process, which a user can set for a run, say how it behaves:

CORRAL_SIM_GPU_MEMORY_MIB      how much memory it has on the GPU; 0: it does not use the GPU
CORRAL_SIM_PAUSE_GIB_PER_S     how fast its memory is moved; not set: at once
CORRAL_SIM_PAUSE_FAILS         the calls that the driver refuses, for example lock,restore

The file `gib_per_s` in the folder of these files has the speed of the processes without such a variable. It may change while memory
is moved.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

from corral.node import node_folder, procfs
from corral.node.gpu_states import CHECKPOINTED, LOCKED, MIB, NONE, RUNNING, DriverError

FOLDER = "simulated_gpu_states"
MEMORY, SPEED, FAILS = "CORRAL_SIM_GPU_MEMORY_MIB", "CORRAL_SIM_PAUSE_GIB_PER_S", "CORRAL_SIM_PAUSE_FAILS"
ENDED = b"ZX"
FRESH = ".new"
ALL_SPEEDS = "gib_per_s"
STEP_S = 0.02
DEFAULT_MIB = 1024
LEFT_BYTES = 4 * MIB
SLOWEST = 1000  # the driver may need this many times as long as its speed says


class SimulatedGpuStates:
    left_bytes = LEFT_BYTES

    def __init__(self, data: Path) -> None:
        self._folder = data / FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for path in self._folder.iterdir():
            if (
                path.name != ALL_SPEEDS and path.name.removesuffix(FRESH) != self._path(int(path.name.partition("-")[0])).name
            ):  # the process has ended
                path.unlink(missing_ok=True)

    def state(self, pid: int) -> str:
        if not self._size(pid):
            return NONE
        try:
            return self._path(pid).read_text() or RUNNING
        except FileNotFoundError:
            return RUNNING

    def reason(self, pid: int) -> str:
        return ""

    def used(self, pids: Collection[int]) -> dict[int, int]:
        sizes = {pid: size for pid in pids if (size := self._size(pid))}
        return {pid: LEFT_BYTES if self.state(pid) == CHECKPOINTED else size for pid, size in sizes.items()}

    def move_s(self, pid: int, size: int) -> float:
        speed = self._speed(pid)
        return SLOWEST * size / 2**30 / speed if speed else 0.0

    def lock(self, pid: int, timeout_s: float) -> None:
        self._change(pid, "lock", RUNNING, LOCKED, moves=False)

    def checkpoint(self, pid: int) -> None:
        self._change(pid, "checkpoint", LOCKED, CHECKPOINTED, moves=True)

    def restore(self, pid: int) -> None:
        self._change(pid, "restore", CHECKPOINTED, LOCKED, moves=True)

    def unlock(self, pid: int) -> None:
        self._change(pid, "unlock", LOCKED, RUNNING, moves=False)

    def _change(self, pid: int, call: str, before: str, after: str, *, moves: bool) -> None:
        state = self.state(pid)
        if state != before:
            raise DriverError(f"{call} of process {pid}: SIMULATED_ILLEGAL_STATE (it is {state}, and must be {before})")
        if call in (_variable(pid, FAILS) or "").split(","):
            raise DriverError(f"{call} of process {pid}: SIMULATED_REFUSED ({FAILS} has {call})")
        if procfs.is_stopped(pid) or _is_frozen(pid):  # a real driver hangs
            raise DriverError(f"{call} of process {pid}: SIMULATED_HANG (the process is stopped)")
        if moves:
            self._move(pid)
        path = self._path(pid)
        fresh = path.with_name(f"{path.name}{FRESH}")
        with open(fresh, "w", opener=node_folder.private) as file:
            file.write(after)
        fresh.rename(path)

    def _move(self, pid: int) -> None:
        left = self._size(pid) / 2**30
        while left > 0 and (speed := self._speed(pid)):
            step_s = min(left / speed, STEP_S)
            time.sleep(step_s)
            left -= step_s * speed

    def _speed(self, pid: int) -> float:
        """Return how fast the memory of a process is moved, in GiB per second. 0: at once."""
        with contextlib.suppress(OSError, ValueError):
            return float(_variable(pid, SPEED) or (self._folder / ALL_SPEEDS).read_text())
        return 0.0

    def _path(self, pid: int) -> Path:
        return self._folder / f"{pid}-{procfs.started_boot_s(pid)}"

    def _size(self, pid: int) -> int:
        """Return how much memory a process has on simulated GPUs while its state is there."""
        with contextlib.suppress(OSError):
            if os.getsid(pid) == pid and procfs.state(pid) not in ENDED:
                return int(_variable(pid, MEMORY) or DEFAULT_MIB) * MIB
        return 0


def _variable(pid: int, name: str) -> str | None:
    return procfs.with_variable(name, [pid]).get(pid)


def _is_frozen(pid: int) -> bool:
    """Whether the cgroup of a process is frozen: its own file, or that of a cgroup above it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            number, _, path = line.split(":", 2)
            for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified") if number == "0" else ():
                with contextlib.suppress(OSError):
                    if "frozen 1" in Path(f"{root}{path}/cgroup.events").read_text():
                        return True
    return False
