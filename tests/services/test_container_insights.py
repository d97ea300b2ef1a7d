"""Container Insights: the performance log events of clusters with this setting, and the metrics in them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.ids import SeededIds
from corral.decide.logs.emf import batch_points
from corral.model.agent_protocol import Hello, Measured
from corral.model.gpu import GpuDevice
from corral.model.principal import root_user
from corral.model.run import Observed, Usage
from corral.model.settings import Settings
from corral.operations.services import SERVICES
from corral.reconcile import LOGS, STATE
from corral.server.insights_writer import InsightsWriter
from corral.services.ecs import host_reports
from corral.services.ecs.container_insights import PIECE
from corral.store import Store
from corral.telemetry import LogStore

CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
MINUTE_S = 1_700_000_040.0
GROUP = "/aws/ecs/containerinsights/default/performance"


class CoreLane:
    """A lane that runs each command at once."""

    def __init__(self, core: Core[Any]) -> None:
        self.core = core

    async def submit(self, handler: Any, *, read_only: bool = False) -> Any:
        return self.run(handler)

    def run(self, handler: Any) -> Any:
        told: list[Any] = []
        for command, answer in self.core.transact([Command(handler, told.append)]).answers:
            command.done(answer)
        assert told and not isinstance(told[0], Exception), told
        return told[0]


class World:
    """The cores of state and logs, a host with one GPU and four cores, and a service with one task."""

    def __init__(self, insights: str) -> None:
        self.clock = VirtualClock(MINUTE_S)
        common = {"settings": Settings(), "clock": self.clock, "ids": SeededIds(Random(0))}
        self.state = CoreLane(Core(Store(None), reconcilers=STATE, **cast("Any", common)))
        self.logs = CoreLane(Core(LogStore(None), reconcilers=LOGS, **cast("Any", common)))
        self.usage: dict[str, Usage] = {}
        agents = SimpleNamespace(measure=self.measure)
        self.writer = InsightsWriter(cast("Any", self.state), cast("Any", self.logs), cast("Any", agents), self.clock)
        self.call("ecs", "CreateCluster", clusterName="default", settings=[{"name": "containerInsights", "value": insights}])
        gpu = GpuDevice("GPU-0", 0, "Simulated", 1000)
        self.state.run(lambda tx: host_reports.hello(tx, Hello("h", "boot", "host", 4096, 4096, [gpu], [])))
        container = {"name": "main", "image": "corral/host", "command": ["x"], "cpu": 256, "memory": 200}
        self.call("ecs", "RegisterTaskDefinition", family="web", containerDefinitions=[container], cpu="512", memory="512")
        self.call("ecs", "CreateService", serviceName="api", taskDefinition="web", desiredCount=1)
        self.task = self.state.run(lambda tx: tx.store.tasks.on_host("h")[0])
        seen = Observed(self.task.runs[0].id, pid=1, started_at_s=self.clock.now_s())
        self.state.run(lambda tx: host_reports.report(tx, "h", [seen]))

    def call(self, service: str, operation: str, **params: Any) -> Any:
        return self.state.run(lambda tx: SERVICES[service].operations[operation](tx, params, CALLER))

    async def measure(self, host_id: str, run_ids: list[str]) -> Measured:
        assert host_id == "h"
        return Measured(1, {run_id: self.usage[run_id] for run_id in run_ids})

    def minute(self, cpu_s: float, memory_mib: int) -> list[dict[str, Any]]:
        """Let a minute pass in which the task used this much CPU time in all, and return the new events."""
        self.clock.advance(60)
        self.usage = {self.task.runs[0].id: Usage(self.clock.now_s(), cpu_s, 0.0, 0.0, memory_mib * 2**20, 1, 4096, 8192)}
        before = self.messages()
        asyncio.run(self.writer.write())
        return [json.loads(message) for message in self.messages() if message not in before]

    def messages(self) -> list[str]:
        params = {"logGroupName": GROUP}

        def read(tx: Any) -> list[str]:
            if tx.store.group("us-east-1", GROUP) is None:
                return []
            return [event["message"] for event in SERVICES["logs"].operations["FilterLogEvents"](tx, params, CALLER)["events"]]

        return cast("list[str]", self.logs.run(read))


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield World(getattr(request, "param", "enabled"))


def test_events_of_many_services(world: World) -> None:
    names = [f"service{number:02}" for number in range(2 * PIECE)]
    for name in names:
        world.call("ecs", "CreateService", serviceName=name, taskDefinition="web", desiredCount=0)
    events = world.minute(30.0, 128)
    assert [event["ServiceName"] for event in events if event["Type"] == "Service"] == ["api", *names]


def test_events_of_a_cluster_a_service_a_task_and_a_container(world: World) -> None:
    events = {event["Type"]: event for event in world.minute(30.0, 128)}
    assert events.keys() == {"Cluster", "Service", "Task", "Container"}
    cluster, service, task, container = (events[kind] for kind in ("Cluster", "Service", "Task", "Container"))
    assert {key: cluster[key] for key in ("TaskCount", "ContainerInstanceCount", "ServiceCount")} == {
        "TaskCount": 1, "ContainerInstanceCount": 1, "ServiceCount": 1,
    }  # fmt: skip
    assert (service["ServiceName"], service["DesiredTaskCount"], service["RunningTaskCount"]) == ("api", 1, 1)
    assert (service["PendingTaskCount"], service["DeploymentCount"]) == (0, 1)
    assert (task["CpuUtilized"], task["CpuReserved"], task["MemoryUtilized"], task["MemoryReserved"]) == (512.0, 512.0, 128.0, 512)
    assert (task["TaskDefinitionFamily"], task["TaskDefinitionRevision"], task["ServiceName"]) == ("web", "1", "api")
    assert (container["ContainerName"], container["CpuReserved"], container["MemoryReserved"]) == ("main", 256.0, 200)
    assert "CloudWatchMetrics" not in container, "only enhanced observability has metrics of containers"
    assert all(event["Timestamp"] % 60_000 == 0 and event["ClusterName"] == "default" for event in events.values())
    # The second minute counts only its own CPU time.
    [later] = [event for event in world.minute(45.0, 100) if event["Type"] == "Task"]
    assert later["CpuUtilized"] == 256.0


def test_the_events_are_the_metrics(world: World) -> None:
    world.minute(30.0, 128)
    points = batch_points([(0, message) for message in world.messages()], "us-east-1")
    found = {(point.metric.name, tuple(name for name, _ in point.metric.dimensions)): point for point in points}
    assert {point.metric.namespace for point in points} == {"ECS/ContainerInsights"}
    assert {sets for name, sets in found if name == "CpuUtilized"} == {
        ("ClusterName",), ("ClusterName", "ServiceName"), ("ClusterName", "TaskDefinitionFamily"),
    }  # fmt: skip
    assert found["RunningTaskCount", ("ClusterName", "ServiceName")].sample == 1.0
    assert found["TaskCount", ("ClusterName",)].unit == "Count"
    assert found["MemoryUtilized", ("ClusterName", "ServiceName")].unit == "Megabytes"


@pytest.mark.parametrize("world", ["enhanced"], indirect=True)
def test_enhanced_observability_has_metrics_of_tasks_and_containers(world: World) -> None:
    world.minute(30.0, 128)
    points = batch_points([(0, message) for message in world.messages()], "us-east-1")
    samples = {(point.metric.name, dict(point.metric.dimensions).get("TaskId")): point.sample for point in points}
    assert samples["TaskCpuUtilization", world.task.id] == 100.0
    assert samples["TaskMemoryUtilization", None] == 25.0
    assert samples["ContainerCpuUtilization", world.task.id] == 200.0
    assert samples["ContainerMemoryUtilization", world.task.id] == 64.0


@pytest.mark.parametrize("world", ["disabled"], indirect=True)
def test_a_cluster_without_the_setting_has_no_events(world: World) -> None:
    assert world.minute(30.0, 128) == []
    world.call("ecs", "UpdateClusterSettings", cluster="default", settings=[{"name": "containerInsights", "value": "enabled"}])
    assert len(world.minute(40.0, 128)) == 4
    days = world.logs.run(lambda tx: tx.store.group("us-east-1", GROUP).retention_days)
    assert days == 1
