"""The server's side of the door: its listening socket and its process, and the connections that the process passes on."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from corral.channel.command_relay import frame
from corral.core.errors import Refused
from corral.node import node_folder
from corral.node.host_address import any_address
from corral.node.link import END, Link
from corral.node.server_access import DOOR_PORT
from corral.process.port_holder import port_holder
from corral.server.agents.local_agent import ended
from corral.server.door import LOCK, LOG, SOCKET
from corral.server.door.authority import Authority
from corral.server.door.joining import Joiner
from corral.server.door.preamble import PREAMBLE_MAX_BYTES, Preamble
from corral.server.http.peers import RemoteHost
from corral.server.http.server import HttpServer
from corral.store import Store

ALL_ADDRESSES = "0.0.0.0"
BACKLOG = 4096
RESTART_S = 0.2
OLD_DOOR_S, POLL_S = 5.0, 0.02  # how long the door of an earlier server may take to end, and how often this server looks
FREE_S = 0.2  # a door that ends releases the lock and the port one after the other
REFUSED_S, REFUSED_MAX = 5.0, 8  # how long, and for how many connections of a host at once, the server waits after a refusal
REVOKED = "its certificate was revoked, or is not one of this server: join again with a token of `corral token create`"
EXPIRED = "its certificate has expired, and the host must renew it"
ADDRESS = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+):)?(?P<port>[0-9]{1,5})")

log = logging.getLogger("corral")


class Door:
    def __init__(
        self, data: Path, listener: socket.socket, store: Store, authority: Authority, joiner: Joiner,
        opened: Callable[[Link], object], gateways: HttpServer,
    ) -> None:  # fmt: skip
        """`opened` is called with each link of an agent or a session. `gateways` serves the connections of gateways."""
        self._data = data
        self._folder = data / "door"
        self._listener = listener
        self._hosts = store.joined_hosts
        self._joiner = joiner
        self._opened = opened
        self._gateways = gateways
        self._process: subprocess.Popen[bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused = Counter[str]()  # host → how many of its refused connections have not ended yet
        self.address = shown_address(listener)
        self.pin = authority.pin

    def open(self) -> None:
        """Start the process of the door, and accept what it passes on."""
        server = node_folder.listen(self._folder, SOCKET)
        server.listen(BACKLOG)
        loop = asyncio.get_running_loop()
        self._hosts.close_connections = lambda host_id: loop.call_soon_threadsafe(self._close_host, host_id)
        self._spawn(self._accept(server))
        self._spawn(self._keep())
        log.info("the door for other machines is open at %s", self.address)

    def close(self) -> None:
        """End the process of the door, and so all connections of joined hosts."""
        for task in list(self._tasks):
            task.cancel()
        self._listener.close()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self) -> None:
        while True:
            self._process = self._start(await self._take_lock())
            await ended(self._process)
            log.warning("the door ended with exit code %s; starting another. See %s", self._process.returncode, self._folder / LOG)
            await asyncio.sleep(RESTART_S)

    async def _take_lock(self) -> int:
        """Wait for the end of an earlier door of this data folder."""
        warn_s = time.monotonic() + OLD_DOOR_S
        while (lock := node_folder.try_lock(self._folder / LOCK)) is None:
            if time.monotonic() > warn_s:
                log.warning("another door is open in %s; waiting for its end", self._folder)
                warn_s = math.inf
            await asyncio.sleep(POLL_S)
        return lock

    def _start(self, lock: int) -> subprocess.Popen[bytes]:
        """Start the process, and give it the lock: so it holds the lock from its first moment, as it holds the listener."""
        fd = self._listener.fileno()
        command = [sys.executable, "-P", "-m", "corral.server.door", "--data", str(self._data), "--listener", str(fd)]
        command += ["--lock", str(lock)]
        output = os.open(self._folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=(fd, lock), start_new_session=True
            )
            node_folder.name_holder(lock, process.pid)
            return process
        finally:
            os.close(output)
            os.close(lock)

    def _close_host(self, host_id: str) -> None:
        """Close all connections of a host. The process of the door has them all, but it may not respond."""
        self._gateways.close_host(host_id)
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # the door has just ended, and so have all its connections
                self._process.stdin.write(f"{host_id}\n".encode())
                self._process.stdin.flush()

    # -- connections ---------------------------------------------------------------------------------------------

    async def _accept(self, server: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with server:
            while True:
                connection, _ = await loop.sock_accept(server)
                self._spawn(self._receive(connection))

    async def _receive(self, connection: socket.socket) -> None:
        """Hand a connection over to what serves its kind."""
        try:
            preamble = await _read_preamble(connection)
            if preamble.kind == "join":
                await self._joiner.serve(preamble, connection)
                return
            if refusal := self._refusal(preamble):
                if preamble.kind != "gateway":  # its clients expect HTTP
                    await self._say_refusal(connection, preamble.host, refusal)
                connection.close()
            elif preamble.kind == "gateway":
                await self._gateways.adopt(connection, RemoteHost(preamble.host, preamble.address))
            else:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: Link(self._opened, peer=preamble.host, address=preamble.address), connection
                )
        except (OSError, ValueError):
            connection.close()
        except Exception:
            log.exception("a connection of the door failed")
            connection.close()

    async def _say_refusal(self, connection: socket.socket, host_id: str, refusal: str) -> None:
        """Send the reason, and wait for the end of the connection.

        If the server closed the connection before it has read the hello of the host, the reset could overtake the reason.
        """
        connection.send(frame(END, refusal.encode()))
        if self._refused[host_id] >= REFUSED_MAX:
            return
        self._refused[host_id] += 1
        try:
            async with asyncio.timeout(REFUSED_S):
                while await asyncio.get_running_loop().sock_recv(connection, PREAMBLE_MAX_BYTES):
                    pass
        finally:
            self._refused[host_id] -= 1
            if not self._refused[host_id]:
                del self._refused[host_id]

    def _refusal(self, preamble: Preamble) -> str:
        host = self._hosts.get(preamble.host)
        if host is None or not host.accepts(preamble.serial):
            return REVOKED
        return EXPIRED if preamble.expired else ""


async def _read_preamble(connection: socket.socket) -> Preamble:
    """Read the first line, and no byte after it. The door sends it at once, in one piece."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    line, newline, _ = connection.recv(PREAMBLE_MAX_BYTES, socket.MSG_PEEK).partition(b"\n")
    if not newline:
        raise ConnectionError("the door has sent no preamble")
    connection.recv(len(line) + 1)
    return msgspec.json.decode(line, type=Preamble)


def listen_for_hosts(data: Path, where: str) -> socket.socket:
    """Listen for other machines on [ADDRESS:]PORT. Wait for the end of the door of an earlier server of this data folder."""
    found = ADDRESS.fullmatch(where)
    if found is None or int(found["port"]) > 65_535:
        raise Refused(f"--door {where} is not valid: use [ADDRESS:]PORT, for example {DOOR_PORT} or 10.0.0.5:{DOOR_PORT}.")
    host, port = (found["host"] or ALL_ADDRESSES).strip("[]"), int(found["port"])
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held_s = time.monotonic()
    until_s = held_s + OLD_DOOR_S
    while True:
        if _is_locked(data / "door" / LOCK):
            held_s = time.monotonic()
        try:
            listener.bind((host, port))
            listener.listen(BACKLOG)
            listener.setblocking(False)
            return listener
        except OSError as error:
            if time.monotonic() < min(until_s, held_s + FREE_S):
                time.sleep(POLL_S)
                continue
            listener.close()
            holder = port_holder(port, host)
            why = f"{holder} listens on it" if holder else error.strerror
            raise Refused(f"cannot listen on {host} port {port}: {why}. Choose another port with --door [ADDRESS:]PORT.") from None


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    lock = node_folder.try_lock(path)
    if lock is not None:
        os.close(lock)
    return lock is None


def shown_address(listener: socket.socket) -> str:
    """Return ADDRESS:PORT for `corral join` on other machines."""
    host, port = listener.getsockname()[:2]
    if ip_address(host).is_unspecified:
        ipv6 = _own_ipv6_address() if listener.family == socket.AF_INET6 else ""
        host = ipv6 or any_address() or socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_ipv6_address() -> str:
    """Return the address of this machine on its default route for IPv6. No packet is sent."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("2001:db8::1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return ""
