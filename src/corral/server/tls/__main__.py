"""The program that ends the TLS connections of clients, and relays their bytes to the server.

Start it with python -m corral.server.tls --certificate FILE --key FILE --channel FD. Each message on the channel is a connection:
its descriptor, a Unix socket that leads to the server, the name of the client, and the bytes that have arrived. The process has no
state: it can be killed at any time, and the server starts another one. It ends when the channel ends, which is when the server has
ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import uvloop
from msgspec import Struct

from corral.node.server_access import HANDSHAKE_S
from corral.process.log import log_to_stderr
from corral.process.log_times import add_times_to_output
from corral.process.options import parse_options
from corral.process.relay import Relays, TlsEnd
from corral.process.stranger_limit import StrangerLimit
from corral.server.tls.certificate_files import CertificateFiles
from corral.server.tls.passed_connections import receive_connections

HANDSHAKES_MAX = 1024
SWITCH_S = 0.0005  # threads of Python take turns after this time, so that a download does not delay other requests
SWEEP_S = 1.0
CLOSING_MAX_S = 20.0  # a client that reads nothing for this long is disconnected after the server has closed its connection

log = logging.getLogger("corral.tls")


class TlsOptions(Struct, frozen=True, rename="kebab"):
    certificate: str
    key: str
    channel: int  # the descriptor of the socket on which the server passes connections


class Terminator:
    def __init__(self, files: CertificateFiles, channel: socket.socket) -> None:
        self._files = files
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._relays = Relays()
        self._strangers = StrangerLimit(HANDSHAKES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        channel.setblocking(False)
        self._loop.add_reader(channel, self._receive)

    def _receive(self) -> None:
        for passed in receive_connections(self._channel):
            if passed is None:  # the server has ended, and connections and threads need no orderly end
                os._exit(0)
            name, begun, client, server = passed
            task = self._loop.create_task(self._serve(client, server, begun))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            self._strangers.add(name, task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection failed", exc_info=error)

    async def _serve(self, client: socket.socket, server: socket.socket, begun: bytes) -> None:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end = TlsEnd(client, self._files.context(), server_side=True, begun=begun)
            async with asyncio.timeout(HANDSHAKE_S):
                await self._relays.handshake(end)
        except OSError:  # also TimeoutError and ssl.SSLError; only the client can correct it
            client.close()
            server.close()
        except BaseException:
            client.close()
            server.close()
            raise
        else:
            self._relays.add(server, end, is_of_server=True)

    async def sweep(self) -> None:
        """Close connections whose clients do not read the end of a response."""
        while True:
            await asyncio.sleep(SWEEP_S)
            before = time.monotonic() - CLOSING_MAX_S
            for relay in [each for each in self._relays.open if each.used_at < before and each.is_abandoned]:
                relay.close()


async def _serve(options: TlsOptions) -> None:
    files = CertificateFiles(Path(options.certificate), Path(options.key))
    await Terminator(files, socket.socket(fileno=options.channel)).sweep()


def main() -> None:
    options = parse_options(sys.argv[1:], TlsOptions)
    log_to_stderr("%(levelname)s %(message)s")
    add_times_to_output()
    sys.setswitchinterval(SWITCH_S)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_serve(options))


if __name__ == "__main__":
    main()
