"""Instances in Corral's own operations, and how `corral status` and `corral top` show them."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from answers.recorder import handled
from corral.access.caller import Caller
from corral.cli.screens.status import instance_gpus, overcommitted_line
from corral.cli.screens.top_tables import frame
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.ids import RandomIds
from corral.core.transactions import Tx
from corral.fleet import instances
from corral.fleet.instances import InstanceRequest
from corral.model.instance import Instance, ec2_id
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.reconcile import STATE
from corral.services.corral.handlers import HANDLERS as OWN
from corral.services.corral.instances import INSTANCES_SHOWN_MAX
from corral.services.ecs import host_reports
from corral.services.ecs.handlers import HANDLERS
from corral.store import Store
from store.rows import hello

REGION = "us-east-1"
CALLER = Caller("123456789012", REGION, root_user("123456789012"))
DATE = "Mon, 16 Nov 2026 09:00:00 GMT"
STACK = [{"Key": "aws:cloudformation:stack-name", "Value": "ml"}]


class World:
    """A core with one simulated host: four GPUs, 4 CPU cores, 4 GiB."""

    def __init__(self, path: Path | None = None) -> None:
        self.clock = VirtualClock(1_000.0)
        self.store = Store(path)
        self.core = Core(self.store, settings=Settings(), clock=self.clock, ids=RandomIds(), reconcilers=STATE)
        self.run(lambda tx: host_reports.hello(tx, hello("h", 4)))
        self.call("CreateCluster", clusterName="train")

    def run(self, handler: Any) -> Any:
        outcome = self.core.transact([Command(handler, lambda answer: None)])
        assert not outcome.faults, outcome.faults[0]
        answer = outcome.answers[0][1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, operation: str, **params: Any) -> Any:
        return self.run(lambda tx: HANDLERS[operation](tx, params, CALLER))

    def launch(self, gpus: int, reason: str = "a test", **more: Any) -> Instance:
        request = {
            "region": REGION,
            "cluster": "train",
            "type": "g5.xlarge",
            "cpu_units": 1024,
            "memory_mib": 1024,
            "owner": "root",
        }
        request |= more
        launched: Instance = self.run(lambda tx: instances.launch(tx, InstanceRequest(gpus=gpus, reason=reason, **request)))
        return launched

    def end(self, instance: Instance, reason: str) -> None:
        def terminate(tx: Tx[Store]) -> None:
            found = tx.store.instances.get(instance.id)
            assert found is not None
            instances.terminate(tx, found, reason)

        self.run(terminate)

    def own(self, operation: str, region: str = REGION, **params: Any) -> dict[str, Any]:
        caller = Caller(CALLER.account, region, CALLER.principal)
        found: dict[str, Any] = handled("corral", operation, lambda: self.run(lambda tx: OWN[operation](tx, params, caller)))
        return found

    def status(self) -> dict[str, Any]:
        return self.own("GetStatus")

    def page(self, region: str = REGION, **params: Any) -> dict[str, Any]:
        return self.own("DescribeInstances", region, **params)


def test_the_page_gives_the_reason_of_each_launch_wait_and_end() -> None:
    world = World()
    first = world.launch(3, "the group wants 2 instances", group="fleet")
    waiting = world.launch(2, "the group wants 2 instances", group="fleet")
    ended = world.launch(0)
    world.end(ended, "no one needs it")
    shown = {each["id"]: each for each in world.page()["instances"]}
    running = shown[ec2_id(first.id)]
    assert running["state"] == "running" and running["launchReason"] == "the group wants 2 instances"
    assert running["waitReason"] is None and running["endReason"] is None
    assert (running["type"], running["group"], running["cluster"], running["gpus"]) == ("g5.xlarge", "fleet", "train", 3)
    wait = shown[ec2_id(waiting.id)]
    assert wait["state"] == "pending" and wait["gpuIds"] == [] and wait["cluster"] is None
    assert wait["waitReason"].startswith(f"instance {ec2_id(first.id)} holds 3 of 4 GPUs; needs 2 GPUs; first in line; held by")
    assert ec2_id(first.id) in wait["waitReason"]
    gone = shown[ec2_id(ended.id)]
    assert (gone["state"], gone["endReason"], gone["gpuIds"]) == ("terminated", "no one needs it", [])
    assert world.page("eu-west-1") == {"instances": [], "elsewhere": {"us-east-1": 2}}


def test_many_instances_come_in_pages() -> None:
    world = World()
    ids = [ec2_id(world.launch(0).id) for _ in range(INSTANCES_SHOWN_MAX + 3)]
    first = world.page()
    second = world.page(nextToken=first["nextToken"])
    assert len(first["instances"]) == INSTANCES_SHOWN_MAX and "nextToken" not in second
    assert [each["id"] for each in first["instances"] + second["instances"]] == sorted(ids)
    status = world.status()
    assert len(status["instances"]) == INSTANCES_SHOWN_MAX and status["instanceCounts"] == {"running": len(ids)}
    assert "and 3 more" in drawn(status)


def test_status_counts_tasks_and_names_the_gpus_of_each_instance() -> None:
    world = World()
    launched = world.launch(2)
    container = {"name": "main", "image": "corral/host", "command": ["work"], "memory": 16}
    gpu = {**container, "resourceRequirements": [{"type": "GPU", "value": "1"}]}
    world.call("RegisterTaskDefinition", family="t", containerDefinitions=[gpu])
    world.call("RunTask", cluster="train", taskDefinition="t", launchType="EC2", count=2)
    status = world.status()
    [shown] = status["instances"]
    assert shown["tasks"] == 2 and len(shown["gpuIds"]) == 2
    [host] = status["hosts"]
    assert {each["id"] for each in host["gpus"] if each["instance"] == ec2_id(launched.id)} == set(shown["gpuIds"])


def drawn(page: dict[str, Any], width: int = 160, height: int | None = None) -> str:
    out = Console(file=StringIO(), width=width)
    with out.capture() as captured:
        out.print(frame({"version": "1", **page}, DATE, width, height))
    return captured.get()


@pytest.mark.parametrize("width", [80, 160])
def test_top_lists_instances_and_the_reason_of_a_wait(width: int) -> None:
    world = World()
    without = drawn(world.status(), width)
    assert "INSTANCE" not in without and " on i-" not in without
    running, waiting = world.launch(3, group="fleet"), world.launch(4, group="fleet")
    text = drawn(world.status(), width)
    lines = text.splitlines()
    [row] = [line for line in lines if line.startswith(ec2_id(running.id))]
    assert row.split()[:6] == [ec2_id(running.id), "g5.xlarge", "running", "fleet", "train", "3"] and "(0-2)" in row
    [row] = [line for line in lines if line.startswith(ec2_id(waiting.id))]
    assert "pending" in row and (width == 80 or "instance i-" in row)
    assert text.count(ec2_id(running.id)) >= 4, "each GPU names its instance"
    assert "SINCE REASON" not in lines[-1], "no empty list of tasks"


def test_a_small_screen_has_room_for_tasks_too() -> None:
    world = World()
    for _ in range(30):
        world.launch(0)
    lines = drawn(world.status(), 100, 24).splitlines()
    assert len(lines) <= 24 and sum(line.startswith("i-") for line in lines) >= 3
    assert any(line.startswith("and ") for line in lines)


def test_status_says_when_instances_overcommit_the_host() -> None:
    world = World()
    world.launch(1, cpu_units=3 * 1024)
    assert world.status()["overcommitted"] == [], "its own tasks use nothing"
    world.launch(0, cpu_units=2 * 1024)
    [over] = world.status()["overcommitted"]
    assert over["cpuUnits"] == {"total": 4096, "promised": 5120} and over["memoryMiB"] == {"total": 4096, "promised": 2048}
    assert "5 CPU cores and 2 GiB, and it has 4 CPU cores and 4 GiB" in overcommitted_line(over)
    world.launch(4, cpu_units=64 * 1024)
    assert world.status()["overcommitted"] == [over], "an instance that waits has no host"


@pytest.mark.parametrize(
    "indexes, shown", [([], "3"), ([0], "3 (0)"), ([0, 1, 2], "3 (0-2)"), ([7, 1, 2], "3 (1-2,7)"), ([0, 2, 4], "3 (0,2,4)")]
)
def test_gpu_indexes_are_shown_as_ranges(indexes: list[int], shown: str) -> None:
    ids = {f"GPU-{index}": index for index in indexes}
    assert instance_gpus({"gpus": 3, "gpuIds": [*ids, "GPU-unknown"]}, ids) == shown


# The cost report


def test_the_cost_of_groups_and_stacks() -> None:
    world = World()
    world.launch(1, group="fleet", details={"Tags": STACK})
    mapped = world.launch(1, type="mine.large")
    old = world.launch(1, type="p3.2xlarge", details={"InstanceLifecycle": "spot"})
    world.clock.advance(3600.0)
    for each in (mapped, old):
        world.end(each, "a test")
    world.clock.advance(3600.0)
    report = world.own("GetUsage")
    assert report["prices"] == {"region": "us-east-1", "date": "2026-08-22", "currency": "USD"}
    fleet, alone = report["groups"]
    assert (fleet["group"], alone["group"]) == ("fleet", None)
    assert fleet["hours"] == pytest.approx(2.0) and fleet["onDemand"] == pytest.approx(2 * 1.006, abs=1e-4)
    assert fleet["spot"] is not None and 0 < fleet["spot"] < fleet["onDemand"]
    types = {each["type"]: each for each in alone["types"]}
    assert types["mine.large"]["onDemand"] is None and types["mine.large"]["hours"] == pytest.approx(1.0)
    assert types["p3.2xlarge"]["onDemand"] == pytest.approx(3.06, abs=1e-3) and types["p3.2xlarge"]["spot"] is None
    assert types["p3.2xlarge"]["spotHours"] == pytest.approx(1.0)
    assert alone["onDemand"] == types["p3.2xlarge"]["onDemand"] and alone["spot"] is None
    assert report["withoutPrice"] == {"onDemand": ["mine.large"], "spot": ["mine.large", "p3.2xlarge"]}
    assert [each["stack"] for each in report["stacks"]] == ["ml", None]
    assert report["total"]["instances"] == 3 and report["total"]["hours"] == pytest.approx(4.0)
    assert report["total"]["onDemand"] == pytest.approx(fleet["onDemand"] + alone["onDemand"])
    recent = world.own("GetUsage", last=1800)
    assert [each["group"] for each in recent["groups"]] == ["fleet"] and recent["total"]["hours"] == pytest.approx(0.5)


def test_the_cost_of_each_owner() -> None:
    world = World()
    world.launch(1, group="fleet")
    for group in ("fleet", ""):
        world.launch(1, group=group, owner="user/ann")
    world.clock.advance(3600.0)
    report = world.own("GetUsage")
    found = [(each["group"], each["owner"], each["gpuHours"]) for each in report["groups"]]
    one = pytest.approx(1.0, abs=0.01)
    assert found == [("fleet", "root", one), ("fleet", "user/ann", one), (None, "user/ann", one)]
    hers = world.own("GetUsage", owner="user/ann")
    assert [each["group"] for each in hers["groups"]] == ["fleet", None]
    assert (hers["total"]["instances"], hers["total"]["hours"]) == (2, pytest.approx(2.0, abs=0.01))
    assert world.own("GetUsage", owner="user/bob")["groups"] == []


def test_the_hours_outlive_a_terminated_instance_for_a_year() -> None:
    world = World()
    launched = world.launch(1, group="fleet")
    world.clock.advance(3600.0)
    world.end(launched, "a test")
    world.clock.advance(30 * 86_400.0)
    world.run(lambda tx: None)
    assert world.store.instances.get(launched.id) is None
    assert world.own("GetUsage")["total"]["hours"] == pytest.approx(1.0)
    world.clock.advance(400 * 86_400.0)
    world.run(lambda tx: host_reports.hello(tx, hello("h", 4)))  # it was silent for long
    world.end(world.launch(0), "a test")
    world.clock.advance(3 * 3600.0)
    world.run(lambda tx: None)
    assert world.own("GetUsage")["total"]["instances"] == 1


def test_an_empty_ledger_has_an_empty_report() -> None:
    report = World().own("GetUsage")
    assert report["groups"] == report["stacks"] == [] and report["prices"] is None and report["fromS"] is None
    assert report["total"] == {"instances": 0, "hours": 0, "spotHours": 0, "gpuHours": 0, "onDemand": None, "spot": None}
