"""The agent: obeys the core, watches the engine, and reports.

One report is on its way at a time. What happens meanwhile waits for the acknowledgement and goes into the next one, so
a busy host sends few large reports and a quiet one small prompt ones, with nothing to tune.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.clock import Clock
from corral.model.run import (
    HEARTBEAT_S,
    Ack,
    Declined,
    Execute,
    Foreign,
    Health,
    Hello,
    Measure,
    Measured,
    Orders,
    Report,
    ToAgent,
)
from corral.node import node_folder
from corral.node.engine import CannotExecute, Engine, Known
from corral.node.gpus import Gpus
from corral.node.health_checks import Checks
from corral.node.host import Host
from corral.node.inotify import FolderWatch
from corral.node.json_lines import Lines, attach
from corral.node.log_shipper import Shipper
from corral.node.report_builder import Outbox
from corral.node.usage import Earlier, usage_of

RECONNECT_FIRST_S = 0.02
RECONNECT_MAX_S = 1.0
ALONE_MAX_S = 60.0  # without a core and without a live run, then the agent is of no use
LOG_PAUSE_S = 0.05  # between reports that carry nothing but logs: a program that prints all the time is sent in batches
SAMPLE_S = 1.0  # while a GPU is in use, by whomever; otherwise once a heartbeat
ORDERS_MAX_BYTES = 256 * 1024 * 1024

log = logging.getLogger("corral.node")


class Agent:
    def __init__(
        self, data: Path, host: Host, gpus_flag: str, gpus: Gpus, engine: Engine, clock: Clock, excluded_gpus: str = "",
        runtime: str = "process",
    ) -> None:  # fmt: skip
        self._data = data
        self._host = host
        self._gpus_flag = gpus_flag
        self._gpus = gpus
        self._excluded_gpus = excluded_gpus
        self._runtime = runtime
        self._foreign: dict[str, list[Foreign]] = {}  # GPU → processes on it that are not of a run, if there are any
        self._engine = engine
        self._watch = FolderWatch(data / "output")
        self._shipper = Shipper(data / "output", clock)
        self._outbox = Outbox(engine.observe, self._shipper)
        self._clock = clock
        self._earlier = Earlier()
        self._answering: set[asyncio.Task[None]] = set()
        self._checks = Checks(data, os.environ, clock, self._judged)
        self._wake = asyncio.Event()
        self._written = False  # the watch has something to say
        self._reported_at = 0.0
        self._logs_at = 0.0
        self._connected_at = time.monotonic()
        self._core: Lines[ToAgent] | None = None
        self._answer: asyncio.Future[Ack | None] | None = None  # of the hello or report under way
        self._welcomed = False
        self._unwanted: str | None = None

    async def run(self) -> None:
        """Until the core says quit, or there is neither a core nor anything alive."""
        self._listen_for_output()
        sampler: asyncio.Task[None] | None = None
        try:
            await self._engine.open(self._engine_changed)
            await self._sample_once()  # before the first hello: it says which GPUs others use
            sampler = asyncio.create_task(self._sample())
            wait_s = RECONNECT_FIRST_S
            while self._unwanted is None and not self._is_pointless():
                began_at = time.monotonic()
                if await self._converse():
                    self._connected_at = time.monotonic()
                    if self._connected_at > began_at + RECONNECT_MAX_S:  # one that hangs up at once is not hurried
                        wait_s = RECONNECT_FIRST_S
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, RECONNECT_MAX_S)
            log.info("ending: %s", self._unwanted or "no core and nothing to look after")
        finally:
            if sampler is not None:
                sampler.cancel()
            await self._checks.close()
            await self._engine.close(quit=True)

    def _is_pointless(self) -> bool:
        alive = any(run.alive for run in self._engine.observe().values())
        return not alive and time.monotonic() > self._connected_at + ALONE_MAX_S

    # -- the conversation ----------------------------------------------------------------------------------------

    async def _converse(self) -> bool:
        """One connection, from hello to its loss. False when there was none."""
        try:
            core = await attach(node_folder.connect(self._data, "core.sock"), ToAgent, self._heard, self._lost, ORDERS_MAX_BYTES)
        except OSError:
            return False
        self._core = core
        try:
            await self._say_hello()
            while True:
                await self._until_due()
                await self._report()
        except ConnectionError:
            return True
        finally:
            self._welcomed = False
            await core.abort()

    async def _say_hello(self) -> None:
        host = self._host
        runs = self._outbox.hello()
        excluded = self._excluded_gpus.split(",")
        hello = Hello(
            host_id=host.host_id,
            boot_id=host.boot_id,
            name=host.name,
            gpus_flag=self._gpus_flag,
            cpu_units=host.cpu_units,
            memory_mib=host.memory_mib,
            gpus=[replace(gpu, excluded=gpu.gpu_id in excluded) for gpu in self._gpus.devices()],
            runs=runs,
            runtime=self._runtime,
            docker=self._engine.docker,
            excluded_gpus=self._excluded_gpus,
            links=self._gpus.links(),
            foreign=self._foreign,
        )
        await self._ask({"hello": hello})
        self._reported_at = time.monotonic()
        self._engine.forget([run.run_id for run in runs if run.stopped_at_s is not None])

    async def _until_due(self) -> None:
        """Wait for something worth a report: a change at once, logs after a pause, a heartbeat in any case."""
        while True:
            due_at = self._reported_at + HEARTBEAT_S
            if self._outbox.urgent:
                return
            if self._written or self._shipper.has_work:
                due_at = min(due_at, self._logs_at + LOG_PAUSE_S)
            wait_s = due_at - time.monotonic()
            if wait_s <= 0:
                return
            if self._core is None:
                raise ConnectionResetError
            self._wake.clear()
            timer = asyncio.get_running_loop().call_later(wait_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    async def _report(self) -> None:
        self._take_output()
        report = self._outbox.report()
        now = time.monotonic()
        if report == Report() and now < self._reported_at + HEARTBEAT_S:
            self._logs_at = now
            return
        ack = await self._ask({"report": report})
        assert ack is not None
        self._reported_at = now
        taken = all(ack.shipped.get(chunk.run_id, chunk.end) == chunk.end for chunk in report.logs)
        if report.logs and not (taken and self._shipper.has_work):
            self._logs_at = now  # only a backlog that flows goes on without a pause
        self._engine.forget(self._outbox.acknowledged(report, ack))

    async def _ask(self, message: object) -> Ack | None:
        if self._core is None:
            raise ConnectionResetError
        self._answer = asyncio.get_running_loop().create_future()
        self._core.send(message)
        return await self._answer

    def _heard(self, message: ToAgent) -> None:
        if message.ack is not None:
            self._answered(message.ack)
        elif message.orders is not None and self._welcomed:
            self._obey(message.orders)
        elif message.welcome is not None:
            self._welcomed = True
            self._answered(None)
        elif message.measure is not None:
            self._keep(self._measure(message.measure))
        elif message.execute is not None:
            self._keep(self._execute(message.execute))
        elif message.quit is not None:
            self._unwanted = f"the core says: {message.quit}"
            self._lost()
        else:
            log.warning("a message from the core was not understood")  # without its text: orders may hold secrets

    def _answered(self, ack: Ack | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(ack)

    def _lost(self) -> None:
        self._core = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError())
        self._wake.set()

    def _obey(self, orders: Orders) -> None:
        known = self._engine.observe()
        fresh = [spec for spec in orders.start if spec.run_id not in known]
        for spec in fresh:
            if spec.ships_logs:
                self._outbox.ordered(spec.run_id)
        self._engine.start(orders.start)
        self._engine.stop(orders.stop)
        self._checks.follow([*fresh, *(spec for spec in orders.check if spec.run_id in known)], self._engine.observe())

    # -- the host ------------------------------------------------------------------------------------------------

    def _engine_changed(self, runs: list[Known]) -> None:
        self._outbox.changed(runs)
        self._checks.changed(runs)
        self._wake.set()

    def _judged(self, run_id: str, verdict: Health) -> None:
        self._outbox.judged(run_id, verdict)
        self._wake.set()

    def _listen_for_output(self) -> None:
        asyncio.get_running_loop().add_reader(self._watch.fileno(), self._output_written)

    def _output_written(self) -> None:
        """Only note it: the names are read with the next report, so a chatty run cannot keep us busy."""
        asyncio.get_running_loop().remove_reader(self._watch.fileno())
        self._written = True
        self._wake.set()

    def _take_output(self) -> None:
        if self._written:
            self._shipper.written(self._watch.read())
            self._written = False
            self._listen_for_output()

    def _keep(self, answering: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(answering)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _execute(self, order: Execute) -> None:
        asker = self._core
        try:
            await self._engine.execute(order)
        except CannotExecute as error:
            if asker is not None:
                asker.send({"declined": Declined(order.session_id, str(error))})

    async def _measure(self, asked: Measure) -> None:
        asker, known = self._core, self._engine.observe()
        live = {run_id: run.observed.pid for run_id, run in known.items() if run.alive and run.observed.pid is not None}
        sessions = {run_id: live[run_id] for run_id in asked.runs if run_id in live}
        now = await asyncio.get_running_loop().run_in_executor(None, usage_of, sessions, self._clock.now_s())
        if asker is not None and asker is self._core:  # another connection has other questions
            asker.send({"measured": Measured(asked.number, now, self._earlier.take(now, live))})

    async def _sample(self) -> None:
        if not self._gpus.devices():
            return
        was_live, sampled_at = False, time.monotonic()
        while True:
            await asyncio.sleep(SAMPLE_S)
            live = bool(self._pinned())
            matter = live or was_live  # once more after the last one has gone: that they are idle again
            if matter or self._foreign or time.monotonic() >= sampled_at + HEARTBEAT_S:
                await self._sample_once(matter=matter)
                was_live, sampled_at = live, time.monotonic()

    async def _sample_once(self, *, matter: bool = False) -> None:
        if not self._gpus.devices():
            return
        before = self._pinned()
        live = {gpu_id: [pid for pid in pids if pid is not None] for gpu_id, pids in before.items()}
        ours = {run.observed.pid for run in self._engine.observe().values() if run.alive and run.observed.pid is not None}
        sample = self._gpus.sample
        samples = await asyncio.get_running_loop().run_in_executor(None, sample, live, ours | self._engine.roots())
        # What was ordered meanwhile may have been seen and not been known: the next sample tells.
        fresh = self._pinned().keys() - before.keys()
        samples = [replace(sample, foreign=[]) if sample.gpu_id in fresh else sample for sample in samples]
        foreign = {sample.gpu_id: sample.foreign for sample in samples if sample.foreign}
        matter = matter or foreign != self._foreign
        self._foreign = foreign
        self._outbox.sampled(samples, matter=matter)
        if matter:
            self._wake.set()

    def _pinned(self) -> dict[str, list[int | None]]:
        """GPU → the pids of the runs that have it; None for one that is about to start."""
        pinned: dict[str, list[int | None]] = defaultdict(list)
        for run in self._engine.observe().values():
            if run.alive:
                for gpu_id in run.gpu_ids:
                    pinned[gpu_id].append(run.observed.pid)
        return pinned
