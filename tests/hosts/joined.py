"""A server with a door, and hosts that have joined it, for tests. All of them are processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from command import command_lines, living_in
from engines.nodes import remove_cgroups
from harness import Corral, container, eventually
from ports import free_port


class Server:
    """A Corral with a door."""

    def __init__(self, corral: Corral, door: str) -> None:
        self.corral = corral
        self.door = door
        self.hosts: list[JoinedHost] = []

    def token(self, **params: Any) -> str:
        return str(self.corral.own("CreateJoinToken", **params)["token"])

    def host(self, folder: Path, name: str, gpus: str = "sim:2", door: str = "") -> JoinedHost:
        self.hosts.append(JoinedHost(folder, self, name, gpus, door))
        return self.hosts[-1]

    def described(self, name: str) -> dict[str, Any]:
        return next((each for each in self.corral.own("DescribeHosts")["hosts"] if each["name"] == name), {})

    def wait_until_up(self, name: str) -> None:
        eventually(lambda: self.described(name).get("state") == "UP", f"{name} is up")

    def run(self, command: list[str], gpus: int = 0, host: str = "", tags: dict[str, str] | None = None) -> str:
        """Start a task, and return its ARN. Its output is in the log group /tests."""
        ecs = self.corral.client("ecs")
        definition = container(command, gpus, log_prefix="p")
        arn = ecs.register_task_definition(family="test", containerDefinitions=[definition])["taskDefinition"]["taskDefinitionArn"]
        constraints = [{"type": "memberOf", "expression": f"attribute:corral.host-name == {host}"}] if host else []
        given = [{"key": key, "value": value} for key, value in (tags or {}).items()]
        [task] = ecs.run_task(taskDefinition=arn, placementConstraints=constraints, tags=given)["tasks"]
        return str(task["taskArn"])

    def state(self, arn: str) -> str:
        [task] = self.corral.client("ecs").describe_tasks(tasks=[arn])["tasks"]
        return str(task["lastStatus"])

    def wait(self, arn: str, state: str) -> None:
        eventually(lambda: self.state(arn) == state, f"the task is {state}", 60.0)


@contextmanager
def running_server(data: Path, gpus: str) -> Iterator[Server]:
    door = f"127.0.0.1:{free_port()}"
    server = Server(Corral(data, gpus, "--door", door, "--runtime", "process"), door)
    try:
        server.corral.start()
        yield server
    finally:
        for host in server.hosts:
            host.clear()
        server.corral.clear()


class JoinedHost:
    def __init__(self, folder: Path, server: Server, name: str, gpus: str = "sim:2", door: str = "") -> None:
        self.folder = folder
        self.name = name
        self._server = server
        self._gpus = gpus
        self._door = door or server.door
        self._agents: list[subprocess.Popen[bytes]] = []

    def join(self, token: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Join, and do not start the agent."""
        command = [sys.executable, "-m", "corral.node.join", "--data", str(self.folder), "--server", self._door]
        return subprocess.run([*command, "--name", self.name, *options], input=f"{token}\n", capture_output=True, text=True)

    def joined(self, **params: Any) -> JoinedHost:
        done = self.join(self._server.token(**params))
        assert done.returncode == 0, done.stderr
        return self

    def start(self, *options: str) -> JoinedHost:
        command = [sys.executable, "-m", "corral.node", "--data", str(self.folder), "--gpus", self._gpus, "--runtime", "process"]
        with open(self.folder.parent / f"{self.folder.name}.log", "ab") as log:
            self._agents.append(subprocess.Popen([*command, *options], stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        return self

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "joined.json").read_text())
        return found

    @property
    def host_id(self) -> str:
        return str(self.record["host_id"])

    def log(self) -> str:
        return (self.folder.parent / f"{self.folder.name}.log").read_text()

    def pids(self, module: str) -> list[int]:
        return pids(self.folder, module)

    def kill(self, *modules: str) -> None:
        """kill -9. A killed agent holds its lock until it has ended, so wait for that."""
        killed = [pid for module in modules for pid in self.pids(module)]
        _kill(killed)
        for agent in self._agents:
            if agent.pid in killed:
                agent.wait()

    def end(self) -> None:
        """End the agent as Ctrl-C does, and wait until its spawner has ended, too. No task may run."""
        for pid in self.pids("corral.node"):
            os.kill(pid, signal.SIGTERM)
        eventually(lambda: not self.pids("corral.node") and not self.pids("corral.node.spawner"), f"the end of {self.name}")

    def clear(self) -> None:
        end_host(self.folder)


def pids(folder: Path, module: str) -> list[int]:
    data, name = str(folder).encode(), b"\0" + module.encode() + b"\0"
    return [pid for pid, line in command_lines() if data in line and name in line]


def end_host(folder: Path) -> None:
    """End everything of a joined host, tasks too."""
    eventually(lambda: _has_ended(folder), "all processes of the host have ended")
    if (folder / "node").exists():
        remove_cgroups(folder / "node")


def _has_ended(folder: Path) -> bool:
    """Kill all processes. Return whether there were none: an agent that still lives restarts a spawner that was killed."""
    parts = [pid for module in ("corral.node", "corral.node.spawner", "corral.node.gateway") for pid in pids(folder, module)]
    found = [*parts, *living_in(folder)]
    _kill(found)
    return not found


def _kill(found: Iterable[int]) -> None:
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
