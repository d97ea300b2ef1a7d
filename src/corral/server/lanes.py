"""A thread around a core: requests go in from the event loop, answers come back to it after the commit."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from corral.clock import Clock
from corral.core import Command, Core, HostOrders, Outcome, Receiver, S, Tx
from corral.database import Handover
from corral.errors import ServiceUnavailable
from corral.handovers import Delivery, Done, receive
from corral.ids import Ids
from corral.model.settings import Settings
from corral.server.batcher import Batcher

BATCH_MAX = 256  # commands in one transaction, about
READERS = 2
BROKEN_PAUSE_S = 0.5  # between two tries of a database that fails

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
        """`lanes` are all lanes by name, for hand-overs to them; `receivers` take what is handed over to this one, by its kind."""
        self._core = core
        self._clock = clock
        self._loop = loop
        self._on_orders = on_orders
        self._lanes = {} if lanes is None else lanes  # filled when all lanes are made
        self._receivers = receivers or {}
        self._delivery = Delivery(core, self._send, loop.call_later, lambda: self._queue.put([]))
        self._queue: SimpleQueue[list[Command] | None] = SimpleQueue()
        self._gathering = Batcher[Command](self._queue.put, BATCH_MAX)
        self._thread = threading.Thread(target=self._work, name=f"lane-{name}", daemon=True)
        self._readers: ThreadPoolExecutor | None = None
        self._mine = threading.local()
        self._releasing = False
        self.changes = 0  # transactions after which something may be different; raised when they are committed

    def start(self) -> None:
        """Call from the event loop, when all lanes are made."""
        self._delivery.start()
        self._thread.start()

    def submit(
        self, handler: Callable[[Tx[S]], Any], on_wait: Callable[[], None] | None = None, *, only_looks: bool = False
    ) -> asyncio.Future[Any]:
        """Run in the next transaction; the future is done after its commit. Call from the event loop.

        `on_wait` is called once the handler waits for something. Whoever cancels the future then is not waited for any more.
        """
        answer = self.promise()
        self._gathering.add(Command(handler, partial(_settle, answer), answer.cancelled, on_wait, only_looks))
        return answer

    def submit_at_once(self, handler: Callable[[Tx[S]], Any]) -> asyncio.Future[Any]:
        """As `submit`, for what was gathered before: it waits for no others, and takes those along that wait."""
        answer = self.submit(handler)
        self._gathering.flush()
        return answer

    def receive(self, handover: Handover, finished: list[Handover], done: Done) -> None:
        """Take what another lane hands over; `done` is called after the commit."""
        take = partial(receive, receivers=self._receivers, handover=handover, finished=finished)
        self._gathering.add(Command(take, done))

    def failing_handovers(self) -> list[dict[str, Any]]:
        return self._delivery.failing()

    def promise(self) -> asyncio.Future[Any]:
        """What a command will answer that is still to be made, by another thread, which gives it to us with `take`."""
        return self._loop.create_future()

    def take(self, commands: Sequence[tuple[Callable[[Tx[S]], Any], asyncio.Future[Any]]]) -> None:
        """Handlers, and where their answers were promised: run them in the next transaction. Other threads call this."""
        self._queue.put([Command(handler, partial(_settle, answer), answer.cancelled) for handler, answer in commands])

    async def read(self, handler: Callable[[Tx[S]], T], settings: Settings, ids: Ids) -> T:
        """Run a heavy read beside the lane."""
        if self._readers is None:
            self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        return await self._loop.run_in_executor(self._readers, self._read, handler, settings, ids)

    def look(self, handler: Callable[[Tx[S]], T], settings: Settings, ids: Ids) -> T:
        """Run a read of a few rows right here, on the event loop: it sees what was committed, and asks no thread."""
        return self._read(handler, settings, ids)

    def glance(self, handler: Callable[[Tx[S]], T], settings: Settings, ids: Ids) -> T:
        """The same without a snapshot: each statement sees its own moment. For whoever reads one row at most, or may be wrong."""
        return handler(self._reading(settings, ids))

    def release(self) -> None:
        """Answer those who wait, with what there is: nobody should be kept while we go down."""
        self._releasing = True
        self._queue.put([])

    def stop(self) -> None:
        """Finish what was submitted, then end the thread and close the store."""
        self._gathering.flush()
        self._queue.put(None)
        self._thread.join()
        if self._readers is not None:
            self._readers.shutdown()
        self._core.store.close()

    def _read(self, handler: Callable[[Tx[S]], T], settings: Settings, ids: Ids) -> T:
        tx = self._reading(settings, ids)
        tx.store.begin_reading()
        try:
            return handler(tx)
        finally:
            tx.store.end_reading()

    def _reading(self, settings: Settings, ids: Ids) -> Tx[S]:
        store = getattr(self._mine, "store", None)
        if store is None:
            store = self._mine.store = self._core.store.reader()
        return Tx(store, self._clock.now_s(), ids, settings, final=False)

    def _work(self) -> None:
        stopping = False
        while not stopping:
            commands, stopping = self._gather()
            if self._releasing:
                self._core.release()
            try:
                outcome = self._core.batch(commands)
            except Exception as error:  # the database cannot even be read: say so, and try again with the next ones
                refusal = ServiceUnavailable(f"The state cannot be read or written ({error}).")
                outcome = Outcome([(command, refusal) for command in commands], faults=[traceback.format_exc()])
                time.sleep(BROKEN_PAUSE_S)
            try:
                self._loop.call_soon_threadsafe(self._deliver, outcome)
            except RuntimeError:  # the loop is closed: the process is going down, and nobody is listening
                return

    def _gather(self) -> tuple[list[Command], bool]:
        """Everything that waits now; at least one command, unless something is due before one comes."""
        try:
            due_s = self._core.next_due_s()
        except Exception:
            log.exception("what is due cannot be read")
            due_s = self._clock.now_s() + BROKEN_PAUSE_S
        try:
            first = self._queue.get(timeout=None if due_s is None else max(0.0, due_s - self._clock.now_s()))
        except Empty:
            return [], False
        commands: list[Command] = []
        while first is not None:
            commands += first
            if len(commands) >= BATCH_MAX:
                return commands, False
            try:
                first = self._queue.get_nowait()
            except Empty:
                return commands, False
        return commands, True

    def _deliver(self, outcome: Outcome) -> None:
        self.changes += outcome.may_differ
        for fault in outcome.faults:
            log.error("%s", fault)
        answers = self._delivery.deliver(outcome)
        if outcome.orders and self._on_orders is not None:
            self._on_orders(outcome.orders)  # before the answers: a host starts tasks while these are written
        for command, answer in answers:
            command.done(answer)
        for command in outcome.waiting:
            if command.on_wait is not None:
                command.on_wait()

    def _send(self, handover: Handover, finished: list[Handover], done: Done) -> None:
        self._lanes[handover.lane].receive(handover, finished, done)


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():  # whoever asked has gone
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
