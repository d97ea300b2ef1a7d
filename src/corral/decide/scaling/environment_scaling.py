"""Decides how many instances a compute environment launches for its waiting jobs, and which idle instances it terminates.

A demand is the number of GPUs, the CPU and the memory that a job needs. A multi-node job starts only when there is room for all its
nodes. Its nodes can have different demands, and several nodes can run on one instance. A shape is a set of instances with equal
free capacity. The time that a decision takes depends on the number of lines and shapes, and not on the number of jobs and
instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from corral.decide.scaling.instance_choice import (
    BEST_FIT,
    CPU_UNITS,
    WITHOUT_LIMIT,
    TypeShape,
    choose_type,
    kinds_of,
    room,
    room_on,
)
from corral.model.task import ALL_GPUS, Demand

CHOICES_MAX = 1_000  # a decision chooses an instance type at most this many times


class JobLine(Struct, frozen=True):
    """A line of waiting jobs, or those of its jobs for which the environment should have room."""

    id: str
    demand: Demand  # of one job
    count: int  # the number of jobs


class FreeShape(Struct, frozen=True):
    """Equal instances with equal free capacity. An instance that starts has the capacity of its type."""

    gpus: int
    cpu_units: int
    memory_mib: int
    all_gpus: int  # the GPUs that each of the instances has
    count: int = 1
    type: str = ""
    is_empty: bool = True  # no task is on these instances
    is_starting: bool = False


class EnvironmentSize(Struct, frozen=True):
    """The limits of an environment and its present size, in vCPUs."""

    min_vcpus: int
    max_vcpus: int
    present: int  # the vCPUs of the instances that run or start
    gpus: int = 0  # the GPUs of the instances that run or start
    gpus_left: int = WITHOUT_LIMIT  # how many GPUs the hosts could give to further instances of the environment
    gpus_now: int = WITHOUT_LIMIT  # how many of these GPUs are free now
    asked: int = 0  # the desiredvCpus that a user has set; the environment grows to this size once, and may scale in later
    is_enabled: bool = True  # as on AWS, a disabled environment launches nothing, and scales in to its minimum


class ScalingPlan(Struct, frozen=True):
    launches: Mapping[str, int]  # type → the number of instances to launch
    left: Mapping[str, int]  # id of a line → the number of jobs for which there is no room, even after the launches
    unfit: tuple[Demand, ...]  # the demands that fit on no instance type of the environment
    is_full: bool  # some jobs fit on an instance type, but a limit of the environment or of the hosts forbids a launch
    needs_room: bool  # some of these jobs could start if other instances of the environment were terminated
    used: tuple[int, ...]  # for each given shape: how many of its instances the waiting jobs will use


class _Bin:
    """Instances with equal free capacity. `origin` is the index of the shape from which they come, or None for new instances."""

    __slots__ = ("all_gpus", "count", "cpu_units", "gpus", "is_used", "memory_mib", "origin")

    def __init__(self, shape: FreeShape, origin: int | None) -> None:
        self.gpus, self.cpu_units, self.memory_mib = shape.gpus, shape.cpu_units, shape.memory_mib
        self.all_gpus, self.count, self.origin, self.is_used = shape.all_gpus, shape.count, origin, False

    def room(self, demand: Demand) -> int:
        return room(self.gpus, self.all_gpus, self.cpu_units, self.memory_mib, demand)

    def part(self, demand: Demand, nodes: int, count: int) -> _Bin:
        """Return `count` of these instances, after each of them got `nodes` nodes with this demand."""
        found: _Bin = _Bin.__new__(_Bin)
        found.gpus = 0 if demand.gpus == ALL_GPUS and nodes else self.gpus - nodes * max(0, demand.gpus)
        found.cpu_units = self.cpu_units - nodes * demand.cpu_units
        found.memory_mib = self.memory_mib - nodes * demand.memory_mib
        found.all_gpus, found.count, found.origin = self.all_gpus, count, self.origin
        found.is_used = self.is_used or nodes > 0
        return found


class _Packing:
    """The instances of an environment while lines are packed on them, one line after the other."""

    def __init__(self, bins: list[_Bin], vcpus: int, gpus: int, launches: dict[str, int]) -> None:
        self.bins, self.vcpus, self.launches = bins, vcpus, launches
        self.gpus = gpus  # the GPUs of the instances that will be launched

    def copy(self) -> _Packing:
        return _Packing(list(self.bins), self.vcpus, self.gpus, dict(self.launches))

    def fill(self, demand: Demand, nodes: int) -> int:
        """Place nodes on instances that exist, start or will be launched. Return how many nodes have no place."""
        after: list[_Bin] = []
        for each in self.bins:
            fit = each.room(demand) if nodes else 0
            placed = min(nodes, fit * each.count)
            if not placed:
                after.append(each)
                continue
            nodes -= placed
            full, rest = divmod(placed, fit)
            after += [each.part(demand, fit, full)] if full else []
            after += [each.part(demand, rest, 1)] if rest else []
            unchanged = each.count - full - bool(rest)
            after += [each.part(demand, 0, unchanged)] if unchanged else []
        self.bins = after
        return nodes

    def launch(self, type_: TypeShape, count: int) -> None:
        shape = FreeShape(type_.gpus, type_.cpu_units, type_.memory_mib, type_.gpus, count, type_.name)
        self.bins.append(_Bin(shape, None))
        self.vcpus += type_.vcpus * count
        self.gpus += type_.gpus * count
        self.launches[type_.name] = self.launches.get(type_.name, 0) + count


def plan_scaling(
    lines: Sequence[JobLine],
    shapes: Sequence[FreeShape],
    types: Sequence[TypeShape],
    size: EnvironmentSize,
    strategy: str,
) -> ScalingPlan:
    """Return the instances to launch for waiting jobs. Earlier lines get capacity first.

    Jobs first use the free capacity of instances that exist or start. The environment never has more vCPUs than its maximum, and
    never more GPUs than the hosts. As on AWS, there is one exception: if no type is small enough for the maximum, an empty
    environment may launch one instance, unless its strategy is BEST_FIT.
    """
    packing = _Packing([_Bin(shape, at) for at, shape in enumerate(shapes)], size.present, 0, {})
    empty = replace(size, gpus_left=size.gpus_left + size.gpus)
    left: dict[str, int] = {}
    unfit: list[Demand] = []
    is_full = needs_room = False
    for line in lines:
        found = packing.copy()
        missing = _pack_jobs(found, line.demand, line.count, types, size, strategy)
        if missing and line.demand.nodes:  # a multi-node job starts only with all its nodes
            found, missing = _whole_jobs(packing, line, types, size, strategy)
        packing = found
        if missing:
            left[line.id] = missing
            too_large = [node for node, _ in kinds_of(line.demand) if not any(room_on(each, node) for each in types)]
            unfit += too_large
            if not too_large:
                is_full = True
                needs_room = needs_room or fits_when_empty(line.demand, types, empty, strategy)
    _grow(packing, types, size, strategy)
    used = [0] * len(shapes)
    for each in packing.bins:
        if each.origin is not None and each.is_used:
            used[each.origin] += each.count
    return ScalingPlan(packing.launches, left, tuple(dict.fromkeys(unfit)), is_full, needs_room, tuple(used))


def fits_when_empty(demand: Demand, types: Sequence[TypeShape], size: EnvironmentSize, strategy: str) -> bool:
    """Whether an environment with these limits could have room for a job if it had no other instances."""
    return not _pack_jobs(_Packing([], 0, 0, {}), demand, 1, types, size, strategy)


def _whole_jobs(
    packing: _Packing, line: JobLine, types: Sequence[TypeShape], size: EnvironmentSize, strategy: str
) -> tuple[_Packing, int]:
    """Place as many jobs of a line as possible, each with all its nodes. Also return how many jobs have no place."""
    best, jobs, too_many = packing.copy(), 0, line.count
    while too_many - jobs > 1:
        tried, found = (jobs + too_many) // 2, packing.copy()
        if _pack_jobs(found, line.demand, tried, types, size, strategy):
            too_many = tried
        else:
            best, jobs = found, tried
    return best, line.count - jobs


def _pack_jobs(
    packing: _Packing, demand: Demand, jobs: int, types: Sequence[TypeShape], size: EnvironmentSize, strategy: str
) -> int:
    """Place jobs on free capacity and on new instances. Return for how many jobs the environment has no room."""
    left = 0
    for node, count in kinds_of(demand):
        missing = _pack(packing, node, jobs * count, types, size, strategy)
        left = max(left, -(-missing // count))
    return left


def _pack(packing: _Packing, demand: Demand, nodes: int, types: Sequence[TypeShape], size: EnvironmentSize, strategy: str) -> int:
    """Place nodes on free capacity and on new instances. Return for how many nodes the environment has no room."""
    nodes = packing.fill(demand, nodes)
    for _ in range(CHOICES_MAX):
        found = _choice(packing, types, demand, nodes, size, strategy) if nodes and size.is_enabled else None
        if found is None:
            break
        packing.launch(*found)
        nodes = packing.fill(demand, nodes)
    return nodes


def _choice(
    packing: _Packing, types: Sequence[TypeShape], demand: Demand, nodes: int, size: EnvironmentSize, strategy: str
) -> tuple[TypeShape, int] | None:
    """Return the type of the next instances and their number. Return None if the limits allow no type."""
    vcpus, gpus = size.max_vcpus - packing.vcpus, size.gpus_left - packing.gpus
    gpus_now = max(0, min(gpus, size.gpus_now - packing.gpus))
    allowed = [each for each in types if each.gpus <= gpus]
    type_ = choose_type(allowed, demand, nodes, strategy, vcpus_max=vcpus, gpus_now=gpus_now)
    if type_ is None and packing.vcpus == 0 and vcpus > 0 and strategy != BEST_FIT:
        type_ = _smallest([each for each in allowed if room_on(each, demand)])
    if type_ is None:
        return None
    count = nodes // room_on(type_, demand)
    if type_.vcpus:
        count = min(count, vcpus // type_.vcpus)
    if type_.gpus:
        count = min(count, (gpus_now if type_.gpus <= gpus_now else gpus) // type_.gpus)
    return type_, max(1, count)


def _grow(packing: _Packing, types: Sequence[TypeShape], size: EnvironmentSize, strategy: str) -> None:
    """Launch instances until the environment has its minimum size and the size that a user has asked for."""
    one, wanted = Demand(cpu_units=CPU_UNITS), max(size.min_vcpus, min(size.asked, size.max_vcpus)) if size.is_enabled else 0
    for _ in range(CHOICES_MAX):
        missing = wanted - packing.vcpus
        if missing <= 0:
            return
        exact = [each for each in types if each.vcpus <= missing]
        found = _choice(packing, exact or types, one, missing, size, strategy)
        if found is None or not found[0].vcpus:
            return
        packing.launch(*found)


def _smallest(types: Sequence[TypeShape]) -> TypeShape | None:
    return min(types, key=lambda each: (each.cpu_units, each.gpus, each.memory_mib, each.at), default=None)


# Scale-in


class IdleInstance(Struct, frozen=True):
    """An instance that has no tasks and that no waiting job needs."""

    id: str
    vcpus: int
    since_s: float  # since when it is idle


class ScaleInPlan(Struct, frozen=True):
    terminate: tuple[str, ...]
    again_s: float | None = None  # when to decide again, because more instances can be terminated then


def plan_scale_in(idle: Sequence[IdleInstance], size: EnvironmentSize, delay_s: float, now_s: float, *, limit: int) -> ScaleInPlan:
    """Return at most `limit` instances to terminate now. Each of them has been idle for at least `delay_s`.

    The instance that has been idle longest is the first. The environment keeps its minimum number of vCPUs.
    """
    spare = size.present - size.min_vcpus
    chosen: list[str] = []
    for each in sorted(idle, key=lambda each: (each.since_s, each.id)):
        if each.vcpus > spare:
            continue
        at_s = each.since_s + delay_s
        if at_s > now_s:
            return ScaleInPlan(tuple(chosen), at_s)
        if len(chosen) == limit:
            return ScaleInPlan(tuple(chosen), now_s)
        chosen.append(each.id)
        spare -= each.vcpus
    return ScaleInPlan(tuple(chosen))
