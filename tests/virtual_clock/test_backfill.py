"""Backfill on a virtual clock: a core whose host starts tasks and ends them, with rows, time limits and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.errors import ApiError
from corral.model.run import Observed
from corral.operations.services import SERVICES
from corral.services.ecs import host_reports
from corral.services.ecs.errors import ClientException
from virtual_clock.group_world import CALLER, GPUS_4, GroupWorld
from virtual_clock.service_world import USER_DATA

LIMIT = "corral:time-limit"
UNFIT = "corral:refuse-unfit"


class RunWorld(GroupWorld):
    """A host with GPUs. Each task runs for a known time, unless Corral stops it before."""

    def __init__(self, gpus: int = 4, path: Path | None = None) -> None:
        super().__init__(gpus, path=path)
        self.lasts_s: dict[str, float] = {}  # task → how long it runs
        for count in range(gpus + 1):
            self.define(f"g{count}", count)

    def define(self, family: str, gpus: int, memory: int = 6) -> None:
        container: dict[str, Any] = {
            "name": "c", "image": "corral/host", "command": ["true"], "memory": memory, "stopTimeout": 2,
        }  # fmt: skip
        if gpus:
            container["resourceRequirements"] = [{"type": "GPU", "value": str(gpus)}]
        self.call("RegisterTaskDefinition", "ecs", family=family, containerDefinitions=[container])

    def launch(self, family: str, tags: dict[str, str] | None = None, **more: Any) -> Any:
        pairs = [{"key": key, "value": value} for key, value in (tags or {}).items()]
        return self.call("RunTask", "ecs", taskDefinition=family, tags=pairs, **more)

    def submit(self, gpus: int, limit_s: float | None = None, lasts_s: float = 1e9, **more: Any) -> str:
        """Run a task, and return its id."""
        tags = {} if limit_s is None else {LIMIT: str(limit_s)}
        [task] = self.launch(f"g{gpus}", tags, **more)["tasks"]
        task_id = str(task["taskArn"].rpartition("/")[2])
        self.lasts_s[task_id] = lasts_s
        self.follow()
        return task_id

    def row(self, task_id: str) -> Any:
        found = self.store.tasks.get(task_id)
        assert found is not None
        return found

    def state(self, task_id: str) -> str:
        return str(self.row(task_id).state.value)

    def reason(self, task_id: str) -> str:
        [shown] = self.call("DescribeTasks", "ecs", tasks=[task_id])["tasks"]
        return str(shown["containers"][0]["reason"])

    def follow(self) -> None:
        """The host starts what it was ordered to start, and ends what has run long enough or was ordered to stop."""
        self.settle()
        reported = True
        while reported:
            reported = False
            for task_id in [*self.lasts_s]:
                task, now_s = self.row(task_id), self.clock.now_s()
                is_over = task.started_at_s is not None and now_s >= task.started_at_s + self.lasts_s[task_id]
                ends = task.state.value == "RUNNING" and (is_over or task.desired.value == "STOPPED")
                if task.state.value == "PENDING" or ends:
                    seen = Observed(
                        task.runs[0].attempt_id, 1, task.started_at_s or now_s, now_s if ends else None, 0 if ends else None
                    )
                    self.run(lambda tx, seen=seen: host_reports.report(tx, "h", [seen]))
                    self.settle()
                    reported = True

    def run_for(self, seconds: float) -> None:
        """Let time pass, and let tasks end on the way."""
        end_s = self.clock.now_s() + seconds
        while self.clock.now_s() < end_s:
            running = [task for task in map(self.row, self.lasts_s) if task.state.value == "RUNNING"]
            ends = [task.started_at_s + self.lasts_s[task.id] for task in running]
            due_s = self.store.next_due_s()
            times = [at_s for at_s in (*ends, due_s or end_s) if at_s > self.clock.now_s()]
            self.clock.advance(min([*times, end_s]) - self.clock.now_s())
            self.follow()


def test_a_short_run_uses_gpus_that_are_reserved_for_a_large_one() -> None:
    """Three of four GPUs are idle, because a task with four GPUs waits for the fourth."""
    world = RunWorld()
    began_s = world.clock.now_s()
    running = world.submit(1, 3600, 3600)
    large = world.submit(4)
    without_limit, too_long = world.submit(1), world.submit(1, 3600)
    short = world.submit(1, 5, 5)
    assert [world.state(each) for each in (running, large, without_limit, too_long, short)] == [
        "RUNNING", "PROVISIONING", "PROVISIONING", "PROVISIONING", "RUNNING",
    ]  # fmt: skip
    assert world.reason(large).endswith("; expected start in about 1h")
    assert "; first in line; held by task" in world.reason(large)
    behind = f"reserved for g4, which is ahead in line; needs 1 GPU; place 3 in line behind task {large}"
    assert behind in world.reason(too_long)
    world.run_for(3700)
    assert world.state(short) == "STOPPED"
    assert world.row(large).started_at_s == pytest.approx(began_s + 3600, abs=1)


def test_a_task_that_stays_longer_than_its_limit_closes_the_gap() -> None:
    """A running task is over its limit and is being stopped. The claim that waits for it can start at any time."""
    world = RunWorld()
    world.submit(1, 100, 1e9)
    world.submit(4)
    first = world.submit(1, 20, 20)
    assert world.state(first) == "RUNNING"
    world.run_for(80)
    assert world.state(first) == "STOPPED"
    assert world.state(world.submit(1, 20, 20)) == "PROVISIONING"  # less than 20 seconds are left


def test_a_limit_counts_from_the_start_of_the_task() -> None:
    """A task that started a minute after its placement ends a minute later. So a claim that waits fits before the first now."""
    world = RunWorld()
    running = world.launch("g1", {LIMIT: "60"})["tasks"][0]["taskArn"].rpartition("/")[2]
    world.submit(4)
    short = world.submit(1, 55, 55)
    assert world.state(short) == "PROVISIONING"
    world.wait(50)
    world.lasts_s[running] = 60
    world.follow()
    assert world.row(running).started_at_s > world.row(running).placed_at_s
    assert world.state(short) == "PROVISIONING"  # 55 seconds, the start and the stop timeout take longer than 60
    shorter = world.submit(1, 50, 50)
    assert world.state(shorter) == "RUNNING"


def test_a_waiting_claim_is_served_when_a_late_start_opens_the_gap() -> None:
    world = RunWorld()
    running = world.launch("g1", {LIMIT: "60"})["tasks"][0]["taskArn"].rpartition("/")[2]
    world.submit(4)
    world.wait(30)
    short = world.submit(1, 40, 40)
    assert world.state(short) == "PROVISIONING"
    world.lasts_s[running] = 60
    world.follow()
    assert world.state(short) == "RUNNING"


def test_a_restarted_server_knows_the_time_limits(tmp_path: Path) -> None:
    world = RunWorld(path=tmp_path / "state.db")
    world.submit(1, 1000, 1000)
    large, waiting = world.submit(4), world.submit(1, 995)
    before = world.store.fleet.snapshot()
    world.restart()
    assert world.store.fleet.snapshot() == before
    assert world.state(waiting) == world.state(large) == "PROVISIONING"
    assert world.state(world.submit(2, 10, 10)) == "RUNNING"


def test_a_failed_command_leaves_no_time_limit() -> None:
    """The command starts a task with a time limit and ends another one, and then fails: both changes are undone."""
    world = RunWorld()
    running = world.row(world.submit(1, 1000))
    world.submit(4)
    before = world.store.fleet.snapshot()

    def fail(tx: Any) -> None:
        params = {"taskDefinition": "g1", "tags": [{"key": LIMIT, "value": "10"}]}
        [task] = SERVICES["ecs"].operations["RunTask"](tx, params, CALLER)["tasks"]
        assert task["lastStatus"] == "PENDING"
        host_reports.report(tx, "h", [Observed(running.runs[0].attempt_id, 1, tx.now_s, tx.now_s, 0)])
        assert len(tx.store.fleet.pool("hosts:default").endings(running.instance_id)) == 1
        raise ClientException("no")

    with pytest.raises(ClientException):
        world.run(fail)
    assert world.store.fleet.snapshot() == before


def test_start_task_uses_the_gap_too() -> None:
    world = RunWorld()
    world.submit(1, 1000, 1000)
    world.submit(4)
    [instance] = world.call("ListContainerInstances", "ecs")["containerInstanceArns"]
    for limit, failures in (("10", 0), ("2000", 1)):
        tags = [{"key": LIMIT, "value": limit}]
        found = world.call("StartTask", "ecs", taskDefinition="g1", containerInstances=[instance], tags=tags)
        assert len(found["failures"]) == failures


def test_a_released_run_uses_the_gap() -> None:
    """A held run has no claim. When it is released, its claim has the time limit of the run."""
    world = RunWorld()
    world.submit(1, 1000, 1000)
    world.submit(4)
    [held] = world.launch("g1", {LIMIT: "10", "corral:hold": "true"})["tasks"]
    task_id = held["taskArn"].rpartition("/")[2]
    assert world.state(task_id) == "PROVISIONING"
    world.call("UntagResource", "ecs", resourceArn=held["taskArn"], tagKeys=["corral:hold"])
    assert world.state(task_id) == "PENDING"


# Requests that no host can hold


def test_a_request_that_no_host_can_hold_is_refused() -> None:
    world = RunWorld(2)
    world.define("large", 8)
    world.define("memory", 0, 100_000)
    for family, reason in (("large", "RESOURCE:GPU"), ("memory", "RESOURCE:MEMORY")):
        found = world.launch(family, {UNFIT: "true"}, count=2)
        assert not found["tasks"]
        assert [each["reason"] for each in found["failures"]] == [reason] * 2
    assert found["failures"][0]["detail"] == ("needs 100000 MiB; the largest host has only 4096 MiB")
    assert len(world.launch("large")["tasks"]) == len(world.launch("large", {UNFIT: "false"})["tasks"]) == 1
    assert world.launch("large", {UNFIT: "true", "corral:hold": "true"})["failures"][0]["reason"] == "RESOURCE:GPU"
    with pytest.raises(ApiError, match="corral:refuse-unfit has the value 'yes'"):
        world.launch("large", {UNFIT: "yes"})


def test_a_request_that_fits_later_waits() -> None:
    world = RunWorld(2)
    world.submit(2)
    assert len(world.launch("g2", {UNFIT: "true"})["tasks"]) == 1


def test_a_capacity_provider_can_launch_an_instance_that_holds_the_task() -> None:
    world = RunWorld(4)
    world.define("large", 8)
    world.call("CreateCluster", "ecs", clusterName="fleet")
    world.configuration("lc", GPUS_4, UserData=USER_DATA)
    world.group("g", LaunchConfigurationName="lc")
    arn = world.shown()["AutoScalingGroupARN"]
    world.call("CreateCapacityProvider", "ecs", name="gpus", autoScalingGroupProvider={"autoScalingGroupArn": arn})
    world.call(
        "PutClusterCapacityProviders", "ecs", cluster="fleet", capacityProviders=["gpus"], defaultCapacityProviderStrategy=[]
    )
    strategy = [{"capacityProvider": "gpus"}]
    found = world.launch("large", {UNFIT: "true"}, cluster="fleet", capacityProviderStrategy=strategy)
    assert len(found["tasks"]) == 1


# The schedule with time limits, compared with the schedule without them

RUNS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(5, 60), st.booleans(), st.integers(0, 20)), min_size=2, max_size=7
)  # GPUs, seconds, whether the seconds are also the time limit, seconds until the next run is submitted


def starts(runs: list[tuple[int, int, bool, int]], *, limits: bool) -> tuple[list[str], RunWorld]:
    world = RunWorld()
    ids = []
    for gpus, seconds, limited, pause_s in runs:
        ids.append(world.submit(gpus, seconds if limits and limited else None, seconds))
        world.run_for(pause_s)
    world.run_for(1000)
    return ids, world


@settings(max_examples=12, deadline=None)
@given(RUNS)
def test_the_first_run_that_waits_starts_no_later_with_time_limits(runs: list[tuple[int, int, bool, int]]) -> None:
    """Time limits are true: each run takes as long with and without them. Every run starts, and no GPU is leased twice."""
    ids, world = starts(runs, limits=True)
    other_ids, other = starts(runs, limits=False)
    waited = next(
        (at for at, task_id in enumerate(other_ids) if other.row(task_id).placed_at_s > other.row(task_id).created_at_s), None
    )
    if waited is not None:
        mine, without = world.row(ids[waited]), other.row(other_ids[waited])
        assert mine.started_at_s - mine.created_at_s <= without.started_at_s - without.created_at_s + 0.1
    held: list[tuple[float, float, str]] = []
    for task in map(world.row, ids):
        assert task.state.value == "STOPPED"
        held += [(task.placed_at_s, task.stopped_at_s, gpu_id) for gpu_id in task.runs[0].gpu_ids]
    for at, (placed_s, stopped_s, gpu_id) in enumerate(held):
        assert not any(gpu == gpu_id and began < stopped_s and placed_s < ended for began, ended, gpu in held[:at])
