"""Ports for the servers of tests."""

from __future__ import annotations

import socket

HELD: list[socket.socket] = []


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port on which servers of this process's tests can listen, one after the other.

    A socket that does not listen holds the port. So no other process that asks for any free port gets it, also while the server is
    down.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, 0))
    HELD.append(held)
    return int(held.getsockname()[1])
