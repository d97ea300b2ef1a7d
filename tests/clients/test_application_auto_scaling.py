"""Application Auto Scaling by boto3 and the aws command: every operation, and a service that follows a metric with real tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from clients.stack_help import ended, events, outputs
from eventually import eventually
from harness import Corral, container

PLACE = {"ServiceNamespace": "ecs", "ResourceId": "service/default/web", "ScalableDimension": "ecs:service:DesiredCount"}
METRIC = {"Namespace": "Demo", "MetricName": "Gpu", "Statistic": "Average"}
STEPS = [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}]


@pytest.fixture
def scaling(corral: Corral) -> Iterator[Any]:
    """A client and a service `web` without tasks."""
    ecs, client = corral.client("ecs"), corral.client("application-autoscaling")
    ecs.register_task_definition(family="web", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    ecs.create_service(serviceName="web", taskDefinition="web", desiredCount=0)
    yield client
    for target in client.describe_scalable_targets(ServiceNamespace="ecs")["ScalableTargets"]:
        client.deregister_scalable_target(**{member: target[member] for member in PLACE})
    ecs.delete_service(service="web", force=True)
    corral.stop_tasks()
    eventually(lambda: service(corral)["status"] == "INACTIVE", "the service is deleted")


def service(corral: Corral) -> Any:
    return corral.client("ecs").describe_services(services=["web"])["services"][0]


def register(client: Any, least: int = 0, most: int = 2, **more: Any) -> str:
    return str(client.register_scalable_target(**PLACE, MinCapacity=least, MaxCapacity=most, **more)["ScalableTargetARN"])


def track(client: Any, name: str = "gpu", **more: Any) -> Any:
    configuration = {"CustomizedMetricSpecification": METRIC, "TargetValue": 75.0, **more}
    return client.put_scaling_policy(
        **PLACE, PolicyName=name, PolicyType="TargetTrackingScaling", TargetTrackingScalingPolicyConfiguration=configuration
    )


def refusal(call: Any, *args: Any, **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(*args, **params)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_targets(scaling: Any) -> None:
    arn = register(scaling, Tags={"team": "a"})
    assert arn.startswith("arn:aws:application-autoscaling:us-east-1:123456789012:scalable-target/")
    [target] = scaling.describe_scalable_targets(ServiceNamespace="ecs", ResourceIds=[PLACE["ResourceId"]])["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"], target["ScalableTargetARN"]) == (0, 2, arn)
    assert target["RoleARN"].endswith("AWSServiceRoleForApplicationAutoScaling_ECSService")
    off = {"DynamicScalingInSuspended": False, "DynamicScalingOutSuspended": False, "ScheduledScalingSuspended": False}
    assert target["SuspendedState"] == off
    role = "arn:aws:iam::123456789012:role/mine"
    scaling.register_scalable_target(**PLACE, MaxCapacity=5, RoleARN=role, SuspendedState={"ScheduledScalingSuspended": True})
    [target] = scaling.describe_scalable_targets(ServiceNamespace="ecs")["ScalableTargets"]
    assert (target["MinCapacity"], target["MaxCapacity"], target["RoleARN"]) == (0, 5, role), "an update changes what it names"
    assert target["SuspendedState"] == off | {"ScheduledScalingSuspended": True}
    scaling.tag_resource(ResourceARN=arn, Tags={"stage": "b"})
    scaling.untag_resource(ResourceARN=arn, TagKeys=["team"])
    assert scaling.list_tags_for_resource(ResourceARN=arn)["Tags"] == {"stage": "b"}
    scaling.deregister_scalable_target(**PLACE)
    assert scaling.describe_scalable_targets(ServiceNamespace="ecs")["ScalableTargets"] == []
    with pytest.raises(scaling.exceptions.ResourceNotFoundException):
        scaling.list_tags_for_resource(ResourceARN=arn)


def test_refusals(scaling: Any, corral: Corral) -> None:
    place = "service namespace: ecs, resource ID: service/default/web, scalable dimension: ecs:service:DesiredCount"
    assert refusal(scaling.deregister_scalable_target, **PLACE) == (
        "ObjectNotFoundException",
        f"No scalable target found for {place}",
    )
    assert refusal(track, scaling) == ("ObjectNotFoundException", f"No scalable target registered for {place}")
    missing = PLACE | {"ResourceId": "service/default/none"}
    assert refusal(scaling.register_scalable_target, **missing, MinCapacity=0, MaxCapacity=1) == (
        "ValidationException",
        "ECS service doesn't exist: service/default/none",
    )
    table = {"ServiceNamespace": "dynamodb", "ResourceId": "table/t", "ScalableDimension": "dynamodb:table:ReadCapacityUnits"}
    code, text = refusal(scaling.register_scalable_target, **table, MinCapacity=0, MaxCapacity=1)
    assert code == "ValidationException" and text.startswith("Corral scales ECS services only: dynamodb is not served.")
    for describe, member in (
        (scaling.describe_scalable_targets, "ScalableTargets"),
        (scaling.describe_scaling_policies, "ScalingPolicies"),
        (scaling.describe_scheduled_actions, "ScheduledActions"),
        (scaling.describe_scaling_activities, "ScalingActivities"),
    ):
        assert describe(ServiceNamespace="dynamodb")[member] == []  # as in an account without tables
        dimension = {"ServiceNamespace": "ecs", "ScalableDimension": "ecs:service:DesiredCount"}
        assert refusal(describe, **dimension)[1].endswith("you must also specify a resource ID.")
    assert "MaxCapacity" in refusal(scaling.register_scalable_target, **PLACE, MinCapacity=0)[1]
    assert "cannot be less" in refusal(register, scaling, 3, 1)[1]
    assert "service/CLUSTER/SERVICE" in refusal(scaling.register_scalable_target, **PLACE | {"ResourceId": "web"})[1]
    register(scaling)
    assert refusal(scaling.delete_scaling_policy, **PLACE, PolicyName="p") == (
        "ObjectNotFoundException",
        f"No scaling policy found for {place}, policy name: p",
    )
    assert refusal(scaling.delete_scheduled_action, **PLACE, ScheduledActionName="s")[0] == "ObjectNotFoundException"
    with pytest.raises(scaling.exceptions.InvalidNextTokenException):
        scaling.describe_scaling_policies(ServiceNamespace="ecs", NextToken="?")
    with pytest.raises(scaling.exceptions.ValidationException):
        scaling.describe_scaling_policies(ServiceNamespace="ecs", MaxResults=51)
    assert "between" in refusal(scaling.describe_scheduled_actions, ServiceNamespace="ecs", MaxResults=0)[1]
    forecast = {"StartTime": datetime.now(UTC), "EndTime": datetime.now(UTC), "PolicyName": "p"}
    assert "GetPredictiveScalingForecast" in refusal(scaling.get_predictive_scaling_forecast, **PLACE, **forecast)[1]
    corral.client("ecs").create_service(serviceName="daemon", taskDefinition="web", schedulingStrategy="DAEMON")
    assert "DAEMON" in refusal(scaling.register_scalable_target, **PLACE | {"ResourceId": "service/default/daemon"},
                               MinCapacity=0, MaxCapacity=1)[1]  # fmt: skip
    corral.client("ecs").delete_service(service="daemon", force=True)


def test_policies_and_their_alarms(scaling: Any, corral: Corral) -> None:
    register(scaling)
    cloudwatch = corral.client("cloudwatch")
    made = track(scaling)
    assert made["PolicyARN"].endswith(":resource/ecs/service/default/web:policyName/gpu")
    names = [each["AlarmName"] for each in made["Alarms"]]
    assert [name.rpartition("-Alarm")[0] for name in names] == ["TargetTracking-service/default/web"] * 2
    alarms = cloudwatch.describe_alarms(AlarmNames=names)["MetricAlarms"]
    assert [(each["Threshold"], each["EvaluationPeriods"], each["Period"]) for each in alarms] == [(75.0, 3, 60), (67.5, 15, 60)]
    assert all(each["AlarmDescription"].startswith("DO NOT EDIT OR DELETE.") for each in alarms)
    step = {"AdjustmentType": "ChangeInCapacity", "StepAdjustments": STEPS, "Cooldown": 30}
    scaling.put_scaling_policy(**PLACE, PolicyName="steps", PolicyType="StepScaling", StepScalingPolicyConfiguration=step)
    scaling.put_scaling_policy(**PLACE, PolicyName="steps", StepScalingPolicyConfiguration={"Cooldown": 60})
    predictive = {"MetricSpecifications": [{"TargetValue": 50.0, "PredefinedMetricPairSpecification": {
        "PredefinedMetricType": "ECSServiceCPUUtilization"}}]}  # fmt: skip
    scaling.put_scaling_policy(**PLACE, PolicyName="soon", PolicyType="PredictiveScaling",
                               PredictiveScalingPolicyConfiguration=predictive)  # fmt: skip
    found = {each["PolicyName"]: each for each in scaling.describe_scaling_policies(ServiceNamespace="ecs")["ScalingPolicies"]}
    assert found["steps"]["StepScalingPolicyConfiguration"] == step | {"Cooldown": 60}, "an update changes what it names"
    assert found["soon"]["PredictiveScalingPolicyConfiguration"] == predictive
    assert [each["AlarmName"] for each in found["gpu"]["Alarms"]] == names and found["steps"]["Alarms"] == []
    only = scaling.describe_scaling_policies(**PLACE, PolicyNames=["soon", "none"])["ScalingPolicies"]
    assert [each["PolicyName"] for each in only] == ["soon"]
    assert track(scaling, DisableScaleIn=True)["Alarms"] == made["Alarms"][:1]
    scaling.delete_scaling_policy(**PLACE, PolicyName="gpu")
    eventually(lambda: not cloudwatch.describe_alarms(AlarmNames=names)["MetricAlarms"], "the alarms are deleted")


@pytest.mark.parametrize(
    "configuration, says",
    [
        ({"TargetValue": 0.0}, "greater than 0"),
        ({"CustomizedMetricSpecification": {"MetricName": "x"}}, "needs Namespace, Statistic"),
        ({"ScaleInCooldown": -1}, "must not be negative"),
        ({"PredefinedMetricSpecification": {"PredefinedMetricType": "ECSServiceAverageCPUUtilization"}}, "either"),
        ({"CustomizedMetricSpecification": {}, "PredefinedMetricSpecification": {
            "PredefinedMetricType": "DynamoDBReadCapacityUtilization"}}, "is not valid"),
        ({"CustomizedMetricSpecification": {}, "PredefinedMetricSpecification": {
            "PredefinedMetricType": "ALBRequestCountPerTarget"}}, "ResourceLabel"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_not_valid(scaling: Any, configuration: dict[str, Any], says: str) -> None:
    register(scaling)
    code, text = refusal(track, scaling, **configuration)
    assert code == "ValidationException" and says in text


def test_scheduled_actions(scaling: Any, corral: Corral) -> None:
    register(scaling)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    scaling.put_scheduled_action(**PLACE, ScheduledActionName="up", Schedule=f"at({soon:%Y-%m-%dT%H:%M:%S})",
                                 ScalableTargetAction={"MinCapacity": 1, "MaxCapacity": 2}, StartTime=soon)  # fmt: skip
    scaling.put_scheduled_action(**PLACE, ScheduledActionName="night", Schedule="cron(0 20 ? * MON-FRI *)", Timezone="Asia/Tokyo",
                                 ScalableTargetAction={"MinCapacity": 0})  # fmt: skip
    [night] = scaling.describe_scheduled_actions(ServiceNamespace="ecs", ScheduledActionNames=["night"])["ScheduledActions"]
    assert (night["Schedule"], night["Timezone"]) == ("cron(0 20 ? * MON-FRI *)", "Asia/Tokyo")
    assert night["ScheduledActionARN"].endswith(":resource/ecs/service/default/web:scheduledActionName/night")
    eventually(lambda: service(corral)["runningCount"] == 1, "the scheduled action has started a task")
    causes = [each["Cause"] for each in scaling.describe_scaling_activities(**PLACE)["ScalingActivities"]]
    assert causes == ["minimum capacity was set to 1", "scheduled action name up was triggered"]
    for schedule in ("daily", "rate(0 days)", "at(2020-13-01T00:00:00)", "cron(0 20 * * *)", "at(2020-01-01T00:00:00)"):
        code, text = refusal(scaling.put_scheduled_action, **PLACE, ScheduledActionName="s", Schedule=schedule,
                             ScalableTargetAction={"MinCapacity": 0})  # fmt: skip
        assert code == "ValidationException" and schedule in text
    scaling.delete_scheduled_action(**PLACE, ScheduledActionName="night")
    assert scaling.describe_scheduled_actions(ServiceNamespace="ecs")["ScheduledActions"] == []


def test_a_service_follows_a_metric(scaling: Any, corral: Corral) -> None:
    """A metric above the target starts a GPU task, and the activity says why."""
    cloudwatch = corral.client("cloudwatch")
    register(scaling, 1, 2)
    eventually(lambda: service(corral)["runningCount"] == 1, "the registration has started a task")
    [high, _] = track(scaling)["Alarms"]
    cloudwatch.put_metric_data(Namespace="Demo", MetricData=[{"MetricName": "Gpu", "Value": 100.0, "StorageResolution": 1}])
    eventually(lambda: service(corral)["runningCount"] == 2, "the second task runs")
    activity = scaling.describe_scaling_activities(**PLACE)["ScalingActivities"][0]
    assert activity["Cause"] == f"monitor alarm {high['AlarmName']} in state ALARM triggered policy gpu"
    assert activity["Description"] == "Setting desired count to 2."
    eventually(
        lambda: scaling.describe_scaling_activities(**PLACE)["ScalingActivities"][0]["StatusCode"] == "Successful",
        "the activity has ended",
    )
    cloudwatch.put_metric_data(Namespace="Demo", MetricData=[{"MetricName": "Gpu", "Value": 90.0, "StorageResolution": 1}])

    def reasons() -> list[Any]:
        found = scaling.describe_scaling_activities(**PLACE, IncludeNotScaledActivities=True)["ScalingActivities"]
        return [each["NotScaledReasons"] for each in found if "NotScaledReasons" in each]

    eventually(
        lambda: reasons() == [[{"Code": "AlreadyAtMaxCapacity", "CurrentCapacity": 2, "MaxCapacity": 2}]], "the reason is shown"
    )


TEMPLATE = """
Parameters: {Most: {Type: Number}}
Resources:
  Cluster: {Type: AWS::ECS::Cluster}
  Definition:
    Type: AWS::ECS::TaskDefinition
    Properties:
      Family: stacked
      ContainerDefinitions: [{Name: main, Image: corral/host, Memory: 16, Command: [sleep, "600"]}]
  Service:
    Type: AWS::ECS::Service
    Properties: {Cluster: !Ref Cluster, TaskDefinition: !Ref Definition, DesiredCount: 0}
  Target:
    Type: AWS::ApplicationAutoScaling::ScalableTarget
    Properties:
      ServiceNamespace: ecs
      ScalableDimension: ecs:service:DesiredCount
      ResourceId: !Join [/, [service, !Ref Cluster, !GetAtt Service.Name]]
      MinCapacity: 0
      MaxCapacity: !Ref Most
      ScheduledActions:
        - {ScheduledActionName: night, Schedule: cron(0 20 * * ? *), ScalableTargetAction: {MaxCapacity: 0}}
  Policy:
    Type: AWS::ApplicationAutoScaling::ScalingPolicy
    Properties:
      PolicyName: gpu
      PolicyType: TargetTrackingScaling
      ScalingTargetId: !Ref Target
      TargetTrackingScalingPolicyConfiguration:
        TargetValue: 75
        CustomizedMetricSpecification: {Namespace: Demo, MetricName: Gpu, Statistic: Average}
Outputs:
  Target: {Value: !Ref Target}
  Policy: {Value: !Ref Policy}
  Resource: {Value: !Join [/, [!Ref Cluster, !GetAtt Service.Name]]}
"""


def test_a_stack(scaling: Any, corral: Corral) -> None:
    stacks = corral.client("cloudformation")

    def parameters(most: int) -> list[dict[str, str]]:
        return [{"ParameterKey": "Most", "ParameterValue": str(most)}]

    stacks.create_stack(StackName="scaled", TemplateBody=TEMPLATE, Parameters=parameters(2))
    made = outputs(ended(stacks, "scaled"))
    resource = f"service/{made['Resource']}"
    assert made["Target"] == f"{resource}|ecs:service:DesiredCount|ecs"
    [policy] = scaling.describe_scaling_policies(ServiceNamespace="ecs", ResourceId=resource)["ScalingPolicies"]
    assert policy["PolicyARN"] == made["Policy"] and len(policy["Alarms"]) == 2
    stacks.update_stack(StackName="scaled", TemplateBody=TEMPLATE, Parameters=parameters(5))
    assert ended(stacks, "scaled")["StackStatus"] == "UPDATE_COMPLETE"
    [target] = scaling.describe_scalable_targets(ServiceNamespace="ecs", ResourceIds=[resource])["ScalableTargets"]
    assert target["MaxCapacity"] == 5
    assert len(scaling.describe_scheduled_actions(ServiceNamespace="ecs")["ScheduledActions"]) == 1
    stacks.delete_stack(StackName="scaled")
    eventually(lambda: not scaling.describe_scalable_targets(ServiceNamespace="ecs")["ScalableTargets"], "the target is deleted")
    assert scaling.describe_scaling_policies(ServiceNamespace="ecs")["ScalingPolicies"] == []
    names = [each["AlarmName"] for each in policy["Alarms"]]
    eventually(lambda: not corral.client("cloudwatch").describe_alarms(AlarmNames=names)["MetricAlarms"], "the alarms are deleted")
    table = {"T": {"Type": "AWS::ApplicationAutoScaling::ScalableTarget", "Properties": {
        "ServiceNamespace": "dynamodb", "ScalableDimension": "dynamodb:table:ReadCapacityUnits", "ResourceId": "table/t",
        "MinCapacity": 1, "MaxCapacity": 2}}}  # fmt: skip
    stacks.create_stack(StackName="table", TemplateBody=json.dumps({"Resources": table}), OnFailure="DO_NOTHING")
    assert ended(stacks, "table")["StackStatus"] == "CREATE_FAILED"
    [event] = [
        each for each in events(stacks, "table") if each["ResourceStatus"] == "CREATE_FAILED" and each["LogicalResourceId"] == "T"
    ]
    assert "Corral scales ECS services only: dynamodb is not served." in event["ResourceStatusReason"]
    stacks.delete_stack(StackName="table")


def test_the_aws_command(scaling: Any, corral: Corral) -> None:
    place = ("--service-namespace", "ecs", "--resource-id", PLACE["ResourceId"], "--scalable-dimension", PLACE["ScalableDimension"])
    corral.aws("application-autoscaling", "register-scalable-target", *place, "--min-capacity", "0", "--max-capacity", "3")
    found = corral.aws("application-autoscaling", "describe-scalable-targets", "--service-namespace", "ecs")
    assert found["ScalableTargets"][0]["MaxCapacity"] == 3
