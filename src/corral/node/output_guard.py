"""The output guard: the spawner's thread that bounds how fast living runs print, and how much of it is on disk.

A run writes into its output file directly, so only a pause makes it wait. The guard pauses a run that prints too fast, trims its
file, and lets it continue when its average is below `FLOOD_BYTES_PER_S` again. Other runs never wait. A run is also paused while
its file is above `HARD_MAX_BYTES`, until the file is trimmed: on a busy disk, that may take seconds.

The guard only reads the sizes of files and pauses runs, which never waits for the disk. A second thread trims files. So neither a
slow disk nor a long queue of starts delays a pause. A pause ends with the spawner's knowledge of the run: when its main process
ends, when it is stopped, or when a later spawner adopts it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from corral.node.output_bounds import OUTPUT_MAX_BYTES, bound_output
from corral.node.run_processes import pause, pause_writers, resume
from corral.node.spawner_protocol import SpawnedRun

FLOOD_BYTES_PER_S = 32 * 1024 * 1024  # a run that prints more is paused for a part of the time
HARD_MAX_BYTES = 2 * OUTPUT_MAX_BYTES  # on disk; a run is paused until its file is smaller
NOTICE_BYTES = 8 * 1024 * 1024  # files that grow by less between two scans are not watched
CHECK_S = 0.02  # between two checks; a run can print for this long before it is noticed
SCAN_S = 1.0  # between two scans of all files, if the free disk space does not shrink
SCAN_PAUSE = 10  # times as long as a scan took: the least time until the next one
CALM_S = 1.0  # a file that has grown by less than NOTICE_BYTES for this long is no longer watched
LATE_WRITE_S = 0.2  # a pause takes effect within this time, unless a process was missed
NICE = -10  # the guard's priority, if this user may raise it


@dataclass(slots=True)
class Flood:
    """A run whose output file is large and grows."""

    path: str
    size: int  # the length of the file at `since_s`
    since_s: float  # when the run last continued, or was noticed
    seen: int = 0  # the length of the file at the last check
    paused_at_s: float | None = None
    resume_at_s: float = 0.0
    trimming: bool = False
    others: list[int] = field(default_factory=list)  # processes outside the process group that were paused too


class OutputGuard:
    def __init__(self, folder: str, path_of: Callable[[str], str]) -> None:
        self._folder = folder
        self._path_of = path_of
        self._live: dict[str, SpawnedRun] = {}
        self._floods: dict[str, Flood] = {}
        self._calm: dict[str, int] = {}  # run id → the length of a large file that does not grow
        self._lock = threading.Lock()  # a run is paused only while it is in `_live`: later, its pid and its cgroup may be reused
        self._wake = threading.Event()
        self._untrimmed: queue.SimpleQueue[Flood] = queue.SimpleQueue()
        self._trims = False
        self._free_bytes = 0  # of the disk, at the last scan or since
        self._scanned_at_s = 0.0
        self._scan_not_before_s = 0.0

    def start(self) -> None:
        threading.Thread(target=self._guard, name="output guard", daemon=True).start()

    # -- called by the spawner's main thread ---------------------------------------------------------------------

    def follow(self, run: SpawnedRun) -> None:
        """Guard a run. The spawner must have left the run's cgroup: otherwise a pause would pause the spawner too."""
        self._live[run.run_id] = run
        if not self._wake.is_set():
            self._wake.set()

    def forget(self, run_id: str) -> None:
        """End the pause of a run, and do not pause it again."""
        if run_id in self._live:
            with self._lock:
                run = self._live.pop(run_id)
                flood = self._floods.pop(run_id, None)
                if flood is not None:
                    self._resume(run, flood)
                self._calm.pop(run_id, None)

    def signalled(self, run_id: str) -> None:
        """End the pause of a run so that it can handle a signal. If it still prints too fast, it is paused again later."""
        with self._lock:
            run, flood = self._live.get(run_id), self._floods.get(run_id)
            if run is not None and flood is not None:
                self._resume(run, flood)
                flood.size, flood.since_s = flood.seen, time.monotonic()

    # -- the guard's thread --------------------------------------------------------------------------------------

    def _guard(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            if not self._live:
                self._wake.clear()
                if not self._live:
                    self._wake.wait()
            try:
                self._check(time.monotonic())
            except Exception:  # the guard must outlive a bad file
                print(traceback.format_exc(), file=sys.stderr, flush=True)
            time.sleep(CHECK_S)

    def _check(self, now_s: float) -> None:
        for run_id, flood in list(self._floods.items()):
            run = self._live.get(run_id)
            if run is not None:
                self._check_flood(run, flood, now_s)
        if self._must_scan(now_s):
            self._scan(now_s)

    def _must_scan(self, now_s: float) -> bool:
        """Whether a file may have grown: the disk has less free space, or some time has passed."""
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
        for run_id in list(self._live):
            if run_id in self._floods:
                continue
            path = self._path_of(run_id)
            size, held = _size_and_disk(path)
            if held > NOTICE_BYTES and size >= (calm := self._calm.get(run_id, 0)) + NOTICE_BYTES:
                # At the last scan it had at most this much.
                flood = Flood(path, max(calm, size - held + NOTICE_BYTES), self._scanned_at_s or now_s, size)
                with self._lock:
                    run = self._live.get(run_id)
                    if run is None:
                        continue
                    self._floods[run_id] = flood
                self._check_flood(run, flood, now_s)
        self._scanned_at_s = now_s
        self._scan_not_before_s = now_s + SCAN_PAUSE * (time.monotonic() - now_s)

    def _check_flood(self, run: SpawnedRun, flood: Flood, now_s: float) -> None:
        size, held = _size_and_disk(flood.path)
        grown, flood.seen = size > flood.seen, size
        if flood.paused_at_s is not None:
            if not flood.trimming and now_s >= flood.resume_at_s:
                with self._lock:
                    self._resume(run, flood)
                flood.size, flood.since_s = size, now_s
            elif grown and now_s > flood.paused_at_s + LATE_WRITE_S:
                self._pause(run, flood, now_s, others=run.group is None)
        elif held > OUTPUT_MAX_BYTES:
            wait_s = (size - flood.size) / FLOOD_BYTES_PER_S - (now_s - flood.since_s)
            if wait_s > 0 or held > HARD_MAX_BYTES:
                flood.resume_at_s = now_s + wait_s
                self._pause(run, flood, now_s)
            if not flood.trimming:
                self._trim(flood)
                if flood.paused_at_s is None:
                    flood.size, flood.since_s = size, now_s
        elif now_s > flood.since_s + CALM_S and not flood.trimming:
            if size < flood.size + NOTICE_BYTES:
                with self._lock:
                    if self._floods.pop(run.run_id, None) is not None:
                        self._calm[run.run_id] = size
            else:
                flood.size, flood.since_s = size, now_s

    def _pause(self, run: SpawnedRun, flood: Flood, now_s: float, *, others: bool = False) -> None:
        with self._lock:
            if run.run_id not in self._live:
                return
            if others:
                flood.others += pause_writers(flood.path)
            else:
                pause(run)
            flood.paused_at_s = now_s

    def _resume(self, run: SpawnedRun, flood: Flood) -> None:
        if flood.paused_at_s is not None:
            flood.paused_at_s = None
            resume(run, flood.others)
            flood.others = []

    # -- the trimming thread -------------------------------------------------------------------------------------

    def _trim(self, flood: Flood) -> None:
        flood.trimming = True
        self._untrimmed.put(flood)
        if not self._trims:
            self._trims = True
            threading.Thread(target=self._trim_all, name="output trimmer", daemon=True).start()

    def _trim_all(self) -> None:
        while True:
            flood = self._untrimmed.get()
            try:
                bound_output(flood.path)
            except OSError as error:
                print(f"cannot trim {flood.path}: {error}", file=sys.stderr, flush=True)
            flood.trimming = False


def _size_and_disk(path: str) -> tuple[int, int]:
    """The length of a file, and its bytes on disk."""
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return about.st_size, about.st_blocks * 512
