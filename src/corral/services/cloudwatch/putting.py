"""PutMetricData: a request is taken whole or not at all, and is on disk before it is answered."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from corral.core import Tx
from corral.model.metric import LARGEST, Metric, Point, Sample, StatisticSet
from corral.services.caller import Caller
from corral.services.cloudwatch.naming import (
    InvalidParameterCombination,
    InvalidParameterValue,
    MissingParameter,
    dimension_faults,
    dimensions_of,
    text_faults,
)
from corral.services.cloudwatch.recording import AHEAD_S, PAST_S, record
from corral.telemetry import MetricStore

DATA_MAX = 1000
ENTITY_KEYS = {"Type", "ResourceType", "Identifier", "Name", "Environment"}


def put_metric_data(tx: Tx[MetricStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    namespace: str = params["Namespace"]
    groups = _groups(params)
    if not any(data for _, _, data in groups):
        raise MissingParameter("The parameter MetricData is required.")
    if sum(len(data) for _, _, data in groups) > DATA_MAX:
        raise InvalidParameterValue(f"The collection MetricData must not have a size greater than {DATA_MAX}.")
    faults: list[str] = []
    kept: list[tuple[dict[str, Any] | None, list[Point]]] = []
    for member, entity, data in groups:
        if entity is not None and (wrong := _entity_fault(entity)):
            if params.get("StrictEntityValidation"):
                raise InvalidParameterValue(wrong)
            entity = None  # the data are taken without it
        points = [_point(tx, caller.region, namespace, datum, f"{member}.{number}", faults) for number, datum in enumerate(data, 1)]
        kept.append((entity, points))
    if faults:
        raise InvalidParameterValue("\n".join(faults))
    for entity, points in kept:
        record(tx, points)
        if entity is not None:
            for metric in {point.metric for point in points}:
                tx.store.set_entity(metric, entity)
    return {}


def _groups(params: dict[str, Any]) -> list[tuple[str, dict[str, Any] | None, list[dict[str, Any]]]]:
    """(where they stand in the request, their entity, the data)"""
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
        return "The KeyAttributes of an Entity must be from 2 to 4 of Type, ResourceType, Identifier, Name and Environment."
    texts = [*keys.values(), *attributes.keys(), *attributes.values()]
    if len(attributes) > 10 or not all(1 <= len(text) <= 2048 for text in texts):
        return "An Entity must have at most 10 Attributes, of up to 2048 characters each."
    return None


def _point(tx: Tx[MetricStore], region: str, namespace: str, datum: dict[str, Any], member: str, faults: list[str]) -> Point:
    """One datum; what is wrong with it goes to `faults`."""
    name, listed = datum["MetricName"], datum.get("Dimensions", ())
    metric = Metric(region, namespace, name, dimensions_of(listed) if listed else ())
    if not tx.store.knows(metric):  # what is known was looked at when it came first
        faults += text_faults(name, f"{member}.MetricName")
        faults += dimension_faults(listed, f"{member}.Dimensions.member")
    unit, resolution_s = datum.get("Unit", "None"), datum.get("StorageResolution", 60)
    at_s = tx.now_s
    if "Timestamp" in datum:
        at_s = datum["Timestamp"]
        if at_s < tx.now_s - PAST_S:
            faults.append(f"The parameter {member}.Timestamp must specify a time within the past two weeks.")
        elif at_s > tx.now_s + AHEAD_S:
            faults.append(f"The parameter {member}.Timestamp must specify a time no more than two hours in the future.")
    return Point(metric, at_s, _sample(datum, member, faults), unit, resolution_s)


def _sample(datum: dict[str, Any], member: str, faults: list[str]) -> Sample:
    given = [key for key in ("Value", "StatisticValues", "Values") if key in datum]
    if not given:
        raise MissingParameter(
            f"At least one of the parameters {member}.Value, {member}.Values or {member}.StatisticValues must be specified."
        )
    if len(given) > 1:
        raise InvalidParameterCombination(
            f"The parameters {member}.{given[0]} and {member}.{given[1]} are mutually exclusive and you have specified both."
        )
    if given == ["Value"]:
        value = float(datum["Value"])
        if not -LARGEST <= value <= LARGEST:
            faults.append(_out_of_range(f"{member}.Value", value))
        return value
    if given == ["Values"]:
        return _counted(datum, member, faults)
    known = datum["StatisticValues"]
    said = StatisticSet(*(float(known[key]) for key in ("SampleCount", "Sum", "Minimum", "Maximum")))
    _check_numbers(said, f"{member}.StatisticValues", faults)
    if said.minimum > said.maximum:
        faults.append(f"The parameter {member}.StatisticValues.Maximum must be greater than or equal to the Minimum.")
    if said.samples <= 0:
        faults.append(f"The parameter {member}.StatisticValues.SampleCount must be greater than 0.")
    return said


def _counted(datum: dict[str, Any], member: str, faults: list[str]) -> Sample:
    values = [float(value) for value in datum["Values"]]
    counts = [float(count) for count in datum.get("Counts", [1.0] * len(values))]
    if not values:
        raise MissingParameter(f"The parameter {member}.Values must not be empty.")
    if len(counts) != len(values):
        faults.append(f"The parameters {member}.Values and {member}.Counts must be of the same size.")
    _check_numbers(values, f"{member}.Values", faults)
    if not all(isfinite(count) and 0 < count <= LARGEST for count in counts):
        faults.append(f"The parameter {member}.Counts must hold numbers greater than 0.")
    return list(zip(values, counts))


def _check_numbers(numbers: Iterable[float], member: str, faults: list[str]) -> None:
    faults += [_out_of_range(member, number) for number in numbers if not -LARGEST <= number <= LARGEST]


def _out_of_range(member: str, value: float) -> str:
    return f"The value {value} for parameter {member} is invalid: it must be a number from -2^360 to 2^360."
