"""Parses a form into parameters, for the query and ec2 protocols.

The input is the tree that `form_tree` builds from dotted names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from corral.aws.form_encoding import indexed_elements
from corral.aws.models import ec2_name, form_name
from corral.aws.parse.text import text_reader
from corral.aws.shapes import Shape, compiled_once
from corral.aws.timestamps import TEXT_TIMESTAMP_FORMAT
from corral.aws.wire_errors import ParseError

QueryReader = Callable[[Any], Any]
QueryReaders = dict[tuple[str, bool], QueryReader]  # (shape name, flattened) -> reader


class Dialect(Struct, frozen=True):
    """The differences between the query and the ec2 protocol."""

    name: Callable[[str, Shape], str]  # returns the name of a member in a form
    always_flat: bool  # True: a list element is named `List.1`, never `List.member.1`


def query_reader(shape: Shape, readers: QueryReaders, dialect: Dialect) -> QueryReader:
    """Return a function that converts a node of the form tree into a value of the shape. A node is a text or a subtree."""
    if shape.type_name not in _COMPOUND:
        return _scalar_reader(shape)
    key = (shape.name, bool(shape.serialization.get("flattened")))
    return compiled_once(readers, key, lambda: _COMPOUND[shape.type_name](shape, readers, dialect))


def _scalar_reader(shape: Shape) -> QueryReader:
    read_text = text_reader(shape, TEXT_TIMESTAMP_FORMAT)

    def read(node: Any) -> Any:
        if node.__class__ is not str:
            raise ParseError.wrong_type("expected a single value, but found a structure")
        return read_text(node)

    return read


def _structure(shape: Shape, readers: QueryReaders, dialect: Dialect) -> QueryReader:
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
                child = node.get(own_name)  # clients use this name for an empty flattened list
                if child is None:
                    continue
            try:
                params[name] = read_member(child)
            except ParseError as error:
                error.path.append(wire_name)
                raise
        for name in needed:
            if name not in params:
                raise ParseError.missing(*(name for name in needed if name not in params))
        return params

    return read


def _list(shape: Shape, readers: QueryReaders, dialect: Dialect) -> QueryReader:
    flattened = dialect.always_flat or shape.serialization.get("flattened")
    element_name = shape.member.serialization.get("name", "member")
    read_element = query_reader(shape.member, readers, dialect)

    def read(node: Any) -> list[Any]:
        node = _subtree(node)
        if not flattened:
            node = _inside(node, element_name)
        params: list[Any] = []
        for child in indexed_elements(node):
            try:
                params.append(read_element(child))
            except ParseError as error:
                error.path.append(f"{len(params) + 1}.{element_name}")
                raise
        return params

    return read


def _map(shape: Shape, readers: QueryReaders, dialect: Dialect) -> QueryReader:
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
        for child in indexed_elements(node):
            entry = _subtree(child)
            if key_name not in entry:
                raise ParseError.missing(key_name)
            try:
                # If the value is an empty structure, the form does not contain it.
                params[read_key(entry[key_name])] = read_value(entry.get(value_name, ""))
            except ParseError as error:
                error.path.append(value_name)
                raise
        return params

    return read


def _inside(node: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the subtree with the elements of a list or map. Refuse any other name, because ignoring it would lose elements."""
    if node and name not in node:
        raise ParseError.wrong_type(f"elements must be named {name}.N")
    return _subtree(node.get(name, ""))


def _subtree(node: Any) -> dict[str, Any]:
    if node.__class__ is dict:
        tree: dict[str, Any] = node
        return tree
    if node == "":  # clients send an empty text for an empty list
        return {}
    raise ParseError.wrong_type("expected a structure, list or map, but found a single value")


QUERY = Dialect(form_name, always_flat=False)
EC2 = Dialect(ec2_name, always_flat=True)
_COMPOUND: dict[str, Callable[[Shape, QueryReaders, Dialect], QueryReader]] = {
    "structure": _structure,
    "list": _list,
    "map": _map,
}
