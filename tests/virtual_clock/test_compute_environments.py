"""Requests for compute environments: what they accept, what they refuse, and what DescribeComputeEnvironments shows."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest

from corral.services.batch.compute_environments import describe_compute_environments
from virtual_clock.environment_world import PROFILE, EnvironmentWorld
from virtual_clock.group_world import GPUS_1, REGION, refused


@pytest.fixture(scope="module")
def shared() -> EnvironmentWorld:
    return EnvironmentWorld()


@pytest.fixture
def world(shared: EnvironmentWorld) -> Iterator[EnvironmentWorld]:
    """A world without environments. Refused requests leave nothing behind, so the tests share the world."""
    yield shared
    for each in shared.described():
        if each["computeEnvironmentName"] != "here":
            shared.update(each["computeEnvironmentName"], state="DISABLED")
            shared.delete(each["computeEnvironmentName"])


def test_description(world: EnvironmentWorld) -> None:
    made = world.create(computeResources=world.resources(tags={"team": "a"}), tags={"k": "v"})
    found = world.shown_environment()
    assert made == {"computeEnvironmentName": "ce", "computeEnvironmentArn": found["computeEnvironmentArn"]}
    assert found["computeEnvironmentArn"] == f"arn:aws:batch:{REGION}:123456789012:compute-environment/ce"
    assert found["ecsClusterArn"].endswith(f":cluster/ce_Batch_{found['uuid']}")
    assert (found["status"], found["statusReason"], found["state"]) == ("VALID", "ComputeEnvironment Healthy", "ENABLED")
    assert found["serviceRole"].endswith("AWSServiceRoleForBatch")
    assert (found["containerOrchestrationType"], found["tags"]) == ("ECS", {"k": "v"})
    resources = found["computeResources"]
    assert (resources["minvCpus"], resources["maxvCpus"], resources["desiredvCpus"]) == (0, 256, 0)
    assert resources["ec2Configuration"] == [{"imageType": "ECS_AL2023_NVIDIA"}] and resources["tags"] == {"team": "a"}
    assert not [member for member in found if member[0] == "_"]
    assert world.described(found["computeEnvironmentArn"], "missing") == [found]


def test_an_environment_is_described_as_given(world: EnvironmentWorld) -> None:
    """Terraform compares these members with its own: members without a default stay absent, and an update adds only its own."""
    given = {
        "type": "EC2",
        "minvCpus": 0,
        "maxvCpus": 16,
        "instanceTypes": ["c5.large", "c5"],
        "subnets": [world.subnet],
        "securityGroupIds": [world.security_group],
        "instanceRole": PROFILE,
    }
    world.create(computeResources=given, serviceRole="")
    defaults = {"desiredvCpus": 0, "tags": {}, "ec2Configuration": [{"imageType": "ECS_AL2023"}]}
    assert world.shown_environment()["computeResources"] == given | defaults
    assert "updatePolicy" not in world.shown_environment()
    world.update(computeResources={"maxvCpus": 16, "tags": {}}, updatePolicy={"jobExecutionTimeoutMinutes": 60})
    found = world.shown_environment()
    assert found["computeResources"] == given | defaults
    assert found["updatePolicy"] == {"terminateJobsOnUpdate": False, "jobExecutionTimeoutMinutes": 60}


def test_names_are_unique(world: EnvironmentWorld) -> None:
    world.create(computeResources=world.resources())
    assert refused(lambda: world.create(computeResources=world.resources())).message == "Object already exists"
    for name in ("", "a b", "x" * 129):
        assert "is not valid" in refused(lambda name=name: world.create(name)).message  # type: ignore[misc]


def test_pages(world: EnvironmentWorld) -> None:
    for name in ("b", "a", "c"):
        world.create(name, computeResources=world.resources(kind="EC2"))
    first = world.batch_call(describe_compute_environments, maxResults=2)
    second = world.batch_call(describe_compute_environments, maxResults=10, nextToken=first["nextToken"])
    names = [each["computeEnvironmentName"] for page in (first, second) for each in page["computeEnvironments"]]
    assert names == ["a", "b", "c", "here"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "X"}, "type 'X'"),
    ({"maxvCpus": None}, "maxvCpus"),
    ({"maxvCpus": 0}, "maxvCpus 0"),
    ({"minvCpus": 300}, "minvCpus must be less than or equal to maxvCpus"),
    ({"minvCpus": -1}, "minvCpus -1"),
    ({"desiredvCpus": 300}, "desiredvCpus must be between"),
    ({"instanceTypes": []}, "instanceTypes must have"),
    ({"instanceTypes": ["g5.xlarge", "g5.xlarge"]}, "more than once"),
    ({"instanceTypes": ["zz9.huge"]}, "no such instance type or family"),
    ({"instanceTypes": ["zz9"]}, "no such instance type or family"),
    ({"subnets": []}, "subnets must have"),
    ({"securityGroupIds": []}, "securityGroupIds must have"),
    ({"instanceRole": ""}, "instanceRole must be provided"),
    ({"allocationStrategy": "SPOT_CAPACITY_OPTIMIZED"}, "allocationStrategy"),
    ({"bidPercentage": 50}, "bidPercentage is applicable to the type SPOT only"),
    ({"type": "SPOT", "bidPercentage": 101}, "bidPercentage 101"),
    ({"type": "SPOT"}, "spotIamFleetRole must be provided"),
    ({"type": "FARGATE"}, "is not applicable to the type FARGATE"),
    ({"ec2Configuration": [{"imageType": "x"}]}, "imageType 'x'"),
    ({"ec2Configuration": [{"imageType": "ECS_AL2"}] * 3}, "at most 2 elements"),
    ({"ec2Configuration": [{"imageType": "ECS_AL2"}] * 2}, "more than once"),
    ({"launchTemplate": {"version": "1"}}, "either launchTemplateId or launchTemplateName"),
    (
        {"launchTemplate": {"launchTemplateName": "t", "overrides": [{"launchTemplateName": "u", "targetInstanceTypes": ["c5"]}]}},
        "targetInstanceTypes 'c5'",
    ),
    ({"scalingPolicy": {"minScaleDownDelayMinutes": 5}}, "minScaleDownDelayMinutes 5"),
]


@pytest.mark.parametrize(("changes", "text"), REFUSED)
def test_refused_resources(world: EnvironmentWorld, changes: dict[str, Any], text: str) -> None:
    error = refused(lambda: world.create(computeResources={**world.resources(), **changes}))
    assert error.code == "ClientException" and text in error.message


def test_refused_types(world: EnvironmentWorld) -> None:
    assert "computeResources must be provided" in refused(lambda: world.create(type="MANAGED")).message
    error = refused(lambda: world.create(type="UNMANAGED", computeResources=world.resources()))
    assert "must not be provided for an UNMANAGED" in error.message
    error = refused(lambda: world.create(type="MANAGED", unmanagedvCpus=3, computeResources=world.resources()))
    assert "unmanagedvCpus must not be provided" in error.message
    error = refused(lambda: world.create(eksConfiguration={"eksClusterArn": "x"}, computeResources=world.resources()))
    assert "Corral has no EKS clusters" in error.message
    assert "state 'X'" in refused(lambda: world.create(state="X", computeResources=world.resources())).message


MISSING: list[tuple[dict[str, Any], str]] = [
    ({"subnets": ["subnet-1"]}, "CLIENT_ERROR - The subnet ID 'subnet-1' does not exist"),
    ({"securityGroupIds": ["sg-1"]}, "CLIENT_ERROR - The security group 'sg-1' does not exist"),
    ({"instanceRole": "nope"}, "Invalid IAM Instance Profile name"),
    ({"ec2KeyPair": "nope"}, "The key pair 'nope' does not exist"),
    ({"launchTemplate": {"launchTemplateName": "nope"}}, "does not exist"),
]


@pytest.mark.parametrize(("changes", "text"), MISSING)
def test_a_missing_resource_makes_the_environment_invalid(world: EnvironmentWorld, changes: dict[str, Any], text: str) -> None:
    world.create(computeResources={**world.resources(), **changes})
    status, reason = world.status()
    assert status == "INVALID" and text in reason
    world.update(computeResources={"maxvCpus": 100})
    assert world.status()[0] == "INVALID"


def test_fargate_and_unmanaged(world: EnvironmentWorld) -> None:
    network = {"subnets": [world.subnet], "securityGroupIds": [world.security_group]}
    world.create("f", computeResources={"type": "FARGATE", "maxvCpus": 16, **network})
    world.create("u", type="UNMANAGED", unmanagedvCpus=8)
    world.create("d", type="UNMANAGED", tags={"corral:cluster": "default"})
    assert [world.status(name)[0] for name in "fud"] == ["VALID"] * 3
    assert world.shown_environment("f")["computeResources"] == {"type": "FARGATE", "maxvCpus": 16, **network}
    assert world.shown_environment("u")["unmanagedvCpus"] == 8
    assert world.shown_environment("d")["ecsClusterArn"].endswith(":cluster/default")
    world.update("u", unmanagedvCpus=9)
    assert world.shown_environment("u")["unmanagedvCpus"] == 9
    world.update("f", computeResources={"maxvCpus": 32, "subnets": []})
    assert world.shown_environment("f")["computeResources"]["subnets"] == [world.subnet]
    error = refused(lambda: world.update("f", computeResources={"type": "EC2"}))
    assert "cannot be changed from FARGATE to EC2" in error.message
    assert "must not be provided" in refused(lambda: world.update("u", computeResources={"maxvCpus": 1})).message


def test_updates_of_best_fit_environments(world: EnvironmentWorld) -> None:
    world.create(computeResources=world.resources(most=100))
    world.update(computeResources={"maxvCpus": 50, "minvCpus": 0})
    assert world.shown_environment()["computeResources"]["maxvCpus"] == 50
    error = refused(lambda: world.update(computeResources={"instanceTypes": ["g4dn.xlarge"]}))
    assert "instanceTypes of compute environment ce cannot be updated, because its allocation strategy is BEST_FIT" in error.message
    assert "desiredvCpus must be between" in refused(lambda: world.update(computeResources={"desiredvCpus": 51})).message
    assert "jobExecutionTimeoutMinutes 0" in refused(lambda: world.update(updatePolicy={"jobExecutionTimeoutMinutes": 0})).message
    assert "does not exist" in refused(lambda: world.update("missing", state="DISABLED")).message


def test_an_empty_value_removes_a_member(world: EnvironmentWorld) -> None:
    resources = world.resources(allocationStrategy="BEST_FIT_PROGRESSIVE", imageId="ami-1", placementGroup="p")
    world.create(computeResources=resources)
    world.update(computeResources={"imageId": "", "placementGroup": ""})
    found = world.shown_environment()["computeResources"]
    assert "imageId" not in found and "placementGroup" not in found
    assert world.status()[0] == "VALID", "there were no instances to replace"


def test_deletion_of_a_missing_environment(world: EnvironmentWorld) -> None:
    world.delete("missing")  # as on AWS, no error


def test_families() -> None:
    world = EnvironmentWorld()
    world.managed("c5", most=4, queue="families")
    world.define("family", vcpus=3, memory=1024)
    world.submit(definition="family", queue="families")
    assert world.types() == ["c5.xlarge"], "the cheapest type of the family with three vCPUs"


def test_the_launch_template_of_a_group() -> None:
    world = EnvironmentWorld()
    user_data = "TUlNRS1WZXJzaW9uOiAxLjAKQ29udGVudC1UeXBlOiBtdWx0aXBhcnQvbWl4ZWQ7IGJvdW5kYXJ5PSJ4IgoKLS14CkNvbnRlbnQtVHlwZTogdGV4dC94LXNoZWxsc2NyaXB0CgojIS9iaW4vYmFzaAplY2hvICdFQ1NfSU5TVEFOQ0VfQVRUUklCVVRFUz17InRpZXIiOiJnb2xkIn0nID4+IC9ldGMvZWNzL2Vjcy5jb25maWcKLS14LS0K"  # noqa: E501
    assert b'{"tier":"gold"}' in b64decode(user_data)
    world.template("mine", "m5.large", UserData=user_data, EbsOptimized=True)
    world.call("CreateKeyPair", "ec2", KeyName="key")
    world.managed(
        kind="SPOT", launchTemplate={"launchTemplateName": "mine", "version": "$Latest"}, ec2KeyPair="key", placementGroup="near",
        ec2Configuration=[{"imageType": "ECS_AL2023_NVIDIA", "imageIdOverride": "ami-own"}], tags={"team": "a"},
    )  # fmt: skip
    instance_id = world.instance_of(world.submit())
    [instance] = world.call("DescribeInstances", "ec2", InstanceIds=[instance_id])["Reservations"][0]["Instances"]
    assert (instance["InstanceType"], instance["ImageId"], instance["KeyName"]) == (GPUS_1, "ami-own", "key")
    assert (instance["Placement"]["GroupName"], instance["InstanceLifecycle"], instance["EbsOptimized"]) == ("near", "spot", True)
    assert instance["IamInstanceProfile"]["Arn"].endswith(PROFILE)
    assert {"Key": "team", "Value": "a"} in instance["Tags"]
    found = world.store.instances.by_ec2_id(instance_id)
    assert found is not None and found.cluster.startswith("ce_Batch_")
    assert world.store.instances.attributes(found.id)["tier"] == "gold"
