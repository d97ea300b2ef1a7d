"""Reads the embedded metric format (EMF): a JSON log event whose directives define which of its members are metrics.

In the current format, the member `_aws` contains the directives and a timestamp. In the older format, they are at the top level.
The CloudWatch agent still writes the older format. An invalid directive creates no metrics, but the log event is stored.

A short event can define very many datapoints, because each metric has one datapoint for each dimension set. So the number of
datapoints per event and per batch of events is limited. An event with more than EVENT_VALUES_MAX values is not parsed: the largest
useful event has 100 metrics of 100 values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from math import isfinite
from typing import Any

import orjson

from corral.model.metric import DIMENSION_VALUE_MAX, LARGEST_VALUE, UNITS, Dimensions, Metric, Point, Sample
from corral.model.numbers import whole_number

MARK = "CloudWatchMetrics"  # every event in this format contains this text
NAME_MAX = 255
METRICS_MAX = 100  # the maximum number of metrics in a directive
VALUES_MAX = 100  # the maximum number of values of a metric
DIMENSIONS_MAX = 30  # the maximum number of dimensions in a dimension set
EVENT_VALUES_MAX = 20_000  # the maximum number of values in the JSON of an event, estimated by its commas
EVENT_POINTS_MAX = 1_000  # the maximum number of datapoints in an event; PutMetricData has the same limit for a request
BATCH_POINTS_MAX = 10_000  # the maximum number of datapoints in a batch; PutLogEvents accepts as many events in a request
BATCH_COST_MAX = 4_000_000  # the maximum cost of a batch: the number of characters of all dimensions, plus ten for each value


def batch_points(events: Iterable[tuple[int, str]], region: str, limit: int = BATCH_POINTS_MAX) -> list[Point]:
    """Return the datapoints in a batch of log events, up to the limits of a batch.

    An event is a time in milliseconds and a message.
    """
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
    """Yield the datapoints in a log event. `event_ms` is the time of the datapoints if the JSON contains no valid timestamp."""
    if message.count(",") >= EVENT_VALUES_MAX:
        return
    root = _object(message)
    metadata = root.get("_aws", root)
    if not isinstance(metadata, dict) or not isinstance(metadata.get(MARK), list):
        return
    at_s = _time_ms(metadata.get("Timestamp"), event_ms) / 1000
    samples: dict[str, Sample | None] = {}  # several directives may name the same member, which can be a long list
    for directive in metadata[MARK]:
        if isinstance(directive, dict) and _is_name(directive.get("Namespace")):
            yield from _points(root, directive, samples, region, at_s)


def _points(
    root: dict[str, Any], directive: dict[str, Any], samples: dict[str, Sample | None], region: str, at_s: float
) -> Iterator[Point]:
    listed = directive.get("Metrics")
    sets = list(islice(_dimension_sets(root, directive.get("Dimensions")), EVENT_POINTS_MAX))
    for metric in listed[:METRICS_MAX] if isinstance(listed, list) else ():
        name: Any = metric.get("Name") if isinstance(metric, dict) else None
        if not _is_name(name):
            continue
        if name not in samples:
            samples[name] = _sample(root.get(name))
        sample = samples[name]
        if sample is None:
            continue
        unit = metric["Unit"] if metric.get("Unit") in UNITS else "None"
        resolution_s = 1 if metric.get("StorageResolution") == 1 else 60
        for dimensions in sets:
            yield Point(Metric(region, directive["Namespace"], name, dimensions), at_s, sample, unit, resolution_s)


def _dimension_sets(root: dict[str, Any], sets: Any) -> Iterator[Dimensions]:
    """Yield the dimensions of each valid dimension set. Skip a set if the event has no member for one of its dimensions."""
    for keys in sets if isinstance(sets, list) and sets else [[]]:
        if not isinstance(keys, list) or len(keys) > DIMENSIONS_MAX:
            continue
        found = {key: str(root[key]) for key in keys if _is_name(key) and isinstance(root.get(key), str | int | float)}
        if len(found) == len(keys) and all(0 < len(value) <= DIMENSION_VALUE_MAX for value in found.values()):
            yield tuple(sorted(found.items()))


def _sample(value: Any) -> Sample | None:
    """Convert a number, or a list of numbers, to a sample. Return None if the value is not valid."""
    numbers = value if isinstance(value, list) else [value]
    if len(numbers) > VALUES_MAX:
        return None
    good = [float(each) for each in numbers if isinstance(each, int | float) and not isinstance(each, bool)]
    if not good or len(good) < len(numbers):
        return None
    if not all(isfinite(each) and -LARGEST_VALUE <= each <= LARGEST_VALUE for each in good):
        return None
    return good[0] if len(good) == 1 else [(each, 1.0) for each in good]


def _time_ms(timestamp: Any, event_ms: int) -> float:
    """Return the timestamp in milliseconds, or `event_ms` if it is not valid.

    In the older format, a timestamp is a string of digits.
    """
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
