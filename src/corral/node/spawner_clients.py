"""The connections of agents to the spawner. The messages are described in `spawner_protocol.py`.

One agent is connected. While an agent is replaced, there may be two connections, and the connection of the old agent may still have
unread orders.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from corral.node.procfs import boot_s
from corral.node.spawner_protocol import SPAWNER_MESSAGE_MAX_BYTES, SpawnedRun

CLIENTS_MAX = 8
RUNS_PER_MESSAGE = 1_000
READ_BYTES = 256 * 1024
# An agent that leaves more bytes than this unread is disconnected. When it reconnects, it receives the state of every run.
UNSENT_MAX_BYTES = 64 * 1024 * 1024


class SpawnerClients:
    def __init__(self, poll: select.epoll, runs: Mapping[str, SpawnedRun], execute: Callable[[list[Any]], bytes]) -> None:
        """`execute` is called with the messages that have arrived from one client. It returns the response."""
        self._poll = poll
        self._runs = runs
        self._execute = execute
        self.by_fd: dict[int, SpawnerClient] = {}
        self.changed: dict[str, None] = {}  # ids of runs whose state is sent at the end of this turn of the loop
        self.closed_at_boot_s = 0.0  # when the last connection was closed

    def accept(self, connection: socket.socket) -> bool:
        """Send the state of every run to a new client. Return False if there are too many clients."""
        if len(self.by_fd) >= CLIENTS_MAX:
            connection.close()
            return False
        self._process_unread()
        client = SpawnerClient(connection)
        self.by_fd[connection.fileno()] = client
        self._poll.register(connection, select.EPOLLIN)
        runs = list(self._runs.values())
        for i in range(0, len(runs) + 1, RUNS_PER_MESSAGE):
            part = runs[i : i + RUNS_PER_MESSAGE]
            self._send(client, orjson.dumps({"runs": part, "all": i + RUNS_PER_MESSAGE > len(runs)}) + b"\n")
        return True

    def _process_unread(self) -> None:
        """Process the unread messages of all clients before the state is sent to a new client.

        Otherwise the last orders of a dead agent could start a run after the new agent has reported to the server that this run
        does not exist.
        """
        for client in list(self.by_fd.values()):
            self.receive(client)
            while not client.broken and not client.dry:
                self.receive(client)

    def receive(self, client: SpawnerClient) -> None:
        self._send(client, self._execute(client.receive()))

    def _send(self, client: SpawnerClient, data: bytes) -> None:
        client.send(data)
        if client.broken:
            self._poll.unregister(client.fileno())
            del self.by_fd[client.fileno()]
            client.close()
            self.closed_at_boot_s = boot_s()
        else:
            wants = select.EPOLLIN | (select.EPOLLOUT if client.behind else 0)
            if wants != client.polled:
                self._poll.modify(client.fileno(), wants)
                client.polled = wants

    def send_changes(self) -> None:
        """Send all changes of this turn in one message."""
        if not self.changed:
            return
        changed = [self._runs[run_id] for run_id in self.changed if run_id in self._runs]
        self.changed.clear()
        line = orjson.dumps({"runs": changed, "all": False}) + b"\n"
        for client in list(self.by_fd.values()):
            self._send(client, line)


class SpawnerClient:
    """The spawner's end of the connection to an agent. No method blocks, and the buffers are bounded."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._unread = b""
        self._unsent = b""
        self.polled = select.EPOLLIN
        self.broken = False
        self.dry = False  # the last call of `receive` found nothing to read

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    @property
    def behind(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> list[Any]:
        """Return the complete messages that have arrived, without waiting."""
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
        self.broken = len(self._unread) > SPAWNER_MESSAGE_MAX_BYTES
        return [_decoded(line) for line in lines]

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


def _decoded(line: bytes) -> Any:
    """Decode a line. For a line that is not JSON, return an error text, so that the lines after it are still processed."""
    try:
        return orjson.loads(line)
    except ValueError as error:
        return f"not JSON ({error})"
