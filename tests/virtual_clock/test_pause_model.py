"""Random pauses, preemptions, turns and crashes on a virtual clock, checked against what the simulated host really does."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from corral.core.commands import Command
from corral.core.errors import ApiError
from corral.model.agent_protocol import PauseOrder
from corral.model.placement import TASK, Claim
from corral.model.queue_options import queue_options
from corral.model.run import Observed, RunPause, RunState
from corral.model.task import Task, TaskState
from corral.services.ecs import host_reports
from corral.services.ecs.task_queue import rank_of
from examples import examples
from store.rows import hello
from virtual_clock.pause_world import GIB, PauseWorld

TAGS: tuple[list[dict[str, str]], ...] = (
    [],
    [{"key": "corral:priority", "value": "5"}],
    [{"key": "corral:priority", "value": "9"}],
    [{"key": "corral:preemptible", "value": "true"}],
    [{"key": "corral:preemptible", "value": "true"}, {"key": "corral:priority", "value": "5"}],
    [{"key": "corral:preemptible", "value": "kill"}],
    [{"key": "corral:turns", "value": "60"}],
    [{"key": "corral:turns", "value": "60"}, {"key": "corral:preemptible", "value": "true"}],
)
KINDS = (
    *("submit", "submit", "answer", "answer", "answer", "lose", "fail", "end", "end", "pause", "resume", "stop"),
    *("wait", "wait", "restart", "hello"),
)
STEPS, GPUS = 60, 3
PAUSED_MAX = 2  # the memory of the host has room for what so many runs have on GPUs
LEAST_TURN_S = 10.0


class RandomPauses(PauseWorld):
    """`on_host` has the living runs of the host, and whether each is paused there."""

    def __init__(self, rng: Random, path: Path) -> None:
        self.rng = rng
        self.on_host: dict[str, bool] = {}
        self.numbers: dict[str, int] = {}  # run id → the last order that the host has carried out
        self.continued_at_s: dict[str, float] = {}
        super().__init__(GPUS, path=path, ann=[])
        self.lengths_s = defaultdict(lambda: 1e9)  # also of tasks that replace others

    def started(self) -> None:
        super().started()
        for task in self.placed():
            for run in task.runs:
                if run.state is RunState.RUNNING:
                    self.on_host.setdefault(run.attempt_id, False)

    def placed(self) -> list[Task]:
        return [task for task in self.store.tasks.placed() if task.state is not TaskState.STOPPED]

    def unfinished(self) -> list[Task]:
        rows = self.store.execute("SELECT id FROM task WHERE state != 'STOPPED' ORDER BY rowid").fetchall()
        return [self.task(task_id) for (task_id,) in rows]

    def carry_out(self, order: PauseOrder, *, fails: bool) -> RunPause:
        """The host carries out an order, unless it has done so."""
        assert order.number >= self.numbers.get(order.run_id, 0), "orders have increasing numbers"
        before = self.on_host[order.run_id]
        has_room = before or sum(self.on_host.values()) < PAUSED_MAX
        fails = fails or (order.paused and not has_room)
        if order.number > self.numbers.get(order.run_id, 0):
            self.numbers[order.run_id] = order.number
            if not fails and order.paused != before:
                self.on_host[order.run_id] = order.paused
                if order.paused:
                    since_s = self.clock.now_s() - self.continued_at_s.get(order.run_id, -1e9)
                    assert since_s >= LEAST_TURN_S or self.is_by_user(order.run_id), "a task that has continued gets a turn"
                else:
                    self.continued_at_s[order.run_id] = self.clock.now_s()
        self.check_host()
        return RunPause(order.number, self.on_host[order.run_id], "it failed" if fails else "", GIB, 0.5)

    def is_by_user(self, run_id: str) -> bool:
        task = self.store.tasks.of_run(run_id.partition(".")[0])
        return task is not None and task.pause is not None and task.pause.cause is not None and task.pause.cause.value == "user"

    def check_host(self) -> None:
        """No GPU has two runs that compute."""
        computing: dict[str, str] = {}
        for task in self.store.tasks.placed():
            for run in task.runs:
                for gpu_id in run.gpu_ids if self.on_host.get(run.attempt_id) is False else ():
                    assert computing.setdefault(gpu_id, task.id) == task.id, "two runs compute on one GPU"

    def check(self) -> None:
        self.check_host()
        leases = self.leases()
        for task in self.placed():
            holds = {gpu_id for run in task.runs if run.state is not RunState.STOPPED for gpu_id in run.gpu_ids}
            leased = {gpu_id for gpu_id, holder in leases.items() if holder == task.id}
            assert leased == (set() if task.is_paused else holds), task.pause
        assert len(leases) <= GPUS
        fleet = self._fleet_of_rows.value(self.store)
        assert self.store.fleet.snapshot() == fleet
        pool = self.store.fleet.pool("hosts:default")
        for claim in pool.heads():  # the line is work-conserving for tasks that return
            if claim.demand.own_gpus:
                slot = next(iter(pool.slots()))
                assert not set(claim.demand.own_gpus) <= set(slot.gpus), "a task waits although its GPUs are free"

    def report(self, observed: list[Observed]) -> None:  # type: ignore[override]
        self.transact([Command(lambda tx: host_reports.report(tx, "h", observed), lambda answer: None)])
        self.settle()

    def answer_some(self, *, lose: bool, fails: bool) -> None:
        orders, self.orders = self.orders, []
        for order in orders:
            if order.run_id not in self.on_host:
                continue
            pause = self.carry_out(order, fails=fails and self.rng.random() < 0.5)
            if not lose:
                self.report([Observed(order.run_id, 1, self.clock.now_s(), pause=pause)])
        self.started()

    def end_some(self, count: int) -> None:
        ending = [task for task in self.placed() if task.state is TaskState.RUNNING and self.may_end(task)]
        for task in self.rng.sample(ending, min(count, len(ending))):
            self.end_task(task)

    def may_end(self, task: Task) -> bool:
        return task.desired is TaskState.STOPPED or not any(self.on_host.get(run.attempt_id) for run in task.runs)

    def end_task(self, task: Task) -> None:
        now_s = self.clock.now_s()
        for run in task.runs:
            self.on_host.pop(run.attempt_id, None)
        self.report([Observed(run.attempt_id, 1, task.started_at_s or now_s, now_s, 0) for run in task.runs])
        self.started()

    def connect_anew(self) -> None:
        """The host says what runs. Orders that were not answered come again."""
        self.orders.clear()
        runs = []
        for run_id, paused in self.on_host.items():
            number = self.numbers.get(run_id)
            runs.append(Observed(run_id, 1, self.clock.now_s(), pause=None if number is None else RunPause(number, paused)))
        self.run(lambda tx: host_reports.hello(tx, replace(hello("h", GPUS), runs=runs)))
        self.host_reports_until(1e12)
        self.settle()
        self.started()

    def returning(self) -> dict[str, Claim]:
        """The claims of paused tasks that wait for their GPUs."""
        found = [self.store.claims.get(TASK, task.id) for task in self.placed() if task.is_paused]
        return {claim.id: claim for claim in found if claim is not None}

    def check_line(self, waited: dict[str, Claim], placed: set[str]) -> None:
        """No task that was placed since then has a GPU of a paused task that was before it in line, and still waits."""
        left = self.returning()
        for task in self.placed():
            rank = rank_of(task, queue_options(task.details.get("tags", ())).priority)
            for claim in waited.values() if task.id not in placed else ():
                if claim.id in left and claim.rank < rank:
                    taken = {gpu_id for run in task.runs for gpu_id in run.gpu_ids}
                    assert taken.isdisjoint(claim.demand.own_gpus), "a task waits behind one that ranks after it"

    def act(self) -> None:
        rng, waited, placed = self.rng, self.returning(), {task.id for task in self.placed()}
        kind = rng.choice(KINDS)
        match kind:
            case "submit":
                self.submit("ann", gpus=rng.choice((1, 1, 2)), hours=1e6, tags=rng.choice(TAGS))
            case "answer" | "lose" | "fail":
                self.answer_some(lose=kind == "lose", fails=kind == "fail")
            case "end":
                self.end_some(1)
            case "pause" | "resume" | "stop":
                tasks = self.unfinished()
                if tasks:
                    self.try_(kind, rng.choice(tasks).id)
            case "wait":
                self.wait(rng.choice((1, 20, 70, 400)))
            case "restart":
                self.restart()
                self.connect_anew()
            case "hello":
                self.connect_anew()
        self.settle()
        self.started()
        self.check()
        self.check_line(waited, placed)

    def try_(self, kind: str, task_id: str) -> None:
        try:
            if kind == "stop":
                self.call("StopTask", "ecs", task=task_id)
            else:
                self.corral("PauseTask" if kind == "pause" else "ResumeTask", task=task_id)
        except ApiError:
            pass  # for example, a task that waits cannot be paused

    def finish(self) -> None:
        """Nothing fails any more, users let all their tasks continue, and each task runs to its end."""
        for _ in range(400):
            tasks = self.unfinished()
            if not tasks:
                return
            for task in tasks:
                pause: Any = task.pause
                if task.is_paused and not pause.returns and (pause.cause.value == "user" or pause.why_not):
                    self.try_("resume", task.id)
            self.answer_some(lose=False, fails=False)
            for task in self.placed():
                if task.desired is TaskState.STOPPED:
                    self.end_task(task)
            self.end_some(1)
            self.wait(60)
            self.started()
            self.check()
        raise AssertionError([(task.id, task.state, task.pause) for task in self.unfinished()])


@pytest.mark.parametrize("seed", range(examples(2000, 6)))
def test_no_gpu_twice_and_every_task_ends(tmp_path: Path, seed: int) -> None:
    world = RandomPauses(Random(seed), tmp_path / "state.db")
    for _ in range(STEPS):
        world.act()
    world.connect_anew()
    world.finish()
    assert not world.store.tasks.with_pause and not world.leases()
    slot = next(iter(world.store.fleet.pool("hosts:default").slots()))
    assert slot.cpu_units == slot.total.cpu_units and slot.memory_mib == slot.total.memory_mib
