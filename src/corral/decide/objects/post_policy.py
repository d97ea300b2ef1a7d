"""Check a form upload to S3 against the conditions of its signed policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.model.numbers import whole_number

# Fields that need no condition: the signature and the file.
UNCONDITIONED_FIELDS = frozenset({"policy", "x-amz-signature", "signature", "awsaccesskeyid", "file"})
IGNORED_PREFIX = "x-ignore-"
LENGTH_RANGE = "content-length-range"


class ConditionNotMet(Exception):
    """The form violates its policy. The message says which condition."""


class MalformedCondition(Exception):
    """A condition of the policy cannot be parsed."""


def check_fields(conditions: Sequence[Any], fields: Mapping[str, str]) -> tuple[int, int | None]:
    """Check the fields of a form. Return the (minimum, maximum) size of the file in bytes.

    Raise ConditionNotMet if the fields violate a condition. The names in `fields` are in lower case, and `bucket` is one of them.
    """
    named_fields, min_bytes, max_bytes = set[str](), 0, None
    for condition in conditions:
        operator, name, value = _read(condition)
        if operator == LENGTH_RANGE:
            min_bytes, max_bytes = name, value
            continue
        named_fields.add(name)
        given = fields.get(name, "")
        values = given.split(",") if operator == "starts-with" and name == "content-type" else [given]
        if not all(_meets(operator, each.strip() if len(values) > 1 else each, value) for each in values):
            raise ConditionNotMet(f"Policy Condition failed: {_condition_text(condition)}")
    allowed = named_fields | UNCONDITIONED_FIELDS | {"bucket"}
    extra = [name for name in fields if name not in allowed and not name.startswith(IGNORED_PREFIX)]
    if extra:
        raise ConditionNotMet(f"Extra input fields: {', '.join(sorted(extra))}")
    return min_bytes, max_bytes


def _read(condition: Any) -> tuple[str, Any, Any]:
    """Return (operator, field, value), or (content-length-range, minimum, maximum)."""
    if isinstance(condition, dict) and len(condition) == 1:
        name, value = next(iter(condition.items()))
        return "eq", name.lower(), str(value)
    if isinstance(condition, list) and len(condition) == 3 and isinstance(condition[0], str):
        operator, name, value = condition[0].lower(), condition[1], condition[2]
        if operator == LENGTH_RANGE:
            return operator, _size(name), _size(value)
        if operator in ("eq", "starts-with") and isinstance(name, str) and name.startswith("$"):
            return operator, name[1:].lower(), str(value)
    raise MalformedCondition(f"Invalid Condition: {_condition_text(condition)}")


def _size(value: Any) -> int:
    size = value if isinstance(value, int) else whole_number(value) if isinstance(value, str) else None
    if size is None or isinstance(value, bool):
        raise MalformedCondition(f"Invalid Condition: {LENGTH_RANGE} takes a minimum and a maximum size in bytes.")
    return size


def _meets(operator: str, given: str, value: str) -> bool:
    return given == value if operator == "eq" else given.startswith(value)


def _condition_text(condition: Any) -> str:
    if isinstance(condition, dict) and len(condition) == 1:
        name, value = next(iter(condition.items()))
        condition = ["eq", f"${name}", value]
    parts = condition if isinstance(condition, list) else [condition]
    return f"[{', '.join(chr(34) + str(part) + chr(34) for part in parts)}]"
