"""Hand-overs between lanes: written with their cause, received exactly once, retried, deleted when received."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from corral.core.clock import VirtualClock
from corral.core.commands import Command, Wait
from corral.core.core import Core, Outcome
from corral.core.database import CommitFailed, Handover
from corral.core.errors import InternalFailure, ServiceUnavailable, api_error
from corral.core.handovers import RETRY_MAX_S, Delivery, Done, forget_finished, receive
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.settings import Settings
from corral.store import Store

Refusal = api_error("Refusal")
SEEDS = iter(range(1_000_000))


class FullStore(Store):
    full = False

    def commit(self) -> None:
        if self.full:
            raise CommitFailed("no space left")
        super().commit()


def add(tx: Tx[Store], name: str) -> None:
    """An effect that shows how often it was applied."""
    while tx.store.clusters.get("r", name) is not None:
        name += "+"
    tx.store.clusters.put("r", name, "ACTIVE", {})


class Lane:
    """A core and its deliveries. Nothing runs unless a test calls for it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.store = FullStore(world.folder / f"{name}.db")
        self.core = Core(self.store, settings=Settings(), clock=world.clock, ids=SeededIds(Random(next(SEEDS))))
        self.delivery = Delivery(self.core, self._send, self._later, lambda: None)
        self.queue: deque[Command] = deque()
        self.later: list[tuple[float, Callable[[], None]]] = []

    def transact(self) -> Outcome:
        """Run a transaction up to its commit."""
        commands = list(self.queue)
        self.queue.clear()
        return self.core.transact(commands)

    def work(self) -> Outcome:
        outcome = self.transact()
        for command, answer in self.delivery.deliver(outcome):
            command.done(answer)
        return outcome

    def ring(self) -> list[float]:
        """Run all timers now. Return their delays."""
        due, self.later = self.later, []
        for _, call in due:
            call()
        return [delay_s for delay_s, _ in due]

    def clusters(self) -> list[str]:
        return self.store.clusters.names("r", "", 100)

    def inbox(self) -> list[int]:
        return [number for (number,) in self.store.execute("SELECT id FROM inbox ORDER BY id")]

    def _send(self, handover: Handover, finished: list[Handover], done: Done) -> None:
        take = partial(receive, receivers=self.world.receivers, handover=handover, finished=finished)
        self.world.lanes[handover.lane].queue.append(Command(take, done))

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.later.append((delay_s, call))


class World:
    """Lanes in files: `from` hands over to `to`, and so can `other`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, VirtualClock()
        self.receivers: dict[str, Callable[[Tx[Any], Any], None]] = {"add": add}
        self.told: list[Any] = []
        self.start()

    def start(self) -> None:
        self.lanes = {name: Lane(self, name) for name in ("from", "other", "to")}
        self.sender, self.receiver = self.lanes["from"], self.lanes["to"]
        forget_finished([lane.store for lane in self.lanes.values()])
        for lane in self.lanes.values():
            lane.delivery.start()

    def restart(self) -> None:
        """Reopen the files as after kill -9: only committed rows are left."""
        for lane in self.lanes.values():
            lane.store.close()
        self.start()

    def ask(self, *handlers: Callable[[Tx[Any]], Any]) -> None:
        self.sender.queue.extend(Command(handler, self.told.append) for handler in handlers)

    def settle(self) -> None:
        for _ in range(3):
            self.sender.work()
            self.receiver.work()

    def state(self) -> tuple[list[str], list[Handover], list[int]]:
        return self.receiver.clusters(), self.sender.store.undelivered(), self.receiver.inbox()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def hands(*names: str, key: str | None = None) -> Callable[[Tx[Any]], str]:
    def handler(tx: Tx[Any]) -> str:
        for name in names:
            tx.hand_over("to", "add", name, key=key)
        return "handed"

    return handler


# Writing


def test_one_row_for_each_command_and_receiver(world: World) -> None:
    def more(tx: Tx[Any]) -> None:
        tx.hand_over("to", "add", "c")
        tx.hand_over("to", "other", "d")
        tx.hand_over("to", "add", {"plain": ["data", 1, 0.5, None]})

    world.ask(hands("a", "b"), more)
    world.sender.transact()
    rows = [(row.lane, row.kind, row.payload) for row in world.sender.store.undelivered()]
    assert rows == [("to", "add", b'["a","b"]'), ("to", "add", b'["c",{"plain":["data",1,0.5,null]}]'), ("to", "other", b'["d"]')]


def test_large_payloads_are_received_in_several_transactions(world: World) -> None:
    """Other commands run in between, and the response waits for the last part."""
    names = [f"{number}-" + "x" * 6000 for number in range(5)]
    world.ask(hands(*names, "last"))
    outcome = world.sender.work()
    assert [len(handover.payload) > 12_000 for handover, _ in outcome.handed] == [True, True, False]
    for received in (2, 4):
        assert len(world.receiver.queue) == 1
        world.receiver.work()
        assert (len(world.receiver.clusters()), world.told) == (received, [])
    world.receiver.work()
    assert (len(world.receiver.clusters()), world.told) == (6, ["handed"])
    world.restart()
    world.settle()
    assert len(world.receiver.clusters()) == 6


def test_hand_overs_of_a_failed_command_or_transaction_are_not_written(world: World) -> None:
    def fails(tx: Tx[Any], error: Exception) -> None:
        hands("never")(tx)
        raise error

    def not_plain(tx: Tx[Any]) -> None:
        tx.hand_over("to", "add", object())

    def waits(tx: Tx[Any]) -> None:
        fails(tx, Wait(["x"], tx.now_s + 9))

    world.ask(partial(fails, error=Refusal("no")), not_plain, waits, partial(fails, error=ValueError("a fault of ours")))
    world.settle()
    assert [type(answer) for answer in world.told] == [Refusal, InternalFailure, InternalFailure]
    world.ask(hands("never"))
    world.sender.store.full = True
    assert world.sender.work().handed == []
    world.sender.store.full = False
    world.settle()
    assert world.state() == ([], [], [])


def test_nothing_is_received_before_the_commit_and_the_response_waits_for_the_receiver(world: World) -> None:
    world.ask(hands("a"), lambda tx: "waits for nothing")
    world.sender.work()
    assert (world.told, world.receiver.clusters()) == (["waits for nothing"], [])
    world.receiver.work()
    assert (world.told, world.receiver.clusters()) == (["waits for nothing", "handed"], ["a"])


def test_a_reconciler_may_hand_over_too(world: World) -> None:
    world.sender.core._reconcilers = {"look": lambda tx, name: tx.hand_over("to", "add", name)}
    world.ask(lambda tx: tx.mark("look:x"))
    world.settle()
    assert world.state()[:2] == (["x"], [])


def test_outbox_rows_are_deleted_after_delivery_and_inbox_rows_with_the_next_hand_over(world: World) -> None:
    world.ask(hands("a"))
    world.settle()
    assert world.state() == (["a"], [], [1])
    world.ask(hands("b"))
    world.settle()
    assert world.state() == (["a", "b"], [], [2])
    world.restart()
    assert world.state() == (["a", "b"], [], [])


def test_deleting_a_row_is_retried_if_it_was_not_committed(world: World) -> None:
    world.ask(hands("a"))
    world.sender.work()
    world.receiver.work()
    world.sender.store.full = True
    world.sender.work()
    world.sender.store.full = False
    assert len(world.sender.store.undelivered()) == 1
    assert world.sender.ring() == [1.0]
    world.settle()
    assert world.state() == (["a"], [], [1])


# Crashes


@pytest.mark.parametrize("steps", range(6))
def test_a_hand_over_is_received_exactly_once_wherever_a_crash_happens(world: World, steps: int) -> None:
    """Before and after each of: the cause's commit, the delivery, the effect's commit, the removal."""
    outcomes: list[Outcome] = []
    way: list[Callable[[], Any]] = [
        lambda: outcomes.append(world.sender.transact()),
        lambda: world.sender.delivery.deliver(outcomes[0]),
        lambda: outcomes.append(world.receiver.transact()),
        lambda: [command.done(answer) for command, answer in world.receiver.delivery.deliver(outcomes[1])],
        lambda: world.sender.transact(),
    ]
    world.ask(hands("a"))
    for step in way[:steps]:
        step()
    world.restart()
    world.settle()
    assert world.state()[:2] == (["a"] if steps else [], [])
    world.restart()
    assert world.state() == (["a"] if steps else [], [], [])


def test_equal_ids_of_two_senders_are_two_hand_overs(world: World) -> None:
    world.ask(hands("a"))
    world.lanes["other"].queue.append(Command(hands("b"), world.told.append))
    world.sender.work()
    world.lanes["other"].work()
    world.receiver.work()
    assert (world.receiver.clusters(), world.receiver.inbox()) == (["a", "b"], [1, 1])


def test_a_sender_restored_from_a_copy_may_reuse_ids(world: World) -> None:
    """It counts from 1 again; the receiver remembers another 1."""
    for name in ("a", "b"):
        world.ask(hands(name))
        world.sender.work()
        world.receiver.work()
        world.sender.store.close()
        (world.folder / "from.db").unlink()
        world.lanes["from"] = world.sender = Lane(world, "from")
    assert (world.receiver.clusters(), world.receiver.inbox()) == (["a", "b"], [1, 1])


# Failures


def test_a_failed_delivery_is_retried_and_delays_no_other(world: World, caplog: pytest.LogCaptureFixture) -> None:
    broken = True

    def breaks(tx: Tx[Store], name: str) -> None:
        add(tx, name)
        if broken:
            raise RuntimeError("a fault of ours")

    world.receivers["break"] = breaks
    world.ask(lambda tx: tx.hand_over("to", "break", "bad") or "caused", hands("good"))
    world.settle()
    assert world.told == ["caused", "handed"], "the command is committed: a failed delivery is no error of it"
    assert world.receiver.clusters() == ["good"]
    assert "the hand-over 'break' to lane to failed (try 1, next in 1 s)" in caplog.text
    [failing] = world.sender.delivery.failing()
    assert (failing["to"], failing["kind"], failing["tries"]) == ("to", "break", 1)
    waits: list[float] = []
    for _ in range(8):
        waits += world.sender.ring()
        world.settle()
    assert [wait_s for wait_s in waits if wait_s > 1] == [2.0, 4.0, 8.0, 16.0, 32.0, RETRY_MAX_S, RETRY_MAX_S]
    assert world.receiver.inbox() == [2], "rows of received hand-overs do not accumulate"
    broken = False
    world.sender.ring()
    world.settle()
    assert (world.state()[:2], world.sender.delivery.failing()) == ((["bad", "good"], []), [])


def test_a_failed_delivery_survives_a_restart(world: World) -> None:
    world.receiver.store.full = True
    world.ask(hands("a"), hands("b"))
    world.settle()
    assert (world.told, len(world.sender.store.undelivered())) == (["handed", "handed"], 2)
    world.restart()
    world.settle()
    assert world.state()[:2] == (["a", "b"], [])


def test_a_hand_over_without_a_receiver_stays_and_is_reported(world: World) -> None:
    world.ask(lambda tx: tx.hand_over("to", "unknown", "x"))
    world.settle()
    assert [each["kind"] for each in world.sender.delivery.failing()] == ["unknown"]
    assert len(world.sender.store.undelivered()) == 1


# Hand-overs that replace each other


def test_a_later_hand_over_of_the_same_key_replaces_one_that_was_not_received(world: World) -> None:
    world.ask(hands("a1", key="a"), hands("b1", key="b"), hands("a2", key="a"))
    world.sender.transact()
    assert [row.payload for row in world.sender.store.undelivered()] == [b'["b1"]', b'["a2"]']
    world.ask(hands("a3", key="a"))
    world.sender.transact()
    assert [row.payload for row in world.sender.store.undelivered()] == [b'["b1"]', b'["a3"]']
    world.restart()
    world.settle()
    assert world.state()[:2] == (["a3", "b1"], [])


def test_a_failed_delivery_that_was_replaced_is_not_retried(world: World) -> None:
    """Otherwise the older value would arrive after the newer one."""
    world.receiver.store.full = True
    world.ask(hands("old", key="a"))
    world.settle()
    world.receiver.store.full = False
    world.ask(hands("new", key="a"))
    world.settle()
    world.sender.ring()
    world.settle()
    assert world.state()[:2] == (["new"], [])
    assert isinstance(world.sender.core.transact([]), Outcome)


def test_a_hand_over_that_was_replaced_during_delivery_arrives_before_the_newer_one(world: World) -> None:
    world.ask(hands("old", key="a"))
    world.sender.work()
    world.ask(hands("new", key="a"))
    world.sender.work()
    world.receiver.work()
    assert world.receiver.clusters() == ["new", "old"]
    world.settle()
    world.ask(hands("last"))
    world.settle()
    assert world.state() == (["last", "new", "old"], [], [3])


def test_a_full_disk_at_the_receiver_is_logged_as_such(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.receiver.store.full = True
    world.ask(hands("a"))
    world.settle()
    assert "no space left" in world.sender.delivery.failing()[0]["error"]
    assert ServiceUnavailable.__name__ not in caplog.text
