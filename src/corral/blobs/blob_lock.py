"""A lock that prevents the garbage collection from erasing blobs during a backup or a check of a data folder.

A backup holds the lock while it reads the blob rows of state.db and copies the files of these blobs. The kernel releases the lock
when the process of the backup ends, even if this process is killed.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def hold_blobs(path: Path) -> int:
    """Take the lock for a backup or a check, and return its descriptor.

    The garbage collection erases no blob until the descriptor is closed. If the garbage collection is erasing blobs now, wait until
    it has erased its current batch.
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
