"""Computes the capacity that a scaling policy wants, from the current capacity and the value of the metric."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, trunc

from msgspec import Struct

CHANGE, EXACT, PERCENT = "ChangeInCapacity", "ExactCapacity", "PercentChangeInCapacity"
ADJUSTMENT_TYPES = (CHANGE, EXACT, PERCENT)


class Step(Struct, frozen=True):
    """A step adjustment. It applies when the metric minus the alarm's threshold is between the two bounds."""

    adjustment: int
    lower: float | None = None  # None if there is no bound
    upper: float | None = None

    def covers(self, difference: float) -> bool:
        """Return whether the step applies.

        A step above the threshold includes its lower bound. A step below the threshold includes its upper bound.
        """
        lower, upper = -inf if self.lower is None else self.lower, inf if self.upper is None else self.upper
        return lower <= difference < upper if difference >= 0 else lower < difference <= upper


def adjusted(capacity: int, adjustment_type: str, adjustment: int, min_magnitude: int = 0) -> int:
    """Return the capacity after an adjustment. The group's minimum and maximum sizes are applied later.

    An adjustment in percent is rounded towards zero, but is at least one instance and at least `min_magnitude`. Percent of the
    capacity 0 is 0, unless there is a `min_magnitude`.
    """
    if adjustment_type == EXACT:
        return adjustment
    if adjustment_type == CHANGE:
        return capacity + adjustment
    change = capacity * adjustment / 100
    if change == 0 and not (adjustment and min_magnitude):
        return capacity
    size = max(1, abs(trunc(change)), min_magnitude)
    return capacity + (size if adjustment > 0 else -size)


def step_for(steps: Sequence[Step], difference: float) -> Step | None:
    """Return the step for a metric that differs from the threshold by `difference`, or None if no step applies."""
    return next((step for step in steps if step.covers(difference)), None)


def problem_of_steps(steps: Sequence[Step]) -> str | None:
    if any(step.lower is None and step.upper is None for step in steps) and len(steps) > 1:
        return "If there are several StepAdjustments, each must have a lower or an upper bound."
    if any(None not in (step.lower, step.upper) and step.lower >= step.upper for step in steps):  # type: ignore[operator]
        return "The lower bound of a StepAdjustment must be less than its upper bound."
    for bound in ("lower", "upper"):
        if sum(getattr(step, bound) is None for step in steps) > 1:
            return f"Only one StepAdjustment may have no {bound} bound."
    ordered = sorted(steps, key=lambda step: -inf if step.lower is None else step.lower)
    for before, after in pairwise(ordered):
        if before.upper != after.lower:
            return "StepAdjustments must not overlap and must not have gaps."
    if any(step.lower is not None and step.lower < 0 for step in steps) and all(step.lower is not None for step in steps):
        return "If a StepAdjustment has a negative lower bound, one StepAdjustment must have no lower bound."
    if any(step.upper is not None and step.upper > 0 for step in steps) and all(step.upper is not None for step in steps):
        return "If a StepAdjustment has a positive upper bound, one StepAdjustment must have no upper bound."
    return None


def limited(capacity: int, min_size: int, max_size: int) -> int:
    return max(min_size, min(max_size, capacity))
