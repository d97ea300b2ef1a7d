"""The states of an invocation, on a virtual clock: attempts, retries, the limit, and what a restart does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.clock import WallClock
from corral.core.commands import Wait
from corral.core.errors import ApiError, ServiceUnavailable
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.function import Invocation, InvocationOutcome, InvocationState
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.server.functions.runner import FunctionRunner
from corral.services.lambda_.code import CODE, checked_code, inline_zip
from corral.services.lambda_.functions import STACK, create_function, delete_function
from corral.services.lambda_.invocations import (
    CONCURRENT_MAX,
    KEPT_S,
    RETRY_S,
    drop_ended_invocations,
    finish_invocation,
    invoke,
    take_invocations,
)
from corral.store import Store

CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
FAILED, SUCCEEDED = InvocationOutcome(False, b'{"errorMessage": "no"}', b"log"), InvocationOutcome(True, b"1", b"log")


class World:
    def __init__(self, settings: Settings | None = None) -> None:
        self.store = Store(None)
        self.now_s = 1_700_000_000.0
        self.ids = SeededIds(Random(1))
        self.settings = settings or Settings()
        create_function(self.tx(), self.params("f", "python3.12"), CALLER)

    def params(self, name: str, runtime: str) -> dict[str, Any]:
        code = checked_code(inline_zip("def handler(event, context): pass"))
        given = {"FunctionName": name, "Runtime": runtime, "Handler": "index.handler", "Role": "arn:aws:iam::1:role/r"}
        return {**given, CODE: code}

    def tx(self) -> Tx[Any]:
        return Tx(self.store, self.now_s, self.ids, self.settings, final=False)

    def invoke(self, id: str, kind: str = "Event") -> dict[str, Any]:
        params = {"FunctionName": "f", "InvocationType": kind, "Payload": b'{"a": 1}'}
        return invoke(self.tx(), params, replace(CALLER, request_id=id))

    def taken(self, room: int = 100) -> list[str]:
        try:
            return [order.id for order in take_invocations(self.tx(), room)]
        except Wait:
            return []

    def row(self, id: str) -> Invocation:
        found = self.store.functions.get(id)
        assert found is not None
        return found


def test_a_failed_invocation_is_tried_again_twice() -> None:
    world = World()
    assert world.invoke("one") == {"StatusCode": 202, "Payload": b""}
    for pause_s in RETRY_S:
        assert world.taken() == ["one"] and world.row("one").state is InvocationState.RUNNING
        finish_invocation(world.tx(), "one", FAILED)
        assert world.taken() == [] and world.row("one").state is InvocationState.QUEUED
        with pytest.raises(Wait) as waiting:
            take_invocations(world.tx(), 1)
        assert waiting.value.again_s == world.now_s + pause_s
        world.now_s += pause_s
    assert world.taken() == ["one"]
    finish_invocation(world.tx(), "one", FAILED)
    assert (world.row("one").state, world.row("one").attempts) == (InvocationState.FAILED, 3)
    world.now_s += KEPT_S
    drop_ended_invocations(world.tx())
    assert world.store.functions.get("one") is None and world.taken() == []


def test_an_ended_invocation_keeps_only_its_error() -> None:
    world = World()
    world.invoke("good")
    world.invoke("bad")
    for _ in range(1 + len(RETRY_S)):
        for id in world.taken():
            finish_invocation(world.tx(), id, SUCCEEDED if id == "good" else FAILED)
        world.now_s += max(RETRY_S)
    good, bad = world.row("good"), world.row("bad")
    assert good.state is InvocationState.SUCCEEDED and (good.payload, good.result, good.log) == (b"", b"", b"")
    assert bad.state is InvocationState.FAILED and (bad.payload, bad.result, bad.log) == (b"", FAILED.result, b"")


def test_a_restart_queues_what_ran_and_forgets_callers_that_are_gone() -> None:
    world = World()
    world.invoke("async")
    with pytest.raises(Wait):
        world.invoke("sync", "RequestResponse")
    assert world.taken() == ["async", "sync"]
    world.store.functions.requeue_running(world.now_s)
    assert world.taken() == ["async"] and world.store.functions.get("sync") is None
    finish_invocation(world.tx(), "sync", SUCCEEDED)  # has no effect


def test_a_response_waits_for_the_result() -> None:
    world = World()
    for _ in range(2):
        with pytest.raises(Wait) as waiting:
            world.invoke("one", "RequestResponse")
        assert waiting.value.keys == ("invocation:one",) and waiting.value.keep
    assert world.taken() == ["one"]
    finish_invocation(world.tx(), "one", FAILED)  # is not tried again
    response = world.invoke("one", "RequestResponse")
    assert (response["StatusCode"], response["FunctionError"], response["Payload"]) == (200, "Unhandled", FAILED.result)
    assert world.store.functions.get("one") is None


def test_the_limit_delays_events_and_refuses_requests() -> None:
    world = World()
    for number in range(CONCURRENT_MAX + 1):
        world.invoke(f"event-{number}")
    assert len(world.taken(CONCURRENT_MAX)) == CONCURRENT_MAX
    with pytest.raises(ApiError) as refused:
        world.invoke("request", "RequestResponse")
    assert (refused.value.code, refused.value.status) == ("TooManyRequestsException", 429)
    finish_invocation(world.tx(), "event-0", SUCCEEDED)
    assert world.taken(1) == [f"event-{CONCURRENT_MAX}"]


def test_what_cannot_run_ends_at_once() -> None:
    world = World()
    world.invoke("one")
    delete_function(world.tx(), {"FunctionName": "f"}, CALLER)
    assert world.taken() == [] and world.row("one").state is InvocationState.FAILED
    assert orjson.loads(world.row("one").result) == {"errorMessage": "The function no longer exists."}
    assert world.store.execute("SELECT count(*) FROM function_code").fetchone() == (0,)
    world = World()
    world.invoke("two")
    world.settings = Settings(isolate=True)  # Corral was started again with --isolate
    assert world.taken() == [] and b"--isolate" in world.row("two").result
    with pytest.raises(ApiError, match="--isolate"):
        world.invoke("three")


def test_isolation_allows_the_functions_that_a_stack_only_stores() -> None:
    world = World()
    world.settings = Settings(isolate=True)
    for runtime, params in (("python3.12", {STACK: True}), ("nodejs20.x", {})):
        with pytest.raises(ApiError, match="--isolate"):
            create_function(world.tx(), world.params("other", runtime) | params, CALLER)
    create_function(world.tx(), world.params("stored", "nodejs20.x") | {STACK: True}, CALLER)
    with pytest.raises(ApiError, match="--isolate"):
        invoke(world.tx(), {"FunctionName": "stored"}, CALLER)


class FullDisk:
    """A lane whose first transactions fail. The others find that the server stops."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.handlers: list[Any] = []

    async def submit(self, handler: Any) -> bool:
        self.handlers.append(handler)
        if len(self.handlers) <= self.failures:
            raise ServiceUnavailable("The database cannot be written.")
        return False


def test_the_runner_begins_again_if_the_disk_was_full(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        lane: Any = FullDisk(failures=1)
        await FunctionRunner(tmp_path, lane, lane, Settings(), SeededIds(Random(1)), WallClock()).run()
        return list(lane.handlers)

    first, again, wait = asyncio.run(run())
    assert first is again and wait is not first
