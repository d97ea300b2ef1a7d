"""The HTTP server: it passes requests to `front_door.py`, and websockets to `exec/data_channel.py`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from corral import aws
from corral.blobs import Blobs
from corral.core.clock import Clock, until_next
from corral.process.peer_names import PeerNames
from corral.server.front_door import FrontDoor
from corral.server.http.acceptor import Acceptor
from corral.server.http.connection import ClientGone, HttpConnection, HttpProtocol
from corral.server.http.connection_limits import ConnectionLimits, Place
from corral.server.http.open_connections import OpenConnections
from corral.server.http.outside import OutsideRules
from corral.server.http.peers import RemoteHost, TlsClient
from corral.server.http.request_body import Receive, end_body
from corral.server.http.response_sender import Sender

if TYPE_CHECKING:
    from corral.server.console.console import Console
    from corral.server.exec.data_channel import DataChannel

SECOND_S = 1.0
GRACE_S = 3.0  # how long requests may take after `exit`
NO_BLOBS = nullcontext()  # for a response whose body is not in blobs

# Returns the response. None: it was sent already.
Respond = Callable[[aws.Request, Receive, HttpConnection], Awaitable[aws.Response | None]]


class HttpServer:
    def __init__(
        self,
        front_door: FrontDoor,
        sessions: Callable[[], DataChannel],
        console: Callable[[], Console],
        blobs: Blobs,
        limits: ConnectionLimits,
        clock: Clock,
    ) -> None:
        """`sessions` returns what serves websockets, and `console` what serves the console. They are called for each request."""
        self._front_door = front_door
        self._sessions = sessions
        self._blobs = blobs
        self._sender = Sender(blobs)
        self._limits = limits
        self._clock = clock
        self._open = OpenConnections(clock.wall_s())
        self._of_hosts: dict[str, WeakSet[socket.socket]] = {}  # host id → the connections through its gateway
        self._exit_requested = asyncio.Event()
        self._console = console
        self.before_exit: list[Callable[[], None]] = []  # they end responses that would not end by themselves
        self.outside: OutsideRules | None = None  # None: TLS is not served, and all connections are plain

    def exit(self) -> None:
        """Make `serve` stop listening. Requests that have already arrived get a response, if they end within GRACE_S."""
        self._exit_requested.set()

    async def serve(self, sockets: Sequence[socket.socket], console_sockets: Sequence[socket.socket]) -> None:
        """Serve until `exit` is called. Once a second, update the Date header and close the connections of slow clients."""
        names = PeerNames()
        for_console = partial(self._accepted, is_for_console=True)
        acceptors = [
            Acceptor(each, self._limits, names.name, accepted, self._open.run)
            for all_, accepted in ((sockets, self._accepted), (console_sockets, for_console))
            for each in all_
        ]
        while not self._exit_requested.is_set():
            self._open.set_date(self._clock.wall_s())
            for connection in tuple(self._open.connections):
                connection.tick()
            self._limits.tick()
            with suppress(TimeoutError):
                async with asyncio.timeout(until_next(self._clock.wall_s(), SECOND_S)):
                    await self._exit_requested.wait()
        for acceptor in acceptors:
            acceptor.close()
        for close in self.before_exit:
            close()
        await self._shut_down()

    async def adopt(self, connection: socket.socket, host: RemoteHost) -> None:
        """Serve a connection through the gateway of a joined host. `connection` is the Unix socket that leads to the host."""

        def make() -> HttpProtocol:
            return self._protocol(host.peer_name, host.address)

        self._of_hosts.setdefault(host.host_id, WeakSet()).add(connection)
        await asyncio.get_running_loop().connect_accepted_socket(make, connection)

    async def adopt_tls(self, connection: socket.socket, client: TlsClient) -> None:
        """Serve a connection with TLS. `connection` is the Unix socket that leads to the process that ends TLS."""

        def make() -> HttpProtocol:
            protocol = self._protocol(client.peer_name, client.address, is_for_console=client.is_for_console)
            protocol.is_secure = True
            return protocol

        await asyncio.get_running_loop().connect_accepted_socket(make, connection)

    def close_host(self, host_id: str) -> None:
        """Close all connections through the gateway of a host at once.

        This also ends threads that send a response to a duplicate of the socket, which `transport.abort` would not do.
        """
        for connection in self._of_hosts.pop(host_id, ()):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accepted(self, peer_name: str, here: str, *, is_for_console: bool = False) -> HttpProtocol:
        """Return the protocol of a connection to the address `here` of this server."""
        protocol = self._protocol(peer_name, is_for_console=is_for_console)
        if self.outside is not None:
            self.outside.apply(protocol, here)
        return protocol

    def _protocol(self, peer_name: str, address: str = "", *, is_for_console: bool = False) -> HttpProtocol:
        protocol = HttpProtocol(self._open, self._limits, self._respond, self._websocket)
        if is_for_console:
            protocol.is_for_console, protocol.serve, protocol.upgrade = True, self._respond_in_console, None
        protocol.peer_name, protocol.address = peer_name, address
        return protocol

    async def _respond(self, connection: HttpConnection) -> None:
        await self._send(self._front_door.respond, connection)

    async def _respond_in_console(self, connection: HttpConnection) -> None:
        await self._send(self._console().respond, connection)

    async def _send(self, respond: Respond, connection: HttpConnection) -> None:
        try:
            response = await respond(connection.request, connection.receive, connection)
            if response is None:
                return
            # No other coroutine has run since the rows of the response body were read, so the files of the response body still
            # exist. `reading` protects these files from deletion, also while `end_body` waits for the client.
            with self._blobs.reading([each.blob for each in response.stream]) if response.stream else NO_BLOBS:
                await end_body(connection, response)
                await self._sender.send(response, connection)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # This task itself was not cancelled: the client disconnected, and `service_calls.py` cancelled the awaited result.

    def _websocket(self, request: aws.Request, place: Place) -> asyncio.Protocol:
        from corral.server.http.websocket import WebSocket  # imported here, because few servers ever open a websocket

        return WebSocket(self._open, place, request, self._sessions().serve)

    async def _shut_down(self) -> None:
        """Close idle connections. Wait until all requests have their responses, but not longer than GRACE_S."""
        for connection in tuple(self._open.connections):
            connection.shut_down()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while self._open.connections or self._open.tasks:
                    self._open.ended.clear()
                    await self._open.ended.wait()
        for task in self._open.tasks:
            task.cancel()
