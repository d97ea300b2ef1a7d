"""The bare cost of launching processes here: the floor of everything that runs tasks."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from functools import lru_cache

from rows import Bench, Row

TRUE = "/bin/true"
ROUNDS = 3


def rows(bench: Bench) -> list[Row]:
    return [Row(f"launching {TRUE}: {name}", None, "/s", per_s, "floor") for name, per_s in floors(bench).items()]


@lru_cache(maxsize=1)
def floors(bench: Bench) -> dict[str, float]:
    """Launches per second, the best of some rounds: a floor is what the machine can do; measured once per run."""
    count, best = bench.size(1_000, 200), dict.fromkeys(WAYS, 0.0)
    for _ in range(ROUNDS):
        for name, (in_flight, launch) in WAYS.items():
            best[name] = max(best[name], _rate(count, in_flight, launch))
    return best


def best_floor(bench: Bench) -> tuple[float, str]:
    """The fastest way to launch from Python, and its name."""
    name, per_s = max(floors(bench).items(), key=lambda item: item[1])
    return per_s, name


def _rate(count: int, in_flight: int, launch: Callable[[], Callable[[], object]]) -> float:
    began, waiting = time.perf_counter(), []
    for _ in range(count):
        waiting.append(launch())
        if len(waiting) >= in_flight:
            waiting.pop(0)()
    for wait in waiting:
        wait()
    return count / (time.perf_counter() - began)


def _popen() -> Callable[[], object]:
    return subprocess.Popen([TRUE]).wait


def _posix_spawn() -> Callable[[], object]:
    pid = os.posix_spawn(TRUE, [TRUE], os.environ)
    return lambda: os.waitpid(pid, 0)


WAYS = {
    "Popen, one after the other": (1, _popen),
    "Popen, 2 in flight": (2, _popen),
    "posix_spawn, one after the other": (1, _posix_spawn),
    "posix_spawn, 2 in flight": (2, _posix_spawn),
}
