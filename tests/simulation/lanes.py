"""A lane without a thread: a real core, store and delivery of hand-overs, on the world's clock.

Whatever a lane does is a step of its own on the agenda: to run a transaction, and to deliver what it led to. The process may die
before any step, and on either side of a commit.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.core.clock import Clock, WallView
from corral.core.commands import Command
from corral.core.core import Outcome
from corral.core.database import CommitFailed, Database, Handover
from corral.core.handovers import Done, receive
from corral.core.transactions import Receiver, Reconciler, Tx
from corral.store import Store
from corral.store.revisions import Definitions
from corral.telemetry import LogStore, MetricStore
from memory_files import MEMORY
from simulation.agenda import Stuck, Waiting

if TYPE_CHECKING:
    from simulation.plane import Plane

LANES = ("state", "logs", "metrics")
COMMANDS_MAX = 256
CLOSE_S = 0.001  # two clocks in floating point: an alarm may ring a little early and is set again
RINGS_MAX = 200  # without any progress


class Crash(BaseException):
    """The process died at this point. Only the world may catch this."""


class Breakable(Database):
    """The disk may be full, and the process may die on either side of a commit."""

    def __init__(self, path: Path, trouble: Callable[[], str | None]) -> None:
        self._trouble = trouble
        super().__init__(path)  # type: ignore[call-arg]

    def _configure(self, connection: Any) -> None:
        super()._configure(connection)
        connection.execute("PRAGMA synchronous=OFF")  # the machine does not crash here, only the process
        connection.execute("PRAGMA wal_autocheckpoint=100")

    def commit(self) -> None:
        trouble = self._trouble()
        if trouble == "disk full":
            raise CommitFailed("disk full, says the simulation")
        if trouble == "crash before commit":
            raise Crash
        super().commit()
        if trouble == "crash after commit":
            raise Crash


class SimDefinitions(Definitions):
    def add(self, region: str, family: str, document: dict[str, Any], owner: str) -> int:
        """ECS takes no restart period below a minute; runs here last seconds."""
        containers = [
            {**each, "restartPolicy": {**each["restartPolicy"], "restartAttemptPeriod": 1}} if "restartPolicy" in each else each
            for each in document["containerDefinitions"]
        ]
        return super().add(region, family, {**document, "containerDefinitions": containers}, owner)


class SimStore(Breakable, Store):
    def _compose(self) -> None:
        super()._compose()
        self.definitions = SimDefinitions(self)


def with_part(name: str, faulty: type[Any]) -> type[SimStore]:
    """The store with a faulty part in place of the real one."""

    class Faulty(SimStore):
        def _compose(self) -> None:
            super()._compose()
            getattr(self, name).__class__ = faulty

    return Faulty


class SimLogStore(Breakable, LogStore):
    pass


class SimMetricStore(Breakable, MetricStore):
    pass


STORES: dict[str, type[Breakable]] = {"state": SimStore, "logs": SimLogStore, "metrics": SimMetricStore}


@cache
def empty_database(lane: str) -> bytes:
    """The file of a new store. To write this file takes less time than to create the tables."""
    with tempfile.TemporaryDirectory(prefix="corral-sim-", dir=MEMORY) as folder:
        path = Path(folder) / "empty.db"
        STORES[lane](path, lambda: None).close()
        return path.read_bytes()


class SimLane:
    """One life of a lane."""

    def __init__(
        self, plane: Plane, name: str, store: Any, reconcilers: Mapping[str, Reconciler], receivers: Mapping[str, Receiver]
    ) -> None:
        world = plane.world
        self.plane, self.world, self.name, self.store = plane, world, name, store
        self.clock: Clock = WallView(world.clock) if name == "metrics" else world.clock
        self.core = world.parts.core(store, settings=world.settings, clock=self.clock, ids=world.ids, reconcilers=reconcilers)
        self.delivery = world.parts.delivery(self.core, self._send, self._later, self.wake)
        self._receivers = receivers
        self._queue: deque[Command] = deque()
        self._alarm = 0
        self._rings = 0
        self._delivered_at = 0.0

    @property
    def lives(self) -> bool:
        return self.plane.lanes.get(self.name) is self

    def submit(self, handler: Callable[[Tx[Any]], Any]) -> Waiting:
        """Settled with the answer after the commit, or never."""
        answer = Waiting()
        self._add(Command(handler, answer.settle))
        return answer

    def wake(self) -> None:
        """Something is waiting, or the clock was stepped."""
        self.world.agenda.after(self._busy_s(), self._work)

    def _add(self, command: Command) -> None:
        self._queue.append(command)
        if len(self._queue) == 1:
            self.wake()

    def _busy_s(self) -> float:
        return self.world.plan.transaction_delay_s * self.world.rng.random()

    def _work(self) -> None:
        if not self.lives:
            return
        due_s = self.core.next_due_s()
        if not self._queue and not self.core.delivered and (due_s is None or due_s > self.clock.now_s()):
            self._set_alarm()
            return
        if self.plane.dies_now(self.name):
            return
        commands = [self._queue.popleft() for _ in range(min(COMMANDS_MAX, len(self._queue)))]
        try:
            outcome = self.core.transact(commands)
        except Crash:
            self.plane.crash()
            return
        self.world.note(self.name, "batch", len(commands), len(outcome.answers), len(outcome.handed), len(outcome.faults))
        self._delivered_at = max(self._delivered_at, self.world.agenda.now + self._busy_s())
        self.world.agenda.at(self._delivered_at, partial(self._deliver, outcome))
        self.world.tell("transaction_done" if self.name == "state" else "telemetry_done", outcome)
        if self._queue:
            self.wake()
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Wake up when something is due; one alarm at a time."""
        due_s = self.core.next_due_s()
        if due_s is not None:
            self._alarm += 1
            self.world.agenda.after(max(CLOSE_S, due_s - self.clock.now_s()), partial(self._ring, self._alarm))

    def _ring(self, alarm: int) -> None:
        if alarm != self._alarm or not self.lives:
            return
        before_s = self.core.next_due_s()
        self._work()
        self._rings = self._rings + 1 if self.lives and self.core.next_due_s() == before_s else 0
        if self._rings > RINGS_MAX:
            raise Stuck(f"what is due at {before_s} is never looked at: the core spins")

    def _deliver(self, outcome: Outcome) -> None:
        if not self.lives or self.plane.dies_now(self.name):
            return
        answers = self.delivery.deliver(outcome)
        self.plane.send_orders(outcome.orders)  # first: in the server no caller continues before this callback ends
        for command, answer in answers:
            command.done(answer)

    def _send(self, handover: Handover, finished: list[Handover], done: Done) -> None:
        to = self.plane.lanes[handover.lane]
        self.world.note(self.name, "hands over", handover.kind, handover.id, "to", handover.lane)
        to._add(Command(partial(receive, receivers=to._receivers, handover=handover, finished=finished), done))

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.world.agenda.after(delay_s, lambda: call() if self.lives else None)
