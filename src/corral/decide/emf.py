"""The embedded metric format: a log event that says of itself which of its members are metrics.

Today's form has its directives in `_aws`, next to a time in milliseconds. The CloudWatch agent still writes the form before it,
which has them at the top. What cannot be read as a metric stays what it also is: a log event.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

import orjson

from corral.model.metric import DIMENSION_VALUE_MAX, LARGEST, UNITS, Dimensions, Metric, Point, Sample

MARK = "CloudWatchMetrics"  # every such event has it
NAME_MAX = 255
METRICS_MAX = 100  # of a directive
VALUES_MAX = 100
DIMENSIONS_MAX = 30


def embedded_points(message: str, region: str, event_ms: int) -> Iterator[Point]:
    """The datapoints in a log event; `event_ms` is when it happened if it does not say so itself."""
    root = _object(message)
    about = root.get("_aws", root)
    if not isinstance(about, dict) or not isinstance(about.get(MARK), list):
        return
    at_s = _time_ms(about.get("Timestamp"), event_ms) / 1000
    for directive in about[MARK]:
        if isinstance(directive, dict) and _is_name(directive.get("Namespace")):
            yield from _points(root, directive, region, at_s)


def _points(root: dict[str, Any], directive: dict[str, Any], region: str, at_s: float) -> Iterator[Point]:
    listed = directive.get("Metrics")
    for metric in listed[:METRICS_MAX] if isinstance(listed, list) else ():
        name: Any = metric.get("Name") if isinstance(metric, dict) else None
        sample = _sample(root.get(name)) if _is_name(name) else None
        if sample is None:
            continue
        unit = metric["Unit"] if metric.get("Unit") in UNITS else "None"
        resolution_s = 1 if metric.get("StorageResolution") == 1 else 60
        for dimensions in _dimension_sets(root, directive.get("Dimensions")):
            yield Point(Metric(region, directive["Namespace"], name, dimensions), at_s, sample, unit, resolution_s)


def _dimension_sets(root: dict[str, Any], sets: Any) -> Iterator[Dimensions]:
    """One metric for each; a set that names a member that is not there makes none."""
    for keys in sets if isinstance(sets, list) and sets else [[]]:
        if not isinstance(keys, list) or len(keys) > DIMENSIONS_MAX:
            continue
        found = {key: str(root[key]) for key in keys if _is_name(key) and isinstance(root.get(key), str | int | float)}
        if len(found) == len(keys) and all(0 < len(value) <= DIMENSION_VALUE_MAX for value in found.values()):
            yield tuple(sorted(found.items()))


def _sample(value: Any) -> Sample | None:
    """A number, or several."""
    numbers = value if isinstance(value, list) else [value]
    good = [float(each) for each in numbers if isinstance(each, int | float) and not isinstance(each, bool)]
    if not good or len(good) < len(numbers) or len(good) > VALUES_MAX:
        return None
    if not all(isfinite(each) and -LARGEST <= each <= LARGEST for each in good):
        return None
    return good[0] if len(good) == 1 else [(each, 1.0) for each in good]


def _time_ms(said: Any, event_ms: int) -> float:
    """The older form writes a number as text."""
    if isinstance(said, str) and said.isascii() and said.isdigit():
        said = int(said)
    return said if isinstance(said, int | float) and not isinstance(said, bool) else event_ms


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= NAME_MAX and text.isascii() and text.isprintable()


def _object(message: str) -> dict[str, Any]:
    try:
        found = orjson.loads(message)
    except ValueError:  # a line that only mentions it
        return {}
    return found if isinstance(found, dict) else {}
