"""Updates that replace a resource and keep its name: new revisions of a task definition, and names that are unique in a scope."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.model.stack import StackStatus
from corral.services.cloudformation import stack_operations
from stacks.fleet_world import report_tasks
from stacks.stack_world import CALLER, REGION, World, spec_of

BROKEN = {"Type": "AWS::SQS::Queue", "Properties": {"DelaySeconds": 5000}}


def definition(command: str, **more: Any) -> dict[str, Any]:
    container = {"Name": "main", "Image": "corral/host", "Command": [command], "Memory": 64}
    return {"Type": "AWS::ECS::TaskDefinition", "Properties": {"Family": "trainer", "ContainerDefinitions": [container]}, **more}


def service(**properties: Any) -> dict[str, Any]:
    given = {"TaskDefinition": {"Ref": "Task"}, "ServiceName": "web", "DesiredCount": 1, **properties}
    return {"Type": "AWS::ECS::Service", "Properties": given}


def revision(number: int) -> str:
    return f"arn:aws:ecs:{REGION}:123456789012:task-definition/trainer:{number}"


def revisions(world: World) -> dict[int, str]:
    found = {}
    for status in ("ACTIVE", "INACTIVE"):
        for arn in world.call("ecs", "ListTaskDefinitions", familyPrefix="trainer", status=status)["taskDefinitionArns"]:
            found[int(arn.rpartition(":")[2])] = status
    return dict(sorted(found.items()))


def update(world: World, **resources: Any) -> StackStatus:
    """Update the stack, and report the tasks of its services until the update ends."""
    stack = world.update({"Resources": resources})
    for _ in range(60):
        report_tasks(world)
        world.wait(1)
        if not world.by_id(stack.id).status.value.endswith("IN_PROGRESS"):
            break
    return world.by_id(stack.id).status


def test_an_update_registers_a_new_revision_of_a_family() -> None:
    world = World()
    stack = world.create({"Resources": {"Task": definition("one"), "Service": service()}}, settle=False)
    for _ in range(20):
        world.wait(1)
        report_tasks(world)
    assert world.by_id(stack.id).status is StackStatus.CREATE_COMPLETE, world.events(stack)

    spec = spec_of("s", {"Resources": {"Task": definition("two"), "Service": service()}})
    changes = world.run(lambda tx: stack_operations.planned_changes(tx, CALLER, world.stack(), spec))
    assert {each.logical_id: each.replacement for each in changes} == {"Task": "True", "Service": "False"}

    for number, command in ((2, "two"), (3, "three")):
        assert update(world, Task=definition(command), Service=service()) is StackStatus.UPDATE_COMPLETE
        assert world.row("Task").physical_id == revision(number)
        assert revisions(world) == {each: "ACTIVE" if each == number else "INACTIVE" for each in range(1, number + 1)}
        [shown] = world.call("ecs", "DescribeServices", services=["web"])["services"]
        assert shown["taskDefinition"] == revision(number) and shown["runningCount"] == 1
    with pytest.raises(ApiError, match="No updates are to be performed"):
        world.update({"Resources": {"Task": definition("three"), "Service": service()}})

    assert update(world, Task=definition("four"), Service=service(), Bad={**BROKEN, "DependsOn": "Service"}) is (
        StackStatus.UPDATE_ROLLBACK_COMPLETE
    )
    assert revisions(world) == {1: "INACTIVE", 2: "INACTIVE", 3: "ACTIVE", 4: "INACTIVE"}
    assert world.row("Task").physical_id == revision(3)
    [shown] = world.call("ecs", "DescribeServices", services=["web"])["services"]
    assert shown["taskDefinition"] == revision(3)

    assert update(world, Task=definition("five", UpdateReplacePolicy="Retain"), Service=service()) is StackStatus.UPDATE_COMPLETE
    assert update(world, Task=definition("six", UpdateReplacePolicy="Retain"), Service=service()) is StackStatus.UPDATE_COMPLETE
    assert revisions(world)[5] == revisions(world)[6] == "ACTIVE"
    world.delete()
    for _ in range(20):
        report_tasks(world)
        world.wait(1)
    assert revisions(world) == {1: "INACTIVE", 2: "INACTIVE", 3: "INACTIVE", 4: "INACTIVE", 5: "ACTIVE", 6: "INACTIVE"}
    world.check()


def test_a_name_that_is_unique_in_a_scope_moves_to_another_scope() -> None:
    world = World()

    def template(scope: str, **more: Any) -> dict[str, Any]:
        launch = {"Type": "AWS::AutoScaling::LaunchConfiguration", "Properties": {"ImageId": "ami-1", "InstanceType": "c5.large"}}
        group = {"LaunchConfigurationName": {"Ref": "Launch"}, "MinSize": "0", "MaxSize": "1", "AvailabilityZones": ["us-east-1a"]}
        hook = {"LifecycleHookName": "hook", "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING"}
        return {
            "Launch": launch,
            **{f"Group{each}": {"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": group} for each in "AB"},
            **{f"Log{each}": {"Type": "AWS::Logs::LogGroup"} for each in "AB"},
            "Hook": {
                "Type": "AWS::AutoScaling::LifecycleHook",
                "Properties": {**hook, "AutoScalingGroupName": {"Ref": f"Group{scope}"}},
            },
            "Stream": {
                "Type": "AWS::Logs::LogStream",
                "Properties": {"LogStreamName": "stream", "LogGroupName": {"Ref": f"Log{scope}"}},
            },
            **more,
        }

    def owners() -> tuple[list[str], list[str]]:
        """The groups that have the hook, and the log groups that have the stream."""
        names = {each: str(world.row(each).physical_id) for each in ("GroupA", "GroupB", "LogA", "LogB")}
        hooks = [
            each
            for each in ("GroupA", "GroupB")
            if world.call("autoscaling", "DescribeLifecycleHooks", AutoScalingGroupName=names[each])["LifecycleHooks"]
        ]
        streams = [
            each for each in ("LogA", "LogB") if world.call("logs", "DescribeLogStreams", logGroupName=names[each])["logStreams"]
        ]
        return hooks, streams

    world.create({"Resources": template("A")})
    assert owners() == (["GroupA"], ["LogA"])
    bad = {**BROKEN, "DependsOn": ["Hook", "Stream"]}
    assert update(world, **template("B", Bad=bad)) is StackStatus.UPDATE_ROLLBACK_COMPLETE
    assert owners() == (["GroupA"], ["LogA"])
    assert update(world, **template("B")) is StackStatus.UPDATE_COMPLETE
    assert owners() == (["GroupB"], ["LogB"])
    world.delete()
    world.wait(5)
    world.check()


def test_stored_versions_of_one_name_have_different_ids() -> None:
    world = World()

    def resources(text: str, version: str, **document: str) -> dict[str, Any]:
        content = {"Content": {"text": text}, "Name": "document", "UpdateMethod": "NewVersion", **document}
        recipe = {"Name": "recipe", "Version": version, "ParentImage": "ami-1", "Components": []}
        return {
            "Layer": {
                "Type": "AWS::Lambda::LayerVersion",
                "Properties": {"LayerName": "layer", "Content": {"S3Bucket": "b", "S3Key": text}},
            },
            "Version": {"Type": "AWS::Lambda::Version", "Properties": {"FunctionName": "f", "Description": text}},
            "Machine": {
                "Type": "AWS::StepFunctions::StateMachineVersion",
                "Properties": {"StateMachineArn": "arn:aws:states:us-east-1:123456789012:stateMachine:m", "Description": text},
            },
            "Recipe": {"Type": "AWS::ImageBuilder::ImageRecipe", "Properties": recipe},
            "Document": {"Type": "AWS::SSM::Document", "Properties": content},
        }

    world.create({"Resources": resources("a", "1.0.0")})
    for text, version, layer in (("b", "1.0.1", 2), ("c", "1.0.2", 1)):  # the cleanup of the first update has deleted number 1
        assert update(world, **resources(text, version)) is StackStatus.UPDATE_COMPLETE
        ids = {each: str(world.row(each).physical_id).split(":", 5)[-1] for each in ("Layer", "Version", "Machine", "Recipe")}
        assert ids == {
            "Layer": f"layer:layer:{layer}",
            "Version": f"function:f:{layer}",
            "Machine": f"stateMachine:m:{layer}",
            "Recipe": f"image-recipe/recipe/{version}",
        }
        assert world.row("Version").version.attributes["Version"] == str(layer)
    assert update(world, **resources("d", "1.0.2", UpdateMethod="Replace")) is StackStatus.UPDATE_ROLLBACK_COMPLETE
    world.check()
