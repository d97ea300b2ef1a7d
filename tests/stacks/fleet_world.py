"""Resource types of a stack on a virtual clock: it calls the functions of the types as the engine of stacks does."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from corral.model.run import Observed
from corral.services.ecs import host_reports
from corral.template_types.lookup import template_type
from corral.template_types.resource_types import ResourceStep, TemplateType, Waiting
from virtual_clock.group_world import CALLER, GroupWorld

TAGS = {"aws:cloudformation:stack-name": "s", "aws:cloudformation:logical-id": "It"}
CLUSTER_DATA = b64encode(b"#!/bin/bash\necho ECS_CLUSTER=c >> /etc/ecs/ecs.config\n").decode()
SIGNAL = {"ResourceSignal": {"Timeout": "PT5M"}}


def report_tasks(world: Any, *, exit_code: int | None = None) -> None:
    """The host starts its tasks, and ends those that are stopping. With `exit_code`, new tasks end at once."""
    where = "state = 'PENDING' OR (state = 'RUNNING' AND desired = 'STOPPED')"
    for (task_id,) in world.store.execute(f"SELECT id FROM task WHERE {where} ORDER BY rowid").fetchall():
        task, now_s = world.store.tasks.get(task_id), world.clock.now_s()
        code = 0 if task.desired.value == "STOPPED" else exit_code
        ended_s = now_s if code is not None else None
        runs = [Observed(run.attempt_id, 1, task.started_at_s or now_s, ended_s, code) for run in task.runs]
        world.run(lambda tx, runs=runs: host_reports.report(tx, "h", runs))
    world.settle()


def type_named(name: str) -> TemplateType:
    found = template_type(name)
    assert found is not None
    return found


class FleetWorld(GroupWorld):
    def create(self, name: str, **properties: Any) -> str:
        identity = self.run(lambda tx: type_named(name).create(tx, CALLER, {"_tags": TAGS, **properties}))
        self.settle()
        return str(identity)

    def update(self, name: str, identity: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        self.run(lambda tx: type_named(name).update(tx, CALLER, identity, old, new))
        self.settle()

    def delete(self, name: str, identity: str, **properties: Any) -> None:
        self.run(lambda tx: type_named(name).delete(tx, CALLER, identity, properties))
        self.settle()

    def attributes(self, name: str, identity: str) -> dict[str, Any]:
        found: dict[str, Any] = self.run(lambda tx: type_named(name).attributes(tx, CALLER, identity))
        return found

    def step(self, identity: str, action: str = "CREATE", **more: Any) -> ResourceStep:
        more = {"properties": {}, "started_s": self.clock.now_s(), **more}
        return ResourceStep("arn:s", "s", "It", identity, action, **more)

    def settled(self, name: str, step: ResourceStep) -> Waiting | None:
        """Call `settled` once, and then run everything that is due."""
        check = type_named(name).settled
        assert check is not None
        found: Waiting | None = self.run(lambda tx: check(tx, CALLER, step))
        self.settle()
        return found

    def gone(self, name: str, step: ResourceStep) -> Waiting | None:
        check = type_named(name).gone
        assert check is not None
        found: Waiting | None = self.run(lambda tx: check(tx, CALLER, step))
        self.settle()
        return found

    def until_settled(self, name: str, step: ResourceStep, most: int = 50) -> None:
        """Call `settled` until it returns None. If nothing changes, the time advances to the time that it waits for."""
        for _ in range(most):
            waits = self.settled(name, step)
            if waits is None:
                return
            if waits.until_s is not None and waits.until_s > self.clock.now_s():
                self.wait(waits.until_s - self.clock.now_s())
        raise AssertionError(f"the step is not settled: {waits}")
