"""Pagination, ARNs and checks of names, which several CloudWatch operations share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from corral.access.caller import Caller
from corral.model.metric import Dimensions
from corral.operations.pagination import Pagination
from corral.services.cloudwatch import errors

ALARM_PAGES = Pagination(errors.InvalidNextToken, "MaxRecords", "NextToken", "NextToken", default=100, largest=100)
PRINTABLE_ASCII = re.compile(r"[\x20-\x7e]*")


def dimensions_of(listed: Iterable[Mapping[str, Any]]) -> Dimensions:
    """Return the dimensions of a request, sorted by name, because their order has no meaning."""
    return tuple(sorted((each["Name"], each["Value"]) for each in listed))


def text_faults(value: str, member: str) -> list[str]:
    """Return CloudWatch's error texts for an invalid name or value of a metric or dimension."""
    if not PRINTABLE_ASCII.fullmatch(value):
        return [f"The parameter {member} must contain only ASCII characters."]
    if not value.strip():
        return [f"The parameter {member} must contain at least one non-whitespace character."]
    return []


def dimension_faults(listed: Iterable[Mapping[str, Any]], member: str) -> list[str]:
    found, names = [], []
    for number, each in enumerate(listed, 1):
        names.append(each["Name"])
        found += text_faults(each["Name"], f"{member}.{number}.Name")
        found += text_faults(each["Value"], f"{member}.{number}.Value")
        if each["Name"].startswith(":"):
            found.append(f"The parameter {member}.{number}.Name must not begin with a colon.")
    if len(set(names)) < len(names):
        found.append("No metric may specify the same dimension name twice.")
    return found


def timestamp(at_s: float) -> str:
    """Format a time, for example as 2019-10-01T13:56:40.985+0000."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%S}.{int(at_s * 1000) % 1000:03d}+0000"


def alarm_arn(region: str, account: str, name: str) -> str:
    return f"arn:aws:cloudwatch:{region}:{account}:alarm:{name}"


def alarm_name(name_or_arn: str) -> str:
    is_arn = name_or_arn.startswith("arn:") and name_or_arn.count(":") >= 6
    return name_or_arn.split(":", 6)[6] if is_arn else name_or_arn


def dashboard_arn(caller: Caller, name: str) -> str:
    return f"arn:aws:cloudwatch::{caller.account}:dashboard/{name}"
