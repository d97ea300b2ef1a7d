"""A core in this process, with hosts that only exist on paper: on disk as always, on a clock that stands still."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from local import definition
from rows import Bench

from corral.clock import VirtualClock
from corral.core import Command, Core, Tx
from corral.errors import ApiError
from corral.ids import RandomIds, simulated_gpu_id
from corral.model.run import GpuDevice, Hello, Observed
from corral.model.settings import Settings
from corral.reconcile import STATE
from corral.services import hosts
from corral.services.caller import Caller
from corral.services.ecs.handlers import HANDLERS
from corral.store import Store

GPUS_PER_HOST = 8
COMMANDS_PER_BATCH = 25  # what a busy server finds waiting
TASKS_PER_CALL = 10
CALLER = Caller("123456789012", "us-east-1", "arn:aws:iam::123456789012:root")
STARTED_S, STOPPED_S = 1.0, 2.0


class Simulated:
    def __init__(self, path: Path, now_s: float = 1_700_000_000.0) -> None:
        self.store = Store(path)
        self._now_s = now_s
        clock = VirtualClock(now_s)
        self._core = Core(self.store, settings=Settings(), clock=clock, ids=RandomIds(), reconcilers=STATE)
        self.placed: list[tuple[str, str]] = []  # (host, run) of all that was ordered to start

    def run(self, handlers: Sequence[Callable[[Tx[Store]], Any]]) -> list[Any]:
        """One batch; its answers. A refusal or a fault is raised."""
        outbox = self._core.batch([Command(handler, _nobody) for handler in handlers])
        if outbox.faults:
            raise AssertionError(outbox.faults[0])
        for host_id, orders in outbox.orders.items():
            self.placed += [(host_id, start.spec.run_id) for start in orders.start]
        answers = [answer for _, answer in outbox.answers]
        for answer in answers:
            if isinstance(answer, ApiError):
                raise answer
        return answers

    def call(self, operation: str, params: dict[str, Any]) -> Callable[[Tx[Store]], Any]:
        return lambda tx: HANDLERS[operation](tx, params, CALLER)

    def join(self, sizes: Sequence[tuple[int, int, int]]) -> None:
        """Hosts of these sizes (GPUs, CPU units, MiB) say hello."""
        said = [_hello(number, size) for number, size in enumerate(sizes)]
        for at in range(0, len(said), 200):
            self.run([lambda tx, one=one: hosts.hello(tx, one) for one in said[at : at + 200]])

    def register(self, family: str, gpus: int) -> None:
        self.run([self.call("RegisterTaskDefinition", definition(family, ["/bin/true"], gpus=gpus, logs=True))])

    def run_tasks(self, family: str, count: int) -> None:
        """RunTask in batches, as a busy server has them."""
        one_call = self.call("RunTask", {"taskDefinition": family, "count": TASKS_PER_CALL})
        for at in range(0, count // TASKS_PER_CALL, COMMANDS_PER_BATCH):
            self.run([one_call] * min(COMMANDS_PER_BATCH, count // TASKS_PER_CALL - at))

    def end(self, runs: Sequence[tuple[str, str]]) -> None:
        """These runs' hosts say that they have ended, one report each."""
        self.run([lambda tx, one=one: hosts.report(tx, one[0], [self._ended(one[1])]) for one in runs])

    def _ended(self, run_id: str) -> Observed:
        return Observed(run_id, 1, self._now_s + STARTED_S, self._now_s + STOPPED_S, 0)


@contextmanager
def simulated(bench: Bench, name: str) -> Iterator[Simulated]:
    """A fresh one, removed afterwards."""
    home = bench.fresh(name)
    core = Simulated(home / "state.db")
    try:
        yield core
    finally:
        core.store.close()
        shutil.rmtree(home, ignore_errors=True)


def _hello(number: int, size: tuple[int, int, int]) -> Hello:
    host_id, (gpus, cpu_units, memory_mib) = f"{number:032x}", size
    devices = [GpuDevice(simulated_gpu_id(host_id, at), at, "H100", 81_559, simulated=True) for at in range(gpus)]
    return Hello(host_id, "boot", f"host-{number}", "sim", cpu_units, memory_mib, devices, [])


def _nobody(_: Any) -> None:
    """No caller waits for the answer."""
