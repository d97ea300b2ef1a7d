"""Pagination, ARNs and look-ups that several operations of CloudWatch Logs share."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.durations import DAY_MS
from corral.operations.pagination import Pagination
from corral.services.logs import errors
from corral.telemetry import LogGroup, LogStore, LogStream

BAD_TOKEN = "The specified nextToken is invalid."
PAGES = Pagination(errors.InvalidParameterException, limit="limit", default=50, largest=50, token_text=BAD_TOKEN)


def existing_group(tx: Tx[LogStore], caller: Caller, name: str) -> LogGroup:
    group = tx.store.group(caller.region, name)
    if group is None:
        raise errors.ResourceNotFoundException("The specified log group does not exist.")
    return group


def no_such_stream() -> ApiError:
    return errors.ResourceNotFoundException("The specified log stream does not exist.")


def existing_stream(tx: Tx[LogStore], caller: Caller, group: str, name: str) -> LogStream:
    stream = tx.store.stream(caller.region, group, name)
    if stream is None:
        existing_group(tx, caller, group)
        raise no_such_stream()
    return stream


def requested_group_name(params: dict[str, Any]) -> str:
    """Return the name of the log group in a request. The request has either logGroupName or logGroupIdentifier."""
    name, identifier = params.get("logGroupName"), params.get("logGroupIdentifier")
    if name and identifier:
        raise errors.ValidationException("LogGroup name and LogGroup ARN are mutually exclusive parameters.")
    if not name and not identifier:
        raise errors.InvalidParameterException("Specify exactly one of logGroupName and logGroupIdentifier.")
    return name or group_name(str(identifier))


def group_name(identifier: str) -> str:
    """Return the name of a log group. `identifier` is the name or the ARN of the group."""
    return identifier.removesuffix(":*").rpartition(":log-group:")[2]


def group_arn(caller: Caller, name: str) -> str:
    return f"arn:aws:logs:{caller.region}:{caller.account}:log-group:{name}"


def now_ms(tx: Tx[Any]) -> int:
    return round(tx.wall_s * 1000)


def retention_start_ms(tx: Tx[Any], retention_days: int | None) -> int:
    """Return the oldest time that the retention of a group allows. Responses omit older events, even if they are still stored."""
    return 0 if retention_days is None else now_ms(tx) - retention_days * DAY_MS
