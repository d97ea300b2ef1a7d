"""Ingestion of log events: storing them, extracting metrics from them, and the output of runs that hosts ship.

PutLogEvents and hosts use the same `ingest`. Hosts open a stream for each run before the run starts, then ship chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.core import Tx
from corral.decide.emf import BATCH_POINTS_MAX, batch_points
from corral.model.metric import Point
from corral.model.run import LogChunk, LogTarget, Observed, StartOrder
from corral.services.cloudwatch.metric_writes import hand_over_points
from corral.services.logs.common import now_ms
from corral.telemetry import LogStore, LogStream

NO_GROUP = (
    "CannotStartContainerError: Error response from daemon: failed to initialize logging driver: failed to create Cloudwatch "
    "log stream: ResourceNotFoundException: The specified log group does not exist. "
    "Create it with: aws logs create-log-group --log-group-name {group} --region {region}"
)
NO_NAMES: Mapping[str, str] = {}
POINTS_MIN = 100  # datapoints that each chunk of a report may contain in any case


def ingest(tx: Tx[LogStore], stream: LogStream, events: Sequence[tuple[int, str]], max_points: int = BATCH_POINTS_MAX) -> None:
    """Store events, wake readers that wait for them, and hand over the metrics in them to the metrics lane."""
    tx.store.append(stream, events, now_ms(tx))
    if events:
        tx.changed(f"stream:{stream.id}")
    points = batch_points(events, stream.region, max_points)
    if filters := tx.store.filters_of(stream.group_id):
        points += _filtered_points(filters, stream.region, events)
    if points:
        hand_over_points(tx, points)


def _filtered_points(filters: Sequence[Mapping[str, Any]], region: str, events: Sequence[tuple[int, str]]) -> list[Point]:
    """The datapoints of metric filters."""
    from corral.decide.metric_filter import MetricExtractor  # imported here because most groups have no metric filters

    extractors = [MetricExtractor(details, region) for details in filters]
    found = [point for extractor in extractors for point in extractor.points(events)]
    return found + [point for extractor in extractors for point in extractor.defaults()]


def open_streams(tx: Tx[LogStore], starts: list[StartOrder], *, as_containers: bool = False) -> dict[str, str]:
    """Create the streams of runs that are about to start. Returns run id → why that run cannot start.

    `as_containers`: the host runs images as containers. A stream with the name of a container is created by `ship`.
    """
    refused = {}
    groups: dict[tuple[str, str], int] = {}  # many runs share few groups
    for start in starts:
        log, run_id = start.log, start.spec.run_id
        if log is None:
            continue
        group_id = groups.get((log.region, log.group)) or _group_id(tx, log)
        if group_id is None:
            refused[run_id] = NO_GROUP.format(group=log.group, region=log.region)
            continue
        groups[log.region, log.group] = group_id
        is_named = not (as_containers and log.named_by_container)
        stream_id = tx.store.stream_id(group_id, log.stream, now_ms(tx)) if is_named else None
        tx.store.open_shipment(run_id, group_id, stream_id, now_ms(tx))
    return refused


def _group_id(tx: Tx[LogStore], log: LogTarget) -> int | None:
    group = tx.store.group(log.region, log.group)
    if group is None and log.create_group:
        tx.store.add_group(log.region, log.group, {}, now_ms(tx))
        group = tx.store.group(log.region, log.group)
    return None if group is None else group.id


def runtime_ids(runs: list[Observed]) -> dict[str, str]:
    """Run id → the runtime id of its container, for the runs of a host's message that are containers."""
    return {run.run_id: run.about["runtimeId"] for run in runs if run.about is not None and "runtimeId" in run.about}


def ship(tx: Tx[LogStore], chunks: list[LogChunk], names: Mapping[str, str] = NO_NAMES) -> dict[str, int]:
    """Store the output of runs. Returns run id → bytes stored so far. A chunk that does not start there is ignored.

    `names`: run id → the runtime id of its container, which is the name of its stream if the log driver has no prefix.
    """
    for run_id, name in names.items():
        tx.store.name_shipment(run_id, name, now_ms(tx))
    shipped = {}
    max_points = max(POINTS_MIN, BATCH_POINTS_MAX // max(1, len(chunks)))
    for chunk in chunks:
        known = tx.store.shipment(chunk.run_id)
        if known is None:  # the run has no log stream, so the output is dropped
            shipped[chunk.run_id] = chunk.end
            continue
        stream_id, so_far = known
        if stream_id is not None and chunk.start == so_far and chunk.end > so_far:
            stream = tx.store.stream_by_id(stream_id)
            if stream is not None:  # None: the stream was deleted in the meantime
                ingest(tx, stream, chunk.events, max_points)
            so_far = chunk.end
            tx.store.set_shipped(chunk.run_id, so_far, now_ms(tx))
        shipped[chunk.run_id] = so_far
    return shipped
