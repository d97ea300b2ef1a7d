"""M of N, with what CloudWatch does about windows that have no data.

An alarm looks at a few windows more than the N that it needs (its evaluation range). If N of them have data, the latest N count.
Else all that have data count, and the rest is filled as the alarm says. An alarm that leaves missing data missing has two rules
of its own: it has no opinion where nothing is known, and one breach is no trend before M windows have passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import ge, gt, le, lt

from corral.model.alarm import AlarmState, Criteria, Datapoint, Missing, Verdict

MORE_WINDOWS = 2  # CloudWatch's own example looks at 5 for an alarm of 3
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "GreaterThanOrEqualToThreshold": ge,
    "GreaterThanThreshold": gt,
    "LessThanThreshold": lt,
    "LessThanOrEqualToThreshold": le,
}
SAMPLES_PER_TAIL = 10


def evaluation_range(periods: int) -> int:
    """How many windows are looked at for an alarm of so many periods."""
    return periods + MORE_WINDOWS


def breaches(value: float, criteria: Criteria) -> bool:
    return COMPARISONS[criteria.comparison](value, criteria.threshold)


def judge(windows: Sequence[Datapoint], criteria: Criteria) -> Verdict:
    """`windows` is the evaluation range, oldest first."""
    known = [(at_s, value) for at_s, value in windows if value is not None]
    points = tuple(known[-criteria.periods :])
    filled = criteria.periods - len(points)
    breaching = sum(breaches(value, criteria) for _, value in points)
    return Verdict(_state(windows, criteria, breaching, len(points) - breaching, filled), points, filled)


def _state(windows: Sequence[Datapoint], criteria: Criteria, breaching: int, within: int, filled: int) -> AlarmState | None:
    if filled and criteria.missing is Missing.BREACHING:
        breaching += filled
    if breaching >= criteria.to_alarm:
        return AlarmState.ALARM
    if within or not filled or criteria.missing in (Missing.BREACHING, Missing.NOT_BREACHING):
        return AlarmState.OK
    if criteria.missing is Missing.IGNORE:
        return None
    oldest = next((at for at, (_, value) in enumerate(windows) if value is not None), len(windows))
    old_enough = len(windows) - oldest >= criteria.to_alarm
    return AlarmState.ALARM if old_enough else AlarmState.INSUFFICIENT_DATA


def conclusive(statistic: str, criteria: Criteria, smallest: float) -> bool:
    """Whether a window that breaches before its end will breach at its end too, whatever comes.

    `smallest` is the least value in the window: a sum of what is never negative only grows.
    """
    upwards = criteria.comparison.startswith("Greater")
    if statistic == "Sum":
        return upwards and smallest >= 0
    return (statistic in ("Maximum", "SampleCount") and upwards) or (statistic == "Minimum" and not upwards)


def is_level(statistic: str) -> bool:
    """Whether a part of a window tells about the whole: averages do, sums and extremes do not."""
    return statistic in ("Average", "p", "tm", "wm")


def samples_needed(percentile: float) -> float:
    """How many samples a window needs for a percentile (from 0 to 100) to mean something."""
    tail = min(percentile, 100 - percentile)
    return 100 * SAMPLES_PER_TAIL / tail if tail > 0 else 0.0
