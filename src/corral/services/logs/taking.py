"""Events are taken: kept, told to those who wait for them, and searched for metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.core import Tx
from corral.decide.emf import MARK, embedded_points
from corral.model.metric import Point
from corral.services.cloudwatch.recording import hand_over_points
from corral.services.logs.naming import now_ms
from corral.telemetry import LogStore, Stream


def take(tx: Tx[LogStore], stream: Stream, events: Sequence[tuple[int, str]]) -> None:
    """The metrics that the events make are found here and handed over to the lane of metrics."""
    tx.store.append(stream, events, now_ms(tx))
    if events:
        tx.changed(f"stream:{stream.id}")
    points = [
        point for at_ms, message in events if MARK in message for point in embedded_points(message, stream.region, at_ms)
    ]  # fmt: skip
    if filters := tx.store.filters_of(stream.group_id):
        points += _filtered(filters, stream.region, events)
    if points:
        hand_over_points(tx, points)


def _filtered(filters: Sequence[Mapping[str, Any]], region: str, events: Sequence[tuple[int, str]]) -> list[Point]:
    from corral.decide.metric_filter import Meter  # only here: few have such filters, and patterns are a language

    meters = [Meter(details, region) for details in filters]
    found = [point for meter in meters for point in meter.points(events)]
    return found + [point for meter in meters for point in meter.defaults()]
