"""Runs long reads of one database in reader threads, outside the thread of its lane, which writes the database.

A read starts as a quick read. If it uses more CPU time than QUICK_MAX_S, it becomes a slow read and continues in its thread. This
is allowed if fewer than SLOW_MAX slow reads run and the caller has no other slow read. Otherwise the read is abandoned, waits for
its turn, and runs again from the beginning as a slow read. Callers take turns.

There are more than SLOW_MAX threads, so quick reads never wait for slow reads. A read ends when its client disconnects. Long reads
call `Tx.step` regularly. This call raises an exception if the read must end.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from msgspec import Struct

from corral.core.errors import api_error

THREADS = 4
SLOW_MAX = 2  # the maximum number of slow reads that run at the same time; the other threads serve quick reads
QUICK_MAX_S = 0.02  # the CPU time that a quick read may use
WATCH_S = 0.25  # a read that takes longer than this ends if its client disconnects
WAITING_MAX = 200  # the maximum number of reads that wait for their turn to run as slow reads

ThrottlingException = api_error("ThrottlingException")
Step = Callable[[], None]
Read = Callable[[Step], Any]


class TooSlow(Exception):
    """Raised in a quick read that has used too much CPU time and cannot become a slow read now."""


class ReadCancelled(Exception):
    """Raised in a read when its client has disconnected."""


class HeavyRead(Struct, eq=False):
    read: Read
    caller: str
    answer: asyncio.Future[Any]
    become_slow: Callable[[HeavyRead], bool]
    is_slow: bool = False
    cancelled: bool = False
    quick_until_s: float = 0.0  # when the CPU time of the thread reaches this value, the read is no longer quick

    def run(self) -> Any:
        """Run the read. A reader thread calls this method."""
        self.quick_until_s = time.thread_time() + QUICK_MAX_S
        return self.read(self.step)

    def step(self) -> None:
        if self.cancelled:
            raise ReadCancelled
        if not self.is_slow and time.thread_time() > self.quick_until_s and not self.become_slow(self):
            raise TooSlow


class HeavyReads:
    """The reader threads of one lane, and the reads that wait to run as slow reads. Call `run` from the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, waiting_max: int = WAITING_MAX) -> None:
        self._loop = loop
        self._waiting_max = waiting_max
        self._threads: ThreadPoolExecutor | None = None
        self._started: set[HeavyRead] = set()
        self._waiting: dict[str, deque[HeavyRead]] = {}  # caller → its waiting reads; the callers are in the order of their turns
        self._slow_callers: set[str] = set()  # the callers of the slow reads that run; each has one
        self._lock = threading.Lock()  # protects `_slow_callers`, which the reader threads change too

    async def run(self, read: Read, caller: str, on_slow: Callable[[asyncio.Future[Any]], object]) -> Any:
        """Run a read and return its result.

        If the read takes longer than WATCH_S, `on_slow` is called with a future. Cancelling this future ends the read.
        """
        heavy = HeavyRead(read, caller, self._loop.create_future(), self._become_slow)
        heavy.answer.add_done_callback(lambda answer: self._cancel(heavy) if answer.cancelled() else None)
        self._start(heavy)
        watch = self._loop.call_later(WATCH_S, on_slow, heavy.answer)  # the time starts now, even if the read waits for a thread
        try:
            return await heavy.answer
        finally:
            watch.cancel()

    def close(self) -> None:
        """Cancel the reads, and wait until the threads have ended."""
        for heavy in tuple(self._started):  # a copy, because the event loop may change the set
            heavy.cancelled = True
        self._waiting.clear()
        if self._threads is not None:
            self._threads.shutdown()

    def _start(self, heavy: HeavyRead) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="reader")
        self._started.add(heavy)
        self._threads.submit(heavy.run).add_done_callback(lambda done: self._finish_soon(heavy, done))

    def _become_slow(self, heavy: HeavyRead) -> bool:
        with self._lock:
            heavy.is_slow = len(self._slow_callers) < SLOW_MAX and heavy.caller not in self._slow_callers
            if heavy.is_slow:
                self._slow_callers.add(heavy.caller)
        return heavy.is_slow

    def _finish_soon(self, heavy: HeavyRead, done: Future[Any]) -> None:
        with suppress(RuntimeError):  # the event loop is closed, because the process is shutting down
            self._loop.call_soon_threadsafe(self._finished, heavy, done)

    def _finished(self, heavy: HeavyRead, done: Future[Any]) -> None:
        self._started.discard(heavy)
        error = done.exception()
        if isinstance(error, TooSlow) and not heavy.cancelled:
            if sum(map(len, self._waiting.values())) < self._waiting_max:
                self._waiting.setdefault(heavy.caller, deque()).append(heavy)
                self._start_waiting()
                return
            error = ThrottlingException("Rate exceeded: too many long reads are waiting. Retry later.")
        if heavy.is_slow:
            self._start_waiting(heavy.caller)
        if heavy.answer.done():
            return
        if error is None:
            heavy.answer.set_result(done.result())
        else:
            heavy.answer.set_exception(error)

    def _start_waiting(self, finished_caller: str | None = None) -> None:
        """Start the next waiting read of each caller that has no slow read, until SLOW_MAX slow reads run."""
        with self._lock:
            if finished_caller is not None:
                self._slow_callers.remove(finished_caller)
            for caller in [caller for caller in self._waiting if caller not in self._slow_callers]:
                if len(self._slow_callers) >= SLOW_MAX:
                    return
                queue = self._waiting.pop(caller)
                heavy = queue.popleft()
                if queue:
                    self._waiting[caller] = queue  # at the end: the other callers have their turn first
                heavy.is_slow = True
                self._slow_callers.add(caller)
                self._start(heavy)

    def _cancel(self, heavy: HeavyRead) -> None:
        heavy.cancelled = True
        queue = self._waiting.get(heavy.caller)
        if queue is not None and heavy in queue:
            queue.remove(heavy)
            if not queue:
                del self._waiting[heavy.caller]
