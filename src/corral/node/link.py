"""The connection between the server and the agent of a host: messages in both directions, on any byte stream of asyncio.

A message has a kind of one byte and a payload. It is sent as a frame of `channel/command_relay.py`. A link knows which host is at
the other end, if its transport proves that, and why it has ended. It does not know what its transport is. On the machine of the
server, it is a Unix socket, which proves no host: only processes of the same Unix account can connect to it. Hosts that have joined
from other machines connect over TLS (`node/server_access.py`), and their certificates prove who they are.

Either end closes a link with a last message that says why. The other end then closes the connection. So messages that have been
sent are not lost when both ends send at the same time.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import msgspec

from corral.channel.command_relay import HEAD
from corral.node import node_folder

SOCKET = "core.sock"
MESSAGE = b"m"  # the payload is a message of `model/agent_protocol.py` as JSON
END = b"z"  # the last message; the payload says why the link ends
MESSAGE_MAX_BYTES = 256 * 1024 * 1024
UNREAD_MAX_BYTES = 256 * 1024  # if more bytes of messages wait for `receive`, the link reads no more
CLOSE_S = 30.0  # how long the other end may take to close the connection
LOST = "the connection was lost"

Message = tuple[bytes, bytes]  # kind and payload
Connect = Callable[[], Awaitable["Link"]]


class Link(asyncio.Protocol):
    """One end of a connection. `receive` returns None at the end, and then `end_reason` says why the connection has ended."""

    def __init__(self, opened: Callable[[Link], object] | None = None, peer: str = "", address: str = "") -> None:
        """`peer` is the id of the host at the other end, as the transport has proved it. Empty: the transport proves nothing.

        `address` is the address of this host.
        """
        self.peer = peer
        self.address = address
        self.end_reason = ""
        self.message_max_bytes = MESSAGE_MAX_BYTES
        self._opened = opened
        self._transport: asyncio.Transport | None = None
        self._received = 0  # how many pieces of the stream have arrived
        self._waits_since = 0.0  # when `receive` has begun to wait, or when the last byte has arrived
        self._bytes = bytearray()  # of a frame that is not complete
        self._messages: deque[Message] = deque()
        self._unread_bytes = 0
        self._reading_paused = False
        self._receiver: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()
        self._abort: asyncio.TimerHandle | None = None

    @property
    def local_address(self) -> str:
        """The address of this end of a TCP connection. Empty for other connections."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return str(name[0]) if isinstance(name, tuple) else ""

    def send(self, kind: bytes, payload: bytes) -> None:
        """Send a message after all earlier ones. It is dropped if the connection has ended."""
        if self._transport is not None and not self.end_reason:
            self._transport.write(HEAD.pack(kind, len(payload)) + payload)

    async def send_slowly(self, kind: bytes, payload: bytes) -> None:
        """Send a message, and wait while the other end does not read what was sent."""
        self.send(kind, payload)
        await self._writable.wait()

    def send_message(self, message: object) -> None:
        self.send(MESSAGE, msgspec.json.encode(message))

    async def receive(self) -> Message | None:
        while not self._messages:
            if self.end_reason:
                return None
            self._receiver = asyncio.get_running_loop().create_future()
            self._waits_since = time.monotonic()
            await self._receiver
        message = self._messages.popleft()
        self._unread_bytes -= len(message[1])
        if self._reading_paused and self._unread_bytes <= UNREAD_MAX_BYTES:
            self._reading_paused = False
            if self._transport is not None and not self.end_reason:
                self._transport.resume_reading()
        return message

    def silent_s(self) -> float:
        """How long `receive` has waited without any byte. 0 if no caller of `receive` waits."""
        waits = self._receiver is not None and not self._receiver.done()
        return time.monotonic() - self._waits_since if waits else 0.0

    async def receive_within(self, seconds: float, is_due: Callable[[], bool] = lambda: True) -> Message | None:
        """Receive a message. If it is due, and no byte arrives for so many seconds, close the connection, and return None."""
        while True:
            before = self._received
            try:
                async with asyncio.timeout(seconds):
                    return await self.receive()
            except TimeoutError:
                if self._received == before and is_due():
                    self.close(f"nothing has arrived for {seconds:g} s")
                    return None

    def close(self, reason: str) -> None:
        """Send what is buffered and the reason, and drop what arrives from now on. Messages that have arrived can be received."""
        if self._transport is not None and not self.end_reason:
            self.send(END, reason.encode())
            if self._reading_paused:
                self._transport.resume_reading()  # to find out that the other end has closed the connection
            self._abort = asyncio.get_running_loop().call_later(CLOSE_S, self._transport.abort)
        self._end(reason)

    async def abort(self, reason: str) -> None:
        """Close the connection at once, and wait until it is closed."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()
            await self._lost.wait()

    def _end(self, reason: str) -> None:
        self.end_reason = self.end_reason or reason or LOST
        self._writable.set()
        self._wake()

    def _wake(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    # -- callbacks of the transport ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The cast is needed because the transport of uvloop is not a subclass of asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)
        if self._opened is not None:
            self._opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._lost.set()
        if self._abort is not None:
            self._abort.cancel()
        self._end(str(error) if error is not None else LOST)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._received += 1
        self._waits_since = time.monotonic()
        self._bytes += data
        at, size = 0, len(self._bytes)
        while size - at >= HEAD.size:
            kind, length = HEAD.unpack_from(self._bytes, at)
            if length > self.message_max_bytes:
                self.close(f"a message has {length} bytes; at most {self.message_max_bytes} are possible")
                self._transport.close()
                return
            start, end = at + HEAD.size, at + HEAD.size + length
            if size < end:
                break
            payload = bytes(memoryview(self._bytes)[start:end])
            at = end
            if kind == END:
                self._end(payload.decode(errors="replace"))
                self._transport.close()
            elif not self.end_reason:
                self._messages.append((kind, payload))
                self._unread_bytes += length
        del self._bytes[:at]
        self._wake()
        if self._unread_bytes > UNREAD_MAX_BYTES and not self._reading_paused and not self.end_reason:
            self._reading_paused = True
            self._transport.pause_reading()


async def pass_on(source: Link, target: Link) -> None:
    """Send everything that `source` receives to `target`, no faster than `target` takes it, until one of them has ended."""
    while not target.end_reason and (message := await source.receive()) is not None:
        await target.send_slowly(*message)


async def attach(connection: socket.socket) -> Link:
    _, link = await asyncio.get_running_loop().create_unix_connection(Link, sock=connection)
    return link


async def connect(folder: Path) -> Link:
    """Connect to the server on this machine. Raises OSError if no server listens."""
    return await attach(node_folder.connect(folder, SOCKET))


async def listen(folder: Path, opened: Callable[[Link], object]) -> asyncio.Server:
    """Listen for agents on this machine. `opened` is called with each new link."""
    listener = node_folder.listen(folder, SOCKET)
    return await asyncio.get_running_loop().create_unix_server(lambda: Link(opened), sock=listener)
