"""REST bindings of results: members that go into the status and the headers, and the rest into the body."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from corral.aws.faults import WrongResult
from corral.aws.models import Shape
from corral.aws.serialize.json_body import Writers, json_writer, members_writer
from corral.aws.serialize.text import text_writer

HEADER_TIMESTAMP_FORMAT = "rfc822"

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a shape binds to where; status None: the operation's own."""

    status: int | None
    headers: Headers
    body: bytes


def rest_json_writer(shape: Shape, writers: Writers) -> Callable[[Mapping[str, Any]], Parts]:
    """The writer of one output or error shape."""
    located = {name: member for name, member in shape.members.items() if "location" in member.serialization}
    to_headers = {name: _header_writer(name, member) for name, member in located.items()}
    write_body = _body_writer(shape, located, writers)

    def write(result: Mapping[str, Any]) -> Parts:
        status: int | None = None
        headers: Headers = []
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
        return Parts(status, headers, write_body(rest))

    return write


def _body_writer(shape: Shape, located: Mapping[str, Shape], writers: Writers) -> Callable[[dict[str, Any]], bytes]:
    payload = shape.serialization.get("payload")
    if payload is None:
        members = [(name, member) for name, member in shape.members.items() if name not in located]
        write_members = members_writer(shape.name, members, writers)
        return lambda rest: orjson.dumps(write_members(rest))
    write_payload = _payload_writer(shape.members[payload], writers)

    def write(rest: dict[str, Any]) -> bytes:
        if unknown := rest.keys() - {payload}:
            raise WrongResult(f"{shape.name} has no members {sorted(unknown)}")
        return write_payload(rest[payload]) if payload in rest else b""

    return write


def _payload_writer(member: Shape, writers: Writers) -> Callable[[Any], bytes]:
    if member.type_name == "blob":
        return _raw
    if member.type_name == "string":
        return lambda value: str(value).encode()
    write_value = json_writer(member, writers)
    return lambda value: orjson.dumps(write_value(value))


def _raw(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise WrongResult(f"a blob must be bytes, not {type(value).__name__}")
    return bytes(value)


def _header_writer(name: str, member: Shape) -> Callable[[Any, Headers], None]:
    wire_name = member.serialization.get("name", name)
    if member.serialization["location"] == "headers":

        def write_map(value: Any, headers: Headers) -> None:
            headers.extend((wire_name + key, _one_line(key, item)) for key, item in value.items())

        return write_map
    to_text = _header_text(member)
    return lambda value, headers: headers.append((wire_name, _one_line(wire_name, to_text(value))))


def _one_line(name: str, text: str) -> str:
    if "\r" in text or "\n" in text:
        raise WrongResult(f"{name}: a header cannot hold a line break")
    return text


def _header_text(member: Shape) -> Callable[[Any], str]:
    if member.serialization.get("jsonvalue"):
        return lambda value: b64encode(orjson.dumps(value)).decode("ascii")
    if member.type_name == "list":
        to_text = text_writer(member.member, HEADER_TIMESTAMP_FORMAT)
        return lambda value: ",".join(to_text(item) for item in value)
    return text_writer(member, HEADER_TIMESTAMP_FORMAT)
