"""Heavy reads: quick ones do not wait for slow ones, callers take turns, and a cancelled read ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from corral.server.heavy_reads import QUICK_MAX_S, SLOW_MAX, HeavyReads, ReadCancelled, Step, ThrottlingException


def use_cpu(step: Step, for_s: float) -> None:
    began_s = time.thread_time()
    while time.thread_time() - began_s < for_s:
        step()


class Endless:
    """A read that takes steps until it is told to end."""

    def __init__(self) -> None:
        self.starts = 0
        self.slow = threading.Event()  # it runs as a slow read
        self.told = threading.Event()
        self.cancelled = threading.Event()

    def __call__(self, step: Step) -> str:
        self.starts += 1
        use_cpu(step, 2 * QUICK_MAX_S)
        step()  # the clock may have passed both limits at once, on a machine that paused
        self.slow.set()
        try:
            while not self.told.is_set():
                step()
        except ReadCancelled:
            self.cancelled.set()
            raise
        return "read"


@asynccontextmanager
async def reading(**limits: int) -> AsyncIterator[Callable[..., Any]]:
    reads = HeavyReads(asyncio.get_running_loop(), **limits)

    def start(read: Callable[[Step], Any], caller: str) -> asyncio.Task[Any]:
        futures: list[asyncio.Future[Any]] = []
        task = asyncio.create_task(reads.run(read, caller, futures.append))
        task.futures = futures  # type: ignore[attr-defined]
        return task

    try:
        yield start
    finally:
        reads.close()


async def happened(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 30)


def test_quick_reads_and_other_callers_do_not_wait_for_a_slow_caller() -> None:
    async def scenario() -> None:
        async with reading() as start:
            first, others = Endless(), [Endless() for _ in range(5)]
            running = [start(first, "greedy")]
            await happened(first.slow)
            running += [start(other, "greedy") for other in others]
            for _ in range(20):
                assert await start(lambda step: "quick", "greedy") == "quick"
            fair = Endless()
            fair.told.set()
            assert await start(fair, "fair") == "read"
            assert not any(other.slow.is_set() for other in others)  # one at a time
            for read in (first, *others):
                read.told.set()
            assert await asyncio.gather(*running) == ["read"] * 6
            assert [first.starts, *(other.starts for other in others)] == [1, 2, 2, 2, 2, 2]

    asyncio.run(scenario())


async def disconnect(reading: asyncio.Task[Any], futures: list[asyncio.Future[Any]]) -> None:
    """Do what the server does when a client is gone: cancel the futures that it got for the client's read."""
    while not reading.done():
        for future in futures:
            future.cancel()
        await asyncio.sleep(0.005)


def test_a_read_ends_when_its_client_disconnects() -> None:
    async def scenario() -> None:
        async with reading() as start:
            read, queued, after = Endless(), Endless(), Endless()
            running = start(read, "a")
            await happened(read.slow)
            waiting = start(queued, "a")
            await disconnect(waiting, waiting.futures)
            await disconnect(running, running.futures)
            await happened(read.cancelled)
            after.told.set()
            assert await start(after, "a") == "read"
            assert not queued.slow.is_set()
            assert waiting.cancelled() and running.cancelled()

    asyncio.run(scenario())


def test_errors_reach_the_caller_and_too_many_slow_reads_are_throttled() -> None:
    def fails(step: Step) -> None:
        use_cpu(step, 2 * QUICK_MAX_S)
        raise ValueError("broken")

    async def scenario() -> None:
        async with reading(waiting_max=2) as start:
            with pytest.raises(ValueError, match="broken"):
                await start(fails, "a")
            read, others = Endless(), [Endless() for _ in range(3)]
            running = start(read, "a")
            await happened(read.slow)
            waiting = [start(other, "a") for other in others]
            [refused], accepted = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
            with pytest.raises(ThrottlingException, match="Retry later"):
                await refused
            for each in (read, *others):
                each.told.set()
            assert await asyncio.gather(running, *accepted) == ["read"] * 3

    asyncio.run(scenario())


def test_a_slow_read_is_abandoned_only_if_too_many_run() -> None:
    async def scenario() -> None:
        async with reading() as start:
            reads = [Endless() for _ in range(SLOW_MAX)]
            running = [start(read, f"caller {number}") for number, read in enumerate(reads)]
            for read in reads:
                await happened(read.slow)
            late = Endless()
            late.told.set()
            waiting = start(late, "late")
            assert await start(lambda step: use_cpu(step, QUICK_MAX_S / 4), "quick") is None
            while late.starts == 0:
                await asyncio.sleep(0)
            assert not late.slow.is_set()
            reads[0].told.set()
            assert await waiting == await running[0] == "read"
            reads[1].told.set()
            assert await running[1] == "read"
            assert [read.starts for read in reads] == [1] * SLOW_MAX

    asyncio.run(scenario())
