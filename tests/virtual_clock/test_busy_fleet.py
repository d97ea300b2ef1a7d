"""A property of queue-driven fleets: random arrivals, work, scale-ins, rollouts and crashes lose no message and interrupt no work.

Each seed is one run on a virtual clock. Every message is processed, none is received twice while its receiver lives, no worker with
messages in flight is taken before the bound, and the group returns to its minimum. A failing seed replays the failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from corral.core.commands import Command
from corral.core.core import Outcome
from corral.core.errors import ApiError
from corral.model.run import Observed
from corral.model.settings import ScalingTimes, Settings
from corral.services.ecs import host_reports
from virtual_clock.busy_world import FLEET, BusyWorld
from virtual_clock.service_world import USER_DATA

SEEDS = int(os.environ.get("CORRAL_EXAMPLES", "5"))
BUSY_S = 600.0  # how long messages arrive and faults happen
END_S = 6 * 3600.0
GPUS = 4
VISIBILITY_S = 60
BATCH_MAX = 3
WORK_MAX_S = VISIBILITY_S / BATCH_MAX - 1  # a batch is always done within the visibility timeout


class Taken(AssertionError):
    """A worker was stopped although it was busy."""


class Worker:
    """The process of a task: it receives some messages, works on each, deletes it, and receives again."""

    def __init__(self, fleet: Fleet, task_id: str) -> None:
        self.fleet, self.task_id = fleet, task_id
        self.lives, self.polls, self.protects = True, False, False
        self.todo: list[dict[str, Any]] = []

    def poll(self) -> None:
        if self.lives and not self.polls:
            self.polls = True
            random = self.fleet.random
            wait_s = random.choice([1, 5, 20])
            self.fleet.poll(self.task_id, self.fleet.url, wait_s, self.took, count=random.randint(1, BATCH_MAX))

    def took(self, messages: list[dict[str, Any]]) -> None:
        self.polls = False
        for message in messages:
            holder = self.fleet.holders.get(message["Body"])
            assert self.lives, f"{self.task_id} has ended and received a message"
            assert holder is None or not holder.lives, f"{message['Body']} was received twice while its receiver lives"
            self.fleet.holders[message["Body"]] = self
        self.todo = messages
        if messages and self.fleet.random.random() < 0.2:
            self.fleet.at(0.0, lambda: self.protect(True))
        self.fleet.at(self.fleet.random.uniform(0.1, WORK_MAX_S) if messages else 0.1, self.next)

    def protect(self, enabled: bool) -> None:
        if self.lives and self.fleet.state_of(self.task_id)[1] == "RUNNING":
            self.protects = enabled
            params = {"cluster": FLEET, "tasks": [self.task_id], "protectionEnabled": enabled, "expiresInMinutes": 5}
            self.fleet.as_task(self.task_id, "UpdateTaskProtection", "ecs", **params)

    def next(self) -> None:
        if not self.lives:
            return
        if self.todo:
            message = self.todo.pop(0)
            self.fleet.holders.pop(message["Body"])
            self.fleet.processed.add(message["Body"])
            self.fleet.delete(self.task_id, self.fleet.url, message)
        if self.todo:
            self.fleet.at(self.fleet.random.uniform(0.1, WORK_MAX_S), self.next)
            return
        if self.protects:
            self.protect(False)
        self.poll()


class Fleet(BusyWorld):
    def __init__(self, seed: int, path: Path, busy_wait_s: float, bound_s: float) -> None:
        self.random = Random(seed)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = count()
        self.bound_s = bound_s
        self.processed: set[str] = set()
        self.holders: dict[str, Worker] = {}
        self.workers_by_task: dict[str, Worker] = {}
        self.seen: set[tuple[str, str]] = set()  # (task, "start" or "stop"): orders that the host has got
        self.chosen_at: dict[str, float] = {}
        self.stopped_by_user: set[str] = set()
        super().__init__(gpus=GPUS, settings=Settings(scaling=ScalingTimes(busy_wait_s=busy_wait_s)), path=path)
        self.replica = seed % 2 == 1
        self.define(gpus=1)
        self.call("CreateCluster", "ecs", clusterName=FLEET)
        strategy = {"desiredCount": GPUS} if self.replica else {"schedulingStrategy": "DAEMON"}
        self.serve(FLEET, **strategy, deploymentConfiguration={"minimumHealthyPercent": 0, "maximumPercent": 100})
        self.configuration("joins", UserData=USER_DATA)
        self.group(LaunchConfigurationName="joins", most=GPUS)
        attributes = {"VisibilityTimeout": str(VISIBILITY_S)}
        self.url = str(self.call("CreateQueue", "sqs", QueueName="work", Attributes=attributes)["QueueUrl"])

    # Time

    def at(self, delay_s: float, what: Callable[[], None]) -> None:
        heappush(self.events, (self.clock.now_s() + delay_s, next(self.numbers), what))

    def pass_time(self, until_s: float) -> None:
        """Run all events and everything that is due, up to a time."""
        while True:
            due_s = self.core.next_due_s()
            times = [at_s for at_s in (due_s, self.events[0][0] if self.events else None) if at_s is not None]
            at_s = min(times, default=until_s)
            if at_s > until_s:
                break
            self.clock.advance(max(0.0, at_s - self.clock.now_s()))
            if self.events and self.events[0][0] <= at_s:
                heappop(self.events)[2]()
            else:
                self.clock.advance(1e-6)
                self.transact([])
        self.clock.advance(max(0.0, until_s - self.clock.now_s()))

    # After each transaction

    def transact(self, commands: Sequence[Command]) -> Outcome:
        outcome = super().transact(commands)
        now_s, leaving = self.clock.now_s(), self.store.tasks.leaving.snapshot()
        rows = self.store.execute("SELECT id, state, desired FROM task WHERE state IN ('PENDING', 'RUNNING')").fetchall()
        for task_id, state, desired in rows:
            if desired == "RUNNING" and task_id in leaving:
                self.chosen_at.setdefault(task_id, now_s)
            elif desired == "RUNNING":
                self.chosen_at.pop(task_id, None)
            elif self.is_new(task_id, "stop"):
                self.check_stop(task_id, now_s)
                self.at(self.random.uniform(0.0, 2.0), lambda task_id=task_id: self.end(task_id, 0))
            if state == "PENDING" and self.is_new(task_id, "start"):
                self.at(self.random.uniform(0.0, 2.0), lambda task_id=task_id: self.begin(task_id))
        return outcome

    def is_new(self, task_id: str, order: str) -> bool:
        new = (task_id, order) not in self.seen
        self.seen.add((task_id, order))
        return new

    def check_stop(self, task_id: str, now_s: float) -> None:
        """A task was just ordered to stop: it is idle, or was awaited for the bound, or a user has stopped it."""
        worker = self.workers_by_task.get(task_id)
        if worker is None or not worker.lives or task_id in self.stopped_by_user:
            return
        if worker.todo and now_s < self.chosen_at.get(task_id, now_s) + self.bound_s:
            raise Taken(f"{task_id} was stopped with {len(worker.todo)} messages, chosen at {self.chosen_at.get(task_id)}")

    # The host

    def begin(self, task_id: str) -> None:
        self.observe(task_id, None)
        if self.state_of(task_id) == ("RUNNING", "RUNNING"):
            worker = self.workers_by_task[task_id] = Worker(self, task_id)
            worker.poll()

    def end(self, task_id: str, code: int) -> None:
        if worker := self.workers_by_task.get(task_id):
            worker.lives = False
        self.observe(task_id, code)

    def observe(self, task_id: str, code: int | None) -> None:
        task, now_s = self.store.tasks.get(task_id), self.clock.now_s()
        if task is not None and task.state.value != "STOPPED":
            ended_s = None if code is None else now_s
            runs = [Observed(run.attempt_id, 1, task.started_at_s or now_s, ended_s, code) for run in task.runs]
            self.run(lambda tx: host_reports.report(tx, "h", runs))

    # Users and faults

    def arrive(self, number: int) -> None:
        self.call("SendMessage", "sqs", QueueUrl=self.url, MessageBody=f"m{number}")

    def act(self) -> None:
        kind = self.random.choice(["size"] * 5 + ["rollout", "refresh", "restart", "crash", "stop", "terminate", "service"])
        try:
            getattr(self, f"do_{kind}")()
        except ApiError as refused:
            assert "InProgress" in refused.code, refused

    def do_size(self) -> None:
        self.call("SetDesiredCapacity", AutoScalingGroupName="g", DesiredCapacity=self.random.randint(0, GPUS))

    def do_rollout(self) -> None:
        self.call("UpdateService", "ecs", cluster=FLEET, service="web", forceNewDeployment=True)

    def do_service(self) -> None:
        if self.replica:
            self.call("UpdateService", "ecs", cluster=FLEET, service="web", desiredCount=self.random.randint(1, GPUS))

    def do_refresh(self) -> None:
        self.call("StartInstanceRefresh", AutoScalingGroupName="g", Preferences={"MinHealthyPercentage": 50, "InstanceWarmup": 0})

    def do_restart(self) -> None:
        self.restart()
        for worker in self.workers_by_task.values():
            if worker.polls:
                worker.polls = False
                self.at(self.random.uniform(0.0, 1.0), worker.poll)

    def living(self) -> list[str]:
        return [task_id for task_id, worker in self.workers_by_task.items() if worker.lives]

    def do_crash(self) -> None:
        if living := self.living():
            self.end(self.random.choice(living), 1)

    def do_stop(self) -> None:
        if living := self.living():
            task_id = self.random.choice(living)
            self.stopped_by_user.add(task_id)
            self.call("StopTask", "ecs", cluster=FLEET, task=task_id)

    def do_terminate(self) -> None:
        if instances := self.ids():
            instance_id = self.random.choice(instances)
            self.stopped_by_user |= {task_id for task_id, on in self.workers().items() if on == instance_id}
            self.call("TerminateInstances", "ec2", InstanceIds=[instance_id])

    def scale(self) -> None:
        """A policy that counts visible messages only: it scales in while workers hold the last messages."""
        attributes = self.call("GetQueueAttributes", "sqs", QueueUrl=self.url, AttributeNames=["All"])["Attributes"]
        visible = int(attributes["ApproximateNumberOfMessages"])
        self.call("SetDesiredCapacity", AutoScalingGroupName="g", DesiredCapacity=min(2, visible))


def simulate(seed: int, path: Path, busy_wait_s: float, bound_s: float) -> Fleet:
    fleet = Fleet(seed, path, busy_wait_s, bound_s)
    random, start_s = fleet.random, fleet.clock.now_s()
    messages = random.randint(20, 80)
    for number in range(messages):
        fleet.at(random.uniform(0.0, BUSY_S), lambda number=number: fleet.arrive(number))
    for _ in range(random.randint(10, 40)):
        fleet.at(random.uniform(0.0, BUSY_S), fleet.act)
    fleet.at(0.0, lambda: fleet.call("SetDesiredCapacity", AutoScalingGroupName="g", DesiredCapacity=2))
    fleet.pass_time(start_s + BUSY_S)
    while len(fleet.processed) < messages or fleet.shown()["Instances"]:
        assert fleet.clock.now_s() < start_s + END_S, (len(fleet.processed), messages, fleet.lifecycle(), fleet.activities()[:3])
        fleet.scale()
        fleet.pass_time(fleet.clock.now_s() + 10)
    assert fleet.processed == {f"m{number}" for number in range(messages)} and fleet.holders == {}
    assert fleet.shown()["DesiredCapacity"] == 0 and fleet.running() == 0
    assert fleet.store.tasks.leaving.snapshot() == {} and fleet.living() == []
    assert all("EndTime" in activity for activity in fleet.activities())
    return fleet


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_message_is_lost_and_no_worker_is_taken_while_it_is_busy(seed: int, tmp_path: Path) -> None:
    bound_s = 900.0 if seed % 3 else 25.0
    simulate(seed, tmp_path / "state.db", bound_s, bound_s)


def test_the_checker_finds_a_worker_that_was_taken(tmp_path: Path) -> None:
    """Without a wait, the same runs stop busy workers."""
    found = 0
    for seed in range(4):
        try:
            simulate(seed, tmp_path / f"{seed}.db", 0.0, 900.0)
        except Taken:
            found += 1
    assert found > 0
