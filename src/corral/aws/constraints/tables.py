"""Constraint tables. A table contains limits of a service, and the error code and text for each violated limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Literal

from msgspec import Struct, field

from corral.aws.wire_errors import error_class, lower_first
from corral.core.errors import ApiError

ConstraintKind = Literal["length", "value", "enum", "pattern"]
DISPLAYED_MAX_CHARACTERS = 1024  # a longer value is truncated in error texts
# The services that have a table. Each table is a module of this package, which is imported at the service's first request.
WITH_TABLE = frozenset(
    {"autoscaling", "batch", "cloudformation", "cloudtrail", "cloudwatch", "ec2", "ecr", "ecs", "iam", "logs", "s3",
     "secretsmanager", "sns", "sqs", "ssm", "sts"}
)  # fmt: skip
# The error codes for services that have no table.
CODE_BY_PROTOCOL = {"query": "ValidationError", "ec2": "InvalidParameterValue", "rest-xml": "InvalidArgument"}


class Limit(Struct, frozen=True):
    """The constraints of one value. If a field is None, the constraint of botocore's model applies.

    For a string, blob, list or map, `min` and `max` limit the length. For a number, they limit the value. `text` is the error text;
    if it is None, the error has the service's usual text. `text` is a format string with the fields value, path, name, length, min,
    max, enum, pattern and index. `index` is the position of a list element, counted from 1.
    """

    min: float | None = None
    max: float | None = None
    enum: tuple[str | int, ...] | None = None
    pattern: str | None = None
    in_bytes: bool = False  # True: `min` and `max` count the bytes of the value in UTF-8
    code: str | None = None
    status: int = 400
    text: str | None = None
    members: Mapping[str, str] = field(default_factory=dict)  # additional members of the error response: name -> format string


class Unchecked(Struct, frozen=True):
    """A table entry for a value whose constraint in the model is not checked."""

    reason: str


LimitEntry = Limit | tuple[Limit, ...] | Unchecked  # a tuple replaces the model's constraints; its limits are checked in order


class Violation(Struct):
    """A value that violates a limit. `path` contains the names of the members around it, innermost first."""

    kind: ConstraintKind
    limit: Limit
    value: Any
    phrase: str  # AWS's phrase, for example "Member must have length less than or equal to 128"
    location: str  # the part of the request that contains the member: "header", "uri", "querystring", or "" for the body
    is_displayed: bool = True  # False if the model marks the value as sensitive
    index: int = 0
    path: list[str] = field(default_factory=list)

    def where(self) -> str:
        """Return the path in AWS's notation, for example `tags.1.member.key`."""
        return ".".join(map(lower_first, reversed(self.path)))


Wording = Callable[[str, list[Violation]], ApiError]  # (operation, violations) -> error


class ConstraintTable(Struct, frozen=True):
    """The limits of one service that differ from botocore's model, and the function that creates the service's errors.

    A key of `limits` selects values. `Operation.member` selects a member of an operation's input, and `Structure.member` a member
    of a structure. `*.member` selects the member with this name in the input of every operation. `:Name` selects every value that
    has the shape `Name`. The suffix `[]` selects the elements of a list. The suffixes `<key>` and `<value>` select the keys and the
    values of a map.
    """

    wording: Wording
    limits: Mapping[str, LimitEntry] = field(default_factory=dict)


@cache
def table_of(service: str, protocol: str) -> ConstraintTable:
    """Return the table of a service.

    If the service has no table, its errors have AWS's usual text and the error code of the protocol.
    """
    if service in WITH_TABLE:
        table: ConstraintTable = import_module(f"corral.aws.constraints.{service}").TABLE
        return table
    return ConstraintTable(usual_wording(CODE_BY_PROTOCOL.get(protocol, "ValidationException")))


def usual_wording(code: str, by_operation: Mapping[str, str] | None = None) -> Wording:
    """Return a function that creates an error in AWS's most common format, which lists all violations."""

    def wording(operation: str, violations: list[Violation]) -> ApiError:
        return error_class((by_operation or {}).get(operation, code))(detected_text(violations))

    return wording


def detected_text(violations: list[Violation]) -> str:
    """Return a text such as `1 validation error detected: Value '' at 'name' failed to satisfy constraint: Member must ...`."""
    count = "1 validation error" if len(violations) == 1 else f"{len(violations)} validation errors"
    return f"{count} detected: " + "; ".join(_sentence(violation) for violation in violations)


def _sentence(violation: Violation) -> str:
    value = f"Value '{displayed(violation.value)}'" if violation.is_displayed else "Value"
    return f"{value} at '{violation.where()}' failed to satisfy constraint: {violation.phrase}"


def displayed(value: Any) -> str:
    """Format a value for an error text as AWS does. Truncate it to DISPLAYED_MAX_CHARACTERS."""
    if isinstance(value, list):
        text = f"[{', '.join(displayed(each) for each in value[:DISPLAYED_MAX_CHARACTERS])}]"
    elif isinstance(value, dict):
        text = f"{{{', '.join(f'{key}={displayed(each)}' for key, each in list(value.items())[:DISPLAYED_MAX_CHARACTERS])}}}"
    elif isinstance(value, bytes):
        text = f"{len(value)} bytes"
    else:
        text = str(value)
    return text if len(text) <= DISPLAYED_MAX_CHARACTERS else f"{text[:DISPLAYED_MAX_CHARACTERS]}..."


def filled_text(violation: Violation, text: str) -> str:
    """Replace the fields of a format string by the values of a violation."""
    limit, value = violation.limit, violation.value
    return text.format(
        value=displayed(value) if violation.is_displayed else "***",
        path=violation.where(),
        name=violation.path[0] if violation.path else "",
        length=len(value) if hasattr(value, "__len__") else value,
        min=limit.min,
        max=limit.max,
        enum=", ".join(map(str, limit.enum or ())),
        pattern=limit.pattern,
        index=violation.index,
    )


def constraint_error(table: ConstraintTable, operation: str, violations: list[Violation]) -> ApiError:
    """Return the error for a request with these violations. Enum violations are reported first."""
    violations.sort(key=lambda violation: violation.kind != "enum")
    first = violations[0]
    limit = first.limit
    if limit.text is None and limit.code is None:
        return table.wording(operation, [each for each in violations if each.limit.text is None and each.limit.code is None])
    code = limit.code or table.wording(operation, [first]).code
    message = filled_text(first, limit.text) if limit.text is not None else detected_text([first])
    return error_class(code, limit.status)(message, **{name: filled_text(first, text) for name, text in limit.members.items()})
