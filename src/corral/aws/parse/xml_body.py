"""Parses XML elements into parameters. Elements that the model does not have are ignored. Members may have any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from corral.aws.models import form_name
from corral.aws.parse.text import TextReader, text_reader
from corral.aws.shapes import Shape, compiled_once
from corral.aws.timestamps import TEXT_TIMESTAMP_FORMAT
from corral.aws.wire_errors import ParseError
from corral.aws.xml_tree import Element

XmlReader = Callable[[list[Element]], Any]  # the argument has several elements if a list or map is flattened
XmlReaders = dict[tuple[str, bool], XmlReader]  # (shape name, flattened) -> reader


def xml_reader(shape: Shape, readers: XmlReaders) -> XmlReader:
    if shape.type_name not in _COMPOUND:
        return _scalar_reader(shape)
    key = (shape.name, bool(shape.serialization.get("flattened")))
    return compiled_once(readers, key, lambda: _COMPOUND[shape.type_name](shape, readers))


def members_reader(
    members: Iterable[tuple[str, Shape]], required: Iterable[str], readers: XmlReaders
) -> Callable[[Element], dict[str, Any]]:
    by_tag: dict[str, tuple[str, XmlReader]] = {}
    attributes: list[tuple[str, str, TextReader]] = []
    for name, member in members:
        if member.serialization.get("xmlAttribute"):
            attributes.append((name, _local(member.serialization["name"]), text_reader(member, TEXT_TIMESTAMP_FORMAT)))
            continue
        entry = (name, xml_reader(member, readers))
        by_tag[form_name(name, member)] = entry
        by_tag.setdefault(member.serialization.get("name", name), entry)  # botocore uses this name for a flattened list
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
            except ParseError as error:
                error.path.append(tag)
                raise
        for name, key, read_text in attributes:
            if element.attributes and key in element.attributes:
                params[name] = read_text(element.attributes[key])
        for name in needed:
            if name not in params:
                raise ParseError.missing(*(name for name in needed if name not in params))
        return params

    return read


def _scalar_reader(shape: Shape) -> XmlReader:
    read_text = text_reader(shape, TEXT_TIMESTAMP_FORMAT)
    exact = shape.type_name in ("string", "character")

    def read(elements: list[Element]) -> Any:
        element = elements[-1]
        if element.children:
            raise ParseError.wrong_type("expected a single value, but found a structure")
        return read_text(element.text if exact else element.text.strip())

    return read


def _structure(shape: Shape, readers: XmlReaders) -> XmlReader:
    read_members = members_reader(shape.members.items(), shape.required_members, readers)
    return lambda elements: read_members(elements[-1])


def _list(shape: Shape, readers: XmlReaders) -> XmlReader:
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
            except ParseError as error:
                error.path.append(f"{len(params) + 1}.member")
                raise
        return params

    return read


def _map(shape: Shape, readers: XmlReaders) -> XmlReader:
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


_COMPOUND: dict[str, Callable[[Shape, XmlReaders], XmlReader]] = {"structure": _structure, "list": _list, "map": _map}
