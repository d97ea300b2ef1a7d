"""Tasks per second, from the first RunTask to the last task seen stopped through the API."""

from __future__ import annotations

import json
import time
from itertools import repeat
from typing import Any

from client import Caller, Outcome, replay, signed
from launches import TRUE, best_floor
from local import Local, corral, register
from rows import Bench, Row

BUDGET_PER_S = 1_200.0
GPUS = "sim:64"
CONNECTIONS = 4
TASKS_PER_CALL = 10
DESCRIBED_PER_CALL = 100
STOPPED_MAX_S = 120.0


def rows(bench: Bench) -> list[Row]:
    count = bench.size(2_000, 400)
    floor, floor_name = best_floor(bench)
    found = []
    for what, gpus, logs, budget in (
        (f"process tasks/s, {count:,} × {TRUE}, each with a GPU and a log", 1, True, BUDGET_PER_S),
        (f"process tasks/s, {count:,} × {TRUE}, without GPU and log", 0, False, None),
    ):
        with corral(bench, "tasks", GPUS) as local:
            per_s, note = _run(local, count, gpus, logs)
        found.append(Row(what, per_s, "/s", floor, floor_name, budget, note))
    return found


def _run(local: Local, count: int, gpus: int, logs: bool) -> tuple[float, str]:
    call = Caller(local.port)
    family = register(call, "true", [TRUE], gpus=gpus, logs=logs)
    _start(local, family, 4 * TASKS_PER_CALL)  # the first ones pay for imports and files
    _until_all_stopped(call, None)
    before = local.cpu_s()
    began = time.perf_counter()
    outcome = _start(local, family, count)
    started_s = time.perf_counter() - began
    _until_all_stopped(call, _arns(outcome.bodies[-1])[-1])
    seconds = time.perf_counter() - began
    used = {role: (after - before[role]) / count * 1e6 for role, after in local.cpu_s().items()}
    _check(call, [arn for body in outcome.bodies for arn in _arns(body)], count, gpus)
    call.close()
    busy = ", ".join(f"{role} {cpu_us:.0f}" for role, cpu_us in used.items())
    return count / seconds, f"accepted after {started_s:.2f} s, stopped after {seconds:.2f} s; CPU µs a task: {busy}"


def _start(local: Local, family: str, count: int) -> Outcome:
    request = signed(local.port, "ecs", "RunTask", {"taskDefinition": family, "count": TASKS_PER_CALL})
    return replay(local.port, repeat(request, count // TASKS_PER_CALL), CONNECTIONS, keep=True)


def _arns(body: bytes) -> list[str]:
    reply = json.loads(body)
    if reply["failures"]:
        raise AssertionError(f"RunTask refused: {reply['failures'][0]}")
    return [task["taskArn"] for task in reply["tasks"]]


def _until_all_stopped(call: Caller, last: str | None) -> None:
    """Wait for the last task of the queue first, then for the remaining ones: a handful of calls in all."""
    deadline = time.monotonic() + STOPPED_MAX_S
    if last is not None:
        call("ecs", "DescribeTasks", wait_s=60, tasks=[last])
    while left := call("ecs", "ListTasks")["taskArns"]:  # those that should be running
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(left)} or more tasks have not stopped after {STOPPED_MAX_S} s")
        call("ecs", "DescribeTasks", wait_s=5, tasks=left[-1:])


def _check(call: Caller, arns: list[str], count: int, gpus: int) -> None:
    """Not timed: every task is there, stopped, with exit code 0 and its GPUs."""
    assert len(set(arns)) == count, f"{len(set(arns))} tasks of {count}"
    for at in range(0, count, DESCRIBED_PER_CALL):
        for task in call("ecs", "DescribeTasks", tasks=arns[at : at + DESCRIBED_PER_CALL])["tasks"]:
            _check_task(task, gpus)


def _check_task(task: dict[str, Any], gpus: int) -> None:
    container = task["containers"][0]
    right = task["lastStatus"] == "STOPPED" and container.get("exitCode") == 0 and len(container.get("gpuIds", [])) == gpus
    assert right, f"a task went wrong: {json.dumps(task)[:500]}"
