"""Whether a form upload keeps to the conditions that the owner of the form has signed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# What needs no condition: the signature itself, and the file.
FREE = frozenset({"policy", "x-amz-signature", "signature", "awsaccesskeyid", "file"})
IGNORED = "x-ignore-"
LENGTH = "content-length-range"


class Unmet(Exception):
    """The form does not keep to its policy; the text says where."""


class Malformed(Exception):
    """A condition that cannot be read."""


def check_fields(conditions: Sequence[Any], fields: Mapping[str, str]) -> tuple[int, int | None]:
    """Refuse fields that the conditions do not allow; how many bytes the file may have, at least and at most.

    `fields` have names in lower case, and the bucket among them.
    """
    spoken_of, least, most = set[str](), 0, None
    for condition in conditions:
        operator, name, value = _read(condition)
        if operator == LENGTH:
            least, most = name, value
            continue
        spoken_of.add(name)
        given = fields.get(name, "")
        values = given.split(",") if operator == "starts-with" and name == "content-type" else [given]
        if not all(_meets(operator, each.strip() if len(values) > 1 else each, value) for each in values):
            raise Unmet(f"Policy Condition failed: {_shown(condition)}")
    extra = [name for name in fields if name not in spoken_of | FREE | {"bucket"} and not name.startswith(IGNORED)]
    if extra:
        raise Unmet(f"Extra input fields: {', '.join(sorted(extra))}")
    return least, most


def _read(condition: Any) -> tuple[str, Any, Any]:
    """(operator, field, value), or (content-length-range, least, most)."""
    if isinstance(condition, dict) and len(condition) == 1:
        name, value = next(iter(condition.items()))
        return "eq", name.lower(), str(value)
    if isinstance(condition, list) and len(condition) == 3 and isinstance(condition[0], str):
        operator, name, value = condition[0].lower(), condition[1], condition[2]
        if operator == LENGTH:
            return operator, _size(name), _size(value)
        if operator in ("eq", "starts-with") and isinstance(name, str) and name.startswith("$"):
            return operator, name[1:].lower(), str(value)
    raise Malformed(f"Invalid Condition: {_shown(condition)}")


def _size(value: Any) -> int:
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, str) and value.isdecimal())):
        raise Malformed(f"Invalid Condition: {LENGTH} takes two numbers of bytes.")
    return int(value)


def _meets(operator: str, given: str, value: str) -> bool:
    return given == value if operator == "eq" else given.startswith(value)


def _shown(condition: Any) -> str:
    if isinstance(condition, dict) and len(condition) == 1:
        name, value = next(iter(condition.items()))
        condition = ["eq", f"${name}", value]
    parts = condition if isinstance(condition, list) else [condition]
    return f"[{', '.join(chr(34) + str(part) + chr(34) for part in parts)}]"
