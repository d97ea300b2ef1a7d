"""Signals to `corral run`, at chosen and at random moments: which tasks end, which live on, and the exit codes.

`Wire` is a proxy between the command and the server. It holds or drops responses, so that a signal arrives while a request is under
way.
"""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import forkserver
from clients.test_cli_run import Pty, ended
from command import BIN, Cli, Running
from eventually import eventually

# Prints the name of each signal. SIGINT ends it with exit code 9, SIGTERM with 7.
POLITE = "trap 'echo INT; exit 9' INT; trap 'echo TERM; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
STUBBORN = "trap 'echo INT' INT; trap 'echo TERM' TERM; echo ready; while :; do sleep 0.05; done"
BETWEEN_PRESSES_S = 0.3  # more than REPEATED_S
SEED = 19


class Wire:
    """Forwards bytes to the server. It treats the responses of one operation in a special manner."""

    def __init__(self, url: str, operation: str, *, drop: int = 0) -> None:
        """Hold the responses of the operation until `release`. Drop the first `drop` responses instead."""
        self._port = int(url.rpartition(":")[2])
        self._operation, self._drop = operation.encode(), drop
        self.arrived, self.release = threading.Event(), threading.Event()
        self.responses = 0  # of the operation
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._port))
        special = threading.Event()

        def requests() -> None:
            with suppress(OSError):  # the command has ended
                while part := client.recv(65_536):
                    if self._operation in part:
                        special.set()
                    server.sendall(part)
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=requests, daemon=True).start()
        try:
            while part := server.recv(65_536):
                if special.is_set():
                    special.clear()
                    self.responses += 1
                    self.arrived.set()
                    if self.responses <= self._drop:
                        break
                    self.release.wait(30)
                client.sendall(part)
        except OSError:
            pass
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.release.set()
        self._listener.close()


@pytest.fixture
def wire(cli: Cli) -> Iterator[Any]:
    made: list[Wire] = []

    def make(operation: str, *, drop: int = 0) -> Wire:
        made.append(Wire(json.loads((cli.data / "server.json").read_text())["url"], operation, drop=drop))
        return made[-1]

    yield make
    for each in made:
        each.close()


def begin_over(cli: Cli, wire: Wire, *words: str) -> Running:
    """Begin a command that connects to the proxy. It is the real command, because a signal to a fork arrives a moment later."""
    keys = json.loads((cli.data / "credentials.json").read_text())
    variables = {
        "AWS_ENDPOINT_URL": wire.url, "AWS_ACCESS_KEY_ID": keys["access_key"], "AWS_SECRET_ACCESS_KEY": keys["secret_key"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    return Running([str(BIN / "corral"), *words], {**cli.environment, **variables}, cli.home)


def tasks_named(cli: Cli, family: str) -> list[dict[str, Any]]:
    ecs = cli.client("ecs")
    arns = [arn for desired in ("RUNNING", "STOPPED") for arn in ecs.list_tasks(family=family, desiredStatus=desired)["taskArns"]]
    found: list[dict[str, Any]] = ecs.describe_tasks(tasks=arns)["tasks"] if arns else []
    return found


def press(running: Running, text: str, last: float = 0.0) -> float:
    """Press Ctrl-C, and wait for a message. Return the time. Presses in rapid succession count once, so wait before the next."""
    eventually(lambda: time.monotonic() > last + BETWEEN_PRESSES_S)
    pressed = time.monotonic()
    running.interrupt()
    running.until("stderr", text)
    return pressed


# Ctrl-C


@pytest.mark.parametrize("how", [(), ("-i",)], ids=["plain", "input"])
def test_ctrl_c_is_sigint_and_the_exit_code_is_the_programs_own(cli: Cli, how: tuple[str, ...]) -> None:
    family = f"polite{len(how)}"
    running = cli.begin("run", *how, "--name", family, "--", "sh", "-c", POLITE, stdin=subprocess.PIPE)
    running.until("stdout", "ready")
    press(running, "sent SIGINT to task")
    code, out, err = running.end()
    assert (code, out) == (9, "ready\nINT\n"), err
    assert "the next Ctrl-C sends SIGTERM" in err
    assert ended(cli, family)["stopCode"] == "EssentialContainerExited"


def test_ctrl_c_again_is_sigterm_and_then_sigkill(cli: Cli) -> None:
    running = cli.begin("run", "--name", "stubborn", "--", "sh", "-c", STUBBORN)
    running.until("stdout", "ready")
    first = press(running, "the next Ctrl-C sends SIGTERM")
    running.until("stdout", "INT")
    second = press(running, "the next Ctrl-C sends SIGKILL", first)
    running.until("stdout", "TERM")
    press(running, "sent SIGKILL to task", second)
    code, out, err = running.end()
    assert code == 137 and out.startswith("ready\nINT\n"), err
    task = ended(cli, "stubborn")
    assert task["stopCode"] == "UserInitiated" and "three times" in task["stoppedReason"]


def test_ctrl_c_stops_a_task_that_waits(cli: Cli) -> None:
    cli.start_task("--gpus", "2", "--", "sh", "-c", POLITE)
    waiter = cli.begin("run", "--gpus", "1", "--name", "waits", "--", "true")
    waiter.until("stderr", "waits: ")
    waiter.interrupt()
    code, _, err = waiter.end()
    assert code == 130 and err.endswith(", which had not started\n") and "next" not in err, "there is nothing more to come"
    assert "startedAt" not in ended(cli, "waits")


def test_timeout_with_sigint_sends_one_sigint(cli: Cli) -> None:
    """`timeout` sends each signal twice: to its child, and to its process group."""
    script = "trap 'echo INT; sleep 0.5; exit 5' INT; trap 'exit 6' TERM; while :; do sleep 0.05; done"
    running = cli.begin("run", "--name", "timed", "--", "sh", "-c", script)
    eventually(lambda: [task for task in tasks_named(cli, "timed") if task["lastStatus"] == "RUNNING"])
    running.interrupt()
    running.interrupt()
    code, out, err = running.end()
    assert (code, out) == (5, "INT\n") and err.count("sent SIG") == 1, err


def test_a_program_that_ctrl_c_has_ended_is_not_requeued(cli: Cli) -> None:
    running = cli.begin("run", "--requeue", "--name", "once", "--", "sh", "-c", POLITE)
    running.until("stdout", "ready")
    running.interrupt()
    assert running.end()[0] == 9
    assert len(tasks_named(cli, "once")) == 1


# the end of the client


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_end_of_the_client_ends_the_task(cli: Cli, number: signal.Signals) -> None:
    running = cli.begin("run", "--name", number.name, "--", "sh", "-c", POLITE)
    running.until("stdout", "ready")
    running.process.send_signal(number)
    running.process.send_signal(number)
    code, out, err = running.end()
    assert code == 128 + number and out.endswith("TERM\n") and err.count("received") == 1, err
    task = ended(cli, number.name)
    assert (task["stopCode"], task["stoppedReason"]) == ("UserInitiated", f"corral run received {number.name}")


def test_a_hangup_leaves_the_task_if_the_user_wants_that(cli: Cli) -> None:
    running = cli.begin("run", "--detach-on-hangup", "--name", "kept", "--", "sh", "-c", POLITE)
    running.until("stdout", "ready")
    running.process.send_signal(signal.SIGHUP)
    code, _, err = running.end()
    [task] = tasks_named(cli, "kept")
    task_id = task["taskArn"].rpartition("/")[2]
    assert code == 129 and f"keeps running; follow it with `corral logs -f {task_id[:8]}`" in err
    assert (task["lastStatus"], task["desiredStatus"]) == ("RUNNING", "RUNNING")
    assert "-i" in cli("run", "--detach-on-hangup", "-i", "--", "cat", code=2, given="").stderr


@pytest.mark.parametrize("option, lives", [((), False), (("--detach-on-hangup",), True)], ids=["ends", "lives"])
def test_a_closed_terminal(cli: Cli, option: tuple[str, ...], lives: bool) -> None:
    family = f"closed{len(option)}"
    terminal = Pty(cli, "run", *option, "--name", family, "--", "sh", "-c", POLITE)
    terminal.until("ready")
    terminal.close()
    assert terminal.process.wait(30) == 129
    [task] = tasks_named(cli, family)
    assert (task["lastStatus"] == "STOPPED") is not lives


def test_a_signal_is_handled_while_the_output_is_stuck(cli: Cli) -> None:
    flood = "trap 'exit 7' TERM; yes 0123456789012345678901234567890123456789 | head -20000; while :; do sleep 0.05; done"
    running = cli.begin("run", "--name", "stuck", "--", "sh", "-c", flood)
    running.until("stdout", "0123")  # read no more, so that the pipe is full
    running.process.send_signal(signal.SIGTERM)
    assert ended(cli, "stuck")["stoppedReason"] == "corral run received SIGTERM"
    assert running.end()[0] == 143


# moments


def test_ctrl_c_during_the_imports_prints_nothing(tmp_path: Path) -> None:
    """A module that blocks takes the place of click."""
    (tmp_path / "click.py").write_text("import signal\nprint('importing', flush=True)\nsignal.pause()\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "corral", "ps"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == -signal.SIGINT


def test_a_signal_before_run_task_starts_nothing(cli: Cli, wire: Any) -> None:
    slow = wire("RegisterTaskDefinition")
    running = begin_over(cli, slow, "run", "--name", "never", "--", "true")
    assert slow.arrived.wait(30)
    running.process.send_signal(signal.SIGTERM)
    assert running.end()[0] == 143
    assert tasks_named(cli, "never") == []


@pytest.mark.parametrize("detach", [(), ("--detach",)], ids=["foreground", "detached"])
def test_a_signal_during_run_task_ends_the_task(cli: Cli, wire: Any, detach: tuple[str, ...]) -> None:
    slow, family = wire(".RunTask"), f"during{len(detach)}"
    running = begin_over(cli, slow, "run", *detach, "--name", family, "--", "sh", "-c", POLITE)
    assert slow.arrived.wait(30)
    running.process.send_signal(signal.SIGTERM)
    slow.release.set()
    assert running.end()[0] == 143
    assert ended(cli, family)["stopCode"] == "UserInitiated"


def test_a_lost_response_starts_no_second_task(cli: Cli, wire: Any) -> None:
    lossy = wire(".RunTask", drop=4)  # the client itself repeats a request twice
    lossy.release.set()
    running = begin_over(cli, lossy, "run", "--name", "lost", "--", "sh", "-c", "exit 5")
    assert running.end()[0] == 5
    assert lossy.responses == 5 and len(tasks_named(cli, "lost")) == 1


def _is_past(moment: float) -> bool:
    return time.monotonic() > moment


def _ends(client: Running, lost: list[Running]) -> bool:
    """Python prints a SIGINT of its first milliseconds, and goes on. A person presses Ctrl-C again then."""
    if select.select([client.process.stderr], [], [], 0.0)[0]:
        client.said["stderr"] += os.read(client.process.stderr.fileno(), 65_536)
    if b"Failed checking if argv[0]" in client.said["stderr"] and client not in lost:
        lost.append(client)
        client.interrupt()
    return client.process.poll() is not None


def test_random_moments(cli: Cli) -> None:
    """Every task of a client that was ended has stopped, and exactly the others live. bench/run_signals.py has more cases."""
    dice, clients = random.Random(SEED), []
    for at in range(8):
        number = dice.choice([signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
        kept = number == signal.SIGHUP and dice.random() < 0.5
        option = ["--detach-on-hangup"] if kept else []
        # A fork ignores SIGINT at first, so SIGINT needs the real command.
        program = BIN / "corral" if number == signal.SIGINT else forkserver.program("corral")
        command = [str(program), "run", *option, "--name", f"random{at}", "--", "sh", "-c", POLITE]
        clients.append((Running(command, cli.environment, cli.home), number, kept))
        moment = time.monotonic() + dice.uniform(0.0, 0.4)
        eventually(partial(_is_past, moment))
        clients[-1][0].process.send_signal(number)
        if dice.random() < 0.5:
            clients[-1][0].process.send_signal(number)
    lost: list[Running] = []
    for at, (client, number, kept) in enumerate(clients):
        eventually(partial(_ends, client, lost), "the client ends")
        code, _, err = client.end()
        task = next(iter(tasks_named(cli, f"random{at}")), None)
        if task is None:
            assert code != 0, (at, code, err)
        else:
            assert code in {128 + number, *([9] if number == signal.SIGINT else [])}, (at, code, err)
            assert (task["lastStatus"] == "STOPPED") is not kept, (at, number, kept, task, err)
    for arn in cli.unfinished():
        cli.client("ecs").stop_task(task=arn)


# notifications


def test_notifications_of_foreground_and_detached_runs(cli: Cli) -> None:
    command = "echo $CORRAL_NAME $CORRAL_EXIT_CODE $CORRAL_DURATION $(echo $CORRAL_TASK | wc -c) >> notified"
    notified = cli.home / "notified"
    assert "not-there" in cli("run", "--notify", "not-there", "--", "true", code=2).stderr
    assert "mail:me@" in cli("run", "--notify", "mail:-x", "--", "true", code=2).stderr
    cli("run", "--name", "here", "--notify", command, "--notify", "exit 3", "--", "sh", "-c", "exit 4", code=4)
    assert re.fullmatch(r"here 4 \d+ 33\n", notified.read_text())
    with socket.create_server(("127.0.0.1", 0)) as hook:
        url = f"http://127.0.0.1:{hook.getsockname()[1]}/hook"
        cli("run", "-d", "--name", "there", "--notify", command, "--notify", url, "--", "true")
        hook.settimeout(30)
        asked, _ = hook.accept()
        request = b""
        while b"durationSeconds" not in request:
            request += asked.recv(65_536)
        asked.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        asked.close()
    assert request.startswith(b"POST /hook ") and b'"name": "there"' in request and b'"exitCode": 0' in request
    assert re.fullmatch(r"here 4 \d+ 33\nthere 0 \d+ 33\n", notified.read_text())
    cli("config", "set", "run.notify", "echo $CORRAL_NAME >> configured", "not-there")
    assert "not-there" in cli("run", "--name", "set", "--", "true").stderr
    cli("run", "--notify", "none", "--", "true")
    cli("config", "unset", "run.notify")
    assert (cli.home / "configured").read_text() == "set\n"
    records = cli.home / ".local" / "state" / "corral" / "notify"
    eventually(lambda: not list(records.glob("*/*.json")))
