"""Ingestion of log events: store the events, and extract metrics from them.

`ingest` stores the events of PutLogEvents and the output of tasks. Before a run starts, `open_streams` creates its log stream. Then
the host of the run sends the output in chunks, and `ship` stores them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.core.transactions import Tx
from corral.decide.logs.emf import BATCH_POINTS_MAX, MARK, batch_points
from corral.model.agent_protocol import LogChunk, StartOrder
from corral.model.metric import RESERVED_NAMESPACES, Point
from corral.model.run import LogTarget, Observed
from corral.services.cloudwatch.metric_writes import hand_over_points
from corral.services.logs.common import now_ms
from corral.telemetry import LogStore, LogStream

NO_GROUP = (
    "CannotStartContainerError: Error response from daemon: failed to initialize logging driver: failed to create Cloudwatch "
    "log stream: ResourceNotFoundException: The specified log group does not exist. "
    "Create it with: aws logs create-log-group --log-group-name {group} --region {region}"
)
NO_NAMES: Mapping[str, str] = {}
PARSED_HERE_CHARACTERS = 16 * 1024  # to parse more embedded metrics would delay the other callers
POINTS_MIN = 100  # a chunk can always produce this many datapoints, even if a host sends many chunks at once


def ingest(tx: Tx[LogStore], stream: LogStream, events: Sequence[tuple[int, str]]) -> None:
    """Store events, wake the readers that wait for them, and send the metrics in the events to the metrics lane.

    Call this once for a command (see `_embedded_points`).
    """
    _store(tx, stream, events, *_embedded_points(tx, [(events, stream.region)], BATCH_POINTS_MAX))


def ingest_own(tx: Tx[LogStore], stream: LogStream, events: Sequence[tuple[int, str]]) -> None:
    """Do the same for events that Corral itself has written. Their metrics are few, so they are always parsed here."""
    _store(tx, stream, events, batch_points(events, stream.region))


def _store(tx: Tx[LogStore], stream: LogStream, events: Sequence[tuple[int, str]], points: list[Point]) -> None:
    tx.store.append(stream, events, now_ms(tx))
    if events:
        tx.changed(f"stream:{stream.id}")
    if filters := tx.store.filters_of(stream.group_id):
        points = points + _filtered_points(filters, stream.region, events)
    # As with PutMetricData, callers cannot write to the metrics of services, on which the fleets of others scale.
    if points := [point for point in points if not point.metric.namespace.startswith(RESERVED_NAMESPACES)]:
        hand_over_points(tx, points)


def _embedded_points(tx: Tx[LogStore], batches: Sequence[tuple[Sequence[tuple[int, str]], str]], limit: int) -> list[list[Point]]:
    """Return the datapoints in each batch of events. Another thread parses long events. Each batch has a region.

    Call this once for a command: if it needs the thread, the command is undone and runs again with the result.
    """
    marked = [([event for event in events if MARK in event[1]], region) for events, region in batches]
    if sum(len(message) for events, _ in marked for _, message in events) <= PARSED_HERE_CHARACTERS:
        return [batch_points(events, region, limit) if events else [] for events, region in marked]
    name = ("emf", tuple((region, *events) for events, region in marked))
    return tx.result_of(name, lambda: [batch_points(events, region, limit) for events, region in marked])


def write_events(tx: Tx[LogStore], region: str, group: str, stream: str, events: Sequence[tuple[int, str]], owner: str) -> None:
    """Write events to a stream for another service. The group and the stream are created for `owner` if they do not exist."""
    tx.store.add_group(region, group, {}, now_ms(tx), owner)
    found = tx.store.group(region, group)
    assert found is not None
    written = tx.store.stream_by_id(tx.store.stream_id(found.id, stream, now_ms(tx), owner))
    assert written is not None
    ingest(tx, written, events)


def _filtered_points(filters: Sequence[Mapping[str, Any]], region: str, events: Sequence[tuple[int, str]]) -> list[Point]:
    from corral.decide.logs.metric_filter import MetricExtractor  # imported only here, because most groups have no metric filters

    extractors = [MetricExtractor(details, region) for details in filters]
    found = [point for extractor in extractors for point in extractor.points(events)]
    return found + [point for extractor in extractors for point in extractor.defaults()]


def open_streams(tx: Tx[LogStore], starts: list[StartOrder], *, as_containers: bool = False) -> dict[str, str]:
    """Create the log streams of runs that are about to start. Return the runs that cannot start: run id → reason.

    `as_containers` means that the host runs images as Docker containers. If the log driver of a container has no prefix, the name
    of its stream is Docker's id of the container. This id is not known before the start, so `ship` creates the stream later.
    """
    refused = {}
    groups: dict[tuple[str, str], int] = {}  # a cache, because many runs use the same group
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
        stream_id = tx.store.stream_of_task(group_id, log.stream, now_ms(tx), log.owner) if is_named else None
        tx.store.open_shipment(run_id, group_id, stream_id, now_ms(tx), log.owner)
    return refused


def _group_id(tx: Tx[LogStore], log: LogTarget) -> int | None:
    group = tx.store.group(log.region, log.group)
    if group is None and log.create_group:
        tx.store.add_group(log.region, log.group, {}, now_ms(tx), log.group_owner)
        group = tx.store.group(log.region, log.group)
    return None if group is None else group.id


def runtime_ids(runs: list[Observed]) -> dict[str, str]:
    """Return the runtime id (Docker's id) of each container in a host's report, by run id."""
    return {run.run_id: run.about["runtimeId"] for run in runs if run.about is not None and "runtimeId" in run.about}


def ship(tx: Tx[LogStore], chunks: list[LogChunk], names: Mapping[str, str] = NO_NAMES) -> dict[str, int]:
    """Store chunks of output. Return the number of bytes stored so far for each run: run id → bytes.

    A chunk that does not start at this number of bytes is ignored. `names` has the runtime id of each container, by run id. If the
    log driver of a container has no prefix, the runtime id is the name of its log stream.
    """
    for run_id, name in names.items():
        tx.store.name_shipment(run_id, name, now_ms(tx))
    shipped = {}
    accepted: list[tuple[LogChunk, LogStream, list[tuple[int, str]]]] = []
    for chunk in chunks:
        known = tx.store.shipment(chunk.run_id)
        if known is None:  # the run has no log stream, so the output is dropped
            shipped[chunk.run_id] = chunk.end
            continue
        stream_id, so_far = known
        if stream_id is not None and chunk.start == so_far and chunk.end > so_far:
            stream = tx.store.stream_by_id(stream_id)
            if stream is not None:  # it is None if the stream was deleted in the meantime
                accepted.append((chunk, stream, _in_order(chunk.events, stream)))
            so_far = chunk.end
            tx.store.set_shipped(chunk.run_id, so_far, chunk.size, now_ms(tx))
        elif chunk.size > so_far:
            tx.store.set_shipped(chunk.run_id, so_far, chunk.size, now_ms(tx))
        shipped[chunk.run_id] = so_far
    max_points = max(POINTS_MIN, BATCH_POINTS_MAX // max(1, len(chunks)))
    found = _embedded_points(tx, [(events, stream.region) for _, stream, events in accepted], max_points)
    for (chunk, stream, events), points in zip(accepted, found, strict=True):
        _store(tx, stream, events, points)
        if chunk.dropped:
            tx.store.add_dropped(stream.id, chunk.dropped)
    return shipped


def _in_order(events: list[tuple[int, str]], stream: LogStream) -> list[tuple[int, str]]:
    """If the clock of the host was set back, move the events to the time of the last stored event.

    Otherwise a client that follows the log would not see them, because it has already read this part of the log.
    """
    last_ms = stream.last_ms
    if last_ms is None or not events or events[0][0] >= last_ms:
        return events
    return [(max(at_ms, last_ms), text) for at_ms, text in events]
