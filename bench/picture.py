"""`make picture`: record a day of a machine with four simulated GPUs, and draw the pictures of `docs/pictures`.

The runs of the day take seconds, and the pictures show a second as a minute. The commands run through a proxy, which converts the
times in requests and responses. Names of this machine, ids and the date are replaced, so that the pictures of two recordings differ
little. Simulated GPUs are as busy as the processes that hold them, so the runs compute and sleep in turns.

`make picture` takes four minutes; run it on an idle machine. After a change of a screen, `make redraw` draws the saved responses
again, in seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from picture_screens import FOLDER, RESPONSES, SCREENS, Request, Screen, run_in_terminal, serve, write_pictures

from corral.cli.client.http import ConnectionPool, SigningKeys, signed_headers

SCALE = 60  # a second is shown as a minute
END = datetime(2026, 3, 2, 17, 0, tzinfo=UTC)  # the time in the pictures
HOME, HOST_NAME, URL = "/home/you/project", "workstation", "http://127.0.0.1:4566"
GRID_S = 10  # the pictures are taken at a multiple of this time, so that periods of metrics stay aligned

# Variables of the environment control the run, so that its command is short.
TRAIN = """\
import math, os, signal, sys, time

settings = os.environ
os.nice(19)  # the time in which a run waits for a core counts as load, too
load, index = float(settings["LOAD"]), int(settings.get("CORRAL_INDEX", 0))
end_s = time.monotonic() + float(settings["MINUTES"]) * (1 + 0.4 * index)
for _ in range(int(settings["PROCESSES"]) - 1):
    if os.fork() == 0:
        break
memory = b"x" * (int(settings["MEMORY_MIB"]) << 20)
while time.monotonic() < end_s:
    share = load * (0.75 + 0.25 * math.sin(time.monotonic() / 5 + index))
    until_s = time.monotonic() + 0.2 * share
    while time.monotonic() < until_s:
        pass
    time.sleep(0.2 * (1 - share))
if settings["EXIT"] == "137":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(settings["EXIT"]))
"""


class Day:
    """A Corral in a temporary folder, and the runs that a user submits to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder), "CORRAL_DATA": str(folder / "data"),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TZ": "UTC", "LC_ALL": "C.UTF-8",
        }  # fmt: skip
        self._begin_s = time.monotonic()
        self._commit()

    def _commit(self) -> None:
        """Commit the program, with fixed times, so that the commit is always the same."""
        self.folder.mkdir()
        for name in ("prepare.py", "train.py", "evaluate.py"):
            (self.folder / name).write_text(TRAIN)
        who = {f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in (
            ("NAME", "You"), ("EMAIL", "you@example.com"), ("DATE", "2026-03-02T09:00:00Z"),
        )}  # fmt: skip
        for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "Train")):
            subprocess.run(["git", *words], cwd=self.folder, env={**self.environment, **who}, check=True)

    def corral(self, *words: str, **variables: object) -> str:
        environment = self.environment | {name: str(value) for name, value in variables.items()}
        command = [sys.executable, "-m", "corral", *words]
        return subprocess.run(command, env=environment, cwd=self.folder, stdout=subprocess.PIPE, text=True, check=True).stdout

    def submit(self, options: str, command: str, *, minutes: float = 60, load: float = 0.5, memory_mib: int = 700, code: int = 0,
               processes: int = 1) -> None:  # fmt: skip
        variables = {"MINUTES": minutes, "LOAD": load, "MEMORY_MIB": memory_mib, "EXIT": code, "PROCESSES": processes}
        self.corral("run", "--detach", *options.split(), "--", "python", *command.split(), **variables)

    def wait_until(self, minute: float) -> None:
        time.sleep(max(0.0, self._begin_s + minute - time.monotonic()))

    def run(self) -> None:
        self.corral("up", "--detach", "--port", "0", "--gpus", "sim:4xL4")
        self._begin_s = time.monotonic()
        self.submit("-n pretrain -g 2 -t 480s", "train.py --config pretrain.yaml", minutes=1000, load=0.85,
                    memory_mib=1500, processes=2)  # fmt: skip
        self.submit("-n prepare", "prepare.py --shards 64", minutes=6, memory_mib=100)
        self.submit("-n smoke-test -g 1", "train.py --steps 10", minutes=2, code=1)
        self.submit("-n baseline -g 1 -t 180s --after prepare", "train.py --config baseline.yaml --seed 1", minutes=125, load=0.8,
                    memory_mib=1100)  # fmt: skip
        self.wait_until(8)
        self.submit("-n batch-512 -g 1", "train.py --batch-size 512", minutes=4, load=0.9, memory_mib=1800, code=137)
        self.wait_until(11)
        self.submit("-n lr-sweep -g 1 -t 120s --array 0-5%2", "train.py --config sweep.yaml", minutes=50)
        self.wait_until(140)
        self.submit("-n evaluate -g 2 -t 60s", "evaluate.py --split test")
        self.wait_until(150)
        self.submit("-n finetune -g 4 -t 720s", "train.py --config finetune.yaml")
        self.submit("-n report --after evaluate", "evaluate.py --report")
        self.wait_until(160)
        self.submit("-n nightly -g 1 --hold", "train.py --config nightly.yaml")
        self.wait_until(185)


class _Clock:
    """Converts the times of Corral to those in the pictures, and back."""

    def __init__(self) -> None:
        time.sleep(GRID_S - time.time() % GRID_S)
        self._now_s, self._end_s = int(time.time()), int(END.timestamp())

    def shown(self, name: str, value: Any) -> Any:
        """Convert a member of a response, and all its members."""
        if isinstance(value, dict):
            if value.get("key") == "corral:time-limit":
                return {**value, "value": str(int(value["value"]) * SCALE)}
            return {each: self.shown(each, value[each]) for each in value}
        if isinstance(value, list):
            return [] if name == "environment" else [self.shown(name, each) for each in value]
        if isinstance(value, int | float) and (name.endswith(("At", "AtS")) or name in ("sinceS", "Timestamps")):
            return round(self._end_s + (value - self._now_s) * SCALE)
        if isinstance(value, int | float) and name in ("waitingSeconds", "wallSeconds"):
            return round(value * SCALE)
        return {"url": URL, "pid": 4566}.get(name, value)

    def real(self, body: bytes) -> bytes:
        """Convert a request."""
        content = json.loads(body or b"{}")
        for name in content.keys() & {"StartTime", "EndTime"}:
            content[name] = self._now_s + (content[name] - self._end_s) / SCALE
        for query in content.get("MetricDataQueries", ()):
            query["MetricStat"]["Period"] = round(query["MetricStat"]["Period"] / SCALE)
        return json.dumps(content).encode() if body else b""


def record(screens: Sequence[Screen]) -> dict[str, Any]:
    """Return the responses to the requests of some commands, and the time at which the commands have run."""
    with tempfile.TemporaryDirectory(prefix="corral-picture-") as folder:
        day = Day(Path(folder))
        try:
            day.run()
            found = _responses(day, screens)
        finally:
            day.corral("down", "--stop-tasks")
        text = json.dumps(found).replace(str(day.folder), HOME).replace(folder, str(Path(HOME).parent))
    content = json.loads(_anonymous(text))
    return {"date": END.strftime("%a, %d %b %Y %H:%M:%S GMT"), "responses": content}


def _responses(day: Day, screens: Sequence[Screen]) -> dict[str, Any]:
    variables, clock = json.loads(day.corral("env", "--json")), _Clock()
    keys = SigningKeys(variables["AWS_ACCESS_KEY_ID"], variables["AWS_SECRET_ACCESS_KEY"], variables["AWS_DEFAULT_REGION"])
    pool = ConnectionPool(variables["AWS_ENDPOINT_URL"], connect_s=5, read_s=30)
    found: dict[str, Any] = {}

    def forward(request: Request) -> Any:
        service = request.headers["authorization"].split("/")[3]  # of `Credential=KEY/DATE/REGION/SERVICE/aws4_request`
        kept = {name: request.headers[name] for name in ("content-type", "x-amz-target") if name in request.headers}
        body = clock.real(request.body)
        signed = signed_headers(keys, service, pool.host_header, request.method, request.path, kept, body)
        response = pool.send(request.method, request.path, signed, body)
        assert response.status == 200, f"{request.key}: {response.body!r}"
        found[request.key] = clock.shown("", json.loads(response.body))
        return found[request.key]

    with serve(forward, END.strftime("%a, %d %b %Y %H:%M:%S GMT")) as url:
        for screen in screens:
            run_in_terminal(screen, url)
    return found


def _anonymous(text: str) -> str:
    """Replace the name of this machine, and random ids by the same ids in each recording."""
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", HOST_NAME, text)
    for pattern in (r"\b[0-9a-f]{32}\b", r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", r"(?<=corral-array/)[0-9a-f]{12}\b"):
        for number, old in enumerate(dict.fromkeys(re.findall(pattern, text))):
            digits = iter(hashlib.sha256(f"{pattern} {number}".encode()).hexdigest())
            new = "".join(each if each == "-" else next(digits) for each in old)
            text = text.replace(old, new)
            text = re.sub(rf"\b{old[:8]}\b(?!-)", new[:8], text) if len(old) == 32 else text
    return text


def main() -> None:
    if sys.argv[1:] != ["--redraw"]:
        FOLDER.mkdir(exist_ok=True)
        RESPONSES.write_text(json.dumps(record(SCREENS), indent=1) + "\n")
    write_pictures()


if __name__ == "__main__":
    main()
