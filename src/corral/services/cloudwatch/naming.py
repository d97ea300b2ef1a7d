"""Names, limits and errors that all of CloudWatch shares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from corral.errors import api_error
from corral.model.metric import Dimensions
from corral.services.caller import Caller
from corral.services.pagination import Pagination

InvalidNextToken = api_error("InvalidNextToken")
InvalidParameterCombination = api_error("InvalidParameterCombinationException")
InvalidParameterValue = api_error("InvalidParameterValueException")
MissingParameter = api_error("MissingRequiredParameterException")
ValidationError = api_error("ValidationException")

PAGES = Pagination(InvalidNextToken, "MaxRecords", "NextToken", "NextToken", default=100, largest=100)  # alarms, history
TEXT = re.compile(r"[\x20-\x7e]*")  # ASCII, without control characters


def dimensions_of(listed: Iterable[Mapping[str, Any]]) -> Dimensions:
    """In whatever order they came."""
    return tuple(sorted((each["Name"], each["Value"]) for each in listed))


def text_faults(value: str, member: str) -> list[str]:
    """What is wrong with the name or value of a metric or dimension, in CloudWatch's words."""
    if not TEXT.fullmatch(value):
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


def alarm_arn(caller: Caller, name: str) -> str:
    return f"arn:aws:cloudwatch:{caller.region}:{caller.account}:alarm:{name}"
