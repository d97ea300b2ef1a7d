"""Termination policies: which instance of a group a scale-in terminates.

Zones come first: only instances of the zones with the most instances are candidates. Then each policy of the group narrows the
candidates, in order, until one is left. AWS breaks the last tie at random; here the oldest instance loses, so that the same state
always gives the same decision.
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
    """What the policies know about the group."""

    now_s: float
    current: LaunchSource = LaunchSource()  # what the group launches from now
    surplus_market: str | None = None  # the market that has more instances than its share; None: neither, or no mixed group
    type_rank: Mapping[str, int] = {}  # instance type → its place in the order of the allocation strategy; 0 is preferred
    is_mixed: bool = False


Policy = Callable[[Sequence[Candidate], ScaleIn], Sequence[Candidate]]


def choose(candidates: Sequence[Candidate], zones: Iterable[str], policies: Sequence[str], group: ScaleIn) -> Candidate | None:
    """The instance to terminate. `candidates` may be terminated; `zones` has the zone of every instance of the group."""
    if not candidates:
        return None
    sizes, left = Counter(zones), candidates
    if len(sizes) > 1:
        largest = max(sizes[each.zone] for each in candidates)
        left = [each for each in candidates if sizes[each.zone] == largest]
    for name in policies or ("Default",):
        if len(left) == 1:
            break
        policy = POLICIES.get(name)  # None: a Lambda function, which is not called
        if policy is not None:
            left = policy(left, group)
    return min(left, key=lambda each: (each.launched_at_s, each.id))


def _default(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    if group.is_mixed:
        candidates = _allocation_strategy(candidates, group)
    candidates = _outdated(candidates, group)
    return _closest_to_next_hour(candidates, group)


def _outdated(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    """Instances of the oldest configuration. A launch configuration is older than any launch template."""
    if group.current.kind == CONFIGURATION:
        return _oldest_configuration(candidates, group)
    configured = [each for each in candidates if each.source.kind == CONFIGURATION]
    return configured or _oldest_template(candidates, group)


def _oldest_configuration(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    made = [each for each in candidates if each.source.kind == CONFIGURATION]
    oldest = min((each.source.created_at_s for each in made), default=None)
    return [each for each in made if each.source.created_at_s == oldest] or candidates


def _oldest_template(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    """Instances of a template that is not the current one, or else of the oldest version of the current one."""
    made = [each for each in candidates if each.source.kind == TEMPLATE]
    others = [each for each in made if each.source.id != group.current.id]
    if others:
        return others
    oldest = min({each.source.version for each in made}, key=int, default=None)
    return [each for each in made if each.source.version == oldest] or candidates


def _closest_to_next_hour(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    return _least(candidates, lambda each: HOUR_S - (group.now_s - each.launched_at_s) % HOUR_S)


def _allocation_strategy(candidates: Sequence[Candidate], group: ScaleIn) -> Sequence[Candidate]:
    """Instances of the market that has too many, and of those the least preferred types."""
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
