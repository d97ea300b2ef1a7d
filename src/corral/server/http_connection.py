"""HTTP connections: uvicorn's protocol with limits for unauthenticated clients, and with direct access to the socket.

The head and the body of a response are sent in one write. Only this module, `http_server.py` and `data_channel.py` use uvicorn, and
they use some of its internals. Therefore pyproject.toml pins the version of uvicorn, and `tests/test_uvicorn.py` checks every
internal that they use.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
from msgspec import Struct
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from corral import aws
from corral.errors import ApiError, ServiceUnavailable, api_error
from corral.server.connection_limits import ConnectionLimits

HEADERS_MAX_BYTES = 64 * 1024
HEADERS_MAX = 1000  # the maximum number of headers in a head that arrives in several segments
HEAD_MAX_S = 20  # the maximum time from the first byte of a request to the end of its head
IDLE_MAX_S = 75  # a connection without a request for this long is closed

HeadersTooLarge = api_error("RequestHeaderSectionTooLarge", 431)
HeadTimeout = api_error("RequestTimeout", 408)


def headers_too_large() -> ApiError:
    return HeadersTooLarge(f"The request has more than {HEADERS_MAX_BYTES} bytes of headers, or more than {HEADERS_MAX} headers.")


class CorkedTransport:
    """A transport that combines all writes of one iteration of the event loop into one write.

    uvicorn writes the head and the body of a response separately. If the server died between these two writes, botocore would
    receive a status 200 without a body, and would return an empty result.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._flush)
        self._parts.append(data)

    def take(self) -> bytes:
        """Remove and return the bytes that were written and not yet sent. The caller must send them."""
        data, self._parts = b"".join(self._parts), []
        return data

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        data = self.take()
        if data and not self._transport.is_closing():
            self._transport.write(data)


class HttpConnection(Struct, eq=False):
    """The connection of one request. It lets a handler read the body or write the response without uvicorn."""

    transport: CorkedTransport
    _flow: FlowControl
    _cycle: RequestResponseCycle
    end_of_body: Callable[[], None]  # to call when the whole body was read from the socket of `take_over`
    authenticated: Callable[[], None]  # to call when a request of the connection had valid credentials
    is_taken_over: bool = False

    @property
    def awaits_continue(self) -> bool:
        """Whether the client sent `Expect: 100-continue`, and waits for the response 100 before it sends the body."""
        return self._cycle.waiting_for_100_continue

    @property
    def has_news(self) -> bool:
        """Whether `receive` would return at once, because part of the body or its end has arrived."""
        return self._cycle.message_event.is_set()

    @property
    def has_more(self) -> bool:
        """Whether a part of the body has not arrived yet."""
        return self._cycle.more_body

    @property
    def length(self) -> int | None:
        """The Content-Length of the request."""
        headers = dict(self._cycle.scope["headers"])
        return int(headers[b"content-length"]) if b"content-length" in headers else None

    def take_over(self) -> tuple[int, bytes]:
        """Return a duplicate of the socket, and the part of the body that uvicorn has buffered. uvicorn then stops reading.

        The caller closes the duplicate. When the caller has read the whole body, it calls `end_of_body`. If it does not read the
        whole body, the connection must serve no other request.
        """
        socket = self.pause()
        self.is_taken_over = True
        buffered, self._cycle.body = bytes(self._cycle.body), bytearray()
        self._cycle.message_event.clear()
        return socket, buffered

    def pause(self) -> int:
        """Stop reading requests, and return a duplicate of the socket. The caller closes the duplicate.

        uvicorn resumes reading after the response. Raise ConnectionAbortedError if the client has disconnected.
        """
        if self.transport.is_closing():
            raise ConnectionAbortedError("the client has disconnected")
        self._flow.pause_reading()
        return os.dup(self.transport.get_extra_info("socket").fileno())

    def hold(self) -> None:
        """Read nothing from the client until `receive` is called."""
        self._flow.pause_reading()

    async def drain(self) -> None:
        """Wait until the write buffer of the transport has room."""
        await self._flow.drain()

    def body_was_sent(self) -> None:
        """Make uvicorn expect no body of the response, because the caller has already written the body to the socket."""
        self._cycle.expected_content_length = 0


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on connections, and on the size and the arrival time of request heads.

    uvicorn has no such limits, because it expects a proxy in front of it.
    """

    _in_head = False  # the head of a request has begun to arrive and is not complete
    # The bytes of an incomplete head that are counted in UnverifiedMemory. 0 for a head that arrives at once.
    _head_bytes = 0
    _seconds = 0  # the time since the head began to arrive, or since the last response
    _age_s = 0

    def __init__(self, limits: ConnectionLimits, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(CorkedTransport(transport))  # type: ignore[arg-type]
        self._limits.connected(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.disconnected(self)
        self._give_back_head()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        # uvicorn's websocket protocol takes over the connection, and `data_channel.py` authenticates it.
        self._limits.disconnected(self)
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_grew(len(data))

    def tick(self) -> None:
        """Close the connection if the client is too slow. The server calls this method once a second."""
        self._age_s += 1
        if self.cycle is not None and not self.cycle.response_complete:
            return  # a request is being served
        self._seconds += 1
        if self._in_head and self._seconds > HEAD_MAX_S:
            self.turn_away(HeadTimeout(f"The head of the request did not arrive within {HEAD_MAX_S} seconds."))
        elif self._seconds > IDLE_MAX_S:
            self.transport.close()

    @property
    def is_new(self) -> bool:
        return self._age_s == 0

    def turn_away(self, error: ApiError) -> None:
        """Send an error that is not the response to a request, and close the connection."""
        if self.transport.is_closing():
            return
        refusal = aws.serialize_refusal(aws.Request("POST", "/", "", {}, b""), error, "")
        head = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}".encode(), b"connection: close"]
        head += [b"content-length: %d" % len(refusal.body)]
        head += [f"{name}: {value}".encode("latin-1") for name, value in refusal.headers]
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + refusal.body)
        self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._seconds = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_bytes:
            self._give_back_head()
        if self._limits.must_refuse(self, len(self.connections)):
            self.app = self._refuse
        super().on_headers_complete()
        self.scope["connection"] = HttpConnection(  # type: ignore[typeddict-unknown-key]
            self.transport,  # type: ignore[arg-type]  # connection_made passed a CorkedTransport
            self.flow,
            self.cycle,
            self._end_of_body,
            self._authenticated,
        )

    def _authenticated(self) -> None:
        self._limits.authenticated(self)

    def _head_grew(self, size: int) -> None:
        """Count the bytes of a head that arrives in several segments. If it is too large, refuse it."""
        memory = self._limits.memory
        if not memory.try_take(size):
            self.turn_away(ServiceUnavailable("Corral is receiving too many incomplete requests. Retry later."))
            return
        self._head_bytes += size
        if self._head_bytes > HEADERS_MAX_BYTES or len(self.headers) > HEADERS_MAX:
            self.turn_away(headers_too_large())

    def _give_back_head(self) -> None:
        size, self._head_bytes = self._head_bytes, 0
        if size:
            self._limits.memory.give_back(size)

    async def _refuse(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond with an error to a request of a connection above the maximum. This is an ASGI application."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = aws.Request(scope["method"], scope["raw_path"].decode("latin-1"), "", headers, b"")
        refusal = aws.serialize_refusal(request, self._limits.too_many(), "")
        sent = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
        sent += [(b"content-length", str(len(refusal.body)).encode()), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": refusal.status, "headers": sent})
        await send({"type": "http.response.body", "body": refusal.body})

    def _end_of_body(self) -> None:
        """Prepare for the next request after the body was read without uvicorn's parser.

        The parser still expects this body. So the next request needs a new parser.
        """
        if self.parser is not None:  # the parser is None if the client has disconnected
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # uvicorn sets the same option
            self.on_message_complete()
