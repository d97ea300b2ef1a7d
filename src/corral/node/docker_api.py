"""A client of the Docker Engine API: HTTP/1.1 over the engine's socket.

Plain requests share a small pool of connections. A stream (logs, events, pulls) has its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

DEFAULT_HOST = "unix:///var/run/docker.sock"
VERSION_MAX = (1, 44)  # the newest API version that this client uses; newer engines also support it
IDLE_CONNECTIONS_MAX = 16
CONNECT_MAX_S = 5.0
HEAD_MAX_BYTES = 64 * 1024
READ_BYTES = 64 * 1024

Headers = Mapping[str, str]


class EngineGone(Exception):
    """The engine does not respond, or the connection broke. The engine may or may not have executed the request."""


class EngineError(Exception):
    """The engine refused the request. The message is the engine's error message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineConnection(Struct):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class ResponseHead(Struct, frozen=True):
    status: int
    length: int | None  # None: the body is chunked; -1: the body ends when the connection closes
    keeps_open: bool


class DockerApi:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.host = environment.get("DOCKER_HOST") or DEFAULT_HOST
        self._tls = _tls(environment)
        self._prefix = ""
        self._idle: list[EngineConnection] = []

    async def open(self) -> dict[str, Any]:
        """Negotiate the API version and return the engine's /version document."""
        about: dict[str, Any] = await self.get("/version")
        theirs = tuple(int(part) for part in about["ApiVersion"].split("."))
        self._prefix = "/v" + ".".join(map(str, min(theirs, VERSION_MAX)))
        return about

    def close(self) -> None:
        while self._idle:
            self._idle.pop().writer.close()

    async def get(self, path: str, **query: Any) -> Any:
        return await self.request("GET", path, query=query)

    async def post(self, path: str, body: Any = None, headers: Headers | None = None, **query: Any) -> Any:
        return await self.request("POST", path, body, headers, query)

    async def delete(self, path: str, **query: Any) -> Any:
        return await self.request("DELETE", path, query=query)

    async def request(
        self, method: str, path: str, body: Any = None, headers: Headers | None = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Send a request and return the parsed response, or None if it is empty. Raises EngineError or EngineGone."""
        request = self._encode(method, path, body, headers, query)
        while True:
            reused = bool(self._idle)
            connection = self._idle.pop() if reused else await self._connect()
            try:
                connection.writer.write(request)
                head = await _head(connection.reader)
                break
            except (OSError, asyncio.IncompleteReadError) as error:
                connection.writer.close()
                if not reused:
                    raise EngineGone(f"the Docker engine at {self.host} closed the connection") from error
                # The engine closed the idle connection, so try another one. The engine may have executed the request before it
                # closed the connection. Executing a request twice is safe: see docker_engine.py.
            except BaseException:
                connection.writer.close()
                raise
        try:
            response = b"".join([part async for part in _body(connection.reader, head)])
        except BaseException as error:
            connection.writer.close()
            if isinstance(error, OSError | asyncio.IncompleteReadError):
                raise EngineGone(f"the Docker engine at {self.host} closed the connection") from error
            raise
        if head.keeps_open and len(self._idle) < IDLE_CONNECTIONS_MAX:
            self._idle.append(connection)
        else:
            connection.writer.close()
        if head.status >= 400:
            raise EngineError(head.status, _message(response))
        return msgspec.json.decode(response) if response.strip() else None

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, path: str, /, headers: Headers | None = None, body: Any = None, **query: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and yield the response in parts as they arrive.

        Raises EngineError if the engine refuses the request, and EngineGone if the connection breaks before the end.
        """
        connection = await self._connect()
        try:
            connection.writer.write(self._encode(method, path, body, headers, query))
            try:
                head = await _head(connection.reader)
                if head.status >= 400:
                    raise EngineError(head.status, _message(b"".join([part async for part in _body(connection.reader, head)])))
            except (OSError, asyncio.IncompleteReadError) as error:
                raise EngineGone(f"the Docker engine at {self.host} closed the connection") from error
            yield self._parts(connection.reader, head)
        finally:
            connection.writer.close()

    async def _parts(self, reader: asyncio.StreamReader, head: ResponseHead) -> AsyncIterator[bytes]:
        try:
            async for part in _body(reader, head):
                yield part
        except (OSError, asyncio.IncompleteReadError) as error:
            raise EngineGone(f"the Docker engine at {self.host} closed the connection") from error

    def _encode(self, method: str, path: str, body: Any, headers: Headers | None, query: Mapping[str, Any] | None) -> bytes:
        given = {name: _query_value(value) for name, value in (query or {}).items() if value is not None}
        target = f"{self._prefix}{quote(path)}" + (f"?{urlencode(given)}" if given else "")
        data = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
        lines = [f"{method} {target} HTTP/1.1", "Host: docker", f"Content-Length: {len(data)}", f"Content-Type: {kind}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + data

    async def _connect(self) -> EngineConnection:
        where = urlsplit(self.host)
        try:
            if where.scheme == "unix":
                opening = asyncio.open_unix_connection(where.path, limit=HEAD_MAX_BYTES)
            elif where.scheme in ("tcp", "http", "https"):
                tls = self._tls or (ssl.create_default_context() if where.scheme == "https" else None)
                opening = asyncio.open_connection(where.hostname, where.port or 2375, ssl=tls, limit=HEAD_MAX_BYTES)
            else:
                raise EngineGone(f"DOCKER_HOST={self.host} is not supported: use unix:///path or tcp://host:port")
            return EngineConnection(*await asyncio.wait_for(opening, CONNECT_MAX_S))
        except (OSError, TimeoutError) as error:
            raise EngineGone(f"no Docker engine answers at {self.host}: {error}") from error


async def _head(reader: asyncio.StreamReader) -> ResponseHead:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    status = int(lines[0].split(" ")[1])
    closes = headers.get("connection", "").lower() == "close"
    if status in (204, 304):
        return ResponseHead(status, 0, not closes)
    if "content-length" in headers:
        return ResponseHead(status, int(headers["content-length"]), not closes)
    return ResponseHead(status, None if headers.get("transfer-encoding") == "chunked" else -1, not closes)


async def _body(reader: asyncio.StreamReader, head: ResponseHead) -> AsyncIterator[bytes]:
    if head.length is None:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            left = size
            while left:
                part = await reader.read(min(left, READ_BYTES))
                if not part:
                    raise asyncio.IncompleteReadError(b"", left)
                left -= len(part)
                yield part
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
    elif head.length < 0:
        while part := await reader.read(READ_BYTES):
            yield part
    elif head.length:
        yield await reader.readexactly(head.length)


def _query_value(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return str(value)


def _message(response: bytes) -> str:
    try:
        return str(msgspec.json.decode(response)["message"]).strip()
    except (ValueError, KeyError, TypeError):
        return response.decode(errors="replace").strip()


def _tls(environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """Configure TLS as the docker command does: by DOCKER_TLS_VERIFY, and with the certificates in DOCKER_CERT_PATH."""
    if not environment.get("DOCKER_TLS_VERIFY"):
        return None
    folder = Path(environment.get("DOCKER_CERT_PATH") or os.path.expanduser("~/.docker"))
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
