"""Bounds on the disk space of output files.

A run writes into its file directly, so nothing makes it wait. If it writes faster than its output is shipped, or if its output is
not shipped at all, the oldest output is dropped: its bytes become a hole in the file, and no offset changes. The agent bounds the
files that it ships. The spawner bounds those of all living runs, also while no agent runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable

OUTPUT_MAX_BYTES = 64 * 1024 * 1024  # on disk, per run
KEPT_BYTES = 32 * 1024 * 1024  # of a file that has more
CHECK_S = 0.25  # between two checks of the spawner
CHECK_NOISY_S = 0.05  # while output is being dropped
CHECK_MAX = 500  # files that one check examines
BLOCK_BYTES = 64 * 1024  # holes end at multiples of this, so that no byte next to them is overwritten with zeros


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
    """The spawner's checks of output files, some files at a time. With an agent, the agent bounds them sooner."""

    def __init__(self, path_of: Callable[[str], str]) -> None:
        self._path_of = path_of
        self._unchecked: list[str] = []  # runs whose file has not been checked in this round
        self._noisy: list[str] = []  # runs whose output was dropped in the last check

    @property
    def interval_s(self) -> float:
        return CHECK_NOISY_S if self._noisy else CHECK_S

    def check(self, live_runs: Callable[[], list[str]]) -> None:
        if not self._unchecked:
            self._unchecked = live_runs()
        part, self._unchecked = self._unchecked[:CHECK_MAX], self._unchecked[CHECK_MAX:]
        self._noisy = [run_id for run_id in dict.fromkeys([*self._noisy, *part]) if bound_output(self._path_of(run_id))]


def make_hole(path: str | os.PathLike[str], start: int, end: int) -> None:
    """Free the disk space of these bytes without changing offsets. If the file system cannot do that, the file keeps its size.

    The hole may begin a little before `start`: the bytes there are not needed either.
    """
    import ctypes  # here: the spawner seldom needs it

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
    """The first offset at or after this one that is not in a hole; the same offset if there is none."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:  # at the end of the file, or the file system has no holes
        return offset
