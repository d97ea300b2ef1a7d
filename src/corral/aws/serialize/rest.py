"""Serializes results of REST operations. A member can be the status, a header, or a part of the body."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from msgspec import Struct

from corral.aws.serialize import xml_body
from corral.aws.serialize.json_body import JsonWriters, json_writer, members_writer
from corral.aws.serialize.text import text_writer
from corral.aws.shapes import Shape
from corral.aws.timestamps import HEADER_TIMESTAMP_FORMAT
from corral.aws.wire_errors import WrongResult

ResponseHeaders = list[tuple[str, str]]


class ResponseParts(Struct, frozen=True):
    """The parts of a response that come from the result. If `status` is None, the response has the operation's default status."""

    status: int | None
    headers: ResponseHeaders
    body: bytes
    stream: Any = None


WriteParts = Callable[[Mapping[str, Any]], ResponseParts]
WriteBody = Callable[[dict[str, Any]], bytes]


def rest_json_writer(shape: Shape, writers: JsonWriters) -> WriteParts:
    payload = shape.serialization.get("payload")
    if payload is None:
        write_members = members_writer(shape.name, _in_body(shape), writers)
        return _writer(shape, lambda rest: orjson.dumps(write_members(rest)))
    write_value = json_writer(shape.members[payload], writers)
    return _writer(shape, _payload_writer(shape, payload, lambda value: orjson.dumps(write_value(value))))


def rest_xml_writer(shape: Shape, root: str, namespace: str, writers: xml_body.XmlWriters) -> WriteParts:
    """Return the writer of an output shape whose body is XML.

    If no member is the payload, `root` is the name of the root element.
    """
    payload = shape.serialization.get("payload")
    if payload is None:
        members = _in_body(shape)
        if not members:
            return _writer(shape, _empty_body_writer(shape))
        return _writer(shape, _document_writer(shape.name, members, root, namespace, writers))
    member = shape.members[payload]
    if member.type_name != "structure":
        return _writer(shape, _payload_writer(shape, payload, _raw))
    inner = list(member.members.items())
    write = _document_writer(member.name, inner, member.serialization.get("name", member.name), namespace, writers)
    return _writer(shape, _payload_writer(shape, payload, write))


def _writer(shape: Shape, write_body: WriteBody) -> WriteParts:
    located = {name: member for name, member in shape.members.items() if "location" in member.serialization}
    to_headers = {name: _header_writer(name, member) for name, member in located.items()}
    payload = shape.serialization.get("payload")
    streams = payload if payload is not None and shape.members[payload].serialization.get("streaming") else None

    def write(result: Mapping[str, Any]) -> ResponseParts:
        status: int | None = None
        headers: ResponseHeaders = []
        rest: dict[str, Any] = {}
        for name, value in result.items():
            if value is None:
                continue
            if name not in located:
                rest[name] = value
            elif located[name].serialization["location"] == "statusCode":
                status = value
            else:
                to_headers[name](value, headers)
        stream = None
        if streams is not None and not isinstance(rest.get(streams, b""), bytes | bytearray | memoryview):
            stream = rest.pop(streams)
        return ResponseParts(status, headers, write_body(rest), stream)

    return write


def _in_body(shape: Shape) -> list[tuple[str, Shape]]:
    return [(name, member) for name, member in shape.members.items() if "location" not in member.serialization]


def _document_writer(
    name: str, members: list[tuple[str, Shape]], root: str, namespace: str, writers: xml_body.XmlWriters
) -> Callable[[Any], bytes]:
    start, end = f'{xml_body.XML_DECLARATION}<{root} xmlns="{namespace}">', f"</{root}>"
    write_members = xml_body.members_writer(name, members, writers)

    def write(value: Any) -> bytes:
        out = [start]
        write_members(value, out)
        out.append(end)
        return "".join(out).encode()

    return write


def _empty_body_writer(shape: Shape) -> WriteBody:
    def write(rest: dict[str, Any]) -> bytes:
        if rest:
            raise WrongResult(f"{shape.name} has no members {sorted(rest)}")
        return b""

    return write


def _payload_writer(shape: Shape, payload: str, write_value: Callable[[Any], bytes]) -> WriteBody:
    kind = shape.members[payload].type_name
    write_payload = _raw if kind == "blob" else _text if kind == "string" else write_value

    def write(rest: dict[str, Any]) -> bytes:
        if unknown := rest.keys() - {payload}:
            raise WrongResult(f"{shape.name} has no members {sorted(unknown)}")
        return write_payload(rest[payload]) if payload in rest else b""

    return write


def _text(value: Any) -> bytes:
    return str(value).encode()


def _raw(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise WrongResult.wrong_type("a bytes object", value)
    return bytes(value)


def _header_writer(name: str, member: Shape) -> Callable[[Any, ResponseHeaders], None]:
    wire_name = member.serialization.get("name", name)
    if member.serialization["location"] == "headers":

        def write_map(value: Any, headers: ResponseHeaders) -> None:
            headers.extend((wire_name + key, _one_line(key, item)) for key, item in value.items())

        return write_map
    to_text = _header_text(member)
    return lambda value, headers: headers.append((wire_name, _one_line(wire_name, to_text(value))))


def _one_line(name: str, text: str) -> str:
    if "\r" in text or "\n" in text:
        raise WrongResult(f"{name}: a header must not contain a line break")
    return text


def _header_text(member: Shape) -> Callable[[Any], str]:
    if member.serialization.get("jsonvalue"):
        return lambda value: b64encode(orjson.dumps(value)).decode("ascii")
    if member.type_name == "list":
        to_text = text_writer(member.member, HEADER_TIMESTAMP_FORMAT)
        return lambda value: ",".join(to_text(item) for item in value)
    return text_writer(member, HEADER_TIMESTAMP_FORMAT)
