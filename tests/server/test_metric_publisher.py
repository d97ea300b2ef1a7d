"""Corral's own metrics: nothing from an idle server, and right averages although unchanged seconds are not published."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.errors import ApiError
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.fleet import hosts, own_metrics
from corral.model.agent_protocol import Hello, Measured
from corral.model.gpu import GpuDevice
from corral.model.gpu_metrics import GpuPart, GpuSample
from corral.model.metric import Metric, Point
from corral.model.principal import root_user
from corral.model.run import Observed, Usage
from corral.model.settings import Settings, UsageSettings
from corral.model.task_record import GpuUse
from corral.operations.services import SERVICES
from corral.reconcile import METRICS, STATE
from corral.server.metric_publisher import FIRST_POINTS_AT_ONCE, POINTS_AT_ONCE, SAMPLES_AT_ONCE, MetricPublisher
from corral.services.cloudwatch.metric_writes import record
from corral.services.corral.idle import idle_rows
from corral.services.ecs import host_reports
from corral.store import Store
from corral.store.task_history import HistoryFilter
from corral.telemetry import MetricStore

CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
MINUTE_S = 1_700_000_040.0


class World:
    """The state's core on a virtual clock, and a publisher that uses this object as both of its lanes."""

    def __init__(self, runner: asyncio.Runner, settings: Settings | None = None) -> None:
        self.runner = runner
        self.changes = self.looks = 0
        self.clock = VirtualClock(MINUTE_S)
        self.core = Core(
            Store(None), settings=settings or Settings(), clock=self.clock, ids=SeededIds(Random(0)), reconcilers=STATE
        )
        self.history: dict[str, deque[tuple[float, GpuSample]]] = {}
        self.measured: list[tuple[str, list[str]]] = []  # (host id, attempt ids of runs) of each request for a measurement
        self.taken_s: dict[str, float] = {}  # GPU id → the time of the last sample that the publisher has taken
        agents = cast("Any", SimpleNamespace(take_new_samples=self.take_new_samples, measure=self.measure))
        self.publisher = MetricPublisher(cast("Any", self), cast("Any", SimpleNamespace(submit=self.recorded)), agents, self.clock)
        self.published: list[Point] = []
        self.recorded_at_once: list[int] = []  # the number of points in each transaction of the metrics lane
        self.shortest_s: int | None = None  # the shortest period of an alarm

    def run(self, handler: Any, *, read_only: bool = False) -> Any:
        told: list[Any] = []
        self.transact(Command(handler, told.append, read_only=read_only))
        assert not any(isinstance(answer, Exception) for answer in told), told
        return told[0] if told else None

    def transact(self, *commands: Command) -> None:
        outbox = self.core.transact(commands)
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

    def take_new_samples(self) -> dict[str, list[tuple[float, GpuSample]]]:
        taken_s, self.taken_s = self.taken_s, {gpu_id: past[-1][0] for gpu_id, past in self.history.items()}
        new = {gpu_id: [each for each in past if each[0] > taken_s.get(gpu_id, 0.0)] for gpu_id, past in self.history.items()}
        return {gpu_id: samples for gpu_id, samples in new.items() if samples}

    async def measure(self, host_id: str, run_ids: list[str]) -> Measured | None:
        self.measured.append((host_id, run_ids))
        return None

    async def recorded(self, handler: Any) -> int | None:
        self.published += handler.keywords["points"]
        self.recorded_at_once.append(len(handler.keywords["points"]))
        return self.shortest_s

    def tick(self, seconds: int = 1) -> list[Point]:
        """Advance the clock second by second and return the published points."""
        before = len(self.published)
        for _ in range(seconds):
            self.clock.advance(1)
            due_s = self.core.next_due_s()
            if due_s is not None and due_s <= self.clock.now_s():
                self.transact()
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
    world.run(lambda tx: tx.store.hosts.put(Hello("h", "boot", "host", 1024, 1024, [], []), tx.now_s))
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
    hello = Hello("h", "boot", "host", 2048, 1024, [GpuDevice(f"GPU-{at}", at, "Simulated", 1000) for at in range(2)], [])
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


def test_a_sample_of_an_idle_gpu_covers_the_time_since_the_last_one(world: World) -> None:
    hello = Hello("h", "boot", "host", 2048, 1024, [GpuDevice("GPU-0", 0, "Simulated", 1000)], [])
    world.run(lambda tx: tx.store.hosts.put(hello, tx.now_s))
    world.call("ecs", "CreateCluster", clusterName="default")
    past = world.history["GPU-0"] = deque()
    for power_w, percent in ((70.0, 0.0), (71.0, 0.0), (300.0, 50.0), (310.0, 60.0), (72.0, 0.0)):
        past.append((world.clock.now_s(), GpuSample("GPU-0", percent, 100, power_w=power_w)))
        world.tick(10)
    power = world.samples("DCGM_FI_DEV_POWER_USAGE", UUID="GPU-0")
    idle = [(70.0, 1.0), (71.0, 10.0)]
    assert power == [*idle, (71.0, 9.0), (300.0, 1.0), (300.0, 9.0), (310.0, 1.0), (310.0, 9.0), (72.0, 1.0)]
    assert len(world.samples("DCGM_FI_DEV_FB_USED", UUID="GPU-0")) == len(power)


def test_samples_alone_compute_no_metrics_of_clusters(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hello = Hello("h", "boot", "host", 2048, 1024, [GpuDevice("GPU-0", 0, "Simulated", 1000)], [])
    world.run(lambda tx: tx.store.hosts.put(hello, tx.now_s))
    world.call("ecs", "CreateCluster", clusterName="default")
    world.tick(30)
    computed, reservations = list[float](), own_metrics.reservations
    monkeypatch.setattr(own_metrics, "reservations", lambda tx: computed.append(tx.now_s) or reservations(tx))
    past = world.history["GPU-0"] = deque()
    for power_w in range(10):
        past.append((world.clock.now_s(), GpuSample("GPU-0", 0.0, 100, power_w=70.0 + power_w)))
        world.run(partial(hosts.heartbeats, host_ids=["h"]), read_only=True)
        world.tick()
    assert len(world.samples("DCGM_FI_DEV_POWER_USAGE", UUID="GPU-0")) == 10
    assert computed == []
    world.call("ecs", "CreateCluster", clusterName="other")
    world.tick()
    assert len(computed) == 1


def test_a_message_in_an_empty_queue_is_published_before_the_next_second(world: World) -> None:
    """The timers of the event loop end only when the test says so."""
    queue = world.call("sqs", "CreateQueue", QueueName="q")["QueueUrl"]
    world.clock.advance(0.25)
    timer_s = 0.0

    async def turns() -> None:
        """Run what is ready."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def send() -> None:
        nonlocal timer_s
        asyncio.get_running_loop().time = lambda: timer_s  # type: ignore[method-assign]
        running = asyncio.create_task(world.publisher.run())
        await turns()
        assert world.samples("ApproximateNumberOfMessagesVisible") == []
        world.call("sqs", "SendMessage", QueueUrl=queue, MessageBody="first")
        await turns()
        assert world.samples("ApproximateNumberOfMessagesVisible")
        world.call("sqs", "PurgeQueue", QueueUrl=queue)
        world.clock.advance(0.5)
        world.call("sqs", "SendMessage", QueueUrl=queue, MessageBody="second")  # published with the next second
        await turns()
        assert len(world.samples("NumberOfMessagesSent")) == 1
        timer_s += 1.0
        await turns()
        assert len(world.samples("NumberOfMessagesSent")) == 2
        running.cancel()

    world.runner.run(send())
    assert world.samples("ApproximateNumberOfMessagesVisible") == [(1.0, 1.0)], "the level is the same as before"
    assert world.samples("NumberOfMessagesSent") == [(1.0, 1.0), (1.0, 1.0)]


def test_tasks_that_share_a_gpu_have_metrics_of_their_own(world: World) -> None:
    hello = Hello("h", "boot", "host", 4096, 4096, [GpuDevice("GPU-0", 0, "Simulated", 1000)], [])
    world.run(lambda tx: host_reports.hello(tx, hello))
    shares = [{"type": "GPU", "sharingStrategy": {"nvidiaMps": {"memory": 300}}}]
    container = {"name": "main", "image": "corral/host", "command": ["x"], "resourceRequirements": shares, "memory": 64}
    world.call("ecs", "RegisterTaskDefinition", family="web", containerDefinitions=[container])
    world.call("ecs", "CreateService", serviceName="api", taskDefinition="web", desiredCount=2)
    world.transact()
    busy, idle = world.run(lambda tx: tx.store.tasks.on_host("h"))
    seen = [Observed(task.runs[0].id, pid=1, started_at_s=world.clock.now_s()) for task in (busy, idle)]
    world.run(lambda tx: host_reports.report(tx, "h", seen))
    world.tick(2)

    def sample(**more: Any) -> None:
        world.history["GPU-0"] = deque([(world.clock.now_s(), GpuSample("GPU-0", 90.0, 500, power_w=200.0, **more))])
        world.tick()

    sample(parts={busy.runs[0].attempt_id: GpuPart(80.0, 400), idle.runs[0].attempt_id: GpuPart(0.0, 90)})
    for dimensions, percent, memory_mib in (
        ({"UUID": "GPU-0"}, [90.0], [500.0]),
        ({"TaskId": busy.id}, [80.0], [400.0]),
        ({"TaskId": idle.id}, [0.0], [90.0]),
        ({"ServiceName": "api"}, [0.0, 80.0], [90.0, 400.0]),  # the average of the tasks falls if a further task shares the GPU
    ):
        assert sorted(value for value, _ in world.samples("DCGM_FI_DEV_GPU_UTIL", **dimensions)) == percent, dimensions
        assert sorted(value for value, _ in world.samples("DCGM_FI_DEV_FB_USED", **dimensions)) == memory_mib, dimensions
    assert world.samples("DCGM_FI_DEV_POWER_USAGE", TaskId=idle.id) == [(200.0, 1.0)]
    history = world.core.store.tasks.history
    assert (history.gpu_use(busy.id), history.gpu_use(idle.id)) == (GpuUse(1, 80.0, 80.0, 400), GpuUse(1, 0.0, 0.0, 90))
    sample(why_no_parts="the driver does not report it")
    assert len(world.samples("DCGM_FI_DEV_GPU_UTIL", ServiceName="api")) == 2, "without parts, the tasks have no such values"
    assert len(world.samples("DCGM_FI_DEV_GPU_UTIL", UUID="GPU-0")) == 2
    assert history.gpu_use(busy.id) == GpuUse(1, 80.0, 80.0, 400)


def service_task(world: World) -> tuple[str, str]:
    """Start a service with one GPU task that specifies half a core and 512 MiB. Return the ids of the task and of its run."""
    hello = Hello("h", "boot", "host", 4096, 4096, [GpuDevice("GPU-0", 0, "Simulated", 1000)], [])
    world.run(lambda tx: host_reports.hello(tx, hello))
    container = {"name": "main", "image": "corral/host", "command": ["x"], "resourceRequirements": [{"type": "GPU", "value": "1"}]}
    world.call("ecs", "RegisterTaskDefinition", family="web", containerDefinitions=[container], cpu="512", memory="512")
    world.call("ecs", "CreateService", serviceName="api", taskDefinition="web", desiredCount=1)
    world.transact()
    task = world.run(lambda tx: tx.store.tasks.on_host("h")[0])
    seen = Observed(task.runs[0].id, pid=1, started_at_s=world.clock.now_s())
    world.run(lambda tx: host_reports.report(tx, "h", [seen]))
    return task.id, task.runs[0].id


def usage(at_s: float, cpu_s: float, memory_mib: int) -> Usage:
    return Usage(at_s, cpu_s, 0.0, 0.0, memory_mib * 2**20, 1, 0, 0)


def test_the_use_of_a_service_is_relative_to_its_task_definition(world: World) -> None:
    _, run_id = service_task(world)
    now_s = world.clock.now_s()
    measured = [Measured(1, {run_id: usage(now_s, 11.0, 128)}, {run_id: usage(now_s - 4, 10.0, 99)})]
    world.published += world.run(lambda tx: world.publisher.points(tx, measured=measured), read_only=True)
    assert world.samples("CPUUtilization", ServiceName="api") == [(50.0, 5.0)], "a quarter of a core, and half a core is specified"
    assert world.samples("MemoryUtilization", ServiceName="api") == [(25.0, 5.0)]
    of_all = [pair for pair in world.samples("CPUUtilization", ClusterName="default") if pair != (50.0, 5.0)]
    assert of_all == [(6.25, 5.0)], "the instance has four cores"


def test_only_connected_hosts_with_runs_are_measured(world: World) -> None:
    for number in range(100):
        world.run(lambda tx, host=f"idle{number}": host_reports.hello(tx, Hello(host, "boot", host, 1024, 1024, [], [])))
    task_id, _ = service_task(world)
    names = [run.attempt_id for run in world.run(lambda tx: tx.store.tasks.get(task_id)).runs]
    statements = list[str]()
    world.core.store.connection.set_trace_callback(statements.append)
    world.tick(6)
    assert world.measured and world.measured == [("h", names)] * len(world.measured)
    looked = [sql for sql in statements if "FROM task WHERE instance_id" in sql]
    assert len(looked) == len(world.measured), "a host without runs costs no statement"
    world.measured.clear()
    world.run(lambda tx: tx.store.hosts.silent("h"))
    world.tick(6)
    assert world.measured == [], "a silent host is not asked"


def test_gpu_metrics_have_the_dimensions_of_the_service_the_task_and_the_container(world: World) -> None:
    task_id, _ = service_task(world)

    def sets() -> set[tuple[tuple[str, str], ...]]:
        world.history["GPU-0"] = deque([(world.clock.now_s(), GpuSample("GPU-0", 70.0, 100, sm_clock_mhz=1500))])
        found = [point.metric for point in world.tick() if point.metric.name == "DCGM_FI_DEV_GPU_UTIL"]
        return {metric.dimensions for metric in found if metric.namespace == "ECS/ContainerInsights/Prometheus"}

    cluster = ("ClusterName", "default")
    shared = {(cluster,), (cluster, ("ServiceName", "api")), (cluster, ("TaskDefinitionFamily", "web"))}
    assert sets() == shared
    world.tick(10)
    of_task = {(cluster, ("TaskId", task_id)), (cluster, ("ContainerName", "main"), ("TaskId", task_id))}
    assert sets() == shared | of_task, "a short task has no series of its own"
    assert world.samples("DCGM_FI_DEV_SM_CLOCK", ServiceName="api")[-1] == (1500.0, 1.0)


def test_samples_of_a_task_are_added_up_and_saved_once_a_minute(world: World) -> None:
    task_id, run_id = service_task(world)
    started_s = world.clock.now_s()
    store = world.core.store

    def sample(at_s: float, percent: float, memory_mib: int) -> None:
        world.history.setdefault("GPU-0", deque()).append((at_s, GpuSample("GPU-0", percent, memory_mib)))
        world.tick()

    sample(started_s + 0.5, 99.0, 999)  # covers time before the start, when another task may have had the GPU
    assert store.tasks.history.gpu_use(task_id) is None
    sample(started_s + 1.5, 20.0, 100)
    sample(started_s + 2.5, 20.0, 100)  # unchanged values are not published, but they count
    sample(started_s + 3.5, 80.0, 300)
    use = store.tasks.history.gpu_use(task_id)
    assert use == GpuUse(3, 120.0, 80.0, 300) and store.execute("SELECT count(*) FROM task_gpu_use").fetchone() == (0,)
    world.tick(60)
    assert store.execute("SELECT samples, memory_max_mib FROM task_gpu_use").fetchall() == [(3, 300)]
    world.run(lambda tx: host_reports.report(tx, "h", [Observed(run_id, 1, started_s, world.clock.now_s(), 0)]))
    [record] = store.tasks.history.listed(HistoryFilter("us-east-1"), 10)
    assert record.record.gpu_use == use and store.execute("SELECT count(*) FROM task_gpu_use").fetchone() == (0,)


def test_own_points_are_dropped_while_a_collector_writes_the_series() -> None:
    clock = VirtualClock(MINUTE_S)
    core = Core(MetricStore(None), settings=Settings(), clock=clock, ids=SeededIds(Random(0)), reconcilers=METRICS)
    series = [
        Metric("r", "ECS/ContainerInsights/Prometheus", "DCGM_FI_DEV_GPU_UTIL", (("ClusterName", name),)) for name in ("one", "two")
    ]

    def written(value: float, *metrics: Metric, own: bool) -> None:
        points = [Point(metric, clock.now_s(), value, "Percent", 1) for metric in metrics]
        assert not core.transact([Command(lambda tx: record(tx, points, own=own), lambda answer: None)]).faults

    def values(metric: Metric) -> list[float]:
        found = core.store.read(metric, start_s=int(MINUTE_S), end_s=int(MINUTE_S) + 600, period_s=1, now_s=clock.now_s())
        return [summary.sum for _, summary in sorted(found.items())]

    written(1.0, *series, own=True)
    clock.advance(1)
    written(93.0, series[0], own=False)
    clock.advance(1)
    written(2.0, *series, own=True)
    assert [values(metric) for metric in series] == [[1.0, 93.0], [1.0, 2.0]]
    clock.advance(180)
    written(3.0, *series, own=True)
    assert values(series[0]) == [1.0, 93.0, 3.0], "the collector is silent"


def test_a_refused_point_of_a_collector_leaves_its_series_to_the_collector() -> None:
    clock = VirtualClock(MINUTE_S)
    core = Core(MetricStore(None), settings=Settings(), clock=clock, ids=SeededIds(Random(0)), reconcilers=METRICS)
    known, new = [
        Metric("r", "ECS/ContainerInsights/Prometheus", "DCGM_FI_DEV_GPU_UTIL", (("ClusterName", name),)) for name in ("one", "two")
    ]

    def collect(refused: bool, *metrics: Metric) -> Callable[[Tx[MetricStore]], None]:
        def write(tx: Tx[MetricStore]) -> None:
            record(tx, [Point(metric, clock.now_s(), 1.0, "Percent", 1) for metric in metrics], own=False)
            if refused:
                raise ApiError("refused")

        return write

    core.transact([Command(collect(False, known), lambda answer: None)])
    clock.advance(1)
    core.transact([Command(collect(True, known, new), lambda answer: None)])
    assert [core.store.is_collected([metric], clock.now_s()) for metric in (known, new)] == [True, False]
    clock.advance(179)
    assert not core.store.is_collected([known], clock.now_s()), "the refused point does not count"


def test_collected_samples_have_few_datapoints_and_count_in_their_minute(world: World) -> None:
    service_task(world)
    world.tick()
    world.clock.advance(60 - (world.clock.now_s() % 60) + 2)  # two seconds after the begin of a minute
    now_s = world.clock.now_s()
    world.published.clear()
    collected = [(now_s + 1 - ago_s, GpuSample("GPU-0", 10.0 * (ago_s + 1), 100)) for ago_s in (4, 3, 2, 1, 0)]
    world.history["GPU-0"] = deque(collected)
    world.tick()
    of_gpu = [
        point
        for point in world.published
        if point.metric.name == "DCGM_FI_DEV_GPU_UTIL" and "UUID" in dict(point.metric.dimensions)
    ]
    assert [(point.at_s // 60 * 60, point.sample) for point in of_gpu] == [
        (now_s // 60 * 60 - 60, 50.0),
        (now_s // 60 * 60, [(40.0, 1.0), (30.0, 1.0), (20.0, 1.0), (10.0, 1.0)]),
    ]


def test_a_transaction_publishes_few_samples_because_orders_wait_for_it(world: World) -> None:
    gpus, collected = 40, 5
    devices = [GpuDevice(f"GPU-{at}", at, "NVIDIA H100", 81_559) for at in range(gpus)]
    world.run(lambda tx: host_reports.hello(tx, Hello("h", "boot", "host", 1024, 1024, devices, [])))
    world.call("ecs", "CreateCluster", clusterName="default")
    world.tick(10)
    world.looks = 0
    for device in devices:
        times = [world.clock.now_s() + 1 - age_s / 10 for age_s in range(collected, 0, -1)]
        samples = [(at_s, GpuSample(device.gpu_id, float(at), 1)) for at, at_s in enumerate(times)]
        world.history[device.gpu_id] = deque(samples)
    world.tick()
    assert world.looks >= gpus * collected / SAMPLES_AT_ONCE
    found = world.samples("DCGM_FI_DEV_GPU_UTIL", ClusterName="default")
    assert sum(weight for _, weight in found) == 2 * gpus * collected, "in two namespaces"


def test_a_transaction_creates_few_series(world: World) -> None:
    devices = [GpuDevice(f"GPU-{at}", at, "NVIDIA H100", 81_559) for at in range(100)]
    world.run(lambda tx: host_reports.hello(tx, Hello("h", "boot", "host", 1024, 1024, devices, [])))
    world.call("ecs", "CreateCluster", clusterName="default")
    world.tick(10)
    world.recorded_at_once.clear()
    for round_number in range(2):
        for device in devices:
            world.history[device.gpu_id] = deque([(world.clock.now_s(), GpuSample(device.gpu_id, float(round_number), 1))])
        points = world.tick()
        assert sum(world.recorded_at_once) == len(points) > 3 * len(devices)
        at_once = FIRST_POINTS_AT_ONCE if round_number == 0 else POINTS_AT_ONCE
        assert world.recorded_at_once[0] == min(at_once, len(points))
        world.recorded_at_once.clear()


def test_who_holds_gpus_that_do_nothing_is_shown_and_notified_once_for_each_idle_time() -> None:
    topic = "arn:aws:sns:us-east-1:123456789012:idle"
    with asyncio.Runner() as runner:
        world = World(runner, Settings(usage=UsageSettings(idle_after_s=100.0, notify=topic)))
        policy = {"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}}
        queue = world.call("sqs", "CreateQueue", QueueName="q", Attributes={"Policy": json.dumps(policy)})["QueueUrl"]
        assert world.call("sns", "CreateTopic", Name="idle")["TopicArn"] == topic
        world.call("sns", "Subscribe", TopicArn=topic, Protocol="sqs", Endpoint="arn:aws:sqs:us-east-1:123456789012:q")
        task_id, _ = service_task(world)

        def run(seconds: int, percent: float) -> None:
            for _ in range(seconds):
                world.history["GPU-0"] = deque([(world.clock.now_s(), GpuSample("GPU-0", percent, 100))])
                world.tick()

        def idle() -> list[Any]:
            return [row["task"] for row in world.run(idle_rows)]

        def notified() -> list[str]:
            found = world.call("sqs", "ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
            for each in found:
                world.call("sqs", "DeleteMessage", QueueUrl=queue, ReceiptHandle=each["ReceiptHandle"])
            return [json.loads(json.loads(each["Body"])["Message"])["text"] for each in found]

        run(90, 0.4)
        assert idle() == [] and notified() == []
        run(150, 0.0)
        assert idle() == [task_id]
        assert notified() == ["root holds 1 GPU at 0% for 2m: web"]
        run(300, 0.0)
        assert idle() == [task_id] and notified() == []
        run(5, 50.0)
        assert idle() == []
        run(240, 0.0)
        assert idle() == [task_id] and len(notified()) == 1
        store = world.core.store
        [hour] = store.owner_uses.hours("root", 0.0, world.clock.now_s())
        assert hour.gpu_s == pytest.approx(785, abs=10) and hour.idle_gpu_s == pytest.approx(770, abs=70)
        world.run(
            lambda tx: [
                host_reports.report(tx, "h", [Observed(task_id_run(tx, task_id), pid=1, stopped_at_s=tx.now_s, exit_code=0)])
            ]
        )
        assert idle() != [task_id]
        world.tick(60)
        assert not store.execute("SELECT * FROM idle_holder").fetchall()


def test_a_topic_that_does_not_exist_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner() as runner:
        world = World(runner, Settings(usage=UsageSettings(idle_after_s=100.0, notify="arn:aws:sns:us-east-1:123456789012:gone")))
        service_task(world)
        for _ in range(300):
            world.history["GPU-0"] = deque([(world.clock.now_s(), GpuSample("GPU-0", 0.0, 100))])
            world.tick()
    assert len([record for record in caplog.records if "no notification about" in record.getMessage()]) == 1


def task_id_run(tx: Tx[Store], task_id: str) -> str:
    task = tx.store.tasks.get(task_id)
    assert task is not None
    return task.runs[0].id
