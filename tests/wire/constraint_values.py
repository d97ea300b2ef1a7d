"""Values that satisfy or violate the constraints of a shape: one valid input per operation, one violation per constraint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corral.aws.constraints.check import violations
from corral.aws.constraints.tables import Limit
from corral.aws.constraints.tree import NUMBERS, ConstraintNode
from corral.aws.shapes import Shape
from wire.pattern_texts import texts_of

Path = tuple[str, ...]

# Texts to try before those that are made from patterns. Each is also tried with its last character repeated. The ARN has to match
# two patterns.
PLAIN_TEXTS = ("a", "abc", "1", "/", "text", "a@b", "arn:aws:s3:::a/b.env")
WRONG_TEXTS = ("\x00", "", "!", ":", "é*:!\x07", "a b", "no such value", "?" * 30, ":" * 30, "\x00" * 30, "$" * 3)


def valid(shape: Shape, node: ConstraintNode | None) -> Any:
    """Return a small value that satisfies the shape and all its constraints."""
    kind = shape.type_name
    if kind == "structure":
        members = node.members if node is not None else {}
        return {name: valid(shape.members[name], members.get(name)) for name in shape.required_members}
    if kind == "list":
        element = node.element if node is not None else None
        return [valid(shape.member, element) for _ in range(_least(node))]
    if kind == "map":
        texts = _keys(node, _least(node))
        return {text: valid(shape.value, node.value if node is not None else None) for text in texts}
    if kind in ("string", "character"):
        return _text(node)
    if kind in NUMBERS:
        return _number(node)
    return {"boolean": True, "blob": b"x" * _least(node), "timestamp": 0.0}[kind]


def placed(shape: Shape, node: ConstraintNode | None, path: Path, value: Any) -> Any:
    """Return a valid value of the shape that has `value` at the path. `node` is None where a shape has no constraints."""
    if not path:
        return value
    part, rest = path[0], path[1:]
    if part == "[]":
        element = placed(shape.member, node.element if node is not None else None, rest, value)
        return [*valid(shape, node)[1:], element]
    if part == "<key>":
        inner = valid(shape, node)
        for key in list(inner)[:1]:
            del inner[key]
        key = placed(shape.key, node.key if node is not None else None, rest, value)
        return {**inner, key: valid(shape.value, node.value if node is not None else None)}
    if part == "<value>":
        inner = valid(shape, node) or {_keys(node, 1)[0]: None}
        return {**inner, next(iter(inner)): placed(shape.value, node.value if node is not None else None, rest, value)}
    base, members = valid(shape, node), node.members if node is not None else {}
    return {**base, part: placed(shape.members[part], members.get(part), rest, value)}


def wrong(node: ConstraintNode, limit: Limit) -> Iterator[tuple[str, Any]]:
    """Yield (constraint, value) for every constraint of a limit that a value can violate."""
    kind = node.shape.type_name
    if limit.enum is not None:
        yield "enum", "no such value" if kind == "string" else 10**6
    if kind in NUMBERS:
        if limit.max is not None:
            yield "max", limit.max + 1
        if limit.min is not None:
            yield "min", limit.min - 1
        return
    if limit.max is not None and (kind != "map" or len(_keys(node, int(limit.max) + 1)) > limit.max):  # an enum has fewer keys
        yield "max", _of_length(node, int(limit.max) + 1)
    if limit.min is not None and limit.min > 0:
        yield "min", _of_length(node, int(limit.min) - 1)
    if limit.pattern is not None:
        found = next((text for text in WRONG_TEXTS if any(each.kind == "pattern" for each in violations(node, text))), None)
        if found is not None:
            yield "pattern", found


def _of_length(node: ConstraintNode, length: int) -> Any:
    kind = node.shape.type_name
    if kind == "list":
        return [valid(node.shape.member, node.element)] * length
    if kind == "map":
        return {text: valid(node.shape.value, node.value) for text in _keys(node, length)}
    return b"x" * length if kind == "blob" else "x" * length


def _least(node: ConstraintNode | None) -> int:
    return max((int(limit.min or 0) for limit in node.limits), default=0) if node is not None else 0


def _keys(node: ConstraintNode | None, count: int) -> list[str]:
    if node is None or node.key is None:
        return [f"key{number}" for number in range(count)]
    enums = [limit.enum for limit in node.key.limits if limit.enum is not None]
    if enums:
        return [str(value) for value in enums[0]][:count]
    return [f"key{number}" for number in range(count)]


def _text(node: ConstraintNode | None) -> str:
    if node is None:
        return "a"
    for limit in node.limits:
        if limit.enum is not None:
            return str(limit.enum[0])
    least = _least(node)
    for candidate in _candidates(node, least):
        if not violations(node, candidate):
            return candidate
    raise AssertionError(f"no valid text for {node.shape.name}: {node.limits}")


def _candidates(node: ConstraintNode, least: int) -> Iterator[str]:
    for text in PLAIN_TEXTS:
        yield text
        yield text + text[-1] * (least - len(text))
    for limit in node.limits:
        if limit.pattern is not None:
            yield from texts_of(limit.pattern, least)


def _number(node: ConstraintNode | None) -> int:
    for limit in node.limits if node is not None else ():
        if limit.enum is not None:
            return int(limit.enum[0])
        if limit.min is not None:
            return int(limit.min)
        if limit.max is not None:
            return min(1, int(limit.max))
    return 1
