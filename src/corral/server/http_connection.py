"""HTTP connections: uvicorn's protocol with bounded request headers, single-write responses and access to the socket.

Only this module, `http_server.py` and `channel.py` use uvicorn, and they use some of its internals. Therefore pyproject.toml pins
uvicorn, and `tests/test_uvicorn.py` lists every internal that they use and checks it against the installed version.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import httptools
from msgspec import Struct
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from corral import aws
from corral.errors import ApiError, api_error

HEADERS_MAX_BYTES = 64 * 1024

HeadersTooLarge = api_error("RequestHeaderSectionTooLarge", 431)


def headers_too_large() -> ApiError:
    return HeadersTooLarge(f"The request's headers are larger than {HEADERS_MAX_BYTES} bytes.")


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


class HttpConnection(Struct, frozen=True):
    """The connection of one request, for code that reads its body or writes its response past uvicorn."""

    transport: CorkedTransport
    _flow: FlowControl
    _cycle: RequestResponseCycle
    end_of_body: Callable[[], None]  # call this after reading the whole body from the socket of `take_over`

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

    async def drain(self) -> None:
        """Wait until the transport has room for more."""
        await self._flow.drain()

    def body_was_sent(self) -> None:
        """Tell uvicorn to expect no body, because the caller has written it to the socket."""
        self._cycle.expected_content_length = 0


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit on request headers, which uvicorn leaves to a proxy in front of it."""

    _head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(CorkedTransport(transport))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        if self._head_bytes >= 0:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEADERS_MAX_BYTES and not self.transport.is_closing():
            refusal = aws.serialize_refusal(aws.Request("POST", "/", "", {}, b""), headers_too_large(), "")
            head = [b"HTTP/1.1 431 Request Header Fields Too Large", b"content-length: %d" % len(refusal.body)]
            head += [b"connection: close"]
            head += [f"{name}: {value}".encode("latin-1") for name, value in refusal.headers]
            self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + refusal.body)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = -1  # the limit does not apply to the body
        super().on_headers_complete()
        self.scope["connection"] = HttpConnection(  # type: ignore[typeddict-unknown-key]
            self.transport,  # type: ignore[arg-type]  # connection_made passed a CorkedTransport
            self.flow,
            self.cycle,
            self._end_of_body,
        )

    def _end_of_body(self) -> None:
        """The body was read past the parser. The next bytes begin another request, so start with a new parser."""
        if self.parser is not None:  # None: the client has disconnected
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.on_message_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()
