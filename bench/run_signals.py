"""Signals to `corral run` at random moments: `python bench/run_signals.py [--cases 200] [--seed N] [--at-once 4] [--restart-s 5]`.

Each case starts the real command and sends one or two signals at a random moment, from its start to twice the time after which its
task runs: by `timeout` (-s TERM, HUP or INT, with -k), by `kill`, or by closing its terminal. Half of the clients that get SIGHUP
have `--detach-on-hangup`, and some are detached. After a client has ended, its task must have stopped, or must run if it should
have lived. Some programs ignore SIGINT, and some tasks wait for a GPU. The script starts its own Corral in a temporary folder. It
prints each wrong case and exits with 1 if there is one. With --restart-s, the server is restarted again and again.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

CORRAL = [sys.executable, "-m", "corral"]
LATEST_RUNS = 2.5  # the latest moment of a signal, in durations of `corral run -- true`
CLIENT_MAX_S = 60.0
# Below the ports that the system chooses for clients: while the server is down, a client of such a port could connect to itself.
PORT = 24_566
POLITE = "trap 'exit 9' INT; trap 'exit 7' TERM; while :; do sleep 0.1; done"
IGNORES_INT = "trap '' INT; trap 'exit 7' TERM; while :; do sleep 0.1; done"
PLAIN = "exec sleep 600"
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Case:
    number: int
    how: str  # timeout, kill or terminal
    signal: signal.Signals
    twice_after_s: float | None  # a second signal follows after this time
    at_s: float
    detach_on_hangup: bool
    detach: bool
    needs_gpu: bool
    script: str

    @property
    def name(self) -> str:
        return f"case{self.number}"

    @property
    def may_live(self) -> bool:
        """Whether the task may outlive its client: after a hangup, or because the client only submits it."""
        return (self.signal == signal.SIGHUP and self.detach_on_hangup) or self.detach

    @property
    def may_hang(self) -> bool:
        """Whether SIGINT alone does not end the program, so that the script must stop the task."""
        return self.signal == signal.SIGINT and self.script == IGNORES_INT


def draw(dice: random.Random, number: int, latest_s: float) -> Case:
    how = dice.choice(("timeout", "kill", "kill", "terminal"))
    number_of_signal = signal.SIGHUP if how == "terminal" else dice.choice(SIGNALS)
    return Case(
        number=number,
        how=how,
        signal=number_of_signal,
        twice_after_s=dice.uniform(0.0, 0.5) if how == "kill" and dice.random() < 0.5 else None,
        at_s=dice.uniform(0.02, latest_s),
        detach_on_hangup=number_of_signal == signal.SIGHUP and dice.random() < 0.5,
        detach=dice.random() < 0.15,
        needs_gpu=dice.random() < 0.2,
        script=dice.choice((POLITE, POLITE, PLAIN, IGNORES_INT)),
    )


def run(case: Case, environment: dict[str, str], home: Path) -> tuple[int, str]:
    """Run the client of a case. Return its exit code and what it has printed to stderr."""
    options = [*(["--detach-on-hangup"] if case.detach_on_hangup else []), *(["--detach"] if case.detach else [])]
    options += ["--gpus", "1"] if case.needs_gpu else []
    command = [*CORRAL, "run", *options, "--name", case.name, "--", "sh", "-c", case.script]
    if case.how == "timeout":
        command = ["timeout", "--preserve-status", "-k", "60", "-s", case.signal.name[3:], f"{case.at_s:.3f}", *command]
    if case.how == "terminal":
        return _in_terminal(case, command, environment, home), ""
    with tempfile.TemporaryFile() as said:
        client = subprocess.Popen(command, env=environment, cwd=home, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        if case.how == "kill":
            time.sleep(case.at_s)
            client.send_signal(case.signal)
            if case.twice_after_s is not None:
                time.sleep(case.twice_after_s)
                client.send_signal(case.signal)
        if case.may_hang:
            time.sleep(2.0)
            client.send_signal(signal.SIGTERM)  # the user gives up
        code = _wait(client)
        said.seek(0)
        return code, said.read().decode(errors="replace")


def _in_terminal(case: Case, command: list[str], environment: dict[str, str], home: Path) -> int:
    """Run the client on its own terminal, and close the terminal."""
    ours, theirs = pty.openpty()
    client = subprocess.Popen(
        ["setsid", "--ctty", *command], env=environment, cwd=home, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    time.sleep(case.at_s)
    os.close(ours)
    return _wait(client)


def _wait(client: subprocess.Popen[bytes]) -> int:
    """Wait for a client. Kill a client that does not end: then its task is alive, and the case is wrong."""
    try:
        return client.wait(CLIENT_MAX_S)
    except subprocess.TimeoutExpired:
        client.kill()
        return client.wait()


def judge(ecs: Any, case: Case, code: int, said: str) -> str:
    """Return what is wrong, or an empty text."""
    arns = [arn for state in ("RUNNING", "STOPPED") for arn in ecs.list_tasks(family=case.name, desiredStatus=state)["taskArns"]]
    if len(arns) > 1:
        return f"{len(arns)} tasks"
    if not arns:
        return "" if code else f"no task, but exit code 0: {said[-500:]}"  # an interpreter that is starting exits with 1
    [task] = ecs.describe_tasks(tasks=arns)["tasks"]
    stopped = task["lastStatus"] == "STOPPED"
    if case.detach:  # the client has printed the id and ended, or it has stopped the task
        id_printed = arns[0].rpartition("/")[2] in said if case.how != "terminal" else not stopped
        return "" if stopped is not id_printed else f"id printed: {id_printed}, stopped: {stopped} ({task.get('stoppedReason')})"
    if case.may_live:
        return "" if not stopped else f"ended, but should have lived: {task.get('stoppedReason')}"
    return "" if stopped else f"alive ({task['lastStatus']}), exit code {code}: {said[-500:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--restart-s", type=float, default=0.0, help="seconds between two restarts of the server; 0: none")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="corral-signals-") as folder:
        home = Path(folder)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "CORRAL_"))}
        environment = {**kept, "HOME": folder, "CORRAL_DATA": str(home / "data")}
        _start(environment)
        try:
            latest_s = LATEST_RUNS * _duration_s(environment, options.at_once)
            print(f"signals arrive up to {latest_s:.2f} s after the start", flush=True)
            cases = [draw(dice, number, latest_s) for number in range(options.cases)]
            return _run_all(cases, environment, home, options.at_once, options.restart_s)
        finally:
            subprocess.run([*CORRAL, "down", "--stop-tasks"], env=environment, check=False)


def _duration_s(environment: dict[str, str], at_once: int) -> float:
    """Return how long `corral run -- true` takes if several run at the same time."""
    began = time.monotonic()
    running = [subprocess.Popen([*CORRAL, "run", "--", "true"], env=environment) for _ in range(at_once)]
    for client in running:
        client.wait(CLIENT_MAX_S)
    return time.monotonic() - began


def _start(environment: dict[str, str]) -> None:
    up = [*CORRAL, "up", "--detach", "--port", str(PORT), "--gpus", "sim:2"]
    subprocess.run(up, env=environment, check=True, stdout=subprocess.DEVNULL)


def _restart(environment: dict[str, str], every_s: float, done: threading.Event) -> None:
    while not done.wait(every_s):
        subprocess.run([*CORRAL, "down"], env=environment, check=True, stdout=subprocess.DEVNULL)
        _start(environment)


def _run_all(cases: list[Case], environment: dict[str, str], home: Path, at_once: int, restart_s: float) -> int:
    about, keys = (json.loads((home / "data" / name).read_text()) for name in ("server.json", "credentials.json"))
    secrets = {"aws_access_key_id": keys["access_key"], "aws_secret_access_key": keys["secret_key"]}
    patient = Config(retries={"mode": "standard", "total_max_attempts": 8})
    ecs = boto3.client("ecs", region_name="us-east-1", endpoint_url=about["url"], config=patient, **secrets)
    wrong, codes = 0, Counter[str]()

    def one(case: Case) -> tuple[Case, int, str]:
        code, said = run(case, environment, home)
        problem = judge(ecs, case, code, said)
        for arn in ecs.list_tasks(family=case.name)["taskArns"]:  # frees the GPU of a task that has lived
            ecs.stop_task(task=arn)
        return case, code, problem

    done = threading.Event()
    restarts = threading.Thread(target=_restart, args=(environment, restart_s, done))
    if restart_s:
        restarts.start()
    with ThreadPoolExecutor(at_once) as threads:
        for case, code, problem in threads.map(one, cases):
            codes[f"{case.how} {case.signal.name} {code}"] += 1
            if problem:
                wrong += 1
                print(f"WRONG {case}: {problem}", flush=True)
    done.set()
    if restart_s:
        restarts.join()
    for what, number in sorted(codes.items()):
        print(f"{number:4} {what}")
    print(f"{len(cases)} cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
