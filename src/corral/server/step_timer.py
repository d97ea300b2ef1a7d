"""Waits until somebody sets the wall clock. The kernel wakes the server then, so nothing has to look at the clock."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET = 1, 2  # values in timerfd.h
NEVER_S = 2**33  # in the year 2242


class StepTimer:
    def __init__(self) -> None:
        """Raise OSError if the kernel cannot tell that the wall clock was set."""
        self._fd = _timer()
        self._was_set = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    async def wait(self, max_s: float) -> None:
        """Return when the wall clock was set, and at the latest after this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max_s):
                await self._was_set.wait()
        self._was_set.clear()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        with suppress(OSError):  # ECANCELED: the clock was set. The timer is still armed.
            os.read(self._fd, 8)
        self._was_set.set()


def _timer() -> int:
    """Return the descriptor of a timer that never ends, and is cancelled each time somebody sets the clock."""
    import ctypes  # imported here because importing it would slow down every start

    library = ctypes.CDLL(None, use_errno=True)
    fd: int = library.timerfd_create(time.CLOCK_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    end = (ctypes.c_long * 4)(0, 0, NEVER_S, 0)  # struct itimerspec
    if library.timerfd_settime(fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, end, None) < 0:
        os.close(fd)
        raise OSError(ctypes.get_errno(), "timerfd_settime")
    return fd
