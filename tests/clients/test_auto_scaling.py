"""Auto Scaling on eight simulated GPUs, by boto3 and the aws command: groups, instances in clusters, hooks, refresh, health."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from eventually import eventually
from harness import Corral, container

IMAGE = "ami-0123456789abcdef0"
ZONES = ["us-east-1a", "us-east-1b"]


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    running = Corral(tmp_path_factory.mktemp("corral") / "data", "sim:8").start()
    made = running.client("autoscaling")
    for name, type_ in (("one", "g5.xlarge"), ("four", "p3.8xlarge"), ("sixteen", "p2.16xlarge")):
        made.create_launch_configuration(LaunchConfigurationName=name, ImageId=IMAGE, InstanceType=type_)
    yield running
    running.clear()


@pytest.fixture
def autoscaling(corral: Corral) -> Iterator[Any]:
    """A client; all groups are deleted after the test."""
    client = corral.client("autoscaling")
    yield client
    for group in groups(client):
        client.update_auto_scaling_group(AutoScalingGroupName=group["AutoScalingGroupName"], DeletionProtection="none")
        client.delete_auto_scaling_group(AutoScalingGroupName=group["AutoScalingGroupName"], ForceDelete=True)
    corral.stop_tasks()
    eventually(lambda: not groups(client), "no group is left")


def groups(client: Any, *names: str) -> list[dict[str, Any]]:
    return list(
        client.describe_auto_scaling_groups(**({"AutoScalingGroupNames": list(names)} if names else {}))["AutoScalingGroups"]
    )


def create(client: Any, name: str, desired: int, most: int = 8, **more: Any) -> None:
    if not more.keys() & {"LaunchConfigurationName", "LaunchTemplate", "MixedInstancesPolicy"}:
        more["LaunchConfigurationName"] = "one"
    client.create_auto_scaling_group(
        AutoScalingGroupName=name, MinSize=0, MaxSize=most, DesiredCapacity=desired, AvailabilityZones=ZONES, **more
    )


def instances(client: Any, name: str) -> list[dict[str, Any]]:
    return list(groups(client, name)[0]["Instances"])


def in_service(client: Any, name: str, count: int) -> list[str]:
    """Wait until a group has exactly this many instances, all in service."""

    def settled() -> bool:
        found = instances(client, name)
        return len(found) == count and all(each["LifecycleState"] == "InService" for each in found)

    eventually(settled, f"{count} instances in service")
    return [each["InstanceId"] for each in instances(client, name)]


def activities(client: Any, name: str, **more: Any) -> list[dict[str, Any]]:
    return list(client.describe_scaling_activities(AutoScalingGroupName=name, **more)["Activities"])


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def user_data(cluster: str) -> str:
    return b64encode(f"#!/bin/bash\necho ECS_CLUSTER={cluster} >> /etc/ecs/ecs.config\n".encode()).decode()


def test_zero_three_one_zero_with_tasks(corral: Corral, autoscaling: Any) -> None:
    """A group from a launch template joins a cluster; tasks run on its instances and end with them."""
    ec2, ecs = corral.client("ec2"), corral.client("ecs")
    ecs.create_cluster(clusterName="fleet")
    data = {"ImageId": IMAGE, "InstanceType": "g5.12xlarge", "UserData": user_data("fleet")}
    made = ec2.create_launch_template(LaunchTemplateName="fleet", LaunchTemplateData={**data, "InstanceType": "g4dn.xlarge"})
    create(autoscaling, "fleet", 0, LaunchTemplate={"LaunchTemplateName": "fleet", "Version": "$Latest"})
    autoscaling.set_desired_capacity(AutoScalingGroupName="fleet", DesiredCapacity=3)
    ids = in_service(autoscaling, "fleet", 3)
    arns = ecs.list_container_instances(cluster="fleet")["containerInstanceArns"]
    shown = ecs.describe_container_instances(cluster="fleet", containerInstances=arns)["containerInstances"]
    assert sorted(each["ec2InstanceId"] for each in shown) == sorted(ids)
    found = ec2.describe_instances(Filters=[{"Name": "tag:aws:autoscaling:groupName", "Values": ["fleet"]}])["Reservations"]
    assert sorted(each["InstanceId"] for part in found for each in part["Instances"]) == sorted(ids)
    assert instances(autoscaling, "fleet")[0]["LaunchTemplate"] == {
        "LaunchTemplateId": made["LaunchTemplate"]["LaunchTemplateId"], "LaunchTemplateName": "fleet", "Version": "1",
    }  # fmt: skip
    ecs.register_task_definition(family="hold", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    reply = ecs.run_task(cluster="fleet", taskDefinition="hold", count=3, launchType="EC2")
    assert not reply["failures"]
    tasks = [task["taskArn"] for task in reply["tasks"]]
    ecs.get_waiter("tasks_running").wait(cluster="fleet", tasks=tasks, WaiterConfig={"Delay": 0.1, "MaxAttempts": 300})
    autoscaling.update_auto_scaling_group(AutoScalingGroupName="fleet", DesiredCapacity=1)
    [left] = in_service(autoscaling, "fleet", 1)
    ended = eventually(
        lambda: [task for task in ecs.describe_tasks(cluster="fleet", tasks=tasks)["tasks"] if task["lastStatus"] == "STOPPED"][:2]
    )
    assert all(task["stopCode"] == "TerminationNotice" or "terminated" in task["stoppedReason"] for task in ended)
    assert left in ids
    autoscaling.set_desired_capacity(AutoScalingGroupName="fleet", DesiredCapacity=0)
    in_service(autoscaling, "fleet", 0)
    eventually(lambda: not ecs.list_container_instances(cluster="fleet")["containerInstanceArns"], "the cluster is empty")
    ec2.delete_launch_template(LaunchTemplateName="fleet")


def test_the_aws_command(corral: Corral, autoscaling: Any) -> None:
    aws = corral.aws
    aws(
        "autoscaling", "create-auto-scaling-group", "--auto-scaling-group-name", "by-hand", "--launch-configuration-name", "one",
        "--min-size", "0", "--max-size", "4", "--desired-capacity", "0", "--availability-zones", *ZONES,
        "--tags", "Key=team,Value=vision,PropagateAtLaunch=true",
    )  # fmt: skip
    for desired in (3, 1, 0):
        aws("autoscaling", "set-desired-capacity", "--auto-scaling-group-name", "by-hand", "--desired-capacity", str(desired))
        in_service(autoscaling, "by-hand", desired)
    shown = aws("autoscaling", "describe-scaling-activities", "--auto-scaling-group-name", "by-hand")["Activities"]
    assert [each["StatusCode"] for each in shown] == ["Successful"] * 6
    assert shown[0]["Cause"].count("At ") == 3 and shown[0]["Description"].startswith("Terminating EC2 instance: i-")
    aws("autoscaling", "delete-auto-scaling-group", "--auto-scaling-group-name", "by-hand")
    assert aws("autoscaling", "describe-auto-scaling-groups", "--auto-scaling-group-names", "by-hand")["AutoScalingGroups"] == []


def test_what_a_group_shows(autoscaling: Any) -> None:
    create(autoscaling, "shown", 0, HealthCheckGracePeriod=7, Tags=[{"Key": "a", "Value": "b", "PropagateAtLaunch": True}])
    [shown] = groups(autoscaling, "shown")
    assert shown["AutoScalingGroupARN"].startswith("arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:")
    assert shown["AutoScalingGroupARN"].endswith(":autoScalingGroupName/shown")
    expected = {
        "LaunchConfigurationName": "one", "MinSize": 0, "MaxSize": 8, "DesiredCapacity": 0, "DefaultCooldown": 300,
        "AvailabilityZones": ZONES, "HealthCheckType": "EC2", "HealthCheckGracePeriod": 7, "TerminationPolicies": ["Default"],
        "NewInstancesProtectedFromScaleIn": False, "SuspendedProcesses": [], "LoadBalancerNames": [], "EnabledMetrics": [],
        "Tags": [
            {"ResourceId": "shown", "ResourceType": "auto-scaling-group", "Key": "a", "Value": "b", "PropagateAtLaunch": True}
        ],
    }  # fmt: skip
    assert {member: shown[member] for member in expected} == expected
    tagged = autoscaling.describe_auto_scaling_groups(Filters=[{"Name": "tag:a", "Values": ["b"]}])["AutoScalingGroups"]
    assert [each["AutoScalingGroupName"] for each in tagged] == ["shown"]
    with pytest.raises(autoscaling.exceptions.AlreadyExistsFault):
        create(autoscaling, "shown", 0)
    assert refused(lambda: create(autoscaling, "a b", 0))[0] == "ValidationError"
    assert refused(lambda: create(autoscaling, "x", 0, LaunchConfigurationName="none")) == (
        "ValidationError", "Launch configuration name not found - Launch configuration none not found",
    )  # fmt: skip
    missing = refused(lambda: autoscaling.set_desired_capacity(AutoScalingGroupName="none", DesiredCapacity=1))
    assert missing == ("ValidationError", "AutoScalingGroup name not found - AutoScalingGroup none not found")
    with pytest.raises(autoscaling.exceptions.ResourceInUseFault, match="because it is attached to AutoScalingGroup shown"):
        autoscaling.delete_launch_configuration(LaunchConfigurationName="one")


def test_launches_that_wait_and_launches_that_never_fit(autoscaling: Any) -> None:
    create(autoscaling, "never", 1, LaunchConfigurationName="sixteen")
    [failed] = eventually(lambda: activities(autoscaling, "never"))
    assert failed["StatusCode"] == "Failed"
    for part in ("p2.16xlarge needs 16 GPUs", "this machine has 8 GPUs", "p2.16xlarge = {gpus = 8}"):
        assert part in failed["StatusMessage"]
    create(autoscaling, "big", 3, LaunchConfigurationName="four")
    eventually(
        lambda: sorted(each["LifecycleState"] for each in instances(autoscaling, "big")) == ["InService", "InService", "Pending"]
    )
    [waits] = [each for each in activities(autoscaling, "big") if each["StatusCode"] == "WaitingForInstanceId"]
    assert "4 GPUs" in waits["StatusMessage"]
    autoscaling.set_desired_capacity(AutoScalingGroupName="big", DesiredCapacity=1)
    in_service(autoscaling, "big", 1)
    create(autoscaling, "small", 4)
    in_service(autoscaling, "small", 4)


def test_a_dead_instance_is_replaced(corral: Corral, autoscaling: Any) -> None:
    create(autoscaling, "mortal", 2)
    before = in_service(autoscaling, "mortal", 2)
    corral.client("ec2").terminate_instances(InstanceIds=before[:1])
    eventually(lambda: before[0] not in [each["InstanceId"] for each in instances(autoscaling, "mortal")])
    after = in_service(autoscaling, "mortal", 2)
    assert before[1] in after
    assert "unhealthy instance needing to be replaced" in activities(autoscaling, "mortal")[0]["Cause"]
    autoscaling.set_instance_health(InstanceId=before[1], HealthStatus="Unhealthy")
    eventually(lambda: before[1] not in [each["InstanceId"] for each in instances(autoscaling, "mortal")])
    in_service(autoscaling, "mortal", 2)
    assert refused(lambda: autoscaling.set_instance_health(InstanceId=before[1], HealthStatus="Healthy"))[0] == "ValidationError"


def test_protection_standby_detach_and_terminate(corral: Corral, autoscaling: Any) -> None:
    create(autoscaling, "members", 3)
    one, two, three = in_service(autoscaling, "members", 3)
    group = {"AutoScalingGroupName": "members"}
    autoscaling.set_instance_protection(**group, InstanceIds=[one, two], ProtectedFromScaleIn=True)
    autoscaling.set_desired_capacity(**group, DesiredCapacity=0)
    eventually(lambda: {each["InstanceId"] for each in instances(autoscaling, "members")} == {one, two}, "protected ones stay")
    autoscaling.set_desired_capacity(**group, DesiredCapacity=2)
    autoscaling.enter_standby(**group, InstanceIds=[one], ShouldDecrementDesiredCapacity=True)
    shown = {
        each["InstanceId"]: each
        for each in autoscaling.describe_auto_scaling_instances(InstanceIds=[one, two])["AutoScalingInstances"]
    }
    assert (shown[one]["LifecycleState"], shown[two]["AutoScalingGroupName"]) == ("Standby", "members")
    autoscaling.exit_standby(**group, InstanceIds=[one])
    [done] = autoscaling.detach_instances(**group, InstanceIds=[one], ShouldDecrementDesiredCapacity=True)["Activities"]
    assert done["StatusCode"] == "Successful"
    autoscaling.attach_instances(**group, InstanceIds=[one])
    assert groups(autoscaling, "members")[0]["DesiredCapacity"] == 2
    ended = autoscaling.terminate_instance_in_auto_scaling_group(InstanceId=two, ShouldDecrementDesiredCapacity=True)["Activity"]
    assert ended["Description"] == f"Terminating EC2 instance: {two}"
    in_service(autoscaling, "members", 1)
    assert three not in {each["InstanceId"] for each in instances(autoscaling, "members")}


def test_a_worker_completes_lifecycle_hooks_through_its_queue(corral: Corral, autoscaling: Any) -> None:
    sqs = corral.client("sqs")
    url = sqs.create_queue(QueueName="hooks")["QueueUrl"]
    hooks = [
        {
            "LifecycleHookName": name, "LifecycleTransition": f"autoscaling:EC2_INSTANCE_{name.upper()}", "HeartbeatTimeout": 300,
            "NotificationTargetARN": "arn:aws:sqs:us-east-1:123456789012:hooks", "RoleARN": "arn:aws:iam::123456789012:role/r",
        }
        for name in ("launching", "terminating")
    ]  # fmt: skip
    create(autoscaling, "hooked", 1, LifecycleHookSpecificationList=hooks)

    def next_message() -> dict[str, Any]:
        while True:
            [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            body: dict[str, Any] = json.loads(message["Body"])
            if body.get("Event") != "autoscaling:TEST_NOTIFICATION":
                return body

    for name, desired in (("launching", 1), ("terminating", 0)):
        if name == "terminating":
            autoscaling.set_desired_capacity(AutoScalingGroupName="hooked", DesiredCapacity=0)
        message = next_message()
        assert message["LifecycleHookName"] == name
        [member] = instances(autoscaling, "hooked")
        assert (member["InstanceId"], member["LifecycleState"].partition(":")[2]) == (message["EC2InstanceId"], "Wait")
        named = {
            "AutoScalingGroupName": "hooked",
            "LifecycleHookName": name,
            "LifecycleActionToken": message["LifecycleActionToken"],
        }
        autoscaling.record_lifecycle_action_heartbeat(**named)
        autoscaling.complete_lifecycle_action(**named, LifecycleActionResult="CONTINUE")
        in_service(autoscaling, "hooked", desired)
    sqs.delete_queue(QueueUrl=url)


def test_an_instance_refresh(corral: Corral, autoscaling: Any) -> None:
    ec2 = corral.client("ec2")
    data = {"ImageId": IMAGE, "InstanceType": "g5.xlarge"}
    template = ec2.create_launch_template(LaunchTemplateName="rolled", LaunchTemplateData=data)["LaunchTemplate"][
        "LaunchTemplateId"
    ]
    create(autoscaling, "rolled", 4, LaunchTemplate={"LaunchTemplateId": template, "Version": "1"})
    before = in_service(autoscaling, "rolled", 4)
    ec2.create_launch_template_version(LaunchTemplateId=template, SourceVersion="1", LaunchTemplateData={"ImageId": "ami-2"})
    refresh_id = autoscaling.start_instance_refresh(
        AutoScalingGroupName="rolled",
        DesiredConfiguration={"LaunchTemplate": {"LaunchTemplateId": template, "Version": "2"}},
        Preferences={"MinHealthyPercentage": 50},
    )["InstanceRefreshId"]

    def status() -> dict[str, Any]:
        found = autoscaling.describe_instance_refreshes(AutoScalingGroupName="rolled", InstanceRefreshIds=[refresh_id])
        return dict(found["InstanceRefreshes"][0])

    eventually(lambda: status()["Status"] == "Successful", "the refresh")
    assert status()["PercentageComplete"] == 100
    after = in_service(autoscaling, "rolled", 4)
    assert not set(before) & set(after)
    assert {each["LaunchTemplate"]["Version"] for each in instances(autoscaling, "rolled")} == {"2"}
    with pytest.raises(autoscaling.exceptions.ActiveInstanceRefreshNotFoundFault):
        autoscaling.cancel_instance_refresh(AutoScalingGroupName="rolled")


def test_policies_and_schedules(autoscaling: Any) -> None:
    create(autoscaling, "scaled", 1)
    in_service(autoscaling, "scaled", 1)
    group = {"AutoScalingGroupName": "scaled"}
    steps = [{"MetricIntervalLowerBound": 0.0, "MetricIntervalUpperBound": 10.0, "ScalingAdjustment": 1},
             {"MetricIntervalLowerBound": 10.0, "ScalingAdjustment": 2}]  # fmt: skip
    autoscaling.put_scaling_policy(
        **group, PolicyName="out", PolicyType="StepScaling", AdjustmentType="ChangeInCapacity", StepAdjustments=steps
    )
    autoscaling.execute_policy(**group, PolicyName="out", MetricValue=75.0, BreachThreshold=50.0)
    in_service(autoscaling, "scaled", 3)
    tracking = {"PredefinedMetricSpecification": {"PredefinedMetricType": "ASGAverageCPUUtilization"}, "TargetValue": 50.0}
    arn = autoscaling.put_scaling_policy(
        **group, PolicyName="track", PolicyType="TargetTrackingScaling", TargetTrackingConfiguration=tracking
    )["PolicyARN"]
    shown = autoscaling.describe_policies(PolicyNames=["track"])["ScalingPolicies"]
    assert [(each["PolicyARN"], each["TargetTrackingConfiguration"]) for each in shown] == [(arn, tracking)]
    assert (
        refused(lambda: autoscaling.put_scaling_policy(**group, PolicyName="x", PolicyType="StepScaling"))[0] == "ValidationError"
    )
    failed = autoscaling.batch_put_scheduled_update_group_action(
        **group,
        ScheduledUpdateGroupActions=[
            {"ScheduledActionName": "night", "Recurrence": "0 22 * * *", "DesiredCapacity": 0},
            {"ScheduledActionName": "wrong", "Recurrence": "0 25 * * *", "DesiredCapacity": 0},
        ],
    )["FailedScheduledUpdateGroupActions"]
    assert [(each["ScheduledActionName"], each["ErrorCode"]) for each in failed] == [("wrong", "ValidationError")]
    [action] = autoscaling.describe_scheduled_actions(**group)["ScheduledUpdateGroupActions"]
    assert action["ScheduledActionName"] == "night" and action["StartTime"].hour == 22
    autoscaling.delete_scheduled_action(**group, ScheduledActionName="night")
    autoscaling.delete_policy(**group, PolicyName="out")


def test_notifications_to_a_topic(autoscaling: Any, client: Callable[..., Any]) -> None:
    sns, sqs = client("sns"), client("sqs")
    topic = sns.create_topic(Name="fleet")["TopicArn"]
    url, arn = sqs.create_queue(QueueName="fleet")["QueueUrl"], "arn:aws:sqs:us-east-1:123456789012:fleet"
    statement = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": arn}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]})})
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    create(autoscaling, "told", 0)
    group = {"AutoScalingGroupName": "told"}
    kinds = ["autoscaling:EC2_INSTANCE_LAUNCH", "autoscaling:EC2_INSTANCE_TERMINATE"]
    autoscaling.put_notification_configuration(**group, TopicARN=topic, NotificationTypes=kinds)
    hook = {"LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING", "NotificationTargetARN": topic}
    autoscaling.put_lifecycle_hook(**group, LifecycleHookName="hook", RoleARN="arn:aws:iam::123456789012:role/r", **hook)
    autoscaling.set_desired_capacity(**group, DesiredCapacity=1)
    in_service(autoscaling, "told", 1)
    autoscaling.set_desired_capacity(**group, DesiredCapacity=0)
    found: list[dict[str, Any]] = []

    def received(count: int) -> bool:
        for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", []):
            found.append(json.loads(message["Body"]))
        return len(found) >= count

    eventually(lambda: received(4), "two tests, the launch and the hook")
    subjects = sorted(each["Subject"] for each in found)
    [instance] = {document["EC2InstanceId"] for each in found if "EC2InstanceId" in (document := json.loads(each["Message"]))}
    assert subjects == [
        f"Auto Scaling:  Lifecycle action 'TERMINATING' for instance {instance} in progress.",
        'Auto Scaling: launch for group "told"',
        'Auto Scaling: test notification for group "told"',
        'Auto Scaling: test notification for group "told"',
    ]
    autoscaling.complete_lifecycle_action(**group, LifecycleHookName="hook", LifecycleActionResult="CONTINUE", InstanceId=instance)
    eventually(lambda: received(5), "the termination")
    ended = json.loads(found[-1]["Message"])
    assert (ended["Event"], ended["StatusCode"]) == ("autoscaling:EC2_INSTANCE_TERMINATE", "Successful")
    assert (ended["EC2InstanceId"], ended["AutoScalingGroupName"]) == (instance, "told")


def test_settings_that_are_stored_only(autoscaling: Any) -> None:
    create(autoscaling, "stored", 0)
    group = {"AutoScalingGroupName": "stored"}
    autoscaling.enable_metrics_collection(**group, Granularity="1Minute", Metrics=["GroupMinSize"])
    autoscaling.put_warm_pool(**group, MinSize=1, PoolState="Stopped")
    autoscaling.attach_traffic_sources(**group, TrafficSources=[{"Identifier": "lb", "Type": "elb"}])
    topic = "arn:aws:sns:us-east-1:123456789012:t"
    kinds = ["autoscaling:EC2_INSTANCE_LAUNCH", "autoscaling:EC2_INSTANCE_TERMINATE"]
    autoscaling.put_notification_configuration(**group, TopicARN=topic, NotificationTypes=kinds)
    autoscaling.suspend_processes(**group, ScalingProcesses=["AZRebalance"])
    autoscaling.create_or_update_tags(
        Tags=[{"ResourceId": "stored", "ResourceType": "auto-scaling-group", "Key": "k", "Value": "v"}]
    )
    [shown] = groups(autoscaling, "stored")
    assert shown["EnabledMetrics"] == [{"Metric": "GroupMinSize", "Granularity": "1Minute"}]
    assert shown["WarmPoolConfiguration"]["MinSize"] == 1 and [each["ProcessName"] for each in shown["SuspendedProcesses"]] == [
        "AZRebalance"
    ]
    assert autoscaling.describe_warm_pool(**group)["Instances"] == []
    assert autoscaling.describe_traffic_sources(**group)["TrafficSources"][0]["Identifier"] == "lb"
    found = autoscaling.describe_notification_configurations(AutoScalingGroupNames=["stored"])["NotificationConfigurations"]
    assert [each["NotificationType"] for each in found] == kinds
    assert autoscaling.describe_tags(Filters=[{"Name": "key", "Values": ["k"]}])["Tags"][0]["Value"] == "v"
    autoscaling.delete_tags(Tags=[{"ResourceId": "stored", "ResourceType": "auto-scaling-group", "Key": "k"}])
    autoscaling.delete_notification_configuration(**group, TopicARN=topic)
    autoscaling.delete_warm_pool(**group)
    autoscaling.detach_traffic_sources(**group, TrafficSources=[{"Identifier": "lb"}])  # its type is optional
    with pytest.raises(ClientError, match="Trying to remove Load Balancers that are not part of the group: none"):
        autoscaling.detach_load_balancers(**group, LoadBalancerNames=["none"])
    with pytest.raises(ClientError, match="Trying to remove Target Groups that are not part of the group: arn:aws:"):
        autoscaling.detach_load_balancer_target_groups(**group, TargetGroupARNs=["arn:aws:elasticloadbalancing:a:1:targetgroup/a"])
    autoscaling.disable_metrics_collection(**group)
    autoscaling.resume_processes(**group)
    [shown] = groups(autoscaling, "stored")
    assert not (shown["EnabledMetrics"] or shown["Tags"] or shown["SuspendedProcesses"] or shown["TrafficSources"])


def test_descriptions_of_types_and_limits(autoscaling: Any) -> None:
    assert len(autoscaling.describe_termination_policy_types()["TerminationPolicyTypes"]) == 7
    assert len(autoscaling.describe_scaling_process_types()["Processes"]) == 9
    assert len(autoscaling.describe_adjustment_types()["AdjustmentTypes"]) == 3
    assert len(autoscaling.describe_lifecycle_hook_types()["LifecycleHookTypes"]) == 2
    assert len(autoscaling.describe_auto_scaling_notification_types()["AutoScalingNotificationTypes"]) == 5
    assert autoscaling.describe_metric_collection_types()["Granularities"] == [{"Granularity": "1Minute"}]
    limits = autoscaling.describe_account_limits()
    assert (limits["NumberOfLaunchConfigurations"], limits["MaxNumberOfAutoScalingGroups"]) == (3, 200)


def test_groups_survive_a_kill(own_corral: Callable[..., Corral]) -> None:
    """After kill -9 the group has the same instances, and goes on to its desired capacity."""
    corral = own_corral("sim:8").start()
    client = corral.client("autoscaling")
    client.create_launch_configuration(LaunchConfigurationName="one", ImageId=IMAGE, InstanceType="g5.xlarge")
    create(client, "durable", 3)
    before = in_service(client, "durable", 3)
    client.set_desired_capacity(AutoScalingGroupName="durable", DesiredCapacity=5)
    corral.kill("corral.server")
    client = corral.start().client("autoscaling")
    after = in_service(client, "durable", 5)
    assert set(before) <= set(after)
    client.delete_auto_scaling_group(AutoScalingGroupName="durable", ForceDelete=True)
    eventually(lambda: not groups(client), "deleted")


def test_a_queue_scales_a_group_from_zero(corral: Corral, autoscaling: Any) -> None:
    """One policy on both states of an alarm on the messages of a queue: 0 → 1 → 2 → 0."""
    sqs, cloudwatch = corral.client("sqs"), corral.client("cloudwatch")
    create(autoscaling, "queue-fleet", 0, 2)
    steps = [
        {"MetricIntervalLowerBound": 0.0, "MetricIntervalUpperBound": 1.0, "ScalingAdjustment": 0},
        {"MetricIntervalLowerBound": 1.0, "MetricIntervalUpperBound": 10.0, "ScalingAdjustment": 1},
        {"MetricIntervalLowerBound": 10.0, "ScalingAdjustment": 2},
    ]
    policy = autoscaling.put_scaling_policy(
        AutoScalingGroupName="queue-fleet",
        PolicyName="by-queue",
        PolicyType="StepScaling",
        AdjustmentType="ExactCapacity",
        StepAdjustments=steps,
        EstimatedInstanceWarmup=0,
    )["PolicyARN"]
    url = sqs.create_queue(QueueName="jobs-of-fleet")["QueueUrl"]
    cloudwatch.put_metric_alarm(
        AlarmName="jobs-wait",
        Namespace="AWS/SQS",
        MetricName="ApproximateNumberOfMessagesVisible",
        Dimensions=[{"Name": "QueueName", "Value": "jobs-of-fleet"}],
        Statistic="Average",
        Period=10,
        EvaluationPeriods=1,
        Threshold=0.0,
        ComparisonOperator="GreaterThanThreshold",
        AlarmActions=[policy],
        OKActions=[policy],
    )
    [shown] = autoscaling.describe_policies(AutoScalingGroupName="queue-fleet")["ScalingPolicies"]
    assert [alarm["AlarmName"] for alarm in shown["Alarms"]] == ["jobs-wait"]
    sqs.send_message(QueueUrl=url, MessageBody="first")
    in_service(autoscaling, "queue-fleet", 1)
    assert (
        "a monitor alarm jobs-wait in state ALARM triggered policy by-queue changing the desired capacity from 0 to 1."
        in (activities(autoscaling, "queue-fleet")[0]["Cause"])
    )
    for _ in range(2):
        sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": str(number), "MessageBody": "more"} for number in range(10)])
    in_service(autoscaling, "queue-fleet", 2)
    sqs.purge_queue(QueueUrl=url)
    in_service(autoscaling, "queue-fleet", 0)
    assert "in state OK triggered policy by-queue changing" in activities(autoscaling, "queue-fleet")[0]["Cause"]
    history = cloudwatch.describe_alarm_history(AlarmName="jobs-wait", HistoryItemType="Action")["AlarmHistoryItems"]
    assert {item["HistorySummary"] for item in history} == {f"Successfully executed action {policy}"}
    assert json.loads(history[0]["HistoryData"])["actionState"] == "Succeeded"
    cloudwatch.delete_alarms(AlarmNames=["jobs-wait"])
    assert autoscaling.describe_policies(AutoScalingGroupName="queue-fleet")["ScalingPolicies"][0]["Alarms"] == []


def test_target_tracking_creates_and_deletes_alarms(corral: Corral, autoscaling: Any) -> None:
    cloudwatch = corral.client("cloudwatch")
    create(autoscaling, "tracked", 1, 4)
    made = autoscaling.put_scaling_policy(
        AutoScalingGroupName="tracked",
        PolicyName="load",
        PolicyType="TargetTrackingScaling",
        EstimatedInstanceWarmup=0,
        TargetTrackingConfiguration={
            "CustomizedMetricSpecification": {"Namespace": "Demo", "MetricName": "LoadOfTracked", "Statistic": "Average"},
            "TargetValue": 50.0,
        },
    )
    names = [alarm["AlarmName"] for alarm in made["Alarms"]]
    alarms = cloudwatch.describe_alarms(AlarmNames=names)["MetricAlarms"]
    assert [alarm["Threshold"] for alarm in alarms] == [50.0, 45.0]
    now = datetime.now(UTC)
    data = [{"MetricName": "LoadOfTracked", "Timestamp": now - timedelta(minutes=ago), "Value": 100.0} for ago in (3, 2, 1, 0)]
    cloudwatch.put_metric_data(Namespace="Demo", MetricData=data)
    in_service(autoscaling, "tracked", 2)
    autoscaling.delete_policy(AutoScalingGroupName="tracked", PolicyName="load")
    assert cloudwatch.describe_alarms(AlarmNames=names)["MetricAlarms"] == []
