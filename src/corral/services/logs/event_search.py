"""FilterLogEvents: search many streams for events that match a filter pattern. The events are sorted by time."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.logs import pattern as log_pattern
from corral.model.numbers import whole_number
from corral.operations.pagination import token_of
from corral.services.logs.common import PAGES, existing_group, no_such_stream, requested_group_name, retention_start_ms
from corral.services.logs.errors import InvalidParameterException
from corral.services.logs.events import PAGE_MAX_BYTES, PAGE_MAX_EVENTS
from corral.telemetry import LogGroup, LogStore
from corral.telemetry.log_search import LAST, EventFilter, EventPlace, FoundEvent, LogSearch, SearchScope

BACKWARDS_SINCE_MS = 1_704_067_200_000  # 2024-01-01. AWS does not search backwards for events before this date


def filter_log_events(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Return one page. A page with few or no events can still have a nextToken, because each request reads a limited amount."""
    group = existing_group(tx, caller, requested_group_name(params))
    pattern = parse_pattern(params.get("filterPattern", ""))
    start, end, backwards = _bounds(params, retention_start_ms(tx, group.retention_days))
    event_filter = EventFilter(
        hint=pattern.hint,
        matches=None if pattern.exact else pattern.matches,
        start=start,
        end=end,
        backwards=backwards,
        limit=params.get("limit", PAGE_MAX_EVENTS),
        max_bytes=PAGE_MAX_BYTES,
    )
    found, next_place = LogSearch(tx.store.connection, _scope(tx, params, caller, group), event_filter, step=tx.step).page()
    return {
        "events": [_described(event) for event in found],
        "searchedLogStreams": [],  # deprecated; AWS also returns an empty list
        **({"nextToken": _token(next_place, backwards=backwards)} if next_place is not None else {}),
    }


def parse_pattern(pattern: str) -> log_pattern.LogPattern:
    try:
        return log_pattern.parse(pattern)
    except log_pattern.InvalidPattern as error:
        raise InvalidParameterException(f"Invalid filter pattern: {error}") from None


def _scope(tx: Tx[LogStore], params: dict[str, Any], caller: Caller, group: LogGroup) -> SearchScope:
    names, prefix = params.get("logStreamNames"), params.get("logStreamNamePrefix", "")
    if names is None:
        return SearchScope(group.id, prefix=prefix)
    if prefix:
        raise InvalidParameterException("logStreamNamePrefix and logStreamNames are mutually exclusive parameters.")
    if not all(tx.store.stream(caller.region, group.name, name) for name in names):
        raise no_such_stream()
    return SearchScope(group.id, tuple(dict.fromkeys(names)))


def _bounds(params: dict[str, Any], oldest_ms: int) -> tuple[EventPlace, EventPlace, bool]:
    """Return (start, end, backwards). `end` is exclusive, but FilterLogEvents includes events at endTime, so 1 ms is added."""
    start: EventPlace = (max(params.get("startTime", 0), oldest_ms), 0, 0)
    end: EventPlace = (min(params["endTime"] + 1, LAST[0]), 0, 0) if "endTime" in params else LAST
    backwards = not params.get("startFromHead", True)
    if "nextToken" in params:
        at, backwards = _place(PAGES.after(params))
        start, end = (start, min(end, at)) if backwards else (max(start, at), end)
    elif backwards and "startTime" in params and params["startTime"] < BACKWARDS_SINCE_MS:
        raise InvalidParameterException("startFromHead=false needs a startTime on or after Jan 1, 2024 00:00:00 UTC.")
    return start, end, backwards


def _token(place: EventPlace, *, backwards: bool) -> str:
    return token_of(f"{'b' if backwards else 'f'}/{'/'.join(map(str, place))}")


def _place(token: str) -> tuple[EventPlace, bool]:
    direction, *texts = token.split("/")
    numbers = [number for number in map(whole_number, texts) if number is not None]
    if direction not in ("f", "b") or len(texts) != 3 or len(numbers) != 3:
        raise PAGES.wrong_token()
    at_ms, stream_id, number = (min(number, LAST[0]) for number in numbers)
    return (at_ms, stream_id, number), direction == "b"


def _described(event: FoundEvent) -> dict[str, Any]:
    at_ms, stream_id, number = event.place
    return {
        "logStreamName": event.stream,
        "timestamp": at_ms,
        "message": event.message,
        "ingestionTime": event.ingested_ms,
        "eventId": f"{at_ms:020d}{stream_id:018d}{number:018d}",
    }
