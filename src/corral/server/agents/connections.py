"""The connections to the agents of hosts. The protocol is in `model/agent_protocol.py`, the transport in `node/link.py`.

An agent sends a hello message when it connects, and reports later. Each session of execute-command has a link of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from corral.blobs import Blobs
from corral.core.clock import Clock
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.fleet import hosts, unix_accounts
from corral.model.agent_protocol import (
    HEARTBEAT_S,
    PROTOCOLS,
    SAMPLE_MAX_AGE_S,
    SILENT_S,
    Ack,
    Execute,
    Hello,
    HostOrders,
    Measured,
    OutputLimits,
    Report,
    ServerPlace,
    ToCore,
)
from corral.model.gpu_metrics import GpuSample
from corral.model.settings import OutputSettings
from corral.model.units import MIB
from corral.node import link, procfs
from corral.node.host import machine_id
from corral.node.link import MESSAGE, MESSAGE_MAX_BYTES, Link
from corral.server.agents.agent_connection import AgentConnection, SessionRefused
from corral.server.agents.environment_files import with_files
from corral.server.agents.host_scope import HostScope, checked
from corral.server.agents.local_agent import LocalAgent
from corral.server.agents.orders import OrderSender
from corral.server.agents.sample_demand import SampleDemand
from corral.server.lanes import Lane
from corral.services.ecs import host_reports
from corral.services.logs.ingestion import runtime_ids, ship
from corral.store import Store
from corral.store.joined_hosts import JoinedHosts
from corral.telemetry import LogStore
from corral.version import full_version

DAY_S = 86_400.0
LOST_S = 2 * HEARTBEAT_S  # a joined host from which nothing arrives for this time is disconnected
WATCH_S = 1.0  # the interval in which joined hosts learn whether samples are needed at once
LOOKS_EVERY = 2  # after so many of these intervals, the server looks for connections on which nothing arrives
FIRST_MESSAGE_S = 30.0
FIRST_MESSAGE_MAX_BYTES = 16 * MIB  # of a joined host
SILENT_LINKS_MAX = 32  # the most links of a joined host whose first message has not arrived yet
REASON_MAX = 1_000  # characters
SAMPLES_KEPT, SAMPLES_KEPT_S = 120, 120.0 + SAMPLE_MAX_AGE_S  # the most samples of each GPU, and their greatest age
HEARTBEATS_S = 1.0  # the interval between two transactions that note which hosts have reported
CONNECT_ANEW = "it must connect again: its tasks were given up, because it did not report, or GPUs of another host are now its own"
NOTHING = Report()
HEARTBEAT, ACK = msgspec.json.encode({"report": NOTHING}), msgspec.json.encode({"ack": Ack()})  # most messages of idle hosts

HostRefused = api_error("HostRefused")

_MESSAGES = msgspec.json.Decoder(ToCore)

log = logging.getLogger("corral")


class Agents:
    def __init__(
        self, data: Path, state: Lane[Store], logs_lane: Lane[LogStore], blobs: Blobs, clock: Clock, local: LocalAgent,
        outputs: OutputSettings, port: int, joined: JoinedHosts, cluster: str, demand: SampleDemand,
    ) -> None:  # fmt: skip
        self._folder = data / "node"
        self._blobs = blobs
        self._local = local
        self._joined = joined
        self._cluster = cluster
        self._demand = demand
        self._welcome = {"outputs": output_limits(outputs), "server": ServerPlace(port, machine_id())}
        self._state = state
        self._logs = logs_lane
        self._clock = clock
        self._order_sender = OrderSender(state, logs_lane, blobs, clock)
        self._connections: dict[str, AgentConnection] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent_links = Counter[str]()  # joined host → how many of its links have sent no message yet
        self._heard: set[str] = set()  # the hosts that have reported since the last transaction about that
        self._watching: asyncio.Task[None] | None = None
        self.samples: dict[str, GpuSample] = {}
        self.history: dict[str, deque[tuple[float, GpuSample]]] = {}  # GPU id → its samples of the last minutes, for `corral top`
        self._new_samples: dict[str, list[tuple[float, GpuSample]]] = {}

    async def listen(self) -> None:
        self._server = await link.listen(self._folder, self.opened)

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
        """Return the problems of agents and spawners that do not respond, for GetStatus. Any thread may call this method."""
        now_s, local_pid = self._clock.now_s(), self._local.pid
        connections = list(self._connections.values())
        found = []
        for connection in connections:
            name, silent_s = connection.hello.name, now_s - connection.heard_s
            pid = None if connection.link.peer else local_pid
            if silent_s > SILENT_S or (pid is not None and procfs.is_stopped(pid)):
                text = f"has not reported for {silent_s:.0f} s{procfs.why_silent(pid)}"
                found.append({"part": "agent", "host": f"host {name}", "problem": text})
            if connection.not_upgraded:
                found.append({"part": "upgrade", "host": f"host {name}", "problem": connection.not_upgraded})
            if connection.problem:
                found.append({"part": "spawner", "host": f"host {name}", "problem": connection.problem})
            if connection.scope is not None and (elsewhere := connection.scope.gpus_elsewhere):
                others = ", ".join(sorted(set(elsewhere.values())))
                text = f"reports GPUs that {others} has: if {others} is this machine before it was installed again, forget {others}"
                found.append({"part": "gpus", "host": f"host {name}", "problem": text})
        if all(connection.link.peer for connection in connections):
            found.append({"part": "agent", "host": "", "problem": self._local.error or "is not connected"})
        return found

    async def measure(self, host_id: str, run_ids: list[str]) -> Measured | None:
        """Return the current usage of these runs of a host. Return None if the host is not connected or does not respond."""
        connection = self._connections.get(host_id)
        try:
            return await connection.measure(run_ids) if connection is not None else None
        except TimeoutError:
            return None

    async def execute(self, host_id: str, order: Execute) -> Link:
        """Order a session of execute-command, and return its link. Raise SessionRefused if the session is not started."""
        connection = self._connections.get(host_id)
        if connection is None:
            raise SessionRefused("the agent of this host is not connected")
        try:
            whole = await with_files(order.run, self._blobs)
        except FileNotFoundError:
            raise SessionRefused("an environment file was replaced during the request; try again") from None
        return await connection.execute(replace(order, run=whole))

    def is_connected(self, host_id: str) -> bool:
        """Whether the agent of a host is connected. Any thread may call this method."""
        return host_id in self._connections

    async def close(self) -> None:
        """Disconnect the agents. The runs continue."""
        self._server.close()
        for connection in list(self._connections.values()):
            if not connection.link.peer:  # the agents of other machines wait for the next server
                connection.link.send_message({"quit": "Corral is stopping"})
            connection.link.close("Corral is stopping")
        for task in list(self._tasks):
            task.cancel()

    def opened(self, link: Link) -> None:
        """Serve a new link, of the agent of this machine or of a joined host."""
        task = asyncio.get_running_loop().create_task(self._serve(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, link: Link) -> None:
        """Serve a new link. Its first message says whether it is the connection of an agent or a session."""
        reason = "the server does not understand the message"
        try:
            first = await self._first_message(link)
            if first is not None and first.session is not None:
                if self._start_session(first.session, link):
                    return
                reason = "the session has ended"
            elif first is not None and first.hello is not None and first.hello.protocol not in PROTOCOLS:
                reason = other_version(first.hello)
            elif first is not None and first.hello is not None:
                await self._serve_agent(link, await self._proved(first.hello, link) if link.peer else first.hello)
                reason = "the host has connected anew"
        except asyncio.CancelledError:
            reason = "Corral is stopping"
        except ApiError as refusal:
            reason = refusal.message
        except msgspec.DecodeError as error:
            reason += f": {error}"
            log.warning("the connection to %s ended, because %s", f"host {link.peer}" if link.peer else "the agent", reason)
        except Exception:
            log.exception("the connection to an agent failed")
            reason = "the server failed"
        link.close(reason)
        self._local.may_have_ended.set()

    async def _first_message(self, link: Link) -> ToCore | None:
        """Receive the first message of a link. Links of joined hosts that send none must not fill the memory."""
        if not link.peer:
            return await _next_message(link)
        if self._silent_links[link.peer] >= SILENT_LINKS_MAX:
            raise HostRefused(f"{SILENT_LINKS_MAX} connections of this host have sent no message yet")
        self._silent_links[link.peer] += 1
        link.message_max_bytes = FIRST_MESSAGE_MAX_BYTES
        try:
            return await _next_message(link, FIRST_MESSAGE_S)
        finally:
            self._silent_links[link.peer] -= 1
            if not self._silent_links[link.peer]:
                del self._silent_links[link.peer]

    async def _proved(self, hello: Hello, link: Link) -> Hello:
        """Return the hello of a joined host with what its certificate and its token decide, whatever the hello says.

        Raise HostRefused if the certificate was copied to another machine.
        """
        from corral.services.corral import joining  # imported here, because most servers have one machine

        host_id = link.peer
        refusal = await self._state.submit(partial(joining.identify, host_id=host_id, machine=hello.machine, address=link.address))
        host = self._joined.get(host_id)
        if refusal or host is None:
            raise HostRefused(refusal)
        if why := self._why_copy(hello, host_id):
            raise HostRefused(why)
        cluster = host.cluster or hello.options.cluster or self._cluster
        if not host.cluster and not joining.CLUSTER.fullmatch(cluster):
            raise HostRefused(f"cluster '{cluster[:300]}' is not valid: choose another one with `corral join --cluster`")
        options = replace(hello.options, cluster=cluster, rack=host.rack or hello.options.rack)
        return replace(hello, host_id=host_id, name=host.name, options=options, runs=[checked(run) for run in hello.runs])

    def _why_copy(self, hello: Hello, host_id: str) -> str:
        """Return why the agent of a host is a copy of one that is connected and reports. Empty: it is not.

        It tells another boot of the machine, or is in another folder. If the machine of an agent has failed, the server learns that
        only after LOST_S. Until then, the next agent is refused, too.
        """
        live = self._connections.get(host_id)
        if live is None or self._clock.now_s() > live.heard_s + LOST_S:
            return ""
        if (live.hello.boot_id, live.hello.folder) == (hello.boot_id, hello.folder):
            return ""
        where = f"from {live.link.address}" if live.hello.boot_id != hello.boot_id else "from another folder"
        return (
            f"Host {live.hello.name} is already connected {where}. If this disk or folder is a copy of that host, join as a new "
            "host: `corral join --new SERVER:PORT --token TOKEN`, with a token of `corral token create`. If the machine has just "
            f"restarted, it is accepted after {LOST_S:.0f} s."
        )

    def _start_session(self, session_id: str, link: Link) -> bool:
        """Hand a link over to the caller of `execute` that waits for it. Return False if there is none."""
        for host_id, connection in self._connections.items():
            opened = connection.sessions.get(session_id) if link.peer in ("", host_id) else None
            if opened is not None and not opened.done():
                opened.set_result(link)
                return True
        return False

    async def _serve_agent(self, link: Link, hello: Hello) -> None:
        connection = AgentConnection(link, hello, self._clock.now_s())
        stale = self._connections.get(hello.host_id)
        # From now on, this connection gets new orders. The hello message requests the orders that were committed before.
        self._connections[hello.host_id] = connection
        if stale is not None:
            stale.is_current = False
            stale.link.close("the host has connected anew")
        sender: asyncio.Task[None] | None = None
        try:
            scope = connection.scope = HostScope(self._state, link.peer) if link.peer else None
            if names := runtime_ids(hello.runs if scope is None else await scope.own_runs(hello.runs)):
                await self._logs.submit(partial(ship, chunks=[], names=names))
            if hello.leaves and link.peer:
                await self._state.submit(partial(_leave, host_id=link.peer))
            await self._state.submit(partial(host_reports.hello, message=hello))
            if scope is not None:
                await scope.begin(hello, link.address)
            names = await self._state.submit(unix_accounts.all_accounts)
            link.send_message({"welcome": {**self._welcome, "accounts": names}})
            link.message_max_bytes = MESSAGE_MAX_BYTES
            if link.peer:
                self._watch_joined(connection)
            else:
                self._local.has_joined()
            sender = asyncio.create_task(self._order_sender.run(connection))
            await self._read_reports(connection)
        finally:
            if sender is not None:
                sender.cancel()
            if connection.is_current:
                connection.is_current = False
                del self._connections[hello.host_id]

    def _watch_joined(self, connection: AgentConnection) -> None:
        """Look at the connections of joined hosts from now on. Without joined hosts, there is nothing to do every second."""
        connection.link.send_message({"samples_at_once": connection.samples_at_once})
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())
            self._tasks.add(self._watching)
            self._watching.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """Until there is no joined host: disconnect those that are silent, and tell them whether samples are needed at once.

        A joined host reports more often than every LOST_S.
        """
        told, was_late, rounds = False, False, 0
        while any(connection.link.peer for connection in self._connections.values()):
            began = time.monotonic()
            await asyncio.sleep(WATCH_S)
            at_once, rounds = self._demand.is_urgent(), rounds + 1
            was_late = was_late or time.monotonic() > began + LOST_S / 2  # the server itself has paused for long
            if at_once == told and rounds % LOOKS_EVERY:
                continue  # with many hosts, a look at all of them takes long
            for connection in [connection for connection in self._connections.values() if connection.link.peer]:
                if connection.samples_at_once != at_once:
                    connection.samples_at_once = at_once
                    connection.link.send_message({"samples_at_once": at_once})
                if connection.link.silent_s() > LOST_S and not was_late:
                    connection.link.close(f"nothing has arrived for {LOST_S:g} s")
            told, was_late = at_once, False

    def _note_report(self, connection: AgentConnection, seen_s: float) -> float:
        """Note soon that a host has reported, together with other hosts, unless this was noted recently. Return when it was."""
        if connection.heard_s - seen_s < HEARTBEAT_S / 2:
            return seen_s
        if not self._heard:
            asyncio.get_running_loop().call_later(HEARTBEATS_S, self._store_heartbeats)
        self._heard.add(connection.hello.host_id)
        return connection.heard_s

    def _store_heartbeats(self) -> None:
        heard, self._heard = self._heard & self._connections.keys(), set()
        scopes = {host_id: self._connections[host_id].scope for host_id in heard}
        lacking = {host_id: list(scope.gpus_elsewhere) for host_id, scope in scopes.items() if scope and scope.gpus_elsewhere}
        # Not a change of the state, unless it writes rows: with a change, all metrics of clusters would be computed anew.
        stored = self._state.submit(partial(hosts.heartbeats, host_ids=heard, lacking=lacking), read_only=True)
        stored.add_done_callback(self._close_outdated)

    def _close_outdated(self, answer: asyncio.Future[list[str]]) -> None:
        """Close the connections of hosts that must connect anew. Their next hello says which runs and which GPUs they have."""
        if answer.exception() is not None:
            return  # the next transaction stores what has changed
        for host_id in answer.result():
            if (connection := self._connections.get(host_id)) is not None:
                connection.link.close(CONNECT_ANEW)

    async def _read_reports(self, connection: AgentConnection) -> None:
        seen_s = self._clock.now_s()
        foreign, submitted = connection.hello.foreign, self._submitted()
        while (received := await connection.link.receive()) is not None:
            connection.heard_s = self._clock.now_s()
            if received[1] == HEARTBEAT:
                connection.problem = ""
                seen_s = self._note_report(connection, seen_s)
                submitted = self._submitted()
                connection.link.send(MESSAGE, ACK)
                continue
            message = _MESSAGES.decode(received[1])
            if message.measured is not None:
                connection.measured(message.measured)
                continue
            if message.not_upgraded is not None:
                connection.not_upgraded = message.not_upgraded[:REASON_MAX]
                continue
            if message.declined is not None:
                connection.declined(message.declined)
                continue
            if message.accounts is not None:
                if connection.is_current:
                    host_id = connection.hello.host_id
                    await self._state.submit(partial(unix_accounts.report, host_id=host_id, found=message.accounts))
                continue
            if message.report is None:
                raise ValueError("the agent sent an unknown message")
            report, shipped, is_busy = message.report, dict[str, int](), False
            connection.problem = report.problem[:REASON_MAX]
            if report.leaves and connection.link.peer:  # before the ends of its runs, so that no other task is placed on it
                await self._state.submit(partial(_leave, host_id=connection.link.peer))
            if report != NOTHING:
                report = report if connection.scope is None else await connection.scope.limit(report)
                foreign = await self._store_gpus(report, connection, foreign)
                shipped, is_busy = await self._store_runs(report, connection, submitted)
            seen_s = self._note_report(connection, seen_s)
            submitted = self._submitted()
            connection.link.send_message({"ack": Ack(shipped, is_busy)})

    async def _store_gpus(self, report: Report, connection: AgentConnection, foreign: dict[str, Any]) -> dict[str, Any]:
        """Store what a report says about the host and its GPUs. Return the foreign processes on the GPUs."""
        now_s = self._clock.now_s()
        for earlier in report.earlier:
            self._add_samples(earlier.gpus, now_s - max(0.0, earlier.age_s))
        self._add_samples(report.gpus, now_s)
        host_id = connection.hello.host_id
        found = {sample.gpu_id: sample.foreign for sample in report.gpus if sample.foreign != foreign.get(sample.gpu_id, [])}
        # If the host has reconnected, the hello of its new connection has newer facts than this report.
        if found and connection.is_current:
            await self._state.submit(partial(hosts.gpus_in_use, host_id=host_id, found=found))
            foreign = {**foreign, **found}
        if report.faults is not None and connection.is_current:
            await self._state.submit(partial(hosts.gpus_failed, host_id=host_id, faults=report.faults))
        return foreign

    def _add_samples(self, samples: list[GpuSample], at_s: float) -> None:
        for sample in samples:
            self.samples[sample.gpu_id] = sample
            past = self.history.get(sample.gpu_id)
            if past is None:
                past = self.history[sample.gpu_id] = deque(maxlen=SAMPLES_KEPT)
            if not past or past[-1][0] < at_s:  # a host must not put samples before those that were published
                past.append((at_s, sample))
                while past[0][0] < at_s - SAMPLES_KEPT_S:
                    past.popleft()
                new = self._new_samples.setdefault(sample.gpu_id, [])
                new.append((at_s, sample))
                del new[:-SAMPLES_KEPT]

    def take_new_samples(self) -> dict[str, list[tuple[float, GpuSample]]]:
        """Return the samples that have arrived since the last call: GPU id → (time, sample), oldest first."""
        taken, self._new_samples = self._new_samples, {}
        return taken

    async def _store_runs(self, report: Report, connection: AgentConnection, submitted: int) -> tuple[dict[str, int], bool]:
        """Store the logs and the runs of a report. Return how much of each log is stored, and whether the lanes were busy.

        Logs are stored first, so that a client that sees a stopped task can read its whole log.
        """
        shipped: dict[str, int] = {}
        is_busy = False
        names = runtime_ids(report.runs if connection.scope is None else await connection.scope.own_runs(report.runs))
        if report.logs or names:
            shipped = await self._logs.submit(partial(ship, chunks=report.logs, names=names))
            is_busy = self._submitted() > submitted + 1  # other commands were submitted since the last report
        if report.runs:
            await self._state.submit(partial(host_reports.report, host_id=connection.hello.host_id, runs=report.runs))
        return shipped, is_busy

    def _submitted(self) -> int:
        return self._state.submitted + self._logs.submitted


def _leave(tx: Tx[Store], host_id: str) -> None:
    from corral.services.corral import lending  # imported here, because few servers have lenders

    lending.leaves(tx, host_id)


def output_limits(settings: OutputSettings) -> OutputLimits:
    return OutputLimits(settings.file_mib * MIB, settings.total_mib * MIB, settings.days * DAY_S)


def other_version(hello: Hello) -> str:
    return (
        f"the versions of Corral differ: the host has {hello.version[:60] or 'an older one'}, and the server has {full_version()}. "
        "Install the version of the server on the host"
    )


async def _next_message(link: Link, within_s: float | None = None) -> ToCore | None:
    message = await (link.receive() if within_s is None else link.receive_within(within_s))
    return None if message is None else _MESSAGES.decode(message[1])
