"""FilterLogEvents: events of many streams that match a pattern, in the order of time."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.decide import log_pattern
from corral.services.caller import Caller
from corral.services.logs.events import PAGE_MAX_BYTES, PAGE_MAX_EVENTS
from corral.services.logs.naming import (
    PAGES,
    InvalidParameterException,
    ResourceNotFoundException,
    existing_group,
    group_named,
    kept_since_ms,
)
from corral.services.pagination import token_of
from corral.telemetry import Group, LogStore
from corral.telemetry.search import LAST, Found, Place, Scope, Search, Wanted

BACKWARDS_SINCE_MS = 1_704_067_200_000  # AWS goes backwards only to the first day of 2024


def filter_log_events(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """A page may hold few events or none and still not be the last: one call looks at a bounded amount."""
    group = existing_group(tx, caller, group_named(params))
    pattern = parsed(params.get("filterPattern", ""))
    start, end, backwards = _bounds(params, kept_since_ms(tx, group.retention_days))
    wanted = Wanted(
        hint=pattern.hint,
        matches=None if pattern.exact else pattern.matches,
        start=start,
        end=end,
        backwards=backwards,
        limit=params.get("limit", PAGE_MAX_EVENTS),
        max_bytes=PAGE_MAX_BYTES,
    )
    found, go_on = Search(tx.store.connection, _scope(tx, params, caller, group), wanted).page()
    return {
        "events": [_shown(event) for event in found],
        "searchedLogStreams": [],  # AWS has not filled it since 2020
        **({"nextToken": _token(go_on, backwards=backwards)} if go_on is not None else {}),
    }


def parsed(pattern: str) -> log_pattern.Pattern:
    try:
        return log_pattern.parse(pattern)
    except log_pattern.InvalidPattern as error:
        raise InvalidParameterException(f"Invalid filter pattern: {error}") from None


def _scope(tx: Tx[LogStore], params: dict[str, Any], caller: Caller, group: Group) -> Scope:
    names, prefix = params.get("logStreamNames"), params.get("logStreamNamePrefix", "")
    if names is None:
        return Scope(group.id, prefix=prefix)
    if prefix:
        raise InvalidParameterException("logStreamNamePrefix and logStreamNames are mutually exclusive parameters.")
    if not all(tx.store.stream(caller.region, group.name, name) for name in names):
        raise ResourceNotFoundException("The specified log stream does not exist.")
    return Scope(group.id, tuple(dict.fromkeys(names)))


def _bounds(params: dict[str, Any], kept_since: int) -> tuple[Place, Place, bool]:
    """Start, end and direction. The end time is included, unlike that of GetLogEvents."""
    start: Place = (max(params.get("startTime", 0), kept_since), 0, 0)
    end: Place = (params["endTime"] + 1, 0, 0) if "endTime" in params else LAST
    backwards = not params.get("startFromHead", True)
    if "nextToken" in params:
        at, backwards = _place(PAGES.after(params))
        start, end = (start, min(end, at)) if backwards else (max(start, at), end)
    elif backwards and "startTime" in params and params["startTime"] < BACKWARDS_SINCE_MS:
        raise InvalidParameterException("startFromHead false needs a startTime on or after Jan 1, 2024 00:00:00 UTC.")
    return start, end, backwards


def _token(place: Place, *, backwards: bool) -> str:
    return token_of(f"{'b' if backwards else 'f'}/{'/'.join(map(str, place))}")


def _place(token: str) -> tuple[Place, bool]:
    way, *numbers = token.split("/")
    if way not in ("f", "b") or len(numbers) != 3 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise PAGES.wrong_token()
    at_ms, stream_id, number = (min(int(number), LAST[0]) for number in numbers)
    return (at_ms, stream_id, number), way == "b"


def _shown(event: Found) -> dict[str, Any]:
    at_ms, stream_id, number = event.place
    return {
        "logStreamName": event.stream,
        "timestamp": at_ms,
        "message": event.message,
        "ingestionTime": event.ingested_ms,
        "eventId": f"{at_ms:020d}{stream_id:018d}{number:018d}",
    }
