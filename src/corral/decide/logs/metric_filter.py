"""Metric filters of CloudWatch Logs. A metric filter turns log events that match a pattern into datapoints of a metric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any

from corral.decide.logs import pattern as log_pattern
from corral.decide.logs.pattern.conditions import as_number
from corral.model.durations import MINUTE_MS
from corral.model.metric import DIMENSION_VALUE_MAX, LARGEST_VALUE, UNITS, Dimensions, Metric, Point

CACHED_PATTERNS_MAX = 256

_parsed = lru_cache(CACHED_PATTERNS_MAX)(log_pattern.parse)


class MetricExtractor:
    """Extracts the datapoints of one metric filter from one batch of events."""

    def __init__(self, details: Mapping[str, Any], region: str) -> None:
        """`details` are the stored parameters of PutMetricFilter."""
        self._pattern = _parsed(details["filterPattern"])
        [self._transformation] = details["metricTransformations"]
        self._metric = Metric(region, self._transformation["metricNamespace"], self._transformation["metricName"])
        self._unit = self._transformation["unit"] if self._transformation.get("unit") in UNITS else "None"
        self._unmatched: dict[int, int] = {}  # minute → time of its first event that does not match
        self._matched: set[int] = set()  # minutes with an event that matches

    def points(self, events: Sequence[tuple[int, str]]) -> Iterator[Point]:
        """Return the datapoints of events, given as (milliseconds, message). A batch can be passed in several calls."""
        for at_ms, message in events:
            if not self._pattern.matches(message):
                self._unmatched.setdefault(at_ms // MINUTE_MS, at_ms)
                continue
            self._matched.add(at_ms // MINUTE_MS)
            found = self._pattern.extract(message)
            value = _value(self._transformation["metricValue"], found)
            dimensions = _dimensions(self._transformation.get("dimensions", {}), found)
            if value is not None and dimensions is not None:
                yield Point(self._metric._replace(dimensions=dimensions), at_ms / 1000, value, self._unit)

    def defaults(self) -> Iterator[Point]:
        """Return the filter's default value once for each minute that has events, but none that matches.

        Call this once, after all events of the batch.
        """
        default = self._transformation.get("defaultValue")
        for minute, at_ms in self._unmatched.items() if default is not None else ():
            if minute not in self._matched:
                yield Point(self._metric, at_ms / 1000, float(default), self._unit)


def _value(metric_value: str, found: Mapping[str, str]) -> float | None:
    """Return the value of metricValue, which is a number or names a field of the event, such as `$.size`.

    Return None if the field is not a number, or is too large. Such an event has no datapoint.
    """
    text = found.get(metric_value, "") if metric_value.startswith("$") else metric_value
    value = float(text) if as_number(text) is not None else inf
    return value if -LARGEST_VALUE <= value <= LARGEST_VALUE else None


def _dimensions(fields: Mapping[str, str], found: Mapping[str, str]) -> Dimensions | None:
    """Return the dimensions of the datapoint. Return None if a field that a dimension needs is missing or too long."""
    values = {name: found.get(part, "") for name, part in fields.items()}
    if not all(0 < len(value) <= DIMENSION_VALUE_MAX for value in values.values()):
        return None
    return tuple(sorted(values.items()))
