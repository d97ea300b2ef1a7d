"""Parses REST requests. Members can be in the path, the query string, the headers and the body."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from corral.aws.form_encoding import pairs_from_text, percent_decoded
from corral.aws.http import Request, decompressed_body
from corral.aws.parse import xml_body
from corral.aws.parse.json_body import (
    JsonReaders,
    check_depth,
    json_reader,
    members_reader,
    unbounded,
    value_from_bytes,
)
from corral.aws.parse.text import text_reader
from corral.aws.shapes import Shape
from corral.aws.timestamps import HEADER_TIMESTAMP_FORMAT, TEXT_TIMESTAMP_FORMAT
from corral.aws.wire_errors import ParseError
from corral.aws.xml_tree import tree_from_xml

Labels = Mapping[str, str]  # the values of the path's labels, still percent-encoded
MemberReader = Callable[[Request, Labels, dict[str, list[str]]], Any]  # returns None if the member is absent
ReadBody = Callable[[Request], dict[str, Any]]
RestParser = Callable[[Request, Labels], dict[str, Any]]


def rest_json_parser(shape: Shape, readers: JsonReaders) -> RestParser:
    return _parser(shape, _json_body_reader(shape, readers))


def rest_xml_parser(shape: Shape, readers: xml_body.XmlReaders) -> RestParser:
    return _parser(shape, _xml_body_reader(shape, readers))


def _parser(shape: Shape, read_body: ReadBody) -> RestParser:
    always: list[tuple[str, MemberReader]] = []
    # Header -> its members. S3's inputs have dozens of header members, but a request has few headers. So `parse` loops over the
    # headers of the request.
    by_header: dict[str, list[tuple[str, MemberReader]]] = {}
    for name, member in shape.members.items():
        if member.serialization.get("location") == "header":
            by_header.setdefault(member.serialization.get("name", name).lower(), []).append(
                (name, _member_reader(name, member, shape))
            )
        elif "location" in member.serialization:
            always.append((name, _member_reader(name, member, shape)))
    needed = tuple(shape.required_members)

    def parse(request: Request, labels: Labels) -> dict[str, Any]:
        params: dict[str, Any] = read_body(request)
        query = _by_name(request.query)
        parts = [*always]
        for header in request.headers:
            if header in by_header:
                parts += by_header[header]
        for name, part in parts:
            try:
                value = part(request, labels, query)
            except ParseError as error:
                error.path.append(name)
                error.kind = "argument"
                raise
            if value is not None:
                params[name] = value
        for name in needed:
            if name not in params:
                raise ParseError.missing(*(name for name in needed if name not in params))
        return params

    return parse


def _in_body(shape: Shape) -> list[tuple[str, Shape]]:
    return [(name, member) for name, member in shape.members.items() if "location" not in member.serialization]


def _json_body_reader(shape: Shape, readers: JsonReaders) -> ReadBody:
    payload = shape.serialization.get("payload")
    if payload is not None:
        return _raw_payload_reader(payload, shape) or _json_payload_reader(payload, shape.members[payload], readers)
    members = _in_body(shape)
    if not members:
        return lambda request: {}
    read_value = members_reader(members, (), readers)
    deep = any(unbounded(member) for _, member in members)

    def read(request: Request) -> dict[str, Any]:
        value = value_from_bytes(decompressed_body(request))
        if deep:
            check_depth(value)
        params: dict[str, Any] = read_value(value)
        return params

    return read


def _json_payload_reader(payload: str, member: Shape, readers: JsonReaders) -> ReadBody:
    read_value = json_reader(member, readers)
    deep = unbounded(member)

    def read(request: Request) -> dict[str, Any]:
        body = decompressed_body(request)
        if not body:
            return {}
        value = value_from_bytes(body)
        if deep:
            check_depth(value)
        return {payload: read_value(value)}

    return read


def _xml_body_reader(shape: Shape, readers: xml_body.XmlReaders) -> ReadBody:
    payload = shape.serialization.get("payload")
    if payload is None:
        members, root, needed = _in_body(shape), shape.serialization.get("name"), False
        read_members = xml_body.members_reader(members, (), readers)
    else:
        raw = _raw_payload_reader(payload, shape)
        if raw is not None:
            return raw
        member = shape.members[payload]
        members, root, needed = list(member.members.items()), _root_name(payload, member), payload in shape.required_members
        read_members = xml_body.members_reader(members, member.required_members, readers)
    if not members and payload is None:
        return lambda request: {}

    def read(request: Request) -> dict[str, Any]:
        body = decompressed_body(request)
        if not body:
            if needed:
                raise ParseError.syntax(f"the body is empty, but it must have the root element {root}")
            return {}
        tree = tree_from_xml(body)
        if tree.tag != root:
            raise ParseError.syntax(f"the root element of the body must be {root}, not {tree.tag[:100]}")
        try:
            params = read_members(tree)
        except ParseError as error:
            if error.kind == "missing":  # if a required member is missing, AWS calls the XML malformed
                error.kind, error.detail = "syntax", f"required members are absent: {', '.join(error.names)}"
            raise
        return params if payload is None else {payload: params}

    return read


def _root_name(payload: str, member: Shape) -> str:
    return str(member.serialization.get("name", payload))


def _raw_payload_reader(payload: str, shape: Shape) -> ReadBody | None:
    """Return the reader of a payload that is a blob or a string, and None for other types. The value is the unparsed body."""
    kind = shape.members[payload].type_name
    if kind == "blob":
        return lambda request: {payload: request.body} if request.body else {}
    if kind == "string":
        return lambda request: {payload: _text(request.body)} if request.body else {}
    return None


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise ParseError.syntax("the body is not valid UTF-8") from None


def _by_name(query: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in pairs_from_text(query):
        values.setdefault(name, []).append(value)
    return values


def _member_reader(name: str, member: Shape, whole: Shape) -> MemberReader:
    location = member.serialization["location"]
    wire_name = member.serialization.get("name", name)
    if location == "uri":
        return _label_reader(wire_name, member)
    if location == "querystring":
        return _query_reader(wire_name, member, whole)
    if location == "header":
        return _header_reader(wire_name.lower(), member)
    if location == "headers":
        return _header_map_reader(wire_name.lower())
    raise AssertionError(f"no model has a request member at {location}")


def _label_reader(wire_name: str, member: Shape) -> MemberReader:
    read = text_reader(member, TEXT_TIMESTAMP_FORMAT)
    return lambda request, labels, query: read(percent_decoded(labels[wire_name])) if wire_name in labels else None


def _query_reader(wire_name: str, member: Shape, whole: Shape) -> MemberReader:
    if member.type_name == "map":
        return _query_map_reader(member, whole)
    if member.type_name == "list":
        read_element = text_reader(member.member, TEXT_TIMESTAMP_FORMAT)
        return lambda request, labels, query: [read_element(text) for text in query[wire_name]] if wire_name in query else None
    read = text_reader(member, TEXT_TIMESTAMP_FORMAT)
    return lambda request, labels, query: read(query[wire_name][0]) if wire_name in query else None


def _query_map_reader(member: Shape, whole: Shape) -> MemberReader:
    """Return the reader of a map in the query string. The map contains every query parameter that belongs to no other member."""
    claimed = {
        other.serialization.get("name", name)
        for name, other in whole.members.items()
        if other.serialization.get("location") == "querystring" and other.type_name != "map"
    }
    many = member.value.type_name == "list"

    def part(request: Request, labels: Labels, query: dict[str, list[str]]) -> Any:
        found = {name: values if many else values[0] for name, values in query.items() if name not in claimed}
        return found or None

    return part


def _header_reader(wire_name: str, member: Shape) -> MemberReader:
    if member.serialization.get("jsonvalue"):
        read: Callable[[str], Any] = _json_from_header
    elif member.type_name == "list":
        read_element = text_reader(member.member, HEADER_TIMESTAMP_FORMAT)
        commas = 2 if member.member.type_name == "timestamp" else 1  # an rfc822 date contains a comma itself
        read = lambda text: [read_element(item) for item in _split_header(text, commas)]  # noqa: E731
    else:
        read = text_reader(member, HEADER_TIMESTAMP_FORMAT)
        if member.type_name == "timestamp" and not wire_name.startswith("x-amz-"):
            read = _none_if_invalid(read)
    return lambda request, labels, query: read(request.headers[wire_name]) if wire_name in request.headers else None


def _none_if_invalid(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a reader that ignores invalid dates. HTTP requires this for its own headers, such as If-Modified-Since."""

    def read_or_none(text: str) -> Any:
        try:
            return read(text)
        except ParseError:
            return None

    return read_or_none


def _header_map_reader(prefix: str) -> MemberReader:
    def part(request: Request, labels: Labels, query: dict[str, list[str]]) -> Any:
        found = {name[len(prefix) :]: value for name, value in request.headers.items() if name.startswith(prefix)}
        return found or None

    return part


def _json_from_header(text: str) -> Any:
    try:
        value = orjson.loads(b64decode(text, validate=True))
    except ValueError:  # invalid base64 or invalid JSON
        raise ParseError.wrong_type("not a base64-encoded JSON value") from None
    check_depth(value)
    return value


def _split_header(text: str, commas: int) -> list[str]:
    """Split the elements of a list in a header. An element without quotes contains `commas` - 1 commas.

    Clients put other elements that contain a comma or a quote in quotes.
    """
    elements: list[str] = []
    current, quoted, escaped, seen = "", False, False, 0
    for char in text:
        if escaped:
            current, escaped = current + char, False
        elif quoted and char == "\\":
            escaped = True
        elif char == '"' and (quoted or not current.strip()):
            quoted = not quoted
        elif char == "," and not quoted:
            seen += 1
            if seen % commas:
                current += char
            else:
                elements.append(current.strip())
                current = ""
        else:
            current += char
    elements.append(current.strip())
    return elements
