"""Chooses the instance types that a compute environment launches for waiting jobs.

A demand is the number of GPUs, the CPU and the memory that one job (or one node of a multi-node job) needs. The setting
`allocationStrategy` of the environment says which type is best:

- BEST_FIT takes the type with the lowest price per job. If this machine has too few free GPUs for this type, the launch waits.
- BEST_FIT_PROGRESSIVE and SPOT_PRICE_CAPACITY_OPTIMIZED prefer types for which enough GPUs are free now, and then the lowest price
  per job.
- SPOT_CAPACITY_OPTIMIZED, and the strategies that end with ORDERED or PRIORITIZED, prefer types for which enough GPUs are free now,
  and then the order in which the user has listed the types.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from msgspec import Struct

from corral.model.task import ALL_GPUS, Demand

BEST_FIT = "BEST_FIT"
BY_ORDER = ("SPOT_CAPACITY_OPTIMIZED", "BEST_FIT_PROGRESSIVE_ORDERED", "SPOT_CAPACITY_OPTIMIZED_PRIORITIZED")
CPU_UNITS = 1024  # CPU units of a vCPU
WITHOUT_LIMIT = 1 << 30  # the number of jobs that fit on an instance if they need no GPU, no CPU and no memory
FAMILIES = {  # words in `instanceTypes` that stand for several families
    "optimal": ("m6i", "c6i", "r6i", "c7i"),
    "default_x86_64": ("m6i", "c6i", "r6i", "c7i"),
    "default_arm64": ("m6g", "c6g", "r6g", "c7g"),
}


class TypeShape(Struct, frozen=True):
    """An instance type that an environment may launch, with its size on this machine."""

    name: str
    gpus: int
    cpu_units: int
    memory_mib: int
    price: float | None = None  # US dollars for an hour; None: not known
    at: int = 0  # the index of the element of `instanceTypes` that names the type or its family

    @property
    def vcpus(self) -> int:
        return self.cpu_units // CPU_UNITS


def room(gpus: int, all_gpus: int, cpu_units: int, memory_mib: int, demand: Demand) -> int:
    """Return how many jobs with a demand fit into the free capacity of an instance. `all_gpus` counts its free and used GPUs."""
    most = WITHOUT_LIMIT
    if demand.gpus == ALL_GPUS:
        most = 1 if gpus and gpus == all_gpus else 0
    elif demand.gpus > 0:
        most = gpus // demand.gpus
    if demand.cpu_units:
        most = min(most, cpu_units // demand.cpu_units)
    if demand.memory_mib:
        most = min(most, memory_mib // demand.memory_mib)
    return max(0, most)


def room_on(type_: TypeShape, demand: Demand) -> int:
    """Return how many jobs with a demand fit on an empty instance of a type."""
    return room(type_.gpus, type_.gpus, type_.cpu_units, type_.memory_mib, demand)


def kinds_of(demand: Demand) -> tuple[tuple[Demand, int], ...]:
    """Return the demand of each kind of node of a job, and the number of such nodes. The largest kind is the first."""
    if not demand.nodes:
        return ((demand, 1),)
    return tuple(sorted(demand.nodes, key=lambda kind: (kind[0].gpus, kind[0].memory_mib, kind[0].cpu_units), reverse=True))


def fits_on(types: Sequence[TypeShape], demand: Demand) -> bool:
    """Whether each node of a job fits on an empty instance of one of the types."""
    return all(any(room_on(each, node) for each in types) for node, _ in kinds_of(demand))


def choose_type(
    types: Sequence[TypeShape], demand: Demand, jobs: int, strategy: str, *, vcpus_max: int, gpus_now: int
) -> TypeShape | None:
    """Return the best type for waiting jobs with equal demands. Return None if no type within `vcpus_max` has room for a job.

    `vcpus_max` is how many vCPUs the environment may still add. `gpus_now` is how many GPUs a launch could get from this machine
    without a wait.
    """
    fitting = [(room_on(each, demand), each) for each in types if each.vcpus <= vcpus_max]
    fitting = [(most, each) for most, each in fitting if most]
    if not fitting:
        return None

    def key(option: tuple[int, TypeShape]) -> tuple[float, ...]:
        most, each = option
        served = min(most, jobs)
        price = (each.price if each.price is not None else inf) / served
        waits = each.gpus > gpus_now
        # If the prices are equal or not known, a job without GPUs gets a type with GPUs only as the last choice, because GPUs are
        # scarce.
        unused_gpus = each.gpus if not demand.gpus else 0
        size = (unused_gpus, -served, each.gpus, each.cpu_units, each.memory_mib)
        if strategy == BEST_FIT:
            return (price, waits, *size, each.at)
        if strategy in BY_ORDER:
            return (waits, each.at, *size, price)
        return (waits, price, *size, each.at)

    return min(fitting, key=key)[1]
