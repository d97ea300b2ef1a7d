"""Connections of hosts to the door without Corral's agent: tests send messages of their own."""

from __future__ import annotations

import json
import socket
import ssl
from contextlib import closing
from typing import Any

import msgspec

from corral.channel.command_relay import HEAD
from corral.node.link import END
from corral.node.server_access import SERVER_NAME, split_address
from hosts.joined import Server


def connect(server: Server, tls: ssl.SSLContext, source: str = "127.0.0.1") -> ssl.SSLSocket:
    plain = socket.create_connection(split_address(server.door), timeout=30, source_address=(source, 0))
    return tls.wrap_socket(plain, server_hostname=SERVER_NAME)


def send(connection: ssl.SSLSocket, message: object) -> None:
    payload = msgspec.json.encode(message)
    connection.sendall(HEAD.pack(b"m", len(payload)) + payload)


def receive(connection: ssl.SSLSocket) -> dict[str, Any]:
    with closing(connection.makefile("rb", buffering=0)) as raw:
        kind, length = HEAD.unpack(exactly(raw, HEAD.size))
        return {"kind": kind, **json.loads(exactly(raw, length))}


def why_ended(connection: ssl.SSLSocket) -> str:
    """Return the payload of the next message, with which the server ends the connection."""
    with closing(connection.makefile("rb", buffering=0)) as raw:
        kind, length = HEAD.unpack(exactly(raw, HEAD.size))
        assert kind == END
        return bytes(exactly(raw, length)).decode()


def exactly(raw: Any, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = raw.read(size - len(found))
        assert part, "the connection has ended"
        found += part
    return found
