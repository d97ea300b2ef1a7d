"""Pause a run, or continue it: the steps of the pause program (`pause_program.py`).

A pause: check the memory of the host → lock all processes that use GPUs → move the memory of each to the host → freeze all
processes of the run → check that none has memory on a GPU. If a process began to use a GPU meanwhile, the run is thawed, and the
steps begin again. If a step fails, everything is undone and the run continues. To continue a run: thaw → restore all → unlock all.
The driver works in a thread of the process itself, so restoring a frozen process hangs.

Each step begins with the actual state of the processes, so another program can continue or undo what a killed program has begun. A
call of the driver may hang: then a signal ends this program at the time that the mark names, and the next program undoes the order.
"""

from __future__ import annotations

import signal
from typing import Any

from corral.node import procfs
from corral.node.gpu_states import CHECKPOINTED, FAILED, LOCKED, MIB, NONE, RUNNING, DriverError, GpuStates
from corral.node.pause_marks import PauseMark, PauseMarks
from corral.node.run_freezer import CannotFreeze, PausableRun

ROUNDS = 5  # how often a pause begins again because a process began to use a GPU
ATTEMPTS = 4  # after so many programs have been killed, the next one undoes the order
MARGIN_BYTES = 512 * MIB  # so much memory of the host stays free
LOCK_S = 30.0  # a lock waits for the work that a process has given to the GPU
CALL_S = 60.0  # how long a call may take, in addition to the time that its bytes need


class CannotPause(Exception):
    """The order cannot be carried out. The message says why."""


class Withdrawn(Exception):
    """The run is being stopped, or has ended: there is nothing to do any more."""


class RunPauser:
    def __init__(self, marks: PauseMarks, mark: PauseMark, run: PausableRun, gpus: GpuStates) -> None:
        self._marks = marks
        self._mark = mark
        self._run = run
        self._gpus = gpus
        self._pids: list[int] = []  # of the run, when it was last thawed or frozen

    def carry_out(self) -> None:
        """Carry out the order of the mark, or undo it. Raises Withdrawn if the run has ended."""
        mark, failure = self._mark, self._mark.failure
        if not failure and mark.call and procfs.boot_s() >= mark.call_until_boot_s:
            failure = f"the driver did not answer in time: {mark.call}"
        if not failure and mark.attempts >= ATTEMPTS:
            failure = f"the program that does it has ended {mark.attempts} times, the last time {mark.call or 'between two calls'}"
        self._record(attempts=mark.attempts + 1, call="", failure=failure)
        if mark.attempts >= 2 * ATTEMPTS:  # it cannot be undone either
            self._stay_paused(failure, moves=False)
        elif not failure:
            try:
                if mark.wanted:
                    self._pause()
                else:
                    self._resume()
                self._finish(is_paused=mark.wanted)
            except (CannotPause, CannotFreeze, DriverError) as why:
                failure = str(why)
                self._record(failure=failure)
                self._undo(failure)
        else:
            self._undo(failure)

    # -- pause ---------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        still_used = ""
        for _ in range(ROUNDS):
            self._thaw()
            self._check_memory()
            for pid in self._using(RUNNING):
                self._call("lock", pid, LOCK_S)
            self._move_out()
            self._freeze()
            still_used = self._still_used()
            if not still_used:
                return
        raise CannotPause(f"processes of the run still have memory on a GPU: {still_used}")

    def _check_memory(self) -> None:
        """Check that the memory on GPUs fits into the memory of the host, and raise the limits of the run. Raises CannotPause."""
        used = self._gpus.used(self._pids)
        for pid, size in used.items():
            if (state := self._gpus.state(pid)) in (NONE, FAILED):
                what = "does not know how to move" if state == NONE else "has failed to move"
                why = f"; {reason}" if (reason := self._gpus.reason(pid)) else ""
                raise CannotPause(f"the driver {what} the state of process {pid}, which has {_mib(size)} MiB on a GPU{why}")
        needed = sum(
            size for pid, size in used.items() if str(pid) not in self._mark.moved or self._gpus.state(pid) != CHECKPOINTED
        )
        room = self._run.room() if needed else None
        available = available_bytes() if room is None else min(room, available_bytes())
        if needed and needed + MARGIN_BYTES > available:
            raise CannotPause(
                f"the run has {_mib(needed)} MiB on GPUs, and this host has only {_mib(available)} MiB of memory available to it; "
                f"{_mib(MARGIN_BYTES)} MiB of it must stay free"
            )
        moved = needed + sum(size for pid, size in self._mark.moved.items() if self._gpus.state(int(pid)) == CHECKPOINTED)
        limits = self._run.memory() if needed else {}
        for where, (limit, use) in limits.items():
            before = self._mark.limits.get(where, limit)
            if use + needed > limit or where in self._mark.limits:
                self._record(limits={**self._mark.limits, where: before})
                try:
                    self._run.set_limit(where, before + moved)
                except CannotFreeze as why:
                    numbers = f"it has {_mib(needed)} MiB on GPUs, a limit of {_mib(limit)} MiB, and uses {_mib(use)} MiB of it"
                    raise CannotPause(f"{why} ({numbers})") from None

    def _move_out(self) -> None:
        for pid in self._using(LOCKED):
            size = self._gpus.used([pid]).get(pid, 0)
            self._record(moved={**self._mark.moved, str(pid): size})
            self._call("checkpoint", pid, CALL_S + self._gpus.move_s(pid, size))

    def _still_used(self) -> str:
        """Return which processes have memory on a GPU that is not moved. The driver is not called, because they are frozen."""
        found = []
        for pid, size in self._gpus.used(self._pids).items():
            if str(pid) not in self._mark.moved or size > self._gpus.left_bytes:
                found.append(f"{_mib(size)} MiB of process {pid}")
        return ", ".join(found)

    # -- resume --------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        self._thaw()
        for pid in self._using(CHECKPOINTED):
            self._call("restore", pid, CALL_S + self._gpus.move_s(pid, self._mark.moved.get(str(pid), 0)))
        for pid in self._using(LOCKED):
            self._call("unlock", pid, CALL_S)
        self._lower_limits()

    def _lower_limits(self) -> None:
        """Put back the memory limits, unless the run still uses more: a limit below its use would kill its processes."""
        now, left = self._run.memory() if self._mark.limits else {}, dict[str, int]()
        for where, size in self._mark.limits.items():
            try:
                if where not in now or now[where][1] > size:
                    raise CannotFreeze(f"the run uses more: {where}")
                self._run.set_limit(where, size)
            except CannotFreeze:
                left[where] = size
        self._record(limits=left)

    # -- after a failure -----------------------------------------------------------------------------------------

    def _undo(self, failure: str) -> None:
        """Undo the order, and finish it with the reason. A run that cannot be restored stays paused."""
        if self._mark.wanted:
            try:
                self._resume()
                self._finish(is_paused=False, why_not=failure)
                return
            except (CannotFreeze, DriverError) as why:
                failure = f"{failure}; it could not be undone: {why}"
        self._stay_paused(failure)

    def _stay_paused(self, failure: str, *, moves: bool = True) -> None:
        """Move out again what was restored, and freeze the run. If a process keeps memory on a GPU, the run is not paused."""
        try:
            if moves:
                self._move_out()
            self._freeze()
            is_paused = not self._still_used()
        except (CannotFreeze, DriverError):
            is_paused = False
        if not is_paused:
            self._thaw()
        self._finish(is_paused=is_paused, why_not=failure)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _thaw(self) -> None:
        self._pids = self._run.thaw()
        self._record(others=[])
        if not self._pids:
            raise Withdrawn

    def _freeze(self) -> None:
        self._pids = self._run.freeze()
        self._record(others=self._run.others)

    def _using(self, state: str) -> list[int]:
        return [pid for pid in self._pids if self._gpus.state(pid) == state]

    def _call(self, name: str, pid: int, limit_s: float) -> None:
        """Call the driver. If the call takes longer than the limit, a signal ends this program."""
        self._record(call=f"{name} of process {pid} (at most {limit_s:.0f} s)", call_until_boot_s=procfs.boot_s() + limit_s)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            if name == "lock":
                self._gpus.lock(pid, limit_s / 2)
            else:
                getattr(self._gpus, name)(pid)
        except DriverError:
            if procfs.started_boot_s(pid) is not None:  # otherwise the process has just ended
                raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._record(call="")

    def _record(self, **changes: Any) -> None:
        self._mark = self._mark.but(**changes)
        if not self._marks.update(self._mark):
            raise Withdrawn

    def _finish(self, *, is_paused: bool, why_not: str = "") -> None:
        took_s = procfs.boot_s() - self._mark.began_boot_s
        self._record(is_done=True, is_paused=is_paused, why_not=why_not, took_s=took_s, call="", failure="")


def available_bytes() -> int:
    """Return the memory of this host that programs can still use."""
    with open("/proc/meminfo", "rb") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(b"MemAvailable:"))


def _mib(size: int) -> int:
    return -(-size // MIB)
