"""Datapoints of metric filters."""

from __future__ import annotations

from typing import Any

import pytest

from corral.decide.logs.metric_filter import MetricExtractor
from corral.model.metric import Metric

AT_MS = 1_700_000_040_000  # a whole minute
LATENCY = '{"latency": 50, "kind": "GET", "name": "x"}'


def points(pattern: str, *messages: str, **members: Any) -> list[tuple[float, Any]]:
    """(seconds after AT_MS, value) of the datapoints from messages that are 20 seconds apart."""
    transformation = {"metricNamespace": "N", "metricName": "M", "metricValue": "1", **members}
    details = {"filterPattern": pattern, "metricTransformations": [transformation]}
    events = [(AT_MS + 20_000 * number, message) for number, message in enumerate(messages)]
    extractor = MetricExtractor(details, "r")
    found = [*extractor.points(events[:2]), *extractor.points(events[2:]), *extractor.defaults()]
    return [(point.at_s - AT_MS / 1000, point.sample) for point in found]


@pytest.mark.parametrize(
    ("pattern", "messages", "members", "expected"),
    [
        ("ERROR", ["ERROR a", "fine", "ERROR b"], {}, [(0, 1.0), (40, 1.0)]),
        ("", ["any"], {"metricValue": "2.5"}, [(0, 2.5)]),
        ("{ $.latency = * }", [LATENCY, '{"latency": "none"}', "no json"], {"metricValue": "$.latency"}, [(0, 50.0)]),
        ('{ $.kind = "GET" }', [LATENCY], {"metricValue": "$.latency"}, []),  # the pattern must name what it takes
        ("[ip, user, status = 4*, bytes]", ["1.2.3.4 me 404 1534", "1.2.3.4 me 200 9"], {"metricValue": "$bytes"}, [(0, 1534.0)]),
        ("[, , size]", ["a b 7"], {"metricValue": "$size"}, [(0, 7.0)]),
        ("x", ["x"], {"metricValue": "NaN"}, []),
        ("x", ["x"], {"metricValue": "1_000"}, []),
        ("x", ["x"], {"metricValue": "1e109"}, []),  # more than CloudWatch takes
        ("x", ["x"], {"metricValue": "$x"}, []),
        # By default: once for each minute of which no event matches.
        ("ERROR", ["a", "b", "c", "d", "ERROR", "e", "f"], {"defaultValue": 0.0}, [(80, 1.0), (0, 0.0), (120, 0.0)]),
        ("ERROR", ["ERROR", "a", "b"], {"defaultValue": 0.0}, [(0, 1.0)]),  # whichever piece the match was in
        ("ERROR", ["a"], {"defaultValue": None}, []),
    ],
)
def test_points(pattern: str, messages: list[str], members: dict[str, Any], expected: list[tuple[float, float]]) -> None:
    assert points(pattern, *messages, **members) == expected


def test_dimensions_and_unit() -> None:
    transformation = {
        "metricNamespace": "N", "metricName": "M", "metricValue": "$.latency", "unit": "Milliseconds",
        "dimensions": {"Kind": "$.kind", "Also": "$.name"},
    }  # fmt: skip
    pattern = "{ $.latency = * && $.kind = * && ($.name = * || $.name NOT EXISTS) }"
    events = [(AT_MS, LATENCY), (AT_MS, '{"latency": 1, "kind": "GET"}')]
    [point] = MetricExtractor({"filterPattern": pattern, "metricTransformations": [transformation]}, "r").points(events)
    assert point.metric == Metric("r", "N", "M", (("Also", "x"), ("Kind", "GET")))
    assert (point.sample, point.unit) == (50.0, "Milliseconds")
