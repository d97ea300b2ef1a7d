"""CloudWatch's statistics: parse their names, and compute their values for the samples of a period."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf

from msgspec import Struct

from corral.model.metric import Summary

SIMPLE = ("SampleCount", "Average", "Sum", "Minimum", "Maximum")
NUMBER = r"\d+(?:\.\d{0,10})?(?:[Ee][+-]?\d+)?"
SHORT = re.compile(r"(p|tm|wm|tc|ts)(\d{1,2}(?:\.\d{0,10})?|100(?:\.0{0,10})?)", re.IGNORECASE)
BETWEEN = re.compile(rf"(TM|WM|TC|TS|PR)\(({NUMBER}%?)?:({NUMBER}%?)?\)", re.IGNORECASE)


class Statistic(Struct, frozen=True):
    """A simple statistic, or a statistic of the values between two boundaries."""

    kind: str  # one of SIMPLE, or p, tm, wm, tc, ts, pr
    low: float = 0.0
    high: float = 100.0
    percent: bool = True  # True: the boundaries are percentages of the samples; False: they are values

    @property
    def needs_values(self) -> bool:
        return self.kind not in SIMPLE


def parse_statistic(text: str) -> Statistic | None:
    """Parse the name of a statistic, such as `p99`. Return None if the text is not a statistic."""
    if text in SIMPLE:
        return Statistic(text)
    if text.lower() == "iqm":
        return Statistic("tm", 25.0, 75.0)
    if short := SHORT.fullmatch(text):
        return Statistic(short[1].lower(), 0.0, float(short[2]))
    between = BETWEEN.fullmatch(text)
    if between is None or not (between[2] or between[3]):
        return None
    kind, ends = between[1].lower(), [end for end in between.groups()[1:] if end]
    percent = ends[0].endswith("%")
    if any(end.endswith("%") is not percent for end in ends) or (percent and kind == "pr"):
        return None
    low = float(between[2].rstrip("%")) if between[2] else 0.0 if percent else -inf
    high = float(between[3].rstrip("%")) if between[3] else 100.0 if percent else inf
    return Statistic(kind, low, high, percent) if low < high and (not percent or high <= 100) else None


def value_of(summary: Summary, statistic: Statistic) -> float | None:
    """Return the value of a statistic for a summary of samples.

    A statistic such as p99 needs the single values. Return None for it if the values are unknown or some are negative.
    """
    match statistic.kind:
        case "SampleCount":
            return summary.count
        case "Sum":
            return summary.sum
        case "Minimum":
            return summary.minimum
        case "Maximum":
            return summary.maximum
        case "Average":
            return summary.sum / summary.count if summary.count else None
    if summary.weights is None or summary.minimum < 0 or not summary.count:
        return None
    if statistic.kind == "p":
        return _percentile(summary, statistic.high)
    inside = list(_inside(summary, statistic))
    weight = sum(weight for _, weight in inside)
    match statistic.kind:
        case "pr":
            return 100.0 * weight / _total(summary)
        case "tc":
            return weight
        case "ts":
            return sum(value * weight for value, weight in inside)
        case "tm":
            return sum(value * weight for value, weight in inside) / weight if weight else None
    return _winsorized(summary, statistic, inside)


def _ordered(summary: Summary) -> list[tuple[float, float]]:
    """Return (value, number of samples) pairs, sorted by value.

    A value can be the center of a histogram bucket. So it is limited to the true minimum and maximum.
    """
    assert summary.weights is not None
    return sorted((min(max(value, summary.minimum), summary.maximum), weight) for value, weight in summary.weights.items())


def _total(summary: Summary) -> float:
    assert summary.weights is not None
    return sum(summary.weights.values())


def _percentile(summary: Summary, percent: float) -> float:
    """Return the smallest value such that at least `percent` percent of the samples are less than or equal to it."""
    if percent <= 0:
        return summary.minimum
    rank, seen = percent / 100.0 * _total(summary), 0.0
    for value, weight in _ordered(summary):
        seen += weight
        if seen >= rank * (1 - 1e-12):
            return value
    return summary.maximum


def _inside(summary: Summary, statistic: Statistic) -> Iterator[tuple[float, float]]:
    """Return the samples above the low boundary and up to the high boundary.

    A percentage boundary can divide the samples of one value. Then only a part of their weight counts.
    """
    if not statistic.percent:
        yield from ((value, weight) for value, weight in _ordered(summary) if statistic.low < value <= statistic.high)
        return
    total, seen = _total(summary), 0.0
    low, high = statistic.low / 100.0 * total, statistic.high / 100.0 * total
    for value, weight in _ordered(summary):
        part = min(seen + weight, high) - max(seen, low)
        if part > 0:
            yield value, part
        seen += weight


def _winsorized(summary: Summary, statistic: Statistic, inside: list[tuple[float, float]]) -> float | None:
    """Return the winsorized mean: values outside the boundaries are replaced by the nearest boundary."""
    total = _total(summary)
    if not statistic.percent:
        return sum(min(max(value, statistic.low), statistic.high) * weight for value, weight in _ordered(summary)) / total
    if not inside:
        return None
    below, above = statistic.low / 100.0 * total, (100.0 - statistic.high) / 100.0 * total
    middle = sum(value * weight for value, weight in inside)
    return (inside[0][0] * below + middle + inside[-1][0] * above) / total
