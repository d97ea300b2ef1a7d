"""Bounds on the disk space of output files.

If a run writes faster than its output is shipped, or if its output is not shipped at all, the oldest output is dropped: its bytes
become a hole in the file, and no offset changes. The agent bounds the files that it ships. The spawner (`output_guard.py`) bounds
those of all living process runs, also while no agent runs.
"""

from __future__ import annotations

import os

OUTPUT_MAX_BYTES = 64 * 1024 * 1024  # on disk, per run
KEPT_BYTES = 32 * 1024 * 1024  # of a file that has more
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
