"""Requests per second against a client that replays signed requests, compared with an empty web application."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import machine
from client import Caller, Outcome, replay, signed
from launches import TRUE
from local import Local, corral, register
from peers import PYTHON
from rows import Bench, Row

CONNECTIONS = 8
WAITING = 100


def rows(bench: Bench) -> list[Row]:
    for_s = 1.0 if bench.quick else 3.0
    with corral(bench, "calls", "sim:64") as local:
        found = _reads(local, for_s)
    with corral(bench, "queue", "none") as local:
        found += _queueing(local, bench.size(4_000, 500), for_s)
    return [_row(each, for_s) for each in found]


class Measured(NamedTuple):
    what: str
    outcome: Outcome
    cpu_s: float
    note: str = ""


def _reads(local: Local, for_s: float) -> list[Measured]:
    call = Caller(local.port)
    family = register(call, "true", [TRUE], gpus=1, logs=True)
    arns = _run_tasks(call, family, 100)
    for arn in arns:
        call("ecs", "DescribeTasks", wait_s=30, tasks=[arn])
    call.close()
    return [
        _timed(local, "STS GetCallerIdentity", repeat(signed(local.port, "sts", "GetCallerIdentity", {})), for_s),
        _timed(local, "DescribeTasks, 1 stopped task", repeat(_describe(local, arns[:1])), for_s),
        _timed(local, "DescribeTasks, 100 stopped tasks", repeat(_describe(local, arns)), for_s),
    ]


def _queueing(local: Local, count: int, for_s: float) -> list[Measured]:
    """Tasks that no host can hold: RunTask writes them, and nothing starts."""
    call = Caller(local.port)
    family = register(call, "queued", [TRUE], gpus=1, logs=True)
    request = signed(local.port, "ecs", "RunTask", {"taskDefinition": family})
    quarters = [_timed(local, "", repeat(request, count // 4), 1e9, keep=True) for _ in range(4)]
    whole = Outcome()
    for _, outcome, *_ in quarters:
        whole.answers += outcome.answers
        whole.seconds += outcome.seconds
        whole.client_cpu_s += outcome.client_cpu_s
        whole.times_s += outcome.times_s
        whole.body_bytes = outcome.body_bytes
    arns = [json.loads(body)["tasks"][0]["taskArn"] for _, outcome, *_ in quarters for body in outcome.bodies]
    growth = f"CPU of the last quarter {quarters[3].cpu_s / quarters[0].cpu_s:.2f}× the first"
    found = [Measured(f"RunTask, {count:,} tasks that wait", whole, sum(each.cpu_s for each in quarters), growth)]
    found.append(_timed(local, "DescribeTasks, 1 waiting task", repeat(_describe(local, arns[-1:])), for_s))
    found.append(_timed(local, "DescribeTasks, 100 waiting tasks", repeat(_describe(local, arns[-WAITING:])), for_s))
    stops = [signed(local.port, "ecs", "StopTask", {"task": arn}) for arn in arns[: count // 4]]
    found.append(_timed(local, "StopTask of waiting tasks", iter(stops), 1e9))
    call.close()
    return found


def _timed(local: Local, what: str, requests: Iterator[bytes], for_s: float, *, keep: bool = False) -> Measured:
    before = local.cpu_s()["server"]
    outcome = replay(local.port, requests, CONNECTIONS, for_s, keep=keep)
    return Measured(what, outcome, local.cpu_s()["server"] - before)


def _row(measured: Measured, for_s: float) -> Row:
    """The peer: an empty application that answers with a body of the same size."""
    outcome = measured.outcome
    with empty_app(outcome.body_bytes) as (port, pid):
        before = machine.cpu_s(pid)
        floor = replay(port, repeat(signed(port, "sts", "GetCallerIdentity", {})), CONNECTIONS, for_s / 3)
        floor_us = (machine.cpu_s(pid) - before) / floor.answers * 1e6
    name = f"empty uvicorn app, {outcome.body_bytes:,} B"
    note = "; ".join(filter(None, [measured.note, outcome.note(measured.cpu_s), f"the empty app's CPU {floor_us:.0f} µs each"]))
    return Row(f"requests/s: {measured.what}", outcome.per_s, "/s", floor.per_s, name, note=note)


@contextmanager
def empty_app(body_bytes: int) -> Iterator[tuple[int, int]]:
    """(port, pid) of the floor for HTTP: uvicorn with uvloop and httptools, and nothing behind it."""
    reader, writer = os.pipe()
    command = [str(PYTHON), str(Path(__file__).with_name("empty_app.py")), str(body_bytes), str(writer)]
    process = subprocess.Popen(command, pass_fds=(writer,), stdout=subprocess.DEVNULL)
    os.close(writer)
    try:
        with open(reader) as ready:
            line = ready.readline()
        if not line:
            raise RuntimeError("the empty application did not start")
        yield int(line), process.pid
    finally:
        process.kill()
        process.wait()


def _describe(local: Local, arns: list[str]) -> bytes:
    return signed(local.port, "ecs", "DescribeTasks", {"tasks": arns})


def _run_tasks(call: Caller, family: str, count: int) -> list[str]:
    replies: list[Any] = [call("ecs", "RunTask", taskDefinition=family, count=10) for _ in range(count // 10)]
    return [task["taskArn"] for reply in replies for task in reply["tasks"]]
