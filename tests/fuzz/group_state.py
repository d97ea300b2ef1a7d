"""The part of the fuzzed state that belongs to Auto Scaling: groups with instances, hooks, policies, schedules and a refresh."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Call = Callable[..., Awaitable[Any]]


async def build_groups(call: Call, knows: Callable[..., None], mark: str) -> None:
    """`call` calls an operation of Auto Scaling; `knows` remembers values for later requests."""
    name, configuration = f"group-{mark}", f"lc-{mark}"
    group = {"AutoScalingGroupName": name}
    await call("CreateLaunchConfiguration", LaunchConfigurationName=configuration, ImageId="ami-1", InstanceType="t3.micro")
    await call(
        "CreateAutoScalingGroup", **group, LaunchConfigurationName=configuration, MinSize=0, MaxSize=5, DesiredCapacity=2,
        AvailabilityZones=["us-east-1a", "us-east-1b"], TerminationPolicies=["OldestInstance", "Default"],
        HealthCheckType="EC2,ELB",
        Tags=[{"Key": "a", "Value": "b", "PropagateAtLaunch": True}], DefaultCooldown=10, MaxInstanceLifetime=86_400,
    )  # fmt: skip
    await call(
        "PutLifecycleHook", **group, LifecycleHookName="hook", LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=60, DefaultResult="CONTINUE", NotificationMetadata="note",
    )  # fmt: skip
    await call("PutScalingPolicy", **group, PolicyName="simple", AdjustmentType="ChangeInCapacity", ScalingAdjustment=1, Cooldown=5)
    await call(
        "PutScalingPolicy", **group, PolicyName="step", PolicyType="StepScaling", AdjustmentType="PercentChangeInCapacity",
        MinAdjustmentMagnitude=1, StepAdjustments=[{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 10}],
    )  # fmt: skip
    tracking = {"PredefinedMetricSpecification": {"PredefinedMetricType": "ASGAverageCPUUtilization"}, "TargetValue": 50.0}
    arn = (
        await call(
            "PutScalingPolicy",
            **group,
            PolicyName="track",
            PolicyType="TargetTrackingScaling",
            TargetTrackingConfiguration=tracking,
        )
    )["PolicyARN"]
    await call(
        "PutScheduledUpdateGroupAction", **group, ScheduledActionName="nightly", Recurrence="*/5 22-23 1,15 jan-jun mon-fri",
        TimeZone="Europe/Berlin", MinSize=0, MaxSize=4, DesiredCapacity=1,
    )  # fmt: skip
    await call(
        "PutNotificationConfiguration",
        **group,
        TopicARN="arn:aws:sns:us-east-1:1:t",
        NotificationTypes=["autoscaling:TEST_NOTIFICATION"],
    )
    await call("PutWarmPool", **group, MinSize=1, MaxGroupPreparedCapacity=2)
    await call("EnableMetricsCollection", **group, Granularity="1Minute")
    await call("AttachTrafficSources", **group, TrafficSources=[{"Identifier": "lb", "Type": "elb"}])
    members = (await call("DescribeAutoScalingInstances"))["AutoScalingInstances"]
    ids = [member["InstanceId"] for member in members if member["AutoScalingGroupName"] == name]
    await call("SetInstanceProtection", **group, InstanceIds=ids[:1], ProtectedFromScaleIn=True)
    if all(member["LifecycleState"] == "InService" for member in members):  # an earlier round may have drained the host
        await call("EnterStandby", **group, InstanceIds=ids[1:], ShouldDecrementDesiredCapacity=True)
    preferences = {"MinHealthyPercentage": 50, "CheckpointPercentages": [50, 100], "CheckpointDelay": 60, "InstanceWarmup": 5}
    refresh = (await call("StartInstanceRefresh", **group, Preferences=preferences))["InstanceRefreshId"]
    activities = (await call("DescribeScalingActivities", **group))["Activities"]
    knows(
        "autoscaling", AutoScalingGroupName=name, LaunchConfigurationName=configuration, LifecycleHookName="hook",
        InstanceId=ids, InstanceIds=ids, PolicyName=["simple", "step", "track", arn], ScheduledActionName="nightly",
        ActivityIds=[each["ActivityId"] for each in activities], InstanceRefreshIds=refresh,
        LifecycleActionResult=["CONTINUE", "ABANDON"], Recurrence=["0 0 29 2 *", "*/7 * * * *", "0 0 30 2 *"],
        TimeZone=["UTC", "America/New_York"], HealthStatus=["Healthy", "Unhealthy"],
        ScalingProcesses=["Launch", "Terminate"], DesiredCapacity=[0, 1, 3], ResourceId=name, Name=["tag-key", "tag:a", "Status"],
    )  # fmt: skip
