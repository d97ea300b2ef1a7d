"""How a host that has joined from another machine reaches the server: its record, its certificate, and TLS connections to the door.

joined.json     the record (`Joined`)
authority.pem   the certificate of the server's authority, which the pin in the token has proved
host.key        the private key of this host
host.pem        the certificate of this host, for clients only

Both ends ignore the validity times of certificates in the handshake, because the clocks of machines differ. The door looks at
the time of a host's certificate with its own clock: an expired certificate can only be renewed. The host trusts the authority,
whose pin it has checked.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import socket
import ssl
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.core.errors import Refused
from corral.node.link import Link

SERVER_NAME = "server.corral.internal"  # the name in the certificate of every door
AGENT, SESSION, GATEWAY, JOIN = "corral-agent/1", "corral-session/1", "corral-gateway/1", "corral-join/1"  # by ALPN
RECORD, AUTHORITY, KEY, CERTIFICATE = "joined.json", "authority.pem", "host.key", "host.pem"
DOOR_PORT = 4567  # the default port of the door
CONNECT_S = 3.0  # TCP repeats a lost SYN after 1 and 3 seconds; a new attempt is sooner
HANDSHAKE_S = 10.0
LOST_MS = 10_000  # the connection ends if sent bytes are not acknowledged for this time
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVES = 5, 2, 3  # an idle connection ends 10 s after the other end was lost
NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL; Python has no constant for it


class Joined(Struct, frozen=True):
    """The record of a joined host."""

    door: str  # ADDRESS:PORT of the server's door
    host_id: str
    name: str
    port: int  # of the server's API; the gateway listens on it on this machine
    account: str
    cluster: str = ""  # set by the token; empty: the option of the host counts
    rack: str = ""
    expires_at_s: float = 0.0  # when the certificate expires, by the server's clock
    renew_at_s: float = 0.0


class OtherProtocol(OSError):
    """The server does not serve this protocol."""


def read_record(folder: Path) -> Joined | None:
    """Return the record of a joined host, or None if this folder has not joined a server."""
    path = folder / RECORD
    try:
        return msgspec.json.decode(path.read_bytes(), type=Joined)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Refused(f"{path} is damaged ({error}). Join again in a new folder, with a new token.") from None


def write_private(path: Path, content: bytes) -> None:
    """Replace a file that only its owner can read. The old or the new content is on disk, also after a crash."""
    fresh = path.with_name(f"{path.name}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)


def pin_of(pem: str) -> str:
    """Return the pin of an authority: SHA-256 of its certificate."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def split_address(text: str) -> tuple[str, int]:
    """Split ADDRESS:PORT. An IPv6 address is in brackets. Raise ValueError if it is not valid."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(text)
    return host, int(port)


def context(kind: str, folder: Path | None, authority: str) -> ssl.SSLContext:
    """Return a TLS context for connections of this kind. With `folder`, present the certificate of this host.

    Without `authority`, the certificate of the server is not checked.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.set_alpn_protocols([kind])
    if authority:
        made.load_verify_locations(cadata=authority)
        made.verify_flags |= NO_CHECK_TIME
    else:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if folder is not None:
        made.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    return made


def host_context(folder: Path, kind: str) -> ssl.SSLContext:
    return context(kind, folder, (folder / AUTHORITY).read_text())


def keep_alive(connection: socket.socket, lost_ms: int = LOST_MS) -> None:
    """Let the kernel end a TCP connection soon after the other end was lost. `lost_ms` 0: not if it only reads nothing."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVES)
    if lost_ms:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, lost_ms)


def connect_blocking(folder: Path, door: str, kind: str) -> ssl.SSLSocket:
    """Connect to the door with the certificate of this host, for a thread. Raises OSError."""
    return handshake(split_address(door), host_context(folder, kind), kind)


def handshake(address: tuple[str, int], tls: ssl.SSLContext, kind: str) -> ssl.SSLSocket:
    plain = socket.create_connection(address, timeout=CONNECT_S)
    try:
        keep_alive(plain, LOST_MS if kind == AGENT else 0)
        plain.settimeout(HANDSHAKE_S)
        connection = tls.wrap_socket(plain, server_hostname=SERVER_NAME)
    except BaseException:
        plain.close()
        raise
    if connection.selected_alpn_protocol() != kind:
        connection.close()
        raise OtherProtocol(f"the server at {address[0]} port {address[1]} does not serve {kind}")
    return connection


async def connect(folder: Path, door: str, kind: str) -> Link:
    """Open a link to the server through its door. Raises OSError."""
    address, tls = split_address(door), host_context(folder, kind)
    plain = await _connect_tcp(*address)
    try:
        keep_alive(plain, LOST_MS if kind == AGENT else 0)
        transport, link = await asyncio.get_running_loop().create_connection(
            Link, sock=plain, ssl=tls, server_hostname=SERVER_NAME, ssl_handshake_timeout=HANDSHAKE_S
        )
    except BaseException:
        plain.close()
        raise
    if transport.get_extra_info("ssl_object").selected_alpn_protocol() != kind:
        await link.abort("the server does not serve this protocol")
        raise OtherProtocol(f"the server at {door} does not serve {kind}: install the same version of Corral on both machines")
    return link


async def _connect_tcp(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    failed: OSError = ConnectionError(f"{host} has no address")
    for family, kind, _, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        plain = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.sock_connect(plain, address)
            return plain
        except OSError as error:  # also TimeoutError
            plain.close()
            failed = error if str(error) else TimeoutError(f"{host} port {port} does not respond")
        except BaseException:
            plain.close()
            raise
    raise failed
