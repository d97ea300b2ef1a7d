"""Runs the `corral` command as a user does: the real executable with its own data folder."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import boto3

import forkserver
from engines.nodes import remove_cgroups
from eventually import eventually

BIN = Path(sys.executable).parent  # the installed commands; `Cli` runs the same in forks of an interpreter that is warm
DEADLINE_S = 30.0
BUSY = "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; sleep 0.1; done"  # a part of a core: others need the rest
UNTIL_TOLD = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done"  # runs until SIGTERM, then exits with 7


class Cli:
    """The command with one data folder, without the AWS configuration of the developer."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.data = home / "data"
        foreign = ("AWS_", "CORRAL_", "COLUMNS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.environment = {**kept, "HOME": str(home), "CORRAL_DATA": str(self.data), "PATH": f"{BIN}:{os.environ['PATH']}"}

    def __call__(
        self, *words: str, code: int = 0, env: dict[str, str] | None = None, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [forkserver.program("corral"), *words],
            env={**self.environment, **(env or {})},
            cwd=self.home,
            input=given,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == code, f"corral {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code).stdout)

    def pid(self, lock: str) -> int:
        """The process that holds a lock of the node folder: agent.lock or spawner.lock."""
        return int((self.data / "node" / lock).read_text())

    def begin(self, *words: str, stdin: int | None = None) -> Running:
        return Running([str(forkserver.program("corral")), *words], self.environment, self.home, stdin)

    def client(self, service: str) -> Any:
        """Return a boto3 client, for checks that need no command: a command takes a second."""
        about, keys = (json.loads((self.data / name).read_text()) for name in ("server.json", "credentials.json"))
        return _client(service, about["url"], keys["access_key"], keys["secret_key"])

    def start_task(self, *words: str, family: str = "begun") -> str:
        """Start a detached task, and wait until it runs and has written to its log."""
        task_id = self("run", "--detach", "--name", family, *words).stdout.strip()
        logs = self.client("logs")

        def begun() -> object:
            with suppress(logs.exceptions.ResourceNotFoundException):
                return logs.get_log_events(logGroupName="/corral/run", logStreamName=f"{family}/main/{task_id}")["events"]

        eventually(begun)
        eventually(lambda: self.task(task_id)["lastStatus"] not in ("PROVISIONING", "PENDING"), "the task runs")
        return task_id

    def task(self, task_id: str) -> dict[str, Any]:
        cluster = json.loads((self.data / "server.json").read_text())["cluster"]
        return self.client("ecs").describe_tasks(cluster=cluster, tasks=[task_id])["tasks"][0]

    def unfinished(self) -> list[str]:
        ecs = self.client("ecs")
        listed = [arn for desired in ("RUNNING", "STOPPED") for arn in ecs.list_tasks(desiredStatus=desired)["taskArns"]]
        described = ecs.describe_tasks(tasks=listed)["tasks"] if listed else []
        return [task["taskArn"] for task in described if task["lastStatus"] != "STOPPED"]

    def clear(self) -> None:
        """End everything of this Corral, its tasks too, whatever state it is in."""
        eventually(self._kill_all, "all processes have ended")
        remove_cgroups(self.data / "node")

    def _kill_all(self) -> bool:
        """Kill all processes. Return whether there were none: an agent that still lives restarts a spawner that was killed."""
        found = [*processes_about(self.data), *living_in(self.home)]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found


@cache
def _client(service: str, url: str, access_key: str, secret_key: str) -> Any:
    keys = {"aws_access_key_id": access_key, "aws_secret_access_key": secret_key}
    return boto3.client(service, region_name="us-east-1", endpoint_url=url, **keys)


def command_lines() -> Iterator[tuple[int, bytes]]:
    """Return the id and the command line of each process. Each word ends with a zero byte."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                yield int(name), _content(f"/proc/{name}/cmdline")


def parent_of(pid: int) -> int | None:
    try:
        return int(_content(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
    except OSError:
        return None  # it has ended


def _content(path: str) -> bytes:
    """Read a file of a process. A test does this for hundreds of processes, and `Path` takes four times as long."""
    file = os.open(path, os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(file, 65_536), b""))
    finally:
        os.close(file)


def processes_about(folder: Path) -> list[int]:
    """Return the processes with this folder in their command line: its servers, agents and spawners."""
    named = str(folder).encode()
    return [pid for pid, line in command_lines() if named in line and pid != os.getpid()]


def living_in(folder: Path) -> Iterator[int]:
    """Processes whose working folder is this one, or one inside it: tasks, above all."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                if os.readlink(f"/proc/{entry}/cwd").startswith(str(folder)):
                    yield int(entry)


def living(*words: str) -> list[int]:
    """Return the processes whose command line contains these arguments in sequence."""
    found, wanted = [], b"\0" + "\0".join(words).encode() + b"\0"
    for pid, line in command_lines():
        if wanted in b"\0" + line:
            with suppress(OSError):
                if _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] != b"Z":
                    found.append(pid)
    return found


class Running:
    """A running command, and its output so far."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path, stdin: int | None = None) -> None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, cwd=folder, bufsize=0, stdin=stdin, **pipes)
        self.said = {"stdout": b"", "stderr": b""}

    def until(self, stream: str, text: str) -> str:
        """Wait until a stream contains a text, and return all of its output so far."""
        pipe = getattr(self.process, stream).fileno()
        deadline_s = time.monotonic() + DEADLINE_S
        while text.encode() not in self.said[stream]:
            ready = select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))[0]
            part = os.read(pipe, 65_536) if ready else b""
            assert part, f"no '{text}' in: {self.said}"
            self.said[stream] += part
        return self.said[stream].decode()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def end(self, within_s: float = DEADLINE_S) -> tuple[int, str, str]:
        """(exit code, everything on stdout, everything on stderr)"""
        out, err = self.process.communicate(timeout=within_s)
        return self.process.returncode, (self.said["stdout"] + out).decode(), (self.said["stderr"] + err).decode()
