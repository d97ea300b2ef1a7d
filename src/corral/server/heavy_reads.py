"""Runs long reads of one database in reader threads, outside its lane. A lane is the thread that writes the database.

A read starts in one of the quick threads. If it uses too much CPU time there, it is abandoned and runs again as a slow read. Slow
reads have threads of their own. In these threads, each caller has at most one read at a time, and callers take turns. So quick
reads never wait for slow reads, and the slow reads of one caller do not delay those of another. A slow read ends when its client
disconnects. Long reads call `Tx.step` regularly. This call raises an exception if the read must end.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from msgspec import Struct, field

from corral.errors import api_error

QUICK_THREADS = 2
SLOW_THREADS = 2
QUICK_MAX_S = 0.02  # of CPU time
WATCH_S = 0.25  # a read that takes longer than this ends if its client disconnects
WAITING_MAX = 200  # the maximum number of slow reads that wait for a thread

ThrottlingException = api_error("ThrottlingException")
Step = Callable[[], None]
Read = Callable[[Step], Any]


class TooSlow(Exception):
    """Raised when a read has used the CPU time that a quick read may use."""


class ReadCancelled(Exception):
    """Raised in a read when its client has disconnected."""


class QuickLimit(Struct):
    """Ends a quick read that uses too much CPU time. Create an instance in the reader thread, whose CPU time it measures."""

    until_s: float = field(default_factory=lambda: time.thread_time() + QUICK_MAX_S)

    def step(self) -> None:
        if time.thread_time() > self.until_s:
            raise TooSlow


class SlowRead(Struct, eq=False):
    read: Read
    answer: asyncio.Future[Any]
    cancelled: bool = False

    def step(self) -> None:
        if self.cancelled:
            raise ReadCancelled


class HeavyReads:
    """The reader threads of one lane, and the queue of slow reads. Call all methods from the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, waiting_max: int = WAITING_MAX) -> None:
        self._loop = loop
        self._waiting_max = waiting_max
        self._quick: ThreadPoolExecutor | None = None
        self._slow: ThreadPoolExecutor | None = None
        self._waiting: dict[str, deque[SlowRead]] = {}  # caller → its waiting reads; the callers are in the order of their turns
        self._reading: dict[str, SlowRead] = {}  # caller → its running read

    async def run(self, read: Read, caller: str, on_slow: Callable[[asyncio.Future[Any]], object]) -> Any:
        """Run a read and return its result.

        If the read takes long, `on_slow` is called with a future. Cancelling this future ends the read.
        """
        if self._quick is None:
            self._quick = ThreadPoolExecutor(QUICK_THREADS, thread_name_prefix="reader")
        quick = self._loop.run_in_executor(self._quick, _read_quickly, read)
        watch = self._loop.call_later(WATCH_S, on_slow, quick)  # the time starts now, even if the read waits for a thread
        try:
            return await quick
        except TooSlow:
            answer = self._queue(read, caller)
        finally:
            watch.cancel()
        on_slow(answer)
        return await answer

    def close(self) -> None:
        """Cancel the slow reads, and wait until the threads have ended."""
        for slow in [*self._reading.values(), *(slow for queue in self._waiting.values() for slow in queue)]:
            slow.cancelled = True
        self._waiting.clear()
        for pool in (self._quick, self._slow):
            if pool is not None:
                pool.shutdown()

    def _queue(self, read: Read, caller: str) -> asyncio.Future[Any]:
        if sum(map(len, self._waiting.values())) >= self._waiting_max:
            raise ThrottlingException("Rate exceeded: too many long reads are waiting. Retry later.")
        slow = SlowRead(read, self._loop.create_future())
        slow.answer.add_done_callback(lambda answer: self._cancel(slow, caller) if answer.cancelled() else None)
        self._waiting.setdefault(caller, deque()).append(slow)
        self._start()
        return slow.answer

    def _cancel(self, slow: SlowRead, caller: str) -> None:
        slow.cancelled = True
        queue = self._waiting.get(caller)
        if queue is not None and slow in queue:
            queue.remove(slow)
            if not queue:
                del self._waiting[caller]

    def _start(self) -> None:
        """Start the next read of each caller that has no running read, as long as a thread is free."""
        if self._slow is None:
            self._slow = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="slow-reader")
        for caller in [caller for caller in self._waiting if caller not in self._reading]:
            if len(self._reading) >= SLOW_THREADS:
                return
            queue = self._waiting.pop(caller)
            slow = self._reading[caller] = queue.popleft()
            if queue:
                self._waiting[caller] = queue  # at the end: the other callers have their turn first
            done = self._slow.submit(slow.read, slow.step)
            done.add_done_callback(lambda done, slow=slow, caller=caller: self._finish_soon(slow, caller, done))  # type: ignore[misc]

    def _finish_soon(self, slow: SlowRead, caller: str, done: Future[Any]) -> None:
        with suppress(RuntimeError):  # the event loop is closed, because the process is shutting down
            self._loop.call_soon_threadsafe(self._finished, slow, caller, done)

    def _finished(self, slow: SlowRead, caller: str, done: Future[Any]) -> None:
        del self._reading[caller]
        if not slow.answer.done():
            error = done.exception()
            if error is None:
                slow.answer.set_result(done.result())
            else:
                slow.answer.set_exception(error)
        self._start()


def _read_quickly(read: Read) -> Any:
    return read(QuickLimit().step)
