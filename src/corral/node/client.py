"""One connection of the spawner: lines in, lines out, nothing waits and nothing grows without bound."""

from __future__ import annotations

import select
import socket
from typing import Any

import orjson

from corral.node.spawner_protocol import MESSAGE_MAX_BYTES

READ_BYTES = 256 * 1024
UNSENT_MAX_BYTES = 64 * 1024 * 1024  # an agent that does not read is dropped; it is told everything when it returns


class Client:
    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._unread = b""
        self._unsent = b""
        self.polled = select.EPOLLIN
        self.broken = False
        self.dry = False  # the last look found nothing to read

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    @property
    def behind(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> list[Any]:
        """The whole messages that have come."""
        self.dry = False
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            self.dry = True
            return []
        except OSError:
            data = b""
        if not data:
            self.broken = True
            return []
        *lines, self._unread = (self._unread + data).split(b"\n")
        try:
            messages = [orjson.loads(line) for line in lines]
        except ValueError:
            self.broken = True
            return []
        self.broken = len(self._unread) > MESSAGE_MAX_BYTES
        return messages

    def send(self, data: bytes) -> None:
        self._unsent += data
        if self.broken or not self._unsent:
            return
        try:
            sent = self._connection.send(self._unsent)
            self._unsent = self._unsent[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True
        self.broken = self.broken or len(self._unsent) > UNSENT_MAX_BYTES
