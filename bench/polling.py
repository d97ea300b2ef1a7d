"""The response times of ListTasks while ten clients poll Corral's own operations, as `corral top` and `corral ps` do."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

from client import Caller, Unanswered, Wire, head, signed
from launches import TRUE
from local import Local, corral, register
from rows import Bench, Row, percentile

BUDGET_P99_MS = 5.0
CLIENTS = 10
POLL_S = 0.25  # between two requests of a client, so it calls each operation once a second, as `corral top` does
ASK_S = 0.005  # between two calls of ListTasks
GPUS = "sim:64"
WAITING = 1_000
OPERATIONS = (("GetStatus", {"tasks": 50}), ("DescribeHosts", {}), ("DescribeGpus", {}), ("ListRuns", {"cluster": "default"}))
# The pages that versions without these operations have.
PAGES = ("/_corral/status?tasks=50", "/_corral/status?tasks=0", "/_corral/runs?cluster=default&limit=50&region=us-east-1")


def rows(bench: Bench) -> list[Row]:
    for_s = bench.size(15, 3)
    with corral(bench, "polling", GPUS) as local:
        _fill(local)
        polled = _polled(local.port)
        alone, _ = _list_tasks(local, for_s)
        with _polling(local.port, polled):
            times_s, cpu_s = _list_tasks(local, for_s)
    what = f"ListTasks while {CLIENTS} clients poll status, hosts, GPUs and runs, 64 tasks run and {WAITING:,} wait"
    note = f"of {len(times_s):,}; p50 {percentile(times_s, 50) * 1e3:.1f} ms; the server used {cpu_s / for_s:.0%} of a core"
    p99_ms, alone_ms = (percentile(each, 99) * 1e3 for each in (times_s, alone))
    return [Row(f"{what}, p99", p99_ms, "ms", alone_ms, "without polls", BUDGET_P99_MS, note)]


def _fill(local: Local) -> None:
    """Each GPU has a task, and others wait."""
    call = Caller(local.port)
    for name, command, count in (("busy", ["/bin/sleep", "600"], 64), ("waits", [TRUE], WAITING)):
        family = register(call, name, command, gpus=1)
        for at in range(0, count, 10):
            call("ecs", "RunTask", taskDefinition=family, count=min(10, count - at))
    while len(call("ecs", "ListTasks", desiredStatus="RUNNING", family="busy")["taskArns"]) < 64:
        time.sleep(0.05)
    call.close()


def _polled(port: int) -> list[bytes]:
    operations = [signed(port, "corral", name, params) for name, params in OPERATIONS]
    wire = Wire(port)
    try:
        wire.ask(operations[0])
    except Unanswered:
        return [head(port, "corral", "GET", path, {}) for path in PAGES]
    finally:
        wire.close()
    return operations


def _list_tasks(local: Local, for_s: float) -> tuple[list[float], float]:
    """The times of ListTasks of one client, and the CPU time of the server meanwhile."""
    wire, request, times_s = Wire(local.port), signed(local.port, "ecs", "ListTasks", {}), list[float]()
    before_s, until = local.cpu_s()["server"], time.perf_counter() + for_s
    while (began := time.perf_counter()) < until:
        wire.ask(request)
        times_s.append(time.perf_counter() - began)
        time.sleep(ASK_S)
    wire.close()
    return times_s, local.cpu_s()["server"] - before_s


@contextmanager
def _polling(port: int, requests: Sequence[bytes]) -> Iterator[None]:
    """The clients are in another process, so that they do not delay the client that is measured."""
    process = multiprocessing.get_context("fork").Process(target=_poll_all, args=(port, requests), daemon=True)
    process.start()
    try:
        time.sleep(1)  # all are connected, and the server has imported what the operations need
        yield
        if not process.is_alive():
            raise Unanswered("a client that polls has failed")
    finally:
        process.terminate()
        process.join()


def _poll_all(port: int, requests: Sequence[bytes]) -> None:
    threads = [threading.Thread(target=_poll, args=(port, requests, number), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _poll(port: int, requests: Sequence[bytes], number: int) -> None:
    wire = Wire(port)
    time.sleep(POLL_S * number / CLIENTS)
    for request in cycle(requests):
        wire.ask(request)
        time.sleep(POLL_S)
