"""How soon Corral answers, and what it uses when nothing happens."""

from __future__ import annotations

import compileall
import shutil
import socket
import statistics
import time
from pathlib import Path

import machine
from client import Wire, signed
from local import Local
from local import corral as one_corral
from rows import Bench, Row
from simulated import Simulated

import corral

START_MAX_S = 1.0
IDLE_MAX_PERCENT = 1.0
IDLE_MAX_MB = 120.0
GPUS = "sim:8"
GIVE_UP_S = 30.0


def rows(bench: Bench) -> list[Row]:
    rounds, stopped = bench.size(5, 1), bench.size(10_000, 1_000)
    compileall.compile_dir(Path(corral.__file__).parent, quiet=1)  # as pip leaves what it installs
    bare = statistics.median(_bare_python() for _ in range(rounds))
    home = bench.fresh("start")
    fresh = [_start(home / f"fresh-{number}") for number in range(rounds)]
    _fill(home / "full", stopped)
    full = [_start(home / "full") for _ in range(rounds)]
    shutil.rmtree(home, ignore_errors=True)
    found = []
    for what, measured in (("a fresh folder", fresh), (f"a folder with {stopped:,} stopped tasks", full)):
        answered, cpu_s, ready = (statistics.median(times) for times in zip(*measured))
        note = f"{cpu_s:.2f} s of CPU; its agent had joined after {ready:.2f} s; median of {rounds}"
        found.append(Row(f"start to first answer, {what}", answered, "s", bare, "Python with the same imports", START_MAX_S, note))
    return [*found, *_idle(bench)]


def _start(data: Path) -> tuple[float, float, float]:
    """Seconds from exec to the first answered request, the server's CPU until then, and to its word that all is up."""
    data.mkdir(exist_ok=True)
    local = Local(data, GPUS, _free_port())
    request = signed(local.port, "sts", "GetCallerIdentity", {})
    began = time.perf_counter()
    local.launch()
    try:
        wire = _connect(local.port)
        wire.ask(request)
        answered_s, cpu_s = time.perf_counter() - began, machine.cpu_s(local.process.pid)
        wire.close()
        local.wait_ready()
        return answered_s, cpu_s, time.perf_counter() - began
    finally:
        local.stop()


def _connect(port: int) -> Wire:
    until = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return Wire(port)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.002)  # between two tries


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _bare_python() -> float:
    """What a Python program with the same imports takes to be there at all."""
    began = time.perf_counter()
    machine.run_python("import botocore.session, httptools, uvloop, orjson, sqlite3")
    return time.perf_counter() - began


def _fill(data: Path, count: int) -> None:
    """Leave a folder as if that many tasks had run there lately."""
    data.mkdir()
    core = Simulated(data / "state.db", time.time())
    core.join([(0, 10**9, 10**9)])
    core.register("done", 0)
    core.run_tasks("done", count)
    for at in range(0, count, 200):
        core.end(core.placed[at : at + 200])
    core.store.close()


def _idle(bench: Bench) -> list[Row]:
    for_s = 3.0 if bench.quick else 20.0
    with one_corral(bench, "idle", GPUS) as local:
        time.sleep(2.0)  # what a start leaves to do
        before = local.cpu_s()
        time.sleep(for_s)
        used = {role: (after - before[role]) / for_s * 100 for role, after in local.cpu_s().items()}
        pss = {role: machine.pss_mb(pid) for role, pid in local.pids.items()}
        rss = {role: machine.rss_mb(pid) for role, pid in local.pids.items()}
    cpu_note = f"over {for_s:.0f} s: " + ", ".join(f"{role} {percent:.2f}%" for role, percent in used.items())
    rss_note = "RSS " + ", ".join(f"{role} {megabytes:.0f}" for role, megabytes in rss.items())
    pss_note = "PSS " + ", ".join(f"{role} {megabytes:.0f}" for role, megabytes in pss.items())
    return [
        Row("idle CPU, server + agent + spawner", sum(used.values()), "% of a core", budget=IDLE_MAX_PERCENT, note=cpu_note),
        Row("idle memory (PSS), server + agent + spawner", sum(pss.values()), "MB", budget=IDLE_MAX_MB,
            note=f"{pss_note}; {rss_note}"),
    ]  # fmt: skip
