"""The control plane: three lanes in one process, and the conversation with agents as server/agents has it.

A crash throws cores and stores away as they are; the next life finds what the files hold, by their write-ahead logs.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.core.handovers import forget_finished
from corral.core.transactions import Tx
from corral.fleet import hosts
from corral.model.agent_protocol import HEARTBEAT_S, Hello, HostOrders, Orders, Report, StartOrder
from corral.model.gpu import Foreign
from corral.model.run import Observed
from corral.reconcile import LOGS, METRICS
from corral.reconcile.receivers import RECEIVERS
from corral.services.logs.ingestion import open_streams
from corral.store import Store
from simulation.agenda import Steps, Waiting, go
from simulation.host import Agent
from simulation.joined_hosts import serves_hello
from simulation.lanes import LANES, Crash, SimLane, SimStore, empty_database
from simulation.link import Connection

if TYPE_CHECKING:
    from simulation.world import World


def give_hosts_time(tx: Tx[Store]) -> None:
    """No host could report while the core was down: silence is counted from now. The server does the same at its start."""
    tx.due("sweep:", tx.now_s)
    for host in tx.store.hosts.all():
        if host["connected"]:
            tx.store.hosts.seen([host["id"]], tx.now_s)
            tx.due(f"host:{host['id']}", tx.now_s)


class AgentLink(Connection):
    """A connection with the orders that wait to be sent on it."""

    def __init__(self, world: World, agent: Agent) -> None:
        super().__init__(world, agent)
        self._orders: deque[HostOrders] = deque()
        self._wanted: Waiting | None = None

    def put(self, orders: HostOrders) -> None:
        if orders.replaces_earlier:
            self._orders.clear()
        self._orders.append(orders)
        if self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            wanted.settle(None)

    def some_orders(self) -> Waiting:
        waiting = Waiting()
        if self._orders:
            waiting.settle(None)
        else:
            self._wanted = waiting
        return waiting

    def take_orders(self) -> list[HostOrders]:
        taken = list(self._orders)
        self._orders.clear()
        return taken


class Plane:
    """One life after another of the server process."""

    link = AgentLink

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.life = 0
        self.up = False
        self.lanes: dict[str, SimLane] = {}
        self.trouble: dict[str, str] = {}  # what happens at the next commit of a lane
        self.steps_left: dict[str, int] = {}  # a lane does so many steps more, and then the process dies
        self._paths = {name: folder / f"{name}-0.db" for name in LANES}
        for name, path in self._paths.items():
            path.write_bytes(empty_database(name))

    @property
    def store(self) -> SimStore:
        found: SimStore = self.lanes["state"].store
        return found

    def start(self) -> None:
        world, parts = self.world, self.world.parts
        self.up = True
        stores = {"state": parts.store, "logs": parts.log_store, "metrics": parts.metric_store}
        reconcilers = {"state": parts.reconcilers, "logs": LOGS, "metrics": METRICS}
        self.lanes = {
            name: SimLane(
                self, name, stores[name](self._paths[name], partial(self._next_trouble, name)), reconcilers[name], RECEIVERS[name]
            )
            for name in LANES
        }
        self._connections: dict[str, AgentLink] = {}
        self.store.joined_hosts.close_connections = self._close
        world.note("core", "starts", self.life)
        try:
            forget_finished([lane.store for lane in self.lanes.values()])
        except Crash:
            self.crash()
            return
        world.tell("plane_started")
        for lane in self.lanes.values():
            lane.delivery.start()
        self.submit(give_hosts_time)
        for name, key in (("logs", "sweep:"), ("metrics", "rollup:")):
            self.submit(lambda tx, key=key: tx.due(key, tx.now_s), name)

    def crash(self) -> None:
        """As kill -9: what was committed is in the files and their logs, nothing else is left."""
        self.world.note("core", "crashes")
        self.up = False
        self.life += 1
        self.steps_left.clear()
        lanes, self.lanes = self.lanes, {}
        for name, lane in lanes.items():
            path = self._paths[name]
            left = self._paths[name] = path.with_name(f"{name}-{self.life}.db")
            for suffix in ("", "-wal"):
                if path.with_name(path.name + suffix).exists():
                    shutil.copyfile(str(path) + suffix, str(left) + suffix)
            lane.store.connection.close()
        for connection in list(self._connections.values()):
            connection.break_off()
        self.world.agenda.after(self.world.down_s(), self.start)

    def dies_now(self, lane: str) -> bool:
        """Before each step of a lane."""
        left = self.steps_left.get(lane)
        if left is None:
            return False
        self.steps_left[lane] = left - 1
        if left == 0:
            self.crash()
        return left == 0

    def wall_clock_set(self, by_s: float) -> None:
        """The server notices a step of the wall clock and does the same."""
        self.submit(lambda tx: tx.store.shift_due(by_s), "metrics")
        self.submit(lambda tx: tx.mark("wall-clock:"))

    def submit(self, handler: Callable[[Tx[Any]], Any], lane: str = "state") -> Waiting:
        """Settled with the answer after the commit, or never."""
        return self.lanes[lane].submit(handler) if self.up else Waiting()

    def send_orders(self, orders: dict[str, HostOrders]) -> None:
        for host_id, of_host in orders.items():
            connection = self._connections.get(host_id)
            if connection is not None:
                connection.put(of_host)

    def undelivered(self) -> int:
        """How many hand-overs there are whose rows are not removed."""
        return sum(len(lane.store.undelivered()) for lane in self.lanes.values())

    def _next_trouble(self, lane: str) -> str | None:
        return self.trouble.pop(lane, None)

    def _close(self, host_id: str) -> None:
        if (connection := self._connections.get(host_id)) is not None:
            connection.break_off()

    # The conversation with agents

    def accept(self, agent: Agent) -> AgentLink | None:
        if not self.up or self.world.agenda.now < agent.host.cut_until:
            return None
        connection = self.link(self.world, agent)
        go(self._serve(connection))
        return connection

    def _serve(self, connection: AgentLink) -> Steps:
        life = self.life
        message = yield connection.read()
        if message is None or life != self.life:
            return
        hello: Hello = message["hello"]
        stale = self._connections.get(hello.host_id)
        self._connections[hello.host_id] = connection
        if stale is not None:
            stale.break_off()
        has_joined = next(host.has_joined for host in self.world.hosts if host.id == hello.host_id)
        answer = yield self.submit(
            lambda tx: serves_hello(tx, hello, self.world) if has_joined else self.world.parts.hello(tx, hello)
        )
        assert not isinstance(answer, str), answer
        if not isinstance(answer, Exception):
            self.world.note("core", "welcomes", hello.host_id, len(hello.runs))
            connection.down.send({"welcome": {}})
            go(self._send_orders(connection))
            yield from self._read_reports(connection, hello.host_id, answer)
        connection.break_off()
        if self._connections.get(hello.host_id) is connection:
            del self._connections[hello.host_id]

    def _read_reports(self, connection: AgentLink, host_id: str, gpus_elsewhere: list[str] | None = None) -> Steps:
        lacking = ({host_id: gpus_elsewhere},) if gpus_elsewhere else ()
        seen_s = self.world.clock.now_s()
        while (message := (yield connection.read())) is not None:
            report: Report = message["report"]
            if report.gpus and self._connections.get(host_id) is connection:
                found = {sample.gpu_id: sample.foreign for sample in report.gpus}
                answer = yield self.submit(lambda tx, found=found: self._gpus_in_use(tx, host_id, found))
                if isinstance(answer, Exception):
                    return
            if report.runs:
                answer = yield self.submit(lambda tx, runs=report.runs: self.world.parts.report(tx, host_id, runs))
                if isinstance(answer, Exception):
                    return
            if self.world.clock.now_s() - seen_s >= HEARTBEAT_S / 2:
                seen_s = self.world.clock.now_s()
                answer = yield self.submit(lambda tx: self.world.parts.heartbeats(tx, [host_id], *lacking))
                if isinstance(answer, Exception) or answer:  # its tasks were given up, or it can have GPUs: it must connect anew
                    return
            connection.down.send({"ack": {}})

    def _gpus_in_use(self, tx: Tx[Store], host_id: str, found: dict[str, list[Foreign]]) -> None:
        self.world.withheld_changes += 1
        hosts.gpus_in_use(tx, host_id, found)

    def _send_orders(self, connection: AgentLink) -> Steps:
        while True:
            yield connection.some_orders()
            if connection.broken:
                return
            batch = connection.take_orders()
            starts = [start for orders in batch for start in orders.start]
            logged = [start for start in starts if start.log is not None]
            refused: dict[str, str] = {}
            if logged:
                answer = yield self.submit(lambda tx, logged=logged: open_streams(tx, logged), "logs")
                if isinstance(answer, Exception):
                    connection.break_off()  # its agent will ask again
                    return
                if not self._may_still_refuse(connection):
                    return
                refused = answer | self._refused_by_chance(logged)
            if refused:
                now_s = self.world.clock.now_s()
                seen = [Observed(run_id, stopped_at_s=now_s, reason=reason) for run_id, reason in refused.items()]
                yield self.submit(lambda tx, seen=seen: self.world.parts.report(tx, connection.host_id, seen))
            specs = [start.spec for start in starts if start.spec.run_id not in refused]
            stops = [run_id for orders in batch for run_id in orders.stop]
            checks = [spec for orders in batch for spec in orders.check]
            self.world.note("core", "orders", connection.host_id, [spec.run_id for spec in specs], stops)
            connection.down.send({"orders": Orders(specs, stops, checks)})

    def _may_still_refuse(self, connection: AgentLink) -> bool:
        """A newer hello has asked for these runs again: they may be started there and must not be given up here."""
        return self._connections.get(connection.host_id) is connection

    def _refused_by_chance(self, logged: list[StartOrder]) -> dict[str, str]:
        """A log group that was there a moment ago need not be there now."""
        rng, rate = self.world.rng, self.world.plan.log_refusal
        return {start.spec.run_id: "no such log group" for start in logged if rng.random() < rate}
