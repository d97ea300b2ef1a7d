"""Opens a socket that listens for TCP connections."""

from __future__ import annotations

import errno
import socket

from corral.core.errors import Refused
from corral.process.port_holder import port_holder

IP_FREEBIND = 15  # the value on Linux; Python has no constant for it
BACKLOG = 1024


def listen(host: str, port: int, advice: str = "", *, before_address: bool = False) -> socket.socket:
    """Listen on an address. With `before_address`, the machine may get the address later. Raise Refused if this is not possible.

    The error names the process that listens on the port, and ends with `advice`.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if before_address:
        listener.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        why = error.strerror
        if error.errno == errno.EADDRINUSE and (holder := port_holder(port, host)):
            why = f"{holder} listens on it"
        raise Refused(f"cannot listen on {host} port {port}: {why}.{f' {advice}' if advice else ''}") from None
    listener.setblocking(False)
    return listener
