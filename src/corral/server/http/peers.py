"""Peers: the clients that Corral limits together as long as they have sent no valid credentials (`process/peer_names.py`).

All clients on a joined host are identified by this host, because the server cannot know their accounts.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple


class RemoteHost(NamedTuple):
    """The joined host of a connection that has come through a gateway (`node/gateway.py`), as its certificate proves it."""

    host_id: str
    address: str

    @property
    def peer_name(self) -> str:
        return f"host {self.host_id} at {self.address}"


class TlsClient(NamedTuple):
    """The client of a connection with TLS, which reaches the server through a Unix socket (`server/tls/`)."""

    peer_name: str
    address: str
    is_for_console: bool = False  # the client has connected to the port of the console


def address_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""
