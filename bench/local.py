"""A Corral of one's own: started, watched, and ended with all its processes."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import machine
from client import ACCESS_KEY, SECRET_KEY, Caller
from rows import Bench

READY_MAX_S = 30.0
END_MAX_S = 10.0
ROLES = {"server": "corral.server", "agent": "corral.node", "spawner": "corral.node.spawner"}
GROUP = "/bench"


class Local:
    def __init__(self, data: Path, gpus: str, port: int = 0, options: Sequence[str] = ()) -> None:
        self.data = data
        self.port = port
        command = [sys.executable, "-m", "corral.server", "--data", str(data), "--gpus", gpus, "--port", str(port)]
        self._command = [*command, "--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY, *options]
        self.pids: dict[str, int] = {}

    def launch(self) -> None:
        """Start the server without waiting for it."""
        self._ready, writer = os.pipe()
        with open(self.data.with_suffix(".log"), "ab") as log:
            command = [*self._command, "--ready-fd", str(writer)]
            self.process = subprocess.Popen(command, pass_fds=(writer,), stdout=log, stderr=log)
        os.close(writer)

    def wait_ready(self) -> Local:
        """Until the server says that it is up and its agent has joined."""
        readable, _, _ = select.select([self._ready], [], [], READY_MAX_S)
        line = os.read(self._ready, 65536) if readable else b""
        os.close(self._ready)
        if not line:
            raise RuntimeError(f"the server did not start: {self.data.with_suffix('.log').read_text()[-500:]}")
        self.port = int(json.loads(line)["url"].rpartition(":")[2])
        self.pids = dict(self._living())
        return self

    def cpu_s(self) -> dict[str, float]:
        """CPU time so far of server, agent and spawner."""
        return {role: machine.cpu_s(pid) for role, pid in self.pids.items()}

    def stop(self) -> None:
        """In order if it will, by force if it will not."""
        found = dict(self._living())
        with suppress(ProcessLookupError):
            self.process.terminate()
        until = time.monotonic() + END_MAX_S
        while any(machine.is_alive(pid) for pid in found.values()) and time.monotonic() < until:
            self.process.poll()
            time.sleep(0.01)
        for pid in found.values():
            if machine.is_alive(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _living(self) -> Iterator[tuple[str, int]]:
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                words = Path(f"/proc/{entry}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                if str(self.data) in words or f"{self.data}/node" in words:
                    yield from ((role, int(entry)) for role, module in ROLES.items() if module in words)


@contextmanager
def corral(bench: Bench, name: str, gpus: str, *options: str) -> Iterator[Local]:
    """A fresh Corral that is gone afterwards, and its folder with it."""
    home = bench.fresh(name)
    local = Local(home / "data", gpus, options=options)
    local.launch()
    try:
        yield local.wait_ready()
    finally:
        local.stop()
        shutil.rmtree(home, ignore_errors=True)


def definition(family: str, command: list[str], *, gpus: int = 0, logs: bool = False) -> dict[str, Any]:
    """The parameters of a RegisterTaskDefinition."""
    container: dict[str, Any] = {"name": "main", "image": "corral/host", "command": command, "memory": 6}
    if gpus:
        container["resourceRequirements"] = [{"type": "GPU", "value": str(gpus)}]
    if logs:
        options = {"awslogs-group": GROUP, "awslogs-create-group": "true", "awslogs-stream-prefix": "bench"}
        container["logConfiguration"] = {"logDriver": "awslogs", "options": options}
    return {"family": family, "containerDefinitions": [container]}


def register(call: Caller, family: str, command: list[str], *, gpus: int = 0, logs: bool = False) -> str:
    """Register a task definition; its name."""
    call("ecs", "RegisterTaskDefinition", **definition(family, command, gpus=gpus, logs=logs))
    return family
