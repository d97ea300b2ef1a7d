"""Target tracking policies: their alarms, and the capacity that they set."""

from __future__ import annotations

from typing import Any

import pytest

from corral.model.settings import ScalingTimes
from virtual_clock.group_world import refused
from virtual_clock.scaling_world import LOAD, QUEUE, ScalingWorld


def tracking(world: ScalingWorld, name: str = "t", warm_up_s: int = 0, **more: Any) -> dict[str, Any]:
    metric = {"Namespace": LOAD.namespace, "MetricName": LOAD.name, "Statistic": "Average"}
    configuration = {"CustomizedMetricSpecification": metric, "TargetValue": 50.0, **more}
    configuration = {member: value for member, value in configuration.items() if value is not None}
    return dict(
        world.call(
            "PutScalingPolicy",
            AutoScalingGroupName="g",
            PolicyName=name,
            PolicyType="TargetTrackingScaling",
            TargetTrackingConfiguration=configuration,
            EstimatedInstanceWarmup=warm_up_s,
        )
    )


def test_target_tracking_has_its_own_alarms() -> None:
    world = ScalingWorld()
    world.group(desired=2)
    made = tracking(world)
    names = [each["AlarmName"] for each in made["Alarms"]]
    assert [name[: len("TargetTracking-g-AlarmLow")] for name in names] == [
        "TargetTracking-g-AlarmHig",
        "TargetTracking-g-AlarmLow",
    ]
    alarms = {each["AlarmName"]: each for each in world.watch("DescribeAlarms")["MetricAlarms"]}
    high, low = (alarms[name] for name in names)
    assert (high["ComparisonOperator"], high["Threshold"], high["EvaluationPeriods"], high["Period"]) == (
        "GreaterThanThreshold", 50.0, 3, 60,
    )  # fmt: skip
    assert (low["ComparisonOperator"], low["Threshold"], low["EvaluationPeriods"]) == ("LessThanThreshold", 45.0, 15)
    assert high["AlarmActions"] == low["AlarmActions"] == [made["PolicyARN"]]
    described = world.call("DescribePolicies")["ScalingPolicies"][0]
    assert [each["AlarmName"] for each in described["Alarms"]] == names and "_TrackingAlarms" not in described
    assert [each["AlarmName"] for each in tracking(world, TargetValue=70.0)["Alarms"]] == names, "an update keeps the alarms"
    assert {each["Threshold"] for each in world.watch("DescribeAlarms")["MetricAlarms"]} == {70.0, 63.0}
    assert [each["AlarmName"] for each in tracking(world, DisableScaleIn=True)["Alarms"]] == names[:1]
    assert [each["AlarmName"] for each in world.watch("DescribeAlarms")["MetricAlarms"]] == names[:1]
    world.call("DeletePolicy", AutoScalingGroupName="g", PolicyName="t")
    assert world.watch("DescribeAlarms")["MetricAlarms"] == []
    tracking(world)
    world.call("DeleteAutoScalingGroup", AutoScalingGroupName="g", ForceDelete=True)
    world.settle()
    assert world.watch("DescribeAlarms")["MetricAlarms"] == []


def test_target_tracking_scales_out_at_once_and_in_after_fifteen_minutes() -> None:
    world = ScalingWorld()
    world.group(desired=2, most=8)
    high, low = (each["AlarmName"] for each in tracking(world, warm_up_s=120)["Alarms"])
    world.wait(120)
    world.put(100, resolution_s=1)
    assert (world.state(high), world.desired()) == ("ALARM", 4), "twice the target"
    for minute in range(15):
        world.wait(60)
        assert world.desired() == 4, minute
        world.put(20, resolution_s=1)
    world.wait(60)
    assert (world.state(high), world.state(low), world.desired()) == ("OK", "ALARM", 2)
    assert f"a monitor alarm {low} in state ALARM triggered policy t" in world.activities()[0]["Cause"]


def test_datapoints_of_whole_minutes_scale_out_as_on_aws() -> None:
    """Two publishers write to each minute. The metric is above its target for three minutes."""
    world = ScalingWorld()
    world.group(desired=2, most=8)
    high, _ = (each["AlarmName"] for each in tracking(world)["Alarms"])
    world.wait(60 - world.clock.now_s() % 60)
    for minute, second in enumerate((0, 80, 80, 80)):
        world.put(100)
        world.wait(5)
        world.put(second)
        world.wait(54)
        assert (world.state(high) == "ALARM", world.desired()) == (False, 2), minute
        world.wait(1)
    assert (world.state(high), world.desired()) == ("ALARM", 4)


def test_an_instance_that_terminates_late_does_not_cause_another_scale_in() -> None:
    """The load is 60. The metric of the last seconds is older than the end of the third instance."""
    world = ScalingWorld(scaling=ScalingTimes(target_tracking_in_s=3.0))
    world.group(desired=3, most=4)
    hook = {"AutoScalingGroupName": "g", "LifecycleHookName": "h"}
    world.call("PutLifecycleHook", **hook, LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING", HeartbeatTimeout=600)
    tracking(world)
    world.publish(20, 100, LOAD)
    assert world.desired() == 2
    [leaving] = [each["InstanceId"] for each in world.shown()["Instances"] if each["LifecycleState"] == "Terminating:Wait"]
    world.call("CompleteLifecycleAction", **hook, InstanceId=leaving, LifecycleActionResult="CONTINUE")
    world.settle()
    assert len(world.shown()["Instances"]) == 2
    world.publish(20, 1, LOAD)
    world.publish(30, 90, LOAD)
    assert world.desired() == 2, "one instance would have 60"


def test_with_the_timing_of_aws_a_scale_out_needs_three_minutes() -> None:
    world = ScalingWorld("aws")
    world.group(desired=2, most=8)
    high = tracking(world)["Alarms"][0]["AlarmName"]
    for _ in range(3):
        assert world.desired() == 2
        world.put(100)
        world.wait(60)
    assert (world.state(high), world.desired()) == ("ALARM", 4)


def test_all_target_tracking_policies_must_agree_to_scale_in() -> None:
    world = ScalingWorld()
    world.group(desired=4, most=8)
    low = tracking(world)["Alarms"][1]["AlarmName"]
    other = {"Namespace": "Demo", "MetricName": "Other", "Statistic": "Average"}
    high_2, low_2 = (each["AlarmName"] for each in tracking(world, "u", CustomizedMetricSpecification=other)["Alarms"])
    world.set_state("ALARM", 10.0, low)
    assert world.desired() == 4
    world.set_state("ALARM", 60.0, high_2)
    assert world.desired() == 5
    world.set_state("OK", 40.0, high_2)
    world.set_state("ALARM", 30.0, low_2)
    assert world.desired() == 4, "the larger of 2 and 4, because 45 is the level of a scale-in"


def test_target_tracking_on_an_expression() -> None:
    """Messages for each instance, evaluated on the newest second, because Corral publishes both metrics."""
    world = ScalingWorld()
    world.group(desired=1, most=8)
    queue = {"Namespace": QUEUE.namespace, "MetricName": QUEUE.name, "Dimensions": [{"Name": "QueueName", "Value": "jobs"}]}
    queries = [
        {"Id": "m", "MetricStat": {"Metric": queue, "Stat": "Average"}, "ReturnData": False},
        {"Id": "e", "Expression": "m / 2"},
    ]
    tracking(world, CustomizedMetricSpecification={"Metrics": queries}, TargetValue=10.0)
    world.publish(60)
    assert world.desired() == 3


@pytest.mark.parametrize(
    "configuration, says",
    [
        ({"CustomizedMetricSpecification": None}, "either"),
        ({"TargetValue": 0.0}, "greater than 0"),
        ({"CustomizedMetricSpecification": {"MetricName": "x"}}, "needs Namespace, Statistic"),
        ({"CustomizedMetricSpecification": {"Metrics": [], "Statistic": "Sum"}}, "must not have Statistic"),
        ({"CustomizedMetricSpecification": {"Metrics": [{"Id": "e", "Expression": "m +"}]}}, "is not valid"),
        (
            {
                "CustomizedMetricSpecification": None,
                "PredefinedMetricSpecification": {"PredefinedMetricType": "ALBRequestCountPerTarget"},
            },
            "ResourceLabel",
        ),
    ],
)
def test_a_configuration_that_is_not_valid(configuration: dict[str, Any], says: str) -> None:
    world = ScalingWorld()
    world.group()
    assert says in refused(lambda: tracking(world, **configuration)).message
    assert world.watch("DescribeAlarms")["MetricAlarms"] == []


def test_a_predefined_metric_says_that_corral_does_not_publish_it() -> None:
    world = ScalingWorld()
    world.group(desired=1)
    predefined = {"PredefinedMetricType": "ASGAverageCPUUtilization"}
    tracking(world, CustomizedMetricSpecification=None, PredefinedMetricSpecification=predefined)
    high = world.watch("DescribeAlarms")["MetricAlarms"][0]
    assert (high["Namespace"], high["MetricName"]) == ("AWS/EC2", "CPUUtilization")
    assert high["Dimensions"] == [{"Name": "AutoScalingGroupName", "Value": "g"}]
    assert "Corral does not publish AWS/EC2 CPUUtilization" in high["AlarmDescription"]
