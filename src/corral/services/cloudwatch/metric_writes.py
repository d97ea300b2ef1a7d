"""PutMetricData, and the function `record`, which writes all datapoints to the metric store.

Datapoints come from PutMetricData, from log events (`hand_over_points`), and from Corral's own measurements (`own=True`). The
metric store is the database of the metrics lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.metric import AHEAD_S, LARGEST_VALUE, OLDEST_S, RESERVED_NAMESPACES, Metric, Point, Sample, StatisticSet
from corral.services.cloudwatch import errors
from corral.services.cloudwatch.common import dimension_faults, dimensions_of, text_faults
from corral.telemetry import MetricStore

HANDED_OVER_MAX = 100  # the maximum number of series in a payload; the metrics lane stores this many new series in about 5 ms
DATA_MAX = 1000  # the maximum number of datapoints in one request, over all its entities
ENTITY_KEYS = {"Type", "ResourceType", "Identifier", "Name", "Environment"}


# Storing datapoints


def record(tx: Tx[MetricStore], points: Sequence[Point], *, own: bool = False) -> int | None:
    """Store points, and evaluate or schedule the alarms on their series. Return the shortest period of these alarms, or None.

    The points are on disk when this transaction has committed. Points that Corral measures itself each second (`own`) are
    different: they stay in memory and are written every few seconds. Readers see them at once, but a crash can lose the points of
    the last seconds. If a collector writes the same series, for example the CloudWatch agent in a task, Corral's own points are
    dropped.
    """
    if own:
        points = tx.store.without_collected(points, tx.now_s)
        tx.store.append_buffered(points, tx.now_s)
    else:
        tx.store.note_collected(points, tx.now_s)
        tx.store.append(points, tx.now_s)
    return _wake_alarms(tx, points) if tx.store.alarms.watching else None


def _wake_alarms(tx: Tx[MetricStore], points: Sequence[Point]) -> int | None:
    """Schedule the alarms on these points for the end of the window of each point. Return the shortest period of these alarms.

    An alarm is evaluated now if the window has already ended, or if the alarm may change its state before the window ends.
    """
    from corral.services.cloudwatch.alarm_config import timed_config  # imported here because most users have no alarms

    alarms, shortest_s = tx.store.alarms, None
    for point in points:
        if point.metric not in alarms.watching:
            continue
        alarms.note_resolution(point.metric, point.resolution_s)
        for alarm in alarms.watchers(point.metric):
            config = timed_config(alarm, tx.settings)
            shortest_s = config.period_s if shortest_s is None else min(shortest_s, config.period_s)
            end_s = config.last_end_s(point.at_s) + config.step_s
            if end_s <= tx.now_s:
                alarms.set_evaluated(alarm.id, 0.0)
                tx.mark(f"alarm:{alarm.id}")
                continue
            alarms.wake(alarm.id, end_s)
            if tx.settings.alarm_timing == "fast" and (config.own or config.tracks or config.may_alarm_early):
                tx.mark(f"alarm:{alarm.id}")
    return shortest_s


def hand_over_points(tx: Tx[Any], points: Sequence[Point]) -> None:
    """Send points from another lane to the metrics lane, where `receive_points` records them.

    As on CloudWatch, points that are too old or too far in the future are dropped.
    """
    series: dict[tuple[Metric, str, int], list[tuple[float, Sample]]] = {}
    for metric, at_s, sample, unit, resolution_s in points:
        if tx.wall_s - OLDEST_S <= at_s <= tx.wall_s + AHEAD_S:
            series.setdefault((metric, unit, resolution_s), []).append((at_s, sample))
    if series:
        payload = [[*metric, unit, resolution_s, samples] for (metric, unit, resolution_s), samples in series.items()]
        for at in range(0, len(payload), HANDED_OVER_MAX):
            tx.hand_over("metrics", "points", payload[at : at + HANDED_OVER_MAX])


def receive_points(tx: Tx[MetricStore], series: list[list[Any]]) -> None:
    points = []
    for region, namespace, name, dimensions, unit, resolution_s, samples in series:
        metric = Metric(region, namespace, name, tuple((key, value) for key, value in dimensions))
        points += [Point(metric, at_s, sample, unit, resolution_s) for at_s, sample in samples]
    record(tx, points)


# PutMetricData


def put_metric_data(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Store all datapoints of a request, or none of them. The error text lists all faults of the request."""
    namespace: str = params["Namespace"]
    if (reserved := next((each for each in RESERVED_NAMESPACES if namespace.startswith(each)), None)) is not None:
        raise errors.InvalidParameterValueException(f"The value {reserved} for parameter Namespace is invalid.")
    groups = _groups(params)
    if not any(data for _, _, data in groups):
        raise errors.MissingRequiredParameterException("The parameter MetricData is required.")
    if sum(len(data) for _, _, data in groups) > DATA_MAX:
        raise errors.InvalidParameterValueException(f"The collection MetricData must not have a size greater than {DATA_MAX}.")
    faults: list[str] = []
    parsed: list[tuple[dict[str, Any] | None, list[Point]]] = []
    for member, entity, data in groups:
        if entity is not None and (fault := _entity_fault(entity)):
            if params.get("StrictEntityValidation"):
                raise errors.InvalidParameterValueException(fault)
            entity = None  # as on CloudWatch, the data is stored without the invalid entity
        points = [_point(tx, caller.region, namespace, datum, f"{member}.{number}", faults) for number, datum in enumerate(data, 1)]
        parsed.append((entity, points))
    if faults:
        raise errors.InvalidParameterValueException("\n".join(faults))
    for entity, points in parsed:
        record(tx, points)
        if entity is not None:
            for metric in {point.metric for point in points}:
                tx.store.set_entity(metric, entity)
    return {}


def _groups(params: dict[str, Any]) -> list[tuple[str, dict[str, Any] | None, list[dict[str, Any]]]]:
    """Return (path in the request, entity, data) for each group of data in the request."""
    entities = params.get("EntityMetricData", [])
    found: list[tuple[str, dict[str, Any] | None, list[dict[str, Any]]]] = [
        ("MetricData.member", None, params.get("MetricData", []))
    ]
    for number, each in enumerate(entities, 1):
        found.append((f"EntityMetricData.member.{number}.MetricData.member", each.get("Entity"), each.get("MetricData", [])))
    return found


def _entity_fault(entity: dict[str, Any]) -> str | None:
    keys, attributes = entity.get("KeyAttributes", {}), entity.get("Attributes", {})
    if not 2 <= len(keys) <= 4 or not set(keys) <= ENTITY_KEYS or "Type" not in keys:
        return "The KeyAttributes of an Entity must have Type, and 1 to 3 of ResourceType, Identifier, Name and Environment."
    texts = [*keys.values(), *attributes.keys(), *attributes.values()]
    if len(attributes) > 10 or not all(1 <= len(text) <= 2048 for text in texts):
        return "An Entity must have at most 10 Attributes, of up to 2048 characters each."
    return None


def _point(tx: Tx[MetricStore], region: str, namespace: str, datum: dict[str, Any], member: str, faults: list[str]) -> Point:
    """Parse one datum of a request. Append the error texts to `faults`."""
    name, listed = datum["MetricName"], datum.get("Dimensions", ())
    metric = Metric(region, namespace, name, dimensions_of(listed) if listed else ())
    if not tx.store.knows(metric):  # the names of a known series were checked when its first point was stored
        faults += text_faults(name, f"{member}.MetricName")
        faults += dimension_faults(listed, f"{member}.Dimensions.member")
    unit, resolution_s = datum.get("Unit", "None"), datum.get("StorageResolution", 60)
    at_s = tx.now_s
    if "Timestamp" in datum:
        at_s = datum["Timestamp"]
        if at_s < tx.now_s - OLDEST_S:
            faults.append(f"The parameter {member}.Timestamp must specify a time within the past two weeks.")
        elif at_s > tx.now_s + AHEAD_S:
            faults.append(f"The parameter {member}.Timestamp must specify a time no more than two hours in the future.")
    return Point(metric, at_s, _sample(datum, member, faults), unit, resolution_s)


def _sample(datum: dict[str, Any], member: str, faults: list[str]) -> Sample:
    given = [key for key in ("Value", "Values", "StatisticValues") if key in datum]
    if not given:
        raise errors.MissingRequiredParameterException(
            f"At least one of the parameters {member}.Value, {member}.Values or {member}.StatisticValues must be specified."
        )
    if given[0] == "Value" and len(given) > 1:
        raise errors.InvalidParameterCombinationException(
            f"The parameters {member}.{given[0]} and {member}.{given[1]} are mutually exclusive and you have specified both."
        )
    if given == ["Value"]:
        value = float(datum["Value"])
        if not -LARGEST_VALUE <= value <= LARGEST_VALUE:
            faults.append(_out_of_range(f"{member}.Value", value))
        return value
    if given[0] == "Values":  # as CloudWatch, accept StatisticValues together with Values
        return _counted(datum, member, faults)
    values = datum["StatisticValues"]
    statistics = StatisticSet(*(float(values[key]) for key in ("SampleCount", "Sum", "Minimum", "Maximum")))
    _check_numbers(statistics, f"{member}.StatisticValues", faults)
    if statistics.minimum > statistics.maximum:
        faults.append(f"The parameter {member}.StatisticValues.Maximum must be greater than or equal to the Minimum.")
    if statistics.samples <= 0:
        faults.append(f"The parameter {member}.StatisticValues.SampleCount must be greater than 0.")
    return statistics


def _counted(datum: dict[str, Any], member: str, faults: list[str]) -> Sample:
    values = [float(value) for value in datum["Values"]]
    counts = [float(count) for count in datum.get("Counts", [1.0] * len(values))]
    if not values:
        raise errors.MissingRequiredParameterException(f"The parameter {member}.Values must not be empty.")
    if len(counts) != len(values):
        faults.append(f"The parameters {member}.Values and {member}.Counts must be of the same size.")
    _check_numbers(values, f"{member}.Values", faults)
    if not all(isfinite(count) and 0 < count <= LARGEST_VALUE for count in counts):
        faults.append(f"The parameter {member}.Counts must contain numbers greater than 0.")
    return list(zip(values, counts))


def _check_numbers(numbers: Iterable[float], member: str, faults: list[str]) -> None:
    faults += [_out_of_range(member, number) for number in numbers if not -LARGEST_VALUE <= number <= LARGEST_VALUE]


def _out_of_range(member: str, value: float) -> str:
    return f"The value {value} for parameter {member} is invalid: it must be a number from -2^360 to 2^360."
