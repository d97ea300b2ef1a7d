"""A lane: commands from the event loop and from other threads, in one transaction after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from corral.clock import WallClock
from corral.core import Core, Tx
from corral.ids import SeededIds
from corral.model.settings import Settings
from corral.server.lanes import Lane
from corral.store import Store


@asynccontextmanager
async def running() -> AsyncIterator[Lane[Store]]:
    core = Core(Store(None), settings=Settings(), clock=WallClock(), ids=SeededIds(Random(0)))
    lane = Lane("test", core, WallClock(), asyncio.get_running_loop())
    lane.start()
    try:
        yield lane
    finally:
        lane.stop()


def adds(tx: Tx[Store], name: str) -> list[str]:
    """All that are there then."""
    tx.store.clusters.put("r", name, "ACTIVE", {})
    return tx.store.clusters.names("r", "", 100)


def test_commands_keep_their_order_whoever_hurries() -> None:
    async def scenario() -> None:
        async with running() as lane:
            first = lane.submit(lambda tx: adds(tx, "a"))
            second = lane.submit_at_once(lambda tx: adds(tx, "b"))
            third = lane.submit(lambda tx: adds(tx, "c"))  # while the first look of the gathering is still to come
            assert await asyncio.gather(first, second, third) == [["a"], ["a", "b"], ["a", "b", "c"]]

    asyncio.run(scenario())


def test_another_thread_keeps_what_was_promised() -> None:
    async def scenario() -> None:
        async with running() as lane:
            answers = [lane.promise() for _ in range(3)]

            def fails(tx: Tx[Store]) -> Any:
                adds(tx, "never")
                raise ValueError("a fault of ours")

            handlers = [lambda tx: adds(tx, "a"), fails, lambda tx: adds(tx, "b")]
            thread = threading.Thread(target=lane.take, args=(list(zip(handlers, answers)),))
            thread.start()
            first, failed, second = await asyncio.gather(*answers, return_exceptions=True)
            thread.join()
            assert (first, second) == (["a"], ["a", "b"])
            assert isinstance(failed, Exception)

    asyncio.run(scenario())


def test_changes_are_counted_when_they_are_committed() -> None:
    async def scenario() -> None:
        async with running() as lane:
            await lane.submit(lambda tx: tx.store.clusters.names("r", "", 100), only_looks=True)
            assert lane.changes == 0
            await lane.submit(lambda tx: adds(tx, "a"))
            assert lane.changes == 1
            answer = lane.promise()
            lane.take([(lambda tx: adds(tx, "b"), answer)])
            await answer
            assert lane.changes == 2

    asyncio.run(scenario())
