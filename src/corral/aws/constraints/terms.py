"""The words of a constraint table: limits, violations, and what a service says about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from corral.aws.faults import error_class
from corral.errors import ApiError

Kind = Literal["length", "value", "enum", "pattern"]
SHOWN_MAX_CHARACTERS = 1024  # of the value that an error text repeats


@dataclass(frozen=True, slots=True)
class Limit:
    """What one value must satisfy; terms that are None are the model's.

    `min` and `max` bound the length of a string, blob, list or map, and the value of a number. Without a `text` a violation is
    reported in the service's usual wording. The texts are formats with the fields value, path, name, length, min, max, enum,
    pattern and index (of a list element, from 1).
    """

    min: float | None = None
    max: float | None = None
    enum: tuple[str | int, ...] | None = None
    pattern: str | None = None
    in_bytes: bool = False  # the length is counted in bytes of UTF-8
    code: str | None = None
    status: int = 400
    text: str | None = None
    members: Mapping[str, str] = field(default_factory=dict)  # of the error: name -> format


@dataclass(frozen=True, slots=True)
class Unchecked:
    """The model has a constraint here that must not be applied."""

    reason: str


Entry = Limit | tuple[Limit, ...] | Unchecked  # a tuple replaces the model's terms; its limits are checked in order


@dataclass(slots=True)
class Violation:
    """A value that breaks a limit; `path` is filled from the inside out."""

    kind: Kind
    limit: Limit
    value: Any
    phrase: str  # "Member must have length less than or equal to 128"
    location: str  # of the member on the wire: "" for the body, else "header", "uri" or "querystring"
    is_shown: bool = True  # False: the model calls the value sensitive
    index: int = 0
    path: list[str] = field(default_factory=list)

    def where(self) -> str:
        """The path as AWS writes it: `tags.1.member.key`."""
        return ".".join(part[:1].lower() + part[1:] for part in reversed(self.path))


Wording = Callable[[str, list[Violation]], ApiError]  # (operation, violations) -> error


@dataclass(frozen=True, slots=True)
class Table:
    """One service's error wording and its corrections of the model.

    A key of `limits` is `Owner.member`, where the owner is an operation (for members of its input) or the name of a structure;
    `*.member` is that member of every operation's input, and `:Name` every use of the shape with that name. `[]` appended means
    the elements of a list, `<key>` and `<value>` those of a map.
    """

    wording: Wording
    limits: Mapping[str, Entry] = field(default_factory=dict)


def usual(code: str, by_operation: Mapping[str, str] | None = None) -> Wording:
    """AWS's most common text: all violations, counted."""

    def word(operation: str, violations: list[Violation]) -> ApiError:
        return error_class((by_operation or {}).get(operation, code))(detected(violations))

    return word


def detected(violations: list[Violation]) -> str:
    """`2 validation errors detected: Value '' at 'name' failed to satisfy constraint: Member must ...; Value ...`."""
    count = "1 validation error" if len(violations) == 1 else f"{len(violations)} validation errors"
    return f"{count} detected: " + "; ".join(_sentence(violation) for violation in violations)


def _sentence(violation: Violation) -> str:
    value = f"Value '{shown(violation.value)}'" if violation.is_shown else "Value"
    return f"{value} at '{violation.where()}' failed to satisfy constraint: {violation.phrase}"


def shown(value: Any) -> str:
    """A value as AWS's error texts write it, cut to a bounded length."""
    if isinstance(value, list):
        text = f"[{', '.join(shown(each) for each in value[:SHOWN_MAX_CHARACTERS])}]"
    elif isinstance(value, dict):
        text = f"{{{', '.join(f'{key}={shown(each)}' for key, each in list(value.items())[:SHOWN_MAX_CHARACTERS])}}}"
    elif isinstance(value, bytes):
        text = f"{len(value)} bytes"
    else:
        text = str(value)
    return text if len(text) <= SHOWN_MAX_CHARACTERS else f"{text[:SHOWN_MAX_CHARACTERS]}..."


def worded(violation: Violation, text: str) -> str:
    """A text of a table, filled in."""
    limit, value = violation.limit, violation.value
    return text.format(
        value=shown(value) if violation.is_shown else "***",
        path=violation.where(),
        name=violation.path[0] if violation.path else "",
        length=len(value) if hasattr(value, "__len__") else value,
        min=limit.min,
        max=limit.max,
        enum=", ".join(map(str, limit.enum or ())),
        pattern=limit.pattern,
        index=violation.index,
    )


def refusal(table: Table, operation: str, violations: list[Violation]) -> ApiError:
    """The error for a request with these violations. Enum violations come first."""
    violations.sort(key=lambda violation: violation.kind != "enum")
    first = violations[0]
    limit = first.limit
    if limit.text is None and limit.code is None:
        return table.wording(operation, [each for each in violations if each.limit.text is None and each.limit.code is None])
    code = limit.code or table.wording(operation, [first]).code
    message = worded(first, limit.text) if limit.text is not None else detected([first])
    return error_class(code, limit.status)(message, **{name: worded(first, text) for name, text in limit.members.items()})
