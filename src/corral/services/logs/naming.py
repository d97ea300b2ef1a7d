"""Names, limits and errors that all of CloudWatch Logs shares."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.pagination import Pagination
from corral.telemetry import Group, LogStore, Stream

InvalidParameterException = api_error("InvalidParameterException")
LimitExceededException = api_error("LimitExceededException")
ResourceAlreadyExistsException = api_error("ResourceAlreadyExistsException")
ResourceNotFoundException = api_error("ResourceNotFoundException")
ValidationException = api_error("ValidationException")

PAGES = Pagination(InvalidParameterException, limit="limit", default=50, largest=50)
DAY_MS = 86_400_000


def existing_group(tx: Tx[LogStore], caller: Caller, name: str) -> Group:
    group = tx.store.group(caller.region, name)
    if group is None:
        raise ResourceNotFoundException("The specified log group does not exist.")
    return group


def existing_stream(tx: Tx[LogStore], caller: Caller, group: str, name: str) -> Stream:
    stream = tx.store.stream(caller.region, group, name)
    if stream is None:
        existing_group(tx, caller, group)
        raise ResourceNotFoundException("The specified log stream does not exist.")
    return stream


def group_named(params: dict[str, Any]) -> str:
    """By name, or by an identifier that may be an ARN."""
    name, identifier = params.get("logGroupName"), params.get("logGroupIdentifier")
    if bool(name) == bool(identifier):
        raise InvalidParameterException("Give either a logGroupName or a logGroupIdentifier.")
    return name or group_of(str(identifier))


def group_of(identifier: str) -> str:
    """The name in a log group's ARN, or the name itself."""
    return identifier.removesuffix(":*").rpartition(":log-group:")[2]


def group_arn(caller: Caller, name: str) -> str:
    return f"arn:aws:logs:{caller.region}:{caller.account}:log-group:{name}"


def now_ms(tx: Tx[Any]) -> int:
    return round(tx.now_s * 1000)


def kept_since_ms(tx: Tx[Any], retention_days: int | None) -> int:
    """Events before this have expired, whether they are deleted yet or not."""
    return 0 if retention_days is None else now_ms(tx) - retention_days * DAY_MS
