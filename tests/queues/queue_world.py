"""SQS without a server: its handlers and reconcilers in a core, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from answers.recorder import handled
from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.database import CommitFailed
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.reconcile import STATE
from corral.services.sqs.handlers import HANDLERS
from corral.store import Store

INSTANTS_S = 1e-4  # the commands of a batch have slightly later times than the clock
ACCOUNT, REGION = "123456789012", "us-east-1"
ROOT = Caller(ACCOUNT, REGION, root_user(ACCOUNT), endpoint_url="http://corral")


class FullStore(Store):
    """A store whose commits fail while `full` is set."""

    full = False

    def commit(self) -> None:
        if self.full:
            raise CommitFailed("no space left")
        super().commit()


class PendingCall:
    """A call whose response may come later."""

    answer: Any = None
    gone = False

    @property
    def bodies(self) -> list[str]:
        return [message["Body"] for message in self.answer.get("Messages", [])]


class World:
    def __init__(self, path: Path | None = None) -> None:
        self.clock = VirtualClock(1_800_000_000.0)
        self.path = path
        self.store = FullStore(path)
        self._ids = SeededIds(Random(0))
        self.core = self._core()

    def _core(self) -> Core[Store]:
        return Core(self.store, settings=Settings(account=ACCOUNT), clock=self.clock, ids=self._ids, reconcilers=STATE)

    def reopen(self) -> None:
        """Reopen the store as after kill -9: the state in memory is lost."""
        self.store.connection.close()
        self.clock.advance(0.001)  # ids are times, so a restart must take time
        self.store = FullStore(self.path)
        self.core = self._core()

    def run(self, handler: Callable[[Tx[Store]], Any]) -> Any:
        """Run a function in its own transaction."""
        told: list[Any] = []
        self.transact(Command(handler, told.append))
        if isinstance(told[0], Exception):
            raise told[0]
        return told[0]

    def transact(self, *commands: Command) -> None:
        outbox = self.core.transact(commands)
        for command, answer in outbox.answers:
            command.done(answer)
        assert not [fault for fault in outbox.faults if "no space left" not in fault], outbox.faults

    def call(self, operation: str, caller: Caller = ROOT, **params: Any) -> Any:
        return handled("sqs", operation, lambda: self.run(lambda tx: HANDLERS[operation](tx, params, caller)))

    def ask(self, operation: str, **params: Any) -> PendingCall:
        """Start a call without waiting for its response."""
        asked = PendingCall()
        handler = lambda tx: HANDLERS[operation](tx, params, ROOT)  # noqa: E731
        self.transact(Command(handler, lambda answer: setattr(asked, "answer", answer), lambda: asked.gone))
        return asked

    def advance(self, by_s: float) -> None:
        """Advance the clock, and run each reconciler at the time at which it is due."""
        until_s = self.clock.now_s() + by_s
        while (due_s := self.core.next_due_s()) is not None and due_s <= until_s + INSTANTS_S:
            self.clock.advance(max(0.0, due_s - self.clock.now_s()))
            self.transact()
        self.clock.advance(max(0.0, until_s - self.clock.now_s()))

    def settle(self) -> None:
        """Run the reconcilers that are due now."""
        self.advance(0.01)

    def queue(self, name: str, tags: dict[str, str] | None = None, **attributes: Any) -> str:
        given = {key: str(value) for key, value in attributes.items()}
        if name.endswith(".fifo"):
            given["FifoQueue"] = "true"
        return self.call("CreateQueue", QueueName=name, Attributes=given, tags=tags or {})["QueueUrl"]

    def counts(self, url: str) -> tuple[int, int, int]:
        """The numbers of visible, in-flight and delayed messages."""
        found = self.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")
        visible, in_flight, delayed = (int(found[name]) for name in names)
        return visible, in_flight, delayed

    def rows(self, table: str) -> int:
        return self.store.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def bodies(answer: dict[str, Any]) -> list[str]:
    return [message["Body"] for message in answer.get("Messages", [])]
