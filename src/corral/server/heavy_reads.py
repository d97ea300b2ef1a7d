"""Runs long reads of one database in reader threads, outside its lane. A lane is the thread that writes the database.

A read starts in one of the quick threads. If it uses too much CPU time there, it is abandoned and runs again as a slow read. Slow
reads have threads of their own. In these threads, each caller has at most one read at a time, and callers take turns. So quick
reads never wait for slow reads, and the slow reads of one caller do not delay those of another. A slow read ends when its client
disconnects. Long reads call `Tx.step` regularly. This call raises an exception if the read must end.

After a slow read, the next read of the same caller and operation also starts as a slow read, unless a slow read of this caller is
running. Without this rule, a client that reads many pages would lose time to an abandoned read for each page. After a slow read
that took little CPU time, the next read starts in a quick thread again.
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
QUICK_MAX_S = 0.02  # the CPU time that a quick read may use
WATCH_S = 0.25  # a read that takes longer than this ends if its client disconnects
WAITING_MAX = 200  # the maximum number of slow reads that wait for a thread
KINDS_MAX = 1_000  # the maximum number of pairs of a caller and an operation that are remembered as slow

ThrottlingException = api_error("ThrottlingException")
Step = Callable[[], None]
Read = Callable[[Step], Any]
Kind = tuple[str, str]  # caller and operation


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
    kind: Kind
    cancelled: bool = False
    was_quick: bool = False

    def run(self) -> Any:
        """Called in a thread for slow reads."""
        since_s = time.thread_time()
        found = self.read(self.step)
        self.was_quick = time.thread_time() - since_s <= QUICK_MAX_S
        return found

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
        self._slow_kinds: dict[Kind, None] = {}  # the oldest is first

    async def run(self, read: Read, kind: Kind, on_slow: Callable[[asyncio.Future[Any]], object]) -> Any:
        """Run a read and return its result.

        If the read takes long, `on_slow` is called with a future. Cancelling this future ends the read.
        """
        if kind not in self._slow_kinds or kind[0] in self._reading:
            try:
                return await self._watched(self._start_quick(read), on_slow)
            except TooSlow:
                self._note_slow(kind)
        return await self._watched(self._queue(read, kind), on_slow)

    async def _watched(self, answer: asyncio.Future[Any], on_slow: Callable[[asyncio.Future[Any]], object]) -> Any:
        watch = self._loop.call_later(WATCH_S, on_slow, answer)  # the time starts now, even if the read waits for a thread
        try:
            return await answer
        finally:
            watch.cancel()

    def _start_quick(self, read: Read) -> asyncio.Future[Any]:
        if self._quick is None:
            self._quick = ThreadPoolExecutor(QUICK_THREADS, thread_name_prefix="reader")
        return self._loop.run_in_executor(self._quick, _read_quickly, read)

    def _note_slow(self, kind: Kind) -> None:
        if len(self._slow_kinds) >= KINDS_MAX:
            del self._slow_kinds[next(iter(self._slow_kinds))]
        self._slow_kinds[kind] = None

    def close(self) -> None:
        """Cancel the slow reads, and wait until the threads have ended."""
        for slow in [*self._reading.values(), *(slow for queue in self._waiting.values() for slow in queue)]:
            slow.cancelled = True
        self._waiting.clear()
        for pool in (self._quick, self._slow):
            if pool is not None:
                pool.shutdown()

    def _queue(self, read: Read, kind: Kind) -> asyncio.Future[Any]:
        if sum(map(len, self._waiting.values())) >= self._waiting_max:
            raise ThrottlingException("Rate exceeded: too many long reads are waiting. Retry later.")
        caller, _ = kind
        slow = SlowRead(read, self._loop.create_future(), kind)
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
            done = self._slow.submit(slow.run)
            done.add_done_callback(lambda done, slow=slow, caller=caller: self._finish_soon(slow, caller, done))  # type: ignore[misc]

    def _finish_soon(self, slow: SlowRead, caller: str, done: Future[Any]) -> None:
        with suppress(RuntimeError):  # the event loop is closed, because the process is shutting down
            self._loop.call_soon_threadsafe(self._finished, slow, caller, done)

    def _finished(self, slow: SlowRead, caller: str, done: Future[Any]) -> None:
        del self._reading[caller]
        if slow.was_quick:
            self._slow_kinds.pop(slow.kind, None)
        if not slow.answer.done():
            error = done.exception()
            if error is None:
                slow.answer.set_result(done.result())
            else:
                slow.answer.set_exception(error)
        self._start()


def _read_quickly(read: Read) -> Any:
    return read(QuickLimit().step)
