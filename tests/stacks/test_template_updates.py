"""The second and the third deployment of every shipped template, with other parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.decide.templates import read_template
from corral.model.stack import Stack, StackStatus
from stacks.fleet_world import report_tasks
from stacks.stack_world import World

TEMPLATES = Path(__file__).parents[2] / "templates"
GIVEN = {  # template → the parameters without a default, and those that need another value on a machine without Docker
    "gpu-tasks": {"Image": "corral/host"},
    "gpu-service": {"Image": "corral/host"},
    "queue-fleet": {"Image": "corral/host", "Command": "sleep 600"},
    "batch/environment": {"Image": "corral/host"},
}
CHAINS = {  # template → the stacks that it needs
    "gpu-tasks": ["gpu-cluster"],
    "batch/image": ["batch/roles"],
    "batch/environment": ["batch/roles", "batch/repository", "batch/image"],
}
SAME = {"Project", "ClusterStack", "Collector", "CollectorImage"}  # names of other stacks, and a container that only Docker can run
OTHER = {
    "CpuInstanceType": "c5.4xlarge",
    "CpuInstanceTypes": "c5.xlarge,c5.2xlarge",
    "GpuInstanceType": "g5.12xlarge",
    "GpuInstanceTypes": "g5.xlarge,g5.12xlarge",
    "InstanceType": "g5.12xlarge",
    "BuildInstanceType": "g5.xlarge",
    "Version": "1.0.1",
    "Image": "corral/host:2",
    "Command": "echo two; sleep 700",
    "Variables": "MODEL=b TITLE='two words'",
    "DataBucket": "other-data",
    "GpuImage": "/pipeline/gpu-image",
    **dict.fromkeys(
        ("CpuImage", "InstanceImage", "ParentImage"), "/aws/service/ecs/optimized-ami/amazon-linux-2/recommended/image_id"
    ),
}


def template(name: str) -> dict[str, Any]:
    found = read_template((TEMPLATES / f"{name}.yaml").read_text())
    assert isinstance(found, dict)
    return found


def other(name: str) -> dict[str, str]:
    """Another value for every parameter of a template."""
    found = {}
    for parameter, declared in template(name)["Parameters"].items():
        if parameter in SAME:
            continue
        default, allowed = declared.get("Default"), declared.get("AllowedValues")
        if parameter in OTHER or allowed:
            found[parameter] = OTHER.get(parameter) or next(str(each) for each in allowed if each != default)
        elif declared["Type"] == "Number":
            found[parameter] = str(default + 1)
        else:
            found[parameter] = "/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
    return found


def deploy(world: World, name: str, **parameters: str) -> Stack:
    """Create or update a stack, and report the tasks of its services until the operation and the tasks that it stops have ended."""
    exists = world.store.stacks.named("us-east-1", Path(name).name) is not None
    begin = world.update if exists else world.create
    stack = begin(template(name), Path(name).name, parameters={**GIVEN.get(name, {}), **parameters})
    for _ in range(120):
        report_tasks(world)
        world.wait(1)
        if not world.by_id(stack.id).status.value.endswith("IN_PROGRESS"):
            break
    report_tasks(world)
    world.wait(1)
    report_tasks(world)
    stack = world.by_id(stack.id)
    failures = [event for event in world.events(stack) if event[1].endswith("_FAILED")]
    assert stack.status in (StackStatus.CREATE_COMPLETE, StackStatus.UPDATE_COMPLETE), (stack.status, failures)
    assert stack.status_reason == "", "the cleanup has deleted the old resources"
    return stack


def running(world: World) -> list[dict[str, Any]]:
    """The containers in the task definitions of all tasks that run."""
    tasks = [world.store.tasks.get(task_id) for (task_id,) in world.store.execute("SELECT id FROM task WHERE state = 'RUNNING'")]
    found = []
    for task in tasks:
        assert task is not None
        definition = world.call("ecs", "DescribeTaskDefinition", taskDefinition=task.definition_arn)
        found += definition["taskDefinition"]["containerDefinitions"]
    return found


@pytest.mark.parametrize("name", sorted(str(each.relative_to(TEMPLATES).with_suffix("")) for each in TEMPLATES.rglob("*.yaml")))
def test_a_template_is_deployed_three_times(name: str) -> None:
    world = World()
    for needed in CHAINS.get(name, ()):
        deploy(world, needed)
    stack = deploy(world, name)
    first = {key: row.version.properties for key, row in world.rows(stack).items()}
    changed = other(name)
    deploy(world, name, **changed)
    second = {key: row.version.properties for key, row in world.rows(stack).items()}
    assert second != first
    if name == "gpu-service":
        containers = running(world)
        assert len(containers) == 2 and all("sleep 700" in each["command"][-1] for each in containers)
        assert {(each["image"], each["resourceRequirements"][0]["value"]) for each in containers} == {("corral/host:2", "2")}
    with pytest.raises(ApiError, match="No updates are to be performed"):
        deploy(world, name, **changed)
    deploy(world, name)
    if name == "gpu-service":
        assert {"sleep infinity" in each["command"][-1] for each in running(world)} == {True}
    for each in (name, *reversed(CHAINS.get(name, ()))):
        stack = world.delete(Path(each).name)
        for _ in range(60):
            report_tasks(world)
            world.wait(1)
        assert world.by_id(stack.id).status is StackStatus.DELETE_COMPLETE, world.events(stack)
    world.check()


def test_a_new_machine_image_reaches_the_environment_of_a_pipeline() -> None:
    world = World()
    for name in (*CHAINS["batch/environment"], "batch/environment"):
        deploy(world, name)

    def image() -> str:
        found = world.call("batch", "DescribeComputeEnvironments")["computeEnvironments"]
        [override] = [
            each["imageIdOverride"]
            for environment in found
            for each in environment["computeResources"].get("ec2Configuration", ())
            if "imageIdOverride" in each
        ]
        return str(override)

    before = image()
    deploy(world, "batch/image", Version="1.0.1")
    assert image() == before
    deploy(world, "batch/environment")
    assert image() != before and image() == world.ssm_value("/pipeline/gpu-image")
