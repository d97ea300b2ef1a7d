"""JSON lines on an asyncio connection. Lines have a maximum length. Received messages are decoded into a Struct."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

T = TypeVar("T")


class JsonLines(asyncio.Protocol, Generic[T]):
    """A connection. It calls `on_message` for each message, and `on_lost` when the connection is lost.

    If a message cannot be decoded as `kind`, the connection is closed.
    """

    def __init__(self, kind: type[T], on_message: Callable[[T], None], on_lost: Callable[[], None], max_bytes: int) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._on_message = on_message
        self._on_lost = on_lost
        self._max_bytes = max_bytes
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The cast is needed because the transport of uvloop is not a subclass of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.closed.set()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        self._unread.append(data)
        self._unread_bytes += len(data)
        if b"\n" in data:
            *lines, rest = b"".join(self._unread).split(b"\n")
            self._unread, self._unread_bytes = [rest], len(rest)
            for line in lines:
                try:
                    message = self._decode(line)
                except ValueError:
                    self.close()
                    return
                self._on_message(message)
        elif self._unread_bytes > self._max_bytes:
            self.close()

    def send(self, *messages: object) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(msgspec.json.encode(message) + b"\n" for message in messages))

    def close(self) -> None:
        """Send the buffered data, then close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def abort(self) -> None:
        """Close the connection at once. After this returns, no callback is called."""
        if self._transport is not None:
            self._transport.abort()
        await self.closed.wait()


async def attach(
    connection: socket.socket, kind: type[T], on_message: Callable[[T], None], on_lost: Callable[[], None], max_bytes: int
) -> JsonLines[T]:
    _, lines = await asyncio.get_running_loop().create_unix_connection(
        lambda: JsonLines(kind, on_message, on_lost, max_bytes), sock=connection
    )
    return lines
