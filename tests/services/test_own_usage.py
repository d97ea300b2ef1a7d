"""DescribeUsage on a virtual clock: hours, days, shares and limits of several owners."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.decide.shares import decay_of
from corral.fleet import instances
from corral.fleet.instances import InstanceRequest
from corral.model.instance import ec2_id
from corral.model.run import Observed
from corral.model.settings import UsageSettings
from corral.services.ecs import host_reports
from corral.store.owner_use import HOUR_S
from services.test_own_answers import World
from virtual_clock.group_world import CALLER

DAY_S = 24 * HOUR_S


def usage(world: World, **params: Any) -> dict[str, Any]:
    return {each["owner"]: each for each in world.own("DescribeUsage", **params)["owners"]}


def end(world: World, task_id: str) -> None:
    task = world.store.tasks.get(task_id)
    assert task is not None
    host_id = world.store.instances.host_of(str(task.instance_id))
    seen = [Observed(run.id, pid=1, stopped_at_s=world.clock.now_s(), exit_code=0) for run in task.runs]
    world.run(lambda tx: host_reports.report(tx, host_id, seen))


def test_hours_by_day_with_shares_and_a_filter() -> None:
    world = World()
    begin_s = (world.clock.now_s() // DAY_S + 1) * DAY_S
    world.clock.advance(begin_s - HOUR_S - world.clock.now_s())
    [long] = world.run_gpus(2)
    world.clock.advance(3 * HOUR_S)
    world.store.idle_holders.add_idle("root", HOUR_S, world.clock.now_s() - 1)
    found = usage(world)["root"]
    assert found["gpuHours"] == pytest.approx(6.0) and found["share"] == 1.0 and found["gpus"] == 2.0 and found["weight"] == 1.0
    assert found["idleGpuHours"] == pytest.approx(1.0) and 5.9 < found["decayedGpuHours"] < 6.0
    assert [round(each["gpuHours"], 6) for each in found["days"]] == [2.0, 4.0]
    assert [round(each["gpuHours"], 6) for each in usage(world, utcOffset=3600)["root"]["days"]] == [6.0]
    assert usage(world, last=3600)["root"]["gpuHours"] == pytest.approx(2.0)
    assert usage(world, since=int(begin_s))["root"]["gpuHours"] == pytest.approx(4.0)
    assert usage(world, owner="user/ann") == {}
    end(world, long)
    world.clock.advance(HOUR_S)
    found = usage(world)["root"]
    assert found["gpuHours"] == pytest.approx(6.0, abs=0.01) and found["gpus"] == 0.0
    with pytest.raises(ApiError, match="utcOffset 90000 is not valid"):
        world.own("DescribeUsage", utcOffset=90_000)


def test_gpus_of_an_instance_count_for_its_owner_once() -> None:
    world = World()
    size = {"cluster": "", "type": "t", "gpus": 2, "cpu_units": 1024, "memory_mib": 1024}
    request = InstanceRequest(owner="user/ann", region=CALLER.region, details={}, **size)
    instance = world.run(lambda tx: instances.launch(tx, request))
    world.clock.advance(HOUR_S)
    assert usage(world)["user/ann"]["gpuHours"] == pytest.approx(2.0)
    assert usage(world)["user/ann"]["gpus"] == 2.0
    world.run(lambda tx: instances.terminate(tx, instance, "a test ends it"))
    world.settle()
    world.clock.advance(HOUR_S)
    assert usage(world)["user/ann"]["gpus"] == 0.0 and usage(world)["user/ann"]["gpuHours"] == pytest.approx(2.0, abs=0.01)


def test_limits_of_gpu_hours_are_shown_with_what_counts() -> None:
    world = World()
    world.own("SetLimits", subject="root", limits={"gpuHoursPerWeek": 10.0})
    world.run_gpus(1)
    world.clock.advance(2 * HOUR_S)
    [limit] = usage(world)["root"]["limits"]
    assert (limit["subject"], limit["gpuHoursPerWeek"]) == ("root", 10.0) and limit["usedGpuHours"] == pytest.approx(2.0)
    world.clock.advance(3 * DAY_S)
    assert usage(world, last=3600)["root"]["limits"][0]["usedGpuHours"] == pytest.approx(74.0)


def test_decayed_use_follows_the_half_life() -> None:
    world = World(half_life_s=HOUR_S)
    world.store.owner_uses.decay_s = decay_of(HOUR_S)  # as the server does at its start
    [task] = world.run_gpus(2)
    world.clock.advance(HOUR_S)
    end(world, task)
    before = usage(world)["root"]["decayedGpuHours"]
    assert 1.0 < before < 2.0
    world.clock.advance(2 * HOUR_S)
    found = usage(world)["root"]
    assert found["decayedGpuHours"] == pytest.approx(before / 4, rel=0.01) and found["gpuHours"] == pytest.approx(2.0, abs=0.01)


def test_status_has_tasks_and_instances_whose_gpus_do_nothing() -> None:
    world = World(usage=UsageSettings(idle_after_s=60.0))
    [member] = world.run_gpus(1, array="m 3 1 0", name="sweep")
    size = {"cluster": "", "type": "t", "gpus": 2, "cpu_units": 1024, "memory_mib": 1024}
    request = InstanceRequest(owner="user/ann", region=CALLER.region, details={}, **size)
    instance = world.run(lambda tx: instances.launch(tx, request))
    for holder in (member, instance.id, "gone"):
        world.store.idle_holders.add_sample("GPU", holder, 0.0, world.clock.now_s())
    world.clock.advance(59.0)
    assert world.own("GetStatus")["idle"] == []
    world.clock.advance(1.0)
    idle = {each["owner"]: each for each in world.own("GetStatus")["idle"]}
    assert idle.keys() == {"root", "user/ann"}
    assert (idle["root"]["task"], idle["root"]["taskName"], idle["root"]["arrayIndex"], idle["root"]["gpus"]) == (
        member,
        "sweep",
        3,
        1.0,
    )
    assert (idle["user/ann"]["instance"], idle["user/ann"]["gpus"]) == (ec2_id(instance.id), 2.0)
    world.run(lambda tx: instances.terminate(tx, instance, "a test ends it"))
    world.settle()
    assert [each["owner"] for each in world.own("GetStatus")["idle"]] == ["root"]
    never = World(usage=UsageSettings(idle_after_s=0.0))
    never.store.idle_holders.add_sample("GPU", never.run_gpus(1)[0], 0.0, 0.0)
    assert never.own("GetStatus")["idle"] == []
