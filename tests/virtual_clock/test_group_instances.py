"""Health checks, and what requests do to the instances of a group."""

from __future__ import annotations

import pytest

from corral.fleet import instances
from corral.model.agent_protocol import SILENT_S
from corral.model.instance import InstanceState
from virtual_clock.group_world import GroupWorld, refused


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


# Health


def test_a_dead_instance_is_replaced(world: GroupWorld) -> None:
    world.group(desired=2)
    before = world.ids()
    world.kill(before[0])
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
    world.kill(before)
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
    assert len(done) == 2 and world.ids() == [] and world.running() == 0


def test_detach_and_attach(world: GroupWorld) -> None:
    world.group(desired=2, most=3)
    gone, stays = world.ids()
    [done] = world.call("DetachInstances", InstanceIds=[gone], AutoScalingGroupName="g", ShouldDecrementDesiredCapacity=True)[
        "Activities"
    ]
    assert done["Description"] == f"Detaching EC2 instance: {gone}" and "shrinking the capacity from 2 to 1" in done["Cause"]
    world.settle()
    assert (world.ids(), world.shown()["DesiredCapacity"], world.running()) == ([stays], 1, 2), "it goes on running"
    kill_free = world.store.instances.by_ec2_id(gone)
    assert kill_free is not None and kill_free.group == ""
    world.call("AttachInstances", InstanceIds=[gone], AutoScalingGroupName="g")
    world.settle()
    assert (sorted(world.ids()), world.shown()["DesiredCapacity"]) == (sorted([gone, stays]), 2)
    assert "already part" in refused(lambda: world.call("AttachInstances", InstanceIds=[gone], AutoScalingGroupName="g")).message
    world.call("DetachInstances", InstanceIds=[gone], AutoScalingGroupName="g", ShouldDecrementDesiredCapacity=False)
    world.settle()
    assert len(world.ids()) == 2 and world.running() == 3, "replaced"
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", MaxSize=2)
    assert (
        "the desired capacity would be 3"
        in refused(lambda: world.call("AttachInstances", InstanceIds=[gone], AutoScalingGroupName="g")).message
    )


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
