"""The agent's part of the gateway of a joined host: it starts a gateway or shares one, and starts another one when it has ended.

The agent and the spawner also hold the listening sockets of the gateway, so that no other process can take the port before the
next gateway runs. If the server is on this machine, it listens on the port itself, and there is no gateway.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from corral.core.errors import Refused
from corral.model.agent_protocol import ServerPlace
from corral.model.container_network import GATEWAY as CONTAINERS_GATEWAY
from corral.node import kept_sockets
from corral.node.gateway_ports import END, GatewayName, SharedGateway, find_gateway, read_server_is_here, store_server_is_here
from corral.node.host import machine_id
from corral.process.log_times import without_time

START_MAX_S = 15.0
START_POLL_S = 0.02
RESTART_MIN_S, RESTART_MAX_S = 0.05, 5.0
LOG_TAIL_BYTES = 4096

log = logging.getLogger("corral.node")


class GatewayKeeper:
    def __init__(self, folder: Path, *, containers: bool) -> None:
        """`folder` is the folder of the joined host. `containers`: whether the gateway also listens for containers."""
        self._folder = folder
        self._log = folder / "node" / "gateway.log"
        self._containers = containers
        self._name = GatewayName.of(folder)
        self._sockets: list[socket.socket] = []
        self._shared: SharedGateway | None = None
        self._server_is_here = read_server_is_here(folder)
        self._place: ServerPlace | None = None  # None: the server has not said yet where it is
        self._changed = asyncio.Event()
        self._tried = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def missing_for_containers(self) -> str:
        """Why containers with a network of their own cannot reach the server. Empty: they can."""
        if self._server_is_here or (self._shared is not None and self._shared.serves_containers):
            return ""
        return (
            f"another process listens on {CONTAINERS_GATEWAY} port {self._name.port}: end it, and restart the gateway of this host"
        )

    async def open(self) -> None:
        """Open the gateway before the agent connects to the server, so that tasks find it. The spawner must be running.

        If another process listens on the port, that may be the server itself. Only the server knows where it is.
        """
        if self._running is None:
            with suppress(OSError):
                self._sockets = await asyncio.to_thread(kept_sockets.take, self._folder / "node")
            self._running = asyncio.create_task(self._run())
        await self._tried.wait()

    def server_at(self, place: ServerPlace) -> None:
        """Handle where the server is. If it is elsewhere and this host cannot have a gateway, `failed` gets the reason."""
        self._place = place
        is_here = place.machine == machine_id()
        if is_here != self._server_is_here:
            self._server_is_here = is_here
            store_server_is_here(self._folder, is_here)
        self._changed.set()

    def spawner_connected(self) -> None:
        """Give the listening sockets to a new spawner."""
        if self._sockets:
            self._keep()

    async def close(self, *, end: bool) -> None:
        """Leave the gateway. With `end`, this host has no tasks, so the spawner need not keep the sockets."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        self._let_go(keep=not end)

    def _let_go(self, *, keep: bool = False, end: bool = False) -> None:
        """Leave the gateway. With `keep`, the spawner keeps the sockets. With `end`, the gateway ends and frees its port."""
        for each in self._sockets:
            each.close()
        if self._sockets and not keep:
            self._sockets = []
            self._keep()
        if self._shared is not None:
            if end:
                with suppress(OSError):
                    self._shared.connection.send(END)
            self._shared.connection.close()
            self._shared = None

    def _keep(self) -> None:
        try:
            kept_sockets.keep(self._folder / "node", self._sockets)
        except OSError as error:
            log.warning("the spawner cannot keep the sockets of the gateway: %s", error)

    async def _run(self) -> None:
        wait_s = 0.0
        while True:
            self._changed.clear()
            if self._place is not None and self._place.port not in (0, self._name.port):
                self._let_go()
                self._name = self._name._replace(port=self._place.port)
            if self._server_is_here:
                self._let_go(end=True)
                self._tried.set()
                await self._changed.wait()
                continue
            began_at = time.monotonic()
            try:
                shared = await self._start()
                self._tried.set()
                if shared is not None:
                    await self._until_ended(shared.connection)
            except Refused as refusal:
                self._tried.set()
                if self._changed.is_set():
                    continue  # the attempt began before the server said where it is, so its failure decides nothing
                if self._place is not None:  # before, the server itself may have the port
                    log.warning("there is no gateway: %s", refusal)
                    if not self.failed.done():
                        self.failed.set_exception(refusal)
            wait_s = 0.0 if time.monotonic() > began_at + RESTART_MAX_S else min(max(2 * wait_s, RESTART_MIN_S), RESTART_MAX_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def _until_ended(self, connection: socket.socket) -> None:
        """Wait until the gateway ends, or until `server_at` was called."""
        loop = asyncio.get_running_loop()
        loop.add_reader(connection, self._changed.set)  # a gateway sends nothing, so its connection has ended
        try:
            await self._changed.wait()
        finally:
            loop.remove_reader(connection)
        if _has_ended(connection):
            log.warning("the gateway has ended; starting another")
            self._changed.clear()
            connection.close()
            self._shared = None

    async def _start(self) -> SharedGateway | None:
        """Connect to the gateway, and start it if there is none. Raise Refused if it does not start.

        Return None if the server turns out to be on this machine. A process that was started for this gateway is then killed: it
        could take the port while the server restarts, and the server could not start again.
        """
        process: subprocess.Popen[bytes] | None = None
        give_up_at = time.monotonic() + START_MAX_S
        while self._shared is None:
            found = await asyncio.to_thread(find_gateway, self._name)
            if found is not None:
                self._take(found)
            elif self._server_is_here:
                if process is not None:
                    process.kill()
                    await asyncio.to_thread(process.wait)
                return None
            elif process is None:
                process = self._start_process()
            elif process.poll() is not None and process.returncode:
                raise Refused(self._last_line())
            elif time.monotonic() > give_up_at:
                raise Refused(f"the gateway does not start; see {self._log}")
            elif process.poll() is not None:
                process = None  # another agent has started one
            if self._shared is None:
                await asyncio.sleep(START_POLL_S)
        return self._shared

    def _take(self, found: SharedGateway) -> None:
        self._shared = found
        if found.sockets:
            for each in self._sockets:
                each.close()
            self._sockets = found.sockets
            self._keep()

    def _start_process(self) -> subprocess.Popen[bytes]:
        descriptors = [each.fileno() for each in self._sockets]
        command = [sys.executable, "-P", "-m", "corral.node.gateway", "--data", str(self._folder), "--port", str(self._name.port)]
        if descriptors:
            command += ["--sockets", ",".join(map(str, descriptors))]
        if self._containers:
            command += ["--containers", "true"]
        with open(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, pass_fds=descriptors
            )

    def _last_line(self) -> str:
        with open(self._log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
        return without_time(lines[-1]).removeprefix("corral gateway: ") if lines else f"the gateway does not start; see {self._log}"


def _has_ended(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
