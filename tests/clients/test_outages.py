"""Commands that follow tasks continue after an outage of the server, for example a restart, and lose no line."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from command import Cli, Running
from engines.nodes import kill
from eventually import eventually
from ports import free_port

LINES = 170_000  # more than a MiB, and so many that a task ends before all of its output is stored
WAIT = "echo begun; while ! test -e go; do sleep 0.05; done; echo done"


class Switch:
    """A proxy of the server that can be switched off. Then it closes all connections and refuses new ones."""

    def __init__(self, url: str) -> None:
        self._server = int(url.rpartition(":")[2])
        self._open: list[socket.socket] = []
        self.requests: list[bytes] = []
        self._port = free_port()
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self.url = f"http://127.0.0.1:{self._port}"
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def off(self) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def on(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near = listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self._server))
                self._open += [near, far]
                threading.Thread(target=self._forward, args=(near, far, self.requests), daemon=True).start()
                threading.Thread(target=self._forward, args=(far, near, []), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, seen: list[bytes]) -> None:
        with suppress(OSError):
            while part := source.recv(65_536):
                seen.append(part)
                target.sendall(part)
            target.shutdown(socket.SHUT_RDWR)

    def has_waiting_command(self) -> bool:
        """Whether a command waits until a task has stopped. Other long polls have the header X-Corral-Seen."""
        return any(b".DescribeTasks" in part and b"corral-wait" in part and b"corral-seen" not in part for part in self.requests)


@pytest.fixture
def switch(cli: Cli) -> Iterator[Switch]:
    """A proxy between the commands and the server."""
    about, keys = (json.loads((cli.data / name).read_text()) for name in ("server.json", "credentials.json"))
    made, before = Switch(about["url"]), cli.environment
    cli.environment = before | {
        "AWS_ENDPOINT_URL": made.url, "AWS_ACCESS_KEY_ID": keys["access_key"], "AWS_SECRET_ACCESS_KEY": keys["secret_key"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    yield made
    made.off()
    cli.environment = before


def test_commands_that_follow_tasks_continue_after_an_outage(cli: Cli, switch: Switch) -> None:
    script = ("sh", "-c", f"{WAIT}; exit 7")
    commands: dict[str, Running] = {"run": cli.begin("run", "-n", "outage", "--", *script)}
    commands["run"].until("stdout", "begun")
    commands["wait"] = cli.begin("wait", "outage")
    commands["logs"] = cli.begin("logs", "-f", "outage")
    commands["logs"].until("stdout", "begun")
    commands["array"] = cli.begin("run", "-n", "many", "--array", "0-1", "--", *script)
    commands["array"].until("stdout", "many:1 | begun")
    eventually(switch.has_waiting_command)
    switch.off()
    for command in commands.values():
        command.until("stderr", "the server does not respond")
    (cli.home / "go").touch()
    switch.on()
    ended = {name: command.end() for name, command in commands.items()}
    assert {name: code for name, (code, _, _) in ended.items()} == {"run": 7, "wait": 7, "logs": 0, "array": 7}, ended
    assert all(ended[name][1].count("done") == (2 if name == "array" else 1) for name in ("run", "logs", "array"))
    assert all(err.count("does not respond") == 1 for _, _, err in ended.values())


def test_no_line_is_lost_or_repeated_if_server_and_agent_are_killed(own: Cli) -> None:
    """The file with the output is limited to a MiB. So it lacks the beginning, and its first line says how much."""
    own.data.mkdir()
    (own.data / "corral.toml").write_text("[outputs]\nfile_mib = 1\n")
    up = ("up", "--detach", "--port", str(free_port()))
    own(*up, "--gpus", "none")
    whole = "".join(f"{number}\n" for number in range(1, LINES + 1))
    running = own.begin("run", "-n", "many", "--", "seq", str(LINES))
    running.until("stdout", "1\n")
    os.kill(own.pid("agent.lock"), signal.SIGSTOP)  # the rest of the output stays where it is
    part = own("logs", "--json", "many")
    [told] = re.findall(r"the log of task [0-9a-f]+ is not complete: ([0-9,]+) bytes of output are not stored yet", part.stderr)
    *_, last = map(json.loads, part.stdout.splitlines())
    assert f"{last['unstoredBytes']:,}" == told and last["container"] == "main"
    stored = sum(len(json.loads(line)["message"]) + 1 for line in part.stdout.splitlines()[:-1])
    assert 0 < last["unstoredBytes"] <= len(whole) - stored
    following = own.begin("logs", "-f", "many")
    following.until("stdout", "1\n")
    kill(json.loads((own.data / "server.json").read_text())["pid"])
    kill(own.pid("agent.lock"))
    own(*up)
    for command in (running, following):
        code, out, err = command.end()
        assert (code, out == whole) == (0, True), (out.count("\n"), err)
    after = own("logs", "many")
    assert after.stdout == whole and after.stderr == ""
    [file] = own.json("show", "many")["outputFiles"]
    kept = Path(file["path"])
    eventually(lambda: kept.stat().st_size < len(whole), "the file without its beginning")
    first, _, rest = kept.read_text().partition("\n")
    assert first.startswith(f"corral: the first {len(whole) - len(rest):,} bytes of this output are missing: ")
    assert whole.endswith(f"\n{rest}") and 2**20 - 10 < len(rest) <= 2**20
