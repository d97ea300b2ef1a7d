"""The lock between backups and the garbage collection of blobs.

A backup first takes the lock and then reads the rows of blobs; while it copies their files, none of them is erased. The lock ends
with its process, so a killed backup leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def hold_blobs(path: Path) -> int:
    """Keep all blobs until the descriptor is closed. Waits for a batch of the garbage collection to finish."""
    fd = _open(path)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def try_erasing(path: Path) -> int | None:
    """Return a descriptor while blobs may be erased; None: a backup or a check holds them."""
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
