"""Marks of paused runs: files that tell all processes of a host which runs are paused, or are being paused or continued.

The agent writes a mark when it gets an order, and then starts the pause program (`pause_program.py`), which records its steps
there. After a kill, the next agent starts the program again if the mark is unfinished. The spawner and the output guard continue no
run whose mark `holds` it. A stop of the run removes the mark: then the program does nothing any more.

Marks are not synced to disk, because a reboot ends all runs. Guard, spawner and program take a lock around a change and around a
decision that depends on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import orjson

from corral.node import lock_files, node_folder

FOLDER = "paused"
LOCK = "paused.lock"
LOCK_MAX_S = 1.0  # a process holds the lock for less than a millisecond, unless a signal has stopped it
LOCK_POLL_S = 0.001
# No run id contains a comma.
PROGRAM = ",program"
SPAWNER = ",spawner"
FRESH = ",new"


@dataclass(frozen=True)
class PauseMark:
    """The last order to pause or continue a run, and how far it is carried out."""

    run_id: str
    number: int  # of the order
    wanted: bool  # whether the order is to pause the run
    boot_id: str
    gpus: str = "none"  # the kind of GPUs that the run has: real, simulated or none
    engine: str = ""  # the path of the socket of the Docker engine; empty: the run is a process
    container: str = ""  # the id of the container
    sessions: list[str] = field(default_factory=list)  # the lock files of the sessions of ECS Exec in the run
    is_done: bool = False  # the order is carried out or has failed
    is_paused: bool = False  # whether the run was paused after the last order that is done
    why_not: str = ""
    began_boot_s: float = 0.0
    took_s: float = 0.0
    moved: dict[str, int] = field(default_factory=dict)  # pid → the bytes that are moved to the memory of the host
    limits: dict[str, int] = field(default_factory=dict)  # where → the memory limit of the run before it was raised
    others: list[tuple[int, float]] = field(default_factory=list)  # stopped processes outside the cgroup: pid, start time
    attempts: int = 0  # how many programs have begun to carry out the order
    failure: str = ""  # why the program undoes the order
    call: str = ""  # the call of the driver that is under way
    call_until_boot_s: float = 0.0  # a call that takes longer counts as failed
    answered: dict[str, Any] | None = None  # the members of the answer to the order before

    @property
    def holds(self) -> bool:
        """Whether only the pause program, and a stop, may continue the run."""
        return self.is_paused or not self.is_done

    @property
    def moved_bytes(self) -> int:
        return sum(self.moved.values())

    def but(self, **changes: Any) -> PauseMark:
        return replace(self, **changes)


MEMBERS = frozenset(each.name for each in fields(PauseMark))


class PauseMarks:
    def __init__(self, data: Path) -> None:
        self._data = data
        self._folder = f"{data}/{FOLDER}"

    def read(self, run_id: str) -> PauseMark | None:
        """Return the mark of a run. Return None if there is none. Members of later versions of Corral are ignored."""
        try:
            with open(f"{self._folder}/{run_id}", "rb") as file:
                stored = orjson.loads(file.read())
            return PauseMark(**{name: stored[name] for name in stored if name in MEMBERS})
        except (OSError, ValueError, TypeError):
            return None

    def holds(self, run_id: str) -> bool:
        mark = self.read(run_id)
        return mark is not None and mark.holds

    def run_ids(self) -> set[str]:
        """Return the runs that have a mark, or another file of a pause."""
        try:
            return {name.partition(",")[0] for name in os.listdir(self._folder)} - {""}
        except FileNotFoundError:
            return set()

    def put(self, mark: PauseMark) -> None:
        """Store the mark of a new order. Raises OSError if that fails."""
        with self.locked():
            self._write(mark)

    def update(self, mark: PauseMark) -> bool:
        """Store the progress of an order. Return False if the mark was removed, or there is a new order."""
        with self.locked():
            stored = self.read(mark.run_id)
            if stored is None or stored.number != mark.number:
                return False
            self._write(mark)
            return True

    def _write(self, mark: PauseMark) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        fresh = f"{self._folder}/{mark.run_id}{FRESH}"
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(orjson.dumps(asdict(mark)))
        os.rename(fresh, f"{self._folder}/{mark.run_id}")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of all marks. If another process does not release it soon, continue without it."""
        try:
            fd = os.open(self._data / LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # the disk is full, or the data folder was deleted
            yield
            return
        try:
            give_up_s = time.monotonic() + LOCK_MAX_S
            while time.monotonic() < give_up_s:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(LOCK_POLL_S)
            yield
        finally:
            os.close(fd)

    def name_spawner(self, pid: int) -> None:
        """Record that the spawner with this pid knows marks. One of an earlier version would continue paused runs."""
        with contextlib.suppress(OSError):  # without this record, no run of it is paused
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with open(f"{self._folder}/{SPAWNER}", "w", opener=node_folder.private) as file:
                file.write(str(pid))

    def is_known_to(self, spawner: int | None) -> bool:
        return spawner is not None and node_folder.lock_owner(Path(f"{self._folder}/{SPAWNER}")) == spawner

    def hold_program(self, run_id: str) -> int | None:
        """Return the lock of the pause program of a run, or None if another one carries out an order for this run."""
        return node_folder.try_lock(Path(self._program(run_id)))

    def has_program(self, run_id: str) -> bool:
        return lock_files.is_held(self._program(run_id))

    def end_program(self, run_id: str) -> None:
        """Kill the pause program of a run, if there is one."""
        path = self._program(run_id)
        if lock_files.is_held(path) and (pid := node_folder.lock_owner(Path(path))) is not None:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                try:
                    if lock_files.is_held(path) and node_folder.lock_owner(Path(path)) == pid:
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
                finally:
                    os.close(handle)

    def remove(self, run_id: str) -> PauseMark | None:
        """Remove the mark of a run that is stopped or has ended, and end its pause program. Return the mark."""
        if not os.path.exists(f"{self._folder}/{run_id}"):
            return None
        with self.locked():
            mark = self.read(run_id)
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{run_id}")
        self.end_program(run_id)
        return mark

    def forget(self, run_id: str) -> None:
        """Remove all files of a run that has ended."""
        self.remove(run_id)
        for suffix in (PROGRAM, FRESH):
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{run_id}{suffix}")

    def _program(self, run_id: str) -> str:
        return f"{self._folder}/{run_id}{PROGRAM}"
