"""Alarms apply the scaling policies of Auto Scaling groups."""

from __future__ import annotations

import pytest

from virtual_clock.scaling_world import LOAD, ScalingWorld

OUT_1 = {"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}
DONE = "Successfully executed action p"


def due(world: ScalingWorld) -> list[str]:
    """The reconcilers of groups and policies that will run."""
    keys = [key for (key,) in world.store.execute("SELECT key FROM due ORDER BY key")]
    return [key for key in keys if key.startswith(("group:", "scaling:"))]


# One policy for both states


def test_a_queue_scales_a_group_from_zero_and_back() -> None:
    """The flow of the guide: one ExactCapacity policy on both states of an alarm on the average of 300 seconds."""
    world = ScalingWorld()
    world.group(most=2)
    policy = world.policy()
    world.alarm(Period=300, AlarmActions=[policy], OKActions=[policy])
    world.publish(0, 60)
    assert (world.state(), world.desired(), world.acted()) == ("OK", 0, [DONE])
    world.publish(1)
    assert (world.desired(), world.states()) == (1, ["InService"]), "in the second of the first message"
    assert (
        "a monitor alarm busy in state ALARM triggered policy p changing the desired capacity from 0 to 1."
        in (world.activities()[0]["Cause"])
    )
    world.publish(50, 20)
    assert world.desired() == 1
    world.publish(150)
    assert world.desired() == 2, "the alarm stays in ALARM, and its value reaches the next step"
    world.publish(0, 299)
    assert (world.state(), world.desired()) == ("ALARM", 2), "some second of the last period needs two"
    world.publish(0, 62)
    assert (world.state(), world.desired(), world.ids()) == ("OK", 0, [])
    causes = [each["Cause"] for each in world.activities()[:2]]
    assert all("busy in state OK triggered policy p changing the desired capacity from 2 to 0." in cause for cause in causes)
    assert world.acted() == [DONE, DONE, DONE]
    world.publish(0, 120)
    assert due(world) == []


def test_with_the_timing_of_aws_the_average_decides() -> None:
    world = ScalingWorld("aws")
    world.group(most=2, DefaultInstanceWarmup=0)
    policy = world.policy()
    world.alarm(AlarmActions=[policy], OKActions=[policy])
    world.publish(50, 61)
    assert (world.state(), world.desired()) == ("ALARM", 1)
    world.publish(150, 58)
    assert world.desired() == 1
    world.publish(150, 2)
    assert world.desired() == 2
    world.publish(0, 62)
    assert (world.state(), world.desired()) == ("ALARM", 1), "the average is 2.5, because one second of the minute was busy"
    world.publish(0, 60)
    assert (world.state(), world.desired()) == ("OK", 0)


def test_the_capacity_falls_while_the_alarm_stays_when_no_second_needs_it() -> None:
    world = ScalingWorld()
    world.group(most=2, DefaultInstanceWarmup=0)
    policy = world.policy()
    world.alarm(AlarmActions=[policy], OKActions=[policy])
    world.publish(150, 60)
    assert world.desired() == 2
    world.publish(50, 58)
    assert world.desired() == 2
    world.publish(50, 3)
    assert (world.state(), world.desired()) == ("ALARM", 1)


# Steps and warm-up


def test_instances_that_warm_up_do_not_count_for_the_next_step() -> None:
    """The example of AWS's guide: 10% above 60, 30% above 75, on 10 instances."""
    world = ScalingWorld(gpus=16)
    world.group(desired=10, most=16)
    steps = [
        {"MetricIntervalLowerBound": 0.0, "MetricIntervalUpperBound": 15.0, "ScalingAdjustment": 10},
        {"MetricIntervalLowerBound": 15.0, "ScalingAdjustment": 30},
    ]
    policy = world.policy(AdjustmentType="PercentChangeInCapacity", StepAdjustments=steps, EstimatedInstanceWarmup=200)
    world.alarm(metric=LOAD, Threshold=60.0, AlarmActions=[policy], TreatMissingData="ignore")
    world.wait(250)
    world.set_state("ALARM", 60.0)
    assert world.desired() == 11
    world.set_state("ALARM", 70.0)
    assert world.desired() == 11, "a breach in the range of the same step"
    world.set_state("ALARM", 75.0)
    assert world.desired() == 13, "30% of 10"
    world.wait(190)
    assert world.desired() == 13
    world.wait(20)
    assert world.desired() == 14, "the warm-up of the first instance is over, and the alarm stays in ALARM: 30% of 11 is 3"
    world.wait(60)
    assert world.desired() == 16, "30% of 13, because the last instance warms up"


def test_a_step_is_applied_once_a_minute_without_a_warm_up() -> None:
    world = ScalingWorld()
    world.group(most=4)
    policy = world.policy(AdjustmentType="ChangeInCapacity", StepAdjustments=[OUT_1], EstimatedInstanceWarmup=0)
    world.alarm(metric=LOAD, TreatMissingData="ignore", AlarmActions=[policy])
    world.set_state("ALARM", 5.0)
    assert world.desired() == 1
    for expected in (2, 3, 4):
        world.wait(58)
        assert world.desired() == expected - 1
        world.wait(2.1)
        assert world.desired() == expected
    world.wait(120)
    assert (world.desired(), due(world)) == (4, []), "the group has its maximum size"
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", MaxSize=5)
    world.settle()
    assert world.desired() == 5
    world.set_state("OK")
    world.call("SetDesiredCapacity", AutoScalingGroupName="g", DesiredCapacity=1)
    world.wait(120)
    assert world.desired() == 1, "without an alarm in ALARM, nothing is applied"


def test_a_scale_in_waits_for_the_warm_up_and_for_instances_that_terminate() -> None:
    world = ScalingWorld()
    world.group(desired=3, DefaultCooldown=100)
    world.call(
        "PutLifecycleHook", AutoScalingGroupName="g", LifecycleHookName="h", HeartbeatTimeout=90,
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
    )  # fmt: skip
    steps = [{"MetricIntervalUpperBound": 0.0, "ScalingAdjustment": -1}]
    policy = world.policy(AdjustmentType="ChangeInCapacity", StepAdjustments=steps)
    idle = {"ComparisonOperator": "LessThanThreshold", "Threshold": 10.0, "TreatMissingData": "ignore"}
    world.alarm("idle", LOAD, AlarmActions=[policy], **idle)
    world.set_state("ALARM", 1.0, "idle")
    assert world.desired() == 3, "the default cooldown is the warm-up if no other is given"
    assert "warming up" in world.acted("idle")[0]
    world.wait(100)
    assert (world.desired(), world.acted("idle")[-1]) == (2, DONE)
    world.wait(80)
    assert world.desired() == 2, "an instance that terminates still counts"
    world.wait(20)
    assert world.desired() == 1


def test_a_launch_that_waits_for_gpus_does_not_delay_a_scale_in() -> None:
    world = ScalingWorld(gpus=1)
    world.group(most=2, DefaultInstanceWarmup=10)
    policy = world.policy()
    world.alarm(AlarmActions=[policy], OKActions=[policy])
    world.publish(150, 5)
    assert sorted(world.states()) == ["InService", "Pending"]
    world.publish(0, 125)
    assert (world.desired(), world.ids()) == (0, [])


def test_one_idle_second_does_not_scale_in() -> None:
    """An alarm that goes off below a threshold does so in a second, but the policy scales in only after whole periods."""
    world = ScalingWorld()
    world.group(desired=2, DefaultCooldown=0)
    steps = [{"MetricIntervalUpperBound": 0.0, "ScalingAdjustment": 0}]
    step = world.policy(StepAdjustments=steps)
    simple = {"PolicyType": "SimpleScaling", "AdjustmentType": "ChangeInCapacity", "StepAdjustments": None}
    other = world.policy("s", **simple, ScalingAdjustment=-1, Cooldown=0)
    low = {"ComparisonOperator": "LessThanThreshold", "Threshold": 1.0}
    world.alarm("idle", AlarmActions=[step, other], **low)
    world.publish(40, 60)
    world.publish(0)
    assert (world.state("idle"), world.desired()) == ("ALARM", 2)
    world.publish(40, 59)
    world.publish(0, 58)
    assert world.desired() == 2
    world.publish(0, 5)
    assert world.desired() == 1, "the policy with the larger capacity wins"
    world.publish(0, 62)
    assert world.desired() == 0, "again after a minute"


# Simple policies


def test_a_simple_policy_waits_for_its_cooldown() -> None:
    world = ScalingWorld()
    world.group(most=6, DefaultCooldown=200)
    simple = {"PolicyType": "SimpleScaling", "AdjustmentType": "ChangeInCapacity", "StepAdjustments": None}
    policy = world.policy(**simple, ScalingAdjustment=2, Cooldown=90)
    world.alarm(metric=LOAD, TreatMissingData="ignore", AlarmActions=[policy])
    world.set_state("ALARM")
    assert world.desired() == 2
    world.wait(88)
    assert world.desired() == 2
    world.wait(3)
    assert world.desired() == 4, "again after the cooldown, while the alarm stays"
    world.set_state("OK")
    world.wait(10)
    world.set_state("ALARM")
    assert world.desired() == 4
    assert world.acted()[-1].startswith("Failed to execute action p. Reason: The cooldown of AutoScalingGroup g lasts until")
    world.wait(90)
    assert (world.desired(), world.acted()[-1]) == (6, DONE)
    world.wait(300)
    assert (world.desired(), due(world)) == (6, [])


def test_a_simple_policy_does_not_add_launches_while_one_waits_for_gpus() -> None:
    world = ScalingWorld(gpus=1)
    world.group(most=6, DefaultCooldown=0)
    simple = {"PolicyType": "SimpleScaling", "AdjustmentType": "ChangeInCapacity", "StepAdjustments": None}
    more, less = world.policy("more", **simple, ScalingAdjustment=1), world.policy("less", **simple, ScalingAdjustment=-1)
    world.alarm(metric=LOAD, TreatMissingData="ignore", AlarmActions=[more], OKActions=[less])
    world.set_state("ALARM")
    world.wait(600)
    assert (world.desired(), sorted(world.states())) == (2, ["InService", "Pending"])
    world.set_state("OK")
    assert (world.desired(), world.states()) == (1, ["InService"]), "a scale-in does not wait for the launch"


# Why a policy does nothing


def test_the_history_says_why_a_policy_does_nothing() -> None:
    world = ScalingWorld()
    world.group()
    policy = world.policy()
    steps = [{"MetricIntervalUpperBound": 0.0, "ScalingAdjustment": 0}]
    world.policy(Enabled=False)
    world.alarm(metric=LOAD, TreatMissingData="ignore", AlarmActions=[policy])

    def goes_off(value: float | None = 5.0) -> str:
        world.set_state("OK")
        world.set_state("ALARM", value)
        return world.acted()[-1].partition("Reason: ")[2]

    assert goes_off() == "The policy p is disabled."
    world.policy()
    assert (world.desired(), world.acted()[-1]) == (1, DONE), "the request is still there when the policy is enabled"
    world.call("SuspendProcesses", AutoScalingGroupName="g", ScalingProcesses=["AlarmNotification"])
    assert goes_off(150.0) == "The process AlarmNotification of AutoScalingGroup g is suspended."
    assert world.desired() == 1
    world.call("ResumeProcesses", AutoScalingGroupName="g", ScalingProcesses=["AlarmNotification"])
    world.settle()
    assert world.desired() == 2
    assert goes_off(None) == "The alarm has no value, and the policy needs one to choose its step."
    world.policy(StepAdjustments=steps)
    assert goes_off() == "No step adjustment found for metric value 5.0 and breach threshold 0.0."
    world.call("DeletePolicy", PolicyName=policy)
    assert goes_off().endswith("does not exist.")
    foreign = "arn:aws:autoscaling:us-east-1:123456789012:scalingPolicy:x:resource/ecs/service/c/s:policyName/p"
    world.alarm(metric=LOAD, TreatMissingData="ignore", AlarmActions=[foreign])
    assert goes_off() == "The scaling policy p does not exist."
    predictive = {"MetricSpecifications": [{"TargetValue": 50.0}]}
    stored = world.policy(
        "f", PolicyType="PredictiveScaling", PredictiveScalingConfiguration=predictive, AdjustmentType=None, StepAdjustments=None
    )
    world.alarm(metric=LOAD, TreatMissingData="ignore", AlarmActions=[stored])
    assert "PredictiveScaling, which alarms cannot apply" in goes_off()


def test_policies_list_their_alarms() -> None:
    world = ScalingWorld()
    world.group()
    policy, other = world.policy(), world.policy("other")

    def alarms(name: str = "p") -> list[str]:
        found = world.call("DescribePolicies", AutoScalingGroupName="g", PolicyNames=[name])["ScalingPolicies"][0]["Alarms"]
        assert all(each["AlarmARN"].endswith(f":alarm:{each['AlarmName']}") for each in found)
        return [each["AlarmName"] for each in found]

    world.alarm("a", AlarmActions=[policy], OKActions=[other])
    world.alarm("b", InsufficientDataActions=[policy])
    assert (alarms(), alarms("other")) == (["a", "b"], ["a"])
    world.alarm("a", OKActions=[policy])
    assert (alarms(), alarms("other")) == (["a", "b"], [])
    world.watch("DisableAlarmActions", AlarmNames=["a"])
    world.alarm("b")
    assert alarms() == ["a"]
    world.watch("DeleteAlarms", AlarmNames=["a", "b"])
    assert alarms() == []


def test_disabled_actions_scale_nothing() -> None:
    world = ScalingWorld()
    world.group(most=2)
    policy = world.policy()
    world.alarm(AlarmActions=[policy])
    world.watch("DisableAlarmActions", AlarmNames=["busy"])
    world.publish(5, 61)
    assert (world.state(), world.desired()) == ("ALARM", 0)
    world.watch("EnableAlarmActions", AlarmNames=["busy"])
    world.publish(5, 60)
    assert world.desired() == 1
    world.watch("DisableAlarmActions", AlarmNames=["busy"])
    world.publish(150, 60)
    assert world.desired() == 1


@pytest.mark.parametrize("update", [False, True])
def test_a_policy_continues_after_its_alarm_was_updated_or_enabled(update: bool) -> None:
    """The metric has no new datapoints, and the alarm stays in its state."""
    world = ScalingWorld()
    world.group(most=9, DefaultCooldown=60)
    simple = {"PolicyType": "SimpleScaling", "AdjustmentType": "ChangeInCapacity", "StepAdjustments": None}
    given = {"metric": LOAD, "TreatMissingData": "ignore", "AlarmActions": [world.policy(**simple, ScalingAdjustment=1)]}
    world.alarm(**given)
    world.put(150.0)
    world.wait(700)
    assert (world.state(), world.desired()) == ("ALARM", 9)
    if update:
        world.alarm(**given, AlarmDescription="new")
        world.alarm(**given, AlarmDescription="newer")
    else:
        for operation in ("DisableAlarmActions", "EnableAlarmActions"):
            world.watch(operation, AlarmNames=["busy"])
    world.desire(0)
    world.wait(200)
    assert (world.state(), world.desired()) == ("ALARM", 3), "after 60, 120 and 180 seconds"


def test_a_user_may_set_the_capacity_for_a_minute() -> None:
    """As on AWS, a policy that is repeated overrides the user later."""
    world = ScalingWorld()
    world.group(most=4, DefaultInstanceWarmup=0)
    policy = world.policy()
    world.alarm(AlarmActions=[policy], OKActions=[policy])
    world.publish(0, 120)
    world.desire(3)
    world.publish(0, 58)
    assert world.desired() == 3
    world.publish(0, 5)
    assert (world.desired(), due(world)) == (0, [])
    world.desire(1)
    world.publish(150)
    assert world.desired() == 2, "a change of the alarm's state is applied at once"


def test_what_a_user_has_set_before_an_alarm_does_not_delay_the_next_step() -> None:
    world = ScalingWorld()
    world.group(most=4, DefaultInstanceWarmup=0)
    policy = world.policy()
    world.alarm(AlarmActions=[policy])
    world.publish(1, 5)
    world.publish(0, 120)
    world.desire(0)
    world.publish(1)
    assert (world.state(), world.desired()) == ("ALARM", 1)
    world.publish(150)
    assert world.desired() == 2


def test_two_alarms_and_the_larger_capacity() -> None:
    world = ScalingWorld()
    world.group(most=2, DefaultInstanceWarmup=0)
    policy = world.policy()
    world.alarm("a", metric=LOAD, TreatMissingData="ignore", AlarmActions=[policy], OKActions=[policy])
    world.alarm("b", metric=LOAD, TreatMissingData="ignore", AlarmActions=[policy], OKActions=[policy])
    world.set_state("ALARM", 150.0, "a")
    world.set_state("OK", 0.0, "b")
    assert world.desired() == 2
    world.set_state("OK", 0.0, "a")
    assert world.desired() == 0
