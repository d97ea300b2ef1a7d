"""Serializes results to XML. Tags are formatted once, when a shape is compiled. So a writer only joins strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from corral.aws.models import form_name
from corral.aws.serialize.json_body import mapping_items
from corral.aws.serialize.text import text_writer
from corral.aws.shapes import Shape, compiled_once
from corral.aws.timestamps import TEXT_TIMESTAMP_FORMAT
from corral.aws.wire_errors import WrongResult

XmlWriter = Callable[[Any, list[str]], None]  # appends the XML of a value to the list
XmlWriters = dict[tuple[str, str, bool], XmlWriter]  # (shape name, tag, flattened) -> writer
XML_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'

_FORBIDDEN = "\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff"  # characters that XML 1.0 cannot represent
_SPECIAL = re.compile(f"[&<>\r{_FORBIDDEN}]")
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;"}  # an XML parser converts an unescaped \r to \n


class _Never:
    """A class that matches no value of a result."""


# Shape type → the class whose values are their own text. Values of other classes, also of subclasses such as StrEnum, are checked.
_PLAIN = {"string": str, "character": str}


def escaped(text: str) -> str:
    """Escape text for XML. Replace characters that XML cannot represent by U+FFFD."""
    if _SPECIAL.search(text) is None:
        return text
    return _SPECIAL.sub(lambda found: _ESCAPES.get(found[0], "\ufffd"), text)


def xml_writer(shape: Shape, tag: str, writers: XmlWriters) -> XmlWriter:
    """Return a function that writes a value of the shape as an element with this tag."""
    if shape.type_name not in _COMPOUND:
        return _scalar_writer(shape, tag)
    key = (shape.name, tag, bool(shape.serialization.get("flattened")))
    return compiled_once(writers, key, lambda: _COMPOUND[shape.type_name](shape, tag, writers))


def members_writer(name: str, members: Iterable[tuple[str, Shape]], writers: XmlWriters) -> XmlWriter:
    """Return a function that writes these members of a structure. It writes no element around them."""
    by_name: dict[str, tuple[type[Any], str, str, XmlWriter]] = {}
    for member, shape in members:
        tag = form_name(member, shape)
        by_name[member] = (_PLAIN.get(shape.type_name, _Never), f"<{tag}>", f"</{tag}>", xml_writer(shape, tag, writers))
    lookup, is_special = by_name.get, _SPECIAL.search

    def write(value: Any, out: list[str]) -> None:
        for key, item in value.items() if value.__class__ is dict else mapping_items(value, name):
            if item is None:
                continue
            member = lookup(key)
            if member is None:
                raise WrongResult(f"{name} has no member {key!r}")
            plain, opening, closing, write_member = member
            if item.__class__ is plain:  # most members are strings, and this is what their writer does
                out.append(f"{opening}{item if is_special(item) is None else escaped(item)}{closing}")
                continue
            try:
                write_member(item, out)
            except WrongResult as wrong:
                raise WrongResult(f"{name}.{key}: {wrong}") from None

    return write


def _scalar_writer(shape: Shape, tag: str) -> XmlWriter:
    opening, closing = f"<{tag}>", f"</{tag}>"
    to_text = text_writer(shape, TEXT_TIMESTAMP_FORMAT)

    def write(value: Any, out: list[str]) -> None:
        out.append(opening)
        out.append(escaped(to_text(value)))
        out.append(closing)

    return write


def _structure(shape: Shape, tag: str, writers: XmlWriters) -> XmlWriter:
    attributes = {name: member for name, member in shape.members.items() if member.serialization.get("xmlAttribute")}
    if attributes:
        return _structure_with_attributes(shape, attributes, tag, writers)
    return _inside(tag, members_writer(shape.name, shape.members.items(), writers))


def _structure_with_attributes(shape: Shape, attributes: dict[str, Shape], tag: str, writers: XmlWriters) -> XmlWriter:
    opening, closing = f"<{tag}{_namespace(shape)}", f"</{tag}>"
    to_text = {
        name: (f' {member.serialization["name"]}="', text_writer(member, TEXT_TIMESTAMP_FORMAT))
        for name, member in attributes.items()
    }
    inner = [(name, member) for name, member in shape.members.items() if name not in attributes]
    write_inner = members_writer(shape.name, inner, writers)

    def write(value: Any, out: list[str]) -> None:
        out.append(opening)
        for name, (start, write_text) in to_text.items():
            if value.get(name) is not None:
                out += (start, escaped(write_text(value[name])).replace('"', "&quot;"), '"')
        out.append(">")
        write_inner({key: item for key, item in value.items() if key not in to_text}, out)
        out.append(closing)

    return write


def _namespace(shape: Shape) -> str:
    namespace = shape.serialization.get("xmlNamespace")
    if namespace is None:
        return ""
    prefix = namespace.get("prefix")
    return f' xmlns{":" + prefix if prefix else ""}="{namespace["uri"]}"'


def _list(shape: Shape, tag: str, writers: XmlWriters) -> XmlWriter:
    flattened = bool(shape.serialization.get("flattened"))
    element_tag = tag if flattened else shape.member.serialization.get("name", "member")
    write_element = xml_writer(shape.member, element_tag, writers)

    def write(value: Any, out: list[str]) -> None:
        if isinstance(value, str | bytes | dict):
            raise WrongResult(f"{shape.name} must be a list, not {type(value).__name__}")
        for item in value:
            write_element(item, out)

    return write if flattened else _inside(tag, write)


def _map(shape: Shape, tag: str, writers: XmlWriters) -> XmlWriter:
    flattened = bool(shape.serialization.get("flattened"))
    entry_tag = tag if flattened else "entry"
    opening, closing = f"<{entry_tag}>", f"</{entry_tag}>"
    write_key = xml_writer(shape.key, shape.key.serialization.get("name", "key"), writers)
    write_value = xml_writer(shape.value, shape.value.serialization.get("name", "value"), writers)

    def write(value: Any, out: list[str]) -> None:
        for key, item in mapping_items(value, shape.name):
            if item is not None:
                out.append(opening)
                write_key(key, out)
                write_value(item, out)
                out.append(closing)

    return write if flattened else _inside(tag, write)


def _inside(tag: str, write_inner: XmlWriter) -> XmlWriter:
    opening, closing = f"<{tag}>", f"</{tag}>"

    def write(value: Any, out: list[str]) -> None:
        out.append(opening)
        write_inner(value, out)
        out.append(closing)

    return write


_COMPOUND: dict[str, Callable[[Shape, str, XmlWriters], XmlWriter]] = {
    "structure": _structure,
    "list": _list,
    "map": _map,
}
