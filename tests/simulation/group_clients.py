"""Clients of Auto Scaling groups: they create, scale, refresh and delete groups, and end their instances."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from corral.core.transactions import Tx
from corral.fleet import instances
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.group import Group, GroupMember, LifecycleState
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.store import Store
from simulation.clients import CALLER, FLEET

if TYPE_CHECKING:
    from simulation.world import World

NAMES = ("g0", "g1")
CONFIGURATIONS = {  # launch configuration → instance type
    "none": "m5.large",
    "one": "g5.xlarge",
    "two": "g3.8xlarge",
    "four": "p3.8xlarge",
    "never": "p2.16xlarge",  # 16 GPUs: more than any host here has
}
USUAL = ("none", "one", "one", "two", "four")
HOOK = "hook"
ZONES = ["us-east-1a", "us-east-1b"]


class GroupClients:
    def __init__(self, world: World) -> None:
        self.world = world
        self._ends: set[str] | None = None  # names of groups that are deleted when the faults end
        self._all_end = False

    def begin(self) -> None:
        for name, type_ in CONFIGURATIONS.items():
            cluster = self.world.rng.choice((FLEET, FLEET, DEFAULT_CLUSTER))
            user_data = b64encode(f"#!/bin/bash\necho ECS_CLUSTER={cluster} >> /etc/ecs/ecs.config\n".encode()).decode()
            params = {"LaunchConfigurationName": name, "ImageId": "ami-1", "InstanceType": type_, "UserData": user_data}
            self._ask("CreateLaunchConfiguration", params, again=True)

    def something(self) -> None:
        """One random request."""
        rng = self.world.rng
        dice, name = rng.random(), {"AutoScalingGroupName": rng.choice(NAMES)}
        if dice < 0.25:
            self._create(name)
        elif dice < 0.45:
            self._ask("SetDesiredCapacity", {**name, "DesiredCapacity": rng.randint(0, 4)})
        elif dice < 0.55:
            self._update(name)
        elif dice < 0.62:
            self._ask("DeleteAutoScalingGroup", {**name, "ForceDelete": rng.random() < 0.8})
        elif dice < 0.70:
            wishes = {"MinHealthyPercentage": rng.choice((0, 50, 90)), "InstanceWarmup": rng.choice((0, 5))}
            self._ask("StartInstanceRefresh", {**name, "Preferences": wishes})
        elif dice < 0.75:
            self._put_hook(name)
        else:
            self._change_a_member()

    def calm(self) -> None:
        """Delete some groups, and remove what would keep the others from settling. Called again and again after the faults."""
        if self._ends is None:
            self._ends = {name for name in NAMES if self.world.rng.random() < 0.4}
        for group in self.groups():
            name = {"AutoScalingGroupName": group.name}
            if group.status or self._all_end or group.name in self._ends:
                self._ask("DeleteAutoScalingGroup", {**name, "ForceDelete": True}, again=False)
                continue
            if self.world.plane.store.groups.active_refresh(group.region, group.name) is not None:
                self._ask("CancelInstanceRefresh", name, again=False)
            self._ask("DeleteLifecycleHook", {**name, "LifecycleHookName": HOOK}, again=False)

    def delete_all(self) -> None:
        self._all_end = True

    def groups(self) -> list[Group]:
        return self.world.plane.store.groups.listed(CALLER.region) if self.world.plan.with_groups else []

    def members(self) -> list[GroupMember]:
        store = self.world.plane.store
        return [member for group in self.groups() for member in store.groups.members(group.region, group.name)]

    def unsettled(self) -> list[str]:
        """Groups and members that something has still to happen with, and that is not a launch that waits for GPUs."""
        store, dead = self.world.plane.store, {host.id for host in self.world.hosts if host.dead}
        found: list[str] = []
        for member in self.members():
            instance = store.instances.get(member.instance_id)
            on_dead = instance is not None and instance.host_id in dead
            waits = instance is not None and instance.state is InstanceState.PENDING
            match member.state:
                case LifecycleState.IN_SERVICE:
                    moving = on_dead or bool(member.unhealthy)
                case LifecycleState.PENDING:
                    moving = not waits
                case LifecycleState.STANDBY:
                    moving = False
                case _:
                    moving = not on_dead
            found += [f"{member.group} {member.instance_id} {member.state}"] if moving else []
        ends = [group.name for group in self.groups() if group.status or self._ends is None or group.name in self._ends]
        return found + [name for name in ends if not self._is_held(name, dead)]

    def _is_held(self, name: str, dead: set[str]) -> bool:
        """Whether a group that is deleted keeps instances of hosts that died."""
        found = [self._instance(member) for member in self.members() if member.group == name]
        return bool(found) and all(instance is not None and instance.host_id in dead for instance in found)

    def left(self) -> list[str]:
        """Groups that could still be deleted."""
        dead = {host.id for host in self.world.hosts if host.dead}
        return [group.name for group in self.groups() if not self._is_held(group.name, dead)]

    def _instance(self, member: GroupMember) -> Instance | None:
        return self.world.plane.store.instances.get(member.instance_id)

    def _ask(self, operation: str, params: dict[str, Any], again: bool | None = None) -> None:
        again = self.world.rng.random() < 0.7 if again is None else again
        self.world.clients.ask(operation, params, service="autoscaling", again=again)

    def _create(self, name: dict[str, str]) -> None:
        rng = self.world.rng
        params: dict[str, Any] = {
            **name,
            "LaunchConfigurationName": rng.choice((*USUAL, *USUAL, "never")),
            "MinSize": rng.choice((0, 0, 1)),
            "MaxSize": 4,
            "DesiredCapacity": rng.randint(1, 3),
            "AvailabilityZones": ZONES[: rng.randint(1, 2)],
            "NewInstancesProtectedFromScaleIn": rng.random() < 0.15,
        }
        if rng.random() < 0.2:
            params["LifecycleHookSpecificationList"] = [self._hook()]
        self._ask("CreateAutoScalingGroup", params)

    def _update(self, name: dict[str, str]) -> None:
        rng = self.world.rng
        params: dict[str, Any] = {**name}
        if rng.random() < 0.6:
            params["LaunchConfigurationName"] = rng.choice((*USUAL, "never"))
        if rng.random() < 0.5:
            params["MinSize"] = rng.randint(0, 2)
            params["MaxSize"] = params["MinSize"] + rng.randint(1, 3)
        self._ask("UpdateAutoScalingGroup", params)

    def _hook(self) -> dict[str, Any]:
        rng = self.world.rng
        transition = rng.choice(("autoscaling:EC2_INSTANCE_LAUNCHING", "autoscaling:EC2_INSTANCE_TERMINATING"))
        return {
            "LifecycleHookName": HOOK,
            "LifecycleTransition": transition,
            "HeartbeatTimeout": 30,
            "DefaultResult": rng.choice(("CONTINUE", "ABANDON")),
        }

    def _put_hook(self, name: dict[str, str]) -> None:
        if self.world.rng.random() < 0.7:
            self._ask("PutLifecycleHook", {**name, **self._hook()})
        else:
            self._ask("DeleteLifecycleHook", {**name, "LifecycleHookName": HOOK})

    def _change_a_member(self) -> None:
        rng = self.world.rng
        members = self.members() if self.world.plane.up else []
        if not members:
            return
        member = rng.choice(members)
        instance_id, name = ec2_id(member.instance_id), {"AutoScalingGroupName": member.group}
        match rng.choice(("terminate", "end", "end", "stop", "unhealthy", "protect", "standby", "return", "detach", "complete")):
            case "terminate":
                params: dict[str, Any] = {"InstanceId": instance_id, "ShouldDecrementDesiredCapacity": rng.random() < 0.5}
                self._ask("TerminateInstanceInAutoScalingGroup", params)
            case "end":
                self.world.clients.terminate(member.instance_id)
            case "stop":
                self._stop(member.instance_id)
            case "unhealthy":
                self._ask("SetInstanceHealth", {"InstanceId": instance_id, "HealthStatus": "Unhealthy"})
            case "protect":
                params = {**name, "InstanceIds": [instance_id], "ProtectedFromScaleIn": rng.random() < 0.6}
                self._ask("SetInstanceProtection", params)
            case "standby":
                params = {**name, "InstanceIds": [instance_id], "ShouldDecrementDesiredCapacity": rng.random() < 0.5}
                self._ask("EnterStandby", params, again=False)
            case "return":
                self._ask("ExitStandby", {**name, "InstanceIds": [instance_id]}, again=False)
            case "detach":
                params = {**name, "InstanceIds": [instance_id], "ShouldDecrementDesiredCapacity": rng.random() < 0.5}
                self._ask("DetachInstances", params, again=False)
            case "complete":
                result = rng.choice(("CONTINUE", "ABANDON"))
                params = {**name, "LifecycleHookName": HOOK, "InstanceId": instance_id, "LifecycleActionResult": result}
                self._ask("CompleteLifecycleAction", params, again=False)

    def _stop(self, instance_id: str) -> None:
        def stop(tx: Tx[Store]) -> None:
            instance = tx.store.instances.get(instance_id)
            if instance is not None:
                instances.stop(tx, instance, "a client stopped it")

        if self.world.plane.up:
            self.world.plane.submit(stop)
