"""The tree of a form's dotted names to parameters, for query and for its cousin ec2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.aws.faults import Misfit
from corral.aws.form import in_order
from corral.aws.models import ec2_name, form_name
from corral.aws.parse.text import text_reader
from corral.aws.shapes import Shape

QueryReader = Callable[[Any], Any]
Readers = dict[tuple[str, bool], QueryReader]  # by shape name and whether this use of it is flattened

TIMESTAMP_FORMAT = "iso8601"


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where query and ec2 differ."""

    name: Callable[[str, Shape], str]  # of a member
    always_flat: bool  # lists have no `member` between their name and their indices


def query_reader(shape: Shape, readers: Readers, dialect: Dialect) -> QueryReader:
    """The reader of one shape, from text or a subtree."""
    if shape.type_name not in _COMPOUND:
        return _scalar_reader(shape)
    key = (shape.name, bool(shape.serialization.get("flattened")))
    known = readers.get(key)
    if known is not None:
        return known
    # A shape that contains itself meets this entry while it is being compiled.
    readers[key] = lambda node: readers[key](node)
    readers[key] = reader = _COMPOUND[shape.type_name](shape, readers, dialect)
    return reader


def _scalar_reader(shape: Shape) -> QueryReader:
    read_text = text_reader(shape, TIMESTAMP_FORMAT)

    def read(node: Any) -> Any:
        if node.__class__ is not str:
            raise Misfit.type("a single value is needed, not a structure")
        return read_text(node)

    return read


def _structure(shape: Shape, readers: Readers, dialect: Dialect) -> QueryReader:
    members = tuple(
        (name, dialect.name(name, member), member.serialization.get("name", name), query_reader(member, readers, dialect))
        for name, member in shape.members.items()
    )
    needed = tuple(shape.required_members)

    def read(node: Any) -> dict[str, Any]:
        node = _subtree(node)
        params = {}
        for name, wire_name, own_name, read_member in members:
            child = node.get(wire_name)
            if child is None:
                child = node.get(own_name)  # an empty flattened list comes under the name of the list
                if child is None:
                    continue
            try:
                params[name] = read_member(child)
            except Misfit as misfit:
                misfit.path.append(wire_name)
                raise
        for name in needed:
            if name not in params:
                raise Misfit.missing(*(name for name in needed if name not in params))
        return params

    return read


def _list(shape: Shape, readers: Readers, dialect: Dialect) -> QueryReader:
    flattened = dialect.always_flat or shape.serialization.get("flattened")
    element_name = shape.member.serialization.get("name", "member")
    read_element = query_reader(shape.member, readers, dialect)

    def read(node: Any) -> list[Any]:
        node = _subtree(node)
        if not flattened:
            node = _inside(node, element_name)
        params: list[Any] = []
        for child in in_order(node):
            try:
                params.append(read_element(child))
            except Misfit as misfit:
                misfit.path.append(f"{len(params) + 1}.{element_name}")
                raise
        return params

    return read


def _map(shape: Shape, readers: Readers, dialect: Dialect) -> QueryReader:
    flattened = shape.serialization.get("flattened")
    key_name = shape.key.serialization.get("name", "key")
    value_name = shape.value.serialization.get("name", "value")
    read_key = query_reader(shape.key, readers, dialect)
    read_value = query_reader(shape.value, readers, dialect)

    def read(node: Any) -> dict[str, Any]:
        node = _subtree(node)
        if not flattened:
            node = _inside(node, "entry")
        params = {}
        for child in in_order(node):
            entry = _subtree(child)
            if key_name not in entry:
                raise Misfit.missing(key_name)
            try:
                # A value that is an empty structure leaves no trace in a form.
                params[read_key(entry[key_name])] = read_value(entry.get(value_name, ""))
            except Misfit as misfit:
                misfit.path.append(value_name)
                raise
        return params

    return read


def _inside(node: dict[str, Any], name: str) -> dict[str, Any]:
    """What stands under the one name that a list or map has; to ignore others would lose elements silently."""
    if node and name not in node:
        raise Misfit.type(f"elements must be named {name}.N")
    return _subtree(node.get(name, ""))


def _subtree(node: Any) -> dict[str, Any]:
    if node.__class__ is dict:
        tree: dict[str, Any] = node
        return tree
    if node == "":  # how an empty list is sent
        return {}
    raise Misfit.type("a structure, list or map is needed, not a single value")


QUERY = Dialect(form_name, always_flat=False)
EC2 = Dialect(ec2_name, always_flat=True)
_COMPOUND: dict[str, Callable[[Shape, Readers, Dialect], QueryReader]] = {
    "structure": _structure,
    "list": _list,
    "map": _map,
}
