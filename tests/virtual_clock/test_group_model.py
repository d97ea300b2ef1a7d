"""Random requests to groups on one machine: whatever happens, they reach their desired capacity, or an activity says why not."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from corral.core.errors import ApiError
from corral.model.instance import InstanceState
from examples import examples
from virtual_clock.group_world import GPUS_1, GPUS_4, GPUS_8, GroupWorld

NAMES = ("a", "b")
names = st.sampled_from(NAMES)
HOOKS = {"launch": "autoscaling:EC2_INSTANCE_LAUNCHING", "end": "autoscaling:EC2_INSTANCE_TERMINATING"}
REFUSALS = {"ValidationError", "ScalingActivityInProgressFault", "ResourceInUseFault", "InstanceRefreshInProgressFault",
            "ActiveInstanceRefreshNotFoundFault"}  # fmt: skip


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld(gpus=6)
        for name, type_ in (("one", GPUS_1), ("four", GPUS_4), ("eight", GPUS_8)):
            self.world.configuration(name, type_)
        for name in NAMES:
            self.world.group(name, LaunchConfigurationName="one")

    def ask(self, operation: str, **params: Any) -> None:
        """A request that may be refused, but never fails."""
        try:
            self.world.call(operation, **params)
        except ApiError as error:
            assert error.code in REFUSALS, error

    def some(self, name: str, number: int) -> list[str]:
        ids = self.world.ids(name)
        return [ids[number % len(ids)]] if ids else []

    @rule(name=names, desired=st.integers(0, 6))
    def desire(self, name: str, desired: int) -> None:
        self.ask("SetDesiredCapacity", AutoScalingGroupName=name, DesiredCapacity=desired)

    @rule(name=names, source=st.sampled_from(["one", "one", "four", "eight"]))
    def change_source(self, name: str, source: str) -> None:
        self.ask("UpdateAutoScalingGroup", AutoScalingGroupName=name, LaunchConfigurationName=source)

    @rule(name=names, number=st.integers(0, 9))
    def die(self, name: str, number: int) -> None:
        for instance_id in self.some(name, number):
            self.world.kill(instance_id)

    @rule(
        name=names,
        number=st.integers(0, 9),
        decrement=st.booleans(),
        how=st.sampled_from(["TerminateInstanceInAutoScalingGroup", "DetachInstances", "EnterStandby"]),
    )
    def take_out(self, name: str, number: int, decrement: bool, how: str) -> None:
        for instance_id in self.some(name, number):
            self.ask(how, AutoScalingGroupName=name, InstanceIds=[instance_id], ShouldDecrementDesiredCapacity=decrement)

    @rule(name=names, number=st.integers(0, 9))
    def bring_back(self, name: str, number: int) -> None:
        for instance_id in self.some(name, number):
            self.ask("ExitStandby", AutoScalingGroupName=name, InstanceIds=[instance_id])

    @rule(name=names, number=st.integers(0, 9), protected=st.booleans())
    def protect(self, name: str, number: int, protected: bool) -> None:
        for instance_id in self.some(name, number):
            self.ask("SetInstanceProtection", AutoScalingGroupName=name, InstanceIds=[instance_id], ProtectedFromScaleIn=protected)

    @rule(name=names, number=st.integers(0, 9), status=st.sampled_from(["Healthy", "Unhealthy"]))
    def judge(self, name: str, number: int, status: str) -> None:
        for instance_id in self.some(name, number):
            self.ask("SetInstanceHealth", InstanceId=instance_id, HealthStatus=status)

    @rule(name=names, hook=st.sampled_from(list(HOOKS)), result=st.sampled_from(["CONTINUE", "ABANDON"]))
    def put_hook(self, name: str, hook: str, result: str) -> None:
        self.ask(
            "PutLifecycleHook", AutoScalingGroupName=name, LifecycleHookName=hook, LifecycleTransition=HOOKS[hook],
            HeartbeatTimeout=60, DefaultResult=result,
        )  # fmt: skip

    @rule(name=names, number=st.integers(0, 9), hook=st.sampled_from(list(HOOKS)), result=st.sampled_from(["CONTINUE", "ABANDON"]))
    def complete(self, name: str, number: int, hook: str, result: str) -> None:
        for instance_id in self.some(name, number):
            self.ask(
                "CompleteLifecycleAction", AutoScalingGroupName=name, LifecycleHookName=hook, InstanceId=instance_id,
                LifecycleActionResult=result,
            )  # fmt: skip

    @rule(name=names, least=st.sampled_from([0, 50, 100]))
    def refresh(self, name: str, least: int) -> None:
        self.ask(
            "StartInstanceRefresh", AutoScalingGroupName=name, Preferences={"MinHealthyPercentage": least, "InstanceWarmup": 5}
        )

    @rule(name=names)
    def cancel(self, name: str) -> None:
        self.ask("CancelInstanceRefresh", AutoScalingGroupName=name)

    @rule(name=names, process=st.sampled_from(["Launch", "Terminate", "HealthCheck", "ReplaceUnhealthy"]), suspend=st.booleans())
    def suspend(self, name: str, process: str, suspend: bool) -> None:
        self.ask("SuspendProcesses" if suspend else "ResumeProcesses", AutoScalingGroupName=name, ScalingProcesses=[process])

    @rule(seconds=st.sampled_from([1, 20, 61, 700]))
    def wait(self, seconds: int) -> None:
        self.world.wait(seconds)

    @rule(name=names)
    def delete_and_create(self, name: str) -> None:
        self.ask("DeleteAutoScalingGroup", AutoScalingGroupName=name, ForceDelete=True)
        self.world.settle()
        self.world.group(name, LaunchConfigurationName="one")

    @invariant()
    def members_are_the_instances_of_groups(self) -> None:
        store = self.world.store
        alive = {each.id: each.group for each in store.instances.all() if each.group and each.state is not InstanceState.TERMINATED}
        members = {each.instance_id: each.group for name in NAMES for each in store.groups.members("us-east-1", name)}
        assert alive.items() <= members.items(), "an instance that no group knows"
        owners = store.execute("SELECT instance_id, count(*) FROM gpu GROUP BY instance_id").fetchall()
        assert sum(count for _, count in owners) == 6

    def teardown(self) -> None:
        """Without obstacles, both groups come to rest: at their desired capacity, or with the reason why not."""
        world = self.world
        for name in NAMES:
            self.ask("ResumeProcesses", AutoScalingGroupName=name)
            for hook in HOOKS:
                self.ask("DeleteLifecycleHook", AutoScalingGroupName=name, LifecycleHookName=hook)
            ids = world.ids(name)
            for instance_id in ids:
                self.ask("SetInstanceProtection", AutoScalingGroupName=name, InstanceIds=[instance_id], ProtectedFromScaleIn=False)
        world.wait(2000)
        for name in NAMES:
            group = world.shown(name)
            states = [each["LifecycleState"] for each in group["Instances"]]
            assert set(states) <= {"InService", "Pending", "Standby"}, states
            found = world.activities(name)
            waits = sum(each["StatusCode"] == "WaitingForInstanceId" for each in found)
            assert states.count("Pending") == waits
            counted = states.count("InService") + states.count("Pending")
            assert counted == group["DesiredCapacity"] or (
                counted < group["DesiredCapacity"] and found[waits]["StatusCode"] == "Failed"
            )
        free = world.store.execute(
            "SELECT count(*) FROM gpu JOIN instance ON instance.id = instance_id WHERE region = ''"
        ).fetchone()[0]
        pending = [each.gpus for each in world.store.instances.all() if each.state is InstanceState.PENDING]
        assert not pending or min(pending) > free or pending[0] > free, "a launch waits although its GPUs are free"
        world.store.close()


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=examples(60, usual=30), stateful_step_count=30, deadline=None)
