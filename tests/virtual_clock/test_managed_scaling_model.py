"""Random tasks on a capacity provider: whatever happens, its group has the instances that the tasks need, and no more."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from corral.core.errors import ApiError
from corral.model.group import LifecycleState
from examples import examples
from memory_files import MEMORY
from virtual_clock.group_world import GPUS_1, GPUS_4, REGION
from virtual_clock.provider_world import DELAY_S, FLEET, ProviderWorld

MIN_SIZE, MAX_SIZE, GPUS = 1, 4, 6
UNFINISHED = "state != 'STOPPED'"


class ManagedScaling(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp(dir=MEMORY))
        self.killed: set[str] = set()  # instances that a client has terminated
        self.peak = 0  # the most tasks that were unfinished at the same time, since the group last had its minimum size
        self.wishes = MIN_SIZE  # the largest desired capacity that a client has set since then

    @initialize(protection=st.booleans(), type_=st.sampled_from([GPUS_1, GPUS_4]), step=st.sampled_from([1, 2, 10_000]))
    def begin(self, protection: bool, type_: str, step: int) -> None:
        scaling = {"maximumScalingStepSize": step, "instanceWarmupPeriod": 30}
        self.protection = protection
        self.world = ProviderWorld(
            GPUS, scaling, self.folder / "state.db", type_=type_, protection=protection, MinSize=MIN_SIZE, desired=MIN_SIZE,
            most=MAX_SIZE,
        )  # fmt: skip
        self.world.family("light")
        self.world.family("huge", gpus=GPUS)  # no instance is so large
        self.world.family("agent")
        agent = {"serviceName": "agents", "taskDefinition": "agent", "schedulingStrategy": "DAEMON"}
        self.world.call("CreateService", "ecs", cluster=FLEET, **agent)

    def others(self, where: str) -> int:
        """Count the tasks that are not daemon tasks."""
        return self.world.count(f"task_group != 'service:agents' AND {where}")

    def task_ids(self, where: str) -> list[str]:
        sql = f"SELECT id FROM task WHERE task_group != 'service:agents' AND {where} ORDER BY rowid"
        return [row[0] for row in self.world.store.execute(sql)]

    def ask(self, operation: str, service: str = "autoscaling", /, **params: Any) -> None:
        """A request that may be refused, but never fails."""
        try:
            self.world.call(operation, service, **params)
        except ApiError as error:
            assert error.code in {"ValidationError", "InstanceRefreshInProgressFault", "ScalingActivityInProgressFault"}, error

    @rule(count=st.integers(1, 5), family=st.sampled_from(["one", "one", "light", "huge"]), strategy=st.booleans())
    def run_tasks(self, count: int, family: str, strategy: bool) -> None:
        more = {"placementStrategy": [{"type": "spread", "field": "instanceId"}]} if strategy else {}
        self.world.tasks(count, family, settle=False, **more)

    @rule(number=st.integers(0, 9), count=st.integers(1, 4))
    def end_tasks(self, number: int, count: int) -> None:
        found = self.task_ids(UNFINISHED)
        for task_id in found[number % max(1, len(found)) :][:count]:
            self.ask("StopTask", "ecs", cluster=FLEET, task=task_id)

    @rule()
    def report(self) -> None:
        self.world.report()

    @rule(seconds=st.sampled_from([1, 31, 200, DELAY_S + 1]))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule(number=st.integers(0, 9))
    def kill(self, number: int) -> None:
        ids = self.world.ids()
        if ids:
            self.killed.add(ids[number % len(ids)])
            self.world.kill(ids[number % len(ids)])

    @rule(desired=st.integers(MIN_SIZE, MAX_SIZE))
    def desire(self, desired: int) -> None:
        self.wishes = max(self.wishes, desired)
        self.ask("SetDesiredCapacity", AutoScalingGroupName="g", DesiredCapacity=desired)

    @rule()
    def refresh(self) -> None:
        self.ask("StartInstanceRefresh", AutoScalingGroupName="g", Preferences={"MinHealthyPercentage": 0, "InstanceWarmup": 5})

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @invariant()
    def no_more_instances_than_needed(self) -> None:
        group = self.world.store.groups.get(REGION, "g")
        assert group is not None and MIN_SIZE <= group.desired <= MAX_SIZE
        self.peak = max(self.peak, self.others(UNFINISHED))
        assert group.desired <= max(self.peak, self.wishes, MIN_SIZE)
        if group.desired == MIN_SIZE:
            self.peak, self.wishes = self.others(UNFINISHED), MIN_SIZE

    @invariant()
    def no_task_loses_its_instance(self) -> None:
        """With protection and draining, only a client can take the instance of a task."""
        sql = "SELECT id, instance_id FROM task WHERE stop_code = 'TerminationNotice' AND task_group != 'service:agents'"
        for task_id, instance_id in self.world.store.execute(sql).fetchall():
            assert f"i-{instance_id[:17]}" in self.killed, f"task {task_id} has lost its instance"

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for task_id in self.task_ids("family = 'huge' AND state = 'PROVISIONING'"):
            assert "cannot help: the task needs 6 GPUs" in world.reason(task_id)
            world.call("StopTask", "ecs", cluster=FLEET, task=task_id)
        for _ in range(100):  # every task runs, and ends after a while
            world.report()
            world.wait(40)
            if not self.others(UNFINISHED):
                break
            world.stop(*self.task_ids("state = 'RUNNING' AND desired = 'RUNNING'"))
        assert self.others(UNFINISHED) == 0, "a task that could run has not run"
        world.wait(DELAY_S + 1)
        for _ in range(3):
            world.report()
            world.wait(60)
        members = world.store.groups.members(REGION, "g")
        assert [member.state for member in members] == [LifecycleState.IN_SERVICE] * MIN_SIZE
        assert world.shape() == (MIN_SIZE, MIN_SIZE)
        world.store.close()
        rmtree(self.folder)


TestManagedScaling = ManagedScaling.TestCase
TestManagedScaling.settings = settings(max_examples=examples(30, usual=15), stateful_step_count=20, deadline=None)
