"""Lists every internal of uvicorn that server/ uses, and checks it in the installed version.

If this file fails after the pin in pyproject.toml was raised, compare `server/http_connection.py` and `server/http_server.py` with
the new version's `protocols/http/httptools_impl.py`, `flow_control.py` and `server.py`, adapt them, and run this file and
`tests/clients/test_s3_bodies.py` with the oldest and the newest version of the pin.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import socket
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from corral.server.connection_limits import ConnectionLimits
from corral.server.http_connection import HEAD_MAX_S, IDLE_MAX_S, BoundedHttpProtocol, CorkedTransport, HttpConnection
from corral.server.http_server import HttpServer

ROOT = Path(__file__).parent.parent
SERVER = ROOT / "src" / "corral" / "server"
USES_UVICORN = {"data_channel.py", "http_connection.py", "http_server.py"}
CHECK = "server/ uses this internal of uvicorn: see the head of tests/test_uvicorn.py"

# Attributes of uvicorn's objects, and methods of its classes that Corral overrides or calls. `logger` belongs to WSProtocol.
OF_PROTOCOL = {
    "app", "connection_lost", "connection_made", "connections", "cycle", "data_received", "flow", "handle_websocket_upgrade",
    "headers", "on_headers_complete", "on_message_begin", "on_message_complete", "parser", "scope", "transport",
}  # fmt: skip
OF_FLOW = {"drain", "pause_reading"}
OF_CYCLE = {
    "body", "expected_content_length", "message_event", "more_body", "response_complete", "scope", "waiting_for_100_continue",
}  # fmt: skip
OF_SERVER = {"capture_signals", "main_loop", "on_tick", "server_state", "should_exit"}


def test_the_installed_version_is_pinned():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [pin] = [requirement for each in dependencies if (requirement := Requirement(each)).name == "uvicorn"]
    assert {each.operator for each in pin.specifier} == {">=", "<"}, "a lower and an upper end: newer internals are unknown"
    assert pin.specifier.contains(version("uvicorn")), f"installed is {version('uvicorn')}, pinned {pin}: {CHECK}"


# --- the lists are complete -------------------------------------------------------------------------------------------


def test_only_these_files_use_uvicorn():
    found = {path.name for path in SERVER.rglob("*.py") if "uvicorn" in _imported(path)}
    assert found == USES_UVICORN, "uvicorn's internals stay in these files"


def test_every_internal_that_is_used_is_listed():
    connection = ast.parse((SERVER / "http_connection.py").read_text())
    assert _inherited(connection, "BoundedHttpProtocol", BoundedHttpProtocol) == OF_PROTOCOL
    assert _attributes_of(connection, "_flow") == OF_FLOW
    assert _attributes_of(connection, "_cycle") | _attributes_of(connection, "cycle") == OF_CYCLE
    assert _inherited(ast.parse((SERVER / "http_server.py").read_text()), "HttpServer", HttpServer) == OF_SERVER
    assert _attributes_of(ast.parse((SERVER / "data_channel.py").read_text()), "protocol") == {"logger"}


def _imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _attributes_of(tree: ast.AST, name: str) -> set[str]:
    """Return X of every `name.X` and `self.name.X`."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if ast.unparse(node.value) in (name, f"self.{name}")}


def _inherited(tree: ast.Module, name: str, kind: type) -> set[str]:
    """Return the attributes of its bases that a class uses or overrides."""
    [body] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    used = {
        node.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "super()") and node.attr != "__init__"
    }
    own = {attribute for attribute in vars(kind) if not any(hasattr(base, attribute) for base in kind.__bases__)}
    own |= {node.attr for node in ast.walk(body) if isinstance(node, ast.Attribute) and node.attr.startswith("_")}
    overridden = {attribute for attribute in vars(kind) if hasattr(kind.__bases__[0], attribute) and not attribute.startswith("__")}
    return (used | overridden) - own


# --- each internal works as Corral expects ----------------------------------------------------------------------------


class Wire:
    """Corral's protocol at one end of a socket pair, and the scopes that the application received."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.go = asyncio.Event()
        self.respond: Any = None

    async def app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        self.receive, self.send = receive, send
        await self.go.wait()
        if self.respond is not None:
            await self.respond(scope, receive, send)

    async def open(self) -> None:
        ours, theirs = socket.socketpair()
        config = uvicorn.Config(self.app, loop="none", lifespan="off", interface="asgi3", log_config=None)
        config.load()
        loop = asyncio.get_running_loop()
        make = lambda: BoundedHttpProtocol(ConnectionLimits(), config, ServerState(), {}, _loop=loop)  # noqa: E731
        _, self.protocol = await loop.connect_accepted_socket(make, ours)
        self.reader, self.writer = await asyncio.open_connection(sock=theirs)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0)

    async def ask(self, data: bytes) -> HttpConnection:
        """Send bytes, and wait until the application is called."""
        count = len(self.scopes)
        self.writer.write(data)
        await self.until(lambda: len(self.scopes) > count)
        connection: HttpConnection = self.scopes[-1]["connection"]
        return connection

    def close(self) -> None:
        self.writer.close()
        self.protocol.transport.abort()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


HEAD = b"PUT /a HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n"


def test_a_body_as_it_arrives(runner):
    async def check() -> None:
        wire = Wire()
        await wire.open()
        connection = await wire.ask(HEAD + b"expect: 100-continue\r\n\r\n")
        assert isinstance(connection, HttpConnection) and isinstance(connection.transport, CorkedTransport), CHECK
        assert connection.length == 6, f"cycle.scope: {CHECK}"
        assert connection.awaits_continue, f"cycle.waiting_for_100_continue: {CHECK}"
        assert not connection.has_news and connection.has_more, f"cycle.message_event, more_body: {CHECK}"
        receiving = asyncio.ensure_future(wire.receive())
        assert (await wire.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        assert not connection.awaits_continue, f"cycle.waiting_for_100_continue: {CHECK}"
        wire.writer.write(b"abc")
        assert (await receiving) == {"type": "http.request", "body": b"abc", "more_body": True}
        assert not connection.has_news and connection.has_more
        wire.writer.write(b"def")
        await wire.until(lambda: connection.has_news)
        assert not connection.has_more, f"cycle.more_body: {CHECK}"
        wire.close()

    runner.run(check())


def test_a_body_that_is_read_past_uvicorn_and_the_next_request(runner):
    async def check() -> None:
        wire = Wire()
        await wire.open()
        connection = await wire.ask(HEAD + b"\r\nabc")
        await wire.until(lambda: connection.has_news)
        taken, come = connection.take_over()
        with socket.socket(fileno=taken) as past:
            assert come == b"abc", f"cycle.body: {CHECK}"
            assert not connection.has_news, f"cycle.message_event: {CHECK}"
            past.setblocking(False)
            wire.writer.write(b"def")
            read = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(past, 100), 10)
            assert read == b"def", f"flow.pause_reading: {CHECK}"
        connection.end_of_body()
        assert not connection.has_more, f"on_message_complete: {CHECK}"

        async def respond(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        wire.respond = respond
        wire.go.set()
        assert (await wire.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert (await wire.ask(b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n")) is not connection, f"parser: {CHECK}"
        assert wire.scopes[-1]["raw_path"] == b"/next"
        wire.close()

    runner.run(check())


def test_a_response_that_is_written_past_uvicorn(runner):
    async def check() -> None:
        wire = Wire()
        await wire.open()

        async def respond(scope: Any, receive: Any, send: Any) -> None:
            connection: HttpConnection = scope["connection"]
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
            head = connection.transport.take()
            with socket.socket(fileno=connection.pause()) as past:
                past.sendall(head + b"large")
            await asyncio.wait_for(connection.drain(), 10)
            connection.body_was_sent()
            await send({"type": "http.response.body", "body": b""})

        wire.respond = respond
        wire.go.set()
        for _ in range(2):  # the second one shows that uvicorn continues to read after the first
            await wire.ask(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n")
            head = await asyncio.wait_for(wire.reader.readuntil(b"\r\n\r\n"), 10)
            assert b"content-length: 5" in head
            assert await wire.reader.readexactly(5) == b"large", f"cycle.expected_content_length: {CHECK}"
        wire.close()

    runner.run(check())


def test_headers_that_never_end(runner):
    async def check() -> None:
        wire = Wire()
        await wire.open()
        wire.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x-many: yes\r\n" * 100_000)
        assert (await asyncio.wait_for(wire.reader.readline(), 10)).startswith(b"HTTP/1.1 431"), f"data_received: {CHECK}"
        wire.close()

    runner.run(check())


def test_a_head_that_takes_too_long(runner):
    async def check() -> None:
        wire = Wire()
        await wire.open()
        wire.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n")
        await wire.until(lambda: wire.protocol._in_head)
        for second in range(HEAD_MAX_S + 1):
            assert not wire.protocol.transport.is_closing(), f"closed after {second} s"
            wire.protocol.tick()
        refusal = await asyncio.wait_for(wire.reader.read(), 10)
        assert refusal.startswith(b"HTTP/1.1 408") and b"20 seconds" in refusal
        assert wire.protocol._limits.memory.try_take(64 * 1024 * 1024), f"connection_lost: {CHECK}"
        wire.close()

    runner.run(check())


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n\r\n"])
def test_a_connection_without_a_request_is_closed_and_one_with_a_request_is_not(runner, sent):
    async def respond(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def check() -> None:
        wire = Wire()
        wire.respond = respond
        await wire.open()
        if sent:
            await wire.ask(sent)
            for _ in range(1000):
                wire.protocol.tick()
            wire.go.set()
            assert (await wire.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"), f"response_complete: {CHECK}"
        for second in range(IDLE_MAX_S + 1):
            assert not wire.protocol.transport.is_closing(), f"closed after {second} s"
            wire.protocol.tick()
        assert await asyncio.wait_for(wire.reader.read(), 10) == b""
        wire.close()

    runner.run(check())


def test_methods_that_we_override_are_called():
    """A method that uvicorn no longer has, or no longer calls, would be dead code of ours."""
    for kind, names in ((HttpToolsProtocol, OF_PROTOCOL), (FlowControl, OF_FLOW), (RequestResponseCycle, OF_CYCLE),
                        (uvicorn.Server, OF_SERVER)):  # fmt: skip
        source = inspect.getsource(kind)
        for name in names:
            assert f"self.{name}" in source or f"def {name}(" in source, f"{kind.__name__}.{name}: {CHECK}"
    serve = inspect.getsource(uvicorn.Server)
    assert "await self.main_loop()" in serve and "self.capture_signals()" in serve, CHECK
    assert "default_headers" in inspect.getsource(uvicorn.Server.on_tick), f"the Date header is made there: {CHECK}"
    assert list(inspect.signature(uvicorn.Server.on_tick).parameters) == ["self", "counter"], CHECK
