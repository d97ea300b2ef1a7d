"""The gateway of a joined host: tasks reach the server through it, at the same addresses as on the machine of the server.

Start it with python -m corral.node.gateway --data DIR --port PORT. The agent starts it (`gateway_keeper.py`). It is a process of
its own, so that it serves tasks while no agent is alive, and so that downloads never delay orders.

The gateway listens on 127.0.0.1, and for containers on 169.254.170.2. Each connection of a client gets a TLS connection to the door
of the server, and the bytes of both are relayed unchanged. The gateway connects to the door when the first bytes of the client have
arrived, because a handshake costs the server more than a connection costs the client. If the door does not respond, for example
because it is being restarted, the gateway tries again and the client waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvloop
from msgspec import Struct

from corral.core.errors import Refused
from corral.node import node_folder
from corral.node.gateway_ports import ANSWERS, END, GatewayName, account_of, bind_name, open_sockets
from corral.node.kept_sockets import send_sockets
from corral.node.server_access import CERTIFICATE, GATEWAY, SERVER_NAME, host_context, keep_alive, read_record, split_address
from corral.process.control_characters import escape_controls
from corral.process.log import log_to_stderr
from corral.process.log_times import add_times_to_output
from corral.process.options import parse_options
from corral.process.peer_names import PeerNames
from corral.process.relay import Relay, Relays, TlsEnd, set_done

CONNECTIONS_MAX = 4000  # as many as the server has
FIRST_BYTES_S = 75.0  # a client that sends nothing for this long is disconnected, as by the server
DOOR_S = 45.0  # how long a client waits for a door that does not respond; botocore waits 60 s for a response
DOOR_RETRY_FIRST_S, DOOR_RETRY_MAX_S = 0.05, 1.0
CONNECT_S = 3.0  # TCP repeats a lost SYN after 1 and 3 seconds; a new attempt is sooner
HANDSHAKE_S = 10.0
LOST_S = 10.0  # if the door acknowledges no sent bytes for this time, the connection ends, as that of the agent
HANDSHAKES_AT_ONCE = 16
CHECK_S = 1.0
ALONE_S = 120.0  # without an agent and a spawner, the gateway ends after this time

log = logging.getLogger("corral.node.gateway")


class GatewayOptions(Struct, frozen=True, kw_only=True, rename="kebab"):
    data: str
    port: int
    sockets: str = ""  # descriptors of the listening sockets of an earlier gateway, separated by commas
    containers: bool = False  # also listen at the address for containers


class Gateway:
    def __init__(self, folder: Path, agents: socket.socket, listeners: list[socket.socket]) -> None:
        """`folder` is the folder of the joined host. `agents` is the socket of the agents that share this gateway."""
        self._folder = folder
        self._agents = agents
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()
        self._relays = Relays()
        self._tasks: set[asyncio.Task[None]] = set()
        self._names = PeerNames()
        self._clients: dict[str, dict[socket.socket, Relay | None]] = {}  # by peer, the oldest first; None: it has no relay yet
        self._count = 0
        self._handshakes = Turns(HANDSHAKES_AT_ONCE)
        self._sharing: set[socket.socket] = set()  # the connections of agents
        self._is_unwanted = asyncio.Event()
        self._tls: tuple[int, ssl.SSLContext] | None = None  # modification time of the certificate, and the context

    async def run(self) -> None:
        """Serve until no agent and no spawner is left, the data folder is deleted, or the server listens on the port itself."""
        self._spawn(self._accept_agents())
        for listener in self._listeners:
            self._spawn(self._accept_clients(listener))
        alone_since, node = time.monotonic(), node_folder.HeldPath(self._folder / "node")
        while not node.is_gone():
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._is_unwanted.wait()
                return
            self._close_lost()
            if self._sharing or not _is_free(self._folder / "node" / "spawner.lock"):
                alone_since = time.monotonic()
            elif time.monotonic() > alone_since + ALONE_S:
                return

    def _spawn(self, coroutine: object) -> None:
        task: asyncio.Task[None] = self._loop.create_task(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- agents ----------------------------------------------------------------------------------------------------

    async def _accept_agents(self) -> None:
        while True:
            await _readable(self._loop, self._agents)
            with suppress(OSError):
                connection, _ = self._agents.accept()
                self._spawn(self._share(connection))

    async def _share(self, connection: socket.socket) -> None:
        """Give the listening sockets to an agent of this account, which keeps them. Then wait for its end, or its END."""
        connection.setblocking(False)
        with connection:
            is_ours = account_of(connection) == os.geteuid()
            with suppress(OSError):
                send_sockets(
                    connection.fileno(), ANSWERS[len(self._listeners) > 1], [each.fileno() for each in self._listeners] * is_ours
                )
                if is_ours:
                    self._sharing.add(connection)
                await _readable(self._loop, connection)
                if is_ours and connection.recv(len(END)) == END:
                    self._is_unwanted.set()
            self._sharing.discard(connection)

    # -- clients ---------------------------------------------------------------------------------------------------

    async def _accept_clients(self, listener: socket.socket) -> None:
        while True:
            await _readable(self._loop, listener)
            try:
                client, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:  # too many open files, or the client has gone
                log.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(CHECK_S)
                continue
            client.setblocking(False)
            self._spawn(self._serve(client, self._names.name(client.getpeername(), client.getsockname())))

    async def _serve(self, client: socket.socket, peer: str) -> None:
        of_peer = self._clients.setdefault(peer, {})
        of_peer[client] = None
        self._count += 1
        if self._count > CONNECTIONS_MAX:
            self._close_idlest()
        try:
            async with asyncio.timeout(FIRST_BYTES_S):
                await _readable(self._loop, client)
            if not client.recv(1, socket.MSG_PEEK):
                raise ConnectionAbortedError("the client has sent nothing")
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            door, ended = await self._connect(peer), self._loop.create_future()
            of_peer[client] = self._relays.add(client, door, lambda: ended.set_result(None))
            await ended
        except OSError:  # also TimeoutError and SSLError
            pass
        finally:
            client.close()
            self._count -= 1
            del of_peer[client]
            if not of_peer:
                self._clients.pop(peer, None)

    def _close_lost(self) -> None:
        """Close connections whose machine at the other end is lost, so that their clients try again soon."""
        for relay in tuple(self._relays.open):
            if not relay.is_closed and relay.has_lost_peer(LOST_S):
                relay.close()

    def _close_idlest(self) -> None:
        """Close a connection of the peer that has the most: one without a relay, or else the one that is idle for the longest."""
        most = max(self._clients.values(), key=len)
        client, relay = min(most.items(), key=lambda each: 0.0 if each[1] is None else each[1].used_at)
        if relay is not None:
            relay.close()
        else:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    async def _connect(self, peer: str) -> TlsEnd:
        """Connect to the door for a client. If the door does not respond, try again for DOOR_S."""
        give_up_at, wait_s = time.monotonic() + DOOR_S, DOOR_RETRY_FIRST_S
        while True:
            try:
                async with self._handshakes.turn(peer):
                    return await self._try()
            except ssl.SSLError:
                raise  # the door does not accept this host
            except OSError:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, DOOR_RETRY_MAX_S)

    async def _try(self) -> TlsEnd:
        record = read_record(self._folder)
        if record is None:
            raise ConnectionRefusedError("the host has left the server")
        address = split_address(record.door)
        plain = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            keep_alive(plain, 0)
            async with asyncio.timeout(CONNECT_S):
                await self._loop.sock_connect(plain, address)
            door = TlsEnd(plain, self._context(), name=SERVER_NAME)
            async with asyncio.timeout(HANDSHAKE_S):
                await self._relays.handshake(door)
        except BaseException:
            plain.close()
            raise
        return door

    def _context(self) -> ssl.SSLContext:
        """The context for connections to the door. It is made anew when the certificate was renewed."""
        changed = os.stat(self._folder / CERTIFICATE).st_mtime_ns
        if self._tls is None or self._tls[0] != changed:
            self._tls = changed, host_context(self._folder, GATEWAY)
        return self._tls[1]


class Turns:
    """Limits how many handshakes run at the same time. If more are wanted, the peers take turns.

    So a client that opens many connections at once delays only its own.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by peer, in the order of their turns

    @asynccontextmanager
    async def turn(self, peer: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(peer)
        try:
            yield
        finally:
            self._next()

    async def _wait(self, peer: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(peer, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._next()  # it was this turn's moment already
            raise

    def _next(self) -> None:
        while self._waiting:
            peer = next(iter(self._waiting))
            queue = self._waiting.pop(peer)
            turn = queue.popleft()
            if queue:
                self._waiting[peer] = queue  # at the end: the other peers come first
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


async def _readable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    arrived: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, set_done, arrived)
    try:
        await arrived
    finally:
        loop.remove_reader(connection)


def _is_free(lock: Path) -> bool:
    held = node_folder.try_lock(lock) if lock.exists() else None
    if held is not None:
        os.close(held)
    return held is not None or not lock.exists()


def main() -> int:
    options = parse_options(sys.argv[1:], GatewayOptions)
    log_to_stderr("%(message)s")
    add_times_to_output()
    folder = Path(options.data).resolve()
    given = [socket.socket(fileno=int(each)) for each in options.sockets.split(",") if each]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        agents = bind_name(GatewayName.of(folder, options.port))
        if agents is None:
            return 0  # another gateway of this account and this server has started at the same time
        listeners = open_sockets(options.port, given, containers=options.containers)
    except Refused as why:
        print(escape_controls(f"corral gateway: {why}"), file=sys.stderr)
        return 1

    async def run() -> None:
        await Gateway(folder, agents, listeners).run()

    uvloop.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
