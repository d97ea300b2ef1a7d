"""Equal requests of clients that poll share one read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

from corral import aws
from corral.access.caller import Caller
from corral.blobs import Blobs
from corral.core.clock import WallClock
from corral.core.core import Core
from corral.core.ids import SeededIds
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.server.http.connection_limits import UnverifiedMemory
from corral.server.lanes import Lane
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


def test_equal_requests_share_a_read_that_is_in_progress(tmp_path: Path) -> None:
    async def scenario() -> None:
        ids, settings = SeededIds(Random(0)), Settings()
        lane = WatchedLane(Core(Store(tmp_path / "state.db"), settings=settings, clock=WallClock(), ids=ids))
        lane.start()
        runner = CallRunner(settings, {"state": lane}, ids, UnverifiedMemory(), Blobs(tmp_path / "blobs", ids))

        async def disconnected() -> tuple[bytes, bool]:
            await asyncio.Event().wait()
            return b"", False

        async def ask(request_id: str, body: bytes = b"{}") -> aws.Response:
            request = aws.Request("POST", "/", "", {"x-amz-target": "Corral.DescribeHosts"}, body)
            caller = Caller(ACCOUNT, "us-east-1", root_user(ACCOUNT), request_id=request_id)
            return await runner.run(aws.recognise(request), caller, disconnected)

        first, *others = (asyncio.ensure_future(ask(each)) for each in ("first", "second", "third"))
        await lane.has_read.wait()
        different = asyncio.ensure_future(ask("different", b"{ }"))
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
