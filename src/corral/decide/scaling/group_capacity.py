"""Decides which instances an Auto Scaling group terminates next, and how much capacity it launches.

Capacity is counted in units: one unit for each instance or, in a weighted group, as many units as the weight of the instance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from corral.decide.scaling.instance_mix import surplus_market
from corral.decide.scaling.termination_policies import Candidate, ScaleIn, choose
from corral.model.group import LAUNCH_STATES, ON_DEMAND, TERMINATION_STATES, GroupMember, LifecycleState

COUNTED = LAUNCH_STATES | {LifecycleState.IN_SERVICE}  # states whose instances count towards the desired capacity
NONE: frozenset[str] = frozenset()


class Why(StrEnum):
    """Why an instance is terminated."""

    UNHEALTHY = "unhealthy"
    LIFETIME = "lifetime"
    REFRESH = "refresh"
    SURPLUS = "surplus"


class Distribution(Struct, frozen=True):
    """How a mixed instances policy divides capacity between on-demand and spot instances."""

    base: int = 0
    percentage_above: int = 100


class CapacityRequest(Struct, frozen=True):
    """The desired capacity of a group, and the settings of its launches and terminations."""

    desired: int
    suspended: frozenset[str] = NONE  # suspended scaling processes, for example "Launch"
    policies: tuple[str, ...] = ("Default",)
    max_lifetime_s: float | None = None
    retry_at_s: float | None = None  # launches failed, so the group launches nothing before this time
    distribution: Distribution | None = None  # None if the group has no mixed instances policy
    replace: frozenset[str] = NONE  # instances that an instance refresh replaces now
    outdated: frozenset[str] = NONE  # instances that an instance refresh will replace later
    surge: int = 0  # extra units that the group may have while a refresh replaces instances


class CapacityPlan(Struct, frozen=True):
    terminate: tuple[tuple[str, Why], ...] = ()
    keep: tuple[str, ...] = ()  # instances that wait for busy tasks before they terminate (`TaskWait`), but are needed again
    missing: int = 0  # units to launch
    again_s: float | None = None  # when to plan again, if nothing changes earlier


def capacity_of(members: Iterable[GroupMember]) -> int:
    """Return the units that count towards the desired capacity."""
    return sum(member.weight for member in members if member.state in COUNTED)


def plan_capacity(
    group: CapacityRequest,
    members: Sequence[GroupMember],
    scale_in: ScaleIn,
    *,
    waiting: frozenset[str] = NONE,
    limit: int = 1000,
) -> CapacityPlan:
    """Plan the next terminations and launches.

    `waiting` contains the instances whose launch waits for GPUs. A plan terminates at most `limit` instances.
    """
    now_s, may_terminate = scale_in.now_s, "Terminate" not in group.suspended
    counted = [member for member in members if member.state in COUNTED]
    ends: dict[str, Why] = {}
    again: list[float] = []
    if may_terminate:
        if "ReplaceUnhealthy" not in group.suspended:
            ends |= {member.instance_id: Why.UNHEALTHY for member in counted if member.unhealthy}
        if group.replace:
            replaced = group.replace - ends.keys()
            ends |= {member.instance_id: Why.REFRESH for member in counted if member.instance_id in replaced}
        if group.max_lifetime_s:
            expired, next_s = _expired(members, group.max_lifetime_s, now_s)
            if expired is not None and not ends:
                ends[expired] = Why.LIFETIME
            again += [next_s] if next_s is not None else []
    left = [member for member in counted if member.instance_id not in ends]
    surplus = capacity_of(left) - group.desired - group.surge
    if surplus > 0:
        # A launch that waits for GPUs is not an instance yet, so it is cancelled also if the process Terminate is suspended.
        open_to = left if may_terminate else [member for member in left if member.instance_id in waiting]
        ends |= dict.fromkeys(_scale_in(group, open_to, surplus, scale_in, waiting, limit - len(ends)), Why.SURPLUS)
    keep = _taken_back(members, -surplus) if not group.outdated else []
    missing = max(0, -surplus - sum(member.weight for member in keep))
    if "Launch" in group.suspended:
        missing = 0
    elif missing and group.retry_at_s is not None and now_s < group.retry_at_s:
        again.append(group.retry_at_s)
        missing = 0
    kept = tuple(member.instance_id for member in keep)
    return CapacityPlan(tuple(ends.items())[:limit], kept, missing, min(again, default=None))


def _taken_back(members: Iterable[GroupMember], missing: int) -> list[GroupMember]:
    """Choose instances of an unfinished scale-in that the group needs again. They wait for busy tasks, so they still run."""
    keep: list[GroupMember] = []
    for member in members:
        if member.task_wait is not None and member.task_wait.is_surplus and 0 < member.weight <= missing and not member.unhealthy:
            keep.append(member)
            missing -= member.weight
    return keep


def next_zone(zones: Sequence[str], members: Iterable[GroupMember]) -> str:
    """Return the zone with the fewest instances. If several zones have the same number, return the first in the group's list."""
    if len(zones) == 1:
        return zones[0]
    sizes = Counter(member.zone for member in members if member.state in COUNTED)
    return min(zones, key=lambda zone: sizes[zone])


def on_demand_units(members: Iterable[GroupMember]) -> tuple[int, int]:
    """Return the units of on-demand instances and the units of spot instances."""
    units: Counter[bool] = Counter()
    for member in members:
        if member.state in COUNTED:
            units[member.market == ON_DEMAND] += member.weight
    return units[True], units[False]


def _expired(members: Sequence[GroupMember], lifetime_s: float, now_s: float) -> tuple[str | None, float | None]:
    """Return an instance that has reached its maximum lifetime, and the time when the next instance reaches it.

    Return no instance while another instance starts or ends, so that instances are replaced one after the other.
    """
    ends = [
        (member.in_service_at_s + lifetime_s, member.instance_id)
        for member in members
        if member.state is LifecycleState.IN_SERVICE and member.in_service_at_s is not None
    ]
    busy = any(member.state in LAUNCH_STATES or member.state in TERMINATION_STATES for member in members)
    over = sorted(end for end in ends if end[0] <= now_s)
    later = min((at_s for at_s, _ in ends if at_s > now_s), default=None)
    return (over[0][1] if over and not busy else None), later


def _scale_in(
    group: CapacityRequest, left: list[GroupMember], surplus: int, scale_in: ScaleIn, waiting: frozenset[str], limit: int
) -> list[str]:
    """Choose instances to terminate. The capacity never falls below the desired capacity.

    Launches that wait for GPUs are chosen first, also if they are protected, because they are not instances yet. But a launch for
    which tasks wait (it is in `scale_in.busy`) is chosen last: otherwise the capacity provider would launch an instance again.
    """
    unneeded = [member for member in left if member.instance_id in waiting - scale_in.busy]
    needed = [member for member in left if member.instance_id in waiting & scale_in.busy and not member.protected]
    chosen = _newest(unneeded, surplus)[:limit]
    surplus -= sum(member.weight for member in left if member.instance_id in chosen)
    left = [member for member in left if member.instance_id not in chosen]
    open_to = [member for member in left if not member.protected and member.instance_id not in waiting]
    if (rest := surplus - sum(member.weight for member in open_to)) >= 0:
        return (chosen + [member.instance_id for member in open_to] + _newest(needed, rest))[:limit]
    candidates = {member.instance_id: _candidate(member) for member in open_to}
    while surplus > 0 and len(chosen) < limit:
        fitting = [member for member in open_to if member.weight <= surplus]
        outdated = [member for member in fitting if member.instance_id in group.outdated] if group.outdated else []
        about = scale_in
        if group.distribution is not None:
            share = surplus_market(*on_demand_units(left), group.distribution.base, group.distribution.percentage_above)
            about = replace(scale_in, surplus_market=share, is_mixed=True)
        named = [candidates[each.instance_id] for each in outdated or fitting]
        victim = choose(named, [each.zone for each in left], group.policies, about)
        if victim is None:
            break
        chosen.append(victim.id)
        surplus -= next(member.weight for member in left if member.instance_id == victim.id)
        left = [member for member in left if member.instance_id != victim.id]
        open_to = [member for member in open_to if member.instance_id != victim.id]
    return chosen


def _newest(launches: list[GroupMember], surplus: int) -> list[str]:
    """Return the newest launches that together have at most `surplus` units."""
    chosen: list[str] = []
    for member in sorted(launches, key=lambda each: (-each.created_at_s, each.instance_id)):
        if member.weight <= surplus:
            chosen.append(member.instance_id)
            surplus -= member.weight
    return chosen


def _candidate(member: GroupMember) -> Candidate:
    return Candidate(member.instance_id, member.zone, member.created_at_s, member.source, member.market, member.type)
