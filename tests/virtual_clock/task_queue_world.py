"""The task queue on a virtual clock: a core with one simulated host, whose tasks start and end as the test says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corral.core.commands import Command
from corral.core.core import Outcome
from corral.model.run import Observed
from corral.model.task import Task, TaskState
from corral.services.ecs import host_reports
from corral.services.ecs.waiting_changes import WaitingChange, change_waiting
from corral.store.task_queue import TaskQueue
from store.rows import hello
from virtual_clock.group_world import CALLER, REGION, GroupWorld

ARN = f"arn:aws:ecs:{REGION}:{CALLER.account}:task/default/"


class TaskQueueWorld(GroupWorld):
    """A host with GPUs. Each task needs one GPU, unless the test says otherwise."""

    def __init__(self, gpus: int = 4, path: Path | None = None) -> None:
        self.environments: dict[str, dict[str, str]] = {}  # task id → the environment of its program
        self.boots = 0
        super().__init__(gpus, path=path)
        for number in (0, 1, 2, 4):
            needs = [{"type": "GPU", "value": str(number)}] if number else []
            container = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6, "resourceRequirements": needs}
            self.call("RegisterTaskDefinition", "ecs", family=f"gpus-{number}", containerDefinitions=[container])

    def start(self) -> None:
        super().start()
        self.store.execute("PRAGMA synchronous=OFF")  # only the server restarts, not the machine

    def transact(self, commands: Sequence[Command]) -> Outcome:
        outcome = super().transact(commands)
        for orders in outcome.orders.values():
            self.environments |= {start.spec.task_id: start.spec.environment for start in orders.start}
        self.check()
        return outcome

    # Users

    def launch(
        self, count: int = 1, *, gpus: int = 1, name: str = "", overrides: dict[str, Any] | None = None, **options: str
    ) -> list[str]:
        """Call RunTask. `options` are queue options: not_before is the tag corral:not-before."""
        tags = [{"key": f"corral:{option.replace('_', '-')}", "value": value} for option, value in options.items()]
        tags += [{"key": "corral:name", "value": name}] if name else []
        made = self.call("RunTask", "ecs", taskDefinition=f"gpus-{gpus}", count=count, tags=tags, overrides=overrides or {})
        assert made["failures"] == []
        return [each["taskArn"].rpartition("/")[2] for each in made["tasks"]]

    def launch_one(self, **more: Any) -> str:
        [task_id] = self.launch(**more)
        return task_id

    def stop(self, task_id: str) -> None:
        self.call("StopTask", "ecs", task=task_id)

    def tag(self, task_id: str, **options: str) -> None:
        tags = [{"key": f"corral:{option.replace('_', '-')}", "value": value} for option, value in options.items()]
        self.call("TagResource", "ecs", resourceArn=ARN + task_id, tags=tags)

    def untag(self, task_id: str, *options: str) -> None:
        self.call("UntagResource", "ecs", resourceArn=ARN + task_id, tagKeys=[f"corral:{option}" for option in options])

    def change(self, task_id: str, change: WaitingChange) -> None:
        """Change a task that waits, as `corral set` does."""
        self.run(lambda tx: change_waiting(tx, self.task(task_id), change))

    # The host

    def starts(self, *task_ids: str) -> None:
        for task_id in task_ids:
            self._observe(task_id, ended=False)

    def ends(self, *task_ids: str, code: int | None = 0) -> None:
        for task_id in task_ids:
            self._observe(task_id, ended=True, code=code)
        self.settle()

    def _observe(self, task_id: str, *, ended: bool, code: int | None = None) -> None:
        assert self.task(task_id).instance_id is not None, f"{task_id} is not placed: {self.reason(task_id)}"
        self.run(lambda tx: host_reports.report(tx, "h", self.reports(task_id, ended=ended, code=code)))

    def reports(self, task_id: str, *, ended: bool, code: int | None = None) -> list[Observed]:
        task, now_s = self.task(task_id), self.clock.wall_s()
        ended_s = now_s if ended else None
        return [Observed(run.attempt_id, 1, task.started_at_s or now_s, ended_s, code if ended else None) for run in task.runs]

    def reboot(self) -> None:
        """The host restarts: its processes are lost, and its agent connects again."""
        self.boots += 1
        message = hello("h", len(self.store.hosts.gpus("h")), boot_id=f"boot {self.boots}")
        self.run(lambda tx: host_reports.hello(tx, message))
        self.host_reports_until(1e12)
        self.settle()

    # What the world shows

    def task(self, task_id: str) -> Task:
        task = self.store.tasks.get(task_id)
        assert task is not None
        return task

    def shown(self, task_id: str) -> Any:  # type: ignore[override]
        return self.call("DescribeTasks", "ecs", tasks=[task_id], include=["TAGS"])["tasks"][0]

    def state(self, task_id: str) -> str:
        return self.task(task_id).state.value

    def states_of(self, task_ids: Sequence[str]) -> list[str]:
        return [self.state(task_id) for task_id in task_ids]

    def reason(self, task_id: str) -> str:
        return str(self.shown(task_id)["containers"][0]["reason"])

    def tags(self, task_id: str) -> dict[str, str]:
        return {tag["key"].removeprefix("corral:"): tag["value"] for tag in self.shown(task_id)["tags"]}

    def successor(self, task_id: str) -> str:
        """The task that replaces a failed task."""
        return self.tags(task_id)["requeued-as"]

    def placed(self) -> list[Task]:
        rows = self.store.execute("SELECT id FROM task WHERE state IN ('PENDING', 'RUNNING') ORDER BY rowid").fetchall()
        return [self.task(task_id) for (task_id,) in rows]

    def waiting(self) -> list[Task]:
        rows = self.store.execute("SELECT id FROM task WHERE state = 'PROVISIONING' ORDER BY rowid").fetchall()
        return [self.task(task_id) for (task_id,) in rows]

    # Checks after each commit

    def check(self) -> None:
        execute = self.store.execute
        assert self.store.task_queue.snapshot() == TaskQueue(self.store).snapshot()
        claims = {task_id for (task_id,) in execute("SELECT id FROM claim WHERE kind = 'task'")}
        queued = {task_id for (task_id,) in execute("SELECT task_id FROM queued_task WHERE state != 'admitted'")}
        waiting = {task_id for (task_id,) in execute("SELECT id FROM task WHERE state = 'PROVISIONING'")}
        stopped = {task_id for task_id in queued - waiting if self.state(task_id) == TaskState.STOPPED.value}  # to be reconciled
        assert not claims & queued
        assert claims | (queued - stopped) == waiting, "a waiting task has no claim and is not in the task queue"
        counted = dict(execute("SELECT dependent, count(*) FROM task_dependency GROUP BY dependent").fetchall())
        assert counted == dict(execute("SELECT task_id, unmet FROM queued_task WHERE unmet > 0").fetchall())
        sums = "SELECT array, sum(state != 'admitted'), sum(state = 'admitted') FROM queued_task WHERE array != '' GROUP BY array"
        members = {key: (not_admitted, admitted) for key, not_admitted, admitted in execute(sums)}
        for key, waits, admitted in execute("SELECT key, waiting, admitted FROM task_array").fetchall():
            assert members.pop(key, (0, 0)) == (waits, admitted)
        assert not members
