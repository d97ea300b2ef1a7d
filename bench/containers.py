"""Containers: tasks per second and RunTask to RUNNING, compared with direct calls to the same engine."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from client import Caller
from local import Local, corral, definition
from rows import Bench, Row, percentile

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # behind our own: it has folders of the same names

from engines.dockerd import BUSYBOX, Dockerd, clear_left_behind, only_networks, why_not

AT_ONCE = 8
TASKS_PER_CALL = 10
GOAL = 0.9  # of the engine's own rate
WARM_UP = 8


def rows(bench: Bench) -> list[Row]:
    if reason := why_not():
        raise RuntimeError(reason)
    with only_networks():
        clear_left_behind()
        return _rows(bench)


def _rows(bench: Bench) -> list[Row]:
    count = bench.size(200, 40)
    dockerd = Dockerd()
    os.environ["DOCKER_HOST"] = dockerd.host
    try:
        _bare_rate(dockerd, WARM_UP)
        found = []
        for what, logs in (("without a log", False), ("each with a log", True)):
            bare = _bare_rate(dockerd, count)
            with corral(bench, "containers", "none") as local:
                rate = _rate(local, count, logs=logs)
            bare = max(bare, _bare_rate(dockerd, count))  # before and after: what the engine can do changes with its age
            name = f"create, start, wait, remove; {AT_ONCE} at once"
            found.append(Row(f"container tasks/s, {count} × true, {what}", rate, "/s", bare, name, GOAL * bare))
        latencies = bench.size(30, 8)
        bare_ms = percentile([_bare_start(dockerd) for _ in range(latencies)], 50) * 1e3
        with corral(bench, "containers", "none") as local:
            took_ms = percentile([_to_running(local) for _ in range(latencies + 1)][1:], 50) * 1e3
        found.append(Row("container: RunTask to RUNNING, p50", took_ms, "ms", bare_ms, "create and start"))
        return found
    finally:
        del os.environ["DOCKER_HOST"]
        dockerd.close()


class Engine(http.client.HTTPConnection):
    def __init__(self, dockerd: Dockerd) -> None:
        super().__init__("docker")
        self._path = dockerd.host.removeprefix("unix://")

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        self.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = self.getresponse()
        text = answer.read()
        assert answer.status < 400, text
        return json.loads(text) if text else None


def _create(engine: Engine, *command: str) -> str:
    host = {"NetworkMode": "host", "Memory": 6 << 20, "CpuShares": 2}
    return engine.ask("POST", "/v1.41/containers/create", {"Image": BUSYBOX, "Cmd": command, "HostConfig": host})["Id"]


def _bare_rate(dockerd: Dockerd, count: int) -> float:
    def run_some(share: int) -> None:
        engine = Engine(dockerd)
        for _ in range(share):
            container = _create(engine, "true")
            engine.ask("POST", f"/v1.41/containers/{container}/start")
            engine.ask("POST", f"/v1.41/containers/{container}/wait")
            engine.ask("DELETE", f"/v1.41/containers/{container}")
        engine.close()

    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(run_some, [count // AT_ONCE] * AT_ONCE))
    return count // AT_ONCE * AT_ONCE / (time.perf_counter() - began)


def _bare_start(dockerd: Dockerd) -> float:
    engine = Engine(dockerd)
    began = time.perf_counter()
    container = _create(engine, "sleep", "60")
    engine.ask("POST", f"/v1.41/containers/{container}/start")
    took_s = time.perf_counter() - began
    engine.ask("DELETE", f"/v1.41/containers/{container}?force=1")
    engine.close()
    return took_s


def _register(call: Caller, command: list[str], *, logs: bool) -> str:
    about = definition("bench", command, logs=logs)
    about["containerDefinitions"][0] |= {"image": BUSYBOX, "stopTimeout": 0}
    call("ecs", "RegisterTaskDefinition", **about, networkMode="host")
    return "bench"


def _rate(local: Local, count: int, *, logs: bool) -> float:
    call = Caller(local.port)
    family = _register(call, ["true"], logs=logs)
    _run(call, family, TASKS_PER_CALL)
    began = time.perf_counter()
    _run(call, family, count)
    rate = count / (time.perf_counter() - began)
    call.close()
    return rate


def _run(call: Caller, family: str, count: int) -> None:
    arns: list[str] = []
    for _ in range(count // TASKS_PER_CALL):
        arns += [task["taskArn"] for task in call("ecs", "RunTask", taskDefinition=family, count=TASKS_PER_CALL)["tasks"]]
    for at in range(0, len(arns), 100):
        tasks = call("ecs", "DescribeTasks", wait_s=60, tasks=arns[at : at + 100])["tasks"]
        while any(task["lastStatus"] != "STOPPED" for task in tasks):
            tasks = call("ecs", "DescribeTasks", wait_s=60, tasks=arns[at : at + 100])["tasks"]
        assert all(task["containers"][0].get("exitCode") == 0 for task in tasks), tasks[0]


def _to_running(local: Local) -> float:
    call = Caller(local.port)
    family = _register(call, ["sleep", "60"], logs=True)
    began = time.perf_counter()
    [task] = call("ecs", "RunTask", taskDefinition=family)["tasks"]
    while task["lastStatus"] != "RUNNING":
        assert task["lastStatus"] != "STOPPED", task
        [task] = call("ecs", "DescribeTasks", wait_s=30, seen=task["version"], tasks=[task["taskArn"]])["tasks"]
    took_s = time.perf_counter() - began
    call("ecs", "StopTask", task=task["taskArn"])
    call("ecs", "DescribeTasks", wait_s=30, tasks=[task["taskArn"]])
    call.close()
    return took_s
