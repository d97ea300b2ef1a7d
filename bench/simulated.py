"""A core in this process, with hosts that only exist on paper: on disk as always, on a clock that moves only in `settle`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from local import definition
from rows import Bench

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.errors import ApiError
from corral.core.ids import RandomIds, simulated_gpu_id
from corral.core.transactions import Tx
from corral.model.agent_protocol import Hello
from corral.model.gpu import GpuDevice
from corral.model.principal import root_user
from corral.model.run import Observed
from corral.model.settings import Settings
from corral.operations.services import SERVICES
from corral.reconcile import STATE
from corral.services.ecs import host_reports
from corral.store import Store

GPUS_PER_HOST = 8
COMMANDS_PER_TRANSACTION = 25  # what a busy server finds waiting
TASKS_PER_CALL = 10
CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
STARTED_S, STOPPED_S = 1.0, 2.0
SOON_S = 0.02  # large changes are continued in later transactions, which are due sooner than this
SETTLED_MAX = 100_000


class Simulated:
    def __init__(self, path: Path, now_s: float = 1_700_000_000.0) -> None:
        self.store = Store(path)
        self._now_s = now_s
        self._clock = VirtualClock(now_s)
        self._core = Core(self.store, settings=Settings(), clock=self._clock, ids=RandomIds(), reconcilers=STATE)
        self.placed: list[tuple[str, str]] = []  # (host, run) of all that was ordered to start
        self.stopping: list[tuple[str, str]] = []  # (host, run) of all that was ordered to stop
        self.batch_s: list[float] = []  # the wall time of each transaction

    def run(self, handlers: Sequence[Callable[[Tx[Store]], Any]]) -> list[Any]:
        """One batch; its answers. A refusal or a fault is raised."""
        began = time.perf_counter()
        outbox = self._core.transact([Command(handler, _nobody) for handler in handlers])
        self.batch_s.append(time.perf_counter() - began)
        if outbox.faults:
            raise AssertionError(outbox.faults[0])
        for host_id, orders in outbox.orders.items():
            self.placed += [(host_id, start.spec.run_id) for start in orders.start]
            self.stopping += [(host_id, run_id) for run_id in orders.stop]
        answers = [answer for _, answer in outbox.answers]
        for answer in answers:
            if isinstance(answer, ApiError):
                raise answer
        return answers

    def settle(self) -> None:
        """Run what is due now or very soon, until nothing is."""
        for _ in range(SETTLED_MAX):
            due_s, now_s = self._core.next_due_s(), self._clock.now_s()
            if due_s is None or due_s > now_s + SOON_S:
                return
            self._clock.advance(max(0.0, due_s - now_s) + 1e-6)
            self.run([])
        raise AssertionError("work is due again and again")

    def call(self, operation: str, params: dict[str, Any], service: str = "ecs") -> Callable[[Tx[Store]], Any]:
        return lambda tx: SERVICES[service].operations[operation](tx, params, CALLER)

    def join(self, sizes: Sequence[tuple[int, int, int]]) -> None:
        """Hosts of these sizes (GPUs, CPU units, MiB) say hello."""
        said = [_hello(number, size) for number, size in enumerate(sizes)]
        for at in range(0, len(said), 200):
            self.run([lambda tx, one=one: host_reports.hello(tx, one) for one in said[at : at + 200]])

    def register(self, family: str, gpus: int) -> None:
        self.run([self.call("RegisterTaskDefinition", definition(family, ["/bin/true"], gpus=gpus, logs=True))])

    def run_tasks(self, family: str, count: int) -> None:
        """RunTask in batches, as a busy server has them."""
        one_call = self.call("RunTask", {"taskDefinition": family, "count": TASKS_PER_CALL})
        for at in range(0, count // TASKS_PER_CALL, COMMANDS_PER_TRANSACTION):
            self.run([one_call] * min(COMMANDS_PER_TRANSACTION, count // TASKS_PER_CALL - at))

    def end(self, runs: Sequence[tuple[str, str]]) -> None:
        """These runs' hosts say that they have ended, one report each."""
        self.run([lambda tx, one=one: host_reports.report(tx, one[0], [self._ended(one[1])]) for one in runs])

    def start(self, runs: Sequence[tuple[str, str]]) -> None:
        """These runs' hosts say that they have started, one report each."""
        self.run(
            [lambda tx, one=one: host_reports.report(tx, one[0], [Observed(one[1], 1, self._now_s + STARTED_S)]) for one in runs]
        )

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
    return Hello(host_id, "boot", f"host-{number}", cpu_units, memory_mib, devices, [])


def _nobody(_: Any) -> None:
    """No caller waits for the answer."""
