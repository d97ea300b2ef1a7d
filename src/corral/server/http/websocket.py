"""A websocket, on the server's side. wsproto implements the protocol of RFC 6455."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Ping,
    RejectConnection,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from corral import aws
from corral.core.errors import ApiError
from corral.server.http.connection_limits import Place
from corral.server.http.open_connections import OpenConnections, StallTimer

MESSAGE_MAX_BYTES = 1024 * 1024
PING_AFTER_S = 20  # a client that has sent nothing for this long gets a ping
LOST_AFTER_S = 40  # a client that has sent nothing for this long is disconnected
CLOSE_S = 10  # how long the client may take to respond when the server closes the websocket
BAD_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nsec-websocket-version: 13\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_LARGE_CODE, RESTART_CODE = 1009, 1012

log = logging.getLogger("corral")


class WebSocket(asyncio.Protocol):
    """A websocket. The function `serve` is called once, and must call `accept` or `refuse` first."""

    transport: asyncio.Transport
    _silent_s = 0  # the time since the last bytes of the client
    _closing_s: int | None = None  # the time since the server closed the websocket; None: it is not closed
    _is_lost = False
    is_new = False
    idle_s = 0  # a verified websocket is always in use

    def __init__(
        self,
        open_connections: OpenConnections,
        place: Place,
        request: aws.Request,
        serve: Callable[[WebSocket], Awaitable[None]],
    ) -> None:
        place.connection = self
        self.path = request.path
        self.query = request.query
        self._open = open_connections
        self._place = place
        self._headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
        self._serve = serve
        self._wire = WSConnection(ConnectionType.SERVER)
        self._received: asyncio.Queue[str | bytes | None] = asyncio.Queue()  # None: the websocket is closed
        self._parts: list[str | bytes | bytearray] = []  # of the message that is arriving
        self._parts_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._stall_timer = StallTimer()

    # Called by `serve`

    async def accept(self) -> None:
        """Complete the handshake of a client that knows the secret URL of its session."""
        try:
            self._place.verify()
        except ApiError as error:
            self.transport.abort()
            raise ConnectionResetError(error.message) from None
        await self._write(AcceptConnection())

    async def refuse(self) -> None:
        await self._write(RejectConnection(status_code=403))
        self.transport.close()

    async def receive(self) -> str | bytes | None:
        """Return the next message, or None when the websocket is closed."""
        message = await self._received.get()
        if message is None:
            self._received.put_nowait(None)
        elif self._received.empty() and not self.transport.is_closing():
            self.transport.resume_reading()
        return message

    async def send(self, data: bytes) -> None:
        """Send a message. Raise ConnectionResetError if the websocket is closed."""
        await self._write(Message(data))

    async def close(self, code: int, reason: str = "") -> None:
        await self._write(CloseConnection(code, reason))
        self._closing_s = 0
        self.transport.resume_reading()  # the client responds with a close frame

    async def _write(self, event: Event) -> None:
        await self._writable.wait()
        if self._is_lost or self._closing_s is not None:
            raise ConnectionResetError("the websocket is closed")
        try:
            self.transport.write(self._wire.send(event))
        except LocalProtocolError:
            raise ConnectionResetError("the client has closed the websocket") from None

    # Called by the server and by the transport

    def tick(self) -> None:
        """Send a ping to a silent client, or disconnect it. The server calls this method once a second."""
        self._stall_timer.tick(self.transport)
        self._silent_s += 1
        if self._closing_s is not None:
            self._closing_s += 1
        if self._silent_s > LOST_AFTER_S or (self._closing_s or 0) > CLOSE_S:
            self.transport.abort()  # `close` would wait until the client has read everything
        elif self._silent_s == PING_AFTER_S and self._closing_s is None:
            self._send_now(Ping())

    def turn_away(self, error: ApiError) -> None:
        self.transport.abort()

    def shut_down(self) -> None:
        self._send_now(CloseConnection(RESTART_CODE))
        self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._open.connections.add(self)
        try:
            self._wire.initiate_upgrade_connection(self._headers, self.path)
            next(self._wire.events())
        except Exception:  # wsproto does not translate every error of its parsers
            self.transport.write(BAD_HANDSHAKE)
            self.transport.close()
            return
        self._open.run(self._run())

    async def _run(self) -> None:
        try:
            await self._serve(self)
        except ConnectionResetError:
            pass
        except Exception:
            log.exception("a websocket failed")
        if self._closing_s is None:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._open.closed(self)
        self._place.give_back()
        self._received.put_nowait(None)
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._silent_s = 0
        try:
            self._wire.receive_data(data)
            for event in self._wire.events():
                self._handle(event)
        except RemoteProtocolError as error:
            if error.event_hint is not None:
                self._send_now(error.event_hint)
            self.transport.close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, CloseConnection):
            if self._closing_s is None:
                self._send_now(event.response())
            self._received.put_nowait(None)
            self.transport.close()
        elif isinstance(event, Ping) and self._writable.is_set():  # a client that reads nothing gets no responses to its pings
            self._send_now(event.response())
        elif isinstance(event, TextMessage | BytesMessage) and self._closing_s is None:
            self._handle_part(event)

    def _handle_part(self, part: TextMessage | BytesMessage) -> None:
        self._parts.append(part.data)
        self._parts_bytes += len(part.data)
        if self._parts_bytes > MESSAGE_MAX_BYTES:
            self._send_now(CloseConnection(TOO_LARGE_CODE, f"a message has more than {MESSAGE_MAX_BYTES} bytes"))
            self.transport.close()
        elif part.message_finished:
            empty: str | bytes = "" if isinstance(part, TextMessage) else b""
            self._received.put_nowait(empty.join(self._parts))  # type: ignore[arg-type]  # all parts have the same type
            self._parts, self._parts_bytes = [], 0
            self.transport.pause_reading()  # until `receive` has taken the message

    def _send_now(self, event: Event) -> None:
        """Send an event without waiting for room in the write buffer, because the event is small."""
        if not self.transport.is_closing():
            try:
                self.transport.write(self._wire.send(event))
            except LocalProtocolError:
                self.transport.close()  # the handshake is not complete, or the websocket is already closed
