"""Managed scaling: decides how many instances the Auto Scaling group of a capacity provider needs.

The pool of a cluster is the set of the slots of its EC2 instances. The capacity of the group is counted in units: one unit for each
instance or, in a weighted group, as many units as the weight of the instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil

from msgspec import Struct

from corral.decide.placement.strategies import matching
from corral.model.placement import Slot
from corral.model.task import ALL_GPUS, Demand

WITHOUT_LIMIT = 1 << 30  # the number of tasks that fit on an instance if they need no GPU, no CPU and no memory
# CapacityProviderReservation in percent, of a group without instances: if it needs none, and if it needs some.
EMPTY_RESERVATION, UNMET_RESERVATION = 100.0, 200.0


class GroupInstance(Struct, frozen=True):
    """An instance of the group that runs or starts."""

    pool: str  # the pool of its cluster; empty: it joins no cluster
    slot: Slot  # its capacity; if the instance is starting, the capacity that it will have
    weight: int = 1
    is_busy: bool = False  # it runs tasks that are not tasks of DAEMON services


class WaitingTasks(Struct, frozen=True):
    """Tasks with equal demands that wait in one pool."""

    pool: str
    demand: Demand
    count: int


class Need(Struct, frozen=True):
    """The instances that the running and waiting tasks need."""

    used: frozenset[str] = frozenset()  # instances that are busy, or that waiting tasks will use
    launches: int = 0  # further instances for the other waiting tasks
    unfit: tuple[Demand, ...] = ()  # the demands of tasks that would not fit on a new instance

    @property
    def instances(self) -> int:
        return len(self.used) + self.launches


class _Bin:
    """Equal instances with the same free capacity."""

    def __init__(self, instance: GroupInstance, count: int = 1) -> None:
        self.instance, self.count = instance, count
        slot = instance.slot
        self.gpus, self.cpu_units, self.memory_mib = len(slot.gpus), slot.cpu_units, slot.memory_mib
        self.groups = set(slot.tasks)  # the groups of its tasks, for the constraint distinctInstance

    def room(self, demand: Demand, allows: Callable[[Slot], bool]) -> int:
        """Return how many tasks with this demand fit on each of the instances."""
        rules = demand.rules
        if rules is not None and ((rules.distinct and rules.group in self.groups) or not allows(self.instance.slot)):
            return 0
        most = 1 if rules is not None and rules.distinct else None
        if demand.gpus == ALL_GPUS:
            if not self.gpus or self.gpus != self.instance.slot.total.gpus:
                return 0
            most = 1
        elif demand.gpus:
            most = _least(most, self.gpus // demand.gpus)
        if demand.cpu_units:
            most = _least(most, self.cpu_units // demand.cpu_units)
        if demand.memory_mib:
            most = _least(most, self.memory_mib // demand.memory_mib)
        return max(0, most) if most is not None else WITHOUT_LIMIT

    def taken(self, demand: Demand, tasks: int, count: int) -> _Bin:
        """Return `count` of these instances, after each of them got `tasks` tasks with this demand."""
        after = _Bin(self.instance, count)
        after.gpus = 0 if demand.gpus == ALL_GPUS else self.gpus - tasks * demand.gpus
        after.cpu_units = self.cpu_units - tasks * demand.cpu_units
        after.memory_mib = self.memory_mib - tasks * demand.memory_mib
        is_distinct = demand.rules is not None and demand.rules.distinct
        after.groups = self.groups | {demand.rules.group} if demand.rules is not None and is_distinct else self.groups
        return after


def _least(first: int | None, second: int) -> int:
    return second if first is None else min(first, second)


def needed_instances(instances: Sequence[GroupInstance], waiting: Iterable[WaitingTasks], new: GroupInstance | None) -> Need:
    """Return the instances that the running and waiting tasks need. `new` is an instance that the group would launch next.

    Large tasks are packed first. A task that shares a GPU counts as a task that needs a whole GPU. The time that the packing takes
    depends on the number of different demands, and not on the number of waiting tasks.
    """
    used, lines = {each.slot.id for each in instances if each.is_busy}, sorted(waiting, key=_size, reverse=True)
    least_gpus = min((tasks.demand.least_gpus for tasks in lines), default=0)
    free = [each for each in instances if each.slot.takes_tasks and len(each.slot.gpus) >= least_gpus] if lines else []
    open_bins = list(map(_Bin, free))
    new_bins: list[_Bin] = []
    unfit: list[Demand] = []
    for tasks in lines:
        left, demand, allows = tasks.count, tasks.demand, matching(tasks.demand.rules)
        for at, each in enumerate(open_bins):
            if not left:
                break
            fit = min(left, each.room(demand, allows)) if each.instance.pool == tasks.pool else 0
            if fit:
                open_bins[at] = each.taken(demand, fit, 1)
                used.add(each.instance.slot.id)
                left -= fit
        if left and new is not None and new.pool == tasks.pool and (most := _Bin(new).room(demand, allows)):
            new_bins = _fill(new_bins, new, demand, left, most, allows)
        elif left:
            unfit.append(demand)
    return Need(frozenset(used), sum(each.count for each in new_bins), tuple(unfit))


def _size(tasks: WaitingTasks) -> tuple[int, int, int]:
    demand = tasks.demand
    return (1 << 30 if demand.gpus == ALL_GPUS else demand.gpus), demand.memory_mib, demand.cpu_units


def _fill(
    bins: Sequence[_Bin], new: GroupInstance, demand: Demand, left: int, most: int, allows: Callable[[Slot], bool]
) -> list[_Bin]:
    """Pack equal tasks on instances that will be launched. If tasks are left, add further instances."""
    after: list[_Bin] = []
    for each in bins:
        fit = each.room(demand, allows) if left else 0
        tasks = min(left, fit * each.count)
        after += _packed(each, demand, fit, tasks) if tasks else [each]
        left -= tasks
    if left:
        after += _packed(_Bin(new, ceil(left / most)), demand, most, left)
    return after


def _packed(each: _Bin, demand: Demand, fit: int, tasks: int) -> Iterator[_Bin]:
    """Pack tasks on equal instances. Each of the instances has room for `fit` of the tasks."""
    full, rest = divmod(tasks, fit)
    if full:
        yield each.taken(demand, fit, full)
    if rest:
        yield each.taken(demand, rest, 1)
    unchanged = each.count - full - bool(rest)
    if unchanged:
        each.count = unchanged
        yield each


def reservation_percent(needed: int, present: int) -> float:
    """Return CapacityProviderReservation: the needed instances in percent of the instances that run or start."""
    if present:
        return 100.0 * needed / present
    return UNMET_RESERVATION if needed else EMPTY_RESERVATION


# The desired capacity


class ScalingRules(Struct, frozen=True):
    target_percent: int = 100
    min_step: int = 1
    max_step: int = 10_000
    scale_in_delay_s: float = 900.0


class GroupState(Struct, frozen=True):
    desired: int
    min_size: int
    max_size: int
    present: int  # units of the instances that run or start
    used: int  # units of the instances that are needed
    waiting: int = 0  # units of the launches that wait for GPUs and are not needed
    weight: int = 1  # units of a new instance
    warming: int = 0  # instances that start, or that started less than a warm-up period ago
    warm_at_s: float | None = None  # when the next of them has warmed up; None: not known
    is_lowered: bool = False  # a user or a policy has lowered `desired`, so even instances with tasks may be terminated


class Decision(Struct, frozen=True):
    desired: int
    low_since_s: float | None = None  # since when the group has more capacity than needed
    again_s: float | None = None  # when to decide again, if nothing changes earlier
    is_stepping: bool = False  # more instances are needed, but the instances of the last step still warm up


def desired_capacity(group: GroupState, need: Need, rules: ScalingRules, low_since_s: float | None, now_s: float) -> Decision:
    """Return the desired capacity of the group.

    A scale-out happens at once. At most `max_step` instances warm up at the same time, so a larger scale-out takes several steps. A
    scale-in happens when the group has had more capacity than needed for the whole delay. Launches that are not needed and have no
    GPUs yet are withdrawn at once, because they wait in the same queue as tasks.
    """
    wanted = _wanted(group, need, rules)
    if wanted > group.desired:
        return _scale_out(group, rules, wanted)
    if wanted == group.desired:
        return Decision(group.desired)
    since_s = low_since_s if low_since_s is not None else now_s
    if now_s >= since_s + rules.scale_in_delay_s or wanted >= group.desired - group.waiting:
        return Decision(wanted)
    return Decision(group.desired - group.waiting, since_s, since_s + rules.scale_in_delay_s)


def _wanted(group: GroupState, need: Need, rules: ScalingRules) -> int:
    """Return the capacity for the needed instances, and for spare instances if the target is below 100 percent.

    If waiting tasks need new instances, idle instances count as needed, too. Otherwise the desired capacity could be less than the
    group has now, and the group would launch nothing. The provider does not revert a scale-in by a user or a policy: after such a
    scale-in, only waiting tasks raise the capacity.
    """
    least = (group.present if need.launches else group.used) + need.launches * group.weight
    spare = ceil(need.instances * 100 / rules.target_percent) - need.instances
    wanted = max(least, group.used + (need.launches + spare) * group.weight)
    if group.is_lowered:
        wanted = min(wanted, group.desired + need.launches * group.weight)
    return max(group.min_size, min(group.max_size, wanted))


def _scale_out(group: GroupState, rules: ScalingRules, wanted: int) -> Decision:
    there = max(group.desired, min(wanted, group.present))  # the instances that are present need no launch
    missing = ceil((wanted - there) / group.weight)
    step = min(max(missing, rules.min_step), rules.max_step - group.warming) if missing else 0
    desired = min(group.max_size, there + max(0, step) * group.weight)
    if desired < wanted:
        return Decision(desired, again_s=group.warm_at_s, is_stepping=True)
    return Decision(desired)
