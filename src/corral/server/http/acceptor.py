"""Accepts connections and names their peers, before anything is read from them.

The kernel keeps connections in a queue until the server accepts them. If this queue is full, the kernel ignores new clients, which
try again only after a second. uvloop accepts one connection in each turn of the event loop, so a client that opens many connections
could fill the queue. Therefore Corral accepts up to SERVED_MAX connections in each turn, as long as ACCEPT_S allows, and does not
serve those that their clients have closed already. If many connections wait nevertheless, this is a flood. Then those of peers that
open too many per second (`ConnectionLimits.admits`) are closed at once, which takes less time than to serve them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from corral.server.http.connection_limits import ConnectionLimits

BACKLOG = 65_535  # the length of the queue; the kernel reduces it to net.core.somaxconn
FLOOD_SHARE = 2  # it is a flood if more than half of the queue is in use
SERVED_MAX = 32  # connections that Corral begins to serve in a turn without a flood: about 3 ms, in which requests wait
ACCEPT_S = 0.002  # the time for connections in a turn of the event loop
FLOOD_ACCEPT_S = 0.005  # this time during a flood
RETRY_S = 0.1  # the pause after an error, for example if the machine has no memory for a socket
_QUEUE = struct.Struct("=24xII")  # of struct tcp_info: the connections in the queue, and its length

log = logging.getLogger("corral")


class Acceptor:
    """Accepts the connections to one address."""

    def __init__(
        self,
        listener: socket.socket,
        limits: ConnectionLimits,
        name: Callable[[Any, Any], str],
        make: Callable[[str, str], asyncio.Protocol],
        run: Callable[[Coroutine[Any, Any, None]], None],
        backlog: int = BACKLOG,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`name` returns the name of a peer, given the addresses of both ends. `make` returns the protocol for a peer of this name
        that has connected to an address. `run` runs a coroutine as a task.
        """
        self._listener = listener
        self._limits = limits
        self._name = name
        self._make = make
        self._run = run
        self._timer = timer
        self._loop = asyncio.get_running_loop()
        listener.listen(backlog)
        self._flood = self._queue()[1] // FLOOD_SHARE
        self._loop.add_reader(listener, self.accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def accept(self) -> None:
        """Accept connections that wait. The event loop calls this in each of its turns in which connections wait."""
        is_flood = self._queue()[0] > self._flood
        end_s = self._timer() + (FLOOD_ACCEPT_S if is_flood else ACCEPT_S)
        served = 0
        while is_flood or served < SERVED_MAX:
            if self._timer() >= end_s:
                return
            try:
                connection, there = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # the client has disconnected
                continue
            except OSError as error:
                log.error("Corral cannot accept connections: %s", error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(RETRY_S, self._resume)
                return
            if _is_closed(connection):
                connection.close()
                continue
            here = connection.getsockname()
            name = self._name(there, here)
            if self._limits.admits(name, is_flood=is_flood):
                connection.setblocking(False)
                self._run(self._serve(connection, name, here[0]))
                served += 1
            else:
                connection.close()

    async def _serve(self, connection: socket.socket, name: str, here: str) -> None:
        try:
            await self._loop.connect_accepted_socket(partial(self._make, name, here), connection)
        except OSError:  # the client has disconnected
            connection.close()

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self.accept)

    def _queue(self) -> tuple[int, int]:
        """Return the number of connections in the queue, and its length."""
        waiting, length = _QUEUE.unpack_from(self._listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _QUEUE.size))
        return waiting, length


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the client has closed a connection on which it has sent nothing."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
