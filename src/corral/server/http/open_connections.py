"""The open connections of the server, and the timer that disconnects clients which do not read their responses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from corral.model.http_dates import http_date

STALLED_S = 600  # a client that reads nothing of its response for this long is disconnected
CLOSING_MAX_S = 20  # the same limit for a connection that the server has closed


class OpenConnections:
    """The connections of the server, the tasks that serve their requests, and the Date header of the current second."""

    def __init__(self, now_s: float) -> None:
        self.connections: set[Any] = set()  # HttpProtocol and WebSocket
        self.tasks: set[asyncio.Task[None]] = set()
        self.ended = asyncio.Event()  # set when a connection or a task has ended
        self.date = ""
        self.set_date(now_s)

    def set_date(self, now_s: float) -> None:
        self.date = f"date: {http_date(int(now_s))}\r\n"

    def run(self, serving: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(serving)
        self.tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.ended.set()

    def closed(self, connection: Any) -> None:
        self.connections.discard(connection)
        self.ended.set()


class StallTimer:
    """Disconnects a client that does not read its response.

    A transport with unsent bytes ends only when the client has read them, even after `close`.
    """

    def __init__(self) -> None:
        self._unsent = 0
        self._seconds = 0

    def tick(self, transport: asyncio.Transport) -> bool:
        """Disconnect the client if it has read nothing for too long. Return whether bytes are unsent. Call this once a second."""
        unsent = transport.get_write_buffer_size()
        self._seconds = self._seconds + 1 if unsent and unsent == self._unsent else 0
        self._unsent = unsent
        if self._seconds >= (CLOSING_MAX_S if transport.is_closing() else STALLED_S):
            transport.abort()
        return unsent > 0
