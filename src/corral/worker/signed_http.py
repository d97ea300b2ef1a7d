"""Sends signed requests over HTTP without TLS, as Corral serves it, with a fifth of botocore's CPU time.

It reads only what the worker's frequent requests need: responses with status 200 and a Content-Length. For all other responses it
returns None, and the caller sends the request again with boto3.
"""

from __future__ import annotations

import re
import socket
import time
from collections import deque
from functools import lru_cache
from hashlib import sha256
from hmac import digest
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

CONNECT_MAX_S = 10.0
READ_MAX_S = 60.0
HEAD_MAX_BYTES = 65_536
READ_BYTES = 65_536
ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY_SHA256 = sha256().hexdigest()
_OK = b"HTTP/1.1 200 "
_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?=\r\n|$)", re.IGNORECASE)
# With these headers, the body does not end at the Content-Length, or the server may close the connection. This module does not
# handle such responses.
_UNKNOWN = re.compile(rb"\r\n(transfer-encoding|connection):", re.IGNORECASE)


class CannotConnect(Exception):
    """No connection to the host can be opened."""


class _Stale(Exception):
    """The server has closed the connection before it sent a response."""


class SignedHttp:
    """Sends requests of one service to one host. Threads may share it. Each request uses an idle connection, or opens a new one."""

    def __init__(self, url: str, region: str, service: str, read_max_s: float = READ_MAX_S) -> None:
        """`url` is a URL with the scheme http."""
        parts = urlsplit(url)
        assert parts.scheme == "http" and parts.hostname is not None
        self._address = (parts.hostname, parts.port or 80)
        self._host = parts.netloc.rpartition("@")[2].removesuffix(":80")
        self._region = region
        self._service = service
        self._read_max_s = read_max_s
        self._idle: deque[socket.socket] = deque()

    def get(self, path: str, credentials: Any) -> bytes | None:
        """Return the body of the response, or None if this module cannot read the response. `path` is percent-encoded.

        Raise CannotConnect or OSError if there is no response.
        """
        headers = {"host": self._host, "x-amz-content-sha256": EMPTY_SHA256}
        return self._send(self._signed("GET", path, headers, EMPTY_SHA256, credentials))

    def call(self, target: str, body: bytes, credentials: Any) -> bytes | None:
        """Call an operation with a JSON document. `target` is the header X-Amz-Target. Return and raise the same as `get`.

        The request is sent again if the server has closed an idle connection, so it must be safe to repeat.
        """
        return self._post("/", {"content-type": "application/x-amz-json-1.0", "x-amz-target": target}, body, credentials)

    def post(self, path: str, body: bytes, credentials: Any) -> bytes | None:
        """Send a JSON document to a page of Corral. Return, raise and repeat the same as `call`."""
        return self._post(path, {"content-type": "application/json"}, body, credentials)

    def _post(self, path: str, headers: dict[str, str], body: bytes, credentials: Any) -> bytes | None:
        headers["host"] = self._host
        head = self._signed("POST", path, headers, sha256(body).hexdigest(), credentials, f"content-length: {len(body)}\r\n")
        return self._send(head + body)

    def _signed(
        self, method: str, path: str, headers: dict[str, str], body_sha256: str, credentials: Any, unsigned: str = ""
    ) -> bytes:
        timestamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = SigningScope(self._region, self._service, timestamp)
        return signed_head(method, path, headers, body_sha256, scope, credentials, unsigned)

    def _send(self, request: bytes) -> bytes | None:
        while self._idle:
            try:
                return self._exchange(self._idle.pop(), request)
            except (IndexError, _Stale):  # another thread has taken the last idle connection, or the server has closed it
                continue
        try:
            connection = socket.create_connection(self._address, CONNECT_MAX_S)
        except OSError as error:
            raise CannotConnect(str(error)) from error
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(self._read_max_s)
        try:
            return self._exchange(connection, request)
        except _Stale as error:
            raise ConnectionResetError("the server closed the connection before it responded") from error

    def _exchange(self, connection: socket.socket, request: bytes) -> bytes | None:
        body = None
        try:
            body = _body_of_response(connection, request)
        finally:
            # A connection on which the body was not read completely is closed, because bytes of the response may be left on it.
            self._idle.append(connection) if body is not None else connection.close()
        return body


def can_send(url: str) -> bool:
    """Whether `SignedHttp` can send requests to the endpoint: without TLS, without a path and without a proxy."""
    parts = urlsplit(url)
    return parts.scheme == "http" and bool(parts.hostname) and parts.path in ("", "/") and "http" not in getproxies()


def _body_of_response(connection: socket.socket, request: bytes) -> bytes | None:
    try:
        connection.sendall(request)
        data = connection.recv(READ_BYTES)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise _Stale from error
    if not data:
        raise _Stale
    while (end := data.find(_END)) < 0:
        if len(data) > HEAD_MAX_BYTES:
            return None
        data += _some(connection)
    head = data[:end]
    length = _LENGTH.search(head)
    if not head.startswith(_OK) or length is None or _UNKNOWN.search(head):
        return None
    size, start = int(length[1]), end + len(_END)
    if len(data) - start >= size:
        return data[start:] if len(data) - start == size else None
    parts, left = [data[start:]], size - (len(data) - start)
    while left:
        parts.append(_some(connection, min(left, max(READ_BYTES, left // 4))))
        left -= len(parts[-1])
    return b"".join(parts)


def _some(connection: socket.socket, most: int = READ_BYTES) -> bytes:
    data = connection.recv(most)
    if not data:
        raise ConnectionResetError("the response is incomplete")
    return data


class SigningScope(NamedTuple):
    region: str
    service: str
    timestamp: str


def signed_head(
    method: str, path: str, headers: dict[str, str], body_sha256: str, scope: SigningScope, credentials: Any, unsigned: str = ""
) -> bytes:
    """Return the head of a request with AWS Signature Version 4. `headers` has all headers to sign, in lower case.

    `unsigned` has further lines for the head.
    """
    headers = {**headers, "x-amz-date": scope.timestamp}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    pairs = sorted(headers.items())
    names = ";".join([name for name, _ in pairs])
    lines = "".join([f"{name}:{value}\n" for name, value in pairs])
    canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{body_sha256}"
    date = scope.timestamp[:8]
    text = f"{date}/{scope.region}/{scope.service}/aws4_request"
    to_sign = f"{ALGORITHM}\n{scope.timestamp}\n{text}\n{sha256(canonical.encode()).hexdigest()}"
    key = _signing_key(credentials.secret_key, date, scope.region, scope.service)
    signature = digest(key, to_sign.encode(), "sha256").hex()
    sent = "".join([f"{name}: {value}\r\n" for name, value in pairs])
    authorization = f"{ALGORITHM} Credential={credentials.access_key}/{text}, SignedHeaders={names}, Signature={signature}"
    return f"{method} {path} HTTP/1.1\r\n{sent}{unsigned}authorization: {authorization}\r\n\r\n".encode()


@lru_cache(maxsize=16)
def _signing_key(secret_key: str, date: str, region: str, service: str) -> bytes:
    """Derive the signing key of one day, region and service."""
    key = f"AWS4{secret_key}".encode()
    for part in (date, region, service, "aws4_request"):
        key = digest(key, part.encode(), "sha256")
    return key
