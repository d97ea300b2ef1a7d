"""PutLogEvents and GetLogEvents."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from corral.access.caller import Caller
from corral.core.commands import Wait
from corral.core.transactions import Tx
from corral.model.durations import DAY_MS, HOUR_MS
from corral.services.logs.common import BAD_TOKEN, existing_stream, now_ms, requested_group_name, retention_start_ms
from corral.services.logs.errors import InvalidParameterException
from corral.services.logs.ingestion import ingest
from corral.services.logs.streams import sequence_token
from corral.telemetry import LogEvent, LogStore, LogStream
from corral.telemetry.logs import EVENT_OVERHEAD_BYTES, LAST_MS, read_events

BATCH_MAX_BYTES = 1_048_576
PAGE_MAX_EVENTS = 10_000
PAGE_MAX_BYTES = 1_048_576
TOO_NEW_MS = 2 * HOUR_MS
TOO_OLD_MS = 14 * DAY_MS
SPAN_MAX_MS = DAY_MS
WAIT_MAX_S = 60.0


def put_log_events(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Store a batch of events. As on AWS, the sequence token of the request is ignored."""
    stream = existing_stream(tx, caller, params["logGroupName"], params["logStreamName"])
    events = [(event["timestamp"], event["message"]) for event in params["logEvents"]]
    _check_batch(events)
    old = _count_before(events, now_ms(tx) - TOO_OLD_MS)
    expired = _count_before(events, retention_start_ms(tx, stream.retention_days))
    new = _count_before(events, now_ms(tx) + TOO_NEW_MS + 1)  # index of the first event that is too new
    good = events[max(old, expired) : new]
    if good and good[-1][0] - good[0][0] > SPAN_MAX_MS:
        raise InvalidParameterException("The batch of log events in a single PutLogEvents request cannot span more than 24 hours.")
    ingest(tx, stream, good)
    if params.get("entity"):
        tx.store.set_entity(stream.id, params["entity"])
    rejected = {
        **({"tooOldLogEventEndIndex": old} if old else {}),
        **({"expiredLogEventEndIndex": expired} if expired > old else {}),
        **({"tooNewLogEventStartIndex": new} if new < len(events) else {}),
    }
    token = sequence_token(stream.events + len(good))
    return {"nextSequenceToken": token, **({"rejectedLogEventsInfo": rejected} if rejected else {})}


def get_log_events(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return one page of a stream. If the page is empty and the request has X-Corral-Wait, wait for new events."""
    stream = existing_stream(tx, caller, requested_group_name(params), params["logStreamName"])
    reply = _page(tx, stream, params)
    if caller.wait_s and not tx.final and not reply["events"]:
        raise Wait([f"stream:{stream.id}"], tx.now_s + min(caller.wait_s, WAIT_MAX_S))
    return reply


def _page(tx: Tx[LogStore], stream: LogStream, params: dict[str, Any]) -> dict[str, Any]:
    limit, token = params.get("limit", PAGE_MAX_EVENTS), params.get("nextToken")
    start, end = (params.get("startTime", 0), 0), (params.get("endTime", LAST_MS), 0)
    descending, here = not params.get("startFromHead", False), start
    if token is not None:
        direction, here = _position(token)
        descending = direction == "b"
        start, end = (start, min(end, here)) if descending else (max(start, here), end)
    start = max(start, (retention_start_ms(tx, stream.retention_days), 0))
    events = read_events(
        tx.store.connection, stream.id, start=start, end=end, limit=limit, max_bytes=PAGE_MAX_BYTES, descending=descending
    )
    if events:
        first, (last_ms, last_number) = events[0].position, events[-1].position
        forward, backward = (last_ms, last_number + 1), first
    else:  # return the token of the request, so that the client knows that it has reached the end
        forward = backward = here
    return {
        "events": [_described(event) for event in events],
        "nextForwardToken": _token("f", forward),
        "nextBackwardToken": _token("b", backward),
    }


def _check_batch(events: list[tuple[int, str]]) -> None:
    sizes = [len(message.encode("utf-8", "surrogatepass")) + EVENT_OVERHEAD_BYTES for _, message in events]
    if max(sizes) > BATCH_MAX_BYTES:
        raise InvalidParameterException(f"Log event too large: {max(sizes)} bytes exceeds limit of {BATCH_MAX_BYTES}")
    if sum(sizes) > BATCH_MAX_BYTES:
        raise InvalidParameterException(f"Upload too large: {sum(sizes)} bytes exceeds limit of {BATCH_MAX_BYTES}")
    if any(later < earlier for (earlier, _), (later, _) in pairwise(events)):
        raise InvalidParameterException("Log events in a single PutLogEvents request must be in chronological order.")


def _count_before(events: list[tuple[int, str]], at_ms: int) -> int:
    return sum(event_ms < at_ms for event_ms, _ in events)


def _described(event: LogEvent) -> dict[str, Any]:
    return {"timestamp": event.position[0], "message": event.message, "ingestionTime": event.ingested_ms}


def _token(direction: str, position: tuple[int, int]) -> str:
    return f"{direction}/{position[0]:030d}{position[1]:026d}"


def _position(token: str) -> tuple[str, tuple[int, int]]:
    direction, _, digits = token.partition("/")
    if direction not in ("f", "b") or len(digits) != 56 or not digits.isascii() or not digits.isdigit():
        raise InvalidParameterException(BAD_TOKEN)
    return direction, (min(int(digits[:30]), LAST_MS), min(int(digits[30:]), LAST_MS))
