"""Several machines in one: each has network, mount, host name and process namespaces, a boot id and a machine id of its own.

A process holds the namespaces of a machine. When it ends, the kernel ends all processes of the machine and removes its network. It
ends with the process that made it, so nothing remains of a test that is killed. The server runs on this machine, which is on the
same network.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from eventually import eventually

MACHINE_ID = Path("/etc/machine-id")
HOLD = ("setpriv", "--pdeathsig", "KILL", "unshare", "--kill-child", "--fork")


def why_not() -> str | None:
    """Why there can be no lab here; None: there can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    missing = [program for program in ("ip", "unshare", "nsenter", "setpriv") if shutil.which(program) is None]
    return f"{', '.join(missing)} not installed: `make test` installs it" if missing else None


class Machine:
    def __init__(self, name: str, address: str, folder: Path) -> None:
        """`folder` is for the files of the machine. All machines have the files of this one."""
        self.name = name
        self.address = address
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        setup = f"hostname {name} && mount --bind {folder}/boot_id /proc/sys/kernel/random/boot_id && ip link set lo up"
        if MACHINE_ID.exists():
            if not (folder / "machine-id").exists():
                (folder / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
            setup += f" && mount --bind {folder}/machine-id {MACHINE_ID}"
        reap = "while :; do sleep 3600; done"  # the shell waits for processes whose parents have ended, as every init does
        command = [*HOLD, "--net", "--mount", "--uts", "--pid", "--mount-proc", "sh", "-c", f"{setup} && echo && {reap}"]
        self._holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline(), f"the machine {name} did not start"
        [self.init] = _children(self._holder.pid)

    def command(self, *words: str) -> list[str]:
        """Return the command that runs `words` on this machine."""
        return ["nsenter", f"--target={self.init}", "--net", "--mount", "--uts", "--pid", "--", *words]

    def run(self, *words: str, environment: dict[str, str] | None = None, **more: object) -> str:
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            env=os.environ | (environment or {}),
            **more,  # type: ignore[call-overload]
        )
        if done.returncode:
            raise AssertionError(f"{words} on {self.name} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return str(done.stdout)

    def start(self, *words: str, log: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with open(log, "ab") as output:
            return subprocess.Popen(
                self.command(*words), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=os.environ | (environment or {})
            )

    def processes(self, module: str) -> list[int]:
        """The processes of this machine that run a module of Corral: corral.node, corral.node.spawner, corral.node.gateway."""
        found, namespace = [], os.stat(f"/proc/{self.init}/ns/pid").st_ino
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if module.encode() in words and os.stat(path / "ns/pid").st_ino == namespace and b"nsenter" not in words[0]:
                    found.append(int(path.name))
        return found

    def kill(self, module: str) -> None:
        """kill -9, and wait until the processes have ended."""
        pids = self.processes(module)
        assert pids, f"{module} does not run on {self.name}"
        for pid in pids:
            with suppress(ProcessLookupError):  # a child that has not begun its own program yet
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not set(pids) & set(self.processes(module)), f"the end of {module} on {self.name}")

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()


class Lab:
    """A network that this machine and all machines of the lab are on. Its addresses contain the id of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        pid = os.getpid()
        self._subnet = f"198.{18 + pid // 256 % 2}.{pid % 256}"
        self.machines: list[Machine] = []
        self.address = f"{self._subnet}.1"  # of this machine

    def __enter__(self) -> Lab:
        self._switch = Machine("switch", "", self._folder / "switch")
        try:
            self._switch.run("ip", "link", "add", "switch", "type", "bridge")
            self._switch.run("ip", "link", "set", "switch", "up")
            ours = f"lab{os.getpid()}"
            _ip("link", "add", ours, "type", "veth", "peer", "name", "server", "netns", str(self._switch.init))
            self._plug_in("server")
            _ip("address", "add", f"{self.address}/24", "dev", ours)
            _ip("link", "set", ours, "up")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for machine in (*self.machines, self._switch):
            machine.close()

    def add(self, name: str) -> Machine:
        return self._start(name, f"{self._subnet}.{len(self.machines) + 2}")

    def restart(self, machine: Machine) -> Machine:
        """End all processes of a machine, and start it again with another boot id."""
        machine.close()
        self.machines.remove(machine)
        self._switch.run("ip", "link", "delete", machine.name)
        return self._start(machine.name, machine.address)

    def _start(self, name: str, address: str) -> Machine:
        machine = Machine(name, address, self._folder / name)
        self.machines.append(machine)
        switch, init = str(self._switch.init), str(machine.init)
        _ip("link", "add", name, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", init)
        self._plug_in(name)
        machine.run("ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        return machine

    def cut(self, machine: Machine) -> None:
        """Cut a machine off from all others."""
        self._switch.run("ip", "link", "set", machine.name, "down")

    def heal(self, machine: Machine) -> None:
        self._switch.run("ip", "link", "set", machine.name, "up")

    def _plug_in(self, name: str) -> None:
        self._switch.run("ip", "link", "set", name, "master", "switch")
        self._switch.run("ip", "link", "set", name, "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
