"""The program of the door: it ends the TLS connections of hosts, and relays their bytes to the server.

Start it with python -m corral.server.door --data DIR --listener FD --lock FD. It is a process of its own, so that neither
handshakes nor downloads delay the server. It has no state: it can be killed at any time, and the server starts another one.

Each line on standard input is the id of a host whose connections end at once. The door ends when its standard input ends, which is
when the server has ended.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from contextlib import suppress
from pathlib import Path

import uvloop
from msgspec import Struct

from corral.process.log import log_to_stderr
from corral.process.log_times import add_times_to_output
from corral.process.options import parse_options
from corral.server.door.tls_listener import TlsListener

SWITCH_S = 0.0005  # threads of Python take turns after this time, so that a download does not delay orders
STDIN = 0


class DoorOptions(Struct, frozen=True, rename="kebab"):
    data: str
    listener: int  # the descriptor of the listening socket
    lock: int  # the descriptor of the lock, open until this process ends; the next server waits for it


async def _serve(folder: Path, listener: socket.socket) -> None:
    tls, ended, rest = TlsListener(folder, listener), asyncio.Event(), b""

    def read() -> None:
        nonlocal rest
        part = os.read(STDIN, 65_536)
        if not part:
            ended.set()
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            tls.close_host(line.decode())

    asyncio.get_running_loop().add_reader(STDIN, read)
    await ended.wait()
    os._exit(0)  # connections and threads need no orderly end


def main() -> None:
    options = parse_options(sys.argv[1:], DoorOptions)
    log_to_stderr("%(levelname)s %(message)s")
    add_times_to_output()
    sys.setswitchinterval(SWITCH_S)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = Path(options.data) / "door"
    uvloop.run(_serve(folder, socket.socket(fileno=options.listener)))


if __name__ == "__main__":
    main()
