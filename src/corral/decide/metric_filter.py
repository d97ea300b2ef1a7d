"""Metric filters: the datapoints that log events make by matching a pattern."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any

from corral.decide import log_pattern
from corral.decide.log_pattern.conditions import as_number
from corral.model.metric import DIMENSION_VALUE_MAX, LARGEST, UNITS, Dimensions, Metric, Point

MINUTE_MS = 60_000
PATTERNS_KEPT = 256

_parsed = lru_cache(PATTERNS_KEPT)(log_pattern.parse)


class Meter:
    """What one metric filter makes of a batch of events, which it is given piece by piece."""

    def __init__(self, details: Mapping[str, Any], region: str) -> None:
        """`details` are the filter's, as PutMetricFilter took them."""
        self._pattern = _parsed(details["filterPattern"])
        [self._said] = details["metricTransformations"]
        self._metric = Metric(region, self._said["metricNamespace"], self._said["metricName"])
        self._unit = self._said["unit"] if self._said.get("unit") in UNITS else "None"
        self._unmatched: dict[int, int] = {}  # minute → its first event
        self._matched: set[int] = set()  # minutes

    def points(self, events: Sequence[tuple[int, str]]) -> Iterator[Point]:
        """The datapoints of the next events, each of which has its time in milliseconds."""
        for at_ms, message in events:
            if not self._pattern.matches(message):
                self._unmatched.setdefault(at_ms // MINUTE_MS, at_ms)
                continue
            self._matched.add(at_ms // MINUTE_MS)
            found = self._pattern.extract(message)
            value, dimensions = _value(self._said["metricValue"], found), _dimensions(self._said.get("dimensions", {}), found)
            if value is not None and dimensions is not None:
                yield Point(self._metric._replace(dimensions=dimensions), at_ms / 1000, value, self._unit)

    def defaults(self) -> Iterator[Point]:
        """That was all: a minute of which no event matches has the default value, if there is one, and says so once."""
        default = self._said.get("defaultValue")
        for minute, at_ms in self._unmatched.items() if default is not None else ():
            if minute not in self._matched:
                yield Point(self._metric, at_ms / 1000, float(default), self._unit)


def _value(said: str, found: Mapping[str, str]) -> float | None:
    """A number, or the part of the event that the pattern calls so; what is no number makes no datapoint."""
    text = found.get(said, "") if said.startswith("$") else said
    value = float(text) if as_number(text) is not None else inf
    return value if -LARGEST <= value <= LARGEST else None


def _dimensions(said: Mapping[str, str], found: Mapping[str, str]) -> Dimensions | None:
    """None: the event does not have all of them."""
    values = {name: found.get(part, "") for name, part in said.items()}
    if not all(0 < len(value) <= DIMENSION_VALUE_MAX for value in values.values()):
        return None
    return tuple(sorted(values.items()))
