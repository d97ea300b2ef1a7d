"""Evaluates alarms as CloudWatch does. Also decides whether the actions of a composite alarm are suppressed.

A window is one period of the metric. An alarm has N evaluation periods. Its state is ALARM if M of them breach the threshold. The
alarm reads two more windows than N, so that older data can replace missing data. All these windows are its evaluation range. If at
least N windows have data, the newest N of them are evaluated. Otherwise all windows with data are evaluated, and TreatMissingData
says how the missing windows count. If it is `missing` or `ignore`, they do not count.

Assume that the missing windows do not count, that fewer than M windows breach, and that no window is within the threshold. Then
`ignore` keeps the state. With `missing`, the state is ALARM if the oldest breaching window is at least M windows old (the newest
window is one window old). Otherwise the state is INSUFFICIENT_DATA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import ge, gt, le, lt

from corral.model.alarm import AlarmEvaluation, AlarmState, Criteria, Datapoint, MissingData, Suppression

EXTRA_WINDOWS = 2  # in CloudWatch's documentation, an alarm with 3 evaluation periods reads 5 windows
COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "GreaterThanOrEqualToThreshold": ge,
    "GreaterThanThreshold": gt,
    "LessThanThreshold": lt,
    "LessThanOrEqualToThreshold": le,
}
SAMPLES_PER_TAIL = 10  # a percentile divides the samples into two parts; the smaller part must have at least this many samples


def evaluation_range(periods: int) -> int:
    """Return the number of windows that an alarm with `periods` evaluation periods reads."""
    return periods + EXTRA_WINDOWS


def breaches(value: float, criteria: Criteria) -> bool:
    return COMPARISONS[criteria.comparison](value, criteria.threshold)


def evaluate_windows(windows: Sequence[Datapoint], criteria: Criteria) -> AlarmEvaluation:
    """Evaluate the windows of the evaluation range. The first window is the oldest."""
    known = [(at_s, value) for at_s, value in windows if value is not None]
    points = tuple(known[-criteria.periods :])
    filled = criteria.periods - len(points)
    breaching = sum(breaches(value, criteria) for _, value in points)
    state = _state(windows, criteria, breaching, len(points) - breaching, filled)
    return AlarmEvaluation(state, points, filled, _deciding(windows, criteria, state))


def needed_windows(criteria: Criteria, state: AlarmState | None) -> int:
    """Return how many windows suffice for a state: M breaching windows for ALARM, and N - M + 1 others for OK."""
    if state is AlarmState.ALARM:
        return criteria.to_alarm
    return criteria.periods - criteria.to_alarm + 1 if state is AlarmState.OK else criteria.periods


def _deciding(windows: Sequence[Datapoint], criteria: Criteria, state: AlarmState | None) -> tuple[Datapoint, ...]:
    alarming = state is AlarmState.ALARM
    missing = criteria.missing is (MissingData.BREACHING if alarming else MissingData.NOT_BREACHING)
    found = [
        (at_s, value)
        for at_s, value in reversed(windows)
        if state is AlarmState.INSUFFICIENT_DATA or (missing if value is None else breaches(value, criteria) is alarming)
    ]
    return tuple(found[: needed_windows(criteria, state)])


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
    """Return True if later datapoints cannot change the result of a window that already breaches.

    `smallest` is the smallest value in the window. If no value is negative, a sum can only increase.
    """
    upwards = criteria.comparison.startswith("Greater")
    if statistic == "Sum":
        return upwards and smallest >= 0
    return (statistic in ("Maximum", "SampleCount") and upwards) or (statistic == "Minimum" and not upwards)


def is_level(statistic: str) -> bool:
    """Return True if the value of an incomplete window can stand for the value of the whole window.

    This is true for averages, percentiles (p), trimmed means (tm) and winsorized means (wm), but not for sums, minima and maxima.
    """
    return statistic in ("Average", "p", "tm", "wm")


def samples_needed(percentile: float) -> float:
    """Return how many samples are necessary for a meaningful percentile (0 to 100)."""
    tail = min(percentile, 100 - percentile)
    return 100 * SAMPLES_PER_TAIL / tail if tail > 0 else 0.0


def suppress(before: Suppression, *, suppressor_in_alarm: bool, wait_s: float, extension_s: float, now_s: float) -> Suppression:
    """Return the next suppression state of a composite alarm whose actions have not run yet.

    The alarm waits `wait_s` seconds, because the suppressor can change to ALARM in this time. While the suppressor is in ALARM, and
    for `extension_s` seconds afterwards, the actions of the composite alarm are suppressed.
    """
    if suppressor_in_alarm:
        return Suppression("Alarm")
    if before.by == "Alarm":
        return Suppression("ExtensionPeriod", now_s + extension_s) if extension_s > 0 else Suppression()
    if before.by == "":
        return Suppression("WaitPeriod", now_s + wait_s) if wait_s > 0 else Suppression()
    assert before.until_s is not None
    return before if now_s < before.until_s else Suppression()
