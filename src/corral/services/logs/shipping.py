"""The output of runs, as it arrives from hosts."""

from __future__ import annotations

from corral.core import Tx
from corral.model.run import LogChunk, LogTarget, StartOrder
from corral.services.logs.naming import now_ms
from corral.services.logs.taking import take
from corral.telemetry import LogStore

NO_GROUP = (
    "CannotStartContainerError: Error response from daemon: failed to initialize logging driver: failed to create Cloudwatch "
    "log stream: ResourceNotFoundException: The specified log group does not exist. "
    "Create it with: aws logs create-log-group --log-group-name {group} --region {region}"
)


def open_streams(tx: Tx[LogStore], starts: list[StartOrder]) -> dict[str, str]:
    """Make ready the streams of runs that are about to start; run id → why it cannot start."""
    refused = {}
    groups: dict[tuple[str, str], int] = {}  # many runs, few groups
    for start in starts:
        log, run_id = start.log, start.spec.run_id
        if log is None:
            continue
        group_id = groups.get((log.region, log.group)) or _group_id(tx, log)
        if group_id is None:
            refused[run_id] = NO_GROUP.format(group=log.group, region=log.region)
            continue
        groups[log.region, log.group] = group_id
        tx.store.open_shipment(run_id, tx.store.stream_id(group_id, log.stream, now_ms(tx)), now_ms(tx))
    return refused


def _group_id(tx: Tx[LogStore], log: LogTarget) -> int | None:
    group = tx.store.group(log.region, log.group)
    if group is None and log.create_group:
        tx.store.add_group(log.region, log.group, {}, now_ms(tx))
        group = tx.store.group(log.region, log.group)
    return None if group is None else group.id


def ship(tx: Tx[LogStore], chunks: list[LogChunk]) -> dict[str, int]:
    """Take runs' output; run id → how much of it we have. A chunk that does not continue there is left aside."""
    shipped = {}
    for chunk in chunks:
        known = tx.store.shipment(chunk.run_id)
        if known is None:  # nobody opened it: nothing to keep
            shipped[chunk.run_id] = chunk.end
            continue
        stream_id, so_far = known
        if chunk.start == so_far and chunk.end > so_far:
            stream = tx.store.stream_by_id(stream_id)
            if stream is not None:  # else it was deleted meanwhile
                take(tx, stream, chunk.events)
            so_far = chunk.end
            tx.store.set_shipped(chunk.run_id, so_far, now_ms(tx))
        shipped[chunk.run_id] = so_far
    return shipped
