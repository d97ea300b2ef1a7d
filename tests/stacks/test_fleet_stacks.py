"""Stacks with Auto Scaling groups, from beginning to end: CreationPolicy, replacing and rolling updates, rollbacks and crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.model.stack import Stack, StackStatus
from stacks.fleet_world import report_tasks
from stacks.stack_world import REGION, World
from virtual_clock.group_world import GPUS_4

OTHER_4 = "g5.12xlarge"  # another type with four GPUs
SIGNALS = {"ResourceSignal": {"Count": 2, "Timeout": "PT10M"}}
REPLACING = {"AutoScalingReplacingUpdate": {"WillReplace": True}}


def launch(type_: Any, cluster: Any) -> dict[str, Any]:
    script = {"Fn::Sub": ["#!/bin/bash\necho ECS_CLUSTER=${Name} >> /etc/ecs/ecs.config\n", {"Name": cluster}]}
    properties = {"ImageId": "ami-1", "InstanceType": type_, "UserData": {"Fn::Base64": script}}
    return {"Type": "AWS::AutoScaling::LaunchConfiguration", "Properties": properties}


def group(configuration: str, **more: Any) -> dict[str, Any]:
    properties = {
        "LaunchConfigurationName": {"Ref": configuration},
        "AvailabilityZones": {"Fn::GetAZs": ""},
        "MinSize": "2",
        "MaxSize": "4",
    }
    return {"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": properties, "CreationPolicy": SIGNALS, **more}


def fleet(cluster: Any = None, **more: Any) -> dict[str, Any]:
    """Two CPU instances and two GPU instances in a cluster."""
    return {
        "Parameters": {"Type": {"Type": "String", "Default": GPUS_4}},
        "Resources": {
            "Cluster": {"Type": "AWS::ECS::Cluster"},
            "CpuLaunch": launch("c5.2xlarge", {"Ref": "Cluster"}),
            "GpuLaunch": launch({"Ref": "Type"}, cluster or {"Ref": "Cluster"}),
            "Cpu": group("CpuLaunch", UpdatePolicy=REPLACING),
            "Gpu": group("GpuLaunch", **{"UpdatePolicy": REPLACING, **more}),
        },
    }


def instances(world: World, logical_id: str) -> dict[str, str]:
    """The instances of a group in service, and their types."""
    name = str(world.row(logical_id).physical_id)
    members = world.store.groups.members(REGION, name)
    return {member.instance_id: member.type for member in members if member.state == "InService"}


def reasons(world: World, stack: Stack, logical_id: str) -> str:
    return "\n".join(reason for _, _, reason in world.events(stack, logical_id))


def leaves_nothing(world: World) -> None:
    assert world.delete().status is StackStatus.DELETE_COMPLETE
    assert (world.running(), world.free_gpus(), world.store.groups.listed(REGION)) == (0, 8, [])
    world.check()


@pytest.mark.parametrize("crashes", [False, True])
def test_a_group_without_room_for_both_is_replaced(tmp_path: Path, crashes: bool) -> None:
    world = World(tmp_path, crashes=lambda number: crashes and number % 3 == 0)
    stack = world.create(fleet())
    assert stack.status is StackStatus.CREATE_COMPLETE
    cpu, gpu = instances(world, "Cpu"), instances(world, "Gpu")
    assert list(gpu.values()) == [GPUS_4] * 2 and world.free_gpus() == 0
    assert reasons(world, stack, "Gpu").count(": it counts as signalled.") == 2
    old = world.row("Gpu").physical_id
    stack = world.update(fleet(), parameters={"Type": OTHER_4})
    assert stack.status is StackStatus.UPDATE_COMPLETE
    assert instances(world, "Cpu") == cpu and list(instances(world, "Gpu").values()) == [OTHER_4] * 2
    assert reasons(world, stack, "Gpu").count(f"The old group {old} is drained first.") == 1
    assert world.statuses(stack, "Cpu")[-1] == "CREATE_COMPLETE", "the update does not touch the other group"
    assert [each.name for each in world.store.groups.listed(REGION)] == [world.row("Cpu").physical_id, world.row("Gpu").physical_id]
    world.check()
    leaves_nothing(world)
    assert bool(world.restarts) == crashes


def test_a_type_that_never_fits_fails_the_update_with_its_reason() -> None:
    world = World()
    world.create(fleet())
    gpu = instances(world, "Gpu")
    stack = world.update(fleet(), parameters={"Type": "p2.16xlarge"})
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    assert "cannot launch an instance: p2.16xlarge needs 16 GPUs" in reasons(world, stack, "Gpu")
    assert instances(world, "Gpu") == gpu, "the old group was not drained"
    world.check()
    leaves_nothing(world)


def test_a_rollback_restores_a_group_that_was_drained() -> None:
    world = World()
    world.create(fleet())
    old = world.row("Gpu").physical_id
    stack = world.update(fleet("missing"), parameters={"Type": OTHER_4})  # the new instances join no cluster
    assert stack.status is StackStatus.UPDATE_IN_PROGRESS
    world.wait(601)
    stack = world.by_id(stack.id)
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    assert "is drained first" in reasons(world, stack, "Gpu")
    assert world.row("Gpu").physical_id == old and list(instances(world, "Gpu").values()) == [GPUS_4] * 2
    world.check()
    leaves_nothing(world)


def rolling(image: str, type_: str = GPUS_4, **policy: Any) -> dict[str, Any]:
    data = {"ImageId": image, "InstanceType": type_}
    version = {"LaunchTemplateId": {"Ref": "Launch"}, "Version": {"Fn::GetAtt": ["Launch", "LatestVersionNumber"]}}
    properties = {"LaunchTemplate": version, "AvailabilityZones": {"Fn::GetAZs": ""}, "MinSize": 2, "MaxSize": 3}
    return {
        "Resources": {
            "Launch": {"Type": "AWS::EC2::LaunchTemplate", "Properties": {"LaunchTemplateData": data}},
            "Gpu": {
                "Type": "AWS::AutoScaling::AutoScalingGroup",
                "Properties": properties,
                "UpdatePolicy": {"AutoScalingRollingUpdate": policy},
            },
        }
    }


def test_a_new_template_version_rolls_the_group() -> None:
    world = World()
    policy = {"MinInstancesInService": 2, "WaitOnResourceSignals": True, "PauseTime": "PT5M"}
    world.create(rolling("ami-1", **policy))
    before, name = instances(world, "Gpu"), world.row("Gpu").physical_id
    stack = world.update(rolling("ami-2", **policy))
    assert stack.status is StackStatus.UPDATE_COMPLETE and world.row("Gpu").physical_id == name
    after = instances(world, "Gpu")
    assert len(after) == 2 and not after.keys() & before.keys()
    told = reasons(world, stack, "Gpu")
    assert "Rolling update initiated. Terminating 2 obsolete instance(s)" in told and "no room for 1 more instance(s)" in told
    world.check()
    stack = world.update(rolling("ami-3", "p2.16xlarge", **policy))
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    assert "needs 16 GPUs" in reasons(world, stack, "Gpu")
    assert list(instances(world, "Gpu").values()) == [GPUS_4] * 2
    world.check()
    leaves_nothing(world)


def test_an_instance_signals_when_its_cluster_exists() -> None:
    world = World()
    script = {"Fn::Base64": "#!/bin/bash\necho ECS_CLUSTER=later >> /etc/ecs/ecs.config\n"}
    properties = {"ImageId": "ami-1", "InstanceType": GPUS_4, "UserData": script}
    one = {"Type": "AWS::EC2::Instance", "Properties": properties, "CreationPolicy": {"ResourceSignal": {"Timeout": "PT1M"}}}
    stack = world.create({"Resources": {"One": one}})
    assert stack.status is StackStatus.CREATE_IN_PROGRESS
    world.call("ecs", "CreateCluster", clusterName="later")
    world.settle()
    stack = world.by_id(stack.id)
    assert stack.status is StackStatus.CREATE_COMPLETE
    assert "joined cluster later: it counts as signalled." in reasons(world, stack, "One")
    leaves_nothing(world)


def test_deleting_a_stack_stops_the_tasks_of_its_capacity_provider() -> None:
    world = World()
    template = fleet()
    provider = {"AutoScalingGroupProvider": {"AutoScalingGroupArn": {"Fn::GetAtt": ["Gpu", "AutoScalingGroupARN"]}}}
    strategy = [{"CapacityProvider": {"Ref": "Provider"}, "Weight": 1}]
    associated = {"Cluster": {"Ref": "Cluster"}, "CapacityProviders": [{"Ref": "Provider"}]}
    container = {
        "Name": "a",
        "Image": "busybox",
        "Memory": 64,
        "Command": ["true"],
        "ResourceRequirements": [{"Type": "GPU", "Value": "8"}],
    }
    template["Resources"] |= {
        "Provider": {"Type": "AWS::ECS::CapacityProvider", "Properties": provider},
        "Associations": {
            "Type": "AWS::ECS::ClusterCapacityProviderAssociations",
            "Properties": {**associated, "DefaultCapacityProviderStrategy": strategy},
        },
        "Task": {"Type": "AWS::ECS::TaskDefinition", "Properties": {"ContainerDefinitions": [container]}},
    }
    assert world.create(template).status is StackStatus.CREATE_COMPLETE
    cluster, definition = world.row("Cluster").physical_id, world.row("Task").physical_id
    (started,) = world.call("ecs", "RunTask", cluster=cluster, taskDefinition=definition)["tasks"]
    assert started["lastStatus"] == "PROVISIONING", "no instance has eight GPUs, so the task waits"
    leaves_nothing(world)
    task = world.store.tasks.get(started["taskArn"].rpartition("/")[2])
    assert task is not None and (task.state.value, task.stopped_reason) == ("STOPPED", "The stack s is deleted")


def provided(*, protection: bool) -> dict[str, Any]:
    """A service whose capacity provider scales a group that is empty at first."""
    properties = group("Launch")["Properties"] | {"MinSize": "0", "MaxSize": "2", "NewInstancesProtectedFromScaleIn": protection}
    settings = {
        "AutoScalingGroupArn": {"Ref": "Group"},
        "ManagedScaling": {"Status": "ENABLED", "TargetCapacity": 100},
        "ManagedTerminationProtection": "ENABLED" if protection else "DISABLED",
    }
    associated = {
        "Cluster": {"Ref": "Cluster"},
        "CapacityProviders": [{"Ref": "Provider"}],
        "DefaultCapacityProviderStrategy": [{"CapacityProvider": {"Ref": "Provider"}, "Weight": 1}],
    }
    container = {"Name": "a", "Image": "corral/host", "Memory": 6, "Command": ["sleep"]}
    gpus = {**container, "ResourceRequirements": [{"Type": "GPU", "Value": "4"}]}
    service = {"Cluster": {"Ref": "Cluster"}, "TaskDefinition": {"Ref": "Task"}, "DesiredCount": 2}
    service["CapacityProviderStrategy"] = associated["DefaultCapacityProviderStrategy"]
    return {
        "Resources": {
            "Cluster": {"Type": "AWS::ECS::Cluster"},
            "Launch": launch(GPUS_4, {"Ref": "Cluster"}),
            "Group": {"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": properties},
            "Provider": {
                "Type": "AWS::ECS::CapacityProvider",
                "Properties": {"AutoScalingGroupProvider": settings},
            },
            "Associations": {"Type": "AWS::ECS::ClusterCapacityProviderAssociations", "Properties": associated},
            "Task": {"Type": "AWS::ECS::TaskDefinition", "Properties": {"ContainerDefinitions": [gpus]}},
            "Service": {"Type": "AWS::ECS::Service", "Properties": service, "DependsOn": ["Associations"]},
        },
    }


@pytest.mark.parametrize("protection", [False, True])
def test_a_capacity_provider_of_a_stack_launches_the_instances_of_its_service(protection: bool) -> None:
    world = World()
    assert world.create(provided(protection=protection)).status is StackStatus.CREATE_IN_PROGRESS
    assert len(instances(world, "Group")) == 2 and world.free_gpus() == 0
    for _ in range(3):
        report_tasks(world)
    assert world.stack().status is StackStatus.CREATE_COMPLETE
    stack = world.delete()
    for _ in range(4):
        report_tasks(world)
    assert world.by_id(stack.id).status is StackStatus.DELETE_COMPLETE, world.events(stack)
    assert (world.running(), world.free_gpus(), world.store.groups.listed(REGION)) == (0, 8, [])
    world.check()


def test_a_service_follows_the_capacity_providers_of_its_cluster_without_a_declared_dependency() -> None:
    """CDK declares none, although ECS refuses to create the service first, and to remove the providers first."""
    world = World()
    template = fleet()
    provider = {"AutoScalingGroupProvider": {"AutoScalingGroupArn": {"Ref": "Gpu"}}}
    strategy = [{"CapacityProvider": {"Ref": "Provider"}, "Weight": 1}]
    associated = {"Cluster": {"Ref": "Cluster"}, "CapacityProviders": [{"Ref": "Provider"}], "DefaultCapacityProviderStrategy": []}
    container = {"Name": "a", "Image": "corral/host", "Memory": 6, "Command": ["sleep"]}
    service = {"Cluster": {"Ref": "Cluster"}, "TaskDefinition": {"Ref": "Task"}, "CapacityProviderStrategy": strategy}
    template["Resources"] |= {
        "Task": {"Type": "AWS::ECS::TaskDefinition", "Properties": {"ContainerDefinitions": [container]}},
        "Provider": {"Type": "AWS::ECS::CapacityProvider", "Properties": provider},
        "AService": {"Type": "AWS::ECS::Service", "Properties": service},
        "Associations": {"Type": "AWS::ECS::ClusterCapacityProviderAssociations", "Properties": associated},
    }
    assert world.create(template).status is StackStatus.CREATE_IN_PROGRESS
    for _ in range(3):
        report_tasks(world)
    assert world.stack().status is StackStatus.CREATE_COMPLETE
    stack = world.delete()
    for _ in range(3):
        report_tasks(world)
    assert world.by_id(stack.id).status is StackStatus.DELETE_COMPLETE, world.events(stack)
    assert (world.running(), world.store.groups.listed(REGION)) == (0, [])
    world.check()


def test_deleting_a_stack_waits_until_its_tasks_have_stopped() -> None:
    world = World()
    template = fleet()
    container = {"Name": "a", "Image": "corral/host", "Memory": 6, "Command": ["sleep"]}
    gpu = {**container, "ResourceRequirements": [{"Type": "GPU", "Value": "4"}]}
    service = {"Cluster": {"Ref": "Cluster"}, "TaskDefinition": {"Ref": "Web"}, "DesiredCount": 2}
    template["Resources"] |= {
        "Web": {"Type": "AWS::ECS::TaskDefinition", "Properties": {"ContainerDefinitions": [container]}},
        "Task": {"Type": "AWS::ECS::TaskDefinition", "Properties": {"ContainerDefinitions": [gpu]}},
        "Service": {"Type": "AWS::ECS::Service", "Properties": service},
    }
    assert world.create(template).status is StackStatus.CREATE_IN_PROGRESS
    for _ in range(3):
        report_tasks(world)
    assert world.stack().status is StackStatus.CREATE_COMPLETE
    cluster, definition = world.row("Cluster").physical_id, world.row("Task").physical_id
    assert len(world.call("ecs", "RunTask", cluster=cluster, taskDefinition=definition, count=2)["tasks"]) == 2
    report_tasks(world)
    stack = world.delete()
    assert stack.status is StackStatus.DELETE_IN_PROGRESS and world.free_gpus() == 0, "the tasks still hold the GPUs"
    for _ in range(3):
        report_tasks(world)
    assert world.by_id(stack.id).status is StackStatus.DELETE_COMPLETE, world.events(stack)
    assert (world.running(), world.free_gpus(), world.store.groups.listed(REGION)) == (0, 8, [])
    world.check()
