"""The starts of processes of other Unix accounts that are not complete.

The working directory or the program of a run may be on a file system that its account serves itself, and that never answers. So the
spawner does not wait for the child that it has forked (`account_start.py`). A pipe has the result: the user id of the account and a
newline before the child executes the program, and then the reason if that fails. The pipe closes when the program is executed, or
when the child ends.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import NamedTuple

RESULT_MAX_BYTES = 4096


class Result(NamedTuple):
    uid: int | None  # None: the child has ended before it could execute the program
    why: str  # why the program cannot be executed; empty: it was


class PendingStart:
    """A child that has not executed its program yet."""

    def __init__(self, run_id: str, pid: int, pipe: int, started_at_s: float, started_boot_s: float) -> None:
        self.run_id, self.pid = run_id, pid
        self.started_at_s, self.started_boot_s = started_at_s, started_boot_s
        self.pipe = pipe
        os.set_blocking(pipe, False)
        self.stop_reason = ""  # why the child was killed
        self._text = b""

    def result(self) -> Result | None:
        """Return the result, or None if there is none yet. There is one when the child has ended."""
        with suppress(BlockingIOError):
            while part := os.read(self.pipe, RESULT_MAX_BYTES):
                self._text += part
            uid, found, why = self._text.partition(b"\n")
            return Result(int(uid) if found and uid else None, why.decode(errors="replace").strip())
        return None


class PendingStarts:
    """The children of the spawner that have not executed their programs yet."""

    def __init__(self, poll: select.epoll) -> None:
        self._poll = poll
        self.by_run: dict[str, PendingStart] = {}
        self.by_fd: dict[int, PendingStart] = {}

    def add(self, start: PendingStart) -> None:
        self.by_run[start.run_id] = self.by_fd[start.pipe] = start
        self._poll.register(start.pipe, select.EPOLLIN)

    def remove(self, start: PendingStart) -> None:
        del self.by_run[start.run_id], self.by_fd[start.pipe]
        self._poll.unregister(start.pipe)
        os.close(start.pipe)
