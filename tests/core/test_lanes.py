"""Lanes run commands from the event loop and from other threads, one transaction after the other."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from weakref import ref

import pytest

from corral.core.clock import WallClock
from corral.core.core import Core
from corral.core.errors import ApiError, api_error, forget_frames
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
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


@asynccontextmanager
async def two(folder: Path, receive: Callable[[Tx[Any], Any], Any]) -> AsyncIterator[tuple[Lane[Store], Lane[Store]]]:
    """Yield two lanes with files that can hand over to each other."""
    lanes: dict[str, Lane[Store]] = {}
    for name in ("from", "to"):
        core = Core(Store(folder / f"{name}.db"), settings=Settings(), clock=WallClock(), ids=SeededIds(Random(name)))
        lanes[name] = Lane(name, core, WallClock(), asyncio.get_running_loop(), lanes=lanes, receivers={"add": receive})
    for lane in lanes.values():
        lane.start()
    try:
        yield lanes["from"], lanes["to"]
    finally:
        for lane in lanes.values():
            lane.stop()


def names(tx: Tx[Store]) -> list[str]:
    return tx.store.clusters.names("r", "", 100)


def adds(tx: Tx[Store], name: str) -> list[str]:
    """Add a cluster and return the names of all."""
    tx.store.clusters.put("r", name, "ACTIVE", {})
    return tx.store.clusters.names("r", "", 100)


def test_commands_keep_their_order_when_one_is_submitted_now() -> None:
    async def scenario() -> None:
        async with running() as lane:
            first = lane.submit(lambda tx: adds(tx, "a"))
            second = lane.submit_now(lambda tx: adds(tx, "b"))
            third = lane.submit(lambda tx: adds(tx, "c"))  # before the gathering of the first command has ended
            assert await asyncio.gather(first, second, third) == [["a"], ["a", "b"], ["a", "b", "c"]]

    asyncio.run(scenario())


def test_another_thread_sets_the_results_of_futures() -> None:
    async def scenario() -> None:
        async with running() as lane:
            answers = [lane.new_future() for _ in range(3)]

            def fails(tx: Tx[Store]) -> Any:
                adds(tx, "never")
                raise ValueError("a fault of ours")

            handlers = [lambda tx: adds(tx, "a"), fails, lambda tx: adds(tx, "b")]
            thread = threading.Thread(target=lane.submit_from_thread, args=(list(zip(handlers, answers)),))
            thread.start()
            first, failed, second = await asyncio.gather(*answers, return_exceptions=True)
            thread.join()
            assert (first, second) == (["a"], ["a", "b"])
            assert isinstance(failed, Exception)

    asyncio.run(scenario())


def test_changes_are_counted_when_they_are_committed() -> None:
    async def scenario() -> None:
        async with running() as lane:
            await lane.submit(lambda tx: tx.store.clusters.names("r", "", 100), read_only=True)
            assert lane.changes == 0
            await lane.submit(lambda tx: adds(tx, "a"))
            assert lane.changes == 1
            answer = lane.new_future()
            lane.submit_from_thread([(lambda tx: adds(tx, "b"), answer)])
            await answer
            assert lane.changes == 2

    asyncio.run(scenario())


def test_a_hand_over_is_received_before_the_command_is_done(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two(tmp_path, adds) as (sender, receiver):
            await asyncio.gather(*(sender.submit(lambda tx, at=at: tx.hand_over("to", "add", f"n{at}")) for at in range(5)))
            assert await receiver.submit(names) == [f"n{at}" for at in range(5)]
            await sender.submit(lambda tx: None)
            assert await sender.submit(lambda tx: tx.store.undelivered()) == []

    asyncio.run(scenario())


def test_a_failed_hand_over_is_received_at_the_next_start_and_does_not_block_others(tmp_path: Path) -> None:
    def breaks(tx: Tx[Store], name: str) -> None:
        if name == "bad":
            raise ValueError("a fault of ours")
        adds(tx, name)

    async def first() -> None:
        async with two(tmp_path, breaks) as (sender, receiver):
            bad = sender.submit(lambda tx: tx.hand_over("to", "add", "bad") or "bad is said")
            good = sender.submit(lambda tx: tx.hand_over("to", "add", "good") or "good is said")
            assert await asyncio.gather(bad, good) == ["bad is said", "good is said"]
            assert await receiver.submit(names) == ["good"]
            assert [each["kind"] for each in sender.failing_handovers()] == ["add"]

    async def second() -> None:
        async with two(tmp_path, adds) as (sender, receiver):
            await receiver.submit(names)  # runs after the hand-over
            assert await receiver.submit(names) == ["bad", "good"]
            await sender.submit(lambda tx: None)
            assert await sender.submit(lambda tx: tx.store.undelivered()) == []

    asyncio.run(first())
    asyncio.run(second())


def test_rows_of_received_hand_overs_are_deleted_without_another_command(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two(tmp_path, adds) as (sender, _):
            await sender.submit(lambda tx: tx.hand_over("to", "add", "a"))
            async with asyncio.timeout(20):
                while sender.read_now(lambda tx: tx.store.undelivered(), Settings(), SeededIds(Random(0))):
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_a_command_gets_the_result_of_a_slow_function_from_another_thread() -> None:
    async def main() -> None:
        async with running() as lane:
            writer = await lane.submit(lambda tx: threading.get_ident())
            reader, again = await lane.submit(lambda tx: (tx.result_of("who", threading.get_ident), threading.get_ident()))
            assert reader != writer == again

            def fail() -> None:
                raise ValueError("unreadable")

            def handler(tx: Tx[Store]) -> str:
                try:
                    tx.result_of("file", fail)
                except ValueError as error:
                    return str(error)
                return ""

            assert await lane.submit(handler) == "unreadable"

    asyncio.run(main())


Refusal = api_error("Refusal")


class Body:
    """A large object in a variable of a handler."""


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_a_kept_exception_keeps_no_variables_of_a_handler_in_memory() -> None:
    bodies: list[ref[Body]] = []

    def refuse(body: Body) -> None:
        bodies.append(ref(body))
        try:
            raise ValueError("wrong")
        except ValueError:
            raise Refusal("refused") from None

    kept: list[ApiError] = []
    try:
        refuse(Body())
    except ApiError as error:
        forget_frames(error)
        kept.append(error)
    assert bodies[0]() is None

    def handler(tx: Tx[Store]) -> None:
        body = Body()
        bodies.append(ref(body))
        tx.result_of("slow", lambda: None)
        refuse(body)

    async def main() -> None:
        async with running() as lane:
            answer = lane.submit(handler)
            await asyncio.wait([answer])
            with pytest.raises(Refusal):
                answer.result()
            await lane.submit(lambda tx: None)  # the lane has no variables of the earlier transactions any more

    asyncio.run(main())
    assert len(bodies) == 4 and [body for body in bodies if body() is not None] == []
