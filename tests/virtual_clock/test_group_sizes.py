"""Sizes of groups, the capacity of the machine, and deletion."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from virtual_clock.group_world import GPUS_4, GPUS_8, REGION, GroupWorld, refused

HOUR = 3600.0


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


# Sizes


def test_zero_three_one_zero(world: GroupWorld) -> None:
    world.group()
    assert world.states() == []
    world.desire(3)
    assert world.states() == ["InService"] * 3 and world.running() == 3
    world.desire(1)
    assert world.states() == ["InService"] and world.running() == 1
    world.desire(0)
    assert world.states() == [] and world.running() == 0
    found = world.activities()
    assert [each["StatusCode"] for each in found] == ["Successful"] * 6 and all(each["Progress"] == 100 for each in found)
    assert [each["Description"].split(":")[0] for each in found] == ["Terminating EC2 instance"] * 3 + [
        "Launching a new EC2 instance"
    ] * 3
    assert found[-1]["Cause"] == (
        "At 2026-01-01T00:00:00Z a user request explicitly set group desired capacity changing the desired capacity from 0 to 3.  "
        "At 2026-01-01T00:00:00Z an instance was started in response to a difference between desired and actual capacity, "
        "increasing the capacity from 0 to 3."
    )
    assert "shrinking the capacity from 1 to 0.  At" in found[0]["Cause"]
    assert found[0]["Cause"].endswith("was selected for termination.")


def test_sizes_are_checked(world: GroupWorld) -> None:
    world.group(desired=2, most=4, MinSize=1)
    for wrong in ({"DesiredCapacity": 5}, {"DesiredCapacity": 0}, {"MinSize": 5}, {"MaxSize": -1}):
        assert refused(partial(world.call, "UpdateAutoScalingGroup", AutoScalingGroupName="g", **wrong)).code == "ValidationError"
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", MinSize=3)
    world.settle()
    assert (world.shown()["DesiredCapacity"], len(world.states())) == (3, 3), "raised to the new minimum"
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", MinSize=0, MaxSize=1)
    world.settle()
    assert (world.shown()["DesiredCapacity"], len(world.states())) == (1, 1)
    assert "is above max value 1" in refused(lambda: world.desire(2)).message


def test_a_large_group_grows_in_several_transactions() -> None:
    world = GroupWorld(gpus=64)
    world.group(desired=50, most=60)
    assert world.states() == ["InService"] * 50
    world.desire(0)
    assert world.states() == [] and world.running() == 0


def test_zones_and_subnets(world: GroupWorld) -> None:
    world.group(desired=4, AvailabilityZones=[f"{REGION}a", f"{REGION}b"])
    assert sorted(each["AvailabilityZone"][-1] for each in world.shown()["Instances"]) == list("aabb")
    world.desire(3)
    world.desire(2)
    assert sorted(each["AvailabilityZone"][-1] for each in world.shown()["Instances"]) == list("ab"), "balanced"
    subnets = world.call("DescribeSubnets", "ec2")["Subnets"]
    two = [each["SubnetId"] for each in subnets[:2]]
    world.group("s", desired=2, VPCZoneIdentifier=", ".join(two))
    assert world.shown("s")["VPCZoneIdentifier"] == ",".join(two)
    assert {world.store.instances.by_ec2_id(each).details["SubnetId"] for each in world.ids("s")} == set(two)
    wrong = refused(lambda: world.group("x", VPCZoneIdentifier="subnet-0"))
    assert wrong.message == "The subnet ID 'subnet-0' does not exist"
    assert "do not match" in refused(
        lambda: world.call(
            "CreateAutoScalingGroup", AutoScalingGroupName="y", MinSize=0, MaxSize=1, LaunchConfigurationName="lc",
            AvailabilityZones=[subnets[2]["AvailabilityZone"]], VPCZoneIdentifier=two[0],
        )
    ).message  # fmt: skip


# Capacity of the machine


def test_a_launch_waits_for_gpus_and_says_why(world: GroupWorld) -> None:
    world.configuration("four", GPUS_4)
    world.group(desired=3, LaunchConfigurationName="four")
    assert world.states() == ["InService", "InService", "Pending"]
    waits = world.activities()[0]
    assert (waits["StatusCode"], waits["Progress"]) == ("WaitingForInstanceId", 20)
    assert waits["StatusMessage"].startswith("Waiting for capacity: ") and "EndTime" not in waits
    world.desire(2)
    assert world.states() == ["InService"] * 2, "the launch that waits is given up first"
    assert [each["StatusCode"] for each in world.activities()[:2]] == ["Successful", "Cancelled"]
    world.desire(3)
    world.group("other", desired=1)
    assert world.states("other") == ["Pending"]
    world.desire(0)
    assert world.states() == [] and world.states("other") == ["InService"], "freed GPUs serve the claims that wait"


def test_a_launch_that_never_fits_fails_and_blocks_no_other_claim() -> None:
    world = GroupWorld(gpus=4)
    world.configuration("eight", GPUS_8)
    world.group(desired=1, LaunchConfigurationName="eight")
    assert world.states() == []
    [failed] = world.activities()
    assert failed["StatusCode"] == "Failed" and failed["StatusMessage"].endswith("Launching EC2 instance failed.")
    for part in ("p3.16xlarge needs 8 GPUs", "this machine has 4 GPUs", "[instance-types] p3.16xlarge = {gpus = 4}"):
        assert part in failed["StatusMessage"]
    assert failed["Description"].startswith("Launching a new EC2 instance.  Status Reason: ")
    world.group("small", desired=4)
    assert world.states("small") == ["InService"] * 4, "nothing is reserved for it"
    world.wait(1000)
    times = [each["StartTime"] for each in world.activities()][::-1]
    assert [round(later - sooner) for sooner, later in pairwise(times)] == [15, 30, 60, 120, 240, 480], "doubling"
    world.wait(HOUR)
    times = [each["StartTime"] for each in world.activities()][::-1]
    assert max(round(later - sooner) for sooner, later in pairwise(times)) == 600
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", LaunchConfigurationName="lc")
    world.settle()
    assert world.states() == ["Pending"], "an update retries at once"
    world.desire(0, "small")
    assert world.states() == ["InService"]


def test_a_group_does_not_fill_the_queue_of_claims(world: GroupWorld) -> None:
    """At most 20 launches of a group wait; the others follow as those get their GPUs."""
    world.group(desired=100, most=1000)
    assert (world.states().count("InService"), world.states().count("Pending")) == (8, 20)
    for instance_id in world.ids()[:4]:
        world.kill(instance_id)
    assert (world.states().count("InService"), world.states().count("Pending")) == (8, 20)
    world.desire(8)
    assert world.states() == ["InService"] * 8


def test_a_launch_that_ec2_refuses_is_a_failed_activity(world: GroupWorld) -> None:
    world.configuration("keyed", KeyName="nothing")
    world.group(desired=1, LaunchConfigurationName="keyed")
    [failed] = world.activities()
    assert failed["StatusCode"] == "Failed" and "key pair 'nothing' does not exist" in failed["StatusMessage"]


# Deletion


def test_delete(world: GroupWorld) -> None:
    world.group(desired=2)
    world.call("PutScalingPolicy", AutoScalingGroupName="g", PolicyName="p", AdjustmentType="ChangeInCapacity", ScalingAdjustment=1)
    assert refused(lambda: world.call("DeleteAutoScalingGroup", AutoScalingGroupName="g")).code == "ResourceInUseFault"
    world.call("DeleteAutoScalingGroup", AutoScalingGroupName="g", ForceDelete=True)
    world.settle()
    assert world.shown() is None and world.running() == 0
    assert world.call("DescribePolicies")["ScalingPolicies"] == []
    assert {each["AutoScalingGroupState"] for each in world.activities()} == {"Deleted"}
    assert world.call("DescribeScalingActivities")["Activities"] == []
    world.group(desired=1)
    assert len(world.call("DescribeScalingActivities", AutoScalingGroupName="g")["Activities"]) == 1, "of the new group only"
    world.desire(0)
    world.call("DeleteAutoScalingGroup", AutoScalingGroupName="g")
    assert world.shown() is None


def test_deletion_ends_waits_of_hooks(world: GroupWorld) -> None:
    world.group()
    for transition in ("LAUNCHING", "TERMINATING"):
        world.call(
            "PutLifecycleHook", AutoScalingGroupName="g", LifecycleHookName=transition.lower(),
            LifecycleTransition=f"autoscaling:EC2_INSTANCE_{transition}",
        )  # fmt: skip
    world.desire(1)
    assert world.states() == ["Pending:Wait"]
    world.call("DeleteAutoScalingGroup", AutoScalingGroupName="g", ForceDelete=True)
    world.settle()
    assert world.shown() is None and world.running() == 0


@pytest.mark.parametrize(
    "level, force, refusal",
    [("prevent-force-deletion", True, True), ("prevent-all-deletion", False, True), ("prevent-force-deletion", False, False)],
)
def test_deletion_protection(world: GroupWorld, level: str, force: bool, refusal: bool) -> None:
    world.group(DeletionProtection=level)
    delete = lambda: world.call("DeleteAutoScalingGroup", AutoScalingGroupName="g", ForceDelete=force)  # noqa: E731
    if refusal:
        assert refused(delete).code == "ResourceInUseFault"
    else:
        delete()
        assert world.shown() is None
