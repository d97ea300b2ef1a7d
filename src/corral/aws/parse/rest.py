"""REST bindings: members that come in the path, the query string and the headers, and the rest in the body."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from corral.aws.faults import Misfit
from corral.aws.form import decoded, pairs_from_text
from corral.aws.http import Request, plain_body
from corral.aws.parse import xml_body
from corral.aws.parse.json_body import (
    Readers,
    check_depth,
    json_reader,
    members_reader,
    unbounded,
    value_from_bytes,
)
from corral.aws.parse.text import text_reader
from corral.aws.shapes import Shape
from corral.aws.xml_tree import tree_from_xml

Labels = Mapping[str, str]  # of the path, undecoded
Part = Callable[[Request, Labels, dict[str, list[str]]], Any]  # None: absent
ReadBody = Callable[[Request], dict[str, Any]]
Parser = Callable[[Request, Labels], dict[str, Any]]

HEADER_TIMESTAMP_FORMAT = "rfc822"
QUERY_TIMESTAMP_FORMAT = "iso8601"
PATH_TIMESTAMP_FORMAT = "iso8601"


def rest_json_parser(shape: Shape, readers: Readers) -> Parser:
    """The parser of one operation's input, with a JSON body."""
    return _parser(shape, _json_body_reader(shape, readers))


def rest_xml_parser(shape: Shape, readers: xml_body.Readers) -> Parser:
    """The same with an XML body."""
    return _parser(shape, _xml_body_reader(shape, readers))


def _parser(shape: Shape, read_body: ReadBody) -> Parser:
    always: list[tuple[str, Part]] = []
    by_header: dict[str, list[tuple[str, Part]]] = {}  # S3's inputs have dozens of them, and requests a few
    for name, member in shape.members.items():
        if member.serialization.get("location") == "header":
            by_header.setdefault(member.serialization.get("name", name).lower(), []).append((name, _part(name, member, shape)))
        elif "location" in member.serialization:
            always.append((name, _part(name, member, shape)))
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
            except Misfit as misfit:
                misfit.path.append(name)
                misfit.kind = "argument"
                raise
            if value is not None:
                params[name] = value
        for name in needed:
            if name not in params:
                raise Misfit.missing(*(name for name in needed if name not in params))
        return params

    return parse


def _in_body(shape: Shape) -> list[tuple[str, Shape]]:
    return [(name, member) for name, member in shape.members.items() if "location" not in member.serialization]


def _json_body_reader(shape: Shape, readers: Readers) -> ReadBody:
    payload = shape.serialization.get("payload")
    if payload is not None:
        return _raw_payload_reader(payload, shape) or _json_payload_reader(payload, shape.members[payload], readers)
    members = _in_body(shape)
    if not members:
        return lambda request: {}
    read_value = members_reader(members, (), readers)
    deep = any(unbounded(member) for _, member in members)

    def read(request: Request) -> dict[str, Any]:
        value = value_from_bytes(plain_body(request))
        if deep:
            check_depth(value)
        params: dict[str, Any] = read_value(value)
        return params

    return read


def _json_payload_reader(payload: str, member: Shape, readers: Readers) -> ReadBody:
    read_value = json_reader(member, readers)
    deep = unbounded(member)

    def read(request: Request) -> dict[str, Any]:
        body = plain_body(request)
        if not body:
            return {}
        value = value_from_bytes(body)
        if deep:
            check_depth(value)
        return {payload: read_value(value)}

    return read


def _xml_body_reader(shape: Shape, readers: xml_body.Readers) -> ReadBody:
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
        body = plain_body(request)
        if not body:
            if needed:
                raise Misfit.form(f"the body must be a {root}, and is empty")
            return {}
        tree = tree_from_xml(body)
        if tree.tag != root:
            raise Misfit.form(f"the body must be a {root}, not a {tree.tag[:100]}")
        try:
            params = read_members(tree)
        except Misfit as misfit:
            if misfit.kind == "missing":  # a document that lacks something is one that is not valid
                misfit.kind, misfit.detail = "form", f"{', '.join(misfit.names)} must be there"
            raise
        return params if payload is None else {payload: params}

    return read


def _root_name(payload: str, member: Shape) -> str:
    return str(member.serialization.get("name", payload))


def _raw_payload_reader(payload: str, shape: Shape) -> ReadBody | None:
    """The reader of a body that is the member itself."""
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
        raise Misfit.form("the body is not valid UTF-8") from None


def _by_name(query: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in pairs_from_text(query):
        values.setdefault(name, []).append(value)
    return values


def _part(name: str, member: Shape, whole: Shape) -> Part:
    location = member.serialization["location"]
    wire_name = member.serialization.get("name", name)
    if location == "uri":
        return _label_part(wire_name, member)
    if location == "querystring":
        return _query_part(wire_name, member, whole)
    if location == "header":
        return _header_part(wire_name.lower(), member)
    if location == "headers":
        return _header_map_part(wire_name.lower())
    raise AssertionError(f"no request has a member in {location}")


def _label_part(wire_name: str, member: Shape) -> Part:
    read = text_reader(member, PATH_TIMESTAMP_FORMAT)
    return lambda request, labels, query: read(decoded(labels[wire_name])) if wire_name in labels else None


def _query_part(wire_name: str, member: Shape, whole: Shape) -> Part:
    if member.type_name == "map":
        return _query_map_part(member, whole)
    if member.type_name == "list":
        read_element = text_reader(member.member, QUERY_TIMESTAMP_FORMAT)
        return lambda request, labels, query: [read_element(text) for text in query[wire_name]] if wire_name in query else None
    read = text_reader(member, QUERY_TIMESTAMP_FORMAT)
    return lambda request, labels, query: read(query[wire_name][0]) if wire_name in query else None


def _query_map_part(member: Shape, whole: Shape) -> Part:
    """A map in the query string is every parameter that no other member claims."""
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


def _header_part(wire_name: str, member: Shape) -> Part:
    if member.serialization.get("jsonvalue"):
        read: Callable[[str], Any] = _json_from_header
    elif member.type_name == "list":
        read_element = text_reader(member.member, HEADER_TIMESTAMP_FORMAT)
        commas = 2 if member.member.type_name == "timestamp" else 1  # an rfc822 date has a comma of its own
        read = lambda text: [read_element(item) for item in _split_header(text, commas)]  # noqa: E731
    else:
        read = text_reader(member, HEADER_TIMESTAMP_FORMAT)
        if member.type_name == "timestamp" and not wire_name.startswith("x-amz-"):
            read = _ignoring_misfits(read)
    return lambda request, labels, query: read(request.headers[wire_name]) if wire_name in request.headers else None


def _ignoring_misfits(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """HTTP's own headers with dates, such as If-Modified-Since, are ignored when they hold none."""

    def read_or_none(text: str) -> Any:
        try:
            return read(text)
        except Misfit:
            return None

    return read_or_none


def _header_map_part(prefix: str) -> Part:
    def part(request: Request, labels: Labels, query: dict[str, list[str]]) -> Any:
        found = {name[len(prefix) :]: value for name, value in request.headers.items() if name.startswith(prefix)}
        return found or None

    return part


def _json_from_header(text: str) -> Any:
    try:
        value = orjson.loads(b64decode(text, validate=True))
    except ValueError:  # of base64 or of JSON
        raise Misfit.type("not a base64-encoded JSON value") from None
    check_depth(value)
    return value


def _split_header(text: str, commas: int) -> list[str]:
    """The elements of a header list; one with a comma or a quote in it is quoted."""
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
