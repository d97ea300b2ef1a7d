"""Computes the capacity that a target tracking policy wants. The metric is assumed to be inversely proportional to the capacity.

A policy has two alarms. The alarm for a scale-out enters ALARM if the metric is above the target. The alarm for a scale-in enters
ALARM if the metric is below SCALE_IN_LEVEL of the target. After a scale-in, the expected peak of the metric is not above
this level. So a scale-in does not cause a scale-out, and the capacity does not oscillate under a constant or noisy load.
"""

from __future__ import annotations

from math import ceil

from corral.model.alarm import ScalingRequest

SCALE_IN_LEVEL = 0.9  # AWS: the alarm of a scale-in has 90% of the target as its threshold
ROUNDING = 1e-9  # 3 * 50 / 50 must not become 4 by a rounding error


def scaled_out(capacity: int, value: float, target: float) -> int | None:
    """Return the capacity that brings the metric down to its target, or None if the metric is not above the target."""
    if target <= 0 or value <= target:
        return None
    return max(ceil(capacity * value / target - ROUNDING), capacity + 1)


def scaled_in(capacity: int, value: float, target: float) -> int:
    """Return the smallest capacity at which the metric does not exceed SCALE_IN_LEVEL of the target.

    `value` is the largest recent value of the metric. If `value` is not below this level, return the current capacity.
    """
    low = target * SCALE_IN_LEVEL
    if target <= 0 or value >= low:
        return capacity
    return min(capacity, max(0, ceil(capacity * value / low - ROUNDING)))


def is_scale_in(threshold: float, target: float) -> bool:
    """Return whether an alarm with this threshold is the policy's alarm for a scale-in.

    The alarms get a new threshold a moment after the policy has a new target. Until then, the alarm for a scale-out can have a
    threshold below the new target. It must not count as the alarm for a scale-in.
    """
    return threshold == target * SCALE_IN_LEVEL


def tracked_value(request: ScalingRequest) -> float | None:
    """Return the current value of the metric, or None if it is missing."""
    return request.newest_value if request.newest_value is not None else request.period_value
