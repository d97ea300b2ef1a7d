"""Scaling policies of ECS services: alarms change the desired count, within its limits and cooldowns."""

from __future__ import annotations

from typing import Any

from corral.model.settings import ScalingTimes
from virtual_clock.app_scaling_world import GPU, METRIC, PLACE, RESOURCE, AppScalingWorld
from virtual_clock.group_world import refused

COOL = {"ScaleOutCooldown": 60, "ScaleInCooldown": 60}


# Target tracking


def test_a_service_follows_its_gpu_load() -> None:
    """The flow of the guide: 100% at a target of 75% on each task that appears, then no load."""
    world = AppScalingWorld()
    world.scaled(desired=1, most=3)
    high, low = world.track(**COOL)
    world.measure(10, 120)
    assert world.tasks() == 1
    world.measure(100, 2)
    assert (world.state(high), world.tasks()) == ("ALARM", 2), "the average of two seconds is above the target"
    world.measure(100, 55)
    assert world.tasks() == 2, "the cooldown lasts, and the load of each task did not grow"
    world.measure(100, 10)
    assert (world.tasks(), world.service()["runningCount"]) == (3, 3)
    world.measure(100, 120)
    assert world.tasks() == 3, "the maximum"
    world.measure(0, 14 * 60)
    assert world.tasks() == 3, "a scale-in needs 15 minutes"
    world.measure(0, 180)
    assert (world.state(high), world.state(low), world.tasks()) == ("OK", "ALARM", 1)
    counts = [(each["Description"], each["Cause"], each["StatusCode"]) for each in world.acts()]
    assert counts == [
        ("Setting desired count to 1.", f"monitor alarm {low} in state ALARM triggered policy gpu", "Successful"),
        ("Setting desired count to 3.", f"monitor alarm {high} in state ALARM triggered policy gpu", "Successful"),
        ("Setting desired count to 2.", f"monitor alarm {high} in state ALARM triggered policy gpu", "Successful"),
    ]
    assert world.acts()[0]["StatusMessage"] == "Successfully set desired count to 1. Change successfully fulfilled by ecs."
    refusals = [each["NotScaledReasons"][0] for each in world.acts(IncludeNotScaledActivities=True) if "NotScaledReasons" in each]
    assert {"Code": "AlreadyAtMaxCapacity", "CurrentCapacity": 3, "MaxCapacity": 3} in refusals
    assert {"Code": "AlreadyAtMinCapacity", "CurrentCapacity": 1, "MinCapacity": 1} in refusals


def test_the_timing_of_aws() -> None:
    world = AppScalingWorld("aws")
    world.scaled()
    world.track(**COOL)
    world.measure(100, 179)
    assert world.tasks() == 1
    world.measure(100, 3)
    assert world.tasks() == 2, "three datapoints of a minute"


def test_a_value_that_does_not_change_is_published_once() -> None:
    """Corral publishes an unchanged value of its own metrics again only after a minute. It is valid meanwhile."""
    world = AppScalingWorld()
    world.scaled()
    world.track()
    world.wait(1.2 - world.clock.now_s() % 1)
    world.measure(10, 5)
    world.put(100, GPU, resolution_s=1)
    assert world.tasks() == 1, "the average of two seconds is 55"
    world.wait(2)
    assert world.tasks() == 2
    world.report()
    world.wait(3)
    world.measure(10, 2)
    assert world.tasks() == 2


def test_a_larger_scale_out_counts_the_one_before() -> None:
    world = AppScalingWorld()
    world.scaled(desired=2, most=8)
    world.track(target=50.0)
    world.measure(60, 3)
    assert world.tasks() == 3
    world.measure(60, 20)
    assert world.tasks() == 3
    world.measure(100, 3)
    assert world.tasks() == 4, "twice the capacity before the first scale-out, and not twice three"
    world.measure(60, 290)
    assert world.tasks() == 4
    world.measure(60, 20)
    assert world.tasks() == 5, "the cooldown of 300 seconds is over, and 4 * 60 / 50 is 4.8"


def test_a_scale_out_ends_the_cooldown_of_a_scale_in() -> None:
    world = AppScalingWorld(scaling=ScalingTimes(target_tracking_in_s=10.0))
    world.scaled(desired=3, most=8)
    world.track(target=50.0)
    world.measure(20, 15)
    assert world.tasks() == 2
    world.measure(10, 60)
    assert world.tasks() == 2, "the cooldown of 300 seconds blocks the next scale-in"
    world.measure(100, 3)
    assert world.tasks() == 4
    world.measure(5, 70)
    assert world.tasks() == 1


def test_a_task_that_starts_late_does_not_cause_another_scale_out() -> None:
    """The metric of the last seconds is older than the new task."""
    world = AppScalingWorld()
    world.scaled(desired=1, most=4)
    world.track(ScaleOutCooldown=1)
    world.publish(98, 20, GPU)  # the host is silent
    assert world.tasks() == 2
    world.report()
    world.publish(98, 1, GPU)
    assert world.tasks() == 2
    world.measure(49, 10)
    assert world.tasks() == 2
    world.measure(98, 4)
    assert world.tasks() == 3, "the load has grown"


def test_a_task_that_stops_late_does_not_cause_another_scale_in() -> None:
    """The load is 60. The metric of the last seconds is older than the stop of the third task."""
    world = AppScalingWorld(scaling=ScalingTimes(target_tracking_in_s=3.0))
    world.scaled(desired=3, most=4)
    world.track(target=50.0, ScaleInCooldown=1)
    world.publish(20, 20, GPU)  # the host is silent
    assert world.tasks() == 2
    world.report()
    world.publish(20, 1, GPU)
    assert world.tasks() == 2
    world.measure(30, 30)
    assert world.tasks() == 2, "one task would have 60"
    world.measure(10, 15)
    assert world.tasks() == 1, "the load has fallen"


def test_an_unchanged_value_scales_out_again_when_the_new_task_has_run_for_some_seconds() -> None:
    """Corral does not publish the value of its own metric again, and the newest value may have been measured five seconds ago."""
    own = GPU._replace(namespace="Corral/GPU")
    world = AppScalingWorld()
    world.scaled(desired=1, most=3)
    world.track(CustomizedMetricSpecification=METRIC | {"Namespace": own.namespace}, ScaleOutCooldown=1)
    world.publish(10, 8, own)
    world.publish(100, 3, own)
    assert world.tasks() == 2
    world.wait(10)
    world.report()
    world.wait(6)
    assert world.tasks() == 2
    world.wait(2)
    assert world.tasks() == 3


def test_a_datapoint_of_a_whole_minute_counts_when_the_minute_has_ended() -> None:
    """It is stored at the start of its minute. A scale-out needs three of them, as on AWS."""
    world = AppScalingWorld()
    world.scaled(desired=1, most=4)
    world.track(ScaleOutCooldown=1)
    world.wait(50.5 - world.clock.now_s() % 60)
    for _ in range(3):
        world.put(100, GPU)
        assert world.tasks() == 1
        world.wait(60)
    assert world.tasks() == 2
    world.report()
    world.wait(60)
    assert world.tasks() == 2, "the second task is newer than the datapoints"
    world.put(100, GPU)
    world.wait(60)
    assert world.tasks() == 3


def test_the_alarm_of_an_old_target_does_not_scale_in() -> None:
    """The alarms get their new threshold a moment after the policy has its new target."""
    world = AppScalingWorld()
    world.scaled(desired=4, most=4)
    world.track(target=50.0)
    world.measure(52, 130)
    world.track(target=100.0)
    world.measure(52, 3)
    assert world.tasks() == 4, "a scale-in needs 15 minutes"


def test_missing_data_does_nothing() -> None:
    world = AppScalingWorld()
    world.scaled(most=8)
    world.track(ScaleOutCooldown=150)
    world.measure(100, 3)
    assert world.tasks() == 2
    world.wait(1200)
    assert world.tasks() == 2, "no scale-out after the cooldown, and no scale-in"


def test_disable_scale_in_and_suspended_states() -> None:
    world = AppScalingWorld(scaling=ScalingTimes(target_tracking_in_s=10.0))
    suspended = {"DynamicScalingOutSuspended": True, "DynamicScalingInSuspended": True}
    world.scaled(desired=2, most=8, SuspendedState=suspended)
    high, low = world.track(**COOL)
    world.measure(100, 5)
    assert (world.tasks(), world.state(high)) == (2, "ALARM")
    assert "suspended" in world.acted(high)[-1]
    world.app("RegisterScalableTarget", **PLACE, SuspendedState={"DynamicScalingOutSuspended": False})
    world.measure(100, 1)
    assert world.tasks() == 3
    world.measure(0, 200)
    assert (world.tasks(), world.state(low)) == (3, "ALARM")
    world.app("RegisterScalableTarget", **PLACE, SuspendedState={"DynamicScalingInSuspended": False})
    world.measure(0, 5)
    assert world.tasks() == 1
    assert world.track(**COOL, DisableScaleIn=True) == (high,)
    world.measure(100, 62)
    assert world.tasks() == 3
    world.measure(0, 200)
    assert world.tasks() == 3


def test_metric_math_and_a_predefined_metric() -> None:
    world = AppScalingWorld()
    world.scaled(most=8)
    stat = {"Metric": {"Namespace": "Demo", "MetricName": "Gpu", "Dimensions": [
        {"Name": "ClusterName", "Value": "default"}, {"Name": "ServiceName", "Value": "web"}]}, "Stat": "Average"}  # fmt: skip
    queries = [{"Id": "m", "MetricStat": stat, "ReturnData": False}, {"Id": "half", "Expression": "m / 2"}]
    configuration = {"CustomizedMetricSpecification": {"Metrics": queries}, "TargetValue": 20.0}
    policy = {**PLACE, "PolicyName": "p", "PolicyType": "TargetTrackingScaling"}
    world.app("PutScalingPolicy", **policy, TargetTrackingScalingPolicyConfiguration=configuration)
    world.measure(100, 3)
    assert world.tasks() == 3, "50 is two and a half times the target"
    predefined = {"PredefinedMetricType": "ECSServiceAverageCPUUtilization"}
    configuration = {"PredefinedMetricSpecification": predefined, "TargetValue": 50.0}
    made = world.app("PutScalingPolicy", **policy, TargetTrackingScalingPolicyConfiguration=configuration)
    high = world.watch("DescribeAlarms", AlarmNames=[made["Alarms"][0]["AlarmName"]])["MetricAlarms"][0]
    assert high["AlarmName"].startswith(f"TargetTracking-{RESOURCE}-AlarmHigh-")
    assert (high["Namespace"], high["MetricName"], high["EvaluationPeriods"], high["Period"]) == (
        "AWS/ECS",
        "CPUUtilization",
        3,
        60,
    )
    assert high["Dimensions"] == [{"Name": "ClusterName", "Value": "default"}, {"Name": "ServiceName", "Value": "web"}]
    world.app("DeregisterScalableTarget", **PLACE)
    assert world.watch("DescribeAlarms")["MetricAlarms"] == []


# Step policies, whose alarms users create


def steps(world: AppScalingWorld, name: str, adjustments: list[dict[str, Any]], **more: Any) -> str:
    configuration = {"AdjustmentType": "ChangeInCapacity", "StepAdjustments": adjustments, **more}
    made = world.app(
        "PutScalingPolicy", **PLACE, PolicyName=name, PolicyType="StepScaling", StepScalingPolicyConfiguration=configuration
    )
    return str(made["PolicyARN"])


def test_a_more_aggressive_step_adds_only_the_difference() -> None:
    """The example of the guide: +2, and then +3 during the cooldown."""
    world = AppScalingWorld()
    world.scaled(desired=1, most=8)
    low = {"MetricIntervalLowerBound": 0.0, "MetricIntervalUpperBound": 10.0, "ScalingAdjustment": 2}
    policy = steps(world, "out", [low, {"MetricIntervalLowerBound": 10.0, "ScalingAdjustment": 3}], Cooldown=120)
    world.watch("PutMetricAlarm", AlarmName="busy", Namespace="Demo", MetricName="Load", Statistic="Average", Period=60,
                EvaluationPeriods=1, Threshold=50.0, ComparisonOperator="GreaterThanThreshold", AlarmActions=[policy],
                TreatMissingData="ignore")  # fmt: skip
    described = world.app("DescribeScalingPolicies", ServiceNamespace="ecs")["ScalingPolicies"][0]
    assert [each["AlarmName"] for each in described["Alarms"]] == ["busy"]
    world.set_state("ALARM", 55.0)
    world.report()
    assert world.tasks() == 3
    world.set_state("ALARM", 65.0)
    assert world.tasks() == 4
    world.report()
    world.wait(100)
    assert world.tasks() == 4
    world.wait(30)
    assert world.tasks() == 7, "the alarm is still in ALARM after the cooldown"
    assert world.acts()[0]["Cause"] == "monitor alarm busy in state ALARM triggered policy out"


def test_a_scale_in_step_stops_at_the_minimum() -> None:
    world = AppScalingWorld()
    world.scaled(desired=4, least=2, most=8)
    policy = steps(world, "in", [{"MetricIntervalUpperBound": 0.0, "ScalingAdjustment": -3}])
    world.watch("PutMetricAlarm", AlarmName="idle", Namespace="Demo", MetricName="Load", Statistic="Average", Period=60,
                EvaluationPeriods=1, Threshold=10.0, ComparisonOperator="LessThanThreshold", AlarmActions=[policy],
                TreatMissingData="ignore")  # fmt: skip
    world.set_state("ALARM", 1.0, "idle")
    world.report()
    assert world.tasks() == 2
    world.set_state("OK", 20.0, "idle")
    world.set_state("ALARM", 1.0, "idle")
    reason = world.acts(IncludeNotScaledActivities=True)[0]
    assert reason["NotScaledReasons"] == [{"Code": "AlreadyAtMinCapacity", "CurrentCapacity": 2, "MinCapacity": 2}]
    assert (reason["StatusCode"], reason["Description"]) == ("Failed", "Attempting to scale due to alarm triggered")


def test_a_policy_is_applied_again_when_something_else_has_set_the_count() -> None:
    """The value of the alarm does not change. Policies of AWS are applied once a minute while the alarm stays in its state."""
    world = AppScalingWorld()
    world.scaled(desired=0, least=0, most=4)
    exact = [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 2}]
    policy = steps(world, "exact", exact, AdjustmentType="ExactCapacity", Cooldown=120)
    world.alarm(AlarmActions=[policy])
    world.publish(5, 2)
    assert world.tasks() == 2
    world.call("UpdateService", "ecs", service="web", desiredCount=0)
    world.publish(5, 110)
    assert world.tasks() == 0, "the cooldown of the last scale-out lasts"
    world.publish(5, 15)
    assert world.tasks() == 2
    world.publish(5, 200)
    world.call("UpdateService", "ecs", service="web", desiredCount=1)
    world.publish(5, 2)
    assert world.tasks() == 1, "a user may set the count for some seconds"
    world.publish(5, 5)
    assert world.tasks() == 2
    world.call("UpdateService", "ecs", service="web", desiredCount=4)
    world.publish(5, 65)
    assert world.tasks() == 2, "downwards too, when the value of a whole period is known"
    world.call("DeleteService", "ecs", service="web", force=True)
    world.report()
    world.publish(5, 3)
    world.serve(desiredCount=0, launchType="EC2")
    world.publish(5, 130)
    assert world.tasks() == 2, "a service of the same name"


def test_the_history_of_the_alarm_says_why_nothing_was_done() -> None:
    world = AppScalingWorld()
    world.scaled()
    policy = steps(world, "out", [{"MetricIntervalLowerBound": 5.0, "ScalingAdjustment": 1}])
    world.alarm("busy", TreatMissingData="ignore", AlarmActions=[policy])
    world.set_state("ALARM", 1.0)
    assert "No step adjustment found" in world.acted()[-1]
    world.app("DeleteScalingPolicy", **PLACE, PolicyName="out")
    world.set_state("OK", 0.0)
    world.set_state("ALARM", 9.0)
    assert world.acted()[-1].endswith("does not exist.")


# Limits and schedules


def test_registration_brings_the_service_inside_its_limits() -> None:
    world = AppScalingWorld()
    world.scaled(desired=1, least=2, most=4)
    world.report()
    assert world.tasks() == 2
    [activity] = world.acts()
    assert (activity["Cause"], activity["Description"]) == ("minimum capacity was set to 2", "Setting desired count to 2.")
    world.app("RegisterScalableTarget", **PLACE, MinCapacity=0, MaxCapacity=1)
    assert (world.tasks(), world.acts()[0]["Cause"]) == (1, "maximum capacity was set to 1")
    error = refused(lambda: world.app("RegisterScalableTarget", **PLACE, MinCapacity=5))
    assert (error.code, error.message) == ("ValidationException", "Maximum capacity cannot be less than minimum capacity")


def test_a_scheduled_action_sets_the_limits() -> None:
    world = AppScalingWorld()
    world.scaled(desired=1, most=3)
    begin_s = world.clock.now_s()
    world.app("PutScheduledAction", **PLACE, ScheduledActionName="night", Schedule="cron(0 8 * * ? *)", Timezone="Europe/Berlin",
              ScalableTargetAction={"MinCapacity": 2, "MaxCapacity": 6})  # fmt: skip
    world.app("PutScheduledAction", **PLACE, ScheduledActionName="often", Schedule="rate(4 hours)", EndTime=begin_s + 86400,
              ScalableTargetAction={"MaxCapacity": 1})  # fmt: skip
    world.app("PutScheduledAction", **PLACE, ScheduledActionName="once", Schedule="at(2026-01-01T05:00:00)",
              ScalableTargetAction={"MinCapacity": 3, "MaxCapacity": 5})  # fmt: skip
    world.wait(4 * 3600 + 10)
    assert world.app("DescribeScalableTargets", ServiceNamespace="ecs")["ScalableTargets"][0]["MaxCapacity"] == 1
    world.wait(3600)
    assert world.tasks() == 3
    assert [each["Cause"] for each in world.acts()[:2]] == [
        "minimum capacity was set to 3", "scheduled action name once was triggered",
    ]  # fmt: skip
    names = [
        each["ScheduledActionName"] for each in world.app("DescribeScheduledActions", ServiceNamespace="ecs")["ScheduledActions"]
    ]
    assert names == ["night", "often"], "an action that runs once is deleted"
    world.app("RegisterScalableTarget", **PLACE, SuspendedState={"ScheduledScalingSuspended": True})
    world.wait(3 * 3600)
    assert world.tasks() == 3, "08:00 in Berlin is 07:00, and scheduled scaling is suspended"


def test_an_activity_ends_after_a_scheduled_action() -> None:
    world = AppScalingWorld()
    world.scaled(desired=1, most=3)
    world.track()
    world.publish(100, 5, GPU)  # the host is silent, so the second task does not run
    world.app("PutScheduledAction", **PLACE, ScheduledActionName="more", Schedule="rate(1 minute)",
              ScalableTargetAction={"MaxCapacity": 4})  # fmt: skip
    world.wait(150)
    assert [each["StatusCode"] for each in world.acts()] == ["Successful", "Successful", "InProgress"]
    world.report()
    assert {each["StatusCode"] for each in world.acts()} == {"Successful"}


def test_a_schedule_at_the_end_of_the_calendar() -> None:
    world = AppScalingWorld()
    world.scaled()
    world.app("PutScheduledAction", **PLACE, ScheduledActionName="late", Schedule="at(9999-12-31T23:00:00)",
              Timezone="Europe/Berlin", ScalableTargetAction={"MaxCapacity": 4})  # fmt: skip
    assert len(world.app("DescribeScheduledActions", ServiceNamespace="ecs")["ScheduledActions"]) == 1


def test_old_activities_are_dropped() -> None:
    world = AppScalingWorld()
    world.scaled(desired=1, least=2)
    world.report()
    world.wait(43 * 86400)
    assert world.acts() == [] and world.store.execute("SELECT count(*) FROM target_activity").fetchone()[0] == 0


def test_a_scale_in_waits_for_a_deployment() -> None:
    world = AppScalingWorld(scaling=ScalingTimes(target_tracking_in_s=10.0))
    world.scaled(desired=3)
    _, low = world.track(**COOL)
    world.call("UpdateService", "ecs", service="web", forceNewDeployment=True, deploymentConfiguration={
        "minimumHealthyPercent": 100, "maximumPercent": 200})  # fmt: skip
    for _ in range(20):  # the host is silent, so the deployment stays in progress
        world.publish(0, 1, GPU)
    assert (world.state(low), world.tasks()) == ("ALARM", 3)
    codes = [each["NotScaledReasons"][0]["Code"] for each in world.acts(IncludeNotScaledActivities=True)]
    assert codes == ["TargetServicePutResourceAsUnscalable"]
    world.measure(0, 120)
    assert world.tasks() == 1
