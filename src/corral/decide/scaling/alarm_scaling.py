"""Decides which capacity a scaling policy wants after a request of an alarm, and when the policy is applied again.

An alarm makes a request to a policy when it enters the state that has the policy as an action. The request stays while the alarm
stays in this state, and the policy is applied again once a minute, as on AWS. An interval of a minute begins when the policy
changes the capacity. During the interval, a new value of the metric can select another step. This step adjusts the capacity that
the group had at the beginning of the interval. So several values in the range of one step cause only one adjustment.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from corral.decide.scaling.policies import limited
from corral.decide.scaling.target_tracking import tracked_value
from corral.model.alarm import Progress, ScalingRequest

REPEAT_S = 60.0
NO_DATA = "The metric has no current data, and without data the policy does nothing."
WARMING = "Instances of the group are warming up, and a scale-in waits until their warm-up ends."


class Rule(Struct, frozen=True):
    """The rule by which a scaling policy computes the capacity from a value of the metric."""

    wanted: Callable[[int, float | None], int | None]  # (capacity, value) → wanted capacity; None if no step applies
    exact: bool = False  # the wanted capacity does not depend on the current capacity
    simple: bool = False  # a simple scaling policy, which needs no value and has a cooldown instead of a warm-up
    aggregate: Callable[[list[float]], float] | None = None  # combines several values into one; None: the largest result counts
    tracking: bool = False  # a target tracking policy, which wants nothing while its metric is close to the target


class GroupCapacity(Struct, frozen=True):
    """The capacity of a group in units. `warming` and `ready` depend on the warm-up time of the policy."""

    desired: int
    least: int
    most: int
    ready: int  # units in service whose warm-up is over
    present: int  # units that launch, are in service, or terminate
    warming: bool = False  # an instance runs, and its warm-up is not over
    warm_at_s: float | None = None  # the next end of a warm-up

    def within(self, wanted: int) -> int:
        return limited(wanted, self.least, self.most)

    @property
    def bases(self) -> tuple[int, int]:
        """The capacities that a scale-out is added to and that a scale-in is subtracted from.

        Instances that warm up do not count for a scale-out, and instances that terminate still count for a scale-in. So the policy
        does not repeat an adjustment before its effect is visible.
        """
        return min(self.ready, self.desired), self.present


class Block(Struct, frozen=True):
    """Why a simple policy must wait: a scaling activity is in progress, or the cooldown has not ended."""

    reason: str
    until_s: float | None = None  # None: until the activity ends
    out_only: bool = False  # a scale-in does not wait


class Verdict(Struct, frozen=True):
    wanted: int | None  # the desired capacity that the policy wants; None if it wants none
    progress: Progress
    again_s: float | None = None  # when to decide again, if nothing changes earlier
    outcome: str | None = None  # why the policy was not applied; empty if it was applied; None if this is not known yet
    code: str = ""  # the code of AWS's NotScaledReason for this outcome, if there is one


def decide_request(
    request: ScalingRequest,
    rule: Rule,
    capacity: GroupCapacity,
    progress: Progress,
    now_s: float,
    *,
    wait_until_s: float = 0.0,
    block: Block | None = None,
) -> Verdict:
    """Decide about one request. `wait_until_s` delays repetitions, but not the first request after a state change of the alarm."""
    if progress.since_s != request.since_s:
        progress = Progress(request.since_s)
    elif now_s < wait_until_s:
        return Verdict(capacity.desired, progress, wait_until_s)
    interval_ends_s = None if progress.at_s is None else progress.at_s + REPEAT_S
    in_interval = interval_ends_s is not None and now_s < interval_ends_s
    if rule.simple:
        return _decide_simple(request, rule, capacity, progress, now_s, interval_ends_s if in_interval else None, block)
    bases = (progress.out_base, progress.in_base) if in_interval else capacity.bases
    wanted = wanted_by_values(request, rule, capacity, bases)
    if wanted is None:
        return Verdict(None, progress, None, no_wish(request, rule))
    if wanted < capacity.desired and not request.whole:
        return Verdict(capacity.desired, progress)
    if wanted < capacity.desired and capacity.warming:
        return Verdict(capacity.desired, progress, capacity.warm_at_s, WARMING)
    if wanted != capacity.desired:
        begun = progress if in_interval else replace(progress, at_s=now_s, out_base=bases[0], in_base=bases[1])
        return Verdict(wanted, begun, None, "")
    again = [] if rule.exact or capacity.warm_at_s is None else [capacity.warm_at_s]
    if in_interval and interval_ends_s is not None and wanted_by_values(request, rule, capacity, capacity.bases) != wanted:
        again.append(interval_ends_s)
    return Verdict(wanted, progress, min(again, default=None), "")


def _decide_simple(
    request: ScalingRequest,
    rule: Rule,
    capacity: GroupCapacity,
    progress: Progress,
    now_s: float,
    wait_until_s: float | None,
    block: Block | None,
) -> Verdict:
    adjusted = rule.wanted(capacity.desired, None)
    wanted = capacity.desired if adjusted is None else capacity.within(adjusted)
    if wanted == capacity.desired:
        return Verdict(wanted, progress, None, "")
    if wanted < capacity.desired and not request.whole:
        return Verdict(capacity.desired, progress)
    if block is not None and (wanted > capacity.desired or not block.out_only):
        return Verdict(capacity.desired, progress, block.until_s, block.reason)
    if wait_until_s is not None:
        return Verdict(capacity.desired, progress, wait_until_s, "")
    return Verdict(wanted, replace(progress, at_s=now_s), None, "")


def wanted_by_values(request: ScalingRequest, rule: Rule, capacity: GroupCapacity, bases: tuple[int, int]) -> int | None:
    """Return the largest capacity that the values of the request want, or None if no step applies to any of them."""
    values = values_of(request, rule)
    found = [_wanted_by(value, rule, capacity.desired, bases) for value in values if value is not None]
    return max((capacity.within(each) for each in found if each is not None), default=None)


def values_of(request: ScalingRequest, rule: Rule) -> list[float | None]:
    """Return the values of the request that a policy uses.

    The peak value is one of them if the policy sets an exact capacity or aggregates the values. So an exact capacity is kept until
    no second of the last period needs it.
    """
    if rule.tracking:
        return [tracked_value(request)]
    peak = [request.peak_value] if rule.exact or rule.aggregate is not None else []
    values = [request.period_value, request.newest_value, *peak]
    if rule.aggregate is not None:
        return [rule.aggregate(known)] if (known := [value for value in values if value is not None]) else []
    return values


def _wanted_by(value: float, rule: Rule, desired: int, bases: tuple[int, int]) -> int | None:
    out_base, in_base = bases
    more, less = rule.wanted(out_base, value), rule.wanted(in_base, value)
    if more is None or less is None or rule.exact:
        return more
    if more > out_base:
        return max(desired, more)
    return min(desired, less) if less < in_base else desired


def no_wish(request: ScalingRequest, rule: Rule) -> str | None:
    """Return why a policy wants no capacity, or None if the metric of a target tracking policy is close to its target."""
    value = tracked_value(request)
    if value is None:
        return "The alarm has no value, and the policy needs one to choose its step." if not rule.tracking else NO_DATA
    if rule.tracking:
        return None
    return f"No step adjustment found for metric value {value!r} and breach threshold {request.threshold!r}."
