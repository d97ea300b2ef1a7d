"""Launch templates, mixed instances and instance refreshes."""

from __future__ import annotations

import pytest

from virtual_clock.group_world import GPUS_1, GPUS_4, GPUS_8, GroupWorld, refused


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


# Launch templates and mixed instances


def test_a_group_follows_its_template(world: GroupWorld) -> None:
    template_id = world.template()
    world.group(desired=1, LaunchTemplate={"LaunchTemplateName": "tpl", "Version": "$Latest"})
    shown = world.shown()
    assert shown["LaunchTemplate"] == {"LaunchTemplateId": template_id, "LaunchTemplateName": "tpl", "Version": "$Latest"}
    assert shown["Instances"][0]["LaunchTemplate"] == {"LaunchTemplateId": template_id, "LaunchTemplateName": "tpl", "Version": "1"}
    world.call(
        "CreateLaunchTemplateVersion",
        "ec2",
        LaunchTemplateId=template_id,
        SourceVersion="1",
        LaunchTemplateData={"InstanceType": "g5.2xlarge"},
    )
    world.desire(2)
    assert world.versions() == ["1", "2"]
    world.desire(1)
    assert world.versions() == ["2"], "the oldest version ends first"
    missing = refused(lambda: world.group("x", LaunchTemplate={"LaunchTemplateName": "none"}))
    assert missing.message.startswith("You must use a valid fully-formed launch template.")


def test_mixed_instances(world: GroupWorld) -> None:
    world.template()
    policy = {
        "LaunchTemplate": {
            "LaunchTemplateSpecification": {"LaunchTemplateName": "tpl", "Version": "1"},
            "Overrides": [
                {"InstanceType": "p4d.24xlarge", "WeightedCapacity": "8"},
                {"InstanceType": GPUS_1, "WeightedCapacity": "1"},
                {"InstanceType": GPUS_4, "WeightedCapacity": "4"},
            ],
        },
        "InstancesDistribution": {"OnDemandBaseCapacity": 1, "OnDemandPercentageAboveBaseCapacity": 0},
    }
    small = GroupWorld(gpus=6)
    small.template()
    small.group(desired=4, MixedInstancesPolicy=policy)
    types = [each["InstanceType"] for each in small.shown()["Instances"]]
    assert types[0] == GPUS_1, "the first type never fits six GPUs; the second one does"
    assert small.states() == ["InService"] * len(types)
    lifecycles = [small.store.instances.by_ec2_id(each).details.get("InstanceLifecycle") for each in small.ids()]
    assert lifecycles[0] is None and set(lifecycles[1:]) == {"spot"}, "one on-demand unit, then spot"
    world.group(desired=8, MixedInstancesPolicy=policy)
    [only] = world.shown()["Instances"]
    assert (only["InstanceType"], only["WeightedCapacity"]) == ("p4d.24xlarge", "8"), "eight units in one instance"
    [alone] = world.call("DescribeAutoScalingInstances")["AutoScalingInstances"]
    assert alone["WeightedCapacity"] == "8"
    assert world.shown()["MixedInstancesPolicy"]["InstancesDistribution"]["SpotAllocationStrategy"] == "lowest-price"


def test_types_are_chosen_by_attributes(world: GroupWorld) -> None:
    world.template()
    wanted = {
        "VCpuCount": {"Min": 4, "Max": 16}, "MemoryMiB": {"Min": 16_384}, "AcceleratorTypes": ["gpu"],
        "AcceleratorManufacturers": ["nvidia"], "AcceleratorCount": {"Min": 1, "Max": 1}, "ExcludedInstanceTypes": ["g4dn*"],
    }  # fmt: skip
    specification = {"LaunchTemplateName": "tpl", "Version": "1"}
    template = {"LaunchTemplateSpecification": specification, "Overrides": [{"InstanceRequirements": wanted}]}
    world.group(desired=8, most=64, DesiredCapacityType="vcpu", MixedInstancesPolicy={"LaunchTemplate": template})
    shown = world.shown()
    assert shown["MixedInstancesPolicy"]["InstancesDistribution"]["OnDemandAllocationStrategy"] == "lowest-price"
    assert sum(int(each["WeightedCapacity"]) for each in shown["Instances"]) >= 8, "vCPUs"
    types = {each["InstanceType"] for each in shown["Instances"]}
    assert len(types) == 1 and not next(iter(types)).startswith("g4dn")
    nothing = {**template, "Overrides": [{"InstanceRequirements": {**wanted, "VCpuCount": {"Min": 5000}}}]}
    world.group("none", desired=1, MixedInstancesPolicy={"LaunchTemplate": nothing})
    assert "No instance type meets" in world.activities("none")[0]["StatusMessage"]
    assert "requires InstanceRequirements" in refused(lambda: world.group("x", DesiredCapacityType="vcpu")).message


def test_tags_are_propagated(world: GroupWorld) -> None:
    tags = [{"Key": "team", "Value": "a", "PropagateAtLaunch": True}, {"Key": "own", "Value": "b", "PropagateAtLaunch": False}]
    world.group(desired=1, Tags=tags)
    [instance_id] = world.ids()
    shown = {tag["Key"]: tag["Value"] for tag in world.store.instances.by_ec2_id(instance_id).details["Tags"]}
    assert shown == {"team": "a", "aws:autoscaling:groupName": "g"}
    assert [each["Key"] for each in world.shown()["Tags"]] == ["own", "team"]


def test_a_group_from_an_instance(world: GroupWorld) -> None:
    world.group("first", desired=1)
    [instance_id] = world.ids("first")
    world.group("copy", desired=1, InstanceId=instance_id)
    assert world.shown("copy")["LaunchConfigurationName"] == "copy"
    assert world.shown("copy")["Instances"][0]["InstanceType"] == GPUS_1


# Instance refreshes


def test_a_refresh_replaces_all_instances(world: GroupWorld) -> None:
    template_id = world.template()
    world.group(desired=4, LaunchTemplate={"LaunchTemplateName": "tpl", "Version": "1"})
    before = world.ids()
    world.call(
        "CreateLaunchTemplateVersion", "ec2", LaunchTemplateId=template_id, SourceVersion="1", LaunchTemplateData={"KeyName": ""}
    )
    wanted = {"LaunchTemplate": {"LaunchTemplateId": template_id, "Version": "2"}}
    preferences = {"MinHealthyPercentage": 50, "InstanceWarmup": 30}
    started = world.call("StartInstanceRefresh", AutoScalingGroupName="g", DesiredConfiguration=wanted, Preferences=preferences)
    world.settle()
    assert world.refreshes()[0]["Status"] == "InProgress"
    assert refused(lambda: world.call("StartInstanceRefresh", AutoScalingGroupName="g")).code == "InstanceRefreshInProgressFault"
    assert len(set(before) & set(world.ids())) == 2, "half of them at a time"
    world.wait(31)
    assert not set(before) & set(world.ids())
    world.wait(31)
    [done] = world.refreshes()
    assert (done["Status"], done["PercentageComplete"], done["InstancesToUpdate"]) == ("Successful", 100, 0)
    assert done["InstanceRefreshId"] == started["InstanceRefreshId"] and "EndTime" in done
    assert world.versions() == ["2"] * 4 and world.shown()["LaunchTemplate"]["Version"] == "2", (
        "the group has the new configuration"
    )
    assert any("in response to an instance refresh" in each["Cause"] for each in world.activities())


def test_skip_matching(world: GroupWorld) -> None:
    world.group(desired=2)
    before = world.ids()
    world.call("StartInstanceRefresh", AutoScalingGroupName="g", Preferences={"SkipMatching": True})
    world.settle()
    assert world.refreshes()[0]["Status"] == "Successful" and world.ids() == before


def test_cancel_and_rollback(world: GroupWorld) -> None:
    template_id = world.template()
    world.group(desired=2, LaunchTemplate={"LaunchTemplateName": "tpl", "Version": "1"})
    world.call(
        "CreateLaunchTemplateVersion", "ec2", LaunchTemplateId=template_id, SourceVersion="1", LaunchTemplateData={"KeyName": ""}
    )
    start = {
        "AutoScalingGroupName": "g",
        "DesiredConfiguration": {"LaunchTemplate": {"LaunchTemplateId": template_id, "Version": "2"}},
        "Preferences": {"MinHealthyPercentage": 50, "InstanceWarmup": 100},
    }
    world.call("StartInstanceRefresh", **start)
    world.settle()
    assert world.versions() == ["1", "2"]
    world.call("CancelInstanceRefresh", AutoScalingGroupName="g")
    world.wait(1000)
    assert (world.refreshes()[0]["Status"], world.versions()) == ("Cancelled", ["1", "2"])
    assert (
        refused(lambda: world.call("CancelInstanceRefresh", AutoScalingGroupName="g")).code == "ActiveInstanceRefreshNotFoundFault"
    )
    world.call("StartInstanceRefresh", **start)
    world.settle()
    assert world.versions() == ["2", "2"]
    world.call("RollbackInstanceRefresh", AutoScalingGroupName="g")
    world.wait(1000)
    assert world.refreshes()[0]["Status"] == "RollbackSuccessful" and world.versions() == ["1", "2"], "only its own changes"
    assert world.shown()["LaunchTemplate"]["Version"] == "1"
    world.call("StartInstanceRefresh", AutoScalingGroupName="g", Preferences={"InstanceWarmup": 100})
    assert (
        refused(lambda: world.call("RollbackInstanceRefresh", AutoScalingGroupName="g")).code == "IrreversibleInstanceRefreshFault"
    )


@pytest.mark.parametrize("rollback, status", [(False, "Failed"), (True, "RollbackSuccessful")])
def test_a_refresh_with_a_launch_that_never_fits_fails(rollback: bool, status: str) -> None:
    world = GroupWorld(gpus=4)
    template_id = world.template()
    world.group(desired=1, LaunchTemplate={"LaunchTemplateName": "tpl", "Version": "1"})
    world.call(
        "CreateLaunchTemplateVersion",
        "ec2",
        LaunchTemplateId=template_id,
        SourceVersion="1",
        LaunchTemplateData={"InstanceType": GPUS_8},
    )
    wanted = {"LaunchTemplate": {"LaunchTemplateId": template_id, "Version": "2"}}
    preferences = {"AutoRollback": rollback}
    world.call("StartInstanceRefresh", AutoScalingGroupName="g", DesiredConfiguration=wanted, Preferences=preferences)
    world.wait(60)
    [failed] = world.refreshes()
    assert failed["Status"] == status
    reason = failed["RollbackDetails"]["RollbackReason"] if rollback else failed["StatusReason"]
    assert "needs 8 GPUs" in reason
    assert world.versions() == ["1"], "launches use the group's own configuration again"


def test_a_refresh_says_that_it_waits_for_gpus(world: GroupWorld) -> None:
    world.group(desired=8)
    preferences = {"MinHealthyPercentage": 100, "MaxHealthyPercentage": 110, "InstanceWarmup": 0}
    world.call("StartInstanceRefresh", AutoScalingGroupName="g", Preferences=preferences)
    [shown] = world.call("DescribeInstanceRefreshes", AutoScalingGroupName="g")["InstanceRefreshes"]
    assert shown["Status"] == "InProgress"
    assert shown["StatusReason"].startswith("Waiting for capacity: instances hold 8 of 8 GPUs; needs 1 GPU; first in line; held by")
