"""Recovery after a restart of the spawner, which is the process that starts runs.

The module examines the runs whose end an earlier spawner did not record, and their main processes.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from corral.core.clock import Clock
from corral.model.stop_reasons import HOST_RESTARTED
from corral.node import lock_files, procfs
from corral.node.run_journal import Replay
from corral.node.run_processes import find_processes, is_same_process, main_process
from corral.node.spawner_protocol import SpawnedRun

STOP_GRACE_S = 30.0  # the grace period of a run that is not in the journal
CHECK_S = 1.0  # the time between two checks of a main process that cannot be watched
EXIT_STATUS_LOST = "the exit status was lost: the spawner died while the run was alive"
MAY_HAVE_RUN = "the exit status was lost: the spawner died while it started the run, and it is not known whether the run began"
NEVER_STARTED = "CannotStartContainerError: the spawner died before it started the run"


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    run: SpawnedRun  # if its exit status is lost or the run never started, it contains the reason
    has_ended: bool  # True if no process of the run is left
    pids: list[int] = field(default_factory=list)  # the processes of the run that were found


def find_unfinished(left: Replay, data: Path, mark_fd: int, clock: Clock, *, same_boot: bool) -> list[UnfinishedRun]:
    """Examine the runs whose end is not in the journal. `mark_fd` is a descriptor of the file `starting`."""
    outputs = {f"{data}/output/{run.run_id}": run for run in left.runs.values() if run.alive}
    if not same_boot:
        return [UnfinishedRun(run.but(reason=run.reason or HOST_RESTARTED), has_ended=True) for run in outputs.values()]
    pids = find_processes(data, outputs)
    unfinished = []
    for path, run in outputs.items():
        if pids.get(run.run_id) or lock_files.is_held(path):
            unfinished.append(UnfinishedRun(run, has_ended=False, pids=pids.get(run.run_id, [])))
        elif run.pid is None:
            unfinished.append(UnfinishedRun(_lost_at_start(run, mark_fd, clock), has_ended=True))
        elif run.main_ended_at_s is None:
            unfinished.append(UnfinishedRun(run.but(reason=EXIT_STATUS_LOST), has_ended=True))
        else:
            unfinished.append(UnfinishedRun(run, has_ended=True))
    return unfinished


def _lost_at_start(run: SpawnedRun, mark_fd: int, clock: Clock) -> SpawnedRun:
    """Decide how to report a run that a dead spawner was about to start, and that has no process now.

    The access time of the file `starting` is the number of the last start. Its modification time shows whether the process of this
    start existed.
    """
    mark = os.fstat(mark_fd)
    last = int(mark.st_atime)
    if last > run.start_number:  # the journal could not be written for some time
        return run.but(started_at_s=clock.now_s(), reason=MAY_HAVE_RUN)
    if last == run.start_number and mark.st_mtime_ns:
        return run.but(started_at_s=mark.st_mtime_ns / 1e9, reason=EXIT_STATUS_LOST)
    return run.but(reason=NEVER_STARTED)


def find_orphans(data: Path, known: Collection[str]) -> tuple[list[tuple[SpawnedRun, list[int]]], list[str]]:
    """Find the runs that have files, but are not in the journal.

    Return the runs that are alive, with the processes that hold their locks, and the ids of the other runs.
    """
    left = {*os.listdir(data / "output"), *os.listdir(data / "work")}.difference(known)
    paths = {name: f"{data}/output/{name}" for name in left}
    alive = [name for name in left if lock_files.is_held(paths[name])]
    found = lock_files.holders([paths[name] for name in alive]) if alive else {}
    runs = [(SpawnedRun(name, STOP_GRACE_S, ships_logs=True, gpu_ids=[]), found.get(paths[name], [])) for name in alive]
    return runs, [name for name in left if name not in alive]


def with_main_process(run: SpawnedRun, pids: list[int], clock: Clock) -> SpawnedRun:
    """Complete a run whose spawner died after it started the process and before it wrote the pid to the journal."""
    pid = main_process(pids)
    since = procfs.started_boot_s(pid)
    now_s = clock.now_s()
    started_at_s = now_s if since is None else now_s - (procfs.boot_s() - since)
    uid = procfs.real_uid(pid) if run.account else None
    return run.but(pid=pid, started_at_s=started_at_s, started_boot_s=since, uid=uid)


class MainProcessWatch:
    """Watches main processes that an earlier spawner started. They are not children of this process, so it cannot wait for them."""

    def __init__(self, poll: select.epoll, at: Callable[[float, Callable[[], None]], None], ended: Callable[[str], None]) -> None:
        """`at` starts a timer of the spawner. `ended` is called with the id of a run whose main process has ended."""
        self._poll = poll
        self._at = at
        self._ended = ended
        self._watched: dict[int, str] = {}  # pidfd → run id

    def add(self, run: SpawnedRun) -> None:
        assert run.pid is not None
        try:
            fd = os.pidfd_open(run.pid)
            self._watched[fd] = run.run_id
            self._poll.register(fd, select.EPOLLIN)
        except ProcessLookupError:
            self._ended(run.run_id)
        except OSError:  # too many files are open, so check the process regularly instead
            self._check_later(run)

    def process_ended(self, fd: int) -> None:
        if fd in self._watched:
            self._poll.unregister(fd)
            os.close(fd)
            self._ended(self._watched.pop(fd))

    def _check_later(self, run: SpawnedRun) -> None:
        self._at(procfs.boot_s() + CHECK_S, lambda: self._check(run))

    def _check(self, run: SpawnedRun) -> None:
        if is_same_process(run):
            self._check_later(run)
        else:
            self._ended(run.run_id)
