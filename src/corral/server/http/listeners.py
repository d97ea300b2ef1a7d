"""The sockets on which the server accepts HTTP connections."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from corral.configuration.settings import CONSOLE_PORT
from corral.core.errors import Refused
from corral.model.container_network import GATEWAY as CONTAINERS_GATEWAY
from corral.process.listener import listen
from corral.server.http.outside import PLAIN_ONLY, is_loopback

ADVICE = "Choose another port with --port."
TLS_PORT_ADVICE = "Choose another port with --tls-port; ports below 1024 need root."
CONSOLE_PORT_ADVICE = "Choose another port with --console-port."
ALL_ADDRESSES = "0.0.0.0"


def chosen_host(host: str, *, tls: bool, plain_http: bool) -> str:
    """Return the address to listen on. Raise Refused if other machines could reach it without TLS and without --plain-http."""
    if not host:
        return ALL_ADDRESSES if tls else "127.0.0.1"
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise Refused(f"--host {host} is not an address of this machine: {error.strerror}.") from None
    if found <= PLAIN_ONLY and tls:
        raise Refused(
            f"--tls is for other machines, which do not reach --host {host}. Add --host {ALL_ADDRESSES}, or use --no-tls."
        )
    if not all(map(is_loopback, found)) and not (tls or plain_http):
        raise Refused(
            f"other machines could reach --host {host} without encryption. Add --tls, or accept that others can read all "
            "requests, with --plain-http."
        )
    return host


def listeners_on(host: str, port: int, tls_port: int = 0, advice: str = ADVICE) -> list[socket.socket]:
    """Listen on the address `host`. If it is neither loopback nor all addresses, also listen on loopback. Return the sockets.

    Tasks need loopback, because AWS SDKs fetch credentials over plain HTTP only from loopback addresses. `tls_port` is a further
    port on `host`.
    """
    found = [listen(host, port, advice)]
    address, port = found[0].getsockname()[:2]
    if not ip_address(address).is_loopback and not ip_address(address).is_unspecified:
        found.append(listen("127.0.0.1", port, advice))
    if tls_port and tls_port != port:
        found.append(listen(host, tls_port, TLS_PORT_ADVICE))
    return found


def listen_for_console(host: str, port: int, api_port: int) -> list[socket.socket]:
    """Listen on the port of the console.

    If the default port is in use, for example by another Corral, choose a free port. Another port must be free. If the API has a
    free port of its own choice (`api_port` is 0), the console has one, too.
    """
    if port != CONSOLE_PORT:
        return listeners_on(host, port, advice=CONSOLE_PORT_ADVICE)
    try:
        return listeners_on(host, port if api_port else 0)
    except Refused:
        return listeners_on(host, 0)


def listen_for_containers(port: int) -> socket.socket | None:
    """Listen on the address at which containers with a network of their own reach Corral. Return None if this is not possible.

    The machine gets this address only when the agent creates the Docker network of such containers.
    """
    try:
        return listen(CONTAINERS_GATEWAY, port, before_address=True)
    except Refused:
        return None  # another process listens on this port, on this address or on all addresses


def reachable(host: str) -> str:
    """Return the address at which programs on this machine reach the server."""
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def inside_host(host: str, listener: socket.socket) -> str:
    """Return the address at which tasks on this machine reach the server. `listener` is the first one of `listeners_on`."""
    address = listener.getsockname()[0]
    return reachable(host) if is_loopback(address) or ip_address(address).is_unspecified else "127.0.0.1"
