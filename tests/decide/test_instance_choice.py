"""Which instance type a compute environment launches for waiting jobs."""

from __future__ import annotations

from corral.decide.scaling.instance_choice import TypeShape, choose_type, room_on
from corral.model.task import ALL_GPUS, Demand

GIB = 1024
SMALL = TypeShape("p3.2xlarge", 1, 8 * 1024, 61 * GIB, 3.06)
MIDDLE = TypeShape("p3.8xlarge", 4, 32 * 1024, 244 * GIB, 12.24)
LARGE = TypeShape("p3.16xlarge", 8, 64 * 1024, 488 * GIB, 24.48)
CPU = TypeShape("c5.xlarge", 0, 4 * 1024, 8 * GIB, 0.17, 1)
TYPES = [LARGE, MIDDLE, SMALL, CPU]


def chosen(demand: Demand, jobs: int = 1, strategy: str = "BEST_FIT", most: int = 256, now: int = 8) -> str | None:
    found = choose_type(TYPES, demand, jobs, strategy, vcpus_max=most, gpus_now=now)
    return found.name if found is not None else None


def test_the_cheapest_type_that_fits() -> None:
    assert chosen(Demand(gpus=1)) == "p3.2xlarge"
    assert chosen(Demand(gpus=3)) == "p3.8xlarge"
    assert chosen(Demand(gpus=5)) == "p3.16xlarge"
    assert chosen(Demand(cpu_units=1024, memory_mib=GIB)) == "c5.xlarge"
    assert chosen(Demand(cpu_units=1024, memory_mib=20 * GIB)) == "p3.2xlarge"


def test_nothing_fits() -> None:
    assert chosen(Demand(gpus=9)) is None
    assert chosen(Demand(gpus=1), most=4) is None


def test_equal_jobs_share_one_instance_if_it_costs_no_more() -> None:
    assert chosen(Demand(gpus=1), jobs=8) == "p3.16xlarge"
    assert chosen(Demand(gpus=1), jobs=5) == "p3.8xlarge"
    assert chosen(Demand(gpus=1), jobs=8, most=40) == "p3.8xlarge"


def test_progressive_strategies_prefer_what_can_start_now() -> None:
    assert chosen(Demand(gpus=1), jobs=8, now=2) == "p3.2xlarge", "the price is equal, and this one can start"
    assert chosen(Demand(gpus=1), jobs=8, strategy="BEST_FIT_PROGRESSIVE", now=5) == "p3.8xlarge"
    cheap = TypeShape("cheap", 4, 1024, GIB, 0.1)
    for strategy, expected in (("BEST_FIT", "cheap"), ("BEST_FIT_PROGRESSIVE", "p3.2xlarge")):
        found = choose_type([cheap, SMALL], Demand(gpus=1), 1, strategy, vcpus_max=99, gpus_now=1)
        assert found is not None and found.name == expected


def test_order_of_the_environment() -> None:
    first, second = TypeShape("m5.large", 0, 2048, 8 * GIB, 9.0, 0), TypeShape("m4.large", 0, 2048, 8 * GIB, 1.0, 1)
    for strategy, expected in (("SPOT_CAPACITY_OPTIMIZED", first), ("SPOT_PRICE_CAPACITY_OPTIMIZED", second)):
        assert choose_type([second, first], Demand(cpu_units=1), 1, strategy, vcpus_max=99, gpus_now=0) == expected


def test_types_without_a_price_are_last() -> None:
    unknown = TypeShape("own.gpu", 1, 8 * 1024, 61 * GIB)
    assert choose_type([unknown, SMALL], Demand(gpus=1), 1, "BEST_FIT", vcpus_max=99, gpus_now=8) == SMALL
    assert choose_type([unknown], Demand(gpus=1), 1, "BEST_FIT", vcpus_max=99, gpus_now=8) == unknown


def test_room() -> None:
    assert room_on(MIDDLE, Demand(gpus=1, cpu_units=1024)) == 4
    assert room_on(MIDDLE, Demand(gpus=1, memory_mib=200 * GIB)) == 1
    assert room_on(MIDDLE, Demand(gpus=ALL_GPUS)) == 1
    assert room_on(CPU, Demand(gpus=ALL_GPUS)) == 0
