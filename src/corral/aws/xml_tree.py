"""Parses untrusted XML into a tree.

It refuses DTDs, so entities are never expanded. It limits the depth, and the number of elements and attributes. The numbers are
estimated before the body is parsed: expat reads a start tag as a whole, however many attributes and namespaces it has.
"""

from __future__ import annotations

from typing import Any
from xml.parsers import expat

from corral.aws.wire_errors import NESTING_MAX, ParseError

ELEMENTS_MAX = 200_000  # the largest valid request is CompleteMultipartUpload with 10,000 parts, which has half as many elements


ATTRIBUTES_MAX = 50_000  # documents of S3 have few, but `xmlns` may be repeated


class Element:
    """An XML element with its children in order, its own text and its attributes. Names do not contain namespaces."""

    __slots__ = ("attributes", "children", "tag", "text")

    def __init__(self, tag: str, attributes: dict[str, str] | None) -> None:
        self.tag = tag
        self.attributes = attributes
        self.children: list[Element] = []
        self.text = ""


class _Builder:
    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        # The texts of the open elements; expat may report a text in many parts, which `end` joins.
        self._texts: list[list[str]] = []
        self._count = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > ELEMENTS_MAX:
            raise _too_many_elements()
        if len(self._open) >= NESTING_MAX:
            raise ParseError.too_deep()
        element = Element(_local(name), {_local(key): value for key, value in attributes.items()} if attributes else None)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)
        self._texts.append([])

    def end(self, name: str) -> None:
        self._open.pop().text = "".join(self._texts.pop())

    def text(self, data: str) -> None:
        self._texts[-1].append(data)


def tree_from_xml(body: bytes) -> Element:
    if body.count(b"<") > 2 * ELEMENTS_MAX:  # an element has up to two tags
        raise _too_many_elements()
    if min(body.count(b"="), (body.count(b'"') + body.count(b"'")) // 2) > ATTRIBUTES_MAX:
        raise ParseError.syntax(f"more than {ATTRIBUTES_MAX} attributes")
    parser = expat.ParserCreate("utf-8", "}")  # ignore the declared encoding; expat returns names as `namespace}name`
    parser.buffer_text = True
    builder = _Builder()
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    parser.StartDoctypeDeclHandler = _refuse_dtd
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise ParseError.syntax(f"the body is not well-formed XML: {expat.errors.messages[error.code]}") from None
    assert builder.root is not None, "expat raises an error if the document has no root"
    return builder.root


def _too_many_elements() -> ParseError:
    return ParseError.syntax(f"more than {ELEMENTS_MAX} elements")


def _refuse_dtd(*args: Any) -> None:
    raise ParseError.syntax("a document type declaration is not allowed")


def _local(name: str) -> str:
    return name.rpartition("}")[2]
