"""The messages with which the server passes connections to the process that ends TLS."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

BEGUN_MAX_BYTES = 32 * 1024  # a client sends more only after the server has answered the first message of its handshake
NAME_MAX_CHARACTERS = 200
MESSAGE_MAX_BYTES = BEGUN_MAX_BYTES + 4 * NAME_MAX_CHARACTERS + 1
AT_ONCE_MAX = 64  # connections that are received before other events have their turn


class PassedConnection(NamedTuple):
    name: str  # the name of the client (`process/peer_names.py`)
    begun: bytes  # the bytes that have arrived
    client: socket.socket
    server: socket.socket  # the Unix socket that leads to the server


def open_channel() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


def send_connection(channel: socket.socket, passed: PassedConnection) -> None:
    """Send a connection. The caller closes its own sockets. Raise BlockingIOError if the channel is full."""
    message = passed.name[:NAME_MAX_CHARACTERS].encode("utf-8", "replace") + b"\n" + passed.begun
    descriptors = array.array("i", [passed.client.fileno(), passed.server.fileno()])
    channel.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])


def receive_connections(channel: socket.socket) -> Iterator[PassedConnection | None]:
    """Yield the connections that have arrived. Yield None after the other end of the channel was closed."""
    for _ in range(AT_ONCE_MAX):
        try:
            message, descriptors, _, _ = socket.recv_fds(channel, MESSAGE_MAX_BYTES, 2)
        except BlockingIOError:
            return
        if not message:
            yield None
            return
        if len(descriptors) < 2:  # this process has too many open files
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        client, server = (socket.socket(fileno=descriptor) for descriptor in descriptors)
        with suppress(OSError):
            client.setblocking(False)
        name, _, begun = message.partition(b"\n")
        yield PassedConnection(name.decode("utf-8", "replace"), begun, client, server)
