"""Task definitions: a deleted revision stays until its last task is gone, and the cost of a listing depends on its page only."""

from __future__ import annotations

from random import Random

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import root_user
from corral.model.settings import Settings
from corral.model.task import TaskState
from corral.reconcile import STATE
from corral.reconcile.tasks import STOPPED_TASKS_S, SWEEP_EVERY_S
from corral.services.ecs.handlers import HANDLERS
from corral.store import Store

CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))
CONTAINER = {"name": "main", "image": "corral/host", "command": ["true"], "memory": 16}


class World:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = Store(None)
        self.core = Core(self.store, settings=Settings(), clock=self.clock, ids=SeededIds(Random(0)), reconcilers=STATE)

    def call(self, operation: str, **params: object) -> dict[str, object]:
        def run(tx: Tx[Store]) -> dict[str, object]:
            return HANDLERS[operation](tx, params, CALLER)

        [(_, answer)] = self.core.transact([Command(run, lambda _: None)]).answers
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, and run everything that is due meanwhile."""
        until_s = self.clock.now_s() + seconds
        while (due_s := self.core.next_due_s()) is not None and due_s <= until_s:
            self.clock.advance(max(0.0, due_s - self.clock.now_s()))
            assert not self.core.transact([]).faults
        self.clock.advance(until_s - self.clock.now_s())

    def in_deletion(self) -> list[tuple[str, int]]:
        return self.store.definitions.listed("us-east-1", "DELETE_IN_PROGRESS", family=None, after=None, limit=9, descending=False)


def test_a_deleted_revision_stays_while_a_task_of_it_is_described():
    world = World()
    world.core.transact([Command(lambda tx: tx.due("sweep:", 0.0), lambda _: None)])
    for _ in range(2):
        world.call("RegisterTaskDefinition", family="used", containerDefinitions=[CONTAINER])
    [task] = world.call("RunTask", taskDefinition="used:1")["tasks"]  # type: ignore[misc]
    for revision in (1, 2):
        world.call("DeregisterTaskDefinition", taskDefinition=f"used:{revision}")
    world.call("DeleteTaskDefinitions", taskDefinitions=["used:1", "used:2"])
    assert world.in_deletion() == [("used", 1), ("used", 2)]
    world.pass_time(2)
    assert world.in_deletion() == [("used", 1)], "no task uses the other revision"
    world.call("StopTask", task=task["taskArn"])
    world.pass_time(STOPPED_TASKS_S - SWEEP_EVERY_S)
    [shown] = world.call("DescribeTasks", tasks=[task["taskArn"]])["tasks"]  # type: ignore[misc]
    assert shown["lastStatus"] == TaskState.STOPPED
    assert world.in_deletion() == [("used", 1)]
    world.pass_time(4 * SWEEP_EVERY_S)
    assert world.in_deletion() == []
    assert world.call("DescribeTasks", tasks=[task["taskArn"]])["tasks"] == []


def test_a_page_reads_only_the_rows_it_returns():
    """Listings use an index: their cost does not grow with the number of revisions, and SQLite sorts nothing."""
    store = Store(None)
    seen: list[str] = []
    store.connection.set_trace_callback(seen.append)
    store.definitions.listed("r", "ACTIVE", family=None, after=("f", 1), limit=1, descending=False)
    store.definitions.listed("r", "ACTIVE", family="f", after=("f", 9), limit=1, descending=True)
    store.definitions.families("r", "f", "ACTIVE", "", 1)
    store.definitions.get("r", "f", None)
    store.definitions.drop_deleted("account", 1)
    store.connection.set_trace_callback(None)
    for sql in seen:
        plan = [row[3] for row in store.execute(f"EXPLAIN QUERY PLAN {sql}")]
        assert not [step for step in plan if step.startswith("SCAN") or "TEMP B-TREE" in step], (sql, plan)
