"""A node folder for a test: its files and its processes, all of which must have ended after the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from corral.model.run import RunSpec
from corral.node import lock_files, node_folder, run_cgroups
from corral.process.data_folder import account_work_folder, remove_account_work
from eventually import eventually


def spec(run_id: str, *command: str, **more) -> RunSpec:
    fields = {"environment": {}, "gpu_ids": [], "stop_grace_s": 5.0, **more}
    return RunSpec(run_id, task_id="task", container="main", image="corral/host", command=list(command), **fields)


def shell(run_id: str, script: str, **more) -> RunSpec:
    return spec(run_id, "sh", "-c", script, **more)


def is_running(pid: int) -> bool:
    """A zombie does not count: whether init waits for orphans does not matter here."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int) -> None:
    """kill -9, and wait until the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_running(pid), f"process {pid} gone")


class NodeFolder:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.node = data / "node"
        self.host_id = uuid4().hex
        node_folder.make(self.node)
        self.agents: list[subprocess.Popen] = []

    def output(self, run_id: str) -> str:
        return (self.node / "output" / run_id).read_text()

    def spawner_pid(self) -> int:
        return int((self.node / "spawner.lock").read_text())

    def start_agent(self, *more: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "corral.node", "--data", str(self.data), *more]
        agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.agents.append(agent)
        return agent

    def holders(self) -> list[int]:
        held = lock_files.holders(str(path) for path in (self.node / "output").iterdir())
        return [pid for pids in held.values() for pid in pids]

    def clean_up(self) -> None:
        """Kill agents first, because they restart the spawner; then the spawner; then the runs."""
        for agent in self.agents:
            agent.kill()
            agent.wait()
            if agent.stderr is not None:
                agent.stderr.close()
        if (self.node / "spawner.lock").exists() and is_locked(self.node / "spawner.lock"):
            kill(self.spawner_pid())
        eventually(lambda: not lock_files.kill_holders(map(str, (self.node / "output").iterdir())), "all runs have ended")
        remove_cgroups(self.node)
        remove_account_work(account_work_folder(self.node))


def remove_cgroups(node: Path) -> None:
    """Remove the cgroups of a spawner that was killed, and kill the processes in them."""
    with contextlib.suppress(FileNotFoundError):
        for folder in (node / "cgroups").read_text().splitlines():
            eventually(lambda folder=folder: _is_removed(Path(folder)), f"no cgroups in {folder}")


def _is_removed(folder: Path) -> bool:
    """Kill all processes again: one that was killed may have started another one before, which was not in the list."""
    for group in folder.glob("*"):
        if group.is_dir():
            run_cgroups.kill(str(group))
    run_cgroups.remove_empty(str(folder))
    return not folder.exists()


def is_locked(path: Path) -> bool:
    return lock_files.is_held(str(path))
