"""Random tasks in the task queue: graphs, arrays, holds, times, requeues, lost hosts, and restarts of the server after any commit.

A model knows what each task waits for, and how each chain of requeued tasks ended. After each commit it checks that no task got in
line too early and that no array exceeded its limit. At the end, every task must have ended, for the right reason.
`CORRAL_SIM_SEEDS=500 pytest tests/virtual_clock/test_task_queue_model.py` runs more seeds. A failing seed is the last one that is
printed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from corral.core.core import Core, Outcome
from corral.core.errors import ApiError, api_error
from corral.core.ids import SeededIds
from corral.core.transactions import Reconciler, Tx
from corral.model.placement import Claim
from corral.model.task import Task
from corral.model.task_queue import EndNotice, QueuedTask, TaskArray
from corral.operations.services import SERVICES
from corral.reconcile import STATE
from corral.services.ecs.waiting_changes import WaitingChange, change_waiting, is_waiting
from corral.store import Store
from corral.store.claims import Claims
from corral.store.task_queue import Need, TaskQueue
from virtual_clock.group_world import CALLER
from virtual_clock.task_queue_world import TaskQueueWorld

SEEDS = int(os.environ.get("CORRAL_SIM_SEEDS", "10"))
START = int(os.environ.get("CORRAL_SIM_START", "0"))
STEPS = 50
TASKS_MAX = 50
EXPECTED = (
    "restart", "requeue", "refused", "dependency failed", "array", "held", "reboot", "undone", "succeeded", "after array", "set",
)  # fmt: skip
Undone = api_error("Undone", 400)


class Violation(Exception):
    pass


@dataclass(frozen=True)
class Fault:
    """The parts of a world that a planted fault replaces."""

    store: type[Store] = Store
    reconcilers: dict[str, Reconciler] = field(default_factory=dict)


@dataclass
class Chain:
    """What the model knows about a launched task and the tasks that replace it."""

    first: str
    array: str
    after: set[str]  # the first tasks of the chains that must succeed, also of the members of arrays
    after_any: set[str]
    not_before_s: float
    requeues: int
    tasks: list[str] = field(default_factory=list)
    succeeded: bool | None = None  # None: the chain has not ended


class RandomTasks(TaskQueueWorld):
    """One seed."""

    def __init__(self, seed: int, path: Path, fault: Fault | None = None) -> None:
        self.rng, self.fault = Random(seed), fault or Fault()
        self.restart_chance = 0.0
        self.chains: dict[str, Chain] = {}  # id of a task → its chain
        self.limits: dict[str, int] = {}  # array id → its limit
        self.stopped_by_user: set[str] = set()
        self.reported: dict[str, int | None] = {}  # task → the exit code that the host reported
        self.in_line: set[str] = set()  # tasks that had a claim or a placement
        self.happened: Counter[str] = Counter()
        super().__init__(gpus=4, path=path)
        self.restart_chance = self.rng.choice((0.0, 0.05, 0.3))

    def start(self) -> None:
        self.store = self.fault.store(self.path)
        self.store.execute("PRAGMA synchronous=OFF")
        reconcilers = {**STATE, **self.fault.reconcilers}
        self.core = Core(self.store, settings=self.settings, clock=self.clock, ids=SeededIds(self.rng), reconcilers=reconcilers)

    def transact(self, commands: Any) -> Outcome:
        outcome = super().transact(commands)
        self.observe_commit()
        if self.rng.random() < self.restart_chance:
            self.happened["restart"] += 1
            self.restart()
        return outcome

    # The model

    def observe_commit(self) -> None:
        """Follow the rows of the store, and check that nothing got in line too early."""
        known = set(self.chains)
        rows = self.store.execute(
            "SELECT id, state, state != 'STOPPED' AND (instance_id IS NOT NULL OR EXISTS "
            "(SELECT 1 FROM claim WHERE kind = 'task' AND claim.id = task.id)) FROM task ORDER BY rowid"
        ).fetchall()
        for task_id, state, _ in rows:
            if task_id not in known or (state == "STOPPED" and self.chains[task_id].succeeded is None):
                self._learn(self.task(task_id), known)
        active: Counter[str] = Counter()
        for task_id, _, in_line in rows:
            if in_line:
                active[self.chains[task_id].array] += 1
                if task_id not in self.in_line:
                    self.in_line.add(task_id)
                    self._check_start(task_id, self.chains[task_id])
        for array_id, limit in self.limits.items():
            if limit and active[array_id] > limit:
                raise Violation(f"array {array_id} exceeds its limit of {limit}")

    def _learn(self, task: Task, known: set[str]) -> None:
        tags = {tag["key"].removeprefix("corral:"): tag["value"] for tag in task.details.get("tags", ())}
        if task.id not in self.chains:
            if "requeue-of" in tags:
                chain = self.chains[tags["requeue-of"]]
                if chain.succeeded is not None:
                    raise Violation(f"{task.id} replaces a task of a chain that has ended")
                self.happened["requeue"] += 1
            else:
                chain = Chain(
                    task.id,
                    tags.get("array", "").partition(" ")[0],
                    self._chains_of(tags.get("after", ""), known),
                    self._chains_of(tags.get("after-any", ""), known),
                    float(tags.get("not-before", 0)),
                    int(tags.get("requeue", 0)),
                )
            chain.tasks.append(task.id)
            self.chains[task.id] = chain
        chain = self.chains[task.id]
        if task.state == "STOPPED" and chain.tasks[-1] == task.id and chain.succeeded is None and "requeued-as" not in tags:
            if self._should_requeue(task, chain) and not self.store.task_queue.concerns(task.id):
                raise Violation(f"{task.id} was not requeued")
            if not self.store.task_queue.concerns(task.id) or chain.first != task.id:
                chain.succeeded = task.stop_code == "EssentialContainerExited" and self.reported.get(task.id) == 0
                self.happened["succeeded" if chain.succeeded else "failed"] += 1

    def _should_requeue(self, task: Task, chain: Chain) -> bool:
        if task.instance_id is None or task.id in self.stopped_by_user or len(chain.tasks) > chain.requeues:
            return False
        return self.reported.get(task.id) != 0

    def _chains_of(self, needed: str, known: set[str]) -> set[str]:
        """The first tasks of the chains that a tag names. `known` has the tasks that were launched before."""
        found: set[str] = set()
        for each in needed.split():
            if each.startswith("array:"):
                found |= {self.chains[one].first for one in known if self.chains[one].array == each.removeprefix("array:")}
            else:
                found.add(self.chains[each].first)
        return found

    def _check_start(self, task_id: str, chain: Chain) -> None:
        if task_id == chain.first and chain.not_before_s > self.clock.now_s():
            raise Violation(f"{task_id} got in line before its time")
        for needed in chain.after:
            if not self.chains[needed].succeeded:
                raise Violation(f"{task_id} got in line before {needed} had succeeded")
        for needed in chain.after_any:
            if self.chains[needed].succeeded is None:
                raise Violation(f"{task_id} got in line before {needed} had ended")

    # Random actions

    def act(self) -> None:
        rng = self.rng
        action = rng.choice((self.launch_some, self.launch_some, self.host_works, self.host_works, self.host_works, self.user_acts,
                             self.user_sets, self.time_passes))  # fmt: skip
        action()

    def launch_some(self) -> None:
        rng = self.rng
        if len(self.chains) >= TASKS_MAX:
            return
        options: dict[str, str] = {}
        for name in ("after", "after_any"):
            if self.chains and rng.random() < 0.3:
                needed = rng.sample(sorted(self.chains), min(len(self.chains), rng.randint(1, 3)))
                if self.limits and rng.random() < 0.4:
                    needed[0] = f"array:{rng.choice(sorted(self.limits))}"
                    self.happened["after array"] += 1
                options[name] = " ".join(needed)
        if rng.random() < 0.15:
            options["hold"] = "true"
            self.happened["held"] += 1
        if rng.random() < 0.2:
            options["not_before"] = str(int(self.clock.now_s()) + rng.randint(-5, 20))
        if rng.random() < 0.4:
            options["requeue"] = str(rng.randint(0, 2))
        if rng.random() < 0.3:
            options["priority"] = str(rng.randint(-2, 2))
        count = rng.randint(1, 3)
        if rng.random() < 0.35:
            is_new = not self.limits or rng.random() < 0.6
            array_id = f"a{len(self.limits)}" if is_new else rng.choice(sorted(self.limits))
            limit = self.limits.get(array_id, rng.randint(0, 3))
            options["array"] = f"{array_id} {rng.randint(0, 5)} 1 {limit}"
            self.happened["array"] += 1
        gpus = rng.choice((0, 1, 1, 1, 2, 4))
        needed_chains = self._chains_of(options.get("after", ""), set(self.chains))
        refuses = any(self.chains[needed].succeeded is False for needed in needed_chains)
        try:
            if rng.random() < 0.1:
                self._undo(gpus, count, options)
            self.launch(count, gpus=gpus, **options)
        except ApiError as error:
            self.happened["refused" if error.code == "InvalidParameterException" else "undone"] += 1
            expected = ("never start",) if refuses else ("gets no more tasks",)
            if error.code == "InvalidParameterException" and not any(each in error.message for each in expected):
                raise
        else:
            if refuses:
                raise Violation("a launch behind a failed task was not refused")
            if "array" in options:
                array_id, _, _, given = options["array"].split()
                self.limits[array_id] = int(given)

    def _undo(self, gpus: int, count: int, options: dict[str, str]) -> None:
        """Launch tasks in a command that fails afterwards: nothing of them may stay."""
        tags = [{"key": f"corral:{name.replace('_', '-')}", "value": value} for name, value in options.items()]

        def handler(tx: Any) -> None:
            params = {"taskDefinition": f"gpus-{gpus}", "count": count, "tags": tags}
            SERVICES["ecs"].operations["RunTask"](tx, params, CALLER)
            raise Undone("undone")

        self.run(handler)

    def host_works(self) -> None:
        rng, placed = self.rng, self.placed()
        if placed and rng.random() < 0.05:
            self.happened["reboot"] += 1
            self.reboot()
        elif placed:
            task = rng.choice(placed)
            if task.state == "PENDING" and rng.random() < 0.5:
                self.starts(task.id)
            else:
                code = rng.choice((0, 0, 0, 1, 137)) if task.desired == "RUNNING" else rng.choice((0, 137))
                self.reported[task.id] = code
                self._observe(task.id, ended=True, code=code)

    def user_acts(self) -> None:
        rng = self.rng
        live = [task for task in (*self.waiting(), *self.placed()) if task.desired == "RUNNING"]
        if not live:
            return
        task = rng.choice(live)
        match rng.choice(("stop", "hold", "release", "release", "priority")):
            case "stop":
                self.stopped_by_user.add(task.id)
                self.stop(task.id)
            case "hold":
                self.tag(task.id, hold="true")
            case "release":
                self.untag(task.id, "hold")
            case _:
                self.tag(task.id, priority=str(rng.randint(-2, 2)))

    def user_sets(self) -> None:
        """Change a task that waits, as `corral set` does. Only another priority or a hold changes its place."""
        rng = self.rng
        waiting = [task for task in self.waiting() if is_waiting(task)]
        if not waiting:
            return
        in_line = [task for task in waiting if self.store.claims.get("task", task.id) is not None]
        task = rng.choice(in_line or waiting)
        change = WaitingChange(
            priority=rng.choice((None, -1, 2)),
            held=rng.choice((None, None, True, False)),
            time_limit_s=rng.choice((None, 0, 60)),
            gpus=rng.choice((None, "0", "1", "2", "4", "ALL")),
        )

        def command(tx: Any) -> None:
            claim = tx.store.claims.get("task", task.id)
            change_waiting(tx, tx.store.tasks.get(task.id), change)
            after = tx.store.claims.get("task", task.id)
            if claim is not None and after is not None and change.priority is None and claim.rank != after.rank:
                raise Violation(f"{task.id} lost its place")
            if rng.random() < 0.2:
                raise Undone("undone")

        self.happened["set"] += 1
        with suppress(Undone):
            self.run(command)

    def check(self) -> None:
        """Also check that no GPU is promised twice, and that each task got the GPUs that it needed."""
        super().check()
        leased = self.store.execute("SELECT gpu_id, count(*) FROM lease GROUP BY gpu_id HAVING count(*) > 1").fetchall()
        assert not leased, leased
        for task in self.placed():
            held = sum(len(run.gpu_ids) for run in task.runs)
            assert held == (4 if task.demand.gpus == -1 else task.demand.gpus), task
            assert task.demand.gpus == sum(run.gpus for run in task.runs)

    def time_passes(self) -> None:
        self.wait(self.rng.choice((0.0, 0.5, 3.0)))
        for task in self.waiting():
            if not self.reason(task.id):
                raise Violation(f"{task.id} waits without a reason")

    # One seed

    def simulate(self) -> None:
        for _ in range(STEPS):
            self.act()
        self.settle()
        idle = 0
        while idle < 5:  # all delays and times pass meanwhile
            for task in self.waiting():
                if any(tag["key"] == "corral:hold" for tag in task.details.get("tags", ())):
                    self.untag(task.id, "hold")
            placed = self.placed()
            for task in placed:
                self.reported[task.id] = 0
                self._observe(task.id, ended=True, code=0)
            if not placed and not self.waiting():
                break
            idle = 0 if placed else idle + 1
            self.wait(1.0 if placed else 30.0)
        self.settle()
        if left := [f"{task.id}: {self.reason(task.id)}" for task in self.waiting()]:
            raise Violation(f"tasks wait for ever: {left}")
        self._check_ends()

    def _check_ends(self) -> None:
        assert self.store.task_queue.snapshot() == (set(), {})
        for chain in {id(chain): chain for chain in self.chains.values()}.values():
            last = self.task(chain.tasks[-1])
            failed = [needed for needed in chain.after if not self.chains[needed].succeeded]
            by_dependency = (last.stopped_reason or "").startswith("Dependency failed")
            self.happened["dependency failed"] += by_dependency
            if by_dependency and not failed:
                raise Violation(f"{last.id} failed, but no task before it failed")
            if failed and last.instance_id is not None:
                raise Violation(f"{last.id} ran after {failed} had failed")
            if len(chain.tasks) > 1 + chain.requeues:
                raise Violation(f"{chain.first} was requeued too often")


@pytest.mark.parametrize("first", range(START, START + SEEDS, 5))
def test_random_runs(first: int, tmp_path: Path) -> None:
    """Each seed passes. Over a few seeds, everything happens that the model checks."""
    happened: Counter[str] = Counter()
    for seed in range(first, min(first + 5, START + SEEDS)):
        print(f"seed {seed}")
        world = RandomTasks(seed, tmp_path / f"{seed}.db")
        world.simulate()
        world.store.close()
        happened.update(world.happened)
    print(happened)
    if first == 0:
        assert not [each for each in EXPECTED if not happened[each]], happened


# Planted faults


def with_waits(**methods: Callable[..., Any]) -> Fault:
    """A store whose task queue has some other methods."""
    faulty = type("FaultyTaskQueue", (TaskQueue,), methods)

    class FaultyStore(Store):
        def _compose(self) -> None:
            super()._compose()
            self.task_queue = faulty(self)

    return Fault(FaultyStore)


def with_claim_change(change: Callable[[Claims, Claim, Claim], None]) -> Fault:
    """A store that changes claims in another way."""

    class FaultyStore(Store):
        def _compose(self) -> None:
            super()._compose()
            self.claims.change = partial(change, self.claims)  # type: ignore[method-assign]

    return Fault(FaultyStore)


def _nothing(tx: Tx[Store], name: str) -> None:
    pass


def _all_succeed(waits: TaskQueue, end: EndNotice) -> None:
    TaskQueue.add_end(waits, end.but(succeeded=True))


def _no_requeues(waits: TaskQueue, task_id: str) -> QueuedTask | None:
    run = TaskQueue.get(waits, task_id)
    return run and run.but(requeues=0)


def _without_undo_log(waits: TaskQueue, run: QueuedTask, needs: Iterable[Need] = ()) -> None:
    TaskQueue.add(waits, run, needs)
    waits._undo_log._inverses.pop()


def _none_admitted(waits: TaskQueue, key: str) -> TaskArray | None:
    array = TaskQueue.array(waits, key)
    return array and array.but(admitted=0)


def _any_end_counts(waits: TaskQueue, end: EndNotice, limit: int) -> list[Need]:
    return [(task_id, True) for task_id, _ in TaskQueue.dependents(waits, end, limit)]


FAULTS = {
    "tasks that wait for an ended task are not informed": Fault(reconcilers={"end-notice": _nothing}),
    "the next member of an array does not start": Fault(reconcilers={"task-array": _nothing}),
    "a failed task counts as succeeded": with_waits(add_end=_all_succeed),
    "any end of a task counts": with_waits(dependents=_any_end_counts),
    "a failed task is not requeued": with_waits(get=_no_requeues),
    "admitted members of an array are not counted": with_waits(array=_none_admitted),
    "the second time is forgotten": with_waits(next_time_s=lambda waits: None),
    "an undone launch stays in memory": with_waits(add=_without_undo_log),
    "a claim does not get the changed GPUs": with_claim_change(lambda claims, before, after: None),
    "a changed task loses its place": with_claim_change(
        lambda claims, before, after: Claims.change(claims, before, after._replace(rank=(0, 1e12)))
    ),
}


# A seed that catches the fault, if that is not seed 0. The test tries it first, and then the others.
FIRST_SEEDS = {
    "the next member of an array does not start": 1,
    "a failed task counts as succeeded": 1,
    "any end of a task counts": 1,
    "a claim does not get the changed GPUs": 4,
    "a changed task loses its place": 4,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str, tmp_path: Path) -> None:
    first = FIRST_SEEDS.get(fault, 0)
    for seed in (first, *(each for each in range(30) if each != first)):
        world = RandomTasks(seed, tmp_path / f"{seed}.db", FAULTS[fault])
        try:
            world.simulate()
        except (Violation, AssertionError, ApiError) as objection:
            print(f"{fault}: seed {seed}, {objection}")
            return
        finally:
            world.store.close()
    raise AssertionError("not caught")
