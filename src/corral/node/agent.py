"""The agent of a host: it carries out the core's orders, observes the engine, and reports to the core.

An engine runs containers or processes.

The first message on a new connection is the hello, which lists all runs of the host. Reports follow. The agent sends a report only
after the core has acknowledged the previous one. Until then, changes are collected for the next report. So a busy host sends few
large reports, and a host with few changes sends each change at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import convert
from msgspec.structs import replace

from corral.core.clock import Clock, WallView
from corral.core.errors import Refused
from corral.model.agent_protocol import (
    Ack,
    Declined,
    Execute,
    Hello,
    HostOptions,
    Measure,
    Measured,
    Orders,
    OutputLimits,
    Report,
    ServerPlace,
    ToAgent,
    UpgradeOrder,
)
from corral.model.run import Health
from corral.node import node_folder
from corral.node.engine import CannotExecute, Engine, Known
from corral.node.gpu_faults import GpuFaults
from corral.node.gpu_sampler import GpuSampler
from corral.node.gpus import Gpus, kind_of
from corral.node.health_checks import HealthChecks
from corral.node.heartbeat import heartbeat_at
from corral.node.hold import LEAVE_MAX_S, Hold
from corral.node.host import Host
from corral.node.host_accounts import HostAccounts
from corral.node.host_address import with_address
from corral.node.inotify import FolderWatch
from corral.node.kept_outputs import SWEEP_S, KeptOutputs
from corral.node.link import Connect, Link, Message
from corral.node.log_shipper import LogShipper
from corral.node.pauses import Pauses
from corral.node.procfs import boot_s
from corral.node.report_builder import ReportBuilder
from corral.node.usage import UsageHistory, usage_of
from corral.version import full_version

RECONNECT_FIRST_S = 0.02
RECONNECT_MAX_S = 1.0
RECONNECT_JOINED_MAX_S = 5.0  # of an agent that has joined from another machine
ANSWER_S = 10.0  # if the core on another machine sends nothing for this time, although an answer is due, connect anew
ALONE_MAX_S = 60.0  # the agent exits after this time without a connection to the core, but not while a run is alive
LOG_PAUSE_S = 0.05  # the pause between two reports that contain only logs, so that continuous output is sent in batches
BACKLOG_PAUSE_MAX_S = 0.1
END_POLL_S = 0.05

_MESSAGES = msgspec.json.Decoder(ToAgent)

log = logging.getLogger("corral.node")


class Agent:
    def __init__(
        self, data: Path, host: Host, options: HostOptions, gpus: Gpus, engine: Engine, clock: Clock, connect: Connect,
        connect_session: Connect | None = None, server_at: Callable[[ServerPlace], object] = lambda place: None,
        hold: Hold | None = None,
    ) -> None:  # fmt: skip
        """`connect` opens a link to the core. With `connect_session`, which opens a link for a session, the core is on another
        machine: then the agent waits for the core without an end, and does not wait long for an answer. With `hold`, the host
        belongs to an allocation of a lender, and leaves when it is over.
        """
        self._data = data
        self._folder = node_folder.HeldPath(data)
        self._host = host
        self._options = options
        self._connect = connect
        self._connect_session = connect_session or connect
        self._server_at = server_at
        self._is_joined = connect_session is not None
        self._hold = hold
        self._told_leave = False  # the core has acknowledged that the host leaves
        self._refusal = ""  # why the core has ended the last connection
        self._gpus = gpus
        self._engine = engine
        self._watch = FolderWatch(data / "output")
        self._shipper = LogShipper(data / "output", WallView(clock))
        self._pauses = Pauses(data, host.boot_id, kind_of(gpus), engine, self._pause_changed)
        self._reports = ReportBuilder(engine.observe, self._shipper, self._pauses.answers)
        self._kept = KeptOutputs(data, clock)
        self._clock = clock
        self._usage_history = UsageHistory()
        self._background: set[asyncio.Task[None]] = set()
        self._checks = HealthChecks(data, os.environ, clock, self._on_verdict, self._pauses.holds)
        self._wake = asyncio.Event()
        faults = GpuFaults(data / "gpu_faults.json", host.boot_id)
        self._sampler = GpuSampler(gpus, engine, faults, self._reports, self._wake, self._pauses.paused)
        self._written = False  # an output file was written to since the last report
        self._reported_at = 0.0
        self._logs_at = 0.0
        self._connected_at = time.monotonic()
        self._core: Link | None = None
        self._response: asyncio.Future[Ack | None] | None = None  # the response to the pending hello or report
        self._requested_boot_s = 0.0  # when this hello or report was sent
        self._welcomed = False
        self._problem = ""  # the engine's problem in the last report
        self._accounts = HostAccounts()
        self._quit_reason: str | None = None
        self._server_port = 0  # on which the gateway leads to the server
        self.upgraded: Path | None = None  # the folder of a new version, which continues after `run`
        self._upgrading = False

    async def run(self) -> None:
        """Run until the core sends quit, or until there has been no connection for ALONE_MAX_S and no run is alive."""
        self._listen_for_output()
        sampler: asyncio.Task[None] | None = None
        try:
            await self._engine.open(self._engine_changed)
            self._pauses.open()
            await self._sampler.sample()  # sample before the first hello, because the hello contains the foreign processes
            sampler = asyncio.create_task(self._sampler.run())
            self._spawn(self._sweep_outputs())
            if self._hold is not None:
                self._spawn(self._hold.end_runs(self._engine, self._wake.set))
            wait_s = RECONNECT_FIRST_S
            while self._quit_reason is None and not self._is_useless() and self._folder.is_same():
                began_at = time.monotonic()
                if await self._serve_connection():
                    self._connected_at = time.monotonic()
                    if self._connected_at > began_at + RECONNECT_MAX_S:  # the connection lasted, so reset the wait
                        wait_s = RECONNECT_FIRST_S
                if self._is_joined:
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # so that many hosts do not connect at the same time
                    wait_s = min(2 * wait_s, RECONNECT_JOINED_MAX_S)
                else:
                    await asyncio.sleep(wait_s)
                    wait_s = min(2 * wait_s, RECONNECT_MAX_S)
            log.info("ending: %s", self._quit_reason or "there is no connection to the core and no live run")
        finally:
            if sampler is not None:
                sampler.cancel()
            is_folder_gone = not self._folder.is_same()
            if is_folder_gone:
                await self._end_runs()
            await self._checks.close()
            await self._pauses.close()
            await self._engine.close(quit=True, remove=is_folder_gone)

    async def _end_runs(self) -> None:
        """End all runs, because the data folder was deleted or replaced: no later agent could find them."""
        log.warning("%s was deleted: ending all runs", self._data)
        self._engine.stop(self._alive())
        await self._until_ended(node_folder.GONE_GRACE_S)
        self._engine.signal(self._alive(), "SIGKILL")
        await self._until_ended(node_folder.GONE_GRACE_S)

    async def _until_ended(self, most_s: float) -> None:
        give_up_at = time.monotonic() + most_s
        while self._alive() and time.monotonic() < give_up_at:
            await asyncio.sleep(END_POLL_S)

    def _alive(self) -> list[str]:
        return [run_id for run_id, run in self._engine.observe().items() if run.alive]

    def _is_useless(self) -> bool:
        if self._hold is not None and self._hold.gives_grace and not self._engine.observe():
            return True  # there is no end to report, and the lender waits
        if self._is_leaving() and not self._alive():
            return time.monotonic() > self._connected_at + LEAVE_MAX_S
        return not self._is_joined and not self._alive() and time.monotonic() > self._connected_at + ALONE_MAX_S

    # -- the connection to the core ------------------------------------------------------------------------------

    async def _serve_connection(self) -> bool:
        """Serve one connection to the core until the connection is lost. Return False if the core cannot be reached."""
        try:
            core = self._core = await self._connect()
        except OSError as error:
            self._note_refusal(error.strerror or str(error) or type(error).__name__)
            return False
        receiving = asyncio.create_task(self._receive(core))
        try:
            await self._say_hello()
            while True:
                await self._until_due()
                await self._report()
                if self._may_leave():
                    self._quit_reason = "the allocation of this host is over"
                    return True
        except ConnectionError:
            return True
        finally:
            self._accounts.stop()
            was_welcome, self._welcomed = self._welcomed, False
            self._note_refusal("" if was_welcome else core.end_reason)
            receiving.cancel()
            await core.abort("the agent connects anew")

    async def _next_message(self, core: Link) -> Message | None:
        if not self._is_joined:
            return await core.receive()
        return await core.receive_within(ANSWER_S, lambda: self._response is not None and not self._response.done())

    def _note_refusal(self, reason: str) -> None:
        """Log why the core on another machine cannot be reached, or refuses this host, if the reason has changed."""
        if self._is_joined and reason and reason != self._refusal:
            log.warning("not connected to the server: %s", reason)
        self._refusal = reason

    async def _receive(self, core: Link) -> None:
        try:
            while (message := await self._next_message(core)) is not None:
                self._received(_MESSAGES.decode(message[1]))
        except ValueError:
            core.close("a message was not understood")  # the text is not logged, because orders may contain secrets
        finally:
            self._lost()

    async def _say_hello(self) -> None:
        host = self._host
        runs = self._reports.hello()
        excluded = self._options.exclude_gpus.split(",")
        hello = Hello(
            host_id=host.host_id,
            boot_id=host.boot_id,
            name=host.name,
            cpu_units=host.cpu_units,
            memory_mib=host.memory_mib,
            gpus=[replace(gpu, excluded=gpu.gpu_id in excluded) for gpu in self._gpus.devices()],
            runs=runs,
            options=with_address(self._options, self._core.local_address if self._core is not None else ""),
            docker=self._engine.docker,
            links=self._gpus.links(),
            foreign=self._sampler.foreign,
            faults=self._sampler.faults,
            version=full_version() if self._is_joined else "",
            machine=dict(host.machine) if self._is_joined else {},
            folder=host.folder,
            leaves=self._is_leaving(),
            architecture=host.architecture,
        )
        await self._request({"hello": hello})
        self._told_leave = hello.leaves
        self._reported_at, self._problem = time.monotonic(), ""
        self._forget([run.run_id for run in runs if run.stopped_at_s is not None])

    async def _until_due(self) -> None:
        """Wait until the next report is due. Raises ConnectionResetError if the connection is lost.

        A change of a run, a GPU or the engine is reported at once. New output is reported LOG_PAUSE_S after the last output. If
        there is nothing to report, an empty report (a heartbeat) is due some seconds after the last report.
        """
        while True:
            due_at = self._heartbeat_at
            if self._reports.urgent or self._engine.problem != self._problem or self._must_tell_leave() or self._may_leave():
                return
            if self._written or self._shipper.has_work:
                due_at = min(due_at, self._logs_at + LOG_PAUSE_S)
            elif (progress_in_s := self._shipper.progress_in_s()) is not None:
                due_at = min(due_at, max(self._logs_at + LOG_PAUSE_S, time.monotonic() + progress_in_s))
            wait_s = due_at - time.monotonic()
            if wait_s <= 0:
                return
            if self._core is None:
                raise ConnectionResetError
            self._wake.clear()
            timer = asyncio.get_running_loop().call_later(wait_s, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    @property
    def _heartbeat_at(self) -> float:
        return heartbeat_at(self._reported_at, self._clock, has_runs=bool(self._engine.observe()))

    async def _report(self) -> None:
        self._read_written()
        report = self._reports.report(time.monotonic())
        now, problem = time.monotonic(), self._engine.problem
        if problem != self._problem:
            log.warning("the spawner %s", problem or "responds again")
        if problem:
            report = replace(report, problem=problem)
        if self._must_tell_leave():
            report = replace(report, leaves=True)
        if report == Report() and problem == self._problem and now < self._heartbeat_at:
            self._logs_at = now
            return
        ack = await self._request({"report": report})
        assert ack is not None
        self._reported_at, self._problem = now, problem
        self._told_leave = self._told_leave or report.leaves
        stored = all(ack.shipped.get(chunk.run_id, chunk.end) == chunk.end for chunk in report.logs)
        if report.logs and not (stored and self._shipper.has_work):
            self._logs_at = now
        elif report.logs:  # if the core is busy, wait as long as it needed, at most BACKLOG_PAUSE_MAX_S, so that others are served
            answered_at = time.monotonic()
            pause_s = min(answered_at - now, BACKLOG_PAUSE_MAX_S) if ack.is_busy else 0.0
            self._logs_at = answered_at + pause_s - LOG_PAUSE_S
        self._forget(self._reports.acknowledged(report, ack))

    def _is_leaving(self) -> bool:
        return self._hold is not None and self._hold.is_over

    def _must_tell_leave(self) -> bool:
        return self._is_leaving() and not self._told_leave

    def _may_leave(self) -> bool:
        """Whether the allocation of this host is over, and the core knows this and the ends of all runs."""
        return self._told_leave and not self._engine.observe()

    def _forget(self, run_ids: list[str]) -> None:
        """Forget runs whose end the core has acknowledged. A run whose kept output must be written anew is forgotten after that."""
        kept = [run_id for run_id in run_ids if self._kept.keeps(run_id)]
        large = [run_id for run_id in kept if self._kept.is_too_long(run_id)]
        for run_id in kept:
            if run_id not in large:
                self._kept.finish(run_id)
        self._pauses.forget(run_ids)
        self._engine.forget([run_id for run_id in run_ids if run_id not in large] if large else run_ids)
        if large:
            self._spawn(self._forget_large(large))

    async def _forget_large(self, run_ids: list[str]) -> None:
        for run_id in run_ids:
            await asyncio.to_thread(self._kept.finish, run_id)
            self._engine.forget([run_id])

    async def _sweep_outputs(self) -> None:
        while True:
            await asyncio.to_thread(self._kept.sweep)
            await asyncio.sleep(SWEEP_S)

    async def _request(self, message: object) -> Ack | None:
        if self._core is None:
            raise ConnectionResetError
        self._response = asyncio.get_running_loop().create_future()
        self._requested_boot_s = boot_s()
        self._core.send_message(message)
        return await self._response

    def _received(self, message: ToAgent) -> None:
        if message.ack is not None:
            self._responded(message.ack)
        elif message.orders is not None and self._welcomed:
            self._carry_out(message.orders)
        elif message.welcome is not None:
            self._welcomed = True
            if self._is_joined:
                log.info("connected to the server")
            self._kept.set_limits(convert(message.welcome.get("outputs", {}), OutputLimits))
            place = convert(message.welcome.get("server", {}), ServerPlace)
            self._server_port = place.port
            self._server_at(place)
            self._responded(None)
            if "accounts" in message.welcome and self._core is not None:
                self._accounts.follow(convert(message.welcome["accounts"], list[str]), self._core)
        elif message.accounts is not None and self._core is not None:
            self._accounts.follow(message.accounts, self._core)
        elif message.measure is not None:
            self._spawn(self._measure(message.measure))
        elif message.execute is not None:
            self._spawn(self._execute(message.execute))
        elif message.signal is not None:
            self._engine.signal(message.signal.runs, message.signal.signal)
        elif message.pause is not None:
            if not self._is_leaving():
                self._pauses.order(message.pause)
        elif message.gpu_fault is not None:
            self._sampler.set_fault(message.gpu_fault)
        elif message.upgrade is not None:
            self._spawn(self._upgrade(message.upgrade))
        elif message.samples_at_once is not None:
            self._sampler.at_once = message.samples_at_once
        elif message.quit is not None:
            self._quit_reason = f"the core sent quit: {message.quit}"
            self._lost()
        else:
            log.warning("a message from the core was not understood")  # the text is not logged, because orders may contain secrets

    async def _upgrade(self, order: UpgradeOrder) -> None:
        from corral.node import upgrade  # imported here because most agents never need it

        if self._upgrading:  # two clients have ordered it; both see what becomes of it
            return
        self._upgrading = True
        core, fetch = self._core, partial(upgrade.fetch_from, self._server_port)
        try:
            self.upgraded = await asyncio.to_thread(upgrade.install, self._data.parent, order, fetch, sys.argv[1:])
            self._quit_reason = f"the agent upgrades to {order.version}"
            self._lost()
        except Refused as why:
            log.warning("not upgraded to %s: %s", order.version, why)
            if core is not None:
                core.send_message({"not_upgraded": str(why)})
        finally:
            self._upgrading = False

    def _responded(self, ack: Ack | None) -> None:
        if self._response is not None and not self._response.done():
            self._engine.answered(self._requested_boot_s)  # before the orders that follow: a fence counts from this time
            self._response.set_result(ack)

    def _lost(self) -> None:
        self._core = None
        if self._response is not None and not self._response.done():
            self._response.set_exception(ConnectionResetError())
        self._wake.set()

    def _carry_out(self, orders: Orders) -> None:
        if self._is_leaving():
            return  # all runs are being ended
        known = self._engine.observe()
        fresh = [spec for spec in orders.start if spec.run_id not in known]
        for spec in fresh:
            if spec.ships_logs:
                self._reports.ordered(spec.run_id)
                if spec.output_file:
                    self._kept.begin(spec.run_id, spec.output_file)
        self._engine.start(orders.start)
        self._engine.stop(orders.stop)
        for pushed in orders.pushed:
            self._engine.image_pushed(pushed)
        self._checks.follow([*fresh, *(spec for spec in orders.check if spec.run_id in known)], self._engine.observe())

    # -- the host ------------------------------------------------------------------------------------------------

    def _engine_changed(self, runs: list[Known]) -> None:
        self._reports.changed(runs)
        self._pauses.ended(run.observed.run_id for run in runs if not run.alive)
        self._checks.changed(runs)
        self._wake.set()
        if any(run.gpu_ids for run in runs):
            self._sampler.gpu_used.set()

    def _pause_changed(self, run_id: str) -> None:
        self._reports.on_pause(run_id)
        if (run := self._engine.observe().get(run_id)) is not None:
            self._checks.changed([run])
        self._sampler.gpu_used.set()
        self._wake.set()

    def _on_verdict(self, run_id: str, verdict: Health) -> None:
        self._reports.on_verdict(run_id, verdict)
        self._wake.set()

    def _listen_for_output(self) -> None:
        asyncio.get_running_loop().add_reader(self._watch.fileno(), self._output_written)

    def _output_written(self) -> None:
        """Set a flag, and stop listening until the next report, so that a run with much output does not occupy the agent."""
        asyncio.get_running_loop().remove_reader(self._watch.fileno())
        self._written = True
        self._wake.set()

    def _read_written(self) -> None:
        if self._written:
            self._shipper.written(self._watch.read())
            self._written = False
            self._listen_for_output()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _execute(self, order: Execute) -> None:
        core = self._core
        try:
            if self._pauses.holds(order.run.run_id):
                raise CannotExecute("the container is paused")
            await self._engine.execute(order, self._connect_session)
        except CannotExecute as error:
            if core is not None:
                core.send_message({"declined": Declined(order.session_id, str(error))})

    async def _measure(self, request: Measure) -> None:
        core, known = self._core, self._engine.observe()
        live = {run_id: run.observed.pid for run_id, run in known.items() if run.alive and run.observed.pid is not None}
        sessions = {run_id: live[run_id] for run_id in request.runs if run_id in live}
        now = await asyncio.get_running_loop().run_in_executor(None, usage_of, sessions, self._clock.now_s())
        if core is not None and core is self._core:  # a request of an earlier connection must not be answered on a new one
            core.send_message({"measured": Measured(request.number, now, self._usage_history.update(now, live))})
