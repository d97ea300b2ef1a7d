"""Every paginator and every waiter that botocore has for an operation that Corral serves, run for real.

A new operation with a paginator needs a line in PAGES, and records in one of the functions of RECORDS if its listing would
otherwise have a single page. A waiter needs a line in WAITERS.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import botocore.loaders
import pytest
from botocore import xform_name
from botocore.exceptions import UnknownServiceError

from clients.function_help import create
from corral.operations.services import SERVICES
from harness import Corral, container

LOADER = botocore.loaders.Loader()
ALLOW = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})
TRUST = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": "*"}]})
TAGS = [{"Key": f"key{at}", "Value": ""} for at in range(3)]
ROLE_ARN = "arn:aws:iam::123456789012:role/role0"
POLICY = "arn:aws:iam::123456789012:policy/policy0"
THREE = range(3)
TOPIC = "Resources: {T: {Type: AWS::SNS::Topic}}"
TOPIC_RENAMED = "Resources: {T: {Type: AWS::SNS::Topic, Properties: {DisplayName: a}}}"
TOPIC_AND_CUSTOM = "Resources: {T: {Type: AWS::SNS::Topic}, C: {Type: 'Custom::C', Properties: {ServiceToken: a}}}"
METRIC = {"Namespace": "pages", "MetricName": "m"}

# (service, operation) -> parameters with which a listing has at least two pages of one element.
PAGES: dict[tuple[str, str], dict[str, Any]] = {
    ("application-autoscaling", "DescribeScalableTargets"): {"ServiceNamespace": "ecs"},
    ("application-autoscaling", "DescribeScalingActivities"): {"ServiceNamespace": "ecs"},
    ("application-autoscaling", "DescribeScalingPolicies"): {"ServiceNamespace": "ecs"},
    ("application-autoscaling", "DescribeScheduledActions"): {"ServiceNamespace": "ecs"},
    ("autoscaling", "DescribeAutoScalingGroups"): {},
    ("autoscaling", "DescribeAutoScalingInstances"): {},
    ("autoscaling", "DescribeLaunchConfigurations"): {},
    ("autoscaling", "DescribeLoadBalancerTargetGroups"): {"AutoScalingGroupName": "group0"},
    ("autoscaling", "DescribeLoadBalancers"): {"AutoScalingGroupName": "group0"},
    ("autoscaling", "DescribeNotificationConfigurations"): {},
    ("autoscaling", "DescribePolicies"): {},
    ("autoscaling", "DescribeScalingActivities"): {},
    ("autoscaling", "DescribeScheduledActions"): {},
    ("autoscaling", "DescribeTags"): {},
    ("autoscaling", "DescribeWarmPool"): {"AutoScalingGroupName": "group0"},
    ("cloudformation", "DescribeAccountLimits"): {},
    ("cloudformation", "DescribeChangeSet"): {"StackName": "review", "ChangeSetName": "changes"},
    ("cloudformation", "DescribeStackEvents"): {"StackName": "exporter"},
    ("cloudformation", "DescribeStacks"): {},
    ("cloudformation", "ListChangeSets"): {"StackName": "review"},
    ("cloudformation", "ListExports"): {},
    ("cloudformation", "ListImports"): {"ExportName": "pages"},
    ("cloudformation", "ListStackResources"): {"StackName": "exporter"},
    ("cloudformation", "ListStacks"): {},
    ("batch", "DescribeComputeEnvironments"): {},
    ("batch", "DescribeJobDefinitions"): {},
    ("batch", "DescribeJobQueues"): {},
    ("batch", "ListConsumableResources"): {},
    ("batch", "ListJobs"): {"jobQueue": "queue0", "jobStatus": "RUNNABLE"},
    ("batch", "ListJobsByConsumableResource"): {"consumableResource": "resource0"},
    ("batch", "ListSchedulingPolicies"): {},
    ("cloudwatch", "DescribeAlarmHistory"): {"AlarmTypes": ["MetricAlarm", "CompositeAlarm"]},
    ("cloudwatch", "DescribeAlarms"): {"AlarmTypes": ["MetricAlarm", "CompositeAlarm"]},
    ("cloudwatch", "GetMetricData"): {
        "MetricDataQueries": [
            {"Id": f"m{at}", "MetricStat": {"Metric": METRIC, "Period": 3600 * (at + 1), "Stat": "Sum"}} for at in THREE
        ],
        "StartTime": time.time() // 60 * 60 - 600,
        "EndTime": time.time() + 3600,
    },
    ("cloudwatch", "ListDashboards"): {},
    ("cloudwatch", "ListMetrics"): {"Namespace": "pages"},
    ("ec2", "DescribeAddressesAttribute"): {},
    ("ec2", "DescribeDhcpOptions"): {},
    ("ec2", "DescribeFlowLogs"): {},
    ("ec2", "DescribeImages"): {"Owners": ["amazon"]},
    ("ec2", "DescribeInstanceCreditSpecifications"): {},
    ("ec2", "DescribeInstanceStatus"): {},
    ("ec2", "DescribeInstanceTypeOfferings"): {"Filters": [{"Name": "instance-type", "Values": ["m5.*"]}]},
    ("ec2", "DescribeInstanceTypes"): {"Filters": [{"Name": "instance-type", "Values": ["m5.*"]}]},
    ("ec2", "DescribeInstances"): {"Filters": [{"Name": "tag-key", "Values": ["pages"]}]},
    ("ec2", "DescribeInternetGateways"): {},
    ("ec2", "DescribeLaunchTemplateVersions"): {"LaunchTemplateName": "pages0"},
    ("ec2", "DescribeLaunchTemplates"): {},
    ("ec2", "DescribeManagedPrefixLists"): {},
    ("ec2", "DescribeNatGateways"): {},
    ("ec2", "DescribeNetworkAcls"): {},
    ("ec2", "DescribeNetworkInterfaces"): {},
    ("ec2", "DescribePrefixLists"): {},
    ("ec2", "DescribeRouteTables"): {},
    ("ec2", "DescribeSecurityGroupRules"): {},
    ("ec2", "DescribeSecurityGroups"): {},
    ("ec2", "DescribeSubnets"): {},
    ("ec2", "DescribeTags"): {},
    ("ec2", "DescribeVolumes"): {},
    ("ec2", "DescribeVpcEndpoints"): {},
    ("ec2", "DescribeVpcPeeringConnections"): {},
    ("ec2", "DescribeVpcs"): {},
    ("ec2", "GetManagedPrefixListEntries"): {"PrefixListId": "pl-6855ce84"},
    ("cloudtrail", "LookupEvents"): {"LookupAttributes": [{"AttributeKey": "EventName", "AttributeValue": "CreateQueue"}]},
    ("ecr", "DescribeImages"): {"repositoryName": "pages/0"},
    ("ecr", "DescribeRepositories"): {},
    ("ecr", "ListImages"): {"repositoryName": "pages/0"},
    ("ecs", "ListAccountSettings"): {"effectiveSettings": True},
    ("ecs", "ListAttributes"): {"targetType": "container-instance"},
    ("ecs", "ListClusters"): {},
    ("ecs", "ListContainerInstances"): {},
    ("ecs", "ListServices"): {},
    ("ecs", "ListTaskDefinitionFamilies"): {},
    ("ecs", "ListTaskDefinitions"): {},
    ("ecs", "ListTasks"): {},
    ("iam", "GetAccountAuthorizationDetails"): {},
    ("iam", "GetGroup"): {"GroupName": "group0"},
    ("iam", "ListAccessKeys"): {"UserName": "user0"},
    ("iam", "ListAccountAliases"): {},
    ("iam", "ListAttachedGroupPolicies"): {"GroupName": "group0"},
    ("iam", "ListAttachedUserPolicies"): {"UserName": "user0"},
    ("iam", "ListGroupPolicies"): {"GroupName": "group0"},
    ("iam", "ListGroups"): {},
    ("iam", "ListGroupsForUser"): {"UserName": "user0"},
    ("iam", "ListUserPolicies"): {"UserName": "user0"},
    ("iam", "ListUserTags"): {"UserName": "user0"},
    ("iam", "ListUsers"): {},
    ("iam", "ListAttachedRolePolicies"): {"RoleName": "role0"},
    ("iam", "ListEntitiesForPolicy"): {"PolicyArn": POLICY},
    ("iam", "ListInstanceProfileTags"): {"InstanceProfileName": "profile0"},
    ("iam", "ListInstanceProfiles"): {},
    ("iam", "ListInstanceProfilesForRole"): {"RoleName": "role0"},
    ("iam", "ListPolicies"): {},
    ("iam", "ListPolicyTags"): {"PolicyArn": POLICY},
    ("iam", "ListPolicyVersions"): {"PolicyArn": POLICY},
    ("iam", "ListRolePolicies"): {"RoleName": "role0"},
    ("iam", "ListRoleTags"): {"RoleName": "role0"},
    ("iam", "ListRoles"): {},
    ("iam", "SimulateCustomPolicy"): {"PolicyInputList": [ALLOW], "ActionNames": ["a:One", "a:Two", "a:Three"]},
    ("iam", "SimulatePrincipalPolicy"): {"PolicySourceArn": ROLE_ARN, "ActionNames": ["a:One", "a:Two", "a:Three"]},
    ("lambda", "ListEventSourceMappings"): {},
    ("lambda", "ListFunctions"): {},
    ("logs", "DescribeLogGroups"): {},
    ("logs", "DescribeLogStreams"): {"logGroupName": "/pages/0"},
    ("logs", "DescribeMetricFilters"): {},
    ("logs", "FilterLogEvents"): {"logGroupName": "/pages/0"},
    ("s3", "ListBuckets"): {},
    ("s3", "ListMultipartUploads"): {"Bucket": "pages-0"},
    ("s3", "ListObjectVersions"): {"Bucket": "pages-0"},
    ("s3", "ListObjects"): {"Bucket": "pages-0", "Delimiter": "/"},
    ("s3", "ListObjectsV2"): {"Bucket": "pages-0", "Delimiter": "/"},
    ("s3", "ListParts"): {"Bucket": "pages-0", "Key": "upload0"},
    ("secretsmanager", "ListResourcePolicies"): {"SecretId": "pages/0"},
    ("secretsmanager", "ListSecrets"): {},
    ("sns", "ListSubscriptions"): {},
    ("sns", "ListSubscriptionsByTopic"): {"TopicArn": "arn:aws:sns:us-east-1:123456789012:topic0"},
    ("sns", "ListTopics"): {},
    ("sqs", "ListDeadLetterSourceQueues"): {"QueueUrl": "http://any/123456789012/grave"},
    ("sqs", "ListQueues"): {},
    ("ssm", "DescribeParameters"): {},
    ("ssm", "GetParameterHistory"): {"Name": "/pages/0"},
    ("ssm", "GetParametersByPath"): {"Path": "/pages"},
}
NO_PAGE = {("ecr", "DescribeImageScanFindings")}  # Corral does not scan images, so this is always refused
ONE_PAGE = {
    ("autoscaling", "DescribeWarmPool"),  # warm pools have no instances
    ("ecs", "ListContainerInstances"),  # there is one machine
    ("iam", "ListAccountAliases"),  # an account has one
    ("ec2", "DescribeInstanceCreditSpecifications"),  # the instances here are not burstable
    ("ec2", "DescribeManagedPrefixLists"),  # there are two prefix lists
    ("ec2", "DescribePrefixLists"),
    ("ec2", "GetManagedPrefixListEntries"),  # the lists have no entries
    *(("ec2", name) for name in ("DescribeFlowLogs", "DescribeVolumes", "DescribeVpcPeeringConnections")),  # there are none
    ("secretsmanager", "ListResourcePolicies"),  # a secret has at most one
}
SMALLEST_PAGE = {"ec2": 5}


def some_task(corral: Corral, *command: str) -> dict[str, Any]:
    ecs = corral.client("ecs")
    ecs.register_task_definition(family="waited-for", containerDefinitions=[container(list(command))])
    return {"tasks": [ecs.run_task(taskDefinition="waited-for")["tasks"][0]["taskArn"]]}


def some_service(corral: Corral, *, deleted: bool) -> dict[str, Any]:
    ecs = corral.client("ecs")
    ecs.register_task_definition(family="waited-for", containerDefinitions=[container(["sleep", "600"])])
    name = f"service-{deleted}"
    ecs.create_service(serviceName=name, taskDefinition="waited-for", desiredCount=1)
    if deleted:
        ecs.delete_service(service=name, force=True)
    return {"services": [name]}


def some_instance(corral: Corral, operation: str = "") -> dict[str, Any]:
    ec2 = corral.client("ec2")
    launched = ec2.run_instances(ImageId="ami-1", InstanceType="m5.large", MinCount=1, MaxCount=1)["Instances"]
    ids = [each["InstanceId"] for each in launched]
    if operation:
        getattr(ec2, operation)(InstanceIds=ids)
    return {"InstanceIds": ids}


def some_image(corral: Corral, name: str) -> dict[str, Any]:
    return {"ImageIds": [corral.client("ec2").register_image(Name=name)["ImageId"]]}


# Corral has no log alarms, scans nothing, and imports no resources into stacks.
NEVER = {
    ("cloudformation", "StackImportComplete"),
    ("cloudwatch", "LogAlarmExists"),
    ("ec2", "NetworkInterfaceAvailable"),
    ("ec2", "VolumeAvailable"),
    ("ec2", "VolumeInUse"),
    ("ecr", "ImageScanComplete"),
}


def some_stack(corral: Corral, name: str, operation: str = "") -> dict[str, Any]:
    """A stack that was created and then updated, deleted, or rolled back by a failed update."""
    cloudformation = corral.client("cloudformation")
    cloudformation.create_stack(StackName=name, TemplateBody=TOPIC)
    created = cloudformation.get_waiter("stack_create_complete")
    if operation:
        created.wait(StackName=name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 600})
    if operation == "delete":
        cloudformation.delete_stack(StackName=name)
    elif operation:
        cloudformation.update_stack(StackName=name, TemplateBody=TOPIC_RENAMED if operation == "update" else TOPIC_AND_CUSTOM)
    return {"StackName": name}


# (service, waiter) -> a resource that reaches the state of the waiter.
WAITERS: dict[tuple[str, str], Callable[[Corral], dict[str, Any]]] = {
    ("cloudformation", "ChangeSetCreateComplete"): lambda corral: {"StackName": "review", "ChangeSetName": "changes"},
    ("cloudformation", "StackCreateComplete"): lambda corral: some_stack(corral, "created"),
    ("cloudformation", "StackDeleteComplete"): lambda corral: some_stack(corral, "deleted", "delete"),
    ("cloudformation", "StackExists"): lambda corral: {"StackName": "exporter"},
    ("cloudformation", "StackRollbackComplete"): lambda corral: some_stack(corral, "failed", "fail"),
    ("cloudformation", "StackUpdateComplete"): lambda corral: some_stack(corral, "updated", "update"),
    ("cloudwatch", "AlarmExists"): lambda corral: {"AlarmNames": ["alarm0"]},
    ("cloudwatch", "CompositeAlarmExists"): lambda corral: {"AlarmNames": ["composite0"], "AlarmTypes": ["CompositeAlarm"]},
    ("ec2", "ImageAvailable"): lambda corral: some_image(corral, "available"),
    ("ec2", "ImageExists"): lambda corral: some_image(corral, "exists"),
    ("ec2", "InstanceExists"): some_instance,
    ("ec2", "InstanceRunning"): some_instance,
    ("ec2", "InstanceStatusOk"): some_instance,
    ("ec2", "InstanceStopped"): lambda corral: some_instance(corral, "stop_instances"),
    ("ec2", "InstanceTerminated"): lambda corral: some_instance(corral, "terminate_instances"),
    ("ec2", "SystemStatusOk"): some_instance,
    ("ec2", "InternetGatewayExists"): lambda corral: {},
    ("ec2", "KeyPairExists"): lambda corral: {"KeyNames": ["pages"]},
    ("ec2", "NatGatewayAvailable"): lambda corral: {},
    ("ec2", "NatGatewayDeleted"): lambda corral: {"NatGatewayIds": ["nat-01234567890abcdef"]},
    ("ec2", "SecurityGroupExists"): lambda corral: {"GroupNames": ["default"]},
    ("ec2", "SubnetAvailable"): lambda corral: {},
    ("ec2", "VolumeDeleted"): lambda corral: {"VolumeIds": ["vol-01234567890abcdef"]},
    ("ec2", "VpcAvailable"): lambda corral: {},
    ("ec2", "VpcExists"): lambda corral: {},
    ("ec2", "VpcPeeringConnectionDeleted"): lambda corral: {"VpcPeeringConnectionIds": ["pcx-01234567890abcdef"]},
    ("ec2", "VpcPeeringConnectionExists"): lambda corral: {},
    ("ecs", "ServicesInactive"): lambda corral: some_service(corral, deleted=True),
    ("ecs", "ServicesStable"): lambda corral: some_service(corral, deleted=False),
    ("ecs", "TasksRunning"): lambda corral: some_task(corral, "sleep", "600"),
    ("ecs", "TasksStopped"): lambda corral: some_task(corral, "true"),
    ("iam", "InstanceProfileExists"): lambda corral: {"InstanceProfileName": "profile0"},
    ("iam", "PolicyExists"): lambda corral: {"PolicyArn": POLICY},
    ("iam", "RoleExists"): lambda corral: {"RoleName": "role0"},
    ("iam", "UserExists"): lambda corral: {"UserName": "user0"},
    **{
        ("lambda", waiter): lambda corral: {"FunctionName": "function0"}
        for waiter in (
            "FunctionActive",
            "FunctionActiveV2",
            "FunctionExists",
            "FunctionUpdated",
            "FunctionUpdatedV2",
            "PublishedVersionActive",
        )
    },
    ("s3", "BucketExists"): lambda corral: {"Bucket": "pages-0"},
    ("s3", "BucketNotExists"): lambda corral: {"Bucket": "pages-none"},
    ("s3", "ObjectExists"): lambda corral: {"Bucket": "pages-0", "Key": "key0"},
    ("s3", "ObjectNotExists"): lambda corral: {"Bucket": "pages-0", "Key": "none"},
}


def autoscaling_records(autoscaling: Any) -> None:
    """Groups of instances without GPUs, so that every launch succeeds at once."""
    for at in THREE:
        autoscaling.create_launch_configuration(LaunchConfigurationName=f"lc{at}", ImageId="ami-1", InstanceType="t3.micro")
        autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=f"group{at}", LaunchConfigurationName="lc0", MinSize=1, MaxSize=5,
            AvailabilityZones=["us-east-1a"], Tags=[{"Key": f"key{at}", "Value": "", "PropagateAtLaunch": True}],
        )  # fmt: skip
        autoscaling.put_scaling_policy(
            AutoScalingGroupName="group0", PolicyName=f"policy{at}", AdjustmentType="ChangeInCapacity", ScalingAdjustment=1
        )
        autoscaling.put_scheduled_update_group_action(
            AutoScalingGroupName="group0", ScheduledActionName=f"action{at}", Recurrence=f"0 0 {at + 1} 1 *", MinSize=1
        )
        autoscaling.put_notification_configuration(
            AutoScalingGroupName=f"group{at}", TopicARN="arn:aws:sns:us-east-1:123456789012:t",
            NotificationTypes=["autoscaling:EC2_INSTANCE_LAUNCH"],
        )  # fmt: skip
        autoscaling.attach_load_balancers(AutoScalingGroupName="group0", LoadBalancerNames=[f"lb{at}"])
        target = f"arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/t/{at}"
        autoscaling.attach_load_balancer_target_groups(AutoScalingGroupName="group0", TargetGroupARNs=[target])


def cloudformation_records(cloudformation: Any) -> None:
    exporter = f"{TOPIC}\nOutputs: {{T: {{Value: a, Export: {{Name: pages}}}}}}"
    importer = "Resources: {T: {Type: AWS::SNS::Topic, Properties: {DisplayName: !ImportValue pages}}}"
    for name, template in (("exporter", exporter), ("importer", importer)):
        cloudformation.create_stack(StackName=name, TemplateBody=template)
        cloudformation.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 600})
    cloudformation.create_change_set(StackName="review", ChangeSetName="changes", ChangeSetType="CREATE", TemplateBody=TOPIC)


def cloudwatch_records(cloudwatch: Any) -> None:
    cloudwatch.put_metric_data(Namespace="pages", MetricData=[{"MetricName": "m", "Value": 1, "Timestamp": time.time() - 60}])
    cloudwatch.put_dashboard(DashboardName="pages", DashboardBody='{"widgets": []}')
    for at in THREE:
        cloudwatch.put_metric_alarm(
            AlarmName=f"alarm{at}", Namespace="pages", MetricName="m", Statistic="Sum", Period=60, EvaluationPeriods=1, Threshold=1,
            ComparisonOperator="GreaterThanThreshold",
        )  # fmt: skip
        cloudwatch.put_composite_alarm(AlarmName=f"composite{at}", AlarmRule="ALARM(alarm0)")


def ec2_records(ec2: Any) -> None:
    """A page has at least five elements, so create six of each."""
    ec2.create_key_pair(KeyName="pages", KeyType="ed25519")
    for at in range(6):
        tags = [{"ResourceType": "instance", "Tags": [{"Key": "pages", "Value": str(at)}]}]
        ec2.run_instances(ImageId="ami-1", InstanceType="m5.large", MinCount=1, MaxCount=1, TagSpecifications=tags)
        ec2.create_launch_template(LaunchTemplateName=f"pages{at}", LaunchTemplateData={"ImageId": "ami-1"})
        ec2.create_launch_template_version(LaunchTemplateName="pages0", LaunchTemplateData={"KeyName": str(at)})
    (default,) = ec2.describe_vpcs()["Vpcs"]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    for at in range(6):
        vpc = ec2.create_vpc(CidrBlock=f"10.{at}.0.0/16")["Vpc"]["VpcId"]
        ec2.create_tags(Resources=[vpc], Tags=TAGS)
        ec2.create_internet_gateway()
        ec2.create_dhcp_options(DhcpConfigurations=[{"Key": "domain-name", "Values": [f"d{at}"]}])
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.{at}.0.0/24")
        ec2.create_vpc_endpoint(VpcId=default["VpcId"], ServiceName="com.amazonaws.us-east-1.s3")
        ec2.create_nat_gateway(SubnetId=subnet, AllocationId=ec2.allocate_address()["AllocationId"])


def ecr_records(ecr: Any) -> None:
    for at in THREE:
        ecr.create_repository(repositoryName=f"pages/{at}")
        manifest = json.dumps({"schemaVersion": 2, "manifests": [], "annotations": {"at": str(at)}})
        ecr.put_image(repositoryName="pages/0", imageManifest=manifest, imageTag=f"tag{at}")


def ecs_records(ecs: Any) -> None:
    for at in THREE:
        ecs.create_cluster(clusterName=f"cluster{at}")
        ecs.register_task_definition(family=f"family{at}", containerDefinitions=[container(["true"], gpus=60)])
        ecs.run_task(taskDefinition=f"family{at}")  # needs more GPUs than exist, so it waits
        ecs.create_service(serviceName=f"service{at}", taskDefinition=f"family{at}", desiredCount=0)


def application_autoscaling_records(scaling: Any) -> None:
    for at in THREE:
        place = {
            "ServiceNamespace": "ecs",
            "ResourceId": f"service/default/service{at}",
            "ScalableDimension": "ecs:service:DesiredCount",
        }
        for least, most in ((1, 1), (0, 0)):  # each changes the desired count
            scaling.register_scalable_target(**place, MinCapacity=least, MaxCapacity=most)
        steps = [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}]
        configuration = {"AdjustmentType": "ChangeInCapacity", "StepAdjustments": steps}
        scaling.put_scaling_policy(**place, PolicyName="p", StepScalingPolicyConfiguration=configuration)
        action = {"Schedule": "rate(1 day)", "ScalableTargetAction": {"MaxCapacity": 0}}
        scaling.put_scheduled_action(**place, ScheduledActionName="s", **action)


def batch_records(batch: Any) -> None:
    needs = [{"type": kind, "value": value} for kind, value in (("VCPU", "1"), ("MEMORY", "8"), ("GPU", "60"))]
    for at in THREE:
        batch.create_compute_environment(computeEnvironmentName=f"environment{at}", type="UNMANAGED")
        order = [{"order": 1, "computeEnvironment": f"environment{at}"}]
        batch.create_job_queue(jobQueueName=f"queue{at}", priority=1, computeEnvironmentOrder=order)
        batch.create_scheduling_policy(name=f"policy{at}")
        batch.create_consumable_resource(consumableResourceName=f"resource{at}", totalQuantity=1)
        batch.register_job_definition(
            jobDefinitionName=f"definition{at}",
            type="container",
            containerProperties={"image": "corral/host", "command": ["true"], "resourceRequirements": needs},
            consumableResourceProperties={"consumableResourceList": [{"consumableResource": "resource0", "quantity": 1}]},
        )
    for at in THREE:  # the environment has no instances, so the jobs wait
        batch.submit_job(jobName=f"job{at}", jobQueue="queue0", jobDefinition="definition0")


def iam_records(iam: Any) -> None:
    for at in THREE:
        iam.create_role(RoleName=f"role{at}", AssumeRolePolicyDocument=TRUST, Tags=TAGS)
        iam.put_role_policy(RoleName="role0", PolicyName=f"inline{at}", PolicyDocument=ALLOW)
        iam.create_policy(PolicyName=f"policy{at}", PolicyDocument=ALLOW, Tags=TAGS)
        iam.create_policy_version(PolicyArn=POLICY, PolicyDocument=ALLOW)
        iam.attach_role_policy(RoleName=f"role{at}", PolicyArn=POLICY)
        iam.attach_role_policy(RoleName="role0", PolicyArn=f"arn:aws:iam::aws:policy/Policy{at}")
        iam.create_instance_profile(InstanceProfileName=f"profile{at}", Tags=TAGS)
        iam.add_role_to_instance_profile(InstanceProfileName=f"profile{at}", RoleName="role0")
        iam.create_user(UserName=f"user{at}", Tags=TAGS)
        iam.create_group(GroupName=f"group{at}")
        for word, put, attach in (
            ("User", iam.put_user_policy, iam.attach_user_policy),
            ("Group", iam.put_group_policy, iam.attach_group_policy),
        ):
            put(**{f"{word}Name": f"{word.lower()}0"}, PolicyName=f"inline{at}", PolicyDocument=ALLOW)
            attach(**{f"{word}Name": f"{word.lower()}0"}, PolicyArn=f"arn:aws:iam::aws:policy/Policy{at}")
    for at in THREE:
        iam.add_user_to_group(UserName="user0", GroupName=f"group{at}")
        iam.add_user_to_group(UserName=f"user{at}", GroupName="group0")
    for _ in range(2):
        iam.create_access_key(UserName="user0")
    iam.create_account_alias(AccountAlias="pages")


def lambda_records(functions: Any) -> None:
    for at in THREE:
        create(functions, f"function{at}", "", Role=ROLE_ARN)
        queue = "arn:aws:sqs:us-east-1:123456789012:queue0"
        functions.create_event_source_mapping(FunctionName=f"function{at}", EventSourceArn=queue)


def logs_records(logs: Any) -> None:
    for at in THREE:
        logs.create_log_group(logGroupName=f"/pages/{at}")
        logs.create_log_stream(logGroupName="/pages/0", logStreamName=f"stream{at}")
        event = {"timestamp": int(time.time() * 1000), "message": "x"}
        logs.put_log_events(logGroupName="/pages/0", logStreamName=f"stream{at}", logEvents=[event])
        metric = {"metricName": "m", "metricNamespace": "n", "metricValue": "1"}
        logs.put_metric_filter(logGroupName=f"/pages/{at}", filterName="filter", filterPattern="", metricTransformations=[metric])


def ssm_records(ssm: Any) -> None:
    for at in THREE:
        ssm.put_parameter(Name=f"/pages/{at}", Value="x", Type="String")
        ssm.put_parameter(Name="/pages/0", Value="x", Overwrite=True)


def secretsmanager_records(secrets: Any) -> None:
    for at in THREE:
        secrets.create_secret(Name=f"pages/{at}", SecretString="x")


def s3_records(s3: Any) -> None:
    for at in THREE:
        s3.create_bucket(Bucket=f"pages-{at}")
        s3.put_bucket_versioning(Bucket="pages-0", VersioningConfiguration={"Status": "Enabled"})
        s3.put_object(Bucket="pages-0", Key=f"key{at}")
        s3.put_object(Bucket="pages-0", Key=f"folder{at}/key")
        s3.delete_object(Bucket="pages-0", Key=f"gone{at}")
        s3.create_multipart_upload(Bucket="pages-0", Key=f"upload{at}")
    for at in THREE:
        s3.upload_part(Bucket="pages-0", Key="upload0", UploadId=first_upload(s3), PartNumber=at + 1, Body=b"x")


def first_upload(s3: Any) -> str:
    return s3.list_multipart_uploads(Bucket="pages-0")["Uploads"][0]["UploadId"]


def sns_records(sns: Any) -> None:
    arn = sns.create_topic(Name="topic0")["TopicArn"]
    sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint="arn:aws:sqs:us-east-1:123456789012:queue0")


def sqs_records(sqs: Any) -> None:
    sqs.create_queue(QueueName="grave")
    policy = json.dumps({"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:grave", "maxReceiveCount": 1})
    for at in THREE:
        sqs.create_queue(QueueName=f"queue{at}", Attributes={"RedrivePolicy": policy})


RECORDS = {
    "autoscaling": autoscaling_records,
    "batch": batch_records,
    "cloudformation": cloudformation_records,
    "cloudwatch": cloudwatch_records,
    "ec2": ec2_records,
    "ecr": ecr_records,
    "ecs": ecs_records,
    "application-autoscaling": application_autoscaling_records,
    "iam": iam_records,
    "sqs": sqs_records,
    "lambda": lambda_records,  # its mappings need the role and a queue
    "logs": logs_records,
    "s3": s3_records,
    "secretsmanager": secretsmanager_records,
    "sns": sns_records,
    "ssm": ssm_records,
}


@pytest.fixture(scope="module")
def full(corral: Corral) -> Corral:
    for service, make in RECORDS.items():
        make(corral.client(service))
    return corral


def model(service: str, kind: str, part: str) -> dict[str, Any]:
    try:
        return LOADER.load_service_model(service, kind)[part]
    except UnknownServiceError:  # it has none
        return {}


def test_every_paginator_has_a_case():
    known = {(service, name) for service in SERVICES for name in model(service, "paginators-1", "pagination")}
    assert {(service, name) for service, name in known if name in SERVICES[service].operations} == set(PAGES) | NO_PAGE


def test_every_waiter_has_a_case():
    known = {
        (service, name)
        for service in SERVICES
        for name, waiter in model(service, "waiters-2", "waiters").items()
        if waiter["operation"] in SERVICES[service].operations
    }
    assert known == set(WAITERS) | NEVER


@pytest.mark.parametrize(("service", "operation"), PAGES, ids=[":".join(case) for case in PAGES])
def test_paginator(full: Corral, service: str, operation: str):
    client, params, name = full.client(service), PAGES[service, operation], xform_name(operation)
    assert client.can_paginate(name)
    if operation == "ListParts":
        params = {**params, "UploadId": first_upload(client)}
    whole = getattr(client, name)(**params)
    paging = model(service, "paginators-1", "pagination")[operation]
    keys = paging["result_key"]
    if "limit_key" not in paging:  # the page size is fixed; the tests of the operation have enough elements for two pages
        assert list(client.get_paginator(name).paginate(**params).build_full_result()[keys[0] if isinstance(keys, list) else keys])
        return
    smallest = SMALLEST_PAGE.get(service, 1)
    for size in (smallest, smallest + 1):
        pages = list(client.get_paginator(name).paginate(**params, PaginationConfig={"PageSize": size}))
        assert len(pages) >= 2 or size > smallest or (service, operation) in ONE_PAGE
        for key in [keys] if isinstance(keys, str) else keys:
            assert [item for page in pages for item in page.get(key, ())] == whole.get(key, [])
            assert all(len(page.get(key, ())) <= size for page in pages)


@pytest.mark.parametrize(("service", "waiter"), WAITERS, ids=[":".join(case) for case in WAITERS])
def test_waiter(full: Corral, service: str, waiter: str):
    waiting = full.client(service).get_waiter(xform_name(waiter))
    waiting.wait(**WAITERS[service, waiter](full), WaiterConfig={"Delay": 0.05, "MaxAttempts": 600})
