"""The states of an invocation, on a virtual clock: attempts, retries, the limit, and what a restart does."""

from __future__ import annotations

from random import Random
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from corral.core import Tx, Wait
from corral.errors import ApiError
from corral.ids import SeededIds
from corral.model.function import Invocation, InvocationOutcome, InvocationState
from corral.model.settings import Settings
from corral.services.caller import Caller
from corral.services.lambda_.code import CODE, checked_code, inline_zip
from corral.services.lambda_.functions import create_function, delete_function
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

CALLER = Caller("123456789012", "us-east-1", "arn:aws:iam::123456789012:root")
FAILED, SUCCEEDED = InvocationOutcome(False, b'{"errorMessage": "no"}', b"log"), InvocationOutcome(True, b"1", b"log")


class World:
    def __init__(self, settings: Settings | None = None) -> None:
        self.store = Store(None)
        self.now_s = 1_700_000_000.0
        self.ids = SeededIds(Random(1))
        self.settings = settings or Settings()
        code = checked_code(inline_zip("def handler(event, context): pass"))
        params = {
            "FunctionName": "f",
            "Runtime": "python3.12",
            "Handler": "index.handler",
            "Role": "arn:aws:iam::1:role/r",
            CODE: code,
        }
        create_function(self.tx(), params, CALLER)

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
