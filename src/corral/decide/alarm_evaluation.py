"""Evaluation of alarms: M of N windows, missing data as on CloudWatch, and the suppression of composite alarms' actions.

An alarm reads a few windows more than the N it needs: its evaluation range. If N of them have data, the newest N are evaluated.
Otherwise all windows with data are evaluated, and the others are filled as TreatMissingData says. `missing`
is special: if fewer than M windows have data and all of these breach, the state is ALARM once the oldest of them is at least M
windows old; otherwise it is INSUFFICIENT_DATA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import ge, gt, le, lt

from corral.model.alarm import AlarmEvaluation, AlarmState, Criteria, Datapoint, MissingData, Suppression

EXTRA_WINDOWS = 2  # CloudWatch's documentation shows 5 windows for an alarm of 3
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "GreaterThanOrEqualToThreshold": ge,
    "GreaterThanThreshold": gt,
    "LessThanThreshold": lt,
    "LessThanOrEqualToThreshold": le,
}
SAMPLES_PER_TAIL = 10  # samples that a percentile needs in the smaller part of the distribution


def evaluation_range(periods: int) -> int:
    """The number of windows to read for an alarm with `periods` evaluation periods."""
    return periods + EXTRA_WINDOWS


def breaches(value: float, criteria: Criteria) -> bool:
    return COMPARISONS[criteria.comparison](value, criteria.threshold)


def evaluate_windows(windows: Sequence[Datapoint], criteria: Criteria) -> AlarmEvaluation:
    """Evaluate the windows of the evaluation range, oldest first."""
    known = [(at_s, value) for at_s, value in windows if value is not None]
    points = tuple(known[-criteria.periods :])
    filled = criteria.periods - len(points)
    breaching = sum(breaches(value, criteria) for _, value in points)
    return AlarmEvaluation(_state(windows, criteria, breaching, len(points) - breaching, filled), points, filled)


def _state(windows: Sequence[Datapoint], criteria: Criteria, breaching: int, within: int, filled: int) -> AlarmState | None:
    if filled and criteria.missing is MissingData.BREACHING:
        breaching += filled
    if breaching >= criteria.to_alarm:
        return AlarmState.ALARM
    if within or not filled or criteria.missing in (MissingData.BREACHING, MissingData.NOT_BREACHING):
        return AlarmState.OK
    if criteria.missing is MissingData.IGNORE:
        return None
    oldest = next((at for at, (_, value) in enumerate(windows) if value is not None), len(windows))
    old_enough = len(windows) - oldest >= criteria.to_alarm
    return AlarmState.ALARM if old_enough else AlarmState.INSUFFICIENT_DATA


def is_conclusive(statistic: str, criteria: Criteria, smallest: float) -> bool:
    """Whether a window that breaches before its end will also breach at its end, whatever datapoints follow.

    `smallest` is the smallest value in the window: a sum of values that are not negative only grows.
    """
    upwards = criteria.comparison.startswith("Greater")
    if statistic == "Sum":
        return upwards and smallest >= 0
    return (statistic in ("Maximum", "SampleCount") and upwards) or (statistic == "Minimum" and not upwards)


def is_level(statistic: str) -> bool:
    """Whether a part of a window represents the whole window: averages do, sums and extremes do not."""
    return statistic in ("Average", "p", "tm", "wm")


def samples_needed(percentile: float) -> float:
    """How many samples a percentile (0 to 100) needs to be meaningful."""
    tail = min(percentile, 100 - percentile)
    return 100 * SAMPLES_PER_TAIL / tail if tail > 0 else 0.0


def suppress(before: Suppression, *, suppressor_in_alarm: bool, wait_s: float, extension_s: float, now_s: float) -> Suppression:
    """The next suppression of a composite alarm whose actions have not run yet.

    The alarm waits `wait_s` for the suppressor to go to ALARM. Its actions are suppressed while the suppressor is in ALARM, and
    for `extension_s` after that.
    """
    if suppressor_in_alarm:
        return Suppression("Alarm")
    if before.by == "Alarm":
        return Suppression("ExtensionPeriod", now_s + extension_s) if extension_s > 0 else Suppression()
    if before.by == "":
        return Suppression("WaitPeriod", now_s + wait_s) if wait_s > 0 else Suppression()
    assert before.until_s is not None
    return before if now_s < before.until_s else Suppression()
