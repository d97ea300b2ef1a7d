"""HTTP connections and websockets, at one end of a socket pair."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any
from weakref import ref

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Message, Ping, Pong, RejectConnection, Request

from corral.server.http.connection import (
    HEAD_MAX_S,
    HEADERS_MAX,
    IDLE_MAX_S,
    REQUESTS_MAX,
    ClientGone,
    HttpConnection,
    HttpProtocol,
)
from corral.server.http.connection_limits import ConnectionLimits, Place
from corral.server.http.open_connections import CLOSING_MAX_S, STALLED_S, OpenConnections
from corral.server.http.unverified_memory import HEADS_MAX_BYTES
from corral.server.http.websocket import CLOSE_S, LOST_AFTER_S, MESSAGE_MAX_BYTES, PING_AFTER_S, WebSocket
from corral.server.service_calls import cancel_when_gone
from eventually import DEADLINE_S

GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
PUT = b"PUT /a?b=c HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n"
CHUNKED = b"PUT /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
UPGRADE = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n"


class Client:
    """A client, and the requests that the server is serving."""

    def __init__(self, serve: Callable[[HttpConnection], Awaitable[None]] | None = None) -> None:
        self.requests: list[HttpConnection] = []
        self.websockets: list[WebSocket] = []
        self.open = OpenConnections(time.time())
        self.limits = ConnectionLimits()
        self._serve = serve
        self._stay = asyncio.Event()

    async def connect(self) -> Client:
        ours, theirs = socket.socketpair()
        make = lambda: HttpProtocol(self.open, self.limits, self._requested, self._upgraded)  # noqa: E731
        _, self.protocol = await asyncio.get_running_loop().connect_accepted_socket(make, ours)
        self.reader, self.writer = await asyncio.open_connection(sock=theirs)
        return self

    async def _requested(self, connection: HttpConnection) -> None:
        self.requests.append(connection)
        await (self._serve or self._wait)(connection)

    async def _wait(self, connection: HttpConnection) -> None:
        await self._stay.wait()

    def _upgraded(self, request: Any, place: Place) -> WebSocket:
        websocket = WebSocket(self.open, place, request, self._accept)
        self.websockets.append(websocket)
        return websocket

    async def _accept(self, websocket: WebSocket) -> None:
        if websocket.path != "/a":
            await websocket.refuse()
            return
        await websocket.accept()
        await self._stay.wait()

    async def request(self, data: bytes) -> HttpConnection:
        """Send bytes, and wait until the server serves one more request."""
        count = len(self.requests)
        self.writer.write(data)
        await self.until(lambda: len(self.requests) > count)
        return self.requests[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0)

    async def head(self) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), DEADLINE_S)

    async def rest(self) -> bytes:
        """Return everything until the server closes the connection."""
        return await asyncio.wait_for(self.reader.read(), DEADLINE_S)

    def close(self) -> None:
        self.writer.close()
        self.protocol.transport.abort()
        for task in self.open.tasks:
            task.cancel()


Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def run() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield lambda check: runner.run(check())


async def empty(connection: HttpConnection) -> None:
    await connection.respond(200, [], b"")


# Requests and responses


def test_a_closed_connection_leaves_the_memory_without_the_garbage_collector(run: Run) -> None:
    async def check() -> None:
        client = await Client(empty).connect()
        await client.request(GET)
        protocol = ref(client.protocol)
        client.requests.clear()
        del client.protocol
        client.writer.close()
        await client.until(lambda: protocol() is None)

    gc.disable()
    try:
        run(check)
    finally:
        gc.enable()


def test_a_body_as_it_arrives(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        connection = await client.request(PUT + b"expect: 100-continue\r\n\r\n")
        request = connection.request
        assert (request.method, request.path, request.query) == ("PUT", "/a", "b=c") and request.headers["host"] == "x"
        assert connection.length == 6 and connection.awaits_continue
        assert not connection.has_news and connection.has_more
        receiving = asyncio.ensure_future(connection.receive())
        assert (await client.head()).startswith(b"HTTP/1.1 100")
        assert not connection.awaits_continue
        client.writer.write(b"abc")
        assert await receiving == (b"abc", True)
        assert not connection.has_news and connection.has_more
        client.writer.write(b"def")
        await client.until(lambda: connection.has_news)
        assert not connection.has_more
        assert await connection.receive() == (b"def", False)
        gone = asyncio.ensure_future(connection.receive())
        client.writer.close()
        with pytest.raises(ClientGone):
            await gone
        client.close()

    run(check)


def test_a_response_and_its_headers(run: Run) -> None:
    async def respond(connection: HttpConnection) -> None:
        headers = [("Content-Type", "text/x"), ("X-Bad", "a\r\nset-cookie: b"), ("X-Wide", "\u20ac")]
        await connection.respond(200, headers, b"body")

    async def check() -> None:
        client = await Client(respond).connect()
        client.writer.write(GET)
        head = await client.head()
        assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
        assert b"\r\ncontent-type: text/x\r\nx-bad: a  set-cookie: b\r\nx-wide: ?\r\ncontent-length: 4\r\n\r\n" in head
        assert await client.reader.readexactly(4) == b"body"
        client.writer.write(b"HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n" + GET)  # the HEAD has no body, so a second head follows
        assert b"content-length: 4" in await client.head()
        assert (await client.head()).startswith(b"HTTP/1.1 200")
        client.close()

    run(check)


@pytest.mark.parametrize("header", ["connection: close", "connection: upgrade\r\nupgrade: h2c", ""])
def test_a_connection_is_closed_after_its_last_response(run: Run, header: str) -> None:
    async def check() -> None:
        client = await Client(empty).connect()
        client.writer.write(GET.replace(b"host: x", header.encode()) if header else GET.replace(b"1.1", b"1.0"))
        assert b"\r\nconnection: close\r\n" in await client.rest()
        client.close()

    run(check)


def test_requests_that_arrive_together_are_served_in_order(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        first = await client.request(GET + PUT + b"\r\nabcdef" + GET.replace(b"/a", b"/last"))
        assert len(client.requests) == 1
        await first.respond(200, [], b"1")
        await client.until(lambda: len(client.requests) == 2)
        second = client.requests[1]
        assert await second.receive() == (b"abcdef", False)
        await second.respond(200, [], b"2")
        await client.until(lambda: len(client.requests) == 3)
        assert client.requests[2].request.path == "/last"
        client.writer.close()
        with pytest.raises(ClientGone):
            while True:
                await client.requests[2].receive()
        client.close()

    run(check)


def test_every_waiting_request_notices_that_the_client_is_gone(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        first = await client.request(GET + GET)
        await first.receive()
        client.writer.close()
        with pytest.raises(ClientGone):
            await asyncio.wait_for(first.receive(), DEADLINE_S)
        client.close()

    run(check)


def test_a_slow_call_is_cancelled_only_when_its_client_is_gone(run: Run) -> None:
    """A request without a body is not received before its handler runs, for example a listing of S3."""

    async def check() -> None:
        client = await Client().connect()
        waiting = await client.request(GET)
        answer = asyncio.get_running_loop().create_future()
        cancel_when_gone(waiting.receive, answer)
        other = await Client(empty).connect()
        await other.request(GET)
        await other.head()
        other.close()
        assert not answer.done()
        client.writer.close()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(answer, DEADLINE_S)
        client.close()

    run(check)


def test_a_body_that_is_read_from_the_socket_and_the_next_request(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        connection = await client.request(PUT + b"\r\nabc")
        await client.until(lambda: connection.has_news)
        taken, received = connection.take_over()
        with socket.socket(fileno=taken) as direct:
            assert received == b"abc" and not connection.has_news
            direct.setblocking(False)
            client.writer.write(b"def")
            read = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(direct, 100), DEADLINE_S)
            assert read == b"def"
        connection.end_of_body()
        assert not connection.has_more
        await connection.respond(200, [], b"")
        assert (await client.head()).startswith(b"HTTP/1.1 200")
        assert (await client.request(GET.replace(b"/a", b"/next"))).request.path == "/next"
        client.close()

    run(check)


def test_a_response_that_is_written_to_the_socket(run: Run) -> None:
    async def respond(connection: HttpConnection) -> None:
        head = connection.head(200, [], 5)
        with socket.socket(fileno=connection.pause()) as direct:
            direct.sendall(head + b"large")
        await asyncio.wait_for(connection.drain(), DEADLINE_S)
        connection.finish()

    async def check() -> None:
        client = await Client(respond).connect()
        for _ in range(2):  # the second response shows that the server continues to read after the first
            client.writer.write(GET)
            assert b"content-length: 5" in await client.head()
            assert await client.reader.readexactly(5) == b"large"
        client.close()

    run(check)


def test_a_handler_that_fails_or_sends_nothing_closes_the_connection(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(connection: HttpConnection) -> None:
        raise RuntimeError("a bug")

    async def check() -> None:
        client = await Client(fail).connect()
        client.writer.write(GET)
        assert await client.rest() == b""
        client.close()

    run(check)
    assert "a bug" in caplog.text and "GET" in caplog.text


def test_bytes_that_are_not_http_get_a_400(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        client.writer.write(b"\x16\x03\x01\x02\x00\x01")
        assert (await client.rest()).startswith(b"HTTP/1.1 400")
        client.close()

    run(check)


def test_trailers_do_not_replace_headers(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        connection = await client.request(CHUNKED)
        client.writer.write(b"0\r\nhost: other\r\nx-new: 1\r\n\r\n")
        await client.until(lambda: not connection.has_more)
        assert connection.request.headers == {"host": "x", "transfer-encoding": "chunked"}
        client.close()

    run(check)


@pytest.mark.parametrize("bad", [b"\x16\x03\x01", PUT + b"content-length: 7\r\n\r\n", CHUNKED + b"x"])
def test_requests_before_bytes_that_are_not_http_are_served(run: Run, bad: bytes) -> None:
    async def check() -> None:
        client = await Client().connect()
        first = await client.request(GET + GET + bad)
        await first.respond(200, [], b"1")
        await client.until(lambda: len(client.requests) == 2)
        await client.requests[1].respond(200, [], b"2")
        received = await client.rest()
        assert received.count(b"HTTP/1.1 200") == 2 and b"400" not in received and received.endswith(b"close\r\n\r\n2")
        assert len(client.requests) == 2
        client.close()

    run(check)


def test_a_body_that_is_not_http_gets_a_400(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        connection = await client.request(CHUNKED + b"x")
        assert (await client.rest()).startswith(b"HTTP/1.1 400")
        with pytest.raises(ClientGone):
            await connection.receive()
        client.close()

    run(check)


@pytest.mark.parametrize("body", [b"content-length: 3\r\n\r\nabc", b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"])
def test_a_body_with_an_upgrade_is_refused(run: Run, body: bytes) -> None:
    async def check() -> None:
        client = await Client(empty).connect()
        client.writer.write(b"PUT /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n" + body)
        received = await client.rest()
        assert received.startswith(b"HTTP/1.1 400") and b"without the header Upgrade" in received and not client.requests
        client.close()

    run(check)


# Limits


def test_trailers_that_never_end(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        await client.request(CHUNKED + b"0\r\n")
        client.writer.write(b"x-long: " + b"y" * 200_000)
        assert (await asyncio.wait_for(client.reader.readline(), DEADLINE_S)).startswith(b"HTTP/1.1 431")
        client.close()

    run(check)


def test_too_many_requests_without_a_response(run: Run) -> None:
    async def check() -> None:
        client = await Client(empty).connect()
        client.writer.write(GET * (REQUESTS_MAX + 10))
        assert (await client.rest()).count(b"HTTP/1.1 200") == REQUESTS_MAX == len(client.requests)
        client.close()

    run(check)


@pytest.mark.parametrize("last", [True, False])
def test_a_client_that_reads_nothing_is_disconnected(run: Run, last: bool) -> None:
    async def check() -> None:
        client = await Client().connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        connection = await client.request(GET)
        await connection.respond(200, [("connection", "close")] if last else [], bytes(8 * 1024 * 1024))
        for second in range(CLOSING_MAX_S if last else STALLED_S):
            client.protocol.tick()
            await asyncio.sleep(0)
            assert client.open.connections, f"disconnected after {second} s"
        client.protocol.tick()
        await client.until(lambda: not client.open.connections)
        client.close()

    run(check)


def test_a_client_that_is_turned_away_and_reads_nothing(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        connection = await client.request(GET)
        await connection.respond(200, [], bytes(8 * 1024 * 1024))
        client.protocol.turn_away(client.limits.too_many())
        await client.until(lambda: not client.open.connections)
        client.close()

    run(check)


def test_a_client_that_is_turned_away_during_its_response_gets_no_other_bytes(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        connection = await client.request(GET)
        head = connection.head(200, [], 5)
        with socket.socket(fileno=connection.pause()) as direct:
            direct.sendall(head + b"la")
            client.protocol.turn_away(client.limits.too_many())
        assert await client.rest() == head + b"la"
        client.close()

    run(check)


def test_headers_that_never_end(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        client.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-many: yes\r\n" * 100_000)
        assert (await asyncio.wait_for(client.reader.readline(), DEADLINE_S)).startswith(b"HTTP/1.1 431")
        client.close()

    run(check)


def test_no_header_above_the_maximum_is_parsed(run: Run) -> None:
    async def check() -> None:
        client = await Client(empty).connect()
        client.protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a:\r\n" * 60_000 + b"\r\n")
        assert client.protocol._header_count == HEADERS_MAX + 1
        assert (await client.rest()).startswith(b"HTTP/1.1 431") and not client.requests
        client.close()

    run(check)


@pytest.mark.parametrize(("size", "is_refused"), [(1, True), (100, False)])
def test_a_body_in_many_small_chunks(run: Run, size: int, is_refused: bool) -> None:
    async def check() -> None:
        client = await Client().connect()
        connection = await client.request(CHUNKED)
        parsed = 0
        for _ in range(4):
            if not client.protocol.transport.is_closing():
                client.protocol.data_received((b"%x\r\n" % size + b"y" * size + b"\r\n") * (65_536 // (size + 6)))
                parsed += len((await connection.receive())[0])
        assert client.protocol.transport.is_closing() == is_refused
        assert (parsed < 30_000) == is_refused
        client.close()

    run(check)


def test_a_head_that_takes_too_long(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        client.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n")
        await client.until(lambda: client.protocol._in_head)
        for second in range(HEAD_MAX_S + 1):
            assert not client.protocol.transport.is_closing(), f"closed after {second} s"
            client.protocol.tick()
        refusal = await client.rest()
        assert refusal.startswith(b"HTTP/1.1 408") and b"20 seconds" in refusal
        assert client.limits.heads_memory.free_bytes == HEADS_MAX_BYTES, "the memory of the head was given back"
        client.close()

    run(check)


@pytest.mark.parametrize("sent", [b"", GET, GET + b"\r\n"])
def test_a_connection_without_a_request_is_closed_and_one_with_a_request_is_not(run: Run, sent: bytes) -> None:
    async def check() -> None:
        client = await Client().connect()
        if sent:
            connection = await client.request(sent)
            for _ in range(1000):
                client.protocol.tick()
            await connection.respond(200, [], b"")
            assert (await client.head()).startswith(b"HTTP/1.1 200")
        for second in range(IDLE_MAX_S + 1):
            assert not client.protocol.transport.is_closing(), f"closed after {second} s"
            client.protocol.tick()
        assert await client.rest() == b""
        assert not client.open.connections
        client.close()

    run(check)


def test_the_end_of_the_server_waits_for_a_response(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        connection = await client.request(GET)
        client.protocol.shut_down()
        await connection.respond(200, [], b"last")
        assert (await client.rest()).endswith(b"connection: close\r\n\r\nlast")
        client.close()

    run(check)


# Websockets


class WebSocketClient(Client):
    async def upgrade(self, path: str = "/a") -> WebSocket:
        self.wire = WSConnection(ConnectionType.CLIENT)
        self.writer.write(self.wire.send(Request("x", path)))
        await self.until(lambda: bool(self.websockets))
        return self.websockets[0]

    async def event(self) -> Any:
        while True:
            for event in self.wire.events():
                return event
            self.wire.receive_data(await asyncio.wait_for(self.reader.read(65536), DEADLINE_S) or None)


def test_messages_in_both_directions(run: Run) -> None:
    async def check() -> None:
        client = await WebSocketClient().connect()
        websocket = await client.upgrade()
        assert isinstance(await client.event(), AcceptConnection)
        client.writer.write(client.wire.send(Message("text")) + client.wire.send(Message(b"by", message_finished=False)))
        client.writer.write(client.wire.send(Message(b"tes")))
        assert [await websocket.receive(), await websocket.receive()] == ["text", b"bytes"]
        await websocket.send(b"reply")
        event = await client.event()
        assert isinstance(event, BytesMessage) and event.data == b"reply"
        client.writer.write(client.wire.send(Ping(b"1")))
        event = await client.event()
        assert isinstance(event, Pong) and event.payload == b"1"
        client.writer.write(client.wire.send(CloseConnection(1000)))
        assert isinstance(await client.event(), CloseConnection)
        assert await websocket.receive() is None and await websocket.receive() is None
        await client.until(lambda: not client.open.connections)
        with pytest.raises(ConnectionResetError):
            await websocket.send(b"late")
        client.close()

    run(check)


def test_a_websocket_that_is_refused(run: Run) -> None:
    async def check() -> None:
        client = await WebSocketClient().connect()
        await client.upgrade("/other")
        event = await client.event()
        assert isinstance(event, RejectConnection) and event.status_code == 403
        client.close()

    run(check)


@pytest.mark.parametrize(
    "head", [b"host: x\r\nconnection: upgrade\r\nupgrade: websocket", UPGRADE.rstrip(), UPGRADE + b"host: \xff"]
)
def test_a_request_for_a_websocket_that_is_not_valid(run: Run, head: bytes) -> None:
    async def check() -> None:
        client = await Client().connect()
        client.writer.write(b"GET /a HTTP/1.1\r\n" + head + b"\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 400")
        await client.until(lambda: not client.open.connections)
        client.close()

    run(check)


def test_a_websocket_after_a_request_without_a_response(run: Run) -> None:
    async def check() -> None:
        client = await Client().connect()
        first = await client.request(GET + b"GET /a HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"\r\n")
        await first.respond(200, [], b"1")
        assert (await client.rest()).endswith(b"connection: close\r\n\r\n1")
        assert not client.websockets
        client.close()

    run(check)


def test_a_client_that_reads_nothing_gets_no_response_to_a_ping(run: Run) -> None:
    async def check() -> None:
        client = await WebSocketClient().connect()
        websocket = await client.upgrade()
        await client.event()
        websocket.pause_writing()
        websocket._silent_s = 1
        client.writer.write(client.wire.send(Ping(b"1")))
        await client.until(lambda: websocket._silent_s == 0)
        websocket.resume_writing()
        client.writer.write(client.wire.send(Ping(b"2")))
        event = await client.event()
        assert isinstance(event, Pong) and event.payload == b"2"
        client.close()

    run(check)


def test_the_server_closes_a_websocket(run: Run) -> None:
    async def check() -> None:
        client = await WebSocketClient().connect()
        websocket = await client.upgrade()
        await client.event()
        await websocket.close(1008, "why")
        event = await client.event()
        assert isinstance(event, CloseConnection) and (event.code, event.reason) == (1008, "why")
        for _ in range(CLOSE_S + 1):
            assert not websocket.transport.is_closing()
            websocket.tick()
        assert websocket.transport.is_closing(), "the client did not respond"
        client.close()

    run(check)


def test_a_message_that_is_too_large(run: Run) -> None:
    async def check() -> None:
        client = await WebSocketClient().connect()
        await client.upgrade()
        await client.event()
        client.writer.write(client.wire.send(Message(bytes(MESSAGE_MAX_BYTES + 1))))
        event = await client.event()
        assert isinstance(event, CloseConnection) and event.code == 1009
        client.close()

    run(check)


@pytest.mark.parametrize("responds", [True, False])
def test_a_silent_client_gets_a_ping(run: Run, responds: bool) -> None:
    async def check() -> None:
        client = await WebSocketClient().connect()
        websocket = await client.upgrade()
        await client.event()
        for _ in range(PING_AFTER_S):
            websocket.tick()
        ping = await client.event()
        assert isinstance(ping, Ping)
        if responds:
            client.writer.write(client.wire.send(ping.response()))
            await client.until(lambda: websocket._silent_s == 0)
        for _ in range(LOST_AFTER_S + 1 - PING_AFTER_S):
            websocket.tick()
        assert websocket.transport.is_closing() is not responds
        client.close()

    run(check)
