"""How many instances a compute environment launches for its waiting jobs, and which idle instances it ends."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from corral.decide.scaling.environment_scaling import (
    EnvironmentSize,
    FreeShape,
    IdleInstance,
    JobLine,
    ScalingPlan,
    plan_scale_in,
    plan_scaling,
)
from corral.decide.scaling.instance_choice import TypeShape, room_on
from corral.model.task import Demand

GIB = 1024
ONE = TypeShape("g5.xlarge", 1, 4 * 1024, 16 * GIB, 1.0)
FOUR = TypeShape("g5.12xlarge", 4, 48 * 1024, 192 * GIB, 5.7)
CPU = TypeShape("c5.xlarge", 0, 4 * 1024, 8 * GIB, 0.17)
GPU = Demand(gpus=1, cpu_units=1024, memory_mib=GIB)


def nodes_of(demand: Demand, nodes: int) -> Demand:
    """The demand of a job with equal nodes."""
    return replace(demand, nodes=((demand, nodes),)) if nodes > 1 else demand


def plan(
    *lines: tuple[Demand, int] | tuple[Demand, int, int], shapes: list[FreeShape] | None = None,
    types: list[TypeShape] | None = None, strategy: str = "BEST_FIT", least: int = 0, most: int = 1000, **size: Any,
) -> ScalingPlan:  # fmt: skip
    waiting = [JobLine(str(at), nodes_of(each[0], each[2]) if len(each) > 2 else each[0], each[1]) for at, each in enumerate(lines)]
    return plan_scaling(waiting, shapes or [], types or [ONE], EnvironmentSize(least, most, **{"present": 0, **size}), strategy)


def free(type_: TypeShape, count: int = 1, **more: Any) -> FreeShape:
    return FreeShape(type_.gpus, type_.cpu_units, type_.memory_mib, type_.gpus, count, type_.name, **more)


def test_one_instance_for_each_job() -> None:
    found = plan((GPU, 3))
    assert (found.launches, found.left, found.is_full) == ({"g5.xlarge": 3}, {}, False)


def test_small_jobs_share_an_instance() -> None:
    assert plan((Demand(cpu_units=1024, memory_mib=GIB), 9), types=[CPU]).launches == {"c5.xlarge": 3}


def test_different_lines_share_instances() -> None:
    half, quarter = Demand(cpu_units=2048), Demand(cpu_units=1024)
    assert plan((half, 1), (quarter, 2), types=[CPU]).launches == {"c5.xlarge": 1}


def test_free_and_starting_instances_are_used_first() -> None:
    found = plan((GPU, 3), shapes=[free(ONE, 2), free(ONE, 2, is_starting=True)], present=16)
    assert (found.launches, found.used) == ({}, (2, 1))
    assert plan((GPU, 5), shapes=[free(ONE, 2)], present=8).launches == {"g5.xlarge": 3}


def test_the_maximum() -> None:
    found = plan((GPU, 5), most=11)
    assert (found.launches, found.left, found.is_full) == ({"g5.xlarge": 2}, {"0": 3}, True)
    assert plan((GPU, 5), most=11, present=8).launches == {}


def test_an_empty_environment_may_exceed_a_small_maximum_by_one_instance() -> None:
    assert plan((GPU, 5), most=3).launches == {}
    assert plan((GPU, 5), most=3, strategy="BEST_FIT_PROGRESSIVE").launches == {"g5.xlarge": 1}
    assert plan((GPU, 5), most=3, present=4, strategy="BEST_FIT_PROGRESSIVE").launches == {}


def test_the_gpus_of_the_machine() -> None:
    assert plan((GPU, 100), gpus_left=8).launches == {"g5.xlarge": 8}
    assert plan((GPU, 100), gpus_left=8, gpus_now=2, strategy="BEST_FIT_PROGRESSIVE").launches == {"g5.xlarge": 8}
    found = plan((GPU, 1), (Demand(cpu_units=1024), 1), types=[ONE, CPU], gpus_left=0)
    assert (found.launches, found.left) == ({"c5.xlarge": 1}, {"0": 1})


def test_a_job_that_fits_on_no_type() -> None:
    found = plan((Demand(gpus=2), 3), (GPU, 1))
    assert (found.launches, found.left, found.unfit, found.is_full) == ({"g5.xlarge": 1}, {"0": 3}, (Demand(gpus=2),), False)


def test_multi_node_jobs_start_with_all_nodes_or_not_at_all() -> None:
    assert plan((GPU, 2, 3), most=1000).launches == {"g5.xlarge": 6}
    found = plan((GPU, 2, 3), most=20)  # room for five nodes
    assert (found.launches, found.left) == ({"g5.xlarge": 3}, {"0": 1})
    found = plan((GPU, 1, 6), (GPU, 1), most=20)
    assert (found.launches, found.left) == ({"g5.xlarge": 1}, {"0": 1}), "the capacity goes to the next line"


def test_nodes_share_an_instance() -> None:
    assert plan((GPU, 1, 4), types=[FOUR]).launches == {"g5.12xlarge": 1}


def test_the_nodes_of_a_job_can_be_of_several_kinds() -> None:
    """Each job has a large node without GPUs and two nodes with a GPU. Only whole jobs start."""
    large = Demand(cpu_units=4 * 1024, memory_mib=4 * GIB)
    job = replace(GPU, nodes=((large, 1), (GPU, 2)))
    assert plan((job, 2), types=[ONE, CPU], most=1000).launches == {"g5.xlarge": 4, "c5.xlarge": 2}
    found = plan((job, 10), types=[ONE, CPU], most=40)
    assert (found.launches, found.left) == ({"g5.xlarge": 6, "c5.xlarge": 3}, {"0": 7})
    assert plan((job, 1), types=[ONE, CPU], gpus_left=1).launches == {}


def test_jobs_need_room_only_if_they_could_start_without_other_instances() -> None:
    busy = [free(ONE, 2, is_empty=False)]
    four = replace(GPU, gpus=4)
    assert plan((four, 1), types=[ONE, FOUR], shapes=busy, present=8, most=50, gpus=2, gpus_left=2).needs_room
    assert not plan((four, 1), types=[ONE, FOUR], shapes=busy, present=8, most=40, gpus=2, gpus_left=2).needs_room
    assert not plan((four, 1), types=[ONE, FOUR], shapes=busy, present=8, most=50, gpus=2, gpus_left=1).needs_room


def test_the_minimum_and_the_asked_size() -> None:
    assert plan(least=12).launches == {"g5.xlarge": 3}
    assert plan((GPU, 2), least=12).launches == {"g5.xlarge": 3}, "the jobs use the instances of the minimum"
    assert plan(least=4, asked=12, present=4).launches == {"g5.xlarge": 2}
    assert plan(least=4, asked=12, is_enabled=False).launches == {}, "a disabled environment does not scale out"
    assert plan(least=50, types=[ONE, FOUR], present=0).launches == {"g5.12xlarge": 1, "g5.xlarge": 1}


def test_a_disabled_environment_launches_nothing_for_jobs() -> None:
    assert plan((GPU, 3), is_enabled=False).launches == {}


def test_plans_need_no_more_than_the_jobs() -> None:
    """For random lines and environments: limits hold, no launch is without a job, and a second plan launches nothing."""
    for seed in range(200):
        chance = random.Random(seed)
        types = chance.sample([ONE, FOUR, CPU], chance.randint(1, 3))
        lines = [
            (
                Demand(chance.randint(0, 3), chance.choice([256, 1024, 4096]), GIB),
                chance.randint(1, 30),
                chance.choice([1, 1, 2, 5]),
            )
            for _ in range(chance.randint(1, 4))
        ]
        strategy = chance.choice(["BEST_FIT", "BEST_FIT_PROGRESSIVE", "SPOT_CAPACITY_OPTIMIZED"])
        most, gpus = chance.choice([48, 100, 1000]), chance.choice([0, 4, 16])
        found = plan(*lines, types=types, strategy=strategy, most=most, gpus_left=gpus)
        by_name = {each.name: each for each in types}
        vcpus = sum(by_name[name].vcpus * count for name, count in found.launches.items())
        assert vcpus <= most, seed
        assert sum(by_name[name].gpus * count for name, count in found.launches.items()) <= gpus, seed
        served = sum((count - found.left.get(str(at), 0)) * nodes for at, (_, count, nodes) in enumerate(lines))
        assert sum(found.launches.values()) <= served, seed
        for at, (demand, count, _) in enumerate(lines):
            if not any(room_on(each, demand) for each in types):
                assert found.left[str(at)] == count and demand in found.unfit
        again = plan(
            *lines, types=types, strategy=strategy, most=most, present=vcpus, gpus_left=0,
            shapes=[free(by_name[name], count, is_starting=True) for name, count in found.launches.items()],
        )  # fmt: skip
        if gpus == 0 or all(nodes == 1 for _, _, nodes in lines):
            assert sum(again.used) == sum(found.launches.values()), seed


# Scale-in

SIZE = EnvironmentSize(min_vcpus=4, max_vcpus=100, present=12)


def idle(*since: float) -> list[IdleInstance]:
    return [IdleInstance(f"i{at}", 4, each) for at, each in enumerate(since)]


def test_idle_instances_end_after_the_delay() -> None:
    assert plan_scale_in(idle(0.0, 30.0), SIZE, 60.0, 59.0, limit=4).terminate == ()
    assert plan_scale_in(idle(0.0, 30.0), SIZE, 60.0, 59.0, limit=4).again_s == 60.0
    found = plan_scale_in(idle(0.0, 30.0), SIZE, 60.0, 60.0, limit=4)
    assert (found.terminate, found.again_s) == (("i0",), 90.0)


def test_the_minimum_stays() -> None:
    found = plan_scale_in(idle(0.0, 1.0, 2.0), SIZE, 60.0, 100.0, limit=4)
    assert (found.terminate, found.again_s) == (("i0", "i1"), None)


def test_a_limited_number_ends_at_once() -> None:
    found = plan_scale_in(idle(0.0, 1.0), SIZE, 60.0, 100.0, limit=1)
    assert (found.terminate, found.again_s) == (("i0",), 100.0)
