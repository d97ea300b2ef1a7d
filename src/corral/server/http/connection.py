"""HTTP connections: httptools parses the requests, and each request gets one response.

`HttpProtocol` serves one connection. It enforces the limits on the number of connections, and on the size and the arrival time of
request heads. `HttpConnection` is the interface for the handlers of one request. Large bodies do not pass through the event loop: a
handler can read the body of a request directly from the socket, and write the body of a response directly to the socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import httptools

from corral import aws
from corral.core.errors import ApiError, ServiceUnavailable, api_error
from corral.server.http.connection_limits import ConnectionLimits, Place
from corral.server.http.open_connections import OpenConnections, StallTimer
from corral.server.http.peers import address_of
from corral.server.http.response_head import Headers, response_head

HEADERS_MAX_BYTES = 64 * 1024
HEADERS_MAX = 1000  # the maximum number of headers
HEAD_MAX_S = 20  # the maximum time from the first byte of a request to the end of its head
IDLE_MAX_S = 75  # a connection without a request for this long is closed
REQUESTS_MAX = 100  # requests that a client may send before the first of them has its response
BUFFERED_MAX_BYTES = 64 * 1024  # if more bytes of a body wait for `receive`, nothing more is read from the client
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
TLS_HANDSHAKE = 0x16  # the first byte of a connection with TLS
NOT_HTTP = "The request is not valid HTTP/1.1."

HeadersTooLarge = api_error("RequestHeaderSectionTooLarge", 431)
HeadTimeout = api_error("RequestTimeout", 408)

log = logging.getLogger("corral")


class ClientGone(Exception):
    """Raised when the client has disconnected, so that no response can be sent."""


class NotServed(Exception):
    """Raised for a request that cannot be served. The message is the body of the response."""


class TooManyHeaders(Exception):
    """Raised at the first header above the maximum, so that the parser does not parse the others."""


def headers_too_large() -> ApiError:
    return HeadersTooLarge(f"The request has more than {HEADERS_MAX_BYTES} bytes of headers, or more than {HEADERS_MAX} headers.")


class HttpConnection:
    """One request, and the connection while this request is served."""

    def __init__(self, protocol: HttpProtocol, request: aws.Request, *, keep_alive: bool) -> None:
        self._protocol = protocol
        self.request = request
        self.keep_alive = keep_alive
        # Whether the client has sent `Expect: 100-continue`, and waits for the response 100 before it sends the body.
        self.awaits_continue = request.headers.get("expect", "").lower() == "100-continue"
        self.has_more = True  # a part of the body has not arrived yet
        self.is_taken_over = False
        self.is_responding = False  # the head of the response was made, and may have been sent
        self.is_complete = False  # the whole response was written
        self.is_disconnected = False
        self._body = bytearray()
        self.has_news = False  # whether `receive` would return at once, because part of the body or its end has arrived
        self._news: asyncio.Event | None = None  # made when `receive` must wait, because most bodies arrive with the head

    # The request

    @property
    def length(self) -> int | None:
        """The Content-Length of the request."""
        length = self.request.headers.get("content-length")
        return int(length) if length is not None else None

    async def receive(self) -> tuple[bytes, bool]:
        """Wait for the next bytes of the body. Return them, and whether more bytes follow.

        After the end of the body, wait until the client disconnects. Raise ClientGone when it does, or when the response was sent.
        """
        if self.awaits_continue and not self.transport.is_closing():
            self.awaits_continue = False
            self.transport.write(CONTINUE)
        if not self.is_disconnected and not self.is_complete:
            self._protocol.resume_reading()
            if not self.has_news:
                self._news = self._news or asyncio.Event()
                await self._news.wait()
            self._forget_news()
        if self.is_disconnected or self.is_complete:
            raise ClientGone
        data, self._body = bytes(self._body), bytearray()
        return data, self.has_more

    def _notify(self) -> None:
        self.has_news = True
        if self._news is not None:
            self._news.set()

    def _forget_news(self) -> None:
        self.has_news = False
        if self._news is not None:
            self._news.clear()

    def arrived(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > BUFFERED_MAX_BYTES:
            self._protocol.pause_reading()
        self._notify()

    def arrived_whole(self) -> None:
        self.has_more = False
        self._notify()

    def disconnected(self) -> None:
        self.is_disconnected = True
        self._notify()

    @property
    def place(self) -> Place:
        return self._protocol.place

    def authenticated(self, task_id: str | None = None) -> None:
        """Record that this request had valid credentials. Raise an error if there are too many connections.

        `task_id` is the task of a program in a container.
        """
        place = self._protocol.place
        if not place.is_verified:
            try:
                place.verify(task_id)
            except ApiError:
                self.keep_alive = False
                raise

    # The response

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response in one write.

        If the server died between two writes, botocore could receive a status 200 without a body, and would return an empty result.
        """
        if self._protocol.is_write_paused:
            await self._protocol.drain()
        if self.is_disconnected:
            return
        head = self.head(status, headers, len(body))
        self.transport.write(head if self.request.method == "HEAD" else head + body)
        self.finish()

    def head(self, status: int, headers: Headers, size: int) -> bytes:
        """Return the head of a response with a body of this size. The connection is closed if a handler has set this."""
        self.is_responding = True
        head, self.keep_alive = response_head(status, headers, size, self._protocol.open.date, keep_alive=self.keep_alive)
        return head

    def finish(self) -> None:
        """End the response, after its last byte has been written. Continue with the next request."""
        self.is_complete = True
        self._notify()
        if not self.keep_alive:
            self.transport.close()
        self._protocol.responded()

    # Direct access to the socket

    @property
    def transport(self) -> asyncio.Transport:
        return self._protocol.transport

    def take_over(self) -> tuple[int, bytes]:
        """Return a duplicate of the socket, and the part of the body that was received already.

        From now on, only the caller reads from the socket. The caller closes the duplicate. When the caller has read the whole
        body, it calls `end_of_body`. If it does not read the whole body, the connection must serve no other request.
        """
        socket = self.pause()
        self.is_taken_over = True
        received, self._body = bytes(self._body), bytearray()
        self._forget_news()
        return socket, received

    def end_of_body(self) -> None:
        """Prepare for the next request, after the whole body has been read from the socket of `take_over`."""
        if not self.is_disconnected:
            self._protocol.replace_parser()
            self.arrived_whole()

    def pause(self) -> int:
        """Stop reading requests, and return a duplicate of the socket. The caller closes the duplicate.

        Reading resumes after the response. Raise ConnectionAbortedError if the client has disconnected.
        """
        if self.transport.is_closing():
            raise ConnectionAbortedError("the client has disconnected")
        self.hold()
        return os.dup(self.transport.get_extra_info("socket").fileno())

    def hold(self) -> None:
        """Read nothing from the client until `receive` is called."""
        self._protocol.pause_reading()

    async def drain(self) -> None:
        """Wait until the write buffer of the transport has room."""
        await self._protocol.drain()


Serve = Callable[[HttpConnection], Awaitable[None]]
Upgrade = Callable[[aws.Request, Place], asyncio.Protocol]  # returns the protocol of a websocket


class HttpProtocol(asyncio.Protocol):
    """Serves one connection. If a client sends several requests at once, they are served one after the other."""

    transport: asyncio.Transport
    place: Place
    peer_name = ""  # see peers.py
    address = ""  # the client's address; it is set before for a client that reaches the server through a Unix socket
    is_secure = False  # the client's connection has TLS
    is_for_console = False  # the client has connected to the port of the console
    take_tls: Callable[[HttpProtocol, bytes], None] | None = None  # takes over a connection that begins with TLS (see outside.py)
    is_write_paused = False
    _is_read_paused = False
    _in_head = False  # the head of a request has begun to arrive and is not complete
    _head_bytes = 0  # the bytes of an incomplete head that are counted in the memory of heads; 0 for a head that arrives at once
    # The number of bytes outside of heads and bodies: sizes and extensions of chunks, trailers, and line breaks between requests.
    # An eighth of the bytes of a body is deducted, so that a body may have any number of chunks, but not too many small ones.
    _other_bytes = 0
    _upgrading: aws.Request | None = None  # the request for a websocket
    _seconds = 0  # the time since the last head began to arrive, without the time in which requests were served
    _age_s = 0  # the time since the connection was opened
    _url = b""
    _header_count = 0

    def __init__(self, open_connections: OpenConnections, limits: ConnectionLimits, serve: Serve, upgrade: Upgrade) -> None:
        self.open = open_connections
        self._limits = limits
        self.serve = serve
        self.upgrade: Upgrade | None = upgrade  # None: a request for a websocket is served as any other
        self._headers: dict[str, str] = {}
        self._requests: deque[HttpConnection] = deque()  # requests without a response; the first one is being served
        self._writable = asyncio.Event()
        self._stall_timer = StallTimer()
        self.replace_parser()

    def replace_parser(self) -> None:
        """Use a new parser, because the present parser still expects a body that a thread has read."""
        self._parser: Any = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # some clients send a line break after a request

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.address = self.address or address_of(transport)
        self.open.connections.add(self)
        self.place = self._limits.connected(self, self.peer_name)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open.closed(self)
        self.place.give_back()
        self.resume_writing()
        for connection in self._requests:
            connection.disconnected()
        self._requests.clear()
        self._parser = None  # the parser refers to this object

    def data_received(self, data: bytes) -> None:
        self._other_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._upgrading is not None and self.upgrade is not None:
                self._open_websocket(self.upgrade(self._upgrading, self.place))
                return
        except httptools.HttpParserError as error:
            if self.take_tls is not None and data[0] == TLS_HANDSHAKE and not self._url and not self._requests:
                self.take_tls(self, data)
                return
            # This is not logged, because only the client can correct the request. Docker sends such a request (a TLS handshake)
            # before each pull from a registry on localhost.
            if isinstance(error.__context__, TooManyHeaders):
                self.turn_away(headers_too_large())
                return
            self._refuse_bytes(str(error.__context__) if isinstance(error.__context__, NotServed) else NOT_HTTP)
            return
        if self._in_head:
            self._head_grew(len(data))
        elif self._other_bytes > HEADERS_MAX_BYTES:
            self.turn_away(headers_too_large())

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._writable.set()

    # Called by the parser

    def on_message_begin(self) -> None:
        self._in_head = True
        self._seconds = self._header_count = 0
        self._url = b""
        self._headers = {}

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer of a chunked body: it must not replace a header, because the signature does not cover trailers
        self._header_count += 1
        if self._header_count > HEADERS_MAX:
            raise TooManyHeaders
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._other_bytes = 0
        if self._head_bytes:
            self._give_back_head()
        request = self._request()
        is_upgrade = self._parser.should_upgrade()
        if is_upgrade and self.upgrade is not None and self._headers.get("upgrade", "").lower() == "websocket":
            if self._requests:
                raise NotServed("A websocket needs a connection without other requests.")
            self._upgrading = request  # data_received opens the websocket
            return
        if is_upgrade and ("transfer-encoding" in self._headers or self._headers.get("content-length", "0") != "0"):
            # The parser would treat the body as bytes of the protocol in the header Upgrade, not as the body of this request.
            raise NotServed("Corral serves HTTP/1.1 and websockets only: send this request without the header Upgrade.")
        if not self.place.is_verified:
            self.place.is_active()
        if len(self._requests) >= REQUESTS_MAX:
            raise NotServed(f"The connection has {REQUESTS_MAX} requests without a response.")
        keep_alive = not is_upgrade and self._parser.get_http_version() != "1.0" and self._parser.should_keep_alive()
        self._requests.append(HttpConnection(self, request, keep_alive=keep_alive))
        if len(self._requests) == 1:
            self.open.run(self._run(self._requests[0]))
        else:
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._other_bytes = max(0, self._other_bytes - size - size // 8)
        if self._requests:  # otherwise this is the rest of a refused body
            self._requests[-1].arrived(body)

    def on_message_complete(self) -> None:
        self._other_bytes = 0
        if self._requests:
            self._requests[-1].arrived_whole()

    # Called for each request

    def pause_reading(self) -> None:
        if not self._is_read_paused:
            self._is_read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_read_paused:
            self._is_read_paused = False
            self.transport.resume_reading()

    async def drain(self) -> None:
        if self.is_write_paused:
            await self._writable.wait()

    def responded(self) -> None:
        """Serve the next request that has arrived, or wait for one."""
        if self.transport.is_closing():
            return
        self._requests.popleft()
        self.resume_reading()
        if self._requests:
            self.open.run(self._run(self._requests[0]))

    async def _run(self, connection: HttpConnection) -> None:
        try:
            await self.serve(connection)
        except Exception:
            log.exception("no response to %s", connection.request)
        if not connection.is_complete:
            self.transport.abort()  # the client must notice that its response is missing or incomplete

    # Called by the server and by ConnectionLimits

    def tick(self) -> None:
        """Close the connection if the client is too slow. The server calls this method once a second."""
        self._age_s += 1
        if self._stall_timer.tick(self.transport) or self._requests:
            return  # the client still reads a response, or a request is being served
        self._seconds += 1
        if self._in_head and self._seconds > HEAD_MAX_S:
            self.turn_away(HeadTimeout(f"The head of the request did not arrive within {HEAD_MAX_S} seconds."))
        elif self._seconds > IDLE_MAX_S:
            self.transport.close()

    @property
    def is_new(self) -> bool:
        return self._age_s == 0

    @property
    def idle_s(self) -> int:
        return 0 if self._requests else self._seconds

    def turn_away(self, error: ApiError) -> None:
        """Send an error that is not the response to a request, and close the connection."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # the client does not read, and `close` would wait until it has read everything
            return
        refusal = aws.serialize_refusal(aws.Request("POST", "/", "", {}, b""), error, "")
        self._close_with(refusal.status, refusal.headers, refusal.body)

    def shut_down(self) -> None:
        """Close the connection after all requests that have arrived have their responses."""
        if self._requests:
            self._requests[-1].keep_alive = False
        else:
            self.transport.close()

    def _refuse_bytes(self, why: str) -> None:
        """Refuse bytes that are not a request. Requests that arrived completely before them are still served."""
        if len(self._requests) > 1 and self._requests[-1].has_more:
            self._requests.pop()  # the bytes are in the body of this request
        if self._requests and not self._requests[-1].has_more:
            self._requests[-1].keep_alive = False
            self.pause_reading()
        else:
            self._close_with(400, [("content-type", "text/plain; charset=utf-8")], why.encode())

    def _close_with(self, status: int, headers: Headers, body: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._requests and self._requests[0].is_responding:
            self.transport.abort()  # the client would read the error as a part of the response that is being sent
            return
        connection = HttpConnection(self, aws.Request("POST", "/", "", {}, b""), keep_alive=False)
        self.transport.write(connection.head(status, headers, len(body)) + body)
        self.transport.close()

    def _request(self) -> aws.Request:
        url = httptools.parse_url(self._url)
        return aws.Request(
            method=self._parser.get_method().decode("ascii"),
            path=url.path.decode("ascii"),
            query=(url.query or b"").decode("latin-1"),
            headers=self._headers,
            body=b"",
            address=self.address,
            is_secure=self.is_secure,
        )

    def _open_websocket(self, protocol: asyncio.Protocol) -> None:
        """Let the protocol of a websocket take over the connection and its place. This protocol authenticates the client."""
        self.open.connections.discard(self)
        self._parser = None
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)

    def _head_grew(self, size: int) -> None:
        """Count the bytes of a head that arrives in several segments. Refuse the head if it is too large, or if memory is short."""
        if not self.place.take_head_memory(size):
            self.turn_away(ServiceUnavailable("Corral is receiving too many incomplete requests. Retry later."))
            return
        self._head_bytes += size
        if self._head_bytes > HEADERS_MAX_BYTES:
            self.turn_away(headers_too_large())

    def _give_back_head(self) -> None:
        size, self._head_bytes = self._head_bytes, 0
        if size:
            self.place.give_back_head_memory(size)
