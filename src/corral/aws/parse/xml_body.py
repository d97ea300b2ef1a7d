"""Elements to parameters. Unknown elements are skipped, and the order of members does not matter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from corral.aws.faults import Misfit
from corral.aws.models import form_name
from corral.aws.parse.text import TextReader, text_reader
from corral.aws.shapes import Shape
from corral.aws.xml_tree import Element

XmlReader = Callable[[list[Element]], Any]  # all elements of one name: one of them, unless a list or map is flattened
Readers = dict[tuple[str, bool], XmlReader]  # by shape name and whether this use of it is flattened

TIMESTAMP_FORMAT = "iso8601"


def xml_reader(shape: Shape, readers: Readers) -> XmlReader:
    """The reader of one shape."""
    if shape.type_name not in _COMPOUND:
        return _scalar_reader(shape)
    key = (shape.name, bool(shape.serialization.get("flattened")))
    known = readers.get(key)
    if known is not None:
        return known
    # A shape that contains itself meets this entry while it is being compiled.
    readers[key] = lambda elements: readers[key](elements)
    readers[key] = reader = _COMPOUND[shape.type_name](shape, readers)
    return reader


def members_reader(
    members: Iterable[tuple[str, Shape]], required: Iterable[str], readers: Readers
) -> Callable[[Element], dict[str, Any]]:
    """The reader of a structure, or of that part of one that is in the body."""
    by_tag: dict[str, tuple[str, XmlReader]] = {}
    attributes: list[tuple[str, str, TextReader]] = []
    for name, member in members:
        if member.serialization.get("xmlAttribute"):
            attributes.append((name, _local(member.serialization["name"]), text_reader(member, TIMESTAMP_FORMAT)))
            continue
        entry = (name, xml_reader(member, readers))
        by_tag[form_name(name, member)] = entry
        by_tag.setdefault(member.serialization.get("name", name), entry)  # botocore sends a flattened list's own name
    needed = tuple(required)

    def read(element: Element) -> dict[str, Any]:
        found: dict[str, list[Element]] = {}
        for child in element.children:
            found.setdefault(child.tag, []).append(child)
        params: dict[str, Any] = {}
        for tag, children in found.items():
            member = by_tag.get(tag)
            if member is None:
                continue
            name, read_member = member
            try:
                params[name] = read_member(children)
            except Misfit as misfit:
                misfit.path.append(tag)
                raise
        for name, key, read_text in attributes:
            if element.attributes and key in element.attributes:
                params[name] = read_text(element.attributes[key])
        for name in needed:
            if name not in params:
                raise Misfit.missing(*(name for name in needed if name not in params))
        return params

    return read


def _scalar_reader(shape: Shape) -> XmlReader:
    read_text = text_reader(shape, TIMESTAMP_FORMAT)
    exact = shape.type_name in ("string", "character")

    def read(elements: list[Element]) -> Any:
        element = elements[-1]
        if element.children:
            raise Misfit.type("a single value is needed, not a structure")
        return read_text(element.text if exact else element.text.strip())

    return read


def _structure(shape: Shape, readers: Readers) -> XmlReader:
    read_members = members_reader(shape.members.items(), shape.required_members, readers)
    return lambda elements: read_members(elements[-1])


def _list(shape: Shape, readers: Readers) -> XmlReader:
    flattened = shape.serialization.get("flattened")
    element_name = shape.member.serialization.get("name", "member")
    read_element = xml_reader(shape.member, readers)

    def read(elements: list[Element]) -> list[Any]:
        if not flattened:
            elements = [child for child in elements[-1].children if child.tag == element_name]
        params: list[Any] = []
        for element in elements:
            try:
                params.append(read_element([element]))
            except Misfit as misfit:
                misfit.path.append(f"{len(params) + 1}.member")
                raise
        return params

    return read


def _map(shape: Shape, readers: Readers) -> XmlReader:
    flattened = shape.serialization.get("flattened")
    read_entry = members_reader((("key", shape.key), ("value", shape.value)), ("key", "value"), readers)

    def read(elements: list[Element]) -> dict[str, Any]:
        if not flattened:
            elements = [child for child in elements[-1].children if child.tag == "entry"]
        entries = [read_entry(element) for element in elements]
        return {entry["key"]: entry["value"] for entry in entries}

    return read


def _local(name: str) -> str:
    return name.rpartition(":")[2]


_COMPOUND: dict[str, Callable[[Shape, Readers], XmlReader]] = {"structure": _structure, "list": _list, "map": _map}
