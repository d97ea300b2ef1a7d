"""CloudWatch Logs: groups, streams, events, and the output of runs that arrives from hosts."""

from __future__ import annotations

import re
import sqlite3
from itertools import pairwise
from typing import Any

from corral.core import Tx, Wait
from corral.errors import api_error
from corral.model.run import LOG_EVENT_MAX_BYTES, LogChunk, Start
from corral.services.caller import Caller
from corral.services.tokens import unwrap, wrap
from corral.telemetry import Event, LogStore, Stream
from corral.telemetry.logs import read_events

InvalidParameterException = api_error("InvalidParameterException")
ResourceAlreadyExistsException = api_error("ResourceAlreadyExistsException")
ResourceNotFoundException = api_error("ResourceNotFoundException")

GROUP_NAME = re.compile(r"[.\-_/#A-Za-z0-9]{1,512}")
STREAM_NAME = re.compile(r"[^:*]{1,512}")
EVENT_OVERHEAD_BYTES = 26
BATCH_MAX_BYTES = 1_048_576
BATCH_MAX_EVENTS = 10_000
PAGE_MAX_EVENTS = 10_000
PAGE_MAX_BYTES = 1_048_576
TOO_NEW_MS = 2 * 3600 * 1000
TOO_OLD_MS = 14 * 86_400 * 1000
SPAN_MAX_MS = 86_400 * 1000
WAIT_MAX_S = 60.0
LAST = (2**62, 0)

NO_GROUP = (
    "CannotStartContainerError: Error response from daemon: failed to initialize logging driver: failed to create Cloudwatch "
    "log stream: ResourceNotFoundException: The specified log group does not exist. "
    "Create it with: aws logs create-log-group --log-group-name {group} --region {region}"
)


def create_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["logGroupName"]
    if not GROUP_NAME.fullmatch(name):
        raise InvalidParameterException(
            f"1 validation error detected: Value '{name}' at 'logGroupName' failed to satisfy constraint: "
            "Member must satisfy regular expression pattern: [\\.\\-_/#A-Za-z0-9]+"
        )
    details: dict[str, Any] = {key: params[key] for key in ("tags", "kmsKeyId", "logGroupClass") if key in params}
    if not tx.store.add_group(caller.region, name, details, _ms(tx)):
        raise ResourceAlreadyExistsException("The specified log group already exists")
    return {}


def delete_log_group(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _group(tx, caller, params["logGroupName"])
    for stream_id in tx.store.drop_group(caller.region, params["logGroupName"]):
        tx.due(f"purge:{stream_id}", tx.now_s)
    return {}


def describe_log_groups(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    limit = params.get("limit", 50)
    if not 1 <= limit <= 50:
        raise InvalidParameterException("limit must be between 1 and 50.")
    if "logGroupNamePattern" in params:
        raise InvalidParameterException("Corral does not serve logGroupNamePattern yet; use logGroupNamePrefix.")
    found = tx.store.groups(
        caller.region, params.get("logGroupNamePrefix", ""), unwrap(params.get("nextToken"), InvalidParameterException), limit + 1
    )
    shown = [_shown_group(caller, *group) for group in found[:limit]]
    return {"logGroups": shown, **({"nextToken": wrap(found[limit - 1][0])} if len(found) > limit else {})}


def create_log_stream(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group, name = params["logGroupName"], params["logStreamName"]
    _group(tx, caller, group)
    if not STREAM_NAME.fullmatch(name):
        raise InvalidParameterException(
            f"1 validation error detected: Value '{name}' at 'logStreamName' failed to satisfy constraint: "
            "Member must satisfy regular expression pattern: [^:*]*"
        )
    if not tx.store.add_stream(caller.region, group, name, _ms(tx)):
        raise ResourceAlreadyExistsException("The specified log stream already exists")
    return {}


def delete_log_stream(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    stream = _stream(tx, caller, params["logGroupName"], params["logStreamName"])
    tx.store.drop_stream(stream.id)
    tx.due(f"purge:{stream.id}", tx.now_s)
    return {}


def describe_log_streams(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = _group_named(params)
    _group(tx, caller, group)
    by_time = params.get("orderBy", "LogStreamName") == "LastEventTime"
    prefix = params.get("logStreamNamePrefix", "")
    if by_time and prefix:
        raise InvalidParameterException("Cannot order by LastEventTime with a logStreamNamePrefix.")
    limit = params.get("limit", 50)
    if not 1 <= limit <= 50:
        raise InvalidParameterException("limit must be between 1 and 50.")
    streams = tx.store.streams(caller.region, group, prefix, by_time=by_time, descending=params.get("descending", False))
    after = unwrap(params.get("nextToken"), InvalidParameterException)
    names = [stream.name for stream in streams]
    start = names.index(after) + 1 if after in names else 0
    page = streams[start : start + limit]
    more = start + limit < len(streams)
    shown = [_shown_stream(caller, stream) for stream in page]
    return {"logStreams": shown, **({"nextToken": wrap(page[-1].name)} if more else {})}


def put_log_events(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    stream = _stream(tx, caller, params["logGroupName"], params["logStreamName"])
    events = [(event["timestamp"], event["message"]) for event in params["logEvents"]]
    _check_batch(events)
    now_ms = _ms(tx)
    good = [event for event in events if now_ms - TOO_OLD_MS <= event[0] <= now_ms + TOO_NEW_MS]
    tx.store.append(stream, good, now_ms)
    if good:
        tx.changed(f"stream:{stream.id}")
    return {"nextSequenceToken": _sequence_token(stream.events + len(good)), **_rejected(events, now_ms)}


def get_log_events(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """A page of a stream. With X-Corral-Wait, a caller at the end of it is answered when there is more."""
    stream = _stream(tx, caller, _group_named(params), params["logStreamName"])
    reply = _page(tx.store.connection, stream, params)
    if caller.wait_s and not tx.final and not reply["events"]:
        raise Wait([f"stream:{stream.id}"], tx.now_s + min(caller.wait_s, WAIT_MAX_S))
    return reply


def open_streams(tx: Tx[LogStore], starts: list[Start]) -> dict[str, str]:
    """Make ready the streams of runs that are about to start; run id → why it cannot start."""
    refused = {}
    for start in starts:
        log, run_id = start.log, start.spec.run_id
        if log is None:
            continue
        if not tx.store.has_group(log.region, log.group):
            if not log.create_group:
                refused[run_id] = NO_GROUP.format(group=log.group, region=log.region)
                continue
            tx.store.add_group(log.region, log.group, {}, _ms(tx))
        tx.store.add_stream(log.region, log.group, log.stream, _ms(tx))
        stream = tx.store.stream(log.region, log.group, log.stream)
        assert stream is not None
        tx.store.open_shipment(run_id, stream.id, _ms(tx))
    return refused


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
                tx.store.append(stream, chunk.events, _ms(tx))
                tx.changed(f"stream:{stream.id}")
            so_far = chunk.end
            tx.store.set_shipped(chunk.run_id, so_far, _ms(tx))
        shipped[chunk.run_id] = so_far
    return shipped


def _page(connection: sqlite3.Connection, stream: Stream, params: dict[str, Any]) -> dict[str, Any]:
    limit = params.get("limit", PAGE_MAX_EVENTS)
    if not 1 <= limit <= PAGE_MAX_EVENTS:
        raise InvalidParameterException(f"limit must be between 1 and {PAGE_MAX_EVENTS}.")
    start, end = (params.get("startTime", 0), 0), (params["endTime"], 0) if "endTime" in params else LAST
    descending = not params.get("startFromHead", False)
    token = params.get("nextToken")
    if token is not None:
        way, at = _position(token)
        descending = way == "b"
        start, end = (start, min(end, at)) if descending else (max(start, at), end)
    events = read_events(connection, stream.id, start=start, end=end, limit=limit, max_bytes=PAGE_MAX_BYTES, descending=descending)
    if events:
        first, (last_ms, last_number) = events[0].position, events[-1].position
        forward, backward = (last_ms, last_number + 1), first
    else:  # the end: the same token again says so
        forward = backward = start if token is None else _position(token)[1]
    return {
        "events": [_shown_event(event) for event in events],
        "nextForwardToken": _token("f", forward),
        "nextBackwardToken": _token("b", backward),
    }


def _check_batch(events: list[tuple[int, str]]) -> None:
    if not 1 <= len(events) <= BATCH_MAX_EVENTS:
        raise InvalidParameterException(f"A batch holds from 1 to {BATCH_MAX_EVENTS} log events.")
    sizes = [len(message.encode("utf-8", "surrogatepass")) + EVENT_OVERHEAD_BYTES for _, message in events]
    if min(sizes) == EVENT_OVERHEAD_BYTES:
        raise InvalidParameterException("Log event message must not be empty.")
    if max(sizes) > LOG_EVENT_MAX_BYTES + EVENT_OVERHEAD_BYTES:
        raise InvalidParameterException(f"Log event too large: {max(sizes)} bytes exceeds limit of 262144")
    if sum(sizes) > BATCH_MAX_BYTES:
        raise InvalidParameterException(f"Upload too large: {sum(sizes)} bytes exceeds limit of {BATCH_MAX_BYTES}")
    times = [at_ms for at_ms, _ in events]
    if any(later < earlier for earlier, later in pairwise(times)):
        raise InvalidParameterException("Log events in a single PutLogEvents request must be in chronological order.")
    if times[-1] - times[0] > SPAN_MAX_MS:
        raise InvalidParameterException("The batch of log events in a single PutLogEvents request cannot span more than 24 hours.")


def _rejected(events: list[tuple[int, str]], now_ms: int) -> dict[str, Any]:
    old = sum(at_ms < now_ms - TOO_OLD_MS for at_ms, _ in events)
    new = sum(at_ms > now_ms + TOO_NEW_MS for at_ms, _ in events)
    info = ({"tooOldLogEventEndIndex": old} if old else {}) | ({"tooNewLogEventStartIndex": len(events) - new} if new else {})
    return {"rejectedLogEventsInfo": info} if info else {}


def _group(tx: Tx[LogStore], caller: Caller, name: str) -> None:
    if not tx.store.has_group(caller.region, name):
        raise ResourceNotFoundException("The specified log group does not exist.")


def _stream(tx: Tx[LogStore], caller: Caller, group: str, name: str) -> Stream:
    stream = tx.store.stream(caller.region, group, name)
    if stream is None:
        _group(tx, caller, group)
        raise ResourceNotFoundException("The specified log stream does not exist.")
    return stream


def _group_named(params: dict[str, Any]) -> str:
    """By name, or by an identifier that may be an ARN."""
    given = params.get("logGroupName") or params.get("logGroupIdentifier")
    if not given:
        raise InvalidParameterException("Give a logGroupName or a logGroupIdentifier.")
    return str(given).removesuffix(":*").rpartition(":log-group:")[2]


def _group_arn(caller: Caller, name: str) -> str:
    return f"arn:aws:logs:{caller.region}:{caller.account}:log-group:{name}"


def _shown_group(caller: Caller, name: str, created_ms: int, details: dict[str, Any]) -> dict[str, Any]:
    return {
        "logGroupName": name,
        "creationTime": created_ms,
        "metricFilterCount": 0,
        "arn": f"{_group_arn(caller, name)}:*",
        "logGroupArn": _group_arn(caller, name),
        "storedBytes": 0,
        "logGroupClass": details.get("logGroupClass", "STANDARD"),
        **({"kmsKeyId": details["kmsKeyId"]} if "kmsKeyId" in details else {}),
    }


def _shown_stream(caller: Caller, stream: Stream) -> dict[str, Any]:
    optional = {
        "firstEventTimestamp": stream.first_ms,
        "lastEventTimestamp": stream.last_ms,
        "lastIngestionTime": stream.ingested_ms,
    }
    return {
        "logStreamName": stream.name,
        "creationTime": stream.created_ms,
        "uploadSequenceToken": _sequence_token(stream.events),
        "arn": f"{_group_arn(caller, stream.group)}:log-stream:{stream.name}",
        "storedBytes": 0,  # AWS says 0 too, since 2019
        **{key: value for key, value in optional.items() if value is not None},
    }


def _shown_event(event: Event) -> dict[str, Any]:
    return {"timestamp": event.position[0], "message": event.message, "ingestionTime": event.ingested_ms}


def _sequence_token(events: int) -> str:
    return f"{events:056d}"


def _token(way: str, position: tuple[int, int]) -> str:
    return f"{way}/{position[0]:030d}{position[1]:026d}"


def _position(token: str) -> tuple[str, tuple[int, int]]:
    way, _, digits = token.partition("/")
    if way not in ("f", "b") or len(digits) != 56 or not digits.isascii() or not digits.isdigit():
        raise InvalidParameterException("The specified nextToken is invalid.")
    return way, (int(digits[:30]), int(digits[30:]))


def _ms(tx: Tx[Any]) -> int:
    return round(tx.now_s * 1000)


HANDLERS = {
    "CreateLogGroup": create_log_group,
    "DeleteLogGroup": delete_log_group,
    "DescribeLogGroups": describe_log_groups,
    "CreateLogStream": create_log_stream,
    "DeleteLogStream": delete_log_stream,
    "DescribeLogStreams": describe_log_streams,
    "PutLogEvents": put_log_events,
    "GetLogEvents": get_log_events,
}
