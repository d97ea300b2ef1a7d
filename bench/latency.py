"""From just before RunTask is sent to the task's first instruction."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client import Caller, Wire, signed
from local import Local, corral, register
from rows import Bench, Row, percentile

BUDGET_P50_MS = 5.0
TOUCH = "/usr/bin/touch"  # a small C program whose first act is to open and close the named pipe that we watch
FIRST_ACT_MAX_MS = 20_000
WARM_UP = 5  # the first ones pay for imports


def rows(bench: Bench) -> list[Row]:
    count, found = bench.size(200, 30), []
    pipe = bench.fresh("pipe") / "pipe"
    os.mkfifo(pipe)
    bare = [_bare(pipe) for _ in range(count)]
    for what, logs in (("process, one GPU, awslogs", True), ("process, one GPU, no log", False)):
        with corral(bench, "latency", "sim:8") as local:
            measured = _measure(local, pipe, count, logs)
        for percent in (50, 95):
            took, replied = (percentile(times, percent) * 1e3 for times in zip(*measured))
            budget = BUDGET_P50_MS if logs and percent == 50 else None
            what_is = f"RunTask to the first instruction, p{percent}: {what}"
            floor = percentile(bare, percent) * 1e3
            found.append(Row(what_is, took, "ms", floor, f"Popen of {TOUCH}", budget, f"the reply came after {replied:.1f} ms"))
    return found


def _measure(local: Local, pipe: Path, count: int, logs: bool) -> list[tuple[float, float]]:
    """Seconds to the first act of the task and to the reply; one task at a time, each after the end of the one before."""
    call, wire = Caller(local.port), Wire(local.port)
    family = register(call, "touch", [TOUCH, str(pipe)], gpus=1, logs=logs)
    request = signed(local.port, "ecs", "RunTask", {"taskDefinition": family})
    measured = []
    for _ in range(count + WARM_UP):
        first_act_s, reply_s, reply = _run_one(pipe, wire, request)
        measured.append((first_act_s, reply_s))
        call("ecs", "DescribeTasks", wait_s=30, tasks=[json.loads(reply)["tasks"][0]["taskArn"]])
    call.close()
    wire.close()
    return measured[WARM_UP:]


def _run_one(pipe: Path, wire: Wire, request: bytes) -> tuple[float, float, bytes]:
    """(seconds to the first act, seconds to the reply, the reply)"""
    first_act_s, reply_s, reply = 0.0, 0.0, b""
    with _watched(pipe) as (poll, reader):
        poll.register(wire.socket, select.POLLIN)
        began = time.perf_counter()
        wire.send(request)
        while not (first_act_s and reply):
            for fd, _ in _wait(poll):
                took_s = time.perf_counter() - began
                if fd == reader:
                    first_act_s = took_s
                    poll.unregister(reader)
                elif (body := wire.receive()) is not None:
                    reply, reply_s = body, took_s
                    poll.unregister(wire.socket)
    return first_act_s, reply_s, reply


def _bare(pipe: Path) -> float:
    """Seconds to the first act of the same program, launched by us."""
    with _watched(pipe) as (poll, _):
        began = time.perf_counter()
        process = subprocess.Popen([TOUCH, str(pipe)])
        _wait(poll)
        took_s = time.perf_counter() - began
    process.wait()
    return took_s


@contextmanager
def _watched(pipe: Path) -> Iterator[tuple[select.poll, int]]:
    """Tells of the first one who has opened and closed the pipe."""
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    try:
        yield poll, reader
    finally:
        os.close(reader)


def _wait(poll: select.poll) -> list[tuple[int, int]]:
    happened = poll.poll(FIRST_ACT_MAX_MS)
    if not happened:
        raise AssertionError(f"nothing happened in {FIRST_ACT_MAX_MS} ms")
    return happened
