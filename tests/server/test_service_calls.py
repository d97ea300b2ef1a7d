"""Reads do not wait for transactions, and equal requests of clients that poll share one read."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from corral import aws
from corral.access.caller import Caller
from corral.audit.trail import AuditTrail
from corral.blobs import Blobs
from corral.core.clock import WallClock
from corral.core.core import Core
from corral.core.ids import SeededIds
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.server.audit.recording import Audit
from corral.server.http.connection_limits import UnverifiedMemory
from corral.server.lanes import QUIET_MAX, QUIET_S, WRITES_MIN, Lane
from corral.server.service_calls import CallRunner
from corral.store import Store

ACCOUNT = "123456789012"


class WatchedLane(Lane[Store]):
    """Counts heavy reads. Each of them waits until `may_read` is set."""

    def __init__(self, core: Core[Store]) -> None:
        super().__init__("state", core, WallClock(), asyncio.get_running_loop())
        self.reads, self.has_read, self.may_read = 0, asyncio.Event(), asyncio.Event()

    async def read(self, *arguments: Any, **options: Any) -> Any:
        self.reads += 1
        self.has_read.set()
        await self.may_read.wait()
        return await super().read(*arguments, **options)


class World:
    def __init__(self, folder: Path) -> None:
        ids, settings = SeededIds(Random(0)), Settings()
        self.lane = WatchedLane(Core(Store(folder / "state.db"), settings=settings, clock=WallClock(), ids=ids))
        self.lane.start()
        audit = Audit(AuditTrail(folder / "audit"), (), ids, WallClock())
        self._runner = CallRunner(settings, {"state": self.lane}, ids, UnverifiedMemory(), Blobs(folder / "blobs", ids), audit)

    async def ask(self, request_id: str, target: str, body: bytes = b"{}") -> aws.Response:
        async def disconnected() -> tuple[bytes, bool]:
            await asyncio.Event().wait()
            return b"", False

        form = target.startswith("Action=")
        request = aws.Request("POST", "/", "", {} if form else {"x-amz-target": target}, target.encode() if form else body)
        caller = Caller(ACCOUNT, "us-east-1", root_user(ACCOUNT), request_id=request_id)
        return await self._runner.run(aws.recognise(request), caller, disconnected)


def test_equal_requests_share_a_read_that_is_in_progress(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        lane, ask = world.lane, partial(world.ask, target="Corral.DescribeHosts")
        first, *others = (asyncio.ensure_future(ask(each)) for each in ("first", "second", "third"))
        await lane.has_read.wait()
        different = asyncio.ensure_future(ask("different", body=b"{ }"))
        first.cancel()  # as if its client had disconnected
        lane.may_read.set()
        found = await asyncio.gather(*others, different)
        assert [dict(each.headers)["x-amzn-RequestId"] for each in found] == ["second", "third", "different"]
        assert {each.body for each in found} == {b'{"hosts":[]}'} and lane.reads == 2
        await lane.submit(lambda tx: tx.store.clusters.put("us-east-1", "new", "ACTIVE", {}))
        await ask("after a commit")
        assert lane.reads == 3
        lane.stop()

    asyncio.run(scenario())


def test_reads_do_not_wait_for_a_transaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        world, release = World(tmp_path), threading.Event()
        world.lane.may_read.set()
        blocked = world.lane.submit(lambda tx: release.wait(30))
        target = "AmazonEC2ContainerServiceV20141113.ListTasks"
        try:
            identity = await world.ask("1", "Action=GetCallerIdentity&Version=2011-06-15")
            listed = await world.ask("2", target)
            # Only the lane has the index of container instances in memory.
            of_instance = asyncio.ensure_future(world.ask("3", target, b'{"containerInstance": "%s"}' % (b"1" * 32)))
            await world.ask("4", target)
            assert not of_instance.done() and not blocked.done()
        finally:
            release.set()
        assert b"<Account>123456789012</Account>" in identity.body and listed.body == b'{"taskArns":[]}'
        assert (await of_instance).body == b'{"taskArns":[]}'
        world.lane.stop()

    asyncio.run(scenario())


def test_a_lane_that_has_become_quiet_frees_the_pages_of_its_database(tmp_path: Path) -> None:
    async def check() -> None:
        store = Store(tmp_path / "state.db")
        lane = WatchedLane(Core(store, settings=Settings(), clock=WallClock(), ids=SeededIds(Random(0))))
        statements: list[str] = []
        store.connection.set_trace_callback(statements.append)
        assert not lane.free_pages(100.0), "nothing was written"
        lane.writes = WRITES_MIN
        assert lane.free_pages(101.0) and not statements, "much was written in the last seconds"
        lane.writes += QUIET_MAX - 1
        assert lane.free_pages(101.1 + QUIET_S / 2) and not statements, "too early"
        assert not lane.free_pages(101.1 + QUIET_S) and statements == ["PRAGMA shrink_memory"]
        assert not lane.free_pages(101.1 + 2 * QUIET_S) and len(statements) == 1
        store.close()

    asyncio.run(check())
