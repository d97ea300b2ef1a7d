"""The sockets on which the server accepts HTTP connections."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from corral.core.errors import Refused
from corral.model.container_network import GATEWAY as CONTAINERS_GATEWAY
from corral.process.listener import listen

ADVICE = "Choose another port with --port."


def listeners_on(host: str, port: int) -> list[socket.socket]:
    """Listen on the address `host`. If it is neither loopback nor all addresses, also listen on loopback. Return the sockets.

    Tasks need loopback, because AWS SDKs fetch credentials over plain HTTP only from loopback addresses.
    """
    first = listen(host, port, ADVICE)
    address, port = first.getsockname()[:2]
    if ip_address(address).is_loopback or ip_address(address).is_unspecified:
        return [first]
    return [first, listen("127.0.0.1", port, ADVICE)]


def listen_for_containers(port: int) -> socket.socket | None:
    """Listen on the address at which containers with a network of their own reach Corral. Return None if this is not possible.

    The machine gets this address only when the agent creates the Docker network of such containers.
    """
    try:
        return listen(CONTAINERS_GATEWAY, port, before_address=True)
    except Refused:
        return None  # another process listens on this port, on this address or on all addresses


def reachable(host: str) -> str:
    """Return the address at which tasks on this machine reach the server."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
