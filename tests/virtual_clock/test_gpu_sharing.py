"""Tasks that share a GPU, on a virtual clock: a core whose host starts tasks and ends them, with rows, rollbacks and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.errors import ApiError
from corral.fleet import hosts
from corral.operations.services import SERVICES
from corral.services.ecs.errors import ClientException
from corral.services.ecs.run_spec import start_order
from corral.services.ecs.task_spec import spec_of
from virtual_clock.group_world import CALLER, GPUS_1
from virtual_clock.test_backfill import LIMIT, UNFIT, RunWorld

GPU_MIB = 16_000  # the memory of each GPU of the host


def shares(memory_mib: int, **limits: int) -> list[dict[str, Any]]:
    return [{"type": "GPU", "sharingStrategy": {"nvidiaMps": {"memory": memory_mib, **limits}}}]


class SharingWorld(RunWorld):
    """The families s4, s6, s10 and s16 share a GPU, with that many thousand MiB of it. The families g1, g2 ... get whole GPUs."""

    def __init__(self, gpus: int = 2, path: Path | None = None) -> None:
        super().__init__(gpus, path)
        for thousands in (4, 6, 10, 16):
            self.register(f"s{thousands}", shares(thousands * 1000))

    def register(self, family: str, *needs: list[dict[str, Any]], **more: Any) -> None:
        containers = [
            {
                "name": f"c{at}",
                "image": "corral/host",
                "command": ["true"],
                "memory": 6,
                "resourceRequirements": each,
                "stopTimeout": 2,
            }
            for at, each in enumerate(needs)
        ]
        self.call("RegisterTaskDefinition", "ecs", family=family, containerDefinitions=containers, **more)

    def share(self, thousands: int, limit_s: float | None = None, lasts_s: float = 1e9) -> str:
        """Run a task that shares a GPU, and return its id."""
        [task] = self.launch(f"s{thousands}", {} if limit_s is None else {LIMIT: str(limit_s)})["tasks"]
        task_id = str(task["taskArn"].rpartition("/")[2])
        self.lasts_s[task_id] = lasts_s
        self.follow()
        return task_id

    def end(self, *task_ids: str) -> None:
        for task_id in task_ids:
            self.lasts_s[task_id] = 0.0
        self.follow()

    def gpu(self, task_id: str) -> str:
        [gpu_id] = self.row(task_id).runs[0].gpu_ids
        return str(gpu_id).rpartition("-")[2]

    def devices(self) -> list[tuple[str, int, int]]:
        """(mode, memory that is left, containers) of each GPU, as DescribeContainerInstances shows it."""
        [arn] = self.call("ListContainerInstances", "ecs")["containerInstanceArns"]
        [shown] = self.call("DescribeContainerInstances", "ecs", containerInstances=[arn])["containerInstances"]
        assert all(gpu["totalMemoryInMiB"] == GPU_MIB for gpu in shown["gpuDevices"])
        [free] = [each["stringSetValue"] for each in shown["remainingResources"] if each["name"] == "GPU"]
        assert free == [gpu["gpuId"] for gpu in shown["gpuDevices"] if gpu["sharingMode"] == "IDLE"]
        return [(gpu["sharingMode"], gpu["remainingMemoryInMiB"], gpu["containerCount"]) for gpu in shown["gpuDevices"]]


IDLE, DEDICATED = ("IDLE", GPU_MIB, 0), ("DEDICATED", 0, 1)


def test_tasks_fill_a_shared_gpu_before_they_take_an_idle_one() -> None:
    world = SharingWorld()
    first, second, third, fourth = world.share(6), world.share(6), world.share(10), world.share(4)
    assert [world.gpu(each) for each in (first, second, third, fourth)] == ["0", "0", "1", "0"]
    assert world.devices() == [("NVIDIA_MPS", 0, 3), ("NVIDIA_MPS", 6000, 1)]
    assert world.gpu(world.share(4)) == "1"
    waiting = world.share(4)
    assert world.state(waiting) == "PROVISIONING"
    assert world.reason(waiting).startswith(
        "no GPU has more than 2000 MiB of memory left to share; 0 of 2 GPUs free on 1 host; needs 4000"
    )
    world.end(third)
    assert world.gpu(waiting) == "1"


def test_a_gpu_is_shared_or_dedicated_and_idle_when_its_last_task_has_ended() -> None:
    world = SharingWorld(1)
    first, second = world.share(6), world.share(6)
    whole = world.submit(1)
    late = world.share(4)
    assert [world.state(each) for each in (whole, late)] == ["PROVISIONING"] * 2, "the older task waits for the whole GPU"
    assert "reserved for g1" in world.reason(late)
    world.end(first)
    assert (world.state(whole), world.devices()) == ("PROVISIONING", [("NVIDIA_MPS", 10_000, 1)])
    world.end(second)
    assert (world.state(whole), world.devices()) == ("RUNNING", [DEDICATED])
    assert "held by task" in world.reason(late)
    world.end(whole)
    assert (world.state(late), world.devices()) == ("RUNNING", [("NVIDIA_MPS", 12_000, 1)])
    world.end(late)
    assert world.devices() == [IDLE]


def test_time_limits_let_a_short_task_share_a_reserved_gpu() -> None:
    world = SharingWorld(1)
    world.share(6, 3600, 3600)
    large = world.submit(1)
    assert world.reason(large).endswith("; expected start in about 1h")
    assert world.state(world.share(6, 7200)) == "PROVISIONING"
    assert world.state(world.share(4, 60, 60)) == "RUNNING"
    world.run_for(3700)
    assert world.state(large) == "RUNNING"


def test_the_containers_of_a_task_share_the_same_gpu_and_know_their_limits() -> None:
    world = SharingWorld()
    world.register("pair", shares(4000, maxComputePercent=25), shares(5000), [])
    first = world.share(10)
    [described] = world.launch("pair")["tasks"]
    task_id = described["taskArn"].rpartition("/")[2]
    assert [each.get("gpuIds") for each in described["containers"]] == [["GPU-h-1"], ["GPU-h-1"], None], "7000 MiB are not enough"
    strategies = [each.get("gpuSharingStrategy") for each in described["containers"]]
    assert strategies == [{"nvidiaMps": {"memory": 4000, "maxComputePercent": 25}}, {"nvidiaMps": {"memory": 5000}}, None]
    assert world.devices() == [("NVIDIA_MPS", 6000, 1), ("NVIDIA_MPS", 7000, 2)]

    def environment(tx: Any) -> list[dict[str, str]]:
        task = tx.store.tasks.get(task_id)
        orders = [start_order(tx, task, run, spec_of(tx, task)) for run in task.runs]
        return [{name: text for name, text in each.spec.environment.items() if "_MPS_" in name} for each in orders]

    assert world.run(environment) == [
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4000M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=5000M"},
        {},
    ]
    world.end(first)
    assert world.devices()[0] == IDLE


MIXED = [{"type": "GPU", "value": "1"}]


@pytest.mark.parametrize(
    ("needs", "says"),
    [
        ([[{**shares(1)[0], "value": "1"}]], "either value or sharingStrategy, not both"),
        ([[{"type": "GPU", "sharingStrategy": {}}]], "must have the member nvidiaMps"),
        ([shares(0)], "must be from 1 to 2147483647 MiB, not 0"),
        ([shares(1, maxComputePercent=101)], "must be from 1 to 100, not 101"),
        ([[{**shares(1)[0], "type": "NeuronDevice"}]], "requires the type GPU"),
        ([shares(1) + shares(1)], "at most one GPU resource requirement"),
        ([shares(1), MIXED], "must all use value, or must all use sharingStrategy"),
        ([shares(2**31 - 1), shares(1)], "at most 2147483647 MiB of a GPU together"),
    ],
)
def test_requirements_that_are_refused(needs: list[list[dict[str, Any]]], says: str) -> None:
    world = SharingWorld()
    with pytest.raises(ClientException, match=says):
        world.register("wrong", *needs)


def test_an_override_can_share_a_gpu_but_not_mix_both_kinds() -> None:
    world = SharingWorld()
    override = {"containerOverrides": [{"name": "c", "resourceRequirements": shares(6000)}]}
    [task] = world.launch("g2", overrides=override)["tasks"]
    assert world.devices() == [("NVIDIA_MPS", 10_000, 1), IDLE]
    assert task["containers"][0]["gpuSharingStrategy"] == {"nvidiaMps": {"memory": 6000}}
    world.register("pair", shares(1000), shares(1000))
    with pytest.raises(ClientException, match="must all use value, or must all use sharingStrategy"):
        world.launch("pair", overrides={"containerOverrides": [{"name": "c0", "resourceRequirements": MIXED}]})
    with pytest.raises(ClientException, match="cannot use sharingStrategy"):
        world.register("outside", shares(1000), requiresCompatibilities=["EXTERNAL"])
    shown = world.call("DescribeTaskDefinition", "ecs", taskDefinition="pair")["taskDefinition"]
    assert shown["compatibilities"] == ["EC2"]


def test_a_task_that_no_gpu_could_hold_is_refused() -> None:
    world = SharingWorld()
    world.register("huge", shares(GPU_MIB + 1))
    failed = world.launch("huge", {UNFIT: "true"})
    assert [each["reason"] for each in failed["failures"]] == ["RESOURCE:GPU"]
    assert failed["failures"][0]["detail"].endswith("the largest host has only 16000 MiB on its largest GPU")
    failed = world.launch("s16", {}, launchType="EC2", count=3)
    assert (len(failed["tasks"]), [each["reason"] for each in failed["failures"]]) == (2, ["RESOURCE:GPU"])


def test_a_failed_request_and_a_restart_leave_the_memory_as_it_was(tmp_path: Path) -> None:
    world = SharingWorld(2, tmp_path / "state.db")
    first = world.share(10)
    before = world.store.fleet.snapshot()

    def fails(tx: Any) -> None:
        SERVICES["ecs"].operations["RunTask"](tx, {"taskDefinition": "s6", "count": 3}, CALLER)
        assert tx.store.fleet.pool("hosts:default").free_gpus == 0
        raise ClientException("the request is rolled back")

    with pytest.raises(ApiError, match="rolled back"):
        world.run(fails)
    assert world.store.fleet.snapshot() == before
    second, waiting = world.share(6), world.submit(2)
    world.restart()
    assert world.devices() == [("NVIDIA_MPS", 0, 2), IDLE]
    world.end(first)
    assert world.devices() == [("NVIDIA_MPS", 10_000, 1), IDLE]
    world.end(second)
    world.restart()
    assert (world.state(waiting), world.devices()) == ("RUNNING", [DEDICATED, DEDICATED])


def test_an_instance_does_not_get_a_gpu_that_tasks_share() -> None:
    world = SharingWorld()
    shared, whole = world.share(4), world.submit(1)
    launch = {"ImageId": "ami-00000000000000000", "InstanceType": GPUS_1, "MinCount": 1, "MaxCount": 1}
    with pytest.raises(ApiError, match="0 of 2 GPUs free"):
        world.call("RunInstances", "ec2", **launch)
    world.end(shared)
    world.call("RunInstances", "ec2", **launch)
    assert world.devices() == [DEDICATED], "the host has given the other GPU to the instance"
    world.end(whole)
    assert world.gpu(world.share(4)) == "1"


def test_a_gpu_that_fails_or_is_held_gets_no_further_task() -> None:
    world = SharingWorld()
    first = world.share(4)
    world.run(lambda tx: hosts.gpus_failed(tx, "h", {"GPU-h-0": "Xid 79"}))
    assert world.gpu(world.share(4)) == "1"
    world.run(lambda tx: hosts.gpus_failed(tx, "h", {}))
    assert world.gpu(world.share(4)) == "0", "of two GPUs with equal memory left, the first"
    world.run(lambda tx: hosts.gpus_in_use(tx, "h", {"GPU-h-0": [(7, "blender")]}))
    assert world.gpu(world.share(10)) == "1"
    world.end(first)
    world.run(lambda tx: hosts.gpus_in_use(tx, "h", {"GPU-h-0": []}))
    assert world.devices() == [("NVIDIA_MPS", 12_000, 1), ("NVIDIA_MPS", 2000, 2)]


RUNS = st.lists(
    st.tuples(st.sampled_from(("g1", "g2", "s4", "s6", "s10", "s16")), st.integers(5, 60), st.booleans(), st.integers(0, 20)),
    min_size=2,
    max_size=9,
)  # family, seconds, whether the seconds are also the time limit, seconds until the next run is submitted


@settings(max_examples=15, deadline=None)
@given(RUNS)
def test_every_run_starts_and_no_gpu_is_given_twice(runs: list[tuple[str, int, bool, int]]) -> None:
    world, ids = SharingWorld(2), []
    for family, seconds, limited, pause_s in runs:
        [task] = world.launch(family, {LIMIT: str(seconds)} if limited else {})["tasks"]
        ids.append(str(task["taskArn"].rpartition("/")[2]))
        world.lasts_s[ids[-1]] = seconds
        world.run_for(pause_s)
    world.run_for(2000)
    assert world.devices() == [IDLE, IDLE]
    tasks = [world.row(task_id) for task_id in ids]
    assert all(task.state.value == "STOPPED" and task.started_at_s is not None for task in tasks)
    for at_s in {task.placed_at_s for task in tasks}:
        there = [task for task in tasks if task.placed_at_s <= at_s < task.stopped_at_s]
        for gpu_id in ("GPU-h-0", "GPU-h-1"):
            memory = [task.runs[0].gpu_memory_mib for task in there if gpu_id in task.runs[0].gpu_ids]
            assert len(memory) <= 1 or (all(memory) and sum(memory) <= GPU_MIB)
