"""The byte relay between a plain connection and one with TLS, with which gateways and the door pass HTTP on."""

from __future__ import annotations

import asyncio
import ctypes
import datetime
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from corral.process.relay import BUFFER_BYTES, Relays, TlsEnd

DEADLINE_S = 30
LARGE = b"0123456789abcdef" * (1024 * 1024)  # more than all buffers on the way


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("server")]), critical=False)
    no_password = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM) + private)
    return path


class Relayed:
    """A client and a server with two relays between them: client, gateway, TLS, door, server."""

    def __init__(self, relays: Relays, *, has_gateway: bool = True) -> None:
        self.relays = relays
        self.has_gateway = has_gateway  # False: the test itself uses the connection with TLS
        self.client, self.gateway_client = tcp_pair()
        self.wire, self.door_wire = tcp_pair()
        self.server, self.door_server = socket.socketpair()
        for each in (self.client, self.server):
            each.setblocking(False)

    async def open(self, certificate: Path) -> None:
        there, here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        there.load_cert_chain(certificate)
        here.load_verify_locations(certificate)
        door, gateway = TlsEnd(self.door_wire, there, server_side=True), TlsEnd(self.wire, here, name="server")
        await asyncio.gather(self.relays.handshake(door), self.relays.handshake(gateway))
        self.relays.add(self.door_server, door)
        self.gateway = gateway
        if self.has_gateway:
            self.relays.add(self.gateway_client, gateway)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


def relayed(certificate: Path, body: Callable[[Relayed, Any], Awaitable[None]], *, has_gateway: bool = True) -> None:
    async def run() -> None:
        relays = Relays()
        path = Relayed(relays, has_gateway=has_gateway)
        await path.open(certificate)
        async with asyncio.timeout(DEADLINE_S):
            await body(path, asyncio.get_running_loop())
            while relays.open:
                await asyncio.sleep(0.005)

    asyncio.run(run())


async def read_all(loop: Any, connection: socket.socket) -> bytes:
    found = bytearray()
    while data := await loop.sock_recv(connection, BUFFER_BYTES):
        found += data
    return bytes(found)


def test_large_bodies_in_both_directions_at_once_and_ends_of_input(certificate: Path) -> None:
    async def body(path: Relayed, loop: Any) -> None:
        async def send_all(connection: socket.socket, data: bytes) -> None:
            await loop.sock_sendall(connection, data)
            connection.shutdown(socket.SHUT_WR)

        reversed_ = LARGE[::-1]
        sent = asyncio.gather(send_all(path.client, LARGE), send_all(path.server, reversed_))
        at_server, at_client = await asyncio.gather(read_all(loop, path.server), read_all(loop, path.client))
        await sent
        assert at_server == LARGE
        assert at_client == reversed_

    relayed(certificate, body)


def test_a_response_follows_the_end_of_the_request(certificate: Path) -> None:
    async def body(path: Relayed, loop: Any) -> None:
        await loop.sock_sendall(path.client, b"request")
        path.client.shutdown(socket.SHUT_WR)
        assert await read_all(loop, path.server) == b"request"
        reading = asyncio.ensure_future(read_all(loop, path.client))
        await loop.sock_sendall(path.server, LARGE)
        path.server.close()
        assert await reading == LARGE

    relayed(certificate, body)


def test_data_and_the_end_of_input_that_arrive_together(certificate: Path) -> None:
    async def body(path: Relayed, loop: Any) -> None:
        for data in (b"one", b"two"):
            path.gateway.write(memoryview(data))
            assert await loop.sock_recv(path.server, 100) == data
        path.gateway.write(memoryview(b"three"))
        path.gateway.end()  # the door has read nothing of both yet
        assert await read_all(loop, path.server) == b"three"
        await loop.sock_sendall(path.server, b"response")
        path.server.close()

    relayed(certificate, body, has_gateway=False)


def test_a_client_that_reads_nothing_stops_the_server_and_then_gets_everything(certificate: Path) -> None:
    async def body(path: Relayed, loop: Any) -> None:
        sending = asyncio.ensure_future(loop.sock_sendall(path.server, LARGE * 4))
        done, _ = await asyncio.wait([sending], timeout=0.3)
        assert not done
        assert await loop.sock_recv(path.client, 16) == LARGE[:16]
        await asyncio.gather(sending, _read_exactly(loop, path.client, len(LARGE) * 4 - 16))
        path.client.close()
        assert await read_all(loop, path.server) == b""
        path.server.close()

    relayed(certificate, body)


def test_a_connection_that_breaks_is_no_end_of_the_response(certificate: Path) -> None:
    async def body(path: Relayed, loop: Any) -> None:
        await loop.sock_sendall(path.server, b"half of a resp")
        assert await loop.sock_recv(path.client, 100) == b"half of a resp"
        path.door_wire.shutdown(socket.SHUT_RDWR)  # without an end of TLS, as when the machine of the door stops
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(path.client, 100)

    relayed(certificate, body)


async def _read_exactly(loop: Any, connection: socket.socket, count: int) -> None:
    while count:
        data = await loop.sock_recv(connection, min(count, BUFFER_BYTES))
        assert data
        count -= len(data)


class PythonTls(ctypes.Structure):
    """The first members of the C structure of `_ssl._SSLSocket`. Python has no function that requests new keys."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("references", "type", "socket", "ssl")]


def key_requests(tls: ssl.SSLObject, count: int) -> None:
    """Write messages of TLS that request new keys: 27 bytes without data, for which the other end derives keys twice."""
    library = ctypes.CDLL("libssl.so.3")
    own = ctypes.c_void_p(PythonTls.from_address(id(tls._sslobj)).ssl)  # type: ignore[attr-defined]
    for _ in range(count):
        assert library.SSL_key_update(own, 1) == 1
        library.SSL_do_handshake(own)


def test_messages_of_tls_without_data_end_the_connection(certificate: Path) -> None:
    there, here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    there.load_cert_chain(certificate)
    here.load_verify_locations(certificate)
    wire, door_wire = socket.socketpair()
    arrived, out, buffer = ssl.MemoryBIO(), ssl.MemoryBIO(), memoryview(bytearray(BUFFER_BYTES))
    client, door = here.wrap_bio(arrived, out, server_hostname="server"), TlsEnd(door_wire, there, server_side=True)
    wire.setblocking(False)
    is_complete = False
    while not is_complete:
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        wire.sendall(out.read())
        is_complete = door.handshake(buffer)
        arrived.write(wire.recv(65_536))
    with wire, door_wire:
        for _ in range(100):  # each with data: the overhead is ordinary
            client.write(b"a")
            wire.sendall(out.read())
            assert door.read(buffer) == 1
        key_requests(client, 3000)
        flood = memoryview(out.read())
        with pytest.raises(ConnectionAbortedError, match="without data"):
            while flood:
                flood = flood[wire.send(flood[:8192]) :]
                assert door.read(buffer) is None
        assert flood
