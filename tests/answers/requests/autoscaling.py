"""Requests of EC2 Auto Scaling."""

from __future__ import annotations

from typing import Any

from answers.calls import ACCOUNT, OTHER, SAME, Calls
from harness import eventually

GROUP = {"AutoScalingGroupName": "answers"}
MISSING = "ValidationError"  # of EC2 Auto Scaling, for what is not there
FEW, SOME = {"Min": 0, "Max": 9}, {"Min": 0.5, "Max": 9.5}
SIZES: dict[str, Any] = {  # requirements of instances
    "VCpuCount": {"Min": 1, "Max": 192},
    "MemoryMiB": {"Min": 1024, "Max": 2_000_000},
    "CpuManufacturers": ["intel", "amd"],
    "MemoryGiBPerVCpu": SOME,
    "InstanceGenerations": ["current"],
    "OnDemandMaxPricePercentageOverLowestPrice": 50,
    "BareMetal": "included",
    "BurstablePerformance": "included",
    "RequireHibernateSupport": False,
    "NetworkInterfaceCount": FEW,
    "LocalStorage": "included",
    "LocalStorageTypes": ["ssd"],
    "TotalLocalStorageGB": SOME,
    "BaselineEbsBandwidthMbps": FEW,
    "AcceleratorTypes": ["gpu"],
    "AcceleratorCount": {"Min": 1, "Max": 8},
    "AcceleratorManufacturers": ["nvidia"],
    "AcceleratorTotalMemoryMiB": {"Min": 1, "Max": 1_000_000},
    "NetworkBandwidthGbps": SOME,
    "BaselinePerformanceFactors": {"Cpu": {"References": [{"InstanceFamily": "c6i"}]}},
}
NAMES: list[dict[str, Any]] = [
    {"AcceleratorNames": ["t4"], "ExcludedInstanceTypes": ["g4*"], "SpotMaxPricePercentageOverLowestPrice": 50},
    {"AllowedInstanceTypes": ["g5*"], "MaxSpotPriceAsPercentageOfOptimalOnDemandPrice": 50},
]
STAT = {"Metric": {"Namespace": "n", "MetricName": "m", "Dimensions": [{"Name": "a", "Value": "b"}]}, "Stat": "Sum"}
QUERIES = [
    {"Id": "m1", "MetricStat": {**STAT, "Unit": "Count", "Period": 60}, "ReturnData": False},
    {"Id": "e1", "Expression": "m1 * 2", "Label": "l", "Period": 60, "ReturnData": True},
]
CUSTOM = {
    "MetricDataQueries": [
        {"Id": "m1", "MetricStat": {**STAT, "Unit": "Count"}, "ReturnData": False},
        {"Id": "e1", "Expression": "m1 * 2", "Label": "l", "ReturnData": True},
    ]
}
PREDICTED = [  # the metrics of policies for predictive scaling
    {"PredefinedMetricPairSpecification": {"PredefinedMetricType": "ASGCPUUtilization"}},
    {
        "PredefinedLoadMetricSpecification": {"PredefinedMetricType": "ASGTotalCPUUtilization"},
        "PredefinedScalingMetricSpecification": {"PredefinedMetricType": "ASGAverageCPUUtilization"},
    },
    {f"Customized{name}MetricSpecification": CUSTOM for name in ("Load", "Scaling", "Capacity")},
]


def requests(calls: Calls) -> None:
    image = {"ImageId": "ami-0123456789abcdef0", "InstanceType": "g5.xlarge"}
    configuration = {"LaunchConfigurationName": "answers", **image}
    calls.twice("CreateLaunchConfiguration", "AlreadyExistsFault", **configuration)
    calls("DescribeLaunchConfigurations")
    tags = [{"Key": "a", "Value": "b", "PropagateAtLaunch": True}]
    sizes = {"MinSize": 0, "MaxSize": 4, "AvailabilityZones": ["us-east-1a"], "LaunchConfigurationName": "answers", "Tags": tags}
    calls.twice("CreateAutoScalingGroup", "AlreadyExistsFault", **GROUP, **sizes)
    calls.twice("UpdateAutoScalingGroup", SAME, **GROUP, HealthCheckGracePeriod=5)
    calls("DescribeAutoScalingGroups")
    instances(calls)
    settings(calls)
    policies(calls)
    all_members(calls)
    for name in ("AccountLimits", "AdjustmentTypes", "AutoScalingNotificationTypes", "LifecycleHookTypes", "MetricCollectionTypes"):
        calls(f"Describe{name}")
    calls("DescribeScalingProcessTypes")
    calls("DescribeTerminationPolicyTypes")
    calls.all_refused("InvalidNextToken", NextToken="none", **GROUP)
    calls.refused("DeleteLaunchConfiguration", "ResourceInUseFault", LaunchConfigurationName="answers")
    gone = lambda: not calls.of("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=["answers"])["AutoScalingGroups"]  # noqa: E731
    calls.twice("DeleteAutoScalingGroup", MISSING, gone, **GROUP, ForceDelete=True)
    calls.twice("DeleteLaunchConfiguration", MISSING, LaunchConfigurationName="answers")


def instances(calls: Calls) -> None:
    calls.twice("SetDesiredCapacity", SAME, **GROUP, DesiredCapacity=1)
    autoscaling = calls.of("autoscaling")

    def members() -> list[Any]:
        return [
            each
            for each in autoscaling.describe_auto_scaling_instances()["AutoScalingInstances"]
            if each["LifecycleState"] == "InService"
        ]

    [member] = eventually(members, "an instance is in service")
    one = {"InstanceIds": [member["InstanceId"]], **GROUP}
    calls("DescribeAutoScalingInstances")
    calls("DescribeScalingActivities", **GROUP)
    calls.twice("SetInstanceProtection", SAME, **one, ProtectedFromScaleIn=True)
    calls("SetInstanceProtection", **one, ProtectedFromScaleIn=False)
    calls.twice("SetInstanceHealth", SAME, InstanceId=member["InstanceId"], HealthStatus="Healthy")
    calls.twice("EnterStandby", MISSING, **one, ShouldDecrementDesiredCapacity=True)
    calls.twice("ExitStandby", MISSING, **one)
    eventually(members, "the instance is in service again")
    calls.twice("StartInstanceRefresh", "InstanceRefreshInProgressFault", **GROUP, Preferences={"MinHealthyPercentage": 0})
    calls("DescribeInstanceRefreshes", **GROUP)

    def refreshed() -> bool:
        [refresh] = autoscaling.describe_instance_refreshes(**GROUP)["InstanceRefreshes"]
        return refresh["Status"] in ("Cancelled", "Successful")

    calls.twice("CancelInstanceRefresh", "ActiveInstanceRefreshNotFoundFault", refreshed, **GROUP)
    calls.twice_refused("RollbackInstanceRefresh", "ActiveInstanceRefreshNotFoundFault", **GROUP)
    [member] = eventually(members, "an instance is in service")
    one = {"InstanceIds": [member["InstanceId"]], **GROUP}
    calls.twice("DetachInstances", MISSING, **one, ShouldDecrementDesiredCapacity=True)
    calls.twice("AttachInstances", MISSING, **one)
    calls.refused("DeleteAutoScalingGroup", "ResourceInUseFault", **GROUP)
    ended = {"InstanceId": member["InstanceId"], "ShouldDecrementDesiredCapacity": True}
    calls.twice("TerminateInstanceInAutoScalingGroup", MISSING, lambda: not members(), **ended)


def settings(calls: Calls) -> None:
    tag = {"ResourceId": "answers", "ResourceType": "auto-scaling-group", "Key": "c", "Value": "d", "PropagateAtLaunch": False}
    calls.twice("CreateOrUpdateTags", SAME, Tags=[tag])
    calls("DescribeTags")
    calls.twice("DeleteTags", SAME, Tags=[tag])
    calls.twice("SuspendProcesses", SAME, **GROUP, ScalingProcesses=["AZRebalance"])
    calls.twice("ResumeProcesses", SAME, **GROUP, ScalingProcesses=["AZRebalance"])
    hook = {**GROUP, "LifecycleHookName": "h", "NotificationTargetARN": f"arn:aws:sqs:us-east-1:{ACCOUNT}:hooks"}
    calls.of("sqs").create_queue(QueueName="hooks")
    calls.twice(
        "PutLifecycleHook",
        SAME,
        **hook,
        LifecycleTransition="autoscaling:EC2_INSTANCE_LAUNCHING",
        RoleARN=f"arn:aws:iam::{ACCOUNT}:role/a",
    )
    calls("DescribeLifecycleHooks", **GROUP)
    action = {**GROUP, "LifecycleHookName": "h", "InstanceId": "i-0123456789abcdef0"}
    calls.twice_refused("RecordLifecycleActionHeartbeat", MISSING, **action)
    calls.twice_refused("CompleteLifecycleAction", MISSING, **action, LifecycleActionResult="CONTINUE")
    calls.twice("DeleteLifecycleHook", MISSING, **GROUP, LifecycleHookName="h")
    topic = {"TopicARN": calls.of("sns").create_topic(Name="notified")["TopicArn"]}
    calls.twice("PutNotificationConfiguration", SAME, **GROUP, **topic, NotificationTypes=["autoscaling:EC2_INSTANCE_LAUNCH"])
    calls("DescribeNotificationConfigurations")
    calls.twice("DeleteNotificationConfiguration", MISSING, **GROUP, **topic)
    calls.twice("EnableMetricsCollection", SAME, **GROUP, Granularity="1Minute")
    calls.twice("DisableMetricsCollection", SAME, **GROUP)
    balancers = {
        "LoadBalancers": {"LoadBalancerNames": ["a"]},
        "LoadBalancerTargetGroups": {"TargetGroupARNs": [f"arn:aws:elasticloadbalancing:us-east-1:{ACCOUNT}:targetgroup/a/1"]},
        "TrafficSources": {
            "TrafficSources": [{"Identifier": f"arn:aws:vpc-lattice:us-east-1:{ACCOUNT}:targetgroup/tg-1", "Type": "vpc-lattice"}]
        },
    }
    for name, more in balancers.items():
        calls.twice(f"Attach{name}", SAME, **GROUP, **more)
        calls(f"Describe{name}", **GROUP)
        calls.twice(f"Detach{name}", SAME if name == "TrafficSources" else MISSING, **GROUP, **more)
    calls.twice("PutWarmPool", SAME, **GROUP, MinSize=0)
    calls("DescribeWarmPool", **GROUP)
    calls.twice("DeleteWarmPool", MISSING, **GROUP)


def all_members(calls: Calls) -> None:
    """Members that are shown as they were given: of a launch configuration, a group of several types, and their policies."""
    metadata = {"HttpTokens": "required", "HttpEndpoint": "enabled"}
    disk = {"VolumeSize": 8, "VolumeType": "gp3", "Iops": 3000, "Throughput": 125, "Encrypted": True, "DeleteOnTermination": True}
    disks = [
        {"DeviceName": "/dev/xvda", "Ebs": disk},
        {"DeviceName": "/dev/xvdb", "NoDevice": True},
        {"DeviceName": "/dev/xvdc", "VirtualName": "ephemeral0"},
        {"DeviceName": "/dev/xvdd", "Ebs": {"SnapshotId": "snap-0123456789abcdef0"}},
    ]
    image = {"ImageId": "ami-0123456789abcdef0", "InstanceType": "g5.xlarge"}
    calls(
        "CreateLaunchConfiguration",
        LaunchConfigurationName="members",
        **image,
        BlockDeviceMappings=disks,
        MetadataOptions=metadata,
    )
    calls("DescribeLaunchConfigurations", LaunchConfigurationNames=["members"])
    calls("DeleteLaunchConfiguration", LaunchConfigurationName="members")
    calls.of("ec2").create_launch_template(LaunchTemplateName="members", LaunchTemplateData=image)
    template = {"LaunchTemplateName": "members", "Version": "1"}
    one = {"InstanceType": "g5.xlarge", "WeightedCapacity": "1"}
    override = {
        "InstanceType": "g5.2xlarge",
        "WeightedCapacity": "2",
        "ImageId": "ami-0123456789abcdef1",
        "LaunchTemplateSpecification": template,
    }
    mixed = {
        "LaunchTemplate": {"LaunchTemplateSpecification": template, "Overrides": [one, override]},
        "InstancesDistribution": {
            "SpotMaxPrice": "1",
            "OnDemandPercentageAboveBaseCapacity": 100,
            "DistributionSegments": [{"TargetCapacityTypes": ["on-demand"]}],
        },
    }
    group = {"AutoScalingGroupName": "members"}
    policy = {"MinHealthyPercentage": 100, "MaxHealthyPercentage": 200}
    sizes = {"MinSize": 0, "MaxSize": 1, "AvailabilityZones": ["us-east-1a"], "InstanceMaintenancePolicy": policy}
    reserved = {"CapacityReservationIds": ["cr-0123456789abcdef0"]}
    sizes["CapacityReservationSpecification"] = {
        "CapacityReservationPreference": "capacity-reservations-first",
        "CapacityReservationTarget": reserved,
    }
    calls("CreateAutoScalingGroup", **group, **sizes, MixedInstancesPolicy=mixed)
    calls("DescribeAutoScalingGroups", AutoScalingGroupNames=["members"])
    for names in NAMES:
        by_size = {"LaunchTemplateSpecification": template, "Overrides": [{"InstanceRequirements": {**SIZES, **names}}]}
        cheapest = {"OnDemandAllocationStrategy": "lowest-price"}
        chosen = {"LaunchTemplate": by_size, "InstancesDistribution": cheapest}
        calls("UpdateAutoScalingGroup", **group, MixedInstancesPolicy=chosen)
        calls("DescribeAutoScalingGroups", AutoScalingGroupNames=["members"])
    calls("UpdateAutoScalingGroup", **group, MixedInstancesPolicy=mixed)
    step = {"PolicyType": "StepScaling", "AdjustmentType": "PercentChangeInCapacity", "MinAdjustmentMagnitude": 1}
    calls(
        "PutScalingPolicy",
        **group,
        PolicyName="s",
        **step,
        StepAdjustments=[{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 5}],
    )
    metric = {"Namespace": "N", "MetricName": "M", "Statistic": "Average", "Unit": "Count", "Period": 60}
    target = {"CustomizedMetricSpecification": metric | {"Dimensions": [{"Name": "a", "Value": "b"}]}}
    tracking = {**target, "TargetValue": 5.0, "DisableScaleIn": True}
    calls("PutScalingPolicy", **group, PolicyName="t", PolicyType="TargetTrackingScaling", TargetTrackingConfiguration=tracking)
    queries = {"CustomizedMetricSpecification": {"Metrics": QUERIES}, "TargetValue": 5.0}
    calls("PutScalingPolicy", **group, PolicyName="q", PolicyType="TargetTrackingScaling", TargetTrackingConfiguration=queries)
    for metrics in PREDICTED:
        stored = {"MetricSpecifications": [{"TargetValue": 5.0, **metrics}], "Mode": "ForecastOnly", "SchedulingBufferTime": 60}
        stored |= {"MaxCapacityBreachBehavior": "IncreaseMaxCapacity", "MaxCapacityBuffer": 5}
        calls("PutScalingPolicy", **group, PolicyName="p", PolicyType="PredictiveScaling", PredictiveScalingConfiguration=stored)
        calls("DescribePolicies", **group, PolicyNames=["p"])
    calls("DescribePolicies", **group)
    checkpoints = {
        "CheckpointPercentages": [50, 100],
        "CheckpointDelay": 60,
        "MinHealthyPercentage": 0,
        "MaxHealthyPercentage": 100,
    }
    calls("StartInstanceRefresh", **group, Preferences=checkpoints, DesiredConfiguration={"MixedInstancesPolicy": mixed})
    calls("DescribeInstanceRefreshes", **group)
    calls("DeleteAutoScalingGroup", **group, ForceDelete=True)


def policies(calls: Calls) -> None:
    simple = {"PolicyName": "p", "AdjustmentType": "ChangeInCapacity", "ScalingAdjustment": 0, "Cooldown": 60}
    calls.twice("PutScalingPolicy", SAME, **GROUP, **simple)
    target = {"PredefinedMetricSpecification": {"PredefinedMetricType": "ASGAverageCPUUtilization"}, "TargetValue": 5.0}
    tracking = {"PolicyType": "TargetTrackingScaling", "TargetTrackingConfiguration": target, "EstimatedInstanceWarmup": 5}
    calls("PutScalingPolicy", **GROUP, PolicyName="t", **tracking)
    calls("DescribePolicies", **GROUP)
    calls.twice("ExecutePolicy", SAME, **GROUP, PolicyName="p")
    calls.refused("ExecutePolicy", MISSING, **GROUP, PolicyName="none")
    calls.twice("DeletePolicy", MISSING, **GROUP, PolicyName="p")
    action = {
        "ScheduledActionName": "s",
        "StartTime": 4_000_000_000,
        "Recurrence": "0 0 * * *",
        "TimeZone": "Etc/UTC",
        "MinSize": 0,
    }
    calls.twice("PutScheduledUpdateGroupAction", SAME, **GROUP, **action)
    calls.refused("PutScheduledUpdateGroupAction", "AlreadyExistsFault", **GROUP, **action | {"ScheduledActionName": "u"})
    several = [action | {"ScheduledActionName": "u", "StartTime": 4_000_000_060, "EndTime": 4_100_000_000, "MaxSize": 2}]
    calls.twice("BatchPutScheduledUpdateGroupAction", SAME, **GROUP, ScheduledUpdateGroupActions=several)
    calls("DescribeScheduledActions")
    calls.twice("DeleteScheduledAction", MISSING, **GROUP, ScheduledActionName="s")
    calls.twice("BatchDeleteScheduledAction", OTHER, **GROUP, ScheduledActionNames=["u"])
