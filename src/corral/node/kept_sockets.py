"""The listening sockets of the gateway, which the spawner keeps.

So the port stays taken while no gateway and no agent is alive, and connections wait for the next gateway. If another process of
this machine took the port in the meantime, it would read the credentials of tasks.

An agent sends datagrams: KEEP with the sockets, or RETURN with a socket to which the spawner sends them.
"""

from __future__ import annotations

import array
import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from corral.node import node_folder

NAME = "kept.sock"
KEEP, RETURN = b"keep", b"return"
SOCKETS_MAX = 4
RETURN_MAX_MS = 2000


class KeptSockets:
    """The spawner's part."""

    def __init__(self, folder: Path, poll: select.epoll) -> None:
        self._inbox = node_folder.receive_datagrams(folder, NAME)
        poll.register(self._inbox, select.EPOLLIN)
        self._kept: list[int] = []

    def fileno(self) -> int:
        return self._inbox.fileno()

    def receive(self) -> None:
        """Handle one datagram."""
        with suppress(BlockingIOError):
            message, received = receive_sockets(self._inbox)
            if message == KEEP:
                self._close(self._kept)
                self._kept = received
                return
            if message == RETURN and received:
                send_sockets(received[0], RETURN, self._kept)
            self._close(received)

    def _close(self, descriptors: Sequence[int]) -> None:
        for each in descriptors:
            os.close(each)


def keep(folder: Path, sockets: Sequence[socket.socket]) -> None:
    """Let the spawner keep these sockets, instead of those that it has. Raises OSError if there is no spawner."""
    with node_folder.connect(folder, NAME, socket.SOCK_DGRAM) as outbox:
        send_sockets(outbox.fileno(), KEEP, [each.fileno() for each in sockets])


def take(folder: Path) -> list[socket.socket]:
    """Return duplicates of the sockets that the spawner keeps. Raises OSError if there is no spawner."""
    with node_folder.connect(folder, NAME, socket.SOCK_DGRAM) as outbox:
        inbox, answer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with inbox:
            with answer:
                send_sockets(outbox.fileno(), RETURN, [answer.fileno()])
            poll = select.poll()
            poll.register(inbox, select.POLLIN)
            if not poll.poll(RETURN_MAX_MS):
                raise TimeoutError("the spawner does not respond")
            return [socket.socket(fileno=each) for each in receive_sockets(inbox)[1]]


def send_sockets(through: int, message: bytes, descriptors: Sequence[int]) -> None:
    with socket.socket(fileno=os.dup(through)) as connection:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        connection.sendmsg([message], ancillary, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive_sockets(connection: socket.socket, most_bytes: int = 512) -> tuple[bytes, list[int]]:
    message, descriptors, _, _ = socket.recv_fds(connection, most_bytes, SOCKETS_MAX, socket.MSG_CMSG_CLOEXEC)
    return message, descriptors
