"""Requests of every served operation in which one number or timestamp has the smallest or the largest value that it can have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corral.aws.constraints.tree import ConstraintNode
from corral.aws.shapes import Shape
from corral.aws.timestamps import EPOCH_MAX_S, EPOCH_MIN_S
from fuzz.composer import Composer, Params, input_of

DEEPEST = 6
EXTREMES: dict[str, tuple[float, float]] = {
    "integer": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "float": (-3e38, 3e38),
    "double": (-1.7e308, 1.7e308),
    "timestamp": (EPOCH_MIN_S, EPOCH_MAX_S),
}
LARGE = frozenset({"long", "timestamp"})  # whose largest values exceed what SQLite or `datetime` can hold after one addition


def extreme_params(
    composer: Composer, service: str, protocol: str, operation: str, kinds: frozenset[str]
) -> Iterator[tuple[str, Params]]:
    """Yield the changed member and the parameters: valid ones in which one member has an extreme value."""
    shape, node = input_of(service, protocol, operation)
    for path in _paths(shape, (), kinds) if shape is not None else ():
        assert shape is not None
        for value in _values(shape, node, path):
            params = composer.params(service, protocol, operation)
            yield f"{'.'.join(path)} = {value}", _with(composer, service, shape, node, params, path, value)


def _paths(shape: Shape, path: tuple[str, ...], kinds: frozenset[str]) -> Iterator[tuple[str, ...]]:
    kind = shape.type_name
    if kind in kinds:
        yield path
    if len(path) >= DEEPEST:
        return
    if kind == "structure" and not shape.is_document_type:
        for name, member in shape.members.items():
            yield from _paths(member, (*path, name), kinds)
    elif kind == "list":
        yield from _paths(shape.member, (*path, "0"), kinds)
    elif kind == "map":
        yield from _paths(shape.value, (*path, "key"), kinds)


def _inner(shape: Shape, node: ConstraintNode | None, step: str) -> tuple[Shape, ConstraintNode | None]:
    if shape.type_name == "structure":
        return shape.members[step], node.members.get(step) if node is not None else None
    if shape.type_name == "list":
        return shape.member, node.element if node is not None else None
    return shape.value, node.value if node is not None else None


def _values(shape: Shape, node: ConstraintNode | None, path: tuple[str, ...]) -> list[float]:
    """The extremes of the type, and those that the model allows."""
    for step in path:
        shape, node = _inner(shape, node, step)
    whole = shape.type_name in ("integer", "long")
    allowed = [shape.constraints[name] for name in ("min", "max") if name in shape.constraints]
    return list(dict.fromkeys([*EXTREMES[shape.type_name], *(int(each) if whole else float(each) for each in allowed)]))


def _with(
    composer: Composer, service: str, shape: Shape, node: ConstraintNode | None, base: Any, path: tuple[str, ...], value: float
) -> Any:
    """Return the parameters with the value at this path. Structures around it get their required members."""
    if not path:
        return value
    step, *rest = path
    inner, inner_node = _inner(shape, node, step)
    if shape.type_name == "list":
        first = base[0] if isinstance(base, list) and base else composer.value(service, step, inner, inner_node, len(path))
        return [_with(composer, service, inner, inner_node, first, tuple(rest), value)]
    base = base if isinstance(base, dict) else composer.value(service, step, shape, node, DEEPEST)
    return {**base, step: _with(composer, service, inner, inner_node, base.get(step), tuple(rest), value)}
