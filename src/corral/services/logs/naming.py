"""Names, limits and errors that all of CloudWatch Logs shares."""

from __future__ import annotations

import re
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.telemetry import Group, LogStore, Stream

InvalidParameterException = api_error("InvalidParameterException")
LimitExceededException = api_error("LimitExceededException")
ResourceAlreadyExistsException = api_error("ResourceAlreadyExistsException")
ResourceNotFoundException = api_error("ResourceNotFoundException")
ValidationException = api_error("ValidationException")

GROUP_NAME = re.compile(r"[.\-_/#A-Za-z0-9]+")
STREAM_NAME = re.compile(r"[^:*]*")  # also a filter's
NAME_MAX_CHARACTERS = 512
PAGE_MAX = 50
DAY_MS = 86_400_000


def check_name(value: str, member: str, pattern: re.Pattern[str] = GROUP_NAME) -> None:
    if not 1 <= len(value) <= NAME_MAX_CHARACTERS:
        raise violated(value, member, f"Member must have length between 1 and {NAME_MAX_CHARACTERS}, inclusive")
    if not pattern.fullmatch(value):
        shown = r"[\.\-_/#A-Za-z0-9]+" if pattern is GROUP_NAME else pattern.pattern
        raise violated(value, member, f"Member must satisfy regular expression pattern: {shown}")


def limit_of(params: dict[str, Any], most: int = PAGE_MAX, default: int | None = None, member: str = "limit") -> int:
    limit: int = params.get(member, default or most)
    if limit < 1:
        raise violated(limit, member, "Member must have value greater than or equal to 1")
    if limit > most:
        raise violated(limit, member, f"Member must have value less than or equal to {most}")
    return limit


def violated(value: object, member: str, rule: str) -> Exception:
    return InvalidParameterException(
        f"1 validation error detected: Value '{value}' at '{member}' failed to satisfy constraint: {rule}"
    )


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
