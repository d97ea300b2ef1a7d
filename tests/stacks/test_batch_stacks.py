"""Stacks of AWS Batch: the templates of a pipeline as a chain, new revisions, replaced compute environments and rollbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.decide.templates import read_template
from corral.model.stack import StackStatus
from corral.services.ec2.images import is_on_record
from stacks.fleet_world import report_tasks
from stacks.stack_world import CALLER, REGION, World

TEMPLATES = Path(__file__).parents[2] / "templates" / "batch"
CHAIN = ("roles", "repository", "image", "environment")
BROKEN = {"Type": "AWS::ECS::Service", "Properties": {"TaskDefinition": "missing"}}
CONTAINER = {
    "Image": "corral/host",
    "ResourceRequirements": [{"Type": "VCPU", "Value": "1"}, {"Type": "MEMORY", "Value": "64"}],
}


def template(name: str) -> dict[str, Any]:
    found = read_template((TEMPLATES / f"{name}.yaml").read_text())
    assert isinstance(found, dict)
    return found


def deploy(world: World, **parameters: str) -> None:
    for name in CHAIN:
        given = {"Image": "corral/host", **parameters} if name == "environment" else {}
        stack = world.create(template(name), name, parameters=given)
        assert stack.status is StackStatus.CREATE_COMPLETE, world.events(stack)


def described(world: World, operation: str, **params: Any) -> list[Any]:
    return list(next(iter(world.call("batch", operation, **params).values())))


def environments(world: World) -> dict[str, Any]:
    return {each["computeEnvironmentName"]: each for each in described(world, "DescribeComputeEnvironments")}


def test_the_templates_of_a_pipeline_work_as_a_chain() -> None:
    world = World()
    deploy(world)
    queues = {each["jobQueueName"]: each for each in described(world, "DescribeJobQueues")}
    assert sorted(queues) == ["pipeline-cpu", "pipeline-gpu"]
    assert {each["status"] for each in (*queues.values(), *environments(world).values())} == {"VALID"}
    [gpu] = queues["pipeline-gpu"]["computeEnvironmentOrder"]
    environment = environments(world)[gpu["computeEnvironment"].rpartition("/")[2]]
    image = environment["computeResources"]["ec2Configuration"][0]["imageIdOverride"]
    assert image.startswith("ami-0") and world.run(lambda tx: is_on_record(tx, CALLER, image))
    submitted = world.call("batch", "SubmitJob", jobName="a", jobQueue="pipeline-gpu", jobDefinition="pipeline-gpu",
                           arrayProperties={"size": 4})  # fmt: skip
    for _ in range(60):
        world.wait(1)
        report_tasks(world, exit_code=0)
        [job] = described(world, "DescribeJobs", jobs=[submitted["jobId"]])
        if job["status"] == "SUCCEEDED":
            break
    assert job["status"] == "SUCCEEDED" and job["arrayProperties"]["statusSummary"]["SUCCEEDED"] == 4
    launched = {each.type for each in world.store.instances.all() if not each.is_host}
    assert launched == {"p3.2xlarge"}
    for name in reversed(CHAIN):
        stack = world.delete(name)
        for _ in range(20):
            world.wait(1)
        assert world.by_id(stack.id).status is StackStatus.DELETE_COMPLETE, world.events(stack)
    assert described(world, "DescribeJobQueues") == [] and environments(world) == {}
    assert described(world, "DescribeJobDefinitions", status="ACTIVE") == []
    assert world.free_gpus() == 8
    world.check()


def test_an_update_of_the_pipeline_changes_only_what_it_must() -> None:
    world = World()
    deploy(world)
    before = {logical: world.row(logical, "environment").physical_id for logical in ("CpuEnvironment", "GpuEnvironment", "GpuJob")}
    parameters = {"Image": "corral/host", "GpuMaxvCpus": "16", "JobTimeoutSeconds": "600", "GpuInstanceTypes": "g5.xlarge"}
    stack = world.update(template("environment"), "environment", parameters=parameters)
    world.wait(5)
    assert world.by_id(stack.id).status is StackStatus.UPDATE_COMPLETE, world.events(stack)
    after = {logical: world.row(logical, "environment").physical_id for logical in before}
    assert after["CpuEnvironment"] == before["CpuEnvironment"] and after["GpuEnvironment"] == before["GpuEnvironment"]
    resources = environments(world)[str(after["GpuEnvironment"]).rpartition("/")[2]]["computeResources"]
    assert resources["maxvCpus"] == 16 and resources["instanceTypes"] == ["g5.xlarge"]
    assert (before["GpuJob"], after["GpuJob"]) == tuple(
        f"arn:aws:batch:{REGION}:123456789012:job-definition/pipeline-gpu:{revision}" for revision in (1, 2)
    )
    found = described(world, "DescribeJobDefinitions", jobDefinitionName="pipeline-gpu")
    assert {each["revision"]: each["status"] for each in found} == {1: "INACTIVE", 2: "ACTIVE"}


def definition(timeout: int, *, skips: bool = False) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "JobDefinitionName": "d", "Type": "container", "ContainerProperties": CONTAINER,
        "Timeout": {"AttemptDurationSeconds": timeout},
    }  # fmt: skip
    if skips:
        properties["ResourceRetentionPolicy"] = {"SkipDeregisterOnUpdate": True}
    return {"Type": "AWS::Batch::JobDefinition", "Properties": properties}


def revisions(world: World) -> dict[int, str]:
    return {each["revision"]: each["status"] for each in described(world, "DescribeJobDefinitions", jobDefinitionName="d")}


def test_a_rollback_keeps_the_old_revision() -> None:
    world = World()
    world.create({"Resources": {"D": definition(60)}})
    stack = world.update({"Resources": {"D": definition(90), "B": {**BROKEN, "DependsOn": "D"}}})
    assert world.by_id(stack.id).status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    assert revisions(world) == {1: "ACTIVE", 2: "INACTIVE"} and str(world.row("D").physical_id).endswith("job-definition/d:1")
    world.update({"Resources": {"D": definition(90)}})
    assert revisions(world) == {1: "INACTIVE", 2: "INACTIVE", 3: "ACTIVE"}
    world.delete()
    assert set(revisions(world).values()) == {"INACTIVE"}
    world.check()


def test_a_stack_can_keep_old_revisions_active() -> None:
    world = World()
    world.create({"Resources": {"D": definition(60, skips=True)}})
    world.update({"Resources": {"D": definition(90, skips=True)}})
    assert revisions(world) == {1: "ACTIVE", 2: "ACTIVE"}
    world.update({"Resources": {"D": definition(90)}})
    assert revisions(world) == {1: "ACTIVE", 2: "ACTIVE"} and str(world.row("D").physical_id).endswith(":2")


def queue_on(type_: str, **more: Any) -> dict[str, Any]:
    resources = {
        "Type": type_,
        "MaxvCpus": 8,
        "InstanceTypes": ["p3.2xlarge"],
        "InstanceRole": {"Fn::GetAtt": "Profile.Arn"},
        "Subnets": [{"Ref": "Subnet"}],
        "SecurityGroupIds": [{"Fn::GetAtt": "Group.GroupId"}],
        "AllocationStrategy": "BEST_FIT_PROGRESSIVE" if type_ == "EC2" else "SPOT_CAPACITY_OPTIMIZED",
    }
    order = [{"Order": 1, "ComputeEnvironment": {"Ref": "Environment"}}]
    return {
        "Resources": {
            "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
            "Subnet": {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "10.0.0.0/24"}},
            "Group": {"Type": "AWS::EC2::SecurityGroup", "Properties": {"VpcId": {"Ref": "Vpc"}, "GroupDescription": "g"}},
            "Profile": {"Type": "AWS::IAM::InstanceProfile", "Properties": {"Roles": []}},
            "Environment": {
                "Type": "AWS::Batch::ComputeEnvironment",
                "Properties": {"Type": "MANAGED", "ComputeResources": resources, **more},
            },
            "Queue": {"Type": "AWS::Batch::JobQueue", "Properties": {"Priority": 1, "ComputeEnvironmentOrder": order}},
        }
    }


@pytest.mark.parametrize("replaces", [True, False])
def test_replace_compute_environment_decides_whether_an_environment_is_replaced(replaces: bool) -> None:
    world = World()
    more = {} if replaces else {"ReplaceComputeEnvironment": False}
    world.create(queue_on("EC2", **more))
    before = world.row("Environment").physical_id
    stack = world.update(queue_on("SPOT", **more))
    world.wait(30)
    assert world.by_id(stack.id).status is StackStatus.UPDATE_COMPLETE, world.events(stack)
    after = world.row("Environment").physical_id
    assert (before != after) is replaces
    assert [each["computeEnvironmentArn"] for each in environments(world).values()] == [after]
    [queue] = described(world, "DescribeJobQueues")
    assert queue["computeEnvironmentOrder"] == [{"order": 1, "computeEnvironment": after}]
    [shown] = environments(world).values()
    assert shown["computeResources"]["type"] == "SPOT"
    assert shown["tags"]["aws:cloudformation:logical-id"] == "Environment"


def test_enum_values_in_another_case() -> None:
    """The CDK writes `managed`, and public templates write `Managed` and `Container`. AWS's handlers accept them."""
    written = queue_on("EC2")
    environment = written["Resources"]["Environment"]["Properties"]
    environment["Type"] = "managed"
    environment["ComputeResources"] |= {"Type": "Ec2", "AllocationStrategy": "best_fit_progressive"}
    container = {**CONTAINER, "ResourceRequirements": [{"Type": "vcpu", "Value": "1"}, {"Type": "Memory", "Value": "64"}]}
    given = {"Type": "Container", "PlatformCapabilities": ["Ec2"], "ContainerProperties": container}
    written["Resources"]["Definition"] = {"Type": "AWS::Batch::JobDefinition", "Properties": given}
    world = World()
    stack = world.create(written)
    assert stack.status is StackStatus.CREATE_COMPLETE, world.events(stack)
    [made] = environments(world).values()
    found = made["computeResources"]
    assert (made["type"], found["type"], found["allocationStrategy"]) == ("MANAGED", "EC2", "BEST_FIT_PROGRESSIVE")
    [registered] = described(world, "DescribeJobDefinitions")
    requirements = {each["type"] for each in registered["containerProperties"]["resourceRequirements"]}
    assert (registered["type"], requirements) == ("container", {"VCPU", "MEMORY"})
    environment["Type"] = "manged"
    assert "manged" in str(world.events(world.create(written, "wrong")))
