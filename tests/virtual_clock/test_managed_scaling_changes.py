"""Managed scaling follows changes of the launch source, the machine and the capacity provider while tasks wait."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from corral.model.instance import TypeMapping
from corral.services.ecs import host_reports
from store.rows import hello
from virtual_clock.group_world import GPUS_1, GPUS_4, GPUS_8
from virtual_clock.provider_world import DELAY_S, ProviderWorld
from virtual_clock.service_world import USER_DATA

ATTRIBUTES = (
    "#!/bin/bash\n"
    "echo ECS_CLUSTER=fleet >> /etc/ecs/ecs.config\n"
    """echo ECS_INSTANCE_ATTRIBUTES='{"stack": "a"}' >> /etc/ecs/ecs.config\n"""
)


def member_of(expression: str) -> list[dict[str, str]]:
    return [{"type": "memberOf", "expression": expression}]


def update(world: ProviderWorld, **settings: Any) -> None:
    world.call("UpdateCapacityProvider", "ecs", name="gpus", autoScalingGroupProvider=settings)
    world.settle()


# Launches that wait for GPUs


@pytest.mark.parametrize("expression", ["attribute:stack == a", "attribute:ecs.instance-type == g5.xlarge"])
def test_a_launch_that_waits_for_gpus_is_not_asked_for_again(expression: str) -> None:
    world = ProviderWorld(gpus=1)
    [running] = world.tasks()
    world.configuration("attributes", GPUS_1, UserData=b64encode(ATTRIBUTES.encode()).decode())
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", LaunchConfigurationName="attributes")
    [waiting] = world.tasks(1, placementConstraints=member_of(expression))
    world.wait(60)
    assert world.shape() == (2, 1)
    world.kill(world.placed_on(running))
    world.report()
    world.report()
    assert world.states_of(waiting) == ["RUNNING"]


def test_a_new_instance_has_the_gpu_model_of_gpus_that_other_instances_own() -> None:
    world = ProviderWorld(gpus=1)
    [host] = world.call("ListContainerInstances", "ecs", cluster="default")["containerInstanceArns"]
    found = world.call("DescribeContainerInstances", "ecs", cluster="default", containerInstances=[host])["containerInstances"]
    [model] = [each["value"] for each in found[0]["attributes"] if each["name"] == "corral.gpu-model"]
    world.tasks()
    world.tasks(1, placementConstraints=member_of(f"attribute:corral.gpu-model == {model}"))
    assert model and world.shape() == (2, 1)


# Launches that were refused


def test_a_new_version_of_the_launch_template_helps_tasks_that_wait() -> None:
    world = ProviderWorld(gpus=4)
    template = world.template("tpl", GPUS_8, UserData=USER_DATA)
    launch = {"LaunchTemplateId": template, "Version": "$Latest"}
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", LaunchTemplate=launch)
    world.family("four", gpus=4)
    [one, four] = [*world.tasks(), *world.tasks(1, "four")]
    assert "cannot launch an instance: p3.16xlarge needs 8 GPUs" in world.reason(one)
    for type_, text in ((GPUS_1, "the task needs 4 GPUs, 6 MiB, and an instance of the type g5.xlarge"), (GPUS_4, "")):
        data = {"InstanceType": type_}
        world.call("CreateLaunchTemplateVersion", "ec2", LaunchTemplateId=template, SourceVersion="1", LaunchTemplateData=data)
        world.wait(16)
        world.report()
        assert world.states_of(one) == ["RUNNING"] and (not text or text in world.reason(four))
    assert world.shape()[0] == 2


def test_a_restart_with_a_mapped_instance_type_helps_tasks_that_wait(tmp_path: Any) -> None:
    world = ProviderWorld(gpus=4, type_=GPUS_8, path=tmp_path / "state.db")
    [task] = world.tasks()
    assert "write this to corral.toml" in world.reason(task)
    world.settings = replace(world.settings, instance_types={GPUS_8: TypeMapping(gpus=4)})
    world.restart()
    world.run(lambda tx: host_reports.hello(tx, hello("h", 4)))
    world.report()
    assert world.states_of(task) == ["RUNNING"]


# Changes of the capacity provider


def test_turning_off_managed_termination_protection_removes_the_protection() -> None:
    world = ProviderWorld(protection=True)
    world.tasks(2)
    assert [each["ProtectedFromScaleIn"] for each in world.shown()["Instances"]] == [True, True]
    update(world, managedScaling={"status": "ENABLED"}, managedTerminationProtection="DISABLED")
    assert [each["ProtectedFromScaleIn"] for each in world.shown()["Instances"]] == [False, False]


def test_turning_off_managed_draining_ends_the_wait_of_an_instance() -> None:
    world = ProviderWorld()
    [task] = world.tasks()
    world.desire(0)
    assert world.states() == ["Terminating:Wait"] and world.states_of(task) == ["RUNNING"]
    [activity] = [each for each in world.activities() if each["Description"].startswith("Terminating")]
    assert activity["StatusMessage"] == f"Waiting until 1 task of the draining instance has ended: {task}."
    update(world, managedDraining="DISABLED")
    world.report()
    assert world.states_of(task) == ["STOPPED"] and world.ids() == []


# Scale-in by others


def test_a_user_can_scale_in_instances_with_tasks_if_they_are_not_protected() -> None:
    world = ProviderWorld()
    tasks = world.tasks(7)
    world.desire(1)
    assert sorted(world.states()) == ["InService"] + ["Terminating:Wait"] * 6 and world.shown()["DesiredCapacity"] == 1
    world.stop(*tasks)
    assert world.shape() == (1, 1)
    assert world.tasks() and world.shape() == (1, 1)


def test_a_task_keeps_its_instance_while_the_provider_scales_in() -> None:
    world = ProviderWorld()
    world.stop(*world.tasks(8))
    world.clock.advance(DELAY_S + 1)
    world.transact([])  # the first instances leave
    assert world.shown()["DesiredCapacity"] == 0 and 0 < world.states().count("InService") < 8
    [task] = world.tasks()
    world.wait(1)
    assert world.shape() == (1, 1) and world.states_of(task) == ["RUNNING"]
