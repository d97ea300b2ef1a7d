"""Users who share a machine, on a virtual clock. Their tasks run for a given time."""

from __future__ import annotations

from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.commands import Command
from corral.core.errors import ApiError
from corral.model.principal import ROOT, Principal, owner_of_user
from corral.model.run import Observed
from corral.model.task import Task, TaskState
from corral.operations.services import SERVICES
from corral.services.ecs import host_reports
from virtual_clock.group_world import CALLER
from virtual_clock.service_world import ServiceWorld

HOUR_S = 3600.0


def caller_of(user: str) -> Caller:
    return replace(CALLER, principal=Principal(CALLER.account, "user", user, owner=owner_of_user(user)))


class SharesWorld(ServiceWorld):
    """`lengths_s` has how long the tasks of each user run, by the id of the task."""

    def __init__(self, gpus: int = 8, path: Path | None = None, **users: list[str]) -> None:
        self.lengths_s: dict[str, float] = {}
        self.ends: list[tuple[float, str]] = []
        super().__init__(gpus, path=path)
        for name, groups in users.items():
            self.put_user(name, groups)
        for number in (1, 2, 4, 8):
            container: dict[str, Any] = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6}
            container["resourceRequirements"] = [{"type": "GPU", "value": str(number)}]
            self.call("RegisterTaskDefinition", "ecs", family=f"gpus{number}", containerDefinitions=[container])

    def put_user(self, name: str, groups: list[str]) -> None:
        user = {"UserName": name, "UserId": name, "Path": "/", "Arn": f"arn:aws:iam::1:user/{name}", "_groups": groups}

        def put(tx: Any) -> None:
            tx.store.stored.put("iam", "user", "", name, user, tx.now_s, ROOT)
            for group in groups:
                tx.store.stored.put("iam", "group", "", group, {"GroupName": group, "Path": "/"}, tx.now_s, ROOT)

        self.run(put)

    def limit(self, subject: str, *remove: str, **limits: float) -> None:
        given = {"subject": subject, "limits": limits, "remove": list(remove)}
        self.run(lambda tx: SERVICES["corral"].operations["SetLimits"](tx, given, CALLER))
        self.settle()

    def submit(self, user: str, gpus: int | str = 1, hours: float = 1.0, count: int = 1, **more: Any) -> list[str]:
        """Run tasks of a user without the checks of `run`, which take long in a large world."""
        given = {"taskDefinition": f"gpus{gpus}", "count": count, **more}
        command = Command(lambda tx: SERVICES["ecs"].operations["RunTask"](tx, given, caller_of(user)), lambda answer: None)
        answer = next(answer for each, answer in self.transact([command]).answers if each is command)
        if isinstance(answer, ApiError):
            raise answer
        ids = [each["taskArn"].rpartition("/")[2] for each in answer["tasks"]]
        self.lengths_s |= dict.fromkeys(ids, hours * HOUR_S)
        self.started()
        return ids

    def task(self, task_id: str) -> Task:
        task = self.store.tasks.get(task_id)
        assert task is not None
        return task

    def started(self) -> None:
        """The host starts what it was ordered to start."""
        for (task_id,) in self.store.execute("SELECT id FROM task WHERE state = 'PENDING' ORDER BY rowid").fetchall():
            now_s = self.clock.now_s()
            runs = [Observed(run.attempt_id, 1, now_s, None, None) for run in self.task(task_id).runs]
            self._report(runs)
            heappush(self.ends, (now_s + self.lengths_s[task_id], task_id))

    def end(self, task_id: str) -> None:
        now_s = self.clock.now_s()
        self._report([Observed(run.attempt_id, 1, now_s, now_s, 0) for run in self.task(task_id).runs])
        self.started()

    def _report(self, runs: list[Observed]) -> None:
        self.transact([Command(lambda tx: host_reports.report(tx, "h", runs), lambda answer: None)])

    def next_end(self) -> str:
        """Let time pass until the next task ends. Return this task."""
        at_s, task_id = heappop(self.ends)
        while (due_s := self.store.next_due_s()) is not None and due_s <= at_s:
            self.clock.advance(max(0.0, due_s - self.clock.now_s()) + 1e-6)
            self.transact([])
            self.started()
        self.clock.advance(max(0.0, at_s - self.clock.now_s()))
        self.end(task_id)
        return task_id

    def running(self, user: str) -> int:
        where = "state IN ('PENDING', 'RUNNING') AND owner = ?"
        found = self.store.execute(f"SELECT coalesce(sum(gpus), 0) FROM task WHERE {where}", (owner_of_user(user),)).fetchone()
        return int(found[0])

    def starts(self) -> list[str]:
        """The users of the running tasks, in the order in which they started."""
        rows = self.store.execute("SELECT owner FROM task WHERE state IN ('PENDING', 'RUNNING') ORDER BY placed_at, rowid")
        return [owner.partition("/")[2] for (owner,) in rows.fetchall()]

    def waits(self, task_id: str) -> bool:
        return self.task(task_id).state is TaskState.PROVISIONING

    def reason(self, task_id: str) -> str:
        [found] = self.call("DescribeTasks", "ecs", tasks=[task_id])["tasks"]
        return str(found["containers"][0].get("reason", ""))

    def used(self, user: str) -> float:
        """The decayed use of a user, in GPU-hours."""
        from corral.decide.shares import decay_of, use_at

        use = self.store.owner_uses.use(owner_of_user(user))
        return use_at(use, self.clock.now_s(), decay_of(self.settings.half_life_s)).used / HOUR_S
