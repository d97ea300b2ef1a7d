"""The embedded metric format: a JSON log event that declares which of its members are metrics.

The current form has its directives and a timestamp in `_aws`. The CloudWatch agent still writes the older form, which has them at
the top level. Invalid directives make no metrics; the log event is stored in any case.

A short event can declare very many datapoints, because each metric has one for each dimension set. So the datapoints of one event
and of a batch of events are limited.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from math import isfinite
from typing import Any

import orjson

from corral.model.metric import DIMENSION_VALUE_MAX, LARGEST_VALUE, UNITS, Dimensions, Metric, Point, Sample
from corral.model.numbers import whole_number

MARK = "CloudWatchMetrics"  # every event in this format contains it
NAME_MAX = 255
METRICS_MAX = 100  # per directive
VALUES_MAX = 100  # per metric
DIMENSIONS_MAX = 30  # per dimension set
EVENT_POINTS_MAX = 1_000  # per event, as PutMetricData accepts per request
BATCH_POINTS_MAX = 10_000  # per batch of events: one for each event of the largest PutLogEvents
BATCH_COST_MAX = 4_000_000  # per batch: the characters of all dimensions, and ten for each value


def batch_points(events: Iterable[tuple[int, str]], region: str, limit: int = BATCH_POINTS_MAX) -> list[Point]:
    """The datapoints in a batch of log events, (time in milliseconds, message), up to the limits of a batch."""
    points: list[Point] = []
    cost = 0
    for at_ms, message in events:
        if MARK not in message:
            continue
        for point in islice(embedded_points(message, region, at_ms), EVENT_POINTS_MAX):
            cost += 10 * len(point.sample) if isinstance(point.sample, list) else 10
            cost += sum(len(name) + len(value) for name, value in point.metric.dimensions)
            if len(points) >= limit or cost > BATCH_COST_MAX:
                return points
            points.append(point)
    return points


def embedded_points(message: str, region: str, event_ms: int) -> Iterator[Point]:
    """The datapoints in a log event. `event_ms` is the time of an event without a timestamp in its JSON."""
    root = _object(message)
    metadata = root.get("_aws", root)
    if not isinstance(metadata, dict) or not isinstance(metadata.get(MARK), list):
        return
    at_s = _time_ms(metadata.get("Timestamp"), event_ms) / 1000
    for directive in metadata[MARK]:
        if isinstance(directive, dict) and _is_name(directive.get("Namespace")):
            yield from _points(root, directive, region, at_s)


def _points(root: dict[str, Any], directive: dict[str, Any], region: str, at_s: float) -> Iterator[Point]:
    listed = directive.get("Metrics")
    sets = list(islice(_dimension_sets(root, directive.get("Dimensions")), EVENT_POINTS_MAX))
    for metric in listed[:METRICS_MAX] if isinstance(listed, list) else ():
        name: Any = metric.get("Name") if isinstance(metric, dict) else None
        sample = _sample(root.get(name)) if _is_name(name) else None
        if sample is None:
            continue
        unit = metric["Unit"] if metric.get("Unit") in UNITS else "None"
        resolution_s = 1 if metric.get("StorageResolution") == 1 else 60
        for dimensions in sets:
            yield Point(Metric(region, directive["Namespace"], name, dimensions), at_s, sample, unit, resolution_s)


def _dimension_sets(root: dict[str, Any], sets: Any) -> Iterator[Dimensions]:
    """The dimensions of each valid set. A set that names a missing member is skipped."""
    for keys in sets if isinstance(sets, list) and sets else [[]]:
        if not isinstance(keys, list) or len(keys) > DIMENSIONS_MAX:
            continue
        found = {key: str(root[key]) for key in keys if _is_name(key) and isinstance(root.get(key), str | int | float)}
        if len(found) == len(keys) and all(0 < len(value) <= DIMENSION_VALUE_MAX for value in found.values()):
            yield tuple(sorted(found.items()))


def _sample(value: Any) -> Sample | None:
    """A number, or a list of numbers."""
    numbers = value if isinstance(value, list) else [value]
    good = [float(each) for each in numbers if isinstance(each, int | float) and not isinstance(each, bool)]
    if not good or len(good) < len(numbers) or len(good) > VALUES_MAX:
        return None
    if not all(isfinite(each) and -LARGEST_VALUE <= each <= LARGEST_VALUE for each in good):
        return None
    return good[0] if len(good) == 1 else [(each, 1.0) for each in good]


def _time_ms(timestamp: Any, event_ms: int) -> float:
    """The older form writes the timestamp as a string of digits."""
    if isinstance(timestamp, str):
        timestamp = whole_number(timestamp)
    return timestamp if isinstance(timestamp, int | float) and not isinstance(timestamp, bool) else event_ms


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and 0 < len(text) <= NAME_MAX and text.isascii() and text.isprintable()


def _object(message: str) -> dict[str, Any]:
    try:
        found = orjson.loads(message)
    except ValueError:  # the message is not JSON
        return {}
    return found if isinstance(found, dict) else {}
