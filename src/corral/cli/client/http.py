"""Sends HTTP requests to Corral, and signs them with AWS Signature Version 4.

The command line uses this module instead of botocore, because the import of botocore takes longer than most commands. The module
uses sockets directly, because `http.client` imports the parser of e-mails and TLS, which also takes time. It supports what Corral
needs: HTTP/1.1, with TLS if the URL has the scheme https, and connections that are kept open between requests.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections import deque
from collections.abc import Mapping
from hashlib import sha256
from hmac import digest
from typing import NamedTuple

from corral.cli.printing.errors import CliError

ALGORITHM = "AWS4-HMAC-SHA256"
HEAD_BYTES_MAX = 65_536
READ_BYTES = 65_536
DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(?P<scheme>https?)://(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?/?")


class ConnectionFailed(CliError):
    """The server could not be reached, or it did not respond."""


class SigningKeys(NamedTuple):
    access_key: str
    secret_key: str
    region: str
    session_token: str | None = None


class LeanResponse(NamedTuple):
    status: int
    headers: dict[str, str]  # lower-case names
    body: bytes


def is_supported(url: str) -> bool:
    """Whether this module can send requests to the URL: it has no path and no user."""
    return _URL.fullmatch(url) is not None


class ConnectionPool:
    """Connections to one server. Threads may share a pool. Each request uses an idle connection, or opens a new one."""

    def __init__(self, url: str, *, connect_s: float, read_s: float, bundle: str | None = None) -> None:
        """`bundle` is the file with the certificates that verify a server with TLS. None: those of this machine."""
        match = _URL.fullmatch(url)
        assert match is not None, "call is_supported first"
        self.url = url.rstrip("/")
        # The host is bytes: for a str, Python imports the codec `idna`, which takes 5 ms.
        default = DEFAULT_PORTS[match["scheme"]]
        self._host, self._port = match["host"].strip("[]").encode("ascii"), int(match["port"] or default)
        self.host_header = self.url.partition("//")[2].removesuffix(f":{default}")
        self._is_secure, self._bundle = match["scheme"] == "https", bundle
        self._connect_s, self._read_s = connect_s, read_s
        self._idle: deque[socket.socket] = deque()

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> LeanResponse:
        """Send a request and return the response. `target` is the path and the query. Raise ConnectionFailed without a response."""
        lines = [f"{method} {target} HTTP/1.1", f"host: {self.host_header}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        request = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
        connection = self._connection()
        is_open = False
        try:
            connection.sendall(request)
            response = _ResponseReader(connection).read()
            is_open = response.headers.get("connection", "").lower() != "close" and "content-length" in response.headers
        except TimeoutError:
            raise ConnectionFailed(f"{self.url} did not respond within {self._read_s:g} s.") from None
        except (OSError, EOFError) as error:
            raise ConnectionFailed(f"{self.url} closed the connection before it responded: {error}") from None
        except (ValueError, IndexError):
            raise ConnectionFailed(f"{self.url} sent a response that is not HTTP/1.1: correct AWS_ENDPOINT_URL.") from None
        finally:
            self._idle.append(connection) if is_open else connection.close()
        return response

    def _connection(self) -> socket.socket:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread has taken the last one
                break
            if not select.select([connection], [], [], 0)[0]:
                return connection
            connection.close()  # the server has closed it
        try:
            connection = socket.create_connection((self._host, self._port), self._connect_s)  # type: ignore[arg-type]
        except OSError:
            fix = "start Corral with `corral up --detach`, or correct AWS_ENDPOINT_URL."
            raise ConnectionFailed(f"cannot connect to {self.url}: {fix}") from None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._is_secure:
            from corral.cli.client.tls import secure

            try:
                connection = secure(connection, self._host, self.url, self._bundle)
            except OSError as error:
                raise ConnectionFailed(f"cannot connect to {self.url}: {error}") from None
        connection.settimeout(self._read_s)
        return connection


class _ResponseReader:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def read(self) -> LeanResponse:
        head = self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status = first.split(" ")[:2]
        if not version.startswith("HTTP/1."):
            raise ValueError(first)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = self._chunks()
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        else:
            body = self._rest()
        return LeanResponse(int(status), headers, body)

    def _receive(self) -> bytes:
        part = self._connection.recv(READ_BYTES)
        if not part:
            raise EOFError("the response is incomplete")
        return part

    def _until(self, end: bytes) -> bytes:
        while (at := self._buffer.find(end)) < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise ValueError("the head of the response is too long")
            self._buffer += self._receive()
        found, self._buffer = self._buffer[:at], self._buffer[at + len(end) :]
        return found

    def _exactly(self, length: int) -> bytes:
        parts = [self._buffer]
        missing = length - len(self._buffer)
        while missing > 0:
            parts.append(self._receive())
            missing -= len(parts[-1])
        whole = b"".join(parts)
        self._buffer = whole[length:]
        return whole[:length]

    def _chunks(self) -> bytes:
        parts = []
        while length := int(self._until(b"\r\n").partition(b";")[0], 16):
            parts.append(self._exactly(length))
            self._until(b"\r\n")
        return b"".join(parts)

    def _rest(self) -> bytes:
        parts = [self._buffer]
        while part := self._connection.recv(READ_BYTES):
            parts.append(part)
        return b"".join(parts)


def signed_headers(
    keys: SigningKeys, service: str, host: str, method: str, target: str, headers: Mapping[str, str], body: bytes = b""
) -> dict[str, str]:
    """Return the headers of a request, and the headers of its signature. The names in `headers` must be in lower case."""
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    signed = {**headers, "x-amz-date": at}
    if keys.session_token:
        signed["x-amz-security-token"] = keys.session_token
    covered = {**signed, "host": host}
    names = ";".join(sorted(covered))
    lines = "".join(f"{name}:{' '.join(covered[name].split())}\n" for name in sorted(covered))
    path, _, query = target.partition("?")
    pairs = sorted(pair.partition("=")[::2] for pair in query.split("&")) if query else []
    canonical_query = "&".join(f"{name}={value}" for name, value in pairs)
    canonical = f"{method}\n{path}\n{canonical_query}\n{lines}\n{names}\n{sha256(body).hexdigest()}"
    scope = f"{at[:8]}/{keys.region}/{service}/aws4_request"
    text = f"{ALGORITHM}\n{at}\n{scope}\n{sha256(canonical.encode('latin-1')).hexdigest()}"
    key = f"AWS4{keys.secret_key}".encode()
    for part in (at[:8], keys.region, service, "aws4_request"):
        key = digest(key, part.encode(), "sha256")
    signature = digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**signed, "authorization": f"{ALGORITHM} {credential}"}
