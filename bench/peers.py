"""What a user might pick instead, and the floors: moto's server, Redis. `make bench` installs both."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rows import Bench

BIN = Path(__file__).parent.parent / ".peers" / "bin"
MOTO, PYTHON = BIN / "moto_server", BIN / "python"
READY_MAX_S = 60.0


@contextmanager
def moto() -> Iterator[int]:
    """The port of a fresh moto server. It keeps everything in memory and starts nothing."""
    if not MOTO.exists():
        raise RuntimeError("moto is not installed: `make bench` does that")
    port = _free_port()
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    with _running([str(MOTO), "-H", "127.0.0.1", "-p", str(port)], port, environment):
        yield port


@contextmanager
def redis(bench: Bench) -> Iterator[int]:
    """The port of a Redis that answers a write when it is on disk, as Corral does."""
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("redis-server is not installed: `make bench` does that")
    port = _free_port()
    options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
    with _running([program, "--port", str(port), "--dir", str(bench.fresh("redis")), *options], port):
        yield port


@contextmanager
def _running(command: list[str], port: int, environment: dict[str, str] | None = None) -> Iterator[None]:
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + READY_MAX_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{Path(command[0]).name} did not start")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
