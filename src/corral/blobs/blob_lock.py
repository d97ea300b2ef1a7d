"""A lock that prevents the garbage collection from erasing blobs during a backup or a check.

A backup takes the lock before it reads the blob rows of state.db. Then it copies the files of these blobs. The kernel releases the
lock when the process ends, even if the process is killed.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def hold_blobs(path: Path) -> int:
    """Take the lock, and return its descriptor.

    No blob is erased until the descriptor is closed. If the garbage collection runs, wait for its current batch.
    """
    fd = _open(path)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def try_erasing(path: Path) -> int | None:
    """Take the lock for the garbage collection, and return its descriptor. Return None if a backup or a check has the lock."""
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
