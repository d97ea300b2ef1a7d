"""The sockets on which the server accepts HTTP connections."""

from __future__ import annotations

import errno
import socket
from ipaddress import ip_address

from corral.core.errors import Refused
from corral.model.container_network import GATEWAY as CONTAINERS_GATEWAY
from corral.process.port_holder import port_holder

IP_FREEBIND = 15  # the value on Linux; Python has no constant for it


def listeners_on(host: str, port: int) -> list[socket.socket]:
    """Listen on the address `host`. If it is neither loopback nor all addresses, also listen on loopback. Return the sockets.

    Tasks need loopback, because AWS SDKs fetch credentials over plain HTTP only from loopback addresses.
    """
    first = _listen(host, port)
    address, port = first.getsockname()[:2]
    if ip_address(address).is_loopback or ip_address(address).is_unspecified:
        return [first]
    return [first, _listen("127.0.0.1", port)]


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        why = error.strerror
        if error.errno == errno.EADDRINUSE and (holder := port_holder(port, host)):
            why = f"{holder} listens on it"
        raise Refused(f"cannot listen on {host} port {port}: {why}. Choose another port with --port.") from None
    listener.setblocking(False)
    return listener


def listen_for_containers(port: int) -> socket.socket | None:
    """Listen on the address at which containers with a network of their own reach Corral. Return None if this is not possible.

    The machine gets this address only when the agent creates the Docker network of such containers. With IP_FREEBIND, the server
    can listen on the address before that.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
    try:
        listener.bind((CONTAINERS_GATEWAY, port))
        listener.listen(1024)
    except OSError:
        listener.close()  # another process listens on this port, on this address or on all addresses
        return None
    listener.setblocking(False)
    return listener


def reachable(host: str) -> str:
    """Return the address at which tasks on this machine reach the server."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
