"""Termination policies: decides which instance of an Auto Scaling group a scale-in terminates.

The candidates are the instances in the zones with the most instances. If some candidates have no busy tasks, only these candidates
are left. (A task is busy while it is protected, or while messages that it received are in flight.) Then the policies of the group
are applied one after the other, until one candidate is left. If several candidates are left after the last policy, AWS chooses one
at random. Corral chooses the oldest candidate, so that the same state always gives the same decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from corral.model.group import CONFIGURATION, ON_DEMAND, TEMPLATE, LaunchSource

HOUR_S = 3600.0
TYPES = (
    "AllocationStrategy",
    "ClosestToNextInstanceHour",
    "Default",
    "NewestInstance",
    "OldestInstance",
    "OldestLaunchConfiguration",
    "OldestLaunchTemplate",
)


class Candidate(Struct, frozen=True):
    id: str
    zone: str
    launched_at_s: float
    source: LaunchSource = LaunchSource()
    market: str = ON_DEMAND
    type: str = ""


class ScaleIn(Struct, frozen=True):
    """Facts about the group that the policies need."""

    now_s: float
    current: LaunchSource = LaunchSource()  # the launch configuration or template that the group uses now
    surplus_market: str | None = None  # on-demand or spot: the market that has too many instances
    type_rank: Mapping[str, int] = {}  # instance type → its rank in the allocation strategy; 0 is best
    is_mixed: bool = False
    busy: frozenset[str] = frozenset()  # instances with busy tasks, for which a termination would wait


Policy = Callable[[Sequence[Candidate], ScaleIn], Sequence[Candidate]]


def choose(candidates: Sequence[Candidate], zones: Iterable[str], policies: Sequence[str], group: ScaleIn) -> Candidate | None:
    """Return the instance to terminate, or None without candidates. `zones` contains the zone of each instance of the group."""
    if not candidates:
        return None
    sizes, left = Counter(zones), candidates
    if len(sizes) > 1:
        largest = max(sizes[each.zone] for each in candidates)
        left = [each for each in candidates if sizes[each.zone] == largest]
    left = [each for each in left if each.id not in group.busy] or left
    for name in policies or ("Default",):
        if len(left) == 1:
            break
        policy = POLICIES.get(name)  # None if the policy is a Lambda function, which Corral does not call
        if policy is not None:
            left = policy(left, group)
    return min(left, key=lambda each: (each.launched_at_s, each.id))


def _default(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    if group.is_mixed:
        candidates = _allocation_strategy(candidates, group)
    candidates = _outdated(candidates, group)
    return _closest_to_next_hour(candidates, group)


def _outdated(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    """Return the instances of the oldest launch source.

    If the group uses a launch template now, launch configurations count as older than templates.
    """
    if group.current.kind == CONFIGURATION:
        return _oldest_configuration(candidates, group)
    configured = [each for each in candidates if each.source.kind == CONFIGURATION]
    return configured or _oldest_template(candidates, group)


def _oldest_configuration(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    made = [each for each in candidates if each.source.kind == CONFIGURATION]
    oldest = min((each.source.created_at_s for each in made), default=None)
    return [each for each in made if each.source.created_at_s == oldest] or candidates


def _oldest_template(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    """Return the instances of templates that the group no longer uses.

    If there are none, return those of the oldest version of the current template. If no instance comes from a template, return all
    candidates.
    """
    made = [each for each in candidates if each.source.kind == TEMPLATE]
    others = [each for each in made if each.source.id != group.current.id]
    if others:
        return others
    oldest = min({each.source.version for each in made}, key=int, default=None)
    return [each for each in made if each.source.version == oldest] or candidates


def _closest_to_next_hour(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    return _least(candidates, lambda each: HOUR_S - (group.now_s - each.launched_at_s) % HOUR_S)


def _allocation_strategy(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    """Return the instances of the market that has too many. Of these, return only the instances with the least preferred type."""
    in_surplus = [each for each in candidates if each.market == group.surplus_market] or candidates
    if not group.type_rank:
        return in_surplus
    last = len(group.type_rank)
    return _least(in_surplus, lambda each: -group.type_rank.get(each.type, last))


def _oldest(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    return _least(candidates, lambda each: each.launched_at_s)


def _newest(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    return _least(candidates, lambda each: -each.launched_at_s)


def _least(candidates: Sequence[Candidate], measure: Callable[[Candidate], float]) -> Sequence[Candidate]:
    measured = list(map(measure, candidates))
    least = min(measured)
    return [each for each, value in zip(candidates, measured) if value == least]


POLICIES: dict[str, Policy] = {
    "AllocationStrategy": _allocation_strategy,
    "ClosestToNextInstanceHour": _closest_to_next_hour,
    "Default": _default,
    "NewestInstance": _newest,
    "OldestInstance": _oldest,
    "OldestLaunchConfiguration": _oldest_configuration,
    "OldestLaunchTemplate": _oldest_template,
}
assert tuple(POLICIES) == TYPES
