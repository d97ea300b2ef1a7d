"""Lanes. A lane is a SQLite database (the store) and the one thread that writes to it.

The event loop submits commands to a lane and receives their results. Reader threads run heavy reads (`heavy_reads.py`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from corral.core.clock import Clock, WallSteps
from corral.core.commands import Command, NeedsThread
from corral.core.core import Core, Outcome
from corral.core.database import Handover
from corral.core.errors import ServiceUnavailable
from corral.core.handovers import Delivery, Done, receive
from corral.core.ids import Ids
from corral.core.transactions import Receiver, S, Tx
from corral.model.agent_protocol import HostOrders
from corral.model.histogram import DURATIONS_S, SIZES, Histogram
from corral.model.settings import Settings
from corral.server.allocator import return_free_memory
from corral.server.heavy_reads import HeavyReads, Step
from corral.server.thread_feed import ThreadFeed

COMMANDS_MAX = 256  # when a transaction has at least this many commands, further commands wait for the next transaction
BROKEN_PAUSE_S = 0.5  # the pause between two attempts when the database fails
# SQLite keeps up to 32 MiB of pages for each lane. A lane frees them after it has written in WRITES_MIN transactions, as soon as it
# writes in less than QUIET_MAX transactions within QUIET_S.
WRITES_MIN = 30
QUIET_S, QUIET_MAX = 3.0, 10

log = logging.getLogger("corral")
T = TypeVar("T")


class Lane(Generic[S]):
    def __init__(
        self,
        name: str,
        core: Core[S],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        on_orders: Callable[[dict[str, HostOrders]], None] | None = None,
        lanes: Mapping[str, Lane[Any]] | None = None,
        receivers: Mapping[str, Receiver] | None = None,
    ) -> None:
        """`lanes` has all lanes by name. `receivers` maps the kind of a hand-over to its handler in this lane."""
        self._core = core
        core.has_threads, core.timer = True, time.perf_counter
        self._clock = clock
        self._loop = loop
        self._on_orders = on_orders
        self._lanes = {} if lanes is None else lanes  # may be filled until `start` is called
        self._receivers = receivers or {}
        self._delivery = Delivery(core, self._send, loop.call_later, lambda: self._queue.put([]))
        self._queue: SimpleQueue[list[Command] | None] = SimpleQueue()
        core.is_awaited = lambda: not self._queue.empty()
        self._gathering = ThreadFeed[Command](self._queue.put, COMMANDS_MAX)
        self._thread = threading.Thread(target=self._work, name=f"lane-{name}", daemon=True)
        self._heavy_reads = HeavyReads(loop)
        self._thread_local = threading.local()
        self._releasing = False
        self._window = 0.0, 0  # the time of a check of `free_pages`, and the value of `writes` at this time
        self._writes_at_free = 0  # the value of `writes` when pages were freed
        self.transaction_sizes, self.transaction_seconds = Histogram(SIZES), Histogram(DURATIONS_S)
        # Called after each commit while the store notes statements (`Database.note_statements`), with their texts.
        self.on_statements: Callable[[set[str]], None] | None = None
        self._publishing: asyncio.Future[Any] | None = None
        self._published_at = -1  # the value of `writes` when the writer was last asked to publish
        self.changes = 0  # the number of committed transactions that may have changed the store
        self.writes = 0  # the number of committed transactions that may have written rows
        self.submitted = 0  # the number of commands, except those that only read, that the event loop has submitted

    @property
    def steps(self) -> WallSteps:
        """What converts the times of this lane to wall times."""
        return self._clock.steps

    def start(self) -> None:
        """Start the thread. Call this method from the event loop, after all lanes have been created."""
        self._delivery.start()
        self._thread.start()

    def submit(
        self,
        handler: Callable[[Tx[S]], Any],
        on_wait: Callable[[], None] | None = None,
        *,
        read_only: bool = False,
        owner: str = "",
    ) -> asyncio.Future[Any]:
        """Run a handler in the next transaction. The future gets the result after the commit. Call this from the event loop.

        If the handler waits for a change, `on_wait` is called. From then on, cancelling the future ends the wait. If there are more
        commands than a transaction has time for, their owners take turns.
        """
        answer = self.new_future()
        self.submitted += not read_only
        self._gathering.add(Command(handler, partial(_set_result, answer), answer.cancelled, on_wait, read_only, owner=owner))
        return answer

    def submit_now(self, handler: Callable[[Tx[S]], Any]) -> asyncio.Future[Any]:
        """Submit a handler, and start the transaction at once, without collecting more commands."""
        answer = self.submit(handler)
        self._gathering.flush()
        return answer

    def receive(self, handover: Handover, finished: list[Handover], done: Done) -> None:
        """Apply a hand-over from another lane. `done` is called after the commit."""
        handler = partial(receive, receivers=self._receivers, handover=handover, finished=finished)
        self._gathering.add(Command(handler, done))

    def failing_handovers(self) -> list[dict[str, Any]]:
        return self._delivery.failing()

    def new_future(self) -> asyncio.Future[Any]:
        """Return the future for the result of a command that another thread will submit with `submit_from_thread`."""
        return self._loop.create_future()

    def submit_from_thread(self, commands: Sequence[tuple[Callable[[Tx[S]], Any], asyncio.Future[Any]]]) -> None:
        """Run handlers in the next transaction, and set each future to the result of its handler.

        Any thread may call this method.
        """
        self._queue.put([Command(handler, partial(_set_result, answer), answer.cancelled) for handler, answer in commands])

    async def read(
        self,
        handler: Callable[[Tx[S]], T],
        settings: Settings,
        ids: Ids,
        caller: str = "",
        on_slow: Callable[[asyncio.Future[T]], object] = lambda answer: None,
    ) -> T:
        """Run a heavy read in a reader thread, and return its result.

        If the read takes long, `on_slow` is called with a future. Cancelling this future ends the read.
        """
        found: T = await self._heavy_reads.run(lambda step: self._read(handler, settings, ids, step), caller, on_slow)
        return found

    async def publish(self) -> None:
        """Let readers see what the writer has in memory after the last commit (`Database.publish`).

        The writer copies it at most once for each commit, and only if a reader asks for it.
        """
        if self._publishing is None and self._published_at != self.writes:
            writes = self.writes
            self._publishing = self.submit(lambda tx: tx.store.publish(), read_only=True)
            self._publishing.add_done_callback(lambda answer: self._has_published(answer, writes))
        if self._publishing is not None:
            await asyncio.shield(self._publishing)

    def _has_published(self, answer: asyncio.Future[Any], writes: int) -> None:
        self._publishing = None
        if answer.exception() is None:
            self._published_at = writes

    def read_now(self, handler: Callable[[Tx[S]], T], settings: Settings, ids: Ids) -> T:
        """Run a read of a few rows on the event loop. The read sees a snapshot of the last commit."""
        return self._read(handler, settings, ids)

    def read_without_snapshot(self, handler: Callable[[Tx[S]], T], settings: Settings, ids: Ids) -> T:
        """Run a read on the event loop, as `read_now` does, but without a snapshot.

        Each statement may see a different commit. Use this method only if the handler reads one row or accepts such differences.
        """
        return handler(self._reading(settings, ids))

    def release(self) -> None:
        """End all waits. Waiting handlers return the results that exist now. Called when the server shuts down."""
        self._releasing = True
        self._queue.put([])

    def stop(self) -> None:
        """Run the commands that were submitted, then end the thread and close the store."""
        self._gathering.flush()
        self._queue.put(None)
        self._thread.join()
        self._heavy_reads.close()
        self._core.store.close()

    def _read(self, handler: Callable[[Tx[S]], T], settings: Settings, ids: Ids, step: Step | None = None) -> T:
        tx = self._reading(settings, ids)
        if step is not None:
            tx.step = step
        tx.store.begin_reading()
        try:
            return handler(tx)
        finally:
            tx.store.end_reading()

    def _reading(self, settings: Settings, ids: Ids) -> Tx[S]:
        store = getattr(self._thread_local, "store", None)
        if store is None:
            store = self._thread_local.store = self._core.store.reader()
        return Tx(store, self._clock.now_s(), ids, settings, self._clock.steps, final=False)

    def _work(self) -> None:
        stopping = False
        while not stopping or self._core.left:
            commands, stops = self._gather()
            stopping = stopping or stops
            if self._releasing:
                self._core.release()
            began_s = time.perf_counter()
            try:
                outcome = self._core.transact(commands)
            except Exception as error:  # the database cannot be read or written: these commands fail, and later commands try again
                refusal = ServiceUnavailable(f"The database cannot be read or written ({error}).")
                outcome = Outcome([(command, refusal) for command in self._core.taken()], faults=[traceback.format_exc()])
                time.sleep(BROKEN_PAUSE_S)
            self.transaction_sizes.add(len(commands))
            self.transaction_seconds.add(time.perf_counter() - began_s)
            try:
                self._loop.call_soon_threadsafe(self._deliver, outcome)
            except RuntimeError:  # the event loop is closed, because the process is shutting down
                return

    def free_pages(self, now_s: float) -> bool:
        """Free the pages of SQLite if the lane has written much, and little recently.

        The lane calls this between its transactions. Return whether it must be called again within QUIET_S.
        """
        writes = self.writes
        if writes - self._writes_at_free < WRITES_MIN:
            return False
        began_s, writes_then = self._window
        if now_s - began_s < QUIET_S:
            return True
        self._window = now_s, writes
        if writes - writes_then >= QUIET_MAX:
            return True
        self._core.store.free_pages()
        return_free_memory()
        self._writes_at_free = writes
        return False

    def _gather(self) -> tuple[list[Command], bool]:
        """Wait for a command or for the next due time. Return the queued commands, and whether the lane must stop."""
        try:
            due_s = self._core.next_due_s()
        except Exception:
            log.exception("the next due time cannot be read")
            due_s = self._clock.now_s() + BROKEN_PAUSE_S
        wait_s = None if due_s is None else max(0.0, due_s - self._clock.now_s())
        if self.free_pages(time.monotonic()) and (wait_s is None or wait_s > QUIET_S):
            wait_s = QUIET_S
        try:
            first = self._queue.get(timeout=wait_s)
        except Empty:
            return [], False
        commands: list[Command] = []
        while first is not None:
            commands += first
            if len(commands) >= COMMANDS_MAX:
                return commands, False
            try:
                first = self._queue.get_nowait()
            except Empty:
                return commands, False
        return commands, True

    def _deliver(self, outcome: Outcome) -> None:
        self.changes += outcome.may_have_changed
        self.writes += outcome.may_have_written
        for fault in outcome.faults:
            log.error("%s", fault)
        if outcome.statements and self.on_statements is not None:
            self.on_statements(outcome.statements)
        answers = self._delivery.deliver(outcome)
        if outcome.orders and self._on_orders is not None:
            self._on_orders(outcome.orders)  # orders are sent first, so that hosts start tasks while the responses are sent
        for command, needed in outcome.slow:
            self._loop.run_in_executor(None, self._call_slow, command, needed)
        for command, answer in answers:
            command.done(answer)
        for command in outcome.waiting:
            if command.on_wait is not None:
                command.on_wait()

    def _call_slow(self, command: Command, needed: NeedsThread) -> None:
        """Call a slow function in another thread, and run the command that waits for it in the transaction that gets the result."""
        command.results = {**command.results, **needed.call()}
        self._queue.put([command])

    def _send(self, handover: Handover, finished: list[Handover], done: Done) -> None:
        self._lanes[handover.lane].receive(handover, finished, done)


def _set_result(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():  # the caller has cancelled the future
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
