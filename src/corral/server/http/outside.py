"""Connections from other machines: which may have TLS, and which may be without it.

A connection to loopback is from this machine, or from a tunnel that ends here. A connection to the address of Corral in containers
is from a task. AWS SDKs and Docker use plain HTTP there. Docker would use TLS if it were served on localhost, which would slow down
each pull.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import IPv6Address, ip_address

from msgspec import Struct

from corral import aws
from corral.core.errors import api_error
from corral.model.container_network import GATEWAY as CONTAINERS_GATEWAY
from corral.server.http.connection import HttpConnection, HttpProtocol
from corral.server.http.peers import TlsClient

PLAIN_ONLY = frozenset({"127.0.0.1", "::1", CONTAINERS_GATEWAY, "::ffff:127.0.0.1", f"::ffff:{CONTAINERS_GATEWAY}"})
PlainHttpRefused = api_error("PlainHttpRefused", 403)


class OutsideRules(Struct, frozen=True):
    take: Callable[[socket.socket, bytes, TlsClient], None]
    plain_http: bool  # --plain-http
    url: str  # of this server, with TLS
    console_url: str  # of its console, with TLS

    def apply(self, protocol: HttpProtocol, here: str) -> None:
        """Apply the rules to a new connection to the address `here` of this server."""
        if here not in PLAIN_ONLY:
            protocol.take_tls = self.take_tls
            if not self.plain_http and not is_loopback(here):
                url = self.console_url if protocol.is_for_console else self.url
                protocol.serve, protocol.upgrade = partial(_refuse_plain, url), None

    def take_tls(self, protocol: HttpProtocol, data: bytes) -> None:
        """Hand a connection over to the process that ends TLS. `data` is all that has arrived."""
        transport = protocol.transport
        if not transport.is_closing():
            client = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
            transport.abort()  # this closes only the descriptor of the transport
            self.take(client, data, TlsClient(protocol.peer_name, protocol.address, protocol.is_for_console))


async def _refuse_plain(url: str, connection: HttpConnection) -> None:
    """Refuse a request without TLS. The connection closes, so that the client sends no other request with credentials."""
    error = PlainHttpRefused(f"This server answers other machines with TLS only: use {url}.")
    response = aws.serialize_refusal(connection.request, error, "")
    connection.keep_alive = False
    await connection.respond(response.status, response.headers, response.body)


def is_loopback(address: str) -> bool:
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_loopback
