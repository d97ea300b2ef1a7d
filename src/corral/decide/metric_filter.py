"""Metric filters: the datapoints that log events make by matching a pattern."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any

from corral.decide import log_pattern
from corral.model.metric import UNITS, Dimensions, Metric, Point

MINUTE_MS = 60_000
PATTERNS_KEPT = 256
VALUE_MAX = 1024

_parsed = lru_cache(PATTERNS_KEPT)(log_pattern.parse)


def filtered_points(details: Mapping[str, Any], region: str, events: Sequence[tuple[int, str]]) -> Iterator[Point]:
    """`details` are a filter's, as PutMetricFilter took them; each event has its time in milliseconds.

    A minute of which no event matches has the default value, if there is one, and says so once.
    """
    pattern = _parsed(details["filterPattern"])
    [transformation] = details["metricTransformations"]
    named = Metric(region, transformation["metricNamespace"], transformation["metricName"], ())
    unit = transformation["unit"] if transformation.get("unit") in UNITS else "None"
    unmatched: dict[int, int] = {}  # minute → its first event
    matched: set[int] = set()
    for at_ms, message in events:
        if not pattern.matches(message):
            unmatched.setdefault(at_ms // MINUTE_MS, at_ms)
            continue
        matched.add(at_ms // MINUTE_MS)
        found = pattern.extract(message)
        value, dimensions = _value(transformation["metricValue"], found), _dimensions(transformation.get("dimensions", {}), found)
        if value is not None and dimensions is not None:
            yield Point(named._replace(dimensions=dimensions), at_ms / 1000, value, unit)
    default = transformation.get("defaultValue")
    for minute, at_ms in unmatched.items() if default is not None else ():
        if minute not in matched:
            yield Point(named, at_ms / 1000, float(default), unit)


def _value(said: str, found: Mapping[str, str]) -> float | None:
    """A number, or the part of the event that the pattern calls so; what is no number makes no datapoint."""
    try:
        value = float(found[said] if said.startswith("$") else said)
    except (KeyError, ValueError):
        return None
    return value if isfinite(value) else None


def _dimensions(said: Mapping[str, str], found: Mapping[str, str]) -> Dimensions | None:
    """None: the event does not have all of them."""
    values = {name: found.get(part, "") for name, part in said.items()}
    if not all(0 < len(value) <= VALUE_MAX for value in values.values()):
        return None
    return tuple(sorted(values.items()))
