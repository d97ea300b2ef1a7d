"""Builds a tree of all constraints of an operation's input. The entries of the service's table replace constraints of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from corral.aws.constraints.tables import Limit, LimitEntry, Unchecked
from corral.aws.shapes import OperationModel, Shape

SIZED = frozenset({"string", "character", "blob", "list", "map"})
NUMBERS = frozenset({"integer", "long", "short", "byte", "float", "double"})
COMPOUND = frozenset({"structure", "list", "map"})
NO_LIMIT = Limit()


class ConstraintNode(Struct):
    """A value of the input that has constraints itself, or contains values with constraints."""

    shape: Shape
    limits: tuple[Limit, ...] = ()
    members: dict[str, ConstraintNode] = field(default_factory=dict)  # if the value is a structure
    element: ConstraintNode | None = None  # if the value is a list
    key: ConstraintNode | None = None  # if the value is a map
    value: ConstraintNode | None = None

    @property
    def is_needed(self) -> bool:
        return bool(self.limits or self.members or self.element or self.key or self.value)


def input_node(operation: OperationModel, limits: Mapping[str, LimitEntry]) -> ConstraintNode | None:
    """Build the constraint tree of an operation's input. Return None if the input has no constraints."""
    shape = operation.input_shape
    if shape is None:
        return None
    node = _Builder(limits).structure(shape, operation.name)
    return node if node.is_needed else None


class _Builder:
    def __init__(self, limits: Mapping[str, LimitEntry]) -> None:
        self._limits = limits
        self._structures: dict[str, ConstraintNode] = {}

    def structure(self, shape: Shape, operation: str = "") -> ConstraintNode:
        """Return the node of a structure.

        All members with the same structure share one node. Pass `operation` only if the structure is the input of this operation.
        """
        known = self._structures.get(shape.name)
        if known is not None and not operation:
            return known
        node = self._structures[shape.name] = ConstraintNode(shape)  # added first, because a member may have this shape
        if shape.is_document_type:
            return node
        for name, member in shape.members.items():
            keys = (f"{operation}.{name}", f"*.{name}") if operation else (f"{shape.name}.{name}",)
            inner = self._value(member, keys)
            if inner.is_needed:
                node.members[name] = inner
        return node

    def _value(self, shape: Shape, keys: tuple[str, ...]) -> ConstraintNode:
        if shape.type_name == "structure":
            return self.structure(shape)
        node = ConstraintNode(shape, self._limits_of(shape, keys))
        if shape.type_name == "list":
            node.element = self._inner(shape.member, keys, "[]")
        elif shape.type_name == "map":
            node.key = self._inner(shape.key, keys, "<key>")
            node.value = self._inner(shape.value, keys, "<value>")
        return node

    def _inner(self, shape: Shape, keys: tuple[str, ...], mark: str) -> ConstraintNode | None:
        inner = self._value(shape, tuple(key + mark for key in keys))
        return inner if inner.is_needed else None

    def _limits_of(self, shape: Shape, keys: tuple[str, ...]) -> tuple[Limit, ...]:
        entry = next((self._limits[key] for key in (*keys, f":{shape.name}") if key in self._limits), NO_LIMIT)
        if isinstance(entry, Unchecked):
            return ()
        given = entry if isinstance(entry, tuple) else (_over_model(shape, entry),)
        return tuple(limit for limit in given if _constrains(shape, limit))


def _over_model(shape: Shape, limit: Limit) -> Limit:
    """Return a copy of the limit in which the model's constraints replace the fields that are None."""
    constraints = shape.constraints
    return replace(
        limit,
        min=constraints.get("min") if limit.min is None else limit.min,
        max=constraints.get("max") if limit.max is None else limit.max,
        enum=tuple(constraints["enum"]) if limit.enum is None and "enum" in constraints else limit.enum,
        pattern=constraints.get("pattern") if limit.pattern is None else limit.pattern,
    )


def _constrains(shape: Shape, limit: Limit) -> bool:
    if limit.enum is not None or limit.pattern is not None:
        return True
    if shape.type_name in SIZED:
        return limit.max is not None or (limit.min or 0) > 0
    return shape.type_name in NUMBERS and (limit.min is not None or limit.max is not None)


def constrained(
    node: ConstraintNode, path: tuple[str, ...] = (), above: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ConstraintNode]]:
    """Yield the path and the node of every value that has limits. A path contains member names, `[]`, `<key>` and `<value>`."""
    if id(node) in above:
        return
    if node.limits:
        yield path, node
    inner = [*node.members.items(), ("[]", node.element), ("<key>", node.key), ("<value>", node.value)]
    for part, child in inner:
        if child is not None:
            yield from constrained(child, (*path, part), (*above, id(node)))
