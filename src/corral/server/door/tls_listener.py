"""Accepts the TLS connections of hosts: the handshake, the certificate of the host, and the relay to the server.

A host chooses the kind of a connection by ALPN. Without a certificate, it can only ask to join. Threads do the handshakes and relay
large bodies (`process/relay.py`), so that neither delays orders.

A connection without a certificate is a stranger, also before its handshake has ended (`process/stranger_limit.py`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from corral.channel.command_relay import frame
from corral.core.clock import WallClock
from corral.node import node_folder
from corral.node.link import END
from corral.node.server_access import AGENT, GATEWAY, HANDSHAKE_S, JOIN, NO_CHECK_TIME, SESSION, keep_alive
from corral.process.relay import Relay, Relays, TlsEnd
from corral.process.stranger_limit import StrangerLimit
from corral.server.door import AUTHORITY, SERVER, SOCKET
from corral.server.door.preamble import Preamble

STRANGERS_MAX = 1024
JOIN_S = 30.0  # how long a connection that asks to join may last
ACCEPTS_MAX = 64  # connections that are accepted before other events have their turn
NO_FILES_S = 0.5  # the pause after the process has opened too many files
SERVER_RETRY_S = 0.02  # the pause between two attempts to connect to the server, whose queue is full
SERVER_WAIT_S = 10.0
Kind = Literal["agent", "session", "gateway", "join"]
KINDS: dict[str, Kind] = {AGENT: "agent", SESSION: "session", GATEWAY: "gateway", JOIN: "join"}
OTHER_VERSION = "this server speaks another version of the protocol: install the same version of Corral on both machines"
NO_CERTIFICATE = "this host has presented no certificate: join again with a token of `corral token create`"

log = logging.getLogger("corral.door")


class TlsListener:
    def __init__(self, folder: Path, listener: socket.socket) -> None:
        """`folder` is the folder `door`, with the certificates and the socket of the server."""
        self._folder = folder
        self._listener = listener
        self._tls = _context(folder)
        self._clock = WallClock()
        self._loop = asyncio.get_running_loop()
        self._relays = Relays()
        self._strangers = StrangerLimit(STRANGERS_MAX)  # by address
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_host: dict[str, set[Relay]] = defaultdict(set)
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close_host(self, host_id: str) -> None:
        """Close all connections of a host."""
        for relay in list(self._of_host.get(host_id, ())):
            relay.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                connection, peer = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    log.error("connections wait, because the door has too many open files")
                    self._loop.remove_reader(self._listener)
                    self._loop.call_later(NO_FILES_S, self._loop.add_reader, self._listener, self._accept)
                return
            address = peer[0].removeprefix("::ffff:")
            task = self._loop.create_task(self._serve(connection, address, peer[1]))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, address))
            self._strangers.add(address, task)

    def _ended(self, address: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection from %s failed", address, exc_info=error)

    async def _serve(self, connection: socket.socket, address: str, port: int) -> None:
        """Relay a connection to the server, or refuse it."""
        try:
            keep_alive(connection)
            end = TlsEnd(connection, self._tls, server_side=True)
            async with asyncio.timeout(HANDSHAKE_S):
                await self._relays.handshake(end)
            preamble = self._preamble(end.tls, address, port)
            if isinstance(preamble, str):
                end.write(memoryview(frame(END, preamble.encode())))
                end.end()
                connection.close()
                return
            task = asyncio.current_task()
            if preamble.host and task is not None:
                self._strangers.forget(address, task)
            if preamble.kind != "agent":
                # A client of a gateway, or a terminal, may pause for longer before it reads again. Keep-alives find a lost host.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
            ended = asyncio.Event()
            relay = await self._begin(end, preamble, ended)
        except (OSError, ValueError):  # also if the certificate is not of our authority, or not for clients
            connection.close()
            return
        except BaseException:
            connection.close()
            raise
        if not preamble.host:
            try:
                async with asyncio.timeout(JOIN_S):
                    await ended.wait()
            finally:
                relay.close()

    async def _begin(self, end: TlsEnd, preamble: Preamble, ended: asyncio.Event) -> Relay:
        server = await self._connect()
        try:
            server.send(msgspec.json.encode(preamble) + b"\n")
        except BaseException:
            server.close()
            raise
        made: list[Relay] = []

        def closed() -> None:
            ended.set()
            self._of_host[preamble.host].difference_update(made)
            if not self._of_host[preamble.host]:
                del self._of_host[preamble.host]

        relay = self._relays.add(server, end, closed)  # this calls `closed` at once if the connection has already ended
        if not relay.is_closed:
            made.append(relay)
            self._of_host[preamble.host].add(relay)
        return relay

    async def _connect(self) -> socket.socket:
        async with asyncio.timeout(SERVER_WAIT_S):
            while True:
                try:
                    return node_folder.connect(self._folder, SOCKET)
                except BlockingIOError:  # the queue of the server is full
                    await asyncio.sleep(SERVER_RETRY_S)

    def _preamble(self, tls: ssl.SSLObject, address: str, port: int) -> Preamble | str:
        """Return the preamble, or the reason why the connection is refused."""
        kind = KINDS.get(tls.selected_alpn_protocol() or "")
        if kind is None:
            return OTHER_VERSION
        certificate: dict[str, Any] | None = tls.getpeercert()
        if not certificate:
            return Preamble(kind, "", "", address, port) if kind == "join" else NO_CERTIFICATE
        subject = {name: value for part in certificate["subject"] for name, value in part}
        serial = f"{int(str(certificate['serialNumber']), 16):x}"
        expired = ssl.cert_time_to_seconds(str(certificate["notAfter"])) < self._clock.now_s()
        return Preamble(kind, subject["commonName"], serial, address, port, expired)


def _context(folder: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.load_cert_chain(folder / SERVER)
    made.load_verify_locations(folder / AUTHORITY)
    made.verify_mode = ssl.CERT_OPTIONAL
    made.verify_flags |= NO_CHECK_TIME
    made.num_tickets = 0  # every connection shows its certificate
    made.set_alpn_protocols(list(KINDS))
    return made
