"""HTTP connections: uvicorn's protocol with bounds on strangers, single-write responses and access to the socket.

Only this module, `http_server.py` and `data_channel.py` use uvicorn, and they use some of its internals. Therefore pyproject.toml
pins uvicorn, and `tests/test_uvicorn.py` lists every internal that they use and checks it against the installed version.
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
HEADERS_MAX = 1000  # of a head that arrives in several segments
HEAD_MAX_S = 20  # from the first byte of a request to the end of its head
IDLE_MAX_S = 75  # without a request: the timeout of kept-alive connections, and of those that have sent nothing

HeadersTooLarge = api_error("RequestHeaderSectionTooLarge", 431)
HeadTimeout = api_error("RequestTimeout", 408)


def headers_too_large() -> ApiError:
    return HeadersTooLarge(f"The request has more than {HEADERS_MAX_BYTES} bytes of headers, or more than {HEADERS_MAX} headers.")


class CorkedTransport:
    """A transport that combines the writes of one iteration of the event loop into one.

    uvicorn writes the head and the body of a response separately. If the server died between the two, botocore would take the
    200 without a body for an empty result.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._flush)
        self._parts.append(data)

    def take(self) -> bytes:
        """Remove and return the bytes that were written and not yet sent; the caller sends them."""
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
    """The connection of one request, for code that reads its body or writes its response past uvicorn."""

    transport: CorkedTransport
    _flow: FlowControl
    _cycle: RequestResponseCycle
    end_of_body: Callable[[], None]  # call this after reading the whole body from the socket of `take_over`
    authenticated: Callable[[], None]  # call this when a request of the connection had valid credentials
    is_taken_over: bool = False

    @property
    def awaits_continue(self) -> bool:
        """The client sent `Expect: 100-continue` and waits for that response before it sends the body."""
        return self._cycle.waiting_for_100_continue

    @property
    def has_news(self) -> bool:
        """Part of the body has arrived, or its end has: `receive` returns at once."""
        return self._cycle.message_event.is_set()

    @property
    def has_more(self) -> bool:
        """The end of the body has not arrived."""
        return self._cycle.more_body

    @property
    def length(self) -> int | None:
        """The Content-Length of the request."""
        headers = dict(self._cycle.scope["headers"])
        return int(headers[b"content-length"]) if b"content-length" in headers else None

    def take_over(self) -> tuple[int, bytes]:
        """Return a duplicate of the socket, which the caller closes, and the part of the body that uvicorn has buffered.

        uvicorn reads no more. A caller that reads the body to its end then calls `end_of_body`; otherwise it must not let the
        connection serve another request.
        """
        socket = self.pause()
        self.is_taken_over = True
        buffered, self._cycle.body = bytes(self._cycle.body), bytearray()
        self._cycle.message_event.clear()
        return socket, buffered

    def pause(self) -> int:
        """Stop reading requests, and return a duplicate of the socket, which the caller closes.

        uvicorn resumes reading after the response. Raises ConnectionAbortedError if the client has disconnected.
        """
        if self.transport.is_closing():
            raise ConnectionAbortedError("the client has disconnected")
        self._flow.pause_reading()
        return os.dup(self.transport.get_extra_info("socket").fileno())

    def hold(self) -> None:
        """Read nothing from the client until `receive` is called."""
        self._flow.pause_reading()

    async def drain(self) -> None:
        """Wait until the transport has room for more."""
        await self._flow.drain()

    def body_was_sent(self) -> None:
        """Tell uvicorn to expect no body, because the caller has written it to the socket."""
        self._cycle.expected_content_length = 0


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on connections and on the size and time of request heads, which uvicorn leaves to a proxy."""

    _in_head = False  # the head of a request has begun and is not complete
    _head_bytes = 0  # of that head, taken from the memory of unverified requests; 0 for a head that arrives at once
    _seconds = 0  # that the client has taken: for the head, or since the last response
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
        self._limits.disconnected(self)  # another protocol serves the connection, which `data_channel.py` authenticates
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_grew(len(data))

    def tick(self) -> None:
        """Close the connection if its client takes too long. Called once a second."""
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
        """Send an error that no request has caused, and close the connection."""
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
        """Count the bytes of a head that arrives in several segments."""
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
        """The ASGI application of a connection above the maximum."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = aws.Request(scope["method"], scope["raw_path"].decode("latin-1"), "", headers, b"")
        refusal = aws.serialize_refusal(request, self._limits.too_many(), "")
        sent = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
        sent += [(b"content-length", str(len(refusal.body)).encode()), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": refusal.status, "headers": sent})
        await send({"type": "http.response.body", "body": refusal.body})

    def _end_of_body(self) -> None:
        """The body was read past the parser. The next bytes begin another request, so start with a new parser."""
        if self.parser is not None:  # None: the client has disconnected
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.on_message_complete()
