"""The control plane around the real core: a lane without a thread, and the conversation with agents as server/agents.py has it.

A crash throws core and store away as they are; the next life finds what the file holds, by its write-ahead log.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.core import Command, HostOrders, Outbox, Tx
from corral.database import CommitFailed
from corral.model.run import HEARTBEAT_S, Foreign, Hello, Observed, Orders, Report, Start
from corral.services import hosts
from corral.store import Store
from corral.store.definitions import Definitions
from simulation.agenda import Steps, Stuck, Waiting, go
from simulation.host import Agent
from simulation.link import Connection

if TYPE_CHECKING:
    from simulation.world import World

BATCH_MAX = 256
CLOSE_S = 0.001  # two clocks in floating point: an alarm may ring a little early and is set again

RINGS_MAX = 200  # without any progress


class Crash(BaseException):
    """The process is gone, here and now: nobody may catch this but the world."""


class SimDefinitions(Definitions):
    def add(self, region: str, family: str, document: dict[str, Any]) -> int:
        """ECS takes no restart period below a minute; runs here last seconds."""
        containers = [
            {**each, "restartPolicy": {**each["restartPolicy"], "restartAttemptPeriod": 1}} if "restartPolicy" in each else each
            for each in document["containerDefinitions"]
        ]
        return super().add(region, family, {**document, "containerDefinitions": containers})


class SimStore(Store):
    """The real store; its disk may be full, and the process may die on either side of a commit."""

    def __init__(self, path: Path, trouble: Callable[[], str | None]) -> None:
        self._trouble = trouble
        super().__init__(path)

    def _configure(self, connection: Any) -> None:
        super()._configure(connection)
        connection.execute("PRAGMA synchronous=OFF")  # the machine does not crash here, only the process
        connection.execute("PRAGMA wal_autocheckpoint=100")

    def _compose(self) -> None:
        super()._compose()
        self.definitions = SimDefinitions(self)

    def commit(self) -> None:
        trouble = self._trouble()
        if trouble == "disk full":
            raise CommitFailed("disk full, says the simulation")
        if trouble == "crash before commit":
            raise Crash
        super().commit()
        if trouble == "crash after commit":
            raise Crash


def give_hosts_time(tx: Tx[Store]) -> None:
    """While the core was down nobody could be heard: silence is counted from now. The server does the same at its start."""
    tx.due("sweep:", tx.now_s)
    for host in tx.store.hosts.all():
        if host["connected"]:
            tx.store.hosts.seen(host["id"], tx.now_s)
            tx.due(f"host:{host['id']}", tx.now_s)


class AgentLink(Connection):
    """A connection with the orders that wait to be sent on it."""

    def __init__(self, world: World, agent: Agent) -> None:
        super().__init__(world, agent)
        self._orders: deque[HostOrders] = deque()
        self._wanted: Waiting | None = None

    def put(self, orders: HostOrders) -> None:
        if orders.anew:
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

    def __init__(self, world: World, path: Path) -> None:
        self.world = world
        self.life = 0
        self.up = False
        self._alarm = 0
        self._rings = 0
        self.trouble: str | None = None  # what happens at the next commit
        self._path = path
        self._store: SimStore | None = None

    @property
    def store(self) -> SimStore:
        assert self._store is not None
        return self._store

    def start(self) -> None:
        world = self.world
        self.up = True
        self._store = world.parts.store(self._path, self._next_trouble)
        self.core = world.parts.core(
            self.store,
            settings=world.settings,
            clock=world.clock,
            ids=world.ids,
            reconcilers=world.parts.reconcilers,
        )
        self._inbox: deque[Command] = deque()
        self._connections: dict[str, AgentLink] = {}
        self._delivered_at = 0.0
        world.note("core", "starts", self.life)
        world.tell("plane_started")
        self.submit(give_hosts_time)

    def crash(self) -> None:
        """As kill -9: what was committed is in the file and its log, nothing else is left."""
        self.world.note("core", "crashes")
        self.up = False
        self.life += 1
        self._alarm += 1  # the old one must not wake the next life
        left = self._path.with_name(f"life-{self.life}.db")
        for suffix in ("", "-wal"):
            if self._path.with_name(self._path.name + suffix).exists():
                shutil.copyfile(str(self._path) + suffix, str(left) + suffix)
        self.store.close()
        self._store = None
        self._path = left
        for connection in list(self._connections.values()):
            connection.break_off()
        self.world.agenda.after(self.world.down_s(), self.start)

    def wake(self) -> None:
        """Something is waiting, or the clock was stepped."""
        delay_s = self.world.plan.batch_delay_s * self.world.rng.random()
        self.world.agenda.after(delay_s, partial(self._work, self.life))

    # The lane

    def submit(self, handler: Callable[[Tx[Store]], Any]) -> Waiting:
        """Settled with the answer after the commit, or never."""
        answer = Waiting()
        self._inbox.append(Command(handler, answer.settle))
        if len(self._inbox) == 1:
            self.wake()
        return answer

    def _work(self, life: int) -> None:
        if life != self.life or not self.up:
            return
        due_s = self.core.next_due_s()
        if not self._inbox and (due_s is None or due_s > self.world.clock.now_s()):
            self._set_alarm()
            return
        commands = [self._inbox.popleft() for _ in range(min(BATCH_MAX, len(self._inbox)))]
        try:
            outbox = self.core.batch(commands)
        except Crash:
            self.crash()
            return
        self.world.note("batch", len(commands), len(outbox.answers), len(outbox.faults))
        delay_s = self.world.plan.batch_delay_s * self.world.rng.random()
        self._delivered_at = max(self._delivered_at, self.world.agenda.now + delay_s)
        self.world.agenda.at(self._delivered_at, partial(self._deliver, life, outbox))
        self.world.tell("batch_done", outbox)
        if self._inbox:
            self.wake()
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Wake up when something is due; one alarm at a time."""
        due_s = self.core.next_due_s()
        if due_s is not None:
            self._alarm += 1
            self.world.agenda.after(max(CLOSE_S, due_s - self.world.clock.now_s()), partial(self._ring, self._alarm))

    def _ring(self, alarm: int) -> None:
        if alarm != self._alarm or not self.up:
            return
        before_s = self.core.next_due_s()
        self._work(self.life)
        self._rings = self._rings + 1 if self.up and self.core.next_due_s() == before_s else 0
        if self._rings > RINGS_MAX:
            raise Stuck(f"what is due at {before_s} is never looked at: the core spins")

    def _deliver(self, life: int, outbox: Outbox) -> None:
        if life != self.life:
            return
        for host_id, orders in outbox.orders.items():  # first: in the server nobody goes on before this callback is over
            connection = self._connections.get(host_id)
            if connection is not None:
                connection.put(orders)
        for command, answer in outbox.answers:
            command.done(answer)

    def _next_trouble(self) -> str | None:
        trouble, self.trouble = self.trouble, None
        return trouble

    # The conversation with agents

    def accept(self, agent: Agent) -> AgentLink | None:
        if not self.up:
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
        answer = yield self.submit(lambda tx: self.world.parts.hello(tx, hello))
        if not isinstance(answer, Exception):
            self.world.note("core", "welcomes", hello.host_id, len(hello.runs))
            connection.down.send({"welcome": {}})
            go(self._send_orders(connection))
            yield from self._read_reports(connection, hello.host_id)
        connection.break_off()
        if self._connections.get(hello.host_id) is connection:
            del self._connections[hello.host_id]

    def _read_reports(self, connection: AgentLink, host_id: str) -> Steps:
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
                answer = yield self.submit(lambda tx: self.world.parts.heartbeat(tx, host_id))
                if isinstance(answer, Exception):
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
            if any(start.log is not None for start in starts):
                yield self._log_lane()
                if not self._may_still_refuse(connection):
                    return
            refused = self._refused(starts)
            if refused:
                seen = [Observed(run_id, stopped_at_s=self.world.clock.now_s(), reason="no such log group") for run_id in refused]
                yield self.submit(lambda tx, seen=seen: self.world.parts.report(tx, connection.host_id, seen))
            specs = [start.spec for start in starts if start.spec.run_id not in refused]
            stops = [run_id for orders in batch for run_id in orders.stop]
            checks = [spec for orders in batch for spec in orders.check]
            self.world.note("core", "orders", connection.host_id, [spec.run_id for spec in specs], stops)
            connection.down.send({"orders": Orders(specs, stops, checks)})

    def _may_still_refuse(self, connection: AgentLink) -> bool:
        """A newer hello has asked for these runs again: they may be started there and must not be given up here."""
        return self._connections.get(connection.host_id) is connection

    def _log_lane(self) -> Waiting:
        """Log streams are opened in another transaction, which takes its time."""
        opened = Waiting()
        self.world.agenda.after(self.world.plan.batch_delay_s * self.world.rng.random(), lambda: opened.settle(None))
        return opened

    def _refused(self, starts: list[Start]) -> list[str]:
        """Runs whose log streams cannot be opened."""
        logged = [start for start in starts if start.log is not None]
        return [start.spec.run_id for start in logged if self.world.rng.random() < self.world.plan.log_refusal]
