"""The server's connections to the agents of hosts, and the supervision of the agent on this machine.

An agent sends a hello message when it connects, and reports later. The server sends orders to start, stop or check runs. A run is
one container of a task on a host. The protocol is in `model/agent_protocol.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from corral.blobs import Blobs
from corral.core.clock import Clock
from corral.fleet import hosts
from corral.model.agent_protocol import (
    HEARTBEAT_S,
    SILENT_S,
    START_MAX_BYTES,
    Ack,
    Declined,
    Execute,
    GpuFaultOrder,
    Hello,
    HostOrders,
    ImagePush,
    Measure,
    Measured,
    OutputLimits,
    SignalOrder,
    StartOrder,
    ToCore,
)
from corral.model.gpu_metrics import GpuSample
from corral.model.run import Observed, RunSpec
from corral.model.settings import OutputSettings
from corral.node import node_folder, procfs
from corral.process.log_times import without_time
from corral.server.environment_files import with_files
from corral.server.lanes import Lane
from corral.services.logs.ingestion import open_streams, runtime_ids, ship
from corral.store import Store
from corral.telemetry import LogStore

AGENT_MESSAGE_MAX_BYTES = 64 * 1024 * 1024
ORDERS_BYTES = 4 * 1024 * 1024  # start orders that have more bytes together are sent in several messages
MEASURE_MAX_S = 5.0  # how long the server waits for a measurement
RESTART_MIN_S = 0.05  # the pause before the agent is started again; it doubles up to RESTART_MAX_S
RESTART_MAX_S = 5.0
MIB, DAY_S = 1024 * 1024, 86_400.0
SAMPLES_KEPT = 120  # samples of each GPU
LOG_TAIL_BYTES = 4096  # the last line of the agent's log is searched in this many bytes

TOO_LONG = "CannotStartContainerError: the order to start has {} bytes (command, environment, files); at most {} are possible"
NOT_ENCODED = "CannotStartContainerError: the order to start cannot be sent: {}"
NO_FILE = "ResourceInitializationError: failed to download env files: {}"

_MESSAGES = msgspec.json.Decoder(ToCore)

log = logging.getLogger("corral")


class AgentConnection:
    """The connection to one agent.

    Orders are sent in the sequence of their commits. A start order is sent after the log stream of its run has been opened.
    """

    def __init__(self, writer: asyncio.StreamWriter, hello: Hello, heard_s: float) -> None:
        self.hello = hello
        self.heard_s = heard_s
        self.problem = ""  # the problem of the host's spawner, as the agent reported it
        self.ordered_again: set[str] = set()  # runs that were ordered a second time because an environment file had been replaced
        self.orders: asyncio.Queue[HostOrders] = asyncio.Queue()
        self._writer = writer
        self._measuring: dict[int, asyncio.Future[Measured]] = {}
        self._numbers = count()
        self._executing: dict[str, asyncio.Future[str]] = {}  # session id → the reason if the host declines the session

    async def measure(self, run_ids: list[str]) -> Measured:
        """Return the current usage of these runs. Raise TimeoutError if the agent does not respond."""
        number = next(self._numbers)
        self._measuring[number] = asyncio.get_running_loop().create_future()
        try:
            self.send({"measure": Measure(number, run_ids)})
            return await asyncio.wait_for(self._measuring[number], MEASURE_MAX_S)
        finally:
            del self._measuring[number]

    def measured(self, measured: Measured) -> None:
        future = self._measuring.get(measured.number)
        if future is not None and not future.done():  # a cancelled caller has cancelled the future
            future.set_result(measured)

    async def execute(self, order: Execute) -> str:
        self._executing[order.session_id] = asyncio.get_running_loop().create_future()
        try:
            self.send({"execute": order})
            return await self._executing[order.session_id]
        finally:
            del self._executing[order.session_id]

    def declined(self, declined: Declined) -> None:
        future = self._executing.get(declined.session_id)
        if future is not None and not future.done():
            future.set_result(declined.reason)

    def send(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(message) + b"\n")

    def close(self) -> None:
        self._writer.close()


class Agents:
    def __init__(
        self, data: Path, gpus_flag: str, state: Lane[Store], logs_lane: Lane[LogStore], blobs: Blobs, clock: Clock,
        excluded_gpus: str = "", runtime: str = "auto", files_limit: tuple[int, int] | None = None,
        outputs: OutputSettings | None = None,
    ) -> None:  # fmt: skip
        """`files_limit` is the limit of open files (soft, hard) for the agent and its tasks."""
        self._folder = data / "node"
        self._blobs = blobs
        self._data = data
        self._gpus_flag = gpus_flag
        self._excluded_gpus = excluded_gpus
        self._runtime = runtime
        self._files_limit = files_limit
        self._welcome_message = {"welcome": {"outputs": output_limits(outputs or OutputSettings())}}
        self._state = state
        self._logs = logs_lane
        self._clock = clock
        self._connections: dict[str, AgentConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.samples: dict[str, GpuSample] = {}
        self.history: dict[str, deque[tuple[float, GpuSample]]] = {}  # GPU id → its samples of the last minutes, for `corral top`
        self._lost = asyncio.Event()  # set when a connection is lost; its agent may be dead
        self.joined = asyncio.Event()  # set when the agent of this machine has sent hello
        # Why the last agent of this machine ended. Empty when a new agent has sent hello.
        self._agent_error = ""

    async def listen(self) -> None:
        node_folder.make(self._folder)
        socket = node_folder.listen(self._folder, "core.sock")
        self._server = await asyncio.start_unix_server(self._serve, sock=socket, limit=AGENT_MESSAGE_MAX_BYTES)

    def deliver(self, orders: dict[str, HostOrders]) -> None:
        """Queue committed orders for sending.

        Orders for a host that is not connected are dropped. When the host reconnects, its hello message requests all orders again.
        """
        for host_id, of_host in orders.items():
            connection = self._connections.get(host_id)
            if connection is not None:
                while of_host.replaces_earlier and not connection.orders.empty():
                    connection.orders.get_nowait()  # drop the queued orders: `of_host` has all orders again, after a new hello
                connection.orders.put_nowait(of_host)

    def problems(self) -> list[dict[str, Any]]:
        """Return the problems of agents and spawners that do not respond, for the status page. Any thread may call this method."""
        now_s, pid = self._clock.now_s(), node_folder.lock_owner(self._folder / "agent.lock")
        connections = list(self._connections.values())
        found = []
        for connection in connections:
            name, silent_s = connection.hello.name, now_s - connection.heard_s
            if silent_s > SILENT_S or (pid is not None and procfs.is_stopped(pid)):
                text = f"has not reported for {silent_s:.0f} s{procfs.why_silent(pid)}"
                found.append({"part": "agent", "host": f"host {name}", "problem": text})
            if connection.problem:
                found.append({"part": "spawner", "host": f"host {name}", "problem": connection.problem})
        if not connections:
            found.append({"part": "agent", "host": "", "problem": self._agent_error or "is not connected"})
        return found

    async def measure(self, host_id: str, run_ids: list[str]) -> Measured | None:
        """Return the current usage of these runs of a host. Return None if the host is not connected or does not respond."""
        connection = self._connections.get(host_id)
        try:
            return await connection.measure(run_ids) if connection is not None else None
        except TimeoutError:
            return None

    async def execute(self, host_id: str, order: Execute) -> str:
        """Order an execute-command session. If the host declines it, return the reason.

        Otherwise this coroutine does not return: the caller cancels it when the session has started.
        """
        connection = self._connections.get(host_id)
        if connection is None:
            return "the agent of this host is not connected"
        try:
            whole = await with_files(order.run, self._blobs)
        except FileNotFoundError:
            return "an environment file was replaced during the request; try again"
        return await connection.execute(replace(order, run=whole))

    def signal(self, host_id: str, order: SignalOrder) -> bool:
        """Send a signal to runs of a host. Return False if the host is not connected."""
        connection = self._connections.get(host_id)
        if connection is not None:
            connection.send({"signal": order})
        return connection is not None

    def set_gpu_fault(self, host_id: str, order: GpuFaultOrder) -> bool:
        """Send a fault of a simulated GPU, or the end of a fault. Return False if the host is not connected."""
        connection = self._connections.get(host_id)
        if connection is not None:
            connection.send({"gpu_fault": order})
        return connection is not None

    async def close(self) -> None:
        """Disconnect the agents. The runs continue."""
        self._server.close()
        for connection in list(self._connections.values()):
            connection.send({"quit": "Corral is stopping"})
            connection.close()
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection: AgentConnection | None = None
        sender: asyncio.Task[None] | None = None
        try:
            connection = await self._welcome(reader, writer)
            if connection is not None:
                sender = asyncio.create_task(self._send_orders(connection))
                await self._read_reports(reader, connection)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the agent has disconnected and will reconnect
        except Exception:
            log.exception("the connection to an agent failed")
        finally:
            self._tasks.discard(task)
            if sender is not None:
                sender.cancel()
            if connection is not None and self._connections.get(connection.hello.host_id) is connection:
                del self._connections[connection.hello.host_id]
            self._lost.set()
            writer.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AgentConnection | None:
        line = await reader.readline()
        if not line:
            return None
        hello = _MESSAGES.decode(line).hello
        if hello is None:
            return None
        connection = AgentConnection(writer, hello, self._clock.now_s())
        if hello.gpus_flag != self._gpus_flag:
            connection.send({"quit": f"this Corral was started with --gpus {self._gpus_flag}"})
            return None
        if hello.runtime != self._runtime:
            connection.send({"quit": f"this Corral was started with --runtime {self._runtime}"})
            return None
        if hello.excluded_gpus != self._excluded_gpus:
            connection.send({"quit": f"this Corral was started with --exclude-gpus {self._excluded_gpus or '(none)'}"})
            return None
        stale = self._connections.get(hello.host_id)
        # From now on, this connection gets new orders. The hello message requests the orders that were committed before.
        self._connections[hello.host_id] = connection
        if stale is not None:
            stale.close()
        if names := runtime_ids(hello.runs):
            await self._logs.submit(partial(ship, chunks=[], names=names))
        await self._state.submit(lambda tx: hosts.hello(tx, hello))
        connection.send(self._welcome_message)
        self.joined.set()
        self._agent_error = ""
        return connection

    async def _send_orders(self, connection: AgentConnection) -> None:
        try:
            while True:
                batch = [await connection.orders.get()]
                while not connection.orders.empty():
                    batch.append(connection.orders.get_nowait())
                starts = await self._with_open_streams([start for orders in batch for start in orders.start], connection)
                stops = [run_id for orders in batch for run_id in orders.stop]
                checks = [await self._check_with_files(spec) for orders in batch for spec in orders.check]
                pushed = [image for orders in batch for image in orders.pushed]
                encoded, refused = encode_starts(await self._with_files(starts, connection))
                await self._refuse(refused, connection)
                for message in order_messages(encoded, stops, checks, pushed):
                    connection.send({"orders": message})
        except OSError:
            connection.close()
        except Exception:
            log.exception("orders for %s could not be sent; its agent will request them again", connection.hello.name)
            connection.close()

    async def _with_open_streams(self, starts: list[StartOrder], connection: AgentConnection) -> list[RunSpec]:
        """Open the log streams of the runs, and return the runs that can start.

        The other runs are stored as failed.
        """
        refused = {start.spec.run_id: start.fault for start in starts if start.fault is not None}
        logged = [start for start in starts if start.log is not None and start.fault is None]
        if logged:
            as_containers = bool(connection.hello.docker)
            refused |= await self._logs.submit_now(lambda tx: open_streams(tx, logged, as_containers=as_containers))
        if self._connections.get(connection.hello.host_id) is not connection:
            raise ConnectionResetError  # the host has reconnected or is gone: its next hello requests these orders again
        await self._refuse(refused, connection)
        return [start.spec for start in starts if start.spec.run_id not in refused]

    async def _refuse(self, refused: Mapping[str, str], connection: AgentConnection) -> None:
        """Store that runs have failed, because their start cannot be ordered. `refused` maps a run id to the reason."""
        if refused:
            now_s = self._clock.now_s()
            seen = [Observed(run_id, stopped_at_s=now_s, reason=reason) for run_id, reason in refused.items()]
            await self._state.submit(lambda tx: hosts.report(tx, connection.hello.host_id, seen))

    async def _with_files(self, starts: list[RunSpec], connection: AgentConnection) -> list[RunSpec]:
        """Add the variables of the environment files to each run. Return the runs that can start.

        If a file has been replaced since the order was made, the run is ordered again, but only once. A run whose file cannot be
        read is stored as failed.
        """
        whole, again, refused = list[RunSpec](), set[str](), dict[str, str]()
        for spec in starts:
            try:
                whole.append(await with_files(spec, self._blobs) if spec.environment_files else spec)
            except OSError as error:
                if isinstance(error, FileNotFoundError) and spec.run_id not in connection.ordered_again:
                    again.add(spec.run_id)
                else:  # a file is unreadable, or missing for the second time
                    refused[spec.run_id] = NO_FILE.format(error)
        await self._refuse(refused, connection)
        if again:
            connection.ordered_again |= again
            await self._state.submit(lambda tx: hosts.order_again(tx, connection.hello.host_id, again))
        return whole

    async def _check_with_files(self, spec: RunSpec) -> RunSpec:
        try:
            return await with_files(spec, self._blobs)
        except OSError:
            return replace(spec, environment_files=[])  # the run is alive, so check it even without the variables of a missing file

    async def _read_reports(self, reader: asyncio.StreamReader, connection: AgentConnection) -> None:
        host_id, seen_s = connection.hello.host_id, self._clock.now_s()
        foreign, submitted = connection.hello.foreign, self._submitted()
        while line := await reader.readline():
            message = _MESSAGES.decode(line)
            connection.heard_s = self._clock.now_s()
            if message.measured is not None:
                connection.measured(message.measured)
                continue
            if message.declined is not None:
                connection.declined(message.declined)
                continue
            report = message.report
            if report is None:
                raise ValueError("the agent sent an unknown message")
            connection.problem = report.problem
            for sample in report.gpus:
                self.samples[sample.gpu_id] = sample
                past = self.history.setdefault(sample.gpu_id, deque(maxlen=SAMPLES_KEPT))
                past.append((self._clock.now_s(), sample))
            found = {sample.gpu_id: sample.foreign for sample in report.gpus if sample.foreign != foreign.get(sample.gpu_id, [])}
            # If the host has reconnected, the hello of its new connection has newer facts than this report.
            if found and self._connections.get(host_id) is connection:
                await self._state.submit(partial(hosts.gpus_in_use, host_id=host_id, found=found))
                foreign = {**foreign, **found}
            if report.faults is not None and self._connections.get(host_id) is connection:
                await self._state.submit(partial(hosts.gpus_failed, host_id=host_id, faults=report.faults))
            shipped: dict[str, int] = {}
            is_busy = False
            names = runtime_ids(report.runs)
            # Store logs first, so that a client that sees a stopped task can read its whole log.
            if report.logs or names:
                shipped = await self._logs.submit(partial(ship, chunks=report.logs, names=names))
                is_busy = self._submitted() > submitted + 1  # other commands were submitted since the last report
            if report.runs:
                await self._state.submit(partial(hosts.report, host_id=host_id, runs=report.runs))
            if self._clock.now_s() - seen_s >= HEARTBEAT_S / 2:
                seen_s = self._clock.now_s()
                await self._state.submit(partial(hosts.heartbeat, host_id=host_id))
            submitted = self._submitted()
            connection.send({"ack": Ack(shipped, is_busy)})

    def _submitted(self) -> int:
        return self._state.submitted + self._logs.submitted

    async def keep_agent(self) -> None:
        """Start an agent on this machine whenever no agent is alive. An agent that has outlived an earlier server reconnects."""
        wait_s = RESTART_MIN_S
        while True:
            held = node_folder.try_lock(self._folder / "agent.lock")
            if held is None:
                self._lost.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._lost.wait(), wait_s)
                wait_s = min(wait_s * 2, RESTART_MAX_S)
                continue
            os.close(held)
            process = self._start_agent()
            began_s = self._clock.now_s()
            await _ended(process)
            log.warning("the agent ended with exit code %s; starting another", process.returncode)
            self._agent_error = f"ended with exit code {process.returncode}: {_last_line(self._folder / 'agent.log')}"
            lived = self._clock.now_s() - began_s > RESTART_MAX_S
            wait_s = RESTART_MIN_S if lived else min(wait_s * 2, RESTART_MAX_S)
            await asyncio.sleep(wait_s if not lived else 0)

    def _start_agent(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "corral.node", "--data", str(self._data), "--gpus", self._gpus_flag]
        command += ["--exclude-gpus", self._excluded_gpus, "--runtime", self._runtime]
        with open(self._folder / "agent.log", "ab") as output:
            agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        if self._files_limit is not None:
            with suppress(OSError):  # the agent has already ended
                resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, self._files_limit)
        return agent


def output_limits(settings: OutputSettings) -> OutputLimits:
    return OutputLimits(settings.file_mib * MIB, settings.total_mib * MIB, settings.days * DAY_S)


def encode_starts(specs: Iterable[RunSpec]) -> tuple[list[msgspec.Raw], dict[str, str]]:
    """Return the orders as JSON, and the refused orders as a dict from run id to reason.

    An order that is too long, or that cannot be encoded, is refused, because it would break the connection for all runs.
    """
    encoded, refused = list[msgspec.Raw](), dict[str, str]()
    for spec in specs:
        try:
            text = msgspec.json.encode(spec)
        except (ValueError, TypeError, OverflowError) as error:
            refused[spec.run_id] = NOT_ENCODED.format(error)
            continue
        if len(text) > START_MAX_BYTES:
            refused[spec.run_id] = TOO_LONG.format(len(text), START_MAX_BYTES)
        else:
            encoded.append(msgspec.Raw(text))
    return encoded, refused


def order_messages(
    starts: Sequence[msgspec.Raw], stops: list[str], checks: list[RunSpec], pushed: list[ImagePush]
) -> Iterator[dict[str, Any]]:
    """Yield the messages for orders. Start orders are split into messages of about ORDERS_BYTES.

    The last message has all other orders. So the agent gets a stop order after the start order of the same run.
    """
    part, size = list[msgspec.Raw](), 0
    for start in starts:
        if part and size + len(start) > ORDERS_BYTES:
            yield {"start": part}
            part, size = [], 0
        part.append(start)
        size += len(start)
    yield {"start": part, "stop": stops, "check": checks, "pushed": pushed}


def _last_line(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return without_time(lines[-1]).removeprefix("corral node: ") if lines else f"see {path}"


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a child process without a thread. A waiting thread would prevent the server from exiting."""
    loop, ended, fd = asyncio.get_running_loop(), asyncio.Event(), os.pidfd_open(process.pid)
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
        process.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
