"""S3 over TLS: 64 MiB put and got, small requests and new connections, next to plain HTTP and to a floor.

The floor is the same transfer between two processes of Python with the same version of TLS, and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import machine
from client import UNSIGNED, Unanswered, head
from local import Local, corral
from rows import Bench, Row

LARGE_MIB, MIB = 64, 1024 * 1024
PIECE = os.urandom(MIB)
BUCKET = "/bench-tls"
LARGE, SMALL = f"{BUCKET}/large", f"{BUCKET}/small"
TLS_ADDRESS, PLAIN_ADDRESS = "127.0.1.1", "127.0.0.1"
Connect = Callable[[], socket.socket]


def rows(bench: Bench) -> list[Row]:
    large, small, fresh = bench.size(9, 3), bench.size(2_000, 200), bench.size(300, 50)
    with corral(bench, "tls", "none", "--tls", "true", "--tls-names", TLS_ADDRESS) as local:
        plain, secure = _plain(local.port), _secure(local)
        _ask(plain(), head(local.port, "s3", "PUT", BUCKET, {}))
        _ask(plain(), head(local.port, "s3", "PUT", SMALL, {}, PIECE[:1024]) + PIECE[:1024])
        found = {}
        for name, connect in (("plain", plain), ("TLS", secure)):
            puts = [_put(connect(), local.port) for _ in range(large)]
            began_s = _cpu_s(local)
            gets = [_get(connect(), local.port) for _ in range(large)]
            cpu_s = (_cpu_s(local) - began_s) * 1024 / (LARGE_MIB * large)
            found[name] = (LARGE_MIB / median(puts), LARGE_MIB / median(gets), cpu_s)
            found[name] += (_small(connect(), local.port, small), _fresh(connect, fresh))
        with _floor(local.data) as floor:
            floor_mib_s = [LARGE_MIB / median(_through_floor(floor(), kind) for _ in range(large)) for kind in (b"P", b"G")]
    by_tls, by_plain = found["TLS"], found["plain"]
    return [
        *(
            Row(f"S3 {verb} of {LARGE_MIB} MiB over TLS", by_tls[at], "MiB/s", floor_mib_s[at], "TLS alone")
            for at, verb in enumerate(("put", "get"))
        ),
        *(
            Row(f"S3 {verb} of {LARGE_MIB} MiB over TLS", by_tls[at], "MiB/s", by_plain[at], "plain HTTP")
            for at, verb in enumerate(("put", "get"))
        ),
        Row("CPU time of Corral per GiB got over TLS", by_tls[2], "s", by_plain[2], "plain HTTP"),
        Row("S3 get of 1 KiB over TLS, one after the other", by_tls[3], "µs", by_plain[3], "plain HTTP"),
        Row("new connection and request over TLS", by_tls[4], "ms", by_plain[4], "plain HTTP"),
    ]


def _plain(port: int) -> Connect:
    return lambda: _ready(socket.create_connection((PLAIN_ADDRESS, port), 60))


def _secure(local: Local) -> Connect:
    context = ssl.create_default_context(cafile=local.data / "door" / "ca.pem")
    return lambda: context.wrap_socket(_ready(socket.create_connection((TLS_ADDRESS, local.port), 60)), server_hostname=TLS_ADDRESS)


def _ready(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _cpu_s(local: Local) -> float:
    """CPU time of the server and of its process for TLS."""
    return local.cpu_s()["server"] + sum(map(machine.cpu_s, _tls_processes(local.data)))


def _tls_processes(data: Path) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"corral.server.tls" in words and f"{data}/door/https.pem".encode() in words:
            found.append(int(entry))
    return found


def _ask(connection: socket.socket, request: bytes) -> None:
    with connection:
        connection.sendall(request)
        _answer(connection)


def _answer(connection: socket.socket, buffer: bytearray | None = None) -> None:
    """Read a response, and throw its body away."""
    buffer = buffer or bytearray(MIB)
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65_536)
        if not part:
            raise Unanswered("the server hung up")
        received += part
    top, _, body = received.partition(b"\r\n\r\n")
    if not top.startswith(b"HTTP/1.1 200"):
        raise Unanswered(repr(received[:300]))
    left = int(top.lower().partition(b"content-length: ")[2].partition(b"\r")[0]) - len(body)
    while left > 0:
        count = connection.recv_into(buffer)
        if not count:
            raise Unanswered(f"the response was cut {left} bytes before its end")
        left -= count


def _put(connection: socket.socket, port: int) -> float:
    with connection:
        began = time.perf_counter()
        connection.sendall(head(port, "s3", "PUT", LARGE, {}, sha256=UNSIGNED, length=LARGE_MIB * MIB))
        for _ in range(LARGE_MIB):
            connection.sendall(PIECE)
        _answer(connection)
        return time.perf_counter() - began


def _get(connection: socket.socket, port: int) -> float:
    with connection:
        began = time.perf_counter()
        connection.sendall(head(port, "s3", "GET", LARGE, {}))
        _answer(connection)
        return time.perf_counter() - began


def _small(connection: socket.socket, port: int, count: int) -> float:
    """The median time of a request, in microseconds."""
    request, buffer, took = head(port, "s3", "GET", SMALL, {}), bytearray(MIB), []
    with connection:
        for _ in range(count):
            began = time.perf_counter()
            connection.sendall(request)
            _answer(connection, buffer)
            took.append(time.perf_counter() - began)
    return 1e6 * median(took)


def _fresh(connect: Connect, count: int) -> float:
    """The median time of a connection with one request, in milliseconds."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        _ask(connect(), b"GET /_corral/health HTTP/1.1\r\nHost: x\r\n\r\n")
        took.append(time.perf_counter() - began)
    return 1e3 * median(took)


@contextmanager
def _floor(data: Path) -> Iterator[Connect]:
    """A process that takes or sends 64 MiB over TLS, with the certificate of the server. Yields what connects to it."""
    listener = socket.create_server((TLS_ADDRESS, 0))
    process = multiprocessing.get_context("fork").Process(target=_serve_floor, args=(listener, data / "door" / "https.pem"))
    process.start()
    context = ssl.create_default_context(cafile=data / "door" / "ca.pem")
    address = listener.getsockname()
    try:
        yield lambda: context.wrap_socket(_ready(socket.create_connection(address, 60)), server_hostname=TLS_ADDRESS)
    finally:
        process.kill()
        process.join()
        listener.close()


def _serve_floor(listener: socket.socket, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    buffer = bytearray(256 * 1024)
    while True:
        plain, _ = listener.accept()
        with context.wrap_socket(_ready(plain), server_side=True) as connection:
            left = LARGE_MIB * MIB
            if connection.recv(1) == b"G":
                while left:
                    connection.sendall(PIECE)
                    left -= MIB
            else:
                while left:
                    left -= connection.recv_into(buffer, min(left, len(buffer)))
                connection.sendall(b"!")


def _through_floor(connection: socket.socket, kind: bytes) -> float:
    with connection:
        began, left, buffer = time.perf_counter(), LARGE_MIB * MIB, bytearray(MIB)
        connection.sendall(kind)
        if kind == b"P":
            for _ in range(LARGE_MIB):
                connection.sendall(PIECE)
            connection.recv(1)
        else:
            while left:
                count = connection.recv_into(buffer)
                if not count:
                    raise Unanswered("the floor hung up")
                left -= count
        return time.perf_counter() - began
