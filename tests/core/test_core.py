"""The core: commands share a transaction, a failed command has no effects, and effects leave after the commit."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from corral.core.clock import VirtualClock
from corral.core.commands import Command, Wait
from corral.core.core import COMMANDS_S, RECONCILERS_MAX_S, RECONCILERS_MIN_S, RETRY_S, Core, Outcome
from corral.core.database import CommitFailed
from corral.core.errors import ApiError, InternalFailure, ServiceUnavailable, api_error
from corral.core.ids import SeededIds
from corral.core.transactions import MARKS_MAX_PER_TRANSACTION, OncePerTransaction, Reconciler, Together, Tx
from corral.model.agent_protocol import Hello, StartOrder
from corral.model.gpu import GpuDevice
from corral.model.instance import host_instance_id, host_pool
from corral.model.run import RunSpec, RunState
from corral.model.settings import Settings
from corral.model.task import Demand, Run, Task, TaskState
from corral.store import Store

Refusal = api_error("Refusal")
HELLO = Hello("h", "boot", "host", 1024, 1024, [GpuDevice(f"GPU-{at}", at, "Simulated", 1) for at in range(4)], [])


class FullStore(Store):
    """A store whose disk is full while a test says so."""

    full = False
    is_readable = False  # True: a transaction that has written no rows can be committed while the disk is full, as in SQLite

    def commit(self) -> None:
        if self.full and not (self.is_readable and not self.has_written()):
            raise CommitFailed("no space left")
        super().commit()


class World:
    """A core in memory, on a virtual clock."""

    def __init__(self, reconcilers: dict[str, Reconciler] | None = None, path: Path | None = None) -> None:
        self.clock = VirtualClock()
        self.store = FullStore(path)
        self.core = Core(
            self.store,
            settings=Settings(),
            clock=self.clock,
            ids=SeededIds(Random(0)),
            reconcilers=reconcilers,
        )
        self.told: list[Any] = []

    def transact(self, *handlers: Callable[[Tx[Any]], Any]) -> Outcome:
        outcome = self.core.transact([Command(handler, self.told.append) for handler in handlers])
        for command, answer in outcome.answers:
            command.done(answer)
        return outcome

    def clusters(self) -> list[str]:
        return self.store.clusters.names("r", "", 100)


def adds(name: str, answer: Any = None) -> Callable[[Tx[Store]], Any]:
    def handler(tx: Tx[Store]) -> Any:
        tx.store.clusters.put("r", name, "ACTIVE", {})
        return answer or name

    return handler


def waiting_task(name: str) -> Task:
    run = Run(f"run-{name}", name, "c", 0, True, 1, RunState.PENDING)
    return Task(
        name,
        "r",
        "default",
        "arn",
        host_pool("default"),
        TaskState.PROVISIONING,
        TaskState.RUNNING,
        Demand(1),
        1.0,
        runs=(run,),
        owner="root",
    )


def start_of(name: str) -> StartOrder:
    return StartOrder(RunSpec(name, "t", "c", "image", ["true"], {}, []), None)


def changes_everything(tx: Tx[Store]) -> None:
    """Cause every kind of effect: rows, the index, a mark, a wake-up, an order."""
    tx.store.clusters.put("r", "half-done", "ACTIVE", {})
    tx.store.tasks.add(waiting_task("half-done"), (1.0,))
    tx.store.fleet.take(host_pool("default"), host_instance_id("h"), ["GPU-0"], 10, 10)
    tx.mark("look:half-done")
    tx.due("look:half-done-later", tx.now_s)
    tx.changed("half-done")
    tx.start("h", start_of("half-done"))
    tx.stop("h", "half-done")


@pytest.mark.parametrize(
    ("raised", "answer"), [(Refusal("no"), Refusal), (RuntimeError("oops"), InternalFailure), (KeyError("k"), InternalFailure)]
)
def test_a_failed_command_has_no_effects_and_the_others_stay(raised: Exception, answer: type[ApiError]) -> None:
    looked: list[str] = []
    world = World({"look": lambda tx, name: looked.append(name)})
    world.transact(lambda tx: tx.store.hosts.put(HELLO, tx.now_s))
    world.told.clear()
    index = world.store.fleet.snapshot()

    def before(tx: Tx[Store]) -> str:
        tx.mark("look:before")
        tx.start("h", start_of("before"))
        return adds("before")(tx)

    def fails(tx: Tx[Store]) -> None:
        changes_everything(tx)
        raise raised

    def after(tx: Tx[Store]) -> str:
        assert tx.store.clusters.get("r", "before") is not None, "a later command sees its predecessors"
        assert tx.store.clusters.get("r", "half-done") is None
        tx.mark("look:after")
        return adds("after")(tx)

    outcome = world.transact(before, fails, after)
    assert [type(told) if isinstance(told, Exception) else told for told in world.told] == ["before", answer, "after"]
    assert world.clusters() == ["after", "before"]
    assert looked == ["before", "after"]
    assert [start.spec.run_id for start in outcome.orders["h"].start] == ["before"]
    assert outcome.orders["h"].stop == []
    assert world.store.fleet.snapshot() == index
    assert world.store.next_due_s() is None
    assert bool(outcome.faults) == (answer is InternalFailure)


def test_an_internal_error_text_does_not_reach_the_caller() -> None:
    world = World()
    outcome = world.transact(lambda tx: 1 / 0)
    assert "division" not in str(world.told[0])
    assert "division by zero" in outcome.faults[0]


def test_answers_come_in_the_order_of_the_commands() -> None:
    world = World()
    world.transact(*(lambda tx, at=at: at for at in range(50)))
    assert world.told == list(range(50))


def test_orders_are_gathered_by_host_in_their_order() -> None:
    def orders(tx: Tx[Store]) -> None:
        tx.start("a", start_of("1"))
        tx.stop("b", "2")
        tx.start("a", start_of("3"))
        tx.stop("a", "1")

    found = World().transact(orders).orders
    assert [start.spec.run_id for start in found["a"].start] == ["1", "3"]
    assert (found["a"].stop, found["b"].stop) == (["1"], ["2"])


def test_reset_orders_drops_the_earlier_orders_of_a_host() -> None:
    """A hello decides about every run of its host; an earlier order may be for a run that was given up."""

    def before(tx: Tx[Store]) -> None:
        tx.start("a", start_of("1"))
        tx.stop("b", "2")

    def begins(tx: Tx[Store]) -> None:
        tx.reset_orders("a")
        tx.stop("a", "3")

    def begins_and_fails(tx: Tx[Store]) -> None:
        begins(tx)
        raise Refusal("no")

    found = World().transact(before, begins).orders
    assert (found["a"].start, found["a"].stop, found["a"].replaces_earlier) == ([], ["3"], True)
    assert (found["b"].stop, found["b"].replaces_earlier) == (["2"], False)
    found = World().transact(before, begins_and_fails).orders
    assert ([start.spec.run_id for start in found["a"].start], found["a"].stop, found["a"].replaces_earlier) == (["1"], [], False)


# Waiting


def waits_for(key: str, until_s: float, finals: list[bool]) -> Callable[[Tx[Store]], Any]:
    """Responds when the cluster `key` exists."""

    def handler(tx: Tx[Store]) -> str:
        finals.append(tx.final)
        if tx.store.clusters.get("r", key) is not None:
            return "there"
        if tx.final:
            return "time is over"
        raise Wait([f"cluster:{key}", "any"], until_s)

    return handler


def adds_and_says(name: str) -> Callable[[Tx[Store]], str]:
    def handler(tx: Tx[Store]) -> str:
        tx.changed(f"cluster:{name}")
        return adds(name)(tx)

    return handler


def test_a_waiting_command_is_woken_in_the_same_transaction() -> None:
    world, finals = World(), []
    world.transact(waits_for("x", world.clock.now_s() + 9, finals), adds_and_says("x"))
    assert world.told == ["x", "there"]
    assert finals == [False, False]


def test_a_waiting_command_is_woken_by_a_later_transaction_and_responds_once() -> None:
    world, finals = World(), []
    world.transact(waits_for("x", world.clock.now_s() + 9, finals))
    world.transact(adds_and_says("y"))
    assert world.told == ["y"]
    world.transact(adds_and_says("x"))
    world.clock.advance(20)
    world.transact(adds_and_says("x"))
    assert world.told == ["y", "x", "there", "x"]


def test_a_waiting_command_runs_for_the_last_time_at_its_deadline() -> None:
    world, finals = World(), []
    until_s = world.clock.now_s() + 9
    world.transact(waits_for("x", until_s, finals))
    assert world.core.next_due_s() == until_s
    world.clock.advance(5)
    world.transact()
    assert world.told == []
    world.clock.advance(5)
    world.transact()
    assert world.told == ["time is over"]
    assert finals == [False, True]
    assert world.core.next_due_s() is None


def test_a_key_given_twice_counts_once() -> None:
    """DescribeTasks may be given the same task twice."""
    world = World()

    def handler(tx: Tx[Store]) -> str:
        if tx.store.clusters.get("r", "x") is None:
            raise Wait(["cluster:x", "cluster:x"], tx.now_s + 9)
        return "there"

    world.transact(handler)
    world.transact(adds_and_says("x"))
    assert world.told == ["x", "there"]


def test_waking_does_not_prolong_a_wait() -> None:
    """A handler computes its deadline again at each run; the first deadline holds."""
    world, finals = World(), []
    first_s = world.clock.now_s()

    def handler(tx: Tx[Store]) -> str:
        finals.append(tx.final)
        if tx.final:
            return "time is over"
        raise Wait(["any"], tx.now_s + 9)

    world.transact(handler)
    for _ in range(3):
        world.clock.advance(2)
        world.transact(lambda tx: tx.changed("any"))
    assert world.core.next_due_s() == first_s + 9
    world.clock.advance(3)
    world.transact()
    assert world.told[-1] == "time is over"
    assert finals == [False, False, False, False, True]


def test_a_wait_rolls_back_what_its_handler_wrote() -> None:
    world = World()

    def handler(tx: Tx[Store]) -> None:
        changes_everything(tx)
        raise Wait(["never"], tx.now_s + 9)

    world.store.hosts.put(HELLO, 0.0)
    index = world.store.fleet.snapshot()
    outcome = world.transact(handler)
    assert (world.clusters(), outcome.orders, outcome.answers) == ([], {}, [])
    assert world.store.fleet.snapshot() == index


# Reconcilers and due rows


def test_a_marked_key_is_reconciled_once_in_the_same_transaction() -> None:
    looked: list[str] = []

    def look(tx: Tx[Store], name: str) -> None:
        looked.append(name)
        if name == "a:b":
            tx.mark("look:next")

    world = World({"look": look})
    world.transact(lambda tx: (tx.mark("look:a:b"), tx.mark("look:a:b")))
    assert looked == ["a:b", "next"]


def test_some_reconcilers_run_once_after_all_commands_of_a_transaction() -> None:
    ran: list[str] = []

    def look(tx: Tx[Any], name: str) -> None:
        ran.append(f"look {name}")
        tx.mark("total:all")

    def total(tx: Tx[Any], name: str) -> None:
        ran.append(f"total {name}")
        if ran.count("total all") == 1:
            tx.mark("look:last")

    def command(name: str, fails: bool = False) -> Callable[[Tx[Any]], None]:
        def handler(tx: Tx[Any]) -> None:
            ran.append(name)
            tx.mark(f"total:{name if fails else 'all'}")
            tx.mark(f"look:{name}")
            if fails:
                raise Refusal("no")

        return handler

    world = World({"look": look, "total": OncePerTransaction(total)})
    world.transact(command("a"), command("b", fails=True), command("c"))
    assert ran == ["a", "look a", "b", "c", "look c", "total all", "look last", "total all"]
    world.transact()
    assert len(ran) == 8 and world.store.next_due_s() is None


def test_due_keys_are_reconciled_without_any_command() -> None:
    looked: list[str] = []
    world = World({"look": lambda tx, name: looked.append(name)})
    world.transact(lambda tx: tx.due("look:x", tx.now_s + 5))
    world.clock.advance(4)
    world.transact()
    assert looked == []
    world.clock.advance(1)
    world.transact()
    assert looked == ["x"]
    assert world.core.next_due_s() is None


def test_the_earlier_due_time_stays() -> None:
    world = World()
    now_s = world.clock.now_s()
    world.transact(lambda tx: tx.due("look:x", now_s + 5), lambda tx: tx.due("look:x", now_s + 9))
    assert world.core.next_due_s() == now_s + 5


def test_due_rows_survive_reopening(tmp_path: Path) -> None:
    looked: list[str] = []
    first = World({"look": lambda tx, name: looked.append(name)}, tmp_path / "state.db")
    first.transact(lambda tx: tx.due("look:x", tx.now_s + 5))
    first.store.close()
    second = World({"look": lambda tx, name: looked.append(name)}, tmp_path / "state.db")
    assert second.core.next_due_s() == second.clock.now_s() + 5
    second.clock.advance(5)
    second.transact()
    assert looked == ["x"]


def test_reconcilers_that_run_together_fail_alone() -> None:
    ran: list[str] = []

    def reconcile(tx: Tx[Any], name: str) -> None:
        ran.append(name)
        tx.store.clusters.put("r", name, "ACTIVE", {})
        tx.mark(f"seen:{name}")
        if name == "b":
            raise RuntimeError("a bug")

    seen: list[str] = []
    world = World({"look": Together(reconcile), "seen": lambda tx, name: seen.append(name)})

    def command(tx: Tx[Any]) -> None:
        for name in "abc":
            tx.mark(f"look:{name}")

    outcome = world.transact(command)
    assert ran == ["a", "b", "a", "b", "c"] and len(outcome.faults) == 1
    assert world.clusters() == seen == ["a", "c"], "only the effects of the failed one were undone"
    assert world.core.next_due_s() == pytest.approx(world.clock.now_s() + RETRY_S, abs=0.001)


def test_a_failed_reconciler_is_retried_and_affects_no_command() -> None:
    tries: list[float] = []

    def look(tx: Tx[Store], name: str) -> None:
        if name == "bad":
            tries.append(tx.now_s)
            changes_everything(tx)
            raise RuntimeError("a fault of ours")
        tx.store.clusters.put("r", f"looked-at-{name}", "ACTIVE", {})

    world = World({"look": look})
    world.store.hosts.put(HELLO, 0.0)
    began_s = world.clock.now_s()
    outcome = world.transact(adds("first"), lambda tx: tx.mark("look:bad"), lambda tx: tx.mark("look:good"))
    assert world.clusters() == ["first", "looked-at-good"]
    assert outcome.orders == {}
    assert "a fault of ours" in outcome.faults[0]
    assert world.core.next_due_s() == pytest.approx(began_s + RETRY_S, abs=0.001)
    world.transact(adds("second"))
    assert len(tries) == 1
    world.clock.advance(RETRY_S + 0.001)
    world.transact()
    assert tries == pytest.approx([began_s, began_s + RETRY_S], abs=0.01)


def test_a_flood_of_marks_leaves_room_for_requests() -> None:
    """Marks beyond the limit of a transaction become rows that are due at once."""
    looked: list[str] = []
    world = World({"look": lambda tx, name: looked.append(name)})

    def flood(tx: Tx[Store]) -> None:
        for number in range(MARKS_MAX_PER_TRANSACTION + 5):
            tx.mark(f"look:{number}")

    world.transact(flood)
    assert len(looked) == MARKS_MAX_PER_TRANSACTION
    assert world.core.next_due_s() == world.clock.now_s()
    world.transact()
    assert sorted(map(int, looked)) == list(range(MARKS_MAX_PER_TRANSACTION + 5))


class Timer:
    """A timer that advances by `unit_s` with each unit of work."""

    def __init__(self, unit_s: float) -> None:
        self.now_s, self.unit_s = 0.0, unit_s

    def __call__(self) -> float:
        return self.now_s

    def work(self) -> None:
        self.now_s += self.unit_s


def test_a_transaction_is_bounded_by_time_whatever_the_work_is() -> None:
    """Each unit takes 4 ms. A transaction begins no unit after its time. Later transactions do the rest, each unit once."""
    timer, ran = Timer(0.004), list[str]()

    def unit(tx: Tx[Store], name: str) -> None:
        timer.work()
        ran.append(name)
        if name.startswith("more"):
            for number in range(30):
                tx.mark(f"look:{name[5:]}{number}-")

    world = World({"look": unit})
    world.core.timer = timer
    commands = [Command(lambda tx, name=f"c{at}": unit(tx, name), lambda _: None) for at in range(40)]
    commands.append(Command(lambda tx: unit(tx, "more-"), lambda _: None))
    most = answered = 0
    given: list[Command] = commands
    while given or world.core.next_due_s() is not None:
        began = len(ran)
        answered += len(world.core.transact(given).answers)
        given = []
        most = max(most, len(ran) - began)
    assert answered == 41
    assert sorted(ran) == sorted([*(f"c{at}" for at in range(40)), "more-", *(f"{at}-" for at in range(30))])
    assert most * timer.unit_s <= COMMANDS_S + RECONCILERS_MAX_S + 2 * timer.unit_s


class Busy:
    """A core with a thousand due keys, whose commands and reconcilers take about a millisecond each."""

    def __init__(self) -> None:
        self.timer, self.commands, self.reconciled = Timer(1 / 1024), 0, 0  # sums of this unit are exact
        self.arrives_after: int | None = None  # a command arrives when so many reconcilers have run
        self.world = World({"look": self._reconcile})
        self.world.transact(lambda tx: [tx.due(f"look:{at}", tx.now_s + 1) for at in range(1000)])
        self.world.clock.advance(2)
        self.world.core.timer = self.timer
        self.world.core.is_awaited = lambda: self.arrives_after is not None and self.reconciled >= self.arrives_after

    def _reconcile(self, tx: Tx[Any], name: str) -> None:
        self.timer.work()
        self.reconciled += 1

    def _command(self, tx: Tx[Any]) -> None:
        self.timer.work()
        self.commands += 1

    def units(self, commands: int) -> tuple[int, int]:
        """Run a transaction. Return how many commands and how many reconcilers it has run."""
        self.commands = self.reconciled = 0
        self.world.transact(*[self._command] * commands)
        return self.commands, self.reconciled


def test_reconcilers_take_less_time_if_clients_wait() -> None:
    busy = Busy()
    least, most = ceil(RECONCILERS_MIN_S * 1024), ceil(RECONCILERS_MAX_S * 1024)
    assert busy.units(0) == (0, most), "no client waits"
    assert busy.units(1) == (1, least), "a client waits for the commit"
    assert busy.units(least + 2) == (least + 2, least + 2), "as long as the commands"
    busy.arrives_after = least + 1
    assert busy.units(0) == (0, least + 1), "the next command does not wait for the rest"
    busy.arrives_after = 0
    assert busy.units(0) == (0, least)


def test_neither_commands_nor_reconcilers_starve() -> None:
    """More commands arrive than there is time for, while a thousand keys are due."""
    busy, ran = Busy(), [0, 0]
    for _ in range(20):
        commands, reconciled = busy.units(30)
        ran = [ran[0] + commands, ran[1] + reconciled]
    assert ran == [20 * ceil(COMMANDS_S * 1024), 20 * ceil(RECONCILERS_MAX_S * 1024)]


def test_a_reconciler_runs_although_the_process_gets_no_time() -> None:
    """Each look at the timer takes longer than a transaction may take. The keys are handled nevertheless, one by one."""
    busy = Busy()
    busy.arrives_after = 0

    def slow() -> float:
        busy.timer.now_s += COMMANDS_S + RECONCILERS_MAX_S
        return busy.timer.now_s

    busy.world.core.timer = slow
    assert [busy.units(1) for _ in range(3)] == [(1, 1)] * 3


def test_owners_take_turns_if_more_is_due_than_there_is_time_for() -> None:
    """One owner has a thousand stacks to continue, and another has one. The other does not wait for the thousand."""
    timer, ran = Timer(0.004), list[str]()

    def unit(tx: Tx[Store], name: str) -> None:
        timer.work()
        ran.append(name)

    world = World({"stack": OncePerTransaction(unit)})
    world.core.timer = timer

    def add(tx: Tx[Store]) -> None:
        for name in (*(f"a{at:03}" for at in range(1000)), "b", "c"):
            values = (name, "r", name, "CREATE_IN_PROGRESS", 0.0, None, "", name[0], "{}")
            tx.store.execute("INSERT INTO stack VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
            tx.due(f"stack:{name}", tx.now_s)

    world.transact(add)
    for _ in range(3):
        world.clock.advance(0.01)
        world.transact()
    assert {"b", "c"} <= set(ran)
    assert len(ran) <= 3 * ((COMMANDS_S + RECONCILERS_MAX_S) / timer.unit_s + 1)
    assert [name for name in ran if name[0] == "a"] == sorted(name for name in ran if name[0] == "a")
    while world.core.next_due_s() is not None:
        world.transact()
    assert len(ran) == len(set(ran)) == 1002


def test_owners_of_commands_take_turns() -> None:
    timer, ran = Timer(0.01), list[str]()
    world = World()
    world.core.timer = timer

    def command(name: str) -> Command:
        def run(tx: Tx[Store]) -> None:
            timer.work()
            ran.append(name)

        return Command(run, lambda _: None, owner=name[0])

    world.core.transact([command(f"a{at}") for at in range(10)])
    world.core.transact([command("b0")])
    world.core.transact([])
    assert ran == ["a0", "a1", "a2", "b0", "a3", "a4"]


def test_keys_that_were_taken_are_due_again_if_the_commit_fails() -> None:
    ran = list[str]()
    world = World({"look": lambda tx, name: ran.append(name)})
    world.transact(lambda tx: [tx.due(f"look:{at}", tx.now_s + 1) for at in range(20)])
    world.clock.advance(2)
    world.store.full = True
    world.transact()
    world.store.full = False
    ran.clear()
    world.transact()
    assert sorted(map(int, ran)) == list(range(20))


# Waiting in turn, and timers


class Shelf:
    """Items that waiting commands take, one each."""

    def __init__(self, world: World) -> None:
        self.world, self.things, self.asked = world, 0, list[str]()
        self.left: set[str] = set()

    def wait(self, name: str, until_s: float = 100.0, again_s: float | None = None, *, keep: bool = False) -> None:
        began_s = self.world.clock.now_s()

        def take(tx: Tx[Store]) -> str:
            self.asked.append(name)
            if self.things:
                self.things -= 1
                return name
            if tx.final:
                return f"{name} in vain"
            tx.store.clusters.put("r", name, "ACTIVE", {})
            at_s = None if again_s is None else began_s + again_s
            raise Wait(["shelf"], began_s + until_s, again_s=at_s, in_turn=True, keep=keep)

        self.world.core.transact([Command(take, self.world.told.append, lambda: name in self.left)])

    def put(self, count: int) -> Callable[[Tx[Store]], str]:
        def handler(tx: Tx[Store]) -> str:
            self.things += count
            tx.changed("shelf")
            return "put"

        return handler


def test_commands_that_wait_in_turn_run_one_at_a_time() -> None:
    world = World()
    shelf = Shelf(world)
    for name in "abcde":
        shelf.wait(name)
    shelf.asked.clear()
    world.transact(shelf.put(2))
    assert world.told == ["put", "a", "b"]
    assert shelf.asked == ["a", "b", "c"]
    world.transact(shelf.put(1))
    assert world.told[3:] == ["put", "d"]


def test_a_command_whose_client_has_gone_is_skipped() -> None:
    world = World()
    shelf = Shelf(world)
    for name in "abc":
        shelf.wait(name, 50)
    shelf.left |= {"a", "b"}
    shelf.asked.clear()
    world.transact(shelf.put(1))
    assert (world.told, shelf.asked) == (["put", "c"], ["c"])
    shelf.wait("d", 50)
    shelf.left.add("d")
    world.clock.advance(51)
    world.transact()
    assert world.told == ["put", "c"]
    assert world.core.next_due_s() is None


def test_a_waiting_command_runs_at_the_time_it_names_and_so_does_the_next_in_turn() -> None:
    world = World()
    shelf = Shelf(world)
    began_s = world.clock.now_s()
    shelf.wait("a", 100)
    shelf.wait("b", 3, again_s=5)
    assert world.core.next_due_s() == pytest.approx(began_s + 3)
    world.clock.advance(3.1)
    world.transact()
    assert world.told == ["b in vain"]
    assert world.core.next_due_s() == pytest.approx(began_s + 5)  # b has given up; its timer stays for a
    shelf.things = 1
    world.clock.advance(2)
    world.transact()
    assert world.told == ["b in vain", "a"]


def test_changes_at_affects_commands_that_wait_now_and_is_undone_with_its_command() -> None:
    world = World()
    shelf = Shelf(world)
    began_s = world.clock.now_s()

    def refuses(tx: Tx[Store]) -> None:
        tx.changes_at("shelf", began_s + 1)
        raise Refusal("no")

    world.transact(lambda tx: tx.changes_at("shelf", began_s + 2))  # no command waits
    assert world.core.next_due_s() is None
    shelf.wait("a", 100)
    world.transact(refuses, lambda tx: tx.changes_at("shelf", began_s + 9), lambda tx: tx.changes_at("shelf", began_s + 7))
    assert world.core.next_due_s() == began_s + 7
    world.store.full = True
    world.clock.advance(8)
    world.transact(adds("x"))  # the transaction fails, and with it the command that was woken
    world.store.full = False
    assert [type(told) for told in world.told[-2:]] == [ServiceUnavailable] * 2


def test_a_waiting_command_may_keep_what_it_wrote() -> None:
    world = World()
    shelf = Shelf(world)
    shelf.wait("drops")
    shelf.wait("keeps", keep=True)
    assert world.clusters() == ["keeps"]


# Failed commits


def test_a_failed_commit_is_an_error_for_every_command_that_writes_or_waits() -> None:
    world, finals = World(), []
    world.transact(lambda tx: tx.store.hosts.put(HELLO, tx.now_s), waits_for("x", world.clock.now_s() + 9, finals))
    world.told.clear()
    index = world.store.fleet.snapshot()

    def places(tx: Tx[Store]) -> str:
        changes_everything(tx)
        return "done"

    def refuses(tx: Tx[Store]) -> None:
        raise Refusal("no")

    world.store.full = True
    outcome = world.transact(places, refuses, adds_and_says("x"), waits_for("z", world.clock.now_s() + 9, finals))
    # `places`, the refusal, `adds`, the command that was woken, and the command that saw rows which were not committed
    failed = ServiceUnavailable
    assert [type(told) for told in world.told] == [failed, Refusal, failed, failed, failed]
    assert "no space left" in str(world.told[0])
    assert outcome.orders == {}
    assert (world.clusters(), world.core.next_due_s()) == ([], None)
    assert world.store.fleet.snapshot() == index
    world.store.full = False
    world.told.clear()
    world.transact(adds("x"))
    assert (world.told, world.clusters()) == (["x"], ["x"])


def test_reads_are_answered_although_the_commit_of_their_transaction_fails() -> None:
    """Also if only a reconciler writes. A read sees no rows of the transaction that was rolled back."""
    world = World({"look": lambda tx, name: tx.store.execute("UPDATE host SET seen_at = seen_at + 1") and None})
    world.transact(adds("x"), lambda tx: tx.store.hosts.put(HELLO, tx.now_s), lambda tx: tx.due("look:x", tx.now_s + 1))
    world.told.clear()
    world.store.full = world.store.is_readable = True

    def reads(tx: Tx[Store]) -> list[str]:
        return [name for (name,) in tx.store.execute("SELECT name FROM cluster ORDER BY name")]

    committed: list[str] = []

    def remembers(tx: Tx[Store]) -> str:
        tx.store.undo_log.on_commit(lambda: committed.append("in memory"))
        return "done"

    world.transact(adds("y"), reads, remembers)
    assert (type(world.told[0]), *world.told[1:], committed) == (ServiceUnavailable, ["x"], "done", ["in memory"])
    world.clock.advance(1)
    world.transact(reads)
    assert world.told[3:] == [["x"]]
    world.store.full = False
    world.transact(adds("y"), reads)
    assert world.told[4:] == ["y", ["x", "y"]]


def test_commands_that_wait_for_other_keys_survive_a_failed_commit() -> None:
    world, finals = World(), []
    world.transact(waits_for("x", world.clock.now_s() + 9, finals))
    world.store.full = True
    world.transact(adds_and_says("y"))
    world.store.full = False
    assert [type(told) for told in world.told] == [ServiceUnavailable]
    world.transact(adds_and_says("x"))
    assert world.told[1:] == ["x", "there"]


def test_due_keys_of_a_failed_transaction_are_still_due() -> None:
    looked: list[str] = []
    world = World({"look": lambda tx, name: looked.append(name)})
    world.transact(lambda tx: tx.due("look:x", tx.now_s + 1))
    world.clock.advance(1)
    world.store.full = True
    world.transact()
    world.store.full = False
    assert world.core.next_due_s() == world.clock.now_s()
    world.transact()
    assert looked == ["x", "x"]


def test_a_database_error_in_a_command_is_service_unavailable() -> None:
    world = World()
    outcome = world.transact(adds("before"), lambda tx: tx.store.execute("SELECT * FROM no_such_table"), adds("after"))
    assert [type(told) for told in world.told] == [str, ServiceUnavailable, str]
    assert world.clusters() == ["after", "before"]
    assert outcome.faults


def test_a_transaction_of_read_only_commands_may_have_changed_nothing_unless_something_was_due() -> None:
    world = World({"due": lambda tx, name: None})

    def look() -> Outcome:
        return world.core.transact([Command(lambda tx: tx.store.clusters.names("r", "", 1), world.told.append, read_only=True)])

    assert not look().may_have_changed
    assert world.transact(adds("a")).may_have_changed
    world.transact(lambda tx: tx.due("due:x", tx.now_s + 1))
    assert not look().may_have_changed
    world.clock.advance(2)
    assert look().may_have_changed
    assert not look().may_have_changed
    assert world.core.transact([Command(adds("b"), world.told.append, read_only=True)]).may_have_changed, "it has written rows"
    world.store.full = True
    assert look().may_have_changed, "a failed transaction may have changed anything"


def test_an_attempt_undoes_rows_memory_and_effects_of_a_function_that_fails() -> None:
    world = World({"look": lambda tx, name: None})
    seen: list[Any] = []

    def fails(tx: Tx[Store]) -> None:
        tx.attempt(lambda: adds("inner")(tx))
        adds("outer")(tx)
        tx.changed("key")
        tx.watch("look:x", ["a"])
        tx.hand_over("logs", "kind", 1)
        tx.due("look:x", 5.0)
        raise Refusal("no")

    def command(tx: Tx[Store]) -> str:
        adds("kept")(tx)
        tx.watch("look:x", ["b"])
        before = tx._sizes()
        with pytest.raises(Refusal):
            tx.attempt(lambda: fails(tx))
        assert tx._sizes() == before
        seen.extend([list(tx.store.watchers("a")), list(tx.store.watchers("b")), tx.store.next_due_s()])
        return "ok"

    world.transact(command)
    assert world.told == ["ok"] and seen == [[], ["look:x"], None]
    assert world.clusters() == ["kept"]


@pytest.mark.parametrize("first_write", [False, True])
def test_a_command_that_fails_after_an_attempt_undoes_both(first_write: bool) -> None:
    world = World()

    def command(tx: Tx[Store]) -> None:
        tx.attempt(lambda: adds("a")(tx))
        tx.watch("look:x", ["a"])
        raise Refusal("no")

    world.transact(*([adds("before")] if first_write else []), command, adds("after"))
    assert world.clusters() == (["after", "before"] if first_write else ["after"])
    assert list(world.store.watchers("a")) == []


def test_a_reconciler_runs_when_a_key_that_it_watches_changes_also_after_a_restart(tmp_path: Path) -> None:
    looked: list[str] = []
    reconcilers: dict[str, Reconciler] = {"look": lambda tx, name: looked.append(name)}
    world = World(reconcilers, tmp_path / "state.db")
    world.transact(lambda tx: tx.watch("look:x", ["a", "b"]), lambda tx: tx.watch("look:y", ["b"]))
    world.transact(lambda tx: tx.changed("a"), lambda tx: tx.changed("b"), lambda tx: tx.changed("c"))
    assert looked == ["x", "x", "y"]
    world.store.close()
    world = World(reconcilers, tmp_path / "state.db")
    world.transact(lambda tx: tx.watch("look:x", ["c"]))
    world.transact(lambda tx: tx.changed("a"), lambda tx: tx.changed("b"))
    assert looked == ["x", "x", "y", "y"]
    world.transact(lambda tx: tx.watch("look:x", ()), lambda tx: tx.watch("look:y", ()))
    world.transact(lambda tx: tx.changed("b"), lambda tx: tx.changed("c"))
    assert looked == ["x", "x", "y", "y"]
    assert world.store.execute("SELECT count(*) FROM watch").fetchone() == (0,)
