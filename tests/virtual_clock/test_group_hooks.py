"""Lifecycle hooks: messages, timeouts, heartbeats and results."""

from __future__ import annotations

from typing import Any

import pytest

from virtual_clock.group_world import REGION, GroupWorld, refused

QUEUE = f"arn:aws:sqs:{REGION}:123456789012:hooks"


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


def hooked(world: GroupWorld, transition: str, **more: Any) -> None:
    world.call("CreateQueue", "sqs", QueueName="hooks")
    world.group()
    world.call(
        "PutLifecycleHook", AutoScalingGroupName="g", LifecycleHookName="hook",
        LifecycleTransition=f"autoscaling:EC2_INSTANCE_{transition}",
        NotificationTargetARN=QUEUE, RoleARN="arn:aws:iam::123456789012:role/r", HeartbeatTimeout=60,
        NotificationMetadata="note", **more,
    )  # fmt: skip
    [test] = world.messages("hooks")
    assert (test["Event"], test["Service"]) == ("autoscaling:TEST_NOTIFICATION", "AWS Auto Scaling")


def test_a_launch_hook_continues(world: GroupWorld) -> None:
    hooked(world, "LAUNCHING")
    world.desire(1)
    assert world.states() == ["Pending:Wait"] and world.activities()[0]["StatusCode"] == "MidLifecycleAction"
    [message] = world.messages("hooks")
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
    gone = {**named, "InstanceId": "i-0123456789abcdef0", "LifecycleActionResult": "CONTINUE"}
    text = "No active Lifecycle Action found with instance ID i-0123456789abcdef0"
    assert refused(lambda: world.call("CompleteLifecycleAction", **gone)).message == text


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


def test_a_termination_hook_times_out(world: GroupWorld) -> None:
    hooked(world, "TERMINATING")
    world.desire(1)
    world.desire(0)
    world.wait(59)
    assert world.states() == ["Terminating:Wait"]
    world.wait(2)
    assert world.states() == []


@pytest.mark.parametrize("result", ["CONTINUE", "ABANDON"])
def test_a_termination_hook_delays_the_end(world: GroupWorld, result: str) -> None:
    hooked(world, "TERMINATING")
    world.desire(1)
    [instance_id] = world.ids()
    world.desire(0)
    assert world.states() == ["Terminating:Wait"] and world.running() == 1
    again = {"InstanceId": instance_id, "ShouldDecrementDesiredCapacity": False}
    wrong = refused(lambda: world.call("TerminateInstanceInAutoScalingGroup", **again))
    assert (wrong.code, "is in progress" in wrong.message) == ("ScalingActivityInProgressFault", True)
    [message] = world.messages("hooks")
    assert message["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
    world.call(
        "CompleteLifecycleAction",
        AutoScalingGroupName="g",
        LifecycleHookName="hook",
        InstanceId=instance_id,
        LifecycleActionResult=result,
    )
    world.settle()
    assert world.states() == [] and world.running() == 0


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
