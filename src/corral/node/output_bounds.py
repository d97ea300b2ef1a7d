"""Limit the disk space of the output files of runs.

The agent ships the output of runs: it sends the output to the server. The oldest output of a run is dropped if the run writes
faster than its output is shipped, or if its output is not shipped at all. The dropped bytes become a hole in the file, so no offset
changes. The agent limits the files that it ships. The output guard (`output_guard.py`) limits the files of all living runs that are
processes, even while no agent runs.

A file with two names is kept after the end of its run (`kept_outputs.py`). Its limit is a setting, which the agent writes to the
file KEPT_LIMIT of the node folder.
"""

from __future__ import annotations

import os

OUTPUT_MAX_BYTES = 64 * 1024 * 1024  # maximum disk space of the file of one run
KEPT_LIMIT = "output_limit"
BLOCK_BYTES = 64 * 1024  # holes start and end at multiples of this, so that the kernel frees whole blocks


def bound_output(path: str | os.PathLike[str]) -> bool:
    """Drop the oldest output of a file that occupies too much disk space. Return whether anything was dropped."""
    try:
        about = os.stat(path)
    except FileNotFoundError:
        return False
    if about.st_blocks * 512 <= OUTPUT_MAX_BYTES:
        return False
    max_bytes = output_max_bytes(path, about)
    if about.st_blocks * 512 <= max_bytes:
        return False
    make_hole(path, 0, about.st_size - max_bytes // 2)
    return True


def output_max_bytes(path: str | os.PathLike[str], about: os.stat_result) -> int:
    """Return the maximum disk space of an output file. It is larger if the file has a second name."""
    if about.st_nlink > 1:
        try:
            with open(os.path.join(os.path.dirname(os.path.dirname(path)), KEPT_LIMIT), encoding="ascii") as file:
                return max(OUTPUT_MAX_BYTES, int(file.read()))
        except (OSError, ValueError):
            pass
    return OUTPUT_MAX_BYTES


def make_hole(path: str | os.PathLike[str], start: int, end: int) -> None:
    """Free the disk space of these bytes without changing offsets. If the file system does not support that, nothing changes.

    The hole may start a little before `start`. The bytes there are not needed either.
    """
    import ctypes  # imported here to save memory in the spawner, which imports this module but makes no holes

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
