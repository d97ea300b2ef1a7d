"""Limit the disk space of the output files of runs.

A run writes directly into its file, so Corral cannot slow it down. The file grows if the run writes faster than the agent ships the
output to the core, or if the output is not shipped at all. If the file becomes too large, the oldest output is dropped. The bytes
become a hole in the file, which uses no disk space, and no offset changes. The agent checks the files that it ships. The spawner
checks the files of all living runs, even if no agent runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable

OUTPUT_MAX_BYTES = 64 * 1024 * 1024  # maximum disk space of the file of one run
KEPT_BYTES = 32 * 1024 * 1024  # if a file is larger than the maximum, only this much is kept
CHECK_S = 0.25  # the interval between two checks of the spawner
CHECK_NOISY_S = 0.05  # the interval while output is being dropped
CHECK_MAX = 500  # maximum number of files that one check examines
BLOCK_BYTES = 64 * 1024  # holes start and end at multiples of this, so that the kernel frees whole blocks


def bound_output(path: str | os.PathLike[str]) -> bool:
    """Drop the oldest output of a file that occupies too much disk space. Return whether anything was dropped."""
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return False
    if about.st_blocks * 512 <= OUTPUT_MAX_BYTES:
        return False
    make_hole(path, 0, about.st_size - KEPT_BYTES)
    return True


class OutputChecks:
    """The spawner's checks of output files. Each check examines some of the files.

    If an agent runs, it usually limits a file before the spawner does.
    """

    def __init__(self, path_of: Callable[[str], str]) -> None:
        self._path_of = path_of
        self._unchecked: list[str] = []  # ids of runs whose files were not checked in this round
        self._noisy: list[str] = []  # ids of runs whose output was dropped in the last check

    @property
    def interval_s(self) -> float:
        return CHECK_NOISY_S if self._noisy else CHECK_S

    def check(self, live_runs: Callable[[], list[str]]) -> None:
        if not self._unchecked:
            self._unchecked = live_runs()
        part, self._unchecked = self._unchecked[:CHECK_MAX], self._unchecked[CHECK_MAX:]
        self._noisy = [run_id for run_id in dict.fromkeys([*self._noisy, *part]) if bound_output(self._path_of(run_id))]


def make_hole(path: str | os.PathLike[str], start: int, end: int) -> None:
    """Free the disk space of these bytes without changing offsets. If the file system does not support that, nothing changes.

    The hole may start a little before `start`. The bytes there are not needed either.
    """
    import ctypes  # imported here, because the spawner seldom needs it

    keep_size_and_punch = 0x01 | 0x02
    start, end = start // BLOCK_BYTES * BLOCK_BYTES, end // BLOCK_BYTES * BLOCK_BYTES
    if end <= start:
        return
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        ctypes.CDLL(None).fallocate(fd, keep_size_and_punch, ctypes.c_int64(start), ctypes.c_int64(end - start))
    finally:
        os.close(fd)


def first_data(fd: int, offset: int) -> int:
    """Return the first offset at or after `offset` that is not in a hole. Return `offset` itself if there is none."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:  # the offset is at the end of the file, or the file system does not support holes
        return offset
