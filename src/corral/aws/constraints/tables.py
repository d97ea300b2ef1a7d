"""Constraint tables: the limits of a service, and the error code and text of their violations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Literal

from msgspec import Struct, field

from corral.aws.wire_errors import error_class
from corral.errors import ApiError

ConstraintKind = Literal["length", "value", "enum", "pattern"]
DISPLAYED_MAX_CHARACTERS = 1024  # of a value in an error text
# Services with their own table, a module of this package that is imported with the service's first request.
WITH_TABLE = frozenset({"autoscaling", "cloudwatch", "ec2", "ecr", "ecs", "iam", "logs", "s3", "sqs", "ssm", "sts"})
CODE_BY_PROTOCOL = {"query": "ValidationError", "ec2": "InvalidParameterValue", "rest-xml": "InvalidArgument"}  # without a table


class Limit(Struct, frozen=True):
    """The constraints of one value. Where a field is None, the model's constraint applies.

    `min` and `max` limit the length of a string, blob, list or map, and the value of a number. A violation is reported in the
    service's usual wording if there is no `text`. Texts are format strings with the fields value, path, name, length, min, max,
    enum, pattern and index (of a list element, from 1).
    """

    min: float | None = None
    max: float | None = None
    enum: tuple[str | int, ...] | None = None
    pattern: str | None = None
    in_bytes: bool = False  # the length is measured in bytes of UTF-8
    code: str | None = None
    status: int = 400
    text: str | None = None
    members: Mapping[str, str] = field(default_factory=dict)  # members of the error: name -> format string


class Unchecked(Struct, frozen=True):
    """A constraint of the model that must not be checked."""

    reason: str


LimitEntry = Limit | tuple[Limit, ...] | Unchecked  # a tuple replaces the model's constraints and is checked in order


class Violation(Struct):
    """A value that violates a limit. `path` is in reverse order, the innermost member first."""

    kind: ConstraintKind
    limit: Limit
    value: Any
    phrase: str  # "Member must have length less than or equal to 128"
    location: str  # of the member in the request: "" for the body, else "header", "uri" or "querystring"
    is_displayed: bool = True  # False if the model marks the value as sensitive
    index: int = 0
    path: list[str] = field(default_factory=list)

    def where(self) -> str:
        """Return the path as AWS writes it: `tags.1.member.key`."""
        return ".".join(part[:1].lower() + part[1:] for part in reversed(self.path))


Wording = Callable[[str, list[Violation]], ApiError]  # (operation, violations) -> error


class ConstraintTable(Struct, frozen=True):
    """The error wording of one service, and its corrections of the model.

    A key of `limits` is `Owner.member`, where the owner is an operation (for a member of its input) or a structure. `*.member` is
    that member of every operation's input, and `:Name` is every use of the shape with that name. The suffix `[]` selects the
    elements of a list, `<key>` and `<value>` those of a map.
    """

    wording: Wording
    limits: Mapping[str, LimitEntry] = field(default_factory=dict)


@cache
def table_of(service: str, protocol: str) -> ConstraintTable:
    """Return the table of a service. A service without a table uses the usual wording with the code of its protocol."""
    if service in WITH_TABLE:
        table: ConstraintTable = import_module(f"corral.aws.constraints.{service}").TABLE
        return table
    return ConstraintTable(usual_wording(CODE_BY_PROTOCOL.get(protocol, "ValidationException")))


def usual_wording(code: str, by_operation: Mapping[str, str] | None = None) -> Wording:
    """Return AWS's most common wording, which lists all violations."""

    def wording(operation: str, violations: list[Violation]) -> ApiError:
        return error_class((by_operation or {}).get(operation, code))(detected_text(violations))

    return wording


def detected_text(violations: list[Violation]) -> str:
    """`2 validation errors detected: Value '' at 'name' failed to satisfy constraint: Member must ...; Value ...`."""
    count = "1 validation error" if len(violations) == 1 else f"{len(violations)} validation errors"
    return f"{count} detected: " + "; ".join(_sentence(violation) for violation in violations)


def _sentence(violation: Violation) -> str:
    value = f"Value '{displayed(violation.value)}'" if violation.is_displayed else "Value"
    return f"{value} at '{violation.where()}' failed to satisfy constraint: {violation.phrase}"


def displayed(value: Any) -> str:
    """Format a value as AWS's error texts do, truncated to DISPLAYED_MAX_CHARACTERS."""
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
    """Fill in a text of a table."""
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
