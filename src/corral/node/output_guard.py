"""The output guard limits how fast processes print, and how much of their output is on disk.

The guard is a child process of the spawner. The guard trims each output file that uses more than its maximum on disk
(`output_bounds.py`): it drops the oldest output. A run writes directly into its output file, so the guard can slow a run down only
by a pause (SIGSTOP). While a file is above this limit, the guard pauses its run in two cases. In the first case, the run prints
more than `FLOOD_BYTES_PER_S` on average. In the second case, the file uses more than twice its maximum: trimming may take seconds
on a busy disk, and the file must not grow meanwhile. The guard resumes the run when the file has been trimmed and the average rate
is below `FLOOD_BYTES_PER_S` again.

The guard is a separate process, because the loop of the spawner may wait for a busy disk, for example when it creates a file. The
guard is not a thread of the spawner, because the spawner must have only one thread (see `process_launch.py`). The first thread of
the guard reads only file sizes, the spawner's journal and lists of processes. These reads never wait for the disk. A second thread
trims the files. The guard finds runs in the journal, so the spawner need not send it a message for each run. The guard is forked
without exec. So it is ready in milliseconds, before a run can print much, and it shares memory pages with the spawner.

The standard input of the guard is a pipe from the spawner. While there are no output files, the guard sleeps. To wake it, the
spawner writes a byte when a run starts and no other run is alive. When the pipe is closed, the spawner has ended; then the guard
resumes all paused runs and exits. When the spawner stops a run, it also resumes the run. If the guard dies, the spawner resumes all
paused runs.

An order can pause a run, too, for hours (`pauses.py`). The guard neither pauses nor resumes such a run.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from corral.node import procfs
from corral.node.output_bounds import bound_output, output_max_bytes
from corral.node.pause_marks import PauseMarks
from corral.node.run_journal import last_record
from corral.node.run_processes import pause, pause_writers, resume
from corral.node.spawner_protocol import SpawnedRun

FLOOD_BYTES_PER_S = 32 * 1024 * 1024  # a run that prints more is paused for a part of the time
HARD_MAX = 2  # a run whose file uses more than this many times its maximum is paused until the file has been trimmed
NOTICE_BYTES = 8 * 1024 * 1024  # a scan of all files finds each file that has grown by this much; the guard then watches the file
CHECK_S = 0.05  # the time between two checks of the free disk space, while no file is watched
CHECK_FLOOD_S = 0.02  # the time between two checks of the free disk space and of the watched files
SCAN_S = 1.0  # the time between two scans; the next scan is earlier if the free disk space shrinks by NOTICE_BYTES
SCAN_PAUSE = 10  # after a scan of N seconds, the next one waits at least SCAN_PAUSE * N seconds
CALM_S = 1.0  # a file that grows by less than NOTICE_BYTES in this time is no longer watched
LATE_WRITE_S = 0.2  # if a file still grows this long after a pause, a process outside the process group of the run writes to it
NAME = "output-guard"  # the name of the process in `ps`
NICE = -10  # the guard's nice value, if this user has the permission to set it


@dataclass(slots=True)
class Flood:
    """A run whose output file is watched, because the file is large and grows."""

    run_id: str
    path: str
    size: int  # the length of the file at `since_s`
    since_s: float  # the average rate of the run is measured from this time
    seen: int  # the length of the file at the last check
    max_bytes: int  # the maximum disk space of the file
    paused: SpawnedRun | None = None  # the run, while it is paused
    paused_at_s: float = 0.0
    resume_at_s: float = 0.0  # when the average rate of the paused run is low enough
    trimming: bool = False  # the file must be trimmed, and the second thread has not done so yet
    others: list[int] = field(default_factory=list)  # paused processes outside the process group of the run


class OutputGuard:
    def __init__(self, data: Path, spawner: int) -> None:
        self._folder = str(data / "output")
        self._journal = data / "journal"
        self._marks = PauseMarks(data)
        self._spawner = spawner
        self._floods: dict[str, Flood] = {}
        self._calm: dict[str, int] = {}  # run id → the length of the file when the guard ceased to watch it
        self._untrimmed: queue.SimpleQueue[Flood] = queue.SimpleQueue()
        self._free_bytes = 0  # the largest number of free bytes on the disk since the last scan
        self._scanned_at_s = 0.0
        self._scan_not_before_s = 0.0
        self._has_files = True

    def serve(self, pipe: int) -> None:
        threading.Thread(target=self._trim_all, daemon=True).start()
        os.set_blocking(pipe, False)
        ended = select.poll()
        ended.register(pipe, 0)  # poll reports only that the pipe was closed, not its bytes
        while not ended.poll(1000 * (CHECK_FLOOD_S if self._floods else CHECK_S)):
            if not self._has_files:
                self._wait_for_files(pipe)
            try:
                self._check(time.monotonic())
            except Exception:  # the guard must continue after a bad file
                print(traceback.format_exc(), file=sys.stderr, flush=True)
        for flood in self._floods.values():
            self._resume(flood)

    def _wait_for_files(self, pipe: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(pipe, 65_536):
                pass
        self._has_files = bool(os.listdir(self._folder))
        if not self._has_files:
            select.select([pipe], [], [])

    def _check(self, now_s: float) -> None:
        for flood in list(self._floods.values()):
            self._check_flood(flood, now_s)
        if self._must_scan(now_s):
            self._scan(now_s)

    def _must_scan(self, now_s: float) -> bool:
        """Return whether to scan all files now: the disk has less free space than before, or the last scan was SCAN_S ago."""
        disk = os.statvfs(self._folder)
        free_bytes = disk.f_bfree * disk.f_frsize
        self._free_bytes = max(self._free_bytes, free_bytes)
        if now_s < self._scan_not_before_s:
            return False
        if self._free_bytes - free_bytes < NOTICE_BYTES and now_s < self._scanned_at_s + SCAN_S:
            return False
        self._free_bytes = free_bytes
        return True

    def _scan(self, now_s: float) -> None:
        names = set(os.listdir(self._folder))
        self._has_files = bool(names)
        for run_id in names:
            if run_id in self._floods:
                continue
            path = f"{self._folder}/{run_id}"
            size, held = _size_and_disk(path)
            if held > NOTICE_BYTES and size >= (calm := self._calm.get(run_id, 0)) + NOTICE_BYTES:
                # `base` is an estimate of the file's length at the last scan. That scan did not begin to watch the file. So the
                # file had grown by less than NOTICE_BYTES since `calm`, or it used at most NOTICE_BYTES on disk.
                base = max(calm, size - held + NOTICE_BYTES)
                max_bytes = output_max_bytes(path, os.stat(path))
                self._floods[run_id] = Flood(run_id, path, base, self._scanned_at_s or now_s, size, max_bytes)
                self._check_flood(self._floods[run_id], now_s)
        self._calm = {run_id: size for run_id, size in self._calm.items() if run_id in names}
        self._scanned_at_s = now_s
        self._scan_not_before_s = now_s + SCAN_PAUSE * (time.monotonic() - now_s)

    def _check_flood(self, flood: Flood, now_s: float) -> None:
        size, held = _size_and_disk(flood.path)
        grown, flood.seen = size > flood.seen, size
        if flood.paused is not None:
            if not flood.trimming and now_s >= flood.resume_at_s:
                self._resume(flood)
                flood.size, flood.since_s = size, now_s
            elif grown and held > flood.max_bytes:
                # A process of the run was not paused, or the spawner has resumed the run to stop it.
                self._pause(flood, now_s, others=now_s > flood.paused_at_s + LATE_WRITE_S)
        elif held > flood.max_bytes:
            wait_s = (size - flood.size) / FLOOD_BYTES_PER_S - (now_s - flood.since_s)
            if wait_s > 0 or held > HARD_MAX * flood.max_bytes:
                flood.resume_at_s, flood.paused_at_s = now_s + wait_s, now_s
                self._pause(flood, now_s)
            if not flood.trimming:
                flood.trimming = True
                self._untrimmed.put(flood)
                if flood.paused is None:
                    flood.size, flood.since_s = size, now_s
        elif now_s > flood.since_s + CALM_S and not flood.trimming:
            if size < flood.size + NOTICE_BYTES:
                self._calm[flood.run_id] = size
                del self._floods[flood.run_id]
            else:
                flood.size, flood.since_s = size, now_s

    def _pause(self, flood: Flood, now_s: float, *, others: bool = False) -> None:
        """Pause a run if it is alive, according to the journal. With `others`, also pause processes outside its process group.

        If the run has ended meanwhile, undo the pause. The spawner reuses the cgroups of ended runs, so the pause may have stopped
        the processes of another run.
        """
        run = last_record(self._journal, flood.run_id)
        if run is None or not run.alive:
            return
        with self._marks.locked():
            if self._marks.holds(flood.run_id):
                return
            pause(run, but_not=self._spawner)  # the spawner itself may still be in the cgroup of a new run
            flood.paused = run
            if others and run.group is None:
                flood.others += pause_writers(flood.path, run.uid)
        again = last_record(self._journal, flood.run_id)
        if again is None or not again.alive:
            self._resume(flood)

    def _resume(self, flood: Flood) -> None:
        if flood.paused is not None:
            with self._marks.locked():
                if not self._marks.holds(flood.run_id):
                    resume(flood.paused, flood.others)
            flood.paused, flood.others = None, []

    def _trim_all(self) -> None:
        while True:
            flood = self._untrimmed.get()
            try:
                bound_output(flood.path)
            except OSError as error:
                print(f"cannot trim {flood.path}: {error}", file=sys.stderr, flush=True)
            flood.trimming = False


def _size_and_disk(path: str) -> tuple[int, int]:
    """Return the length of a file, and how many bytes it uses on disk."""
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return about.st_size, about.st_blocks * 512


def fork_guard(data: Path, pipe: int) -> int:
    """Start a guard, which exits when the other end of the pipe is closed. Return its process id."""
    spawner = os.getpid()
    if pid := os.fork():
        return pid
    try:
        os.dup2(pipe, 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # close inherited files, above all the spawner's lock
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        Path("/proc/self/comm").write_text(NAME)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        OutputGuard(data, spawner).serve(0)
    except BaseException:
        print(traceback.format_exc(), file=sys.stderr, flush=True)
    finally:
        os._exit(0)


class GuardProcess:
    """The spawner's handle of its output guard."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._pipe = -1
        self._died_before = False  # True: a guard has died, and a timer of the spawner starts the next one
        self.pid: int | None = None

    def start(self) -> None:
        if self.pid is not None:
            return
        pipe, self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self.pid = fork_guard(self._data, pipe)
        finally:
            os.close(pipe)

    def wake(self) -> None:
        """Wake the guard, because a run starts. The first call starts the guard, so that an idle spawner needs no memory for it."""
        if self.pid is None and not self._died_before:
            self.start()
            return
        with contextlib.suppress(OSError):  # full pipe: the guard wakes anyway; dead guard: the next one scans all files
            os.write(self._pipe, b"1")

    def died(self, runs: Iterable[SpawnedRun], resume_run: Callable[[SpawnedRun], None]) -> None:
        """Resume the stopped runs, because the dead guard may have paused them. The caller starts another guard later."""
        os.close(self._pipe)
        self.pid, self._pipe, self._died_before = None, -1, True
        for run in runs:
            if run.alive and run.pid is not None and procfs.is_stopped(run.pid):
                resume_run(run)

    def end(self) -> None:
        """Kill the guard, so that the cgroup of the guard and the spawner can be removed. Call this when no run is alive."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
