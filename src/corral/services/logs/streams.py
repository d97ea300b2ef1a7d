"""Log streams: creation, listing and deletion."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.numbers import whole_number
from corral.services.logs.common import PAGES, existing_group, existing_stream, group_arn, now_ms, requested_group_name
from corral.services.logs.errors import InvalidParameterException, ResourceAlreadyExistsException
from corral.services.logs.groups import check_unprotected
from corral.telemetry import LogStore, LogStream

BY_NAME = "LogStreamName"


def create_log_stream(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group, name = existing_group(tx, caller, params["logGroupName"]), params["logStreamName"]
    if not tx.store.add_stream(group.id, name, now_ms(tx), caller.owner):
        raise ResourceAlreadyExistsException("The specified log stream already exists")
    return {}


def delete_log_stream(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = existing_group(tx, caller, params["logGroupName"])
    stream = existing_stream(tx, caller, group.name, params["logStreamName"])
    check_unprotected(group)
    tx.store.drop_stream(stream)
    tx.due("purge:", tx.now_s)
    return {}


def describe_log_streams(tx: Tx[LogStore], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    group = existing_group(tx, caller, requested_group_name(params))
    order, prefix, descending = (
        params.get("orderBy", BY_NAME),
        params.get("logStreamNamePrefix", ""),
        params.get("descending", False),
    )
    if order != BY_NAME and prefix:
        raise InvalidParameterException("Cannot order by LastEventTime with a logStreamNamePrefix.")

    def by_name(after: str, limit: int) -> list[tuple[str, LogStream]]:
        found = tx.store.streams_by_name(group.id, prefix, after or None, limit, descending=descending)
        return [(stream.name, stream) for stream in found]

    def by_time(after: str, limit: int) -> list[tuple[str, LogStream]]:
        found = tx.store.streams_by_time(group.id, _time_and_name(after), limit, descending=descending)
        return [(f"{stream.last_ms or 0}:{stream.name}", stream) for stream in found]

    page, token = PAGES.page(params, by_name if order == BY_NAME else by_time)
    return {"logStreams": [_described(caller, stream) for stream in page], **token}


def sequence_token(events: int) -> str:
    return f"{events:056d}"


def _time_and_name(after: str) -> tuple[int, str] | None:
    if not after:
        return None
    digits, colon, name = after.partition(":")
    at_ms = whole_number(digits)
    if not colon or at_ms is None:
        raise PAGES.wrong_token()  # for example, the token belongs to a request with another orderBy
    return at_ms, name


def _described(caller: Caller, stream: LogStream) -> dict[str, Any]:
    optional = {
        "firstEventTimestamp": stream.first_ms,
        "lastEventTimestamp": stream.last_ms,
        "lastIngestionTime": stream.ingested_ms,
        "uploadSequenceToken": sequence_token(stream.events) if stream.events else None,
    }
    return {
        "logStreamName": stream.name,
        "creationTime": stream.created_ms,
        "arn": f"{group_arn(caller, stream.group)}:log-stream:{stream.name}",
        "storedBytes": 0,  # deprecated; AWS also returns 0
        **{key: value for key, value in optional.items() if value is not None},
    }
