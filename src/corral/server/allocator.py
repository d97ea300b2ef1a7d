"""Settings of the memory allocator of glibc, with which the server returns the memory of large requests to the system.

By default, glibc has a heap for each thread, up to eight for each core, and keeps free blocks of up to 32 MiB in them.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # values in malloc.h
HEAPS_MAX = 2
MAPPED_MIN_BYTES = 4 * 1024 * 1024  # a larger block has a mapping of its own, which ends when the block is free
KEPT_MAX_BYTES = 8 * 1024 * 1024  # a heap keeps at most this much free memory at its end


def limit_heaps() -> None:
    """Limit the heaps that glibc makes from now on: threads that have a heap keep it, so the first thread calls this early.

    This does nothing if the allocator is not that of glibc.
    """
    with suppress(OSError, AttributeError):
        for setting, value in ((M_ARENA_MAX, HEAPS_MAX), (M_MMAP_THRESHOLD, MAPPED_MIN_BYTES), (M_TRIM_THRESHOLD, KEPT_MAX_BYTES)):
            _library().mallopt(setting, value)


def return_free_memory() -> None:
    """Return the free memory inside of the heaps to the system, too. This takes some milliseconds."""
    with suppress(OSError, AttributeError):
        _library().malloc_trim(0)


@cache
def _library() -> Any:
    import ctypes  # imported here because importing it would slow down every start

    return ctypes.CDLL(None)
