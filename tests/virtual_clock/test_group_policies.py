"""Policies, cooldowns, schedules and old activities."""

from __future__ import annotations

import pytest

from virtual_clock.group_world import GroupWorld, refused

HOUR = 3600.0


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


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
