"""The state of processes on GPUs, and the driver's calls that move it to the memory of the host and back.

The order of the calls for a process: `lock`, `checkpoint`, `restore`, `unlock`. The driver works in a thread of the process itself,
so the process must not be stopped meanwhile. Between `lock` and `unlock`, calls of the process to CUDA block. Between `checkpoint`
and `restore`, it has no memory on a GPU, except a little that the driver leaves there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

NONE, RUNNING, LOCKED, CHECKPOINTED, FAILED = "none", "running", "locked", "checkpointed", "failed"
MIB = 2**20


class DriverError(Exception):
    """The driver has refused a call. The message has its reason."""


class GpuStates(Protocol):
    left_bytes: int  # a process has at most this much memory on a GPU after `checkpoint`

    def state(self, pid: int) -> str:
        """Return the state of a process on GPUs. NONE: it does not use CUDA, or has ended."""
        ...

    def reason(self, pid: int) -> str:
        """Return why the driver does not know the state of a process, or why the state is FAILED. Empty: it does not say."""
        ...

    def used(self, pids: Collection[int]) -> dict[int, int]:
        """Return pid → bytes on GPUs, for those of the processes that the driver lists. They may be stopped."""
        ...

    def move_s(self, pid: int, size: int) -> float:
        """Return how many seconds the driver may need to move so many bytes of a process."""
        ...

    def lock(self, pid: int, timeout_s: float) -> None: ...

    def checkpoint(self, pid: int) -> None: ...

    def restore(self, pid: int) -> None: ...

    def unlock(self, pid: int) -> None: ...


class NoGpuStates:
    """For a run without GPUs."""

    left_bytes = 0

    def state(self, pid: int) -> str:
        return NONE

    def reason(self, pid: int) -> str:
        return ""

    def used(self, pids: Collection[int]) -> dict[int, int]:
        return {}

    def move_s(self, pid: int, size: int) -> float:
        return 0.0

    def lock(self, pid: int, timeout_s: float) -> None:
        raise DriverError("the run has no GPU")

    def checkpoint(self, pid: int) -> None:
        raise DriverError("the run has no GPU")

    def restore(self, pid: int) -> None:
        raise DriverError("the run has no GPU")

    def unlock(self, pid: int) -> None:
        raise DriverError("the run has no GPU")
