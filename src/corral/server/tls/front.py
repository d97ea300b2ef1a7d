"""The server's side of TLS: the process that ends it, and the connections that the server passes to this process."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corral.core.clock import Clock
from corral.server.agents.local_agent import ended
from corral.server.http.peers import TlsClient
from corral.server.tls import LOG
from corral.server.tls.certificate import GivenCertificate, OwnCertificate
from corral.server.tls.passed_connections import BEGUN_MAX_BYTES, PassedConnection, open_channel, send_connection

RESTART_S = 0.2
RETRY_S = 0.05
SHORT_OF_MEMORY = (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)  # of the kernel, which has too many descriptors on their way
RENEW_S = 60.0  # how often the addresses of this machine and the expiry of the certificate are looked at
WAITING_MAX = 512  # connections that wait for the process; above this maximum, new ones are closed

log = logging.getLogger("corral")


class TlsFront:
    def __init__(
        self,
        folder: Path,
        certificate: OwnCertificate | GivenCertificate,
        clock: Clock,
        adopt: Callable[[socket.socket, TlsClient], Any],
    ) -> None:
        """`folder` is the folder `door`. `adopt` serves the requests on a Unix socket: it is called with each connection."""
        self._folder = folder
        self._certificate = certificate
        self._clock = clock
        self._adopt = adopt
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[PassedConnection] = deque()
        self._channel: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        self._spawn(self._keep())
        self._spawn(self._renew())

    def close(self) -> None:
        """End the process, and so all connections with TLS."""
        for task in list(self._tasks):
            task.cancel()
        if self._channel is not None:
            self._forget_channel(self._channel)

    def take(self, client: socket.socket, begun: bytes, peer: TlsClient) -> None:
        """Take a connection whose client has begun a handshake with the bytes `begun`."""
        if len(begun) > BEGUN_MAX_BYTES or len(self._waiting) >= WAITING_MAX:
            client.close()
            return
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # the server has too many open files
            log.error("a connection with TLS was closed: %s", error)
            client.close()
            return
        ours.setblocking(False)
        self._waiting.append(PassedConnection(peer.peer_name, begun, client, theirs))
        self._spawn(self._adopt(ours, peer))
        self._send()

    def _spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self) -> None:
        """Pass the connections that wait to the process. Those that it has no room for wait until it has received others."""
        channel = self._channel
        if channel is None:
            return
        self._loop.remove_writer(channel)
        while self._waiting:
            passed = self._waiting[0]
            try:
                send_connection(channel, passed)
            except BlockingIOError:
                self._loop.add_writer(channel, self._send)
                return
            except OSError as error:
                if error.errno in SHORT_OF_MEMORY:
                    self._loop.call_later(RETRY_S, self._send)
                else:  # the process has ended, and the next one gets this connection
                    self._forget_channel(channel)
                return
            self._waiting.popleft()
            passed.client.close()
            passed.server.close()

    def _forget_channel(self, channel: socket.socket) -> None:
        if channel is self._channel:
            self._channel = None
            self._loop.remove_writer(channel)
            channel.close()

    async def _keep(self) -> None:
        while True:
            channel, theirs = open_channel()
            with theirs:
                process = self._start(theirs)
            self._channel = channel
            self._send()
            await ended(process)
            self._forget_channel(channel)
            log.warning(
                "the process for TLS ended with exit code %s; starting another. See %s", process.returncode, self._folder / LOG
            )
            await asyncio.sleep(RESTART_S)

    def _start(self, channel: socket.socket) -> subprocess.Popen[bytes]:
        certificate, key = map(str, self._certificate.files)
        command = [sys.executable, "-P", "-m", "corral.server.tls", "--certificate", certificate, "--key", key]
        command += ["--channel", str(channel.fileno())]
        output = os.open(self._folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(channel.fileno(),),
                start_new_session=True,
            )
        finally:
            os.close(output)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                await asyncio.to_thread(self._certificate.renew, self._clock.wall_s())
            except OSError as error:  # for example, the disk is full
                log.error("the certificate could not be renewed: %s", error)
