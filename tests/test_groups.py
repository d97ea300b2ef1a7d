"""Auto Scaling groups on a virtual clock: lifecycle hooks, health, refreshes, schedules, failures and retries."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from corral.errors import ApiError
from corral.model.instance import InstanceState
from corral.model.run import SILENT_S
from corral.services import instances
from group_world import GPUS_1, GPUS_4, GPUS_8, REGION, GroupWorld

HOUR = 3600.0
QUEUE = f"arn:aws:sqs:{REGION}:123456789012:hooks"


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


def refused(call: Callable[[], Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value


def messages(world: GroupWorld) -> list[dict[str, Any]]:
    url = world.call("GetQueueUrl", "sqs", QueueName="hooks")["QueueUrl"]
    found = world.call("ReceiveMessage", "sqs", QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0).get("Messages", [])
    return [json.loads(each["Body"]) for each in found]


def running(world: GroupWorld) -> int:
    return sum(each.state is InstanceState.RUNNING and not each.is_host for each in world.store.instances.all())


# Sizes


def test_zero_three_one_zero(world: GroupWorld) -> None:
    world.group()
    assert world.states() == []
    world.desire(3)
    assert world.states() == ["InService"] * 3 and running(world) == 3
    world.desire(1)
    assert world.states() == ["InService"] and running(world) == 1
    world.desire(0)
    assert world.states() == [] and running(world) == 0
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
    assert world.states() == [] and running(world) == 0


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


def test_a_launch_that_ec2_refuses_is_a_failed_activity(world: GroupWorld) -> None:
    world.configuration("keyed", KeyName="nothing")
    world.group(desired=1, LaunchConfigurationName="keyed")
    [failed] = world.activities()
    assert failed["StatusCode"] == "Failed" and "key pair 'nothing' does not exist" in failed["StatusMessage"]


# Health


def kill(world: GroupWorld, instance_id: str) -> None:
    def handler(tx: Any) -> None:
        instances.terminate(tx, tx.store.instances.by_ec2_id(instance_id), "a test")

    world.run(handler)
    world.settle()


def test_a_dead_instance_is_replaced(world: GroupWorld) -> None:
    world.group(desired=2)
    before = world.ids()
    kill(world, before[0])
    assert world.states() == ["InService"] * 2 and before[0] not in world.ids() and before[1] in world.ids()
    causes = [each["Cause"] for each in world.activities()[:2]]
    assert causes[0].endswith("an instance was launched in response to an unhealthy instance needing to be replaced.")
    assert causes[1].endswith(
        "an instance was taken out of service in response to an EC2 health check indicating it has been terminated or stopped."
    )


def test_a_stopped_instance_is_replaced(world: GroupWorld) -> None:
    world.group(desired=1)
    [before] = world.ids()
    world.run(lambda tx: instances.stop(tx, tx.store.instances.by_ec2_id(before), "a test"))
    world.settle()
    assert world.states() == ["InService"] and world.ids() != [before]
    assert world.store.instances.by_ec2_id(before).state is InstanceState.TERMINATED


@pytest.mark.parametrize("process", ["HealthCheck", "ReplaceUnhealthy", "Terminate"])
def test_suspended_processes_keep_a_dead_instance(world: GroupWorld, process: str) -> None:
    world.group(desired=1)
    [before] = world.ids()
    world.call("SuspendProcesses", AutoScalingGroupName="g", ScalingProcesses=[process])
    kill(world, before)
    assert world.ids() == [before]
    assert world.shown()["Instances"][0]["HealthStatus"] == ("Healthy" if process == "HealthCheck" else "Unhealthy")
    world.call("ResumeProcesses", AutoScalingGroupName="g")
    world.settle()
    assert world.states() == ["InService"] and world.ids() != [before]


def test_set_instance_health_and_the_grace_period(world: GroupWorld) -> None:
    world.group(desired=1, HealthCheckGracePeriod=300)
    [before] = world.ids()
    world.call("SetInstanceHealth", InstanceId=before, HealthStatus="Unhealthy")
    assert world.ids() == [before], "ignored during the grace period"
    world.call("SetInstanceHealth", InstanceId=before, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False)
    world.settle()
    [after] = world.ids()
    assert after != before
    world.wait(301)
    world.call("SetInstanceHealth", InstanceId=after, HealthStatus="Unhealthy")
    world.settle()
    assert world.ids() != [after]
    assert "in response to a user health-check" in world.activities()[1]["Cause"]
    assert refused(lambda: world.call("SetInstanceHealth", InstanceId=after, HealthStatus="Ill")).code == "ValidationError"


def test_an_instance_of_a_silent_host_is_replaced_after_a_while(world: GroupWorld) -> None:
    world.group(desired=1)
    [before] = world.ids()
    world.host_reports_until(world.clock.now_s())
    world.wait(SILENT_S + 1)
    assert world.ids() == [before] and world.shown()["Instances"][0]["HealthStatus"] == "Healthy"
    world.wait(121)
    assert world.ids() != [before] and world.states() == ["Pending"], "no other host has room for its successor"
    assert any("status checks failure" in each["Cause"] for each in world.activities())


def test_the_maximum_lifetime(world: GroupWorld) -> None:
    world.group(desired=2, MaxInstanceLifetime=86_400)
    before = set(world.ids())
    world.wait(86_000)
    assert set(world.ids()) == before
    world.wait(1000)
    assert not before & set(world.ids()) and world.states() == ["InService"] * 2
    assert any("maximum instance lifetime" in each["Cause"] for each in world.activities())
    assert (
        refused(lambda: world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", MaxInstanceLifetime=5)).code
        == "ValidationError"
    )


# Members by request


def test_terminate_by_request(world: GroupWorld) -> None:
    world.group(desired=3, MinSize=1)
    first, second, _ = world.ids()
    done = world.call("TerminateInstanceInAutoScalingGroup", InstanceId=first, ShouldDecrementDesiredCapacity=False)["Activity"]
    assert done["Description"] == f"Terminating EC2 instance: {first}" and done["StatusCode"] == "InProgress"
    world.settle()
    assert len(world.ids()) == 3 and first not in world.ids()
    world.call("TerminateInstanceInAutoScalingGroup", InstanceId=second, ShouldDecrementDesiredCapacity=True)
    world.settle()
    assert (len(world.ids()), world.shown()["DesiredCapacity"]) == (2, 2)
    both = world.ids()
    wrong = refused(
        lambda: world.call(
            "TerminateInstanceInAutoScalingGroup", InstanceIds=both, AutoScalingGroupName="g", ShouldDecrementDesiredCapacity=True
        )
    )
    assert "min size constraint" in wrong.message
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", MinSize=0)
    done = world.call(
        "TerminateInstanceInAutoScalingGroup", InstanceIds=both, AutoScalingGroupName="g", ShouldDecrementDesiredCapacity=True
    )["Activities"]
    world.settle()
    assert len(done) == 2 and world.ids() == [] and running(world) == 0


def test_detach_and_attach(world: GroupWorld) -> None:
    world.group(desired=2, most=3)
    gone, stays = world.ids()
    [done] = world.call("DetachInstances", InstanceIds=[gone], AutoScalingGroupName="g", ShouldDecrementDesiredCapacity=True)[
        "Activities"
    ]
    assert done["Description"] == f"Detaching EC2 instance: {gone}" and "shrinking the capacity from 2 to 1" in done["Cause"]
    world.settle()
    assert (world.ids(), world.shown()["DesiredCapacity"], running(world)) == ([stays], 1, 2), "it goes on running"
    kill_free = world.store.instances.by_ec2_id(gone)
    assert kill_free is not None and kill_free.group == ""
    world.call("AttachInstances", InstanceIds=[gone], AutoScalingGroupName="g")
    world.settle()
    assert (sorted(world.ids()), world.shown()["DesiredCapacity"]) == (sorted([gone, stays]), 2)
    assert "already part" in refused(lambda: world.call("AttachInstances", InstanceIds=[gone], AutoScalingGroupName="g")).message
    world.call("DetachInstances", InstanceIds=[gone], AutoScalingGroupName="g", ShouldDecrementDesiredCapacity=False)
    world.settle()
    assert len(world.ids()) == 2 and running(world) == 3, "replaced"
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", MaxSize=2)
    assert "would exceed" in refused(lambda: world.call("AttachInstances", InstanceIds=[gone], AutoScalingGroupName="g")).message


def test_standby(world: GroupWorld) -> None:
    world.group(desired=2, most=3)
    first, _ = world.ids()
    [done] = world.call("EnterStandby", InstanceIds=[first], AutoScalingGroupName="g", ShouldDecrementDesiredCapacity=True)[
        "Activities"
    ]
    assert done["Description"] == f"Moving EC2 instance to Standby: {first}"
    assert (world.states(), world.shown()["DesiredCapacity"]) == (["Standby", "InService"], 1)
    [done] = world.call("ExitStandby", InstanceIds=[first], AutoScalingGroupName="g")["Activities"]
    assert "increasing the capacity from 1 to 2" in done["Cause"]
    assert (world.states(), world.shown()["DesiredCapacity"]) == (["InService"] * 2, 2)
    world.call("EnterStandby", InstanceIds=[first], AutoScalingGroupName="g", ShouldDecrementDesiredCapacity=False)
    world.settle()
    assert sorted(world.states()) == ["InService", "InService", "Standby"], "replaced"
    world.desire(0)
    assert world.states() == ["Standby"]
    assert (
        "not in InService"
        in refused(
            lambda: world.call("EnterStandby", InstanceIds=[first], AutoScalingGroupName="g", ShouldDecrementDesiredCapacity=True)
        ).message
    )


def test_protection(world: GroupWorld) -> None:
    world.group(desired=2, NewInstancesProtectedFromScaleIn=True)
    world.desire(0)
    assert world.states() == ["InService"] * 2
    free, _ = world.ids()
    world.call("SetInstanceProtection", InstanceIds=[free], AutoScalingGroupName="g", ProtectedFromScaleIn=False)
    world.settle()
    assert len(world.ids()) == 1 and free not in world.ids()


# Deletion


def test_delete(world: GroupWorld) -> None:
    world.group(desired=2)
    world.call("PutScalingPolicy", AutoScalingGroupName="g", PolicyName="p", AdjustmentType="ChangeInCapacity", ScalingAdjustment=1)
    assert refused(lambda: world.call("DeleteAutoScalingGroup", AutoScalingGroupName="g")).code == "ResourceInUseFault"
    world.call("DeleteAutoScalingGroup", AutoScalingGroupName="g", ForceDelete=True)
    world.settle()
    assert world.shown() is None and running(world) == 0
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
    assert world.shown() is None and running(world) == 0


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


# Lifecycle hooks


def hooked(world: GroupWorld, transition: str, **more: Any) -> None:
    world.call("CreateQueue", "sqs", QueueName="hooks")
    world.group()
    world.call(
        "PutLifecycleHook", AutoScalingGroupName="g", LifecycleHookName="hook",
        LifecycleTransition=f"autoscaling:EC2_INSTANCE_{transition}",
        NotificationTargetARN=QUEUE, RoleARN="arn:aws:iam::123456789012:role/r", HeartbeatTimeout=60,
        NotificationMetadata="note", **more,
    )  # fmt: skip
    [test] = messages(world)
    assert (test["Event"], test["Service"]) == ("autoscaling:TEST_NOTIFICATION", "AWS Auto Scaling")


def test_a_launch_hook_continues(world: GroupWorld) -> None:
    hooked(world, "LAUNCHING")
    world.desire(1)
    assert world.states() == ["Pending:Wait"] and world.activities()[0]["StatusCode"] == "MidLifecycleAction"
    [message] = messages(world)
    [instance_id] = world.ids()
    assert message["EC2InstanceId"] == instance_id and message["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_LAUNCHING"
    assert (message["LifecycleHookName"], message["AutoScalingGroupName"], message["NotificationMetadata"]) == ("hook", "g", "note")
    named = {"AutoScalingGroupName": "g", "LifecycleHookName": "hook"}
    wrong = {**named, "LifecycleActionToken": "0" * 36, "LifecycleActionResult": "CONTINUE"}
    assert "No active Lifecycle Action" in refused(lambda: world.call("CompleteLifecycleAction", **wrong)).message
    right = {**named, "LifecycleActionToken": message["LifecycleActionToken"], "LifecycleActionResult": "CONTINUE"}
    world.call("CompleteLifecycleAction", **right)
    assert world.states() == ["InService"] and world.activities()[0]["StatusCode"] == "Successful"
    assert refused(lambda: world.call("CompleteLifecycleAction", **right)).code == "ValidationError"


@pytest.mark.parametrize("default, expected", [("CONTINUE", ["InService"]), ("ABANDON", ["Pending:Wait"])])
def test_a_hook_that_times_out_has_its_default_result(world: GroupWorld, default: str, expected: list[str]) -> None:
    hooked(world, "LAUNCHING", DefaultResult=default)
    world.desire(1)
    [before] = world.ids()
    world.wait(59)
    assert (world.ids(), world.states()) == ([before], ["Pending:Wait"])
    world.wait(2)
    assert world.states() == expected, "an abandoned instance is replaced, and its successor waits"
    assert (world.ids() == [before]) == (default == "CONTINUE")


def test_heartbeats_extend_the_wait_up_to_the_global_timeout(world: GroupWorld) -> None:
    hooked(world, "LAUNCHING", DefaultResult="CONTINUE")
    world.desire(1)
    [instance_id] = world.ids()
    named = {"AutoScalingGroupName": "g", "LifecycleHookName": "hook", "InstanceId": instance_id}
    assert world.call("DescribeLifecycleHooks", AutoScalingGroupName="g")["LifecycleHooks"][0]["GlobalTimeout"] == 6000
    for _ in range(119):
        world.wait(50)
        assert world.states() == ["Pending:Wait"]
        world.call("RecordLifecycleActionHeartbeat", **named)
    world.wait(51)
    assert world.states() == ["InService"], "after 6,000 seconds in all"


def test_an_abandoned_launch_is_terminated(world: GroupWorld) -> None:
    hooked(world, "LAUNCHING")
    world.desire(1)
    [before] = world.ids()
    world.call(
        "CompleteLifecycleAction",
        AutoScalingGroupName="g",
        LifecycleHookName="hook",
        InstanceId=before,
        LifecycleActionResult="ABANDON",
    )
    world.settle()
    assert world.ids() != [before] and world.states() == ["Pending:Wait"]
    assert any(each["StatusCode"] == "Cancelled" for each in world.activities())


@pytest.mark.parametrize("result", ["CONTINUE", "ABANDON"])
def test_a_termination_hook_delays_the_end(world: GroupWorld, result: str) -> None:
    hooked(world, "TERMINATING")
    world.desire(1)
    [instance_id] = world.ids()
    world.desire(0)
    assert world.states() == ["Terminating:Wait"] and running(world) == 1
    [message] = messages(world)
    assert message["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
    world.call(
        "CompleteLifecycleAction",
        AutoScalingGroupName="g",
        LifecycleHookName="hook",
        InstanceId=instance_id,
        LifecycleActionResult=result,
    )
    world.settle()
    assert world.states() == [] and running(world) == 0


def test_two_hooks_must_both_continue(world: GroupWorld) -> None:
    world.group()
    for name in ("one", "two"):
        world.call(
            "PutLifecycleHook",
            AutoScalingGroupName="g",
            LifecycleHookName=name,
            LifecycleTransition="autoscaling:EC2_INSTANCE_LAUNCHING",
        )
    world.desire(1)
    [instance_id] = world.ids()
    for name, state in (("one", "Pending:Wait"), ("two", "InService")):
        world.call(
            "CompleteLifecycleAction",
            AutoScalingGroupName="g",
            LifecycleHookName=name,
            InstanceId=instance_id,
            LifecycleActionResult="CONTINUE",
        )
        assert world.states() == [state]


def test_deleting_a_hook_completes_its_actions(world: GroupWorld) -> None:
    hooked(world, "TERMINATING")
    world.desire(1)
    world.desire(0)
    world.call("DeleteLifecycleHook", AutoScalingGroupName="g", LifecycleHookName="hook")
    world.settle()
    assert world.states() == []


def test_a_hook_needs_a_queue_that_exists(world: GroupWorld) -> None:
    world.group()
    wrong = refused(
        lambda: world.call(
            "PutLifecycleHook", AutoScalingGroupName="g", LifecycleHookName="h",
            LifecycleTransition="autoscaling:EC2_INSTANCE_LAUNCHING",
            NotificationTargetARN=QUEUE,
        )
    )  # fmt: skip
    assert "Unable to publish test message" in wrong.message
    assert world.call("DescribeLifecycleHooks", AutoScalingGroupName="g")["LifecycleHooks"] == []


# Launch templates and mixed instances


def versions(world: GroupWorld) -> list[str]:
    return sorted(each["LaunchTemplate"]["Version"] for each in world.shown()["Instances"])


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
    assert versions(world) == ["1", "2"]
    world.desire(1)
    assert versions(world) == ["2"], "the oldest version ends first"
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
    assert world.shown()["MixedInstancesPolicy"]["InstancesDistribution"]["SpotAllocationStrategy"] == "lowest-price"


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


def refreshes(world: GroupWorld) -> list[dict[str, Any]]:
    return list(world.call("DescribeInstanceRefreshes", AutoScalingGroupName="g")["InstanceRefreshes"])


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
    assert refreshes(world)[0]["Status"] == "InProgress"
    assert refused(lambda: world.call("StartInstanceRefresh", AutoScalingGroupName="g")).code == "InstanceRefreshInProgressFault"
    assert len(set(before) & set(world.ids())) == 2, "half of them at a time"
    world.wait(31)
    assert not set(before) & set(world.ids())
    world.wait(31)
    [done] = refreshes(world)
    assert (done["Status"], done["PercentageComplete"], done["InstancesToUpdate"]) == ("Successful", 100, 0)
    assert done["InstanceRefreshId"] == started["InstanceRefreshId"] and "EndTime" in done
    assert versions(world) == ["2"] * 4 and world.shown()["LaunchTemplate"]["Version"] == "2", "the group has the new configuration"
    assert any("in response to an instance refresh" in each["Cause"] for each in world.activities())


def test_skip_matching(world: GroupWorld) -> None:
    world.group(desired=2)
    before = world.ids()
    world.call("StartInstanceRefresh", AutoScalingGroupName="g", Preferences={"SkipMatching": True})
    world.settle()
    assert refreshes(world)[0]["Status"] == "Successful" and world.ids() == before


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
    assert versions(world) == ["1", "2"]
    world.call("CancelInstanceRefresh", AutoScalingGroupName="g")
    world.wait(1000)
    assert (refreshes(world)[0]["Status"], versions(world)) == ("Cancelled", ["1", "2"])
    assert (
        refused(lambda: world.call("CancelInstanceRefresh", AutoScalingGroupName="g")).code == "ActiveInstanceRefreshNotFoundFault"
    )
    world.call("StartInstanceRefresh", **start)
    world.settle()
    assert versions(world) == ["2", "2"]
    world.call("RollbackInstanceRefresh", AutoScalingGroupName="g")
    world.wait(1000)
    assert refreshes(world)[0]["Status"] == "RollbackSuccessful" and versions(world) == ["1", "2"], "only its own changes"
    assert world.shown()["LaunchTemplate"]["Version"] == "1"
    world.call("StartInstanceRefresh", AutoScalingGroupName="g", Preferences={"InstanceWarmup": 100})
    assert (
        refused(lambda: world.call("RollbackInstanceRefresh", AutoScalingGroupName="g")).code == "IrreversibleInstanceRefreshFault"
    )


def test_a_refresh_with_a_launch_that_never_fits_fails() -> None:
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
    world.call("StartInstanceRefresh", AutoScalingGroupName="g", DesiredConfiguration=wanted)
    world.wait(60)
    [failed] = refreshes(world)
    assert failed["Status"] == "Failed" and "needs 8 GPUs" in failed["StatusReason"]
    assert versions(world) == ["1"], "launches use the group's own configuration again"


# Policies, cooldowns and schedules


def test_policies(world: GroupWorld) -> None:
    world.group(desired=1, DefaultCooldown=60)
    simple = {
        "AutoScalingGroupName": "g",
        "PolicyName": "out",
        "AdjustmentType": "ChangeInCapacity",
        "ScalingAdjustment": 2,
        "Cooldown": 30,
    }
    arn = world.call("PutScalingPolicy", **simple)["PolicyARN"]
    world.wait(61)
    world.call("ExecutePolicy", PolicyName=arn, HonorCooldown=True)
    world.settle()
    assert len(world.ids()) == 3
    assert "a user request executed policy out changing the desired capacity from 1 to 3." in world.activities()[0]["Cause"]
    wrong = refused(lambda: world.call("ExecutePolicy", PolicyName="out", AutoScalingGroupName="g", HonorCooldown=True))
    assert wrong.code == "ScalingActivityInProgressFault" and "cooldown" in wrong.message
    world.wait(31)
    world.call("ExecutePolicy", PolicyName="out", AutoScalingGroupName="g", HonorCooldown=True)
    assert world.shown()["DesiredCapacity"] == 5, "after the policy's own cooldown of 30 seconds"
    steps = [
        {"MetricIntervalUpperBound": -10.0, "ScalingAdjustment": -100},
        {"MetricIntervalLowerBound": -10.0, "MetricIntervalUpperBound": 0.0, "ScalingAdjustment": -50},
    ]
    step = {
        "AutoScalingGroupName": "g",
        "PolicyName": "in",
        "PolicyType": "StepScaling",
        "AdjustmentType": "PercentChangeInCapacity",
    }
    world.call("PutScalingPolicy", **step, StepAdjustments=steps)
    world.call("ExecutePolicy", PolicyName="in", AutoScalingGroupName="g", MetricValue=45.0, BreachThreshold=50.0)
    assert world.shown()["DesiredCapacity"] == 3
    covered = refused(
        lambda: world.call("ExecutePolicy", PolicyName="in", AutoScalingGroupName="g", MetricValue=55.0, BreachThreshold=50.0)
    )
    assert "no step adjustment" in covered.message
    world.call("ExecutePolicy", PolicyName="in", AutoScalingGroupName="g", MetricValue=5.0, BreachThreshold=50.0)
    world.settle()
    assert world.ids() == []


def test_set_desired_capacity_may_honor_the_cooldown(world: GroupWorld) -> None:
    world.group(desired=1, DefaultCooldown=60)
    again = {"AutoScalingGroupName": "g", "DesiredCapacity": 2, "HonorCooldown": True}
    assert refused(lambda: world.call("SetDesiredCapacity", **again)).code == "ScalingActivityInProgressFault"
    world.wait(61)
    world.call("SetDesiredCapacity", **again)
    assert world.shown()["DesiredCapacity"] == 2


def test_scheduled_actions(world: GroupWorld) -> None:
    world.group(most=5)
    now_s = world.clock.now_s()
    named = {"AutoScalingGroupName": "g"}
    world.call("PutScheduledUpdateGroupAction", **named, ScheduledActionName="once", StartTime=now_s + 60, DesiredCapacity=2)
    world.call(
        "PutScheduledUpdateGroupAction", **named, ScheduledActionName="daily", Recurrence="0 9 * * *", TimeZone="Europe/Berlin",
        MinSize=1, DesiredCapacity=3,
    )  # fmt: skip
    world.call(
        "PutScheduledUpdateGroupAction",
        **named,
        ScheduledActionName="nightly",
        Recurrence="0 20 * * *",
        MinSize=0,
        DesiredCapacity=0,
    )
    world.wait(61)
    assert len(world.ids()) == 2 and "the scheduled action once executed" in world.activities()[0]["Cause"]
    names = [each["ScheduledActionName"] for each in world.call("DescribeScheduledActions", **named)["ScheduledUpdateGroupActions"]]
    assert names == ["daily", "nightly"], "an action that has run for the last time is gone"
    world.wait(8 * HOUR)
    assert (len(world.ids()), world.shown()["MinSize"]) == (3, 1), "09:00 in Berlin is 08:00 UTC in winter"
    world.wait(12 * HOUR)
    assert world.ids() == []
    world.wait(12 * HOUR)
    assert len(world.ids()) == 3, "again the next day"
    past = refused(
        lambda: world.call("PutScheduledUpdateGroupAction", **named, ScheduledActionName="x", StartTime=now_s, MinSize=1)
    )
    assert past.message == "Given start time is in the past"
    assert (
        "time zone"
        in refused(
            lambda: world.call(
                "PutScheduledUpdateGroupAction",
                **named,
                ScheduledActionName="x",
                Recurrence="0 0 * * *",
                TimeZone="Mars",
                MinSize=1,
            )
        ).message
    )


def test_scheduled_actions_are_suspended(world: GroupWorld) -> None:
    world.group()
    world.call("SuspendProcesses", AutoScalingGroupName="g", ScalingProcesses=["ScheduledActions"])
    world.call(
        "PutScheduledUpdateGroupAction",
        AutoScalingGroupName="g",
        ScheduledActionName="x",
        Recurrence="* * * * *",
        DesiredCapacity=1,
    )
    world.wait(150)
    assert world.ids() == []
    world.call("ResumeProcesses", AutoScalingGroupName="g", ScalingProcesses=["ScheduledActions"])
    world.wait(60)
    assert len(world.ids()) == 1


def test_old_activities_are_dropped(world: GroupWorld) -> None:
    world.group(desired=1)
    world.wait(20 * 86_400)
    world.desire(0)
    assert len(world.activities()) == 2
    world.wait(23 * 86_400)
    assert len(world.activities()) == 1
    world.wait(23 * 86_400)
    assert world.activities() == [] and world.store.execute("SELECT count(*) FROM scaling_activity").fetchone()[0] == 0


def test_an_idle_group_is_never_due(world: GroupWorld) -> None:
    world.group(desired=2)
    world.settle()
    keys = [key for (key,) in world.store.execute("SELECT key FROM due").fetchall()]
    assert not [key for key in keys if key.startswith(("group:", "schedule:"))]
