"""Corral's own metrics: nothing from an idle server, and right averages although unchanged seconds are not published."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.clock import VirtualClock
from corral.core import Command, Core
from corral.ids import SeededIds
from corral.model.metric import Point
from corral.model.run import GpuDevice, GpuSample, Hello
from corral.model.settings import Settings
from corral.reconcile import STATE
from corral.server.metric_publisher import MetricPublisher
from corral.services import SERVICES
from corral.services.caller import Caller
from corral.store import Store
from eventually import soon

CALLER = Caller("123456789012", "us-east-1", "arn:aws:iam::123456789012:root")
MINUTE_S = 1_700_000_040.0


class World:
    """The state's core on a virtual clock, and a publisher that uses this object as both of its lanes."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.changes = self.looks = 0
        self.clock = VirtualClock(MINUTE_S)
        self.core = Core(Store(None), settings=Settings(), clock=self.clock, ids=SeededIds(Random(0)), reconcilers=STATE)
        self.history: dict[str, deque[tuple[float, GpuSample]]] = {}
        agents = cast("Any", SimpleNamespace(history=self.history))
        self.publisher = MetricPublisher(cast("Any", self), cast("Any", SimpleNamespace(submit=self.recorded)), agents, self.clock)
        self.published: list[Point] = []
        self.shortest_s: int | None = None  # the shortest period of an alarm

    def run(self, handler: Any, *, read_only: bool = False) -> Any:
        told: list[Any] = []
        self.batch(Command(handler, told.append, read_only=read_only))
        assert not any(isinstance(answer, Exception) for answer in told), told
        return told[0] if told else None

    def batch(self, *commands: Command) -> None:
        outbox = self.core.batch(commands)
        for command, answer in outbox.answers:
            command.done(answer)
        self.changes += outbox.may_have_changed

    def call(self, service: str, operation: str, **params: Any) -> Any:
        return self.run(lambda tx: SERVICES[service].operations[operation](tx, params, CALLER))

    def submit(self, handler: Any, *, read_only: bool = False) -> asyncio.Future[Any]:
        self.looks += read_only
        future = self.runner.get_loop().create_future()
        future.set_result(self.run(handler, read_only=read_only))
        return future

    async def recorded(self, handler: Any) -> int | None:
        self.published += handler.keywords["points"]
        return self.shortest_s

    def tick(self, seconds: int = 1) -> list[Point]:
        """Advance the clock second by second and return the published points."""
        before = len(self.published)
        for _ in range(seconds):
            self.clock.advance(1)
            due_s = self.core.next_due_s()
            if due_s is not None and due_s <= self.clock.now_s():
                self.batch()
            self.runner.run(self.publisher.publish())
        return self.published[before:]

    def samples(self, name: str, **dimensions: str) -> list[tuple[float, float]]:
        """(value, weight) pairs."""
        found = [
            point.sample
            for point in self.published
            if point.metric.name == name and dimensions.items() <= dict(point.metric.dimensions).items()
        ]
        return [pair for sample in found for pair in ([(sample, 1.0)] if isinstance(sample, float) else cast("Any", sample))]


@pytest.fixture
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        yield World(runner)


def average(samples: list[tuple[float, float]]) -> float:
    return sum(value * weight for value, weight in samples) / sum(weight for _, weight in samples)


def test_an_idle_server_publishes_nothing(world: World) -> None:
    world.run(lambda tx: tx.store.hosts.put(Hello("h", "boot", "host", "sim", 1024, 1024, [], []), tx.now_s))
    assert world.tick(120) == []


def test_an_unchanged_state_costs_no_transaction(world: World) -> None:
    queue = world.call("sqs", "CreateQueue", QueueName="q")["QueueUrl"]
    world.tick(30)
    world.looks = 0
    world.tick(20)
    assert world.looks == 4, "every five seconds it asks which tasks there are to be measured"
    world.call("sqs", "SendMessage", QueueUrl=queue, MessageBody="12345")
    world.looks = 0
    world.tick(20)
    assert world.looks == 20 + 4, "a message grows older every second"


def test_values_that_change_with_time_are_published_in_their_second(world: World) -> None:
    queue = world.call("sqs", "CreateQueue", QueueName="q")["QueueUrl"]
    world.tick(30)
    assert world.call("sqs", "ReceiveMessage", QueueUrl=queue, WaitTimeSeconds=7) is None, "it waits"
    world.tick(5)
    world.published.clear()
    world.tick()
    assert world.samples("NumberOfEmptyReceives") == []
    world.tick()
    assert world.samples("NumberOfEmptyReceives") == [(1.0, 1.0)]


def test_an_unchanged_queue_is_published_once_a_minute_with_the_right_average(world: World) -> None:
    queue = world.call("sqs", "CreateQueue", QueueName="q")["QueueUrl"]
    world.call("sqs", "SendMessage", QueueUrl=queue, MessageBody="12345")
    received = world.call("sqs", "ReceiveMessage", QueueUrl=queue)["Messages"][0]
    world.call("sqs", "DeleteMessage", QueueUrl=queue, ReceiptHandle=received["ReceiptHandle"])
    assert len(world.tick()) == 9
    assert world.tick(40) == []
    assert len(world.tick(60)) == 8, "once in the next minute, without sizes"
    world.published.clear()
    world.tick(59)
    for _ in range(10):
        world.call("sqs", "SendMessage", QueueUrl=queue, MessageBody="12345")
    world.tick(41)
    visible = world.samples("ApproximateNumberOfMessagesVisible")
    assert visible[:3] == [(0.0, 60.0), (0.0, 40.0), (10.0, 1.0)], "the minute, then what was not told yet, then the news"
    assert visible[3:] == [(10.0, 1.0)] * 40, "messages grow older: there is news every second"
    assert sum(value * weight for value, weight in world.samples("NumberOfMessagesSent")) == 10
    assert world.samples("SentMessageSize") == [(5.0, 10.0)]


def test_an_unchanged_queue_is_published_in_each_period_of_a_short_alarm(world: World) -> None:
    queue = world.call("sqs", "CreateQueue", QueueName="q")["QueueUrl"]
    world.call("sqs", "SendMessage", QueueUrl=queue, MessageBody="12345")
    world.call("sqs", "PurgeQueue", QueueUrl=queue)
    world.tick(5)
    world.published.clear()
    world.tick(50)
    assert world.samples("ApproximateNumberOfMessagesVisible") == []
    world.shortest_s = 10
    world.tick(5)
    world.published.clear()
    world.tick(59)
    assert world.samples("ApproximateNumberOfMessagesVisible") == [(0.0, 10.0)] * 5
    world.shortest_s = None  # the alarm was deleted
    world.tick()
    world.published.clear()
    world.tick(59)
    assert world.samples("ApproximateNumberOfMessagesVisible") == []


def test_gpus_and_clusters_are_published_in_the_regions_that_use_them(world: World) -> None:
    hello = Hello("h", "boot", "host", "sim", 2048, 1024, [GpuDevice(f"GPU-{at}", at, "Simulated", 1000) for at in range(2)], [])
    world.run(lambda tx: tx.store.hosts.put(hello, tx.now_s))
    world.history["GPU-0"] = deque([(world.clock.now_s(), GpuSample("GPU-0", 50.0, 100))])
    assert world.tick() == [], "no region has a cluster or a task"
    world.call("ecs", "CreateCluster", clusterName="c")
    world.tick(30)
    assert world.samples("GPUReservation", ClusterName="default") == [(0.0, 1.0)]
    assert world.samples("DCGM_FI_DEV_GPU_UTIL") == []
    for second in range(20):  # idle ones are sampled every five seconds
        if second % 5 == 0:
            world.history["GPU-0"].append((world.clock.now_s(), GpuSample("GPU-0", 0.0 if second < 10 else 80.0, 100)))
        world.tick()
    load = world.samples("DCGM_FI_DEV_GPU_UTIL", UUID="GPU-0")
    assert load == [(0.0, 1.0), (0.0, 9.0), (80.0, 1.0)]
    assert average(load) < 10
    assert world.samples("DCGM_FI_DEV_FB_FREE", ClusterName="default")[0] == (900.0, 1.0)


def test_a_message_in_an_empty_queue_is_published_before_the_next_second(world: World) -> None:
    """The clock of the publisher stands still, so that the next second is always a second of real time away."""
    queue = world.call("sqs", "CreateQueue", QueueName="q")["QueueUrl"]
    world.clock.advance(0.25)

    async def send() -> None:
        running = asyncio.create_task(world.publisher.run())
        await soon(lambda: world.core.store.queues.on_wake is not None)
        assert world.samples("ApproximateNumberOfMessagesVisible") == []
        began_s = time.monotonic()
        world.call("sqs", "SendMessage", QueueUrl=queue, MessageBody="first")
        await soon(lambda: world.samples("ApproximateNumberOfMessagesVisible"))
        assert time.monotonic() - began_s < 0.7
        world.call("sqs", "PurgeQueue", QueueUrl=queue)
        world.clock.advance(0.5)
        world.call("sqs", "SendMessage", QueueUrl=queue, MessageBody="second")  # published with the next second
        await soon(lambda: len(world.samples("NumberOfMessagesSent")) == 2)
        running.cancel()

    world.runner.run(send())
    assert world.samples("ApproximateNumberOfMessagesVisible") == [(1.0, 1.0)], "the level is the same as before"
    assert world.samples("NumberOfMessagesSent") == [(1.0, 1.0), (1.0, 1.0)]
