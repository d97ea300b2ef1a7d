"""Cases of `tests/stacks/test_resource_types.py`: Auto Scaling, EC2 instances and ECS."""

from __future__ import annotations

from stacks.resource_cases import OTHER_TAGS, TAGS, Case

ROLE = "AWS::IAM::Role"
ASG, LAUNCH = "AWS::AutoScaling::AutoScalingGroup", "AWS::AutoScaling::LaunchConfiguration"
CLUSTER, DEFINITION, ASSOCIATIONS = (
    "AWS::ECS::Cluster",
    "AWS::ECS::TaskDefinition",
    "AWS::ECS::ClusterCapacityProviderAssociations",
)
TOPIC, TERMINATING = "arn:aws:sns:us-east-1:123456789012", "autoscaling:EC2_INSTANCE_TERMINATING"
OTHER_GROUP = (
    ASG,
    {
        "AutoScalingGroupName": "g2",
        "MinSize": "0",
        "MaxSize": "0",
        "LaunchConfigurationName": {"Ref": "launch"},
        "AvailabilityZones": ["us-east-1a"],
    },
)
SERVICE, TARGET = "AWS::ECS::Service", "AWS::ApplicationAutoScaling::ScalableTarget"
SECOND_SERVICE = (
    SERVICE,
    {"ServiceName": "web2", "Cluster": {"Ref": "cluster"}, "TaskDefinition": {"Ref": "definition"}, "DesiredCount": "0"},
)
PLACE = {"ServiceNamespace": "ecs", "ScalableDimension": "ecs:service:DesiredCount"}
CAN_SERVE = {
    "launch": LAUNCH,
    "group": ASG,
    "provider": "AWS::ECS::CapacityProvider",
    "cluster": CLUSTER,
    "definition": DEFINITION,
}
SERVED = {**CAN_SERVE, "service": SERVICE}
TRACKING = {"PredefinedMetricSpecification": {"PredefinedMetricType": "ECSServiceAverageCPUUtilization"}, "TargetValue": "50"}
NIGHT = {"ScheduledActionName": "night", "Schedule": "cron(0 20 * * ? *)", "ScalableTargetAction": {"MinCapacity": "0"}}
ONCE = {"ScheduledActionName": "once", "Schedule": "at(2030-01-01T00:00:00)", "ScalableTargetAction": {"MaxCapacity": 2},
        "EndTime": "2031-01-01T00:00:00Z"}  # fmt: skip
IN_GROUP = {"AutoScalingGroupName": {"Ref": "group"}}

CASES: dict[str, Case] = {
    ASSOCIATIONS: Case(
        {"Cluster": {"Ref": "cluster"}, "CapacityProviders": [{"Ref": "provider"}], "DefaultCapacityProviderStrategy": []},
        needs={
            "cluster": CLUSTER,
            "second": (CLUSTER, {"ClusterName": "c2"}),
            "launch": LAUNCH,
            "group": ASG,
            "provider": "AWS::ECS::CapacityProvider",
        },
        changed={"DefaultCapacityProviderStrategy": [{"CapacityProvider": {"Ref": "provider"}, "Weight": "2"}]},
        replacing={"Cluster": {"Ref": "second"}},
        starts="c",
        shown=("ecs:DescribeClusters", {"clusters": ["c"]}, "'weight': 2"),
    ),
    CLUSTER: Case(
        {"ClusterName": "c", "ClusterSettings": [{"Name": "containerInsights", "Value": "enabled"}], **TAGS},
        needs={"launch": LAUNCH, "group": ASG, "provider": "AWS::ECS::CapacityProvider"},
        changed={"ClusterSettings": None, "CapacityProviders": [{"Ref": "provider"}], **OTHER_TAGS},
        replacing={"ClusterName": "c2", "CapacityProviders": []},
        starts="c",
        shown=("ecs:DescribeClusters", {"clusters": ["c"], "include": ["TAGS", "SETTINGS"]}, "'value': 'disabled'"),
    ),
    DEFINITION: Case(
        {"Family": "f", "ContainerDefinitions": [{"Name": "a", "Image": "busybox", "Memory": "128"}], **TAGS},
        changed=OTHER_TAGS,
        replacing={"Cpu": "512"},
        starts="arn:aws:ecs:us-east-1:123456789012:task-definition/f:1",
        shown=("ecs:DescribeTaskDefinition", {"taskDefinition": "f:1", "include": ["TAGS"]}, "'key': 'b'"),
    ),
    SERVICE: Case(
        {"ServiceName": "web", "Cluster": {"Ref": "cluster"}, "TaskDefinition": {"Ref": "definition"}, "DesiredCount": "0", **TAGS},
        needs=CAN_SERVE,
        changed={"EnableExecuteCommand": "true", "PlacementStrategies": [{"Type": "random"}], **OTHER_TAGS},
        replacing={"ServiceName": "web2"},
        starts="arn:aws:ecs:us-east-1:123456789012:service/c/web",
        shown=("ecs:DescribeServices", {"cluster": "c", "services": ["web"]}, "'type': 'random'"),
    ),
    TARGET: Case(
        {**PLACE, "ResourceId": "service/c/web", "MinCapacity": "0", "MaxCapacity": "4", "ScheduledActions": [NIGHT, ONCE], **TAGS},
        needs={**SERVED, "second": SECOND_SERVICE},
        changed={
            "MaxCapacity": 7,
            "ScheduledActions": [NIGHT | {"Timezone": "Europe/Berlin"}],
            "SuspendedState": {"DynamicScalingInSuspended": "true"},
            **OTHER_TAGS,
        },
        replacing={"ResourceId": "service/c/web2"},
        starts="service/c/web|ecs:service:DesiredCount|ecs",
        shown=("application-autoscaling:DescribeScalableTargets", {"ServiceNamespace": "ecs"}, "'MaxCapacity': 7"),
    ),
    "AWS::ApplicationAutoScaling::ScalingPolicy": Case(
        {
            "PolicyName": "cpu",
            "PolicyType": "TargetTrackingScaling",
            "ScalingTargetId": {"Ref": "target"},
            "TargetTrackingScalingPolicyConfiguration": TRACKING,
        },
        needs={**SERVED, "target": TARGET},
        changed={"TargetTrackingScalingPolicyConfiguration": TRACKING | {"ScaleInCooldown": "77"}},
        replacing={"PolicyName": "other"},
        starts="arn:aws:autoscaling:us-east-1:123456789012:scalingPolicy:",
        shown=("application-autoscaling:DescribeScalingPolicies", {"ServiceNamespace": "ecs"}, "'ScaleInCooldown': 77"),
    ),
    ASG: Case(
        {
            "AutoScalingGroupName": "g",
            "MinSize": "0",
            "MaxSize": "2",
            "LaunchConfigurationName": {"Ref": "launch"},
            "AvailabilityZones": ["us-east-1a"],
            "MetricsCollection": [{"Granularity": "1Minute"}],
            "NotificationConfigurations": [{"TopicARN": f"{TOPIC}:a", "NotificationTypes": ["autoscaling:EC2_INSTANCE_LAUNCH"]}],
            "LifecycleHookSpecificationList": [{"LifecycleHookName": "h", "LifecycleTransition": TERMINATING}],
            "TargetGroupARNs": ["arn:a", "arn:b"],
            "Tags": [{"Key": "a", "Value": "1", "PropagateAtLaunch": "true"}],
        },
        needs={"launch": LAUNCH},
        changed={
            "MaxSize": "5",
            "Cooldown": "61",
            "MetricsCollection": None,
            "NotificationConfigurations": [{"TopicARN": f"{TOPIC}:b", "NotificationTypes": ["autoscaling:EC2_INSTANCE_TERMINATE"]}],
            "LifecycleHookSpecificationList": [{"LifecycleHookName": "h2", "LifecycleTransition": TERMINATING}],
            "TargetGroupARNs": ["arn:b"],
            "Tags": [{"Key": "b", "Value": "2", "PropagateAtLaunch": False}],
        },
        replacing={"AutoScalingGroupName": "g2"},
        starts="g",
        shown=("autoscaling:DescribeAutoScalingGroups", {}, "'DefaultCooldown': 61"),
    ),
    LAUNCH: Case(
        {"LaunchConfigurationName": "launch", "ImageId": "ami-1", "InstanceType": "c5.large", "InstanceMonitoring": "false"},
        replacing={"LaunchConfigurationName": "launch2", "RamDiskId": "ari-1"},
        starts="launch",
    ),
    "AWS::AutoScaling::LifecycleHook": Case(
        {**IN_GROUP, "LifecycleHookName": "hook", "LifecycleTransition": TERMINATING, "HeartbeatTimeout": "60"},
        needs={"launch": LAUNCH, "group": ASG},
        changed={"HeartbeatTimeout": 91, "DefaultResult": "CONTINUE"},
        replacing={"LifecycleHookName": "hook2"},
        starts="hook",
        shown=("autoscaling:DescribeLifecycleHooks", {"AutoScalingGroupName": "g"}, "'HeartbeatTimeout': 91"),
    ),
    "AWS::AutoScaling::ScalingPolicy": Case(
        {**IN_GROUP, "AdjustmentType": "ChangeInCapacity", "ScalingAdjustment": "1", "Cooldown": "60"},
        needs={"launch": LAUNCH, "group": ASG, "second": OTHER_GROUP},
        changed={"ScalingAdjustment": 3},
        replacing={"AutoScalingGroupName": {"Ref": "second"}},
        starts="arn:aws:autoscaling:us-east-1:123456789012:scalingPolicy:",
        shown=("autoscaling:DescribePolicies", {}, "'ScalingAdjustment': 3"),
    ),
    "AWS::AutoScaling::ScheduledAction": Case(
        {**IN_GROUP, "Recurrence": "0 8 * * *", "DesiredCapacity": "1"},
        needs={"launch": LAUNCH, "group": ASG, "second": OTHER_GROUP},
        changed={"DesiredCapacity": 2, "StartTime": "2030-01-01T00:00:00Z"},
        replacing={"AutoScalingGroupName": {"Ref": "second"}},
        starts="stack-resource-",
        shown=("autoscaling:DescribeScheduledActions", {}, "'StartTime': 1893456000"),
    ),
    "AWS::AutoScaling::WarmPool": Case(
        {**IN_GROUP, "MinSize": "1", "MaxGroupPreparedCapacity": 3},
        needs={"launch": LAUNCH, "group": ASG, "second": OTHER_GROUP},
        changed={"PoolState": "Hibernated", "MaxGroupPreparedCapacity": None},
        replacing={"AutoScalingGroupName": {"Ref": "second"}},
        starts="g",
        shown=("autoscaling:DescribeWarmPool", {"AutoScalingGroupName": "g"}, "'PoolState': 'Hibernated'"),
    ),
    "AWS::EC2::Instance": Case(
        {
            "ImageId": "ami-1",
            "InstanceType": "g5.xlarge",
            "AvailabilityZone": "us-east-1a",
            "IamInstanceProfile": {"Ref": "profile"},
            "NetworkInterfaces": [{"DeviceIndex": "0", "GroupSet": ["default"], "AssociatePublicIpAddress": "true"}],
            "BlockDeviceMappings": [{"DeviceName": "/dev/xvdb", "NoDevice": {}}],
            "SourceDestCheck": "false",
            **TAGS,
        },
        needs={"role": ROLE, "profile": "AWS::IAM::InstanceProfile"},
        changed={
            "IamInstanceProfile": None,
            "Monitoring": "true",
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required"},
            "CreditSpecification": {"CPUCredits": "unlimited"},
            **OTHER_TAGS,
        },
        replacing={"ImageId": "ami-2"},
        starts="i-",
        shown=("ec2:DescribeInstances", {"Filters": [{"Name": "tag:b", "Values": ["2"]}]}, "'HttpTokens': 'required'"),
    ),
    "AWS::EC2::LaunchTemplate": Case(
        {"LaunchTemplateName": "tpl", "LaunchTemplateData": {"ImageId": "ami-1", "EbsOptimized": "true"}},
        changed={"LaunchTemplateData": {"ImageId": "ami-2"}, "VersionDescription": "second"},
        replacing={"LaunchTemplateName": "tpl2"},
        starts="lt-0",
        shown=("ec2:DescribeLaunchTemplateVersions", {"LaunchTemplateName": "tpl", "Versions": ["$Latest"]}, "second"),
    ),
}
