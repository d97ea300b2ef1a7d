"""Runs the invocations of Lambda functions: takes queued invocations, runs them in processes, and records the results.

A process serves one invocation at a time. After an invocation, the process is kept for IDLE_S, so that the next invocation starts
without delay.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from time import gmtime, monotonic, strftime
from typing import TYPE_CHECKING

from corral.core.clock import Clock
from corral.core.commands import Wait
from corral.core.errors import ApiError
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.model.function import INVOCATIONS, InvocationOrder, InvocationOutcome
from corral.model.settings import Settings
from corral.server.lanes import Lane
from corral.store import Store
from corral.telemetry import LogStore

if TYPE_CHECKING:
    from corral.server.functions.process import FunctionProcess

IDLE_S = 60.0  # how long an idle process is kept
IDLE_MAX = 8  # the maximum number of idle processes, because each needs about 50 MB
AGE_MAX_S = 6 * 3600.0  # older processes serve no further invocation: their credentials expire after twelve hours
RETRY_S = 1.0  # the pause after an error, for example if the disk is full
WAIT_MAX_S = 10 * 365 * 86_400.0  # practically without end: the wait ends when an invocation is queued or the server stops
REPLACED = "The code of the function was replaced while the invocation began. Invoke the function again."

log = logging.getLogger("corral")


class FunctionRunner:
    def __init__(self, data: Path, state: Lane[Store], logs: Lane[LogStore], settings: Settings, ids: Ids, clock: Clock) -> None:
        self._folder = data / "functions"
        self._state = state
        self._logs = logs
        self._settings = settings
        self._ids = ids
        self._clock = clock
        self._running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._processes: set[FunctionProcess] = set()
        self._idle: dict[FunctionProcess, asyncio.TimerHandle] = {}  # oldest first
        self._discards: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run invocations until the server stops."""
        has_begun = False
        while True:
            try:
                has_begun = has_begun or await self._begin()
                if not has_begun or await self._take():
                    return
            except Exception:  # for example, the disk is full
                log.exception("invocations of functions could not be started")
                await asyncio.sleep(RETRY_S)

    async def _begin(self) -> bool:
        """Remove the files of the previous server, and wait for the first invocation. Return False when the server stops."""
        if self._folder.exists():  # the processes of the previous server have ended with the server
            from shutil import rmtree  # imported here, because it takes memory and few servers run functions

            await asyncio.to_thread(rmtree, self._folder, ignore_errors=True)
        await self._state.submit(_requeue)
        found: bool = await self._state.submit(_wait_for_first)
        return found

    async def _take(self) -> bool:
        """Wait for queued invocations and start them. Return True when the server stops."""
        from corral.services.lambda_.invocations import CONCURRENT_MAX, take_invocations  # imported with the first invocation

        while len(self._running) >= CONCURRENT_MAX:
            self._room.clear()
            await self._room.wait()
        orders = await self._state.submit(partial(take_invocations, room=CONCURRENT_MAX - len(self._running)))
        for order in orders:
            task = asyncio.create_task(self._serve(order))
            self._running.add(task)
            task.add_done_callback(self._served)
        return not orders

    def _served(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._room.set()

    async def _serve(self, order: InvocationOrder) -> None:
        from corral.services.lambda_.invocations import finish_invocation

        outcome = await self._run(order)
        while True:
            try:
                await self._state.submit(lambda tx: finish_invocation(tx, order.id, outcome))
                return
            except ApiError as error:  # for example, the disk is full
                log.warning("the result of the function %s could not be written: %s", order.function, error)
                await asyncio.sleep(RETRY_S)

    async def _run(self, order: InvocationOrder) -> InvocationOutcome:
        from corral.services.lambda_.invocations import failure

        process: FunctionProcess | None = None
        try:
            process = self._idle_process(order) or await self._start(order)
            if process is None:
                return InvocationOutcome(False, failure(REPLACED), b"")
            outcome = await process.run(order)
            self._keep(process)
            return outcome
        except Exception as error:
            log.exception("the function %s could not run", order.function)
            if process is not None:  # it may still be busy
                self._discard(process)
            return InvocationOutcome(False, failure(f"The function could not run: {error}"), b"")

    # Processes

    def _idle_process(self, order: InvocationOrder) -> FunctionProcess | None:
        for process in list(self._idle):
            if process.key == (order.function_arn, order.revision):
                self._idle.pop(process).cancel()
                return process
        return None

    async def _start(self, order: InvocationOrder) -> FunctionProcess | None:
        """Start a process. Return None if the code of the function has been replaced since the order was made."""

        def read_code(tx: Tx[Store]) -> bytes | None:
            return tx.store.functions.code(order.code_id)

        from corral.server.functions.process import FunctionLog, FunctionProcess

        code = await self._state.read(read_code, self._settings, self._ids)
        if code is None:
            return None
        id, now_s = self._ids.hex32(), self._clock.wall_s()
        stream = f"{_date(now_s)}/[$LATEST]{id}"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        output = FunctionLog(self._logs, self._clock, (order.region, order.log_group, stream), order.owner)
        process = FunctionProcess(self._folder / id, output, order, self._has_ended)
        self._processes.add(process)
        try:
            await process.start(code, order, stream)
        except BaseException:
            self._discard(process)
            raise
        return process

    def _keep(self, process: FunctionProcess) -> None:
        """Keep a process for the next invocation. End it if it cannot be used again, is too old, or has an earlier revision."""
        if not process.is_usable or monotonic() - process.started_s > AGE_MAX_S:
            self._discard(process)
            return
        others = [each for each in self._idle if each.key[0] == process.key[0] and each.key != process.key]
        if any(each.started_s > process.started_s for each in others):  # this process has an earlier revision of the function
            self._discard(process)
            return
        for other in others:
            self._retire(other)
        while len(self._idle) >= IDLE_MAX:
            self._retire(next(iter(self._idle)))
        self._idle[process] = asyncio.get_running_loop().call_later(IDLE_S, self._retire, process)

    def _has_ended(self, process: FunctionProcess) -> None:
        if process in self._idle:
            self._retire(process)

    def _retire(self, process: FunctionProcess) -> None:
        self._idle.pop(process).cancel()
        self._discard(process)

    def _discard(self, process: FunctionProcess) -> None:
        self._processes.discard(process)
        task = asyncio.create_task(process.discard())
        self._discards.add(task)
        task.add_done_callback(self._discards.discard)

    async def close(self) -> None:
        """End all processes. Asynchronous invocations that have not ended run again after the next start of the server."""
        for task in list(self._running):
            task.cancel()
        for timer in self._idle.values():
            timer.cancel()
        self._idle.clear()
        await asyncio.gather(*self._running, return_exceptions=True)
        for process in list(self._processes):
            self._discard(process)
        await asyncio.gather(*self._discards, return_exceptions=True)


def _requeue(tx: Tx[Store]) -> None:
    tx.store.functions.requeue_running(tx.now_s)
    for mapping in tx.store.event_batches.mappings():  # their invocations are lost: return the messages
        tx.mark(f"event-source:{mapping}")


def _wait_for_first(tx: Tx[Store]) -> bool:
    """Wait until an invocation is queued. Return False when the server stops.

    Most servers never run a function. They wait here, and so never import `services/lambda_`.
    """
    if tx.store.functions.next_due_s() is not None:
        return True
    if tx.final:
        return False
    raise Wait([INVOCATIONS], tx.now_s + WAIT_MAX_S)


def _date(at_s: float) -> str:
    return strftime("%Y/%m/%d", gmtime(at_s))
