"""A lifecycle hook, its topic and a function in the template drain an instance before it terminates."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from clients.stack_help import wait
from eventually import eventually
from harness import Corral, container

DRAIN = """
import json, os, time
import boto3

ecs, autoscaling = boto3.client("ecs"), boto3.client("autoscaling")
CLUSTER = os.environ["CLUSTER"]


def handler(event, context):
    for record in event["Records"]:
        message = json.loads(record["Sns"]["Message"])
        if message.get("LifecycleTransition") == "autoscaling:EC2_INSTANCE_TERMINATING":
            drain(message)


def drain(message):
    instance = container_instance(message["EC2InstanceId"])
    if instance is not None:
        ecs.update_container_instances_state(cluster=CLUSTER, containerInstances=[instance], status="DRAINING")
        print("draining", instance)
        while ecs.list_tasks(cluster=CLUSTER, containerInstance=instance)["taskArns"]:
            time.sleep(0.2)
    autoscaling.complete_lifecycle_action(
        LifecycleHookName=message["LifecycleHookName"], AutoScalingGroupName=message["AutoScalingGroupName"],
        LifecycleActionToken=message["LifecycleActionToken"], LifecycleActionResult="CONTINUE",
    )
    print("completed", message["EC2InstanceId"])


def container_instance(ec2_id):
    arns = ecs.list_container_instances(cluster=CLUSTER)["containerInstanceArns"]
    found = ecs.describe_container_instances(cluster=CLUSTER, containerInstances=arns)["containerInstances"] if arns else []
    return next((each["containerInstanceArn"] for each in found if each["ec2InstanceId"] == ec2_id), None)
"""
TEMPLATE = """
Resources:
  Cluster: {Type: AWS::ECS::Cluster, Properties: {ClusterName: drained}}
  Role:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument: {Statement: [{Effect: Allow, Principal: {Service: lambda.amazonaws.com}, Action: "sts:AssumeRole"}]}
  Template:
    Type: AWS::EC2::LaunchTemplate
    Properties:
      LaunchTemplateData:
        ImageId: ami-00000000000000001
        InstanceType: g4dn.xlarge
        UserData: {Fn::Base64: "#!/bin/bash\\necho ECS_CLUSTER=drained >> /etc/ecs/ecs.config"}
  Group:
    Type: AWS::AutoScaling::AutoScalingGroup
    Properties:
      AutoScalingGroupName: drained
      MinSize: "0"
      MaxSize: "2"
      DesiredCapacity: "1"
      AvailabilityZones: [us-east-1a]
      LaunchTemplate: {LaunchTemplateId: !Ref Template, Version: !GetAtt Template.LatestVersionNumber}
  Topic: {Type: AWS::SNS::Topic}
  TopicRole:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument: {Statement: [{Effect: Allow, Principal: {Service: lambda.amazonaws.com}, Action: "sts:AssumeRole"}]}
  Hook:
    Type: AWS::AutoScaling::LifecycleHook
    Properties:
      AutoScalingGroupName: !Ref Group
      LifecycleTransition: autoscaling:EC2_INSTANCE_TERMINATING
      DefaultResult: CONTINUE
      HeartbeatTimeout: 7200
      NotificationTargetARN: !Ref Topic
      RoleARN: !GetAtt TopicRole.Arn
  Function:
    Type: AWS::Lambda::Function
    Properties:
      FunctionName: drain
      Runtime: python3.12
      Handler: index.handler
      Timeout: 310
      Role: !GetAtt Role.Arn
      Environment: {Variables: {CLUSTER: !Ref Cluster}}
      Code: {ZipFile: CODE}
  Permission:
    Type: AWS::Lambda::Permission
    Properties:
      FunctionName: !GetAtt Function.Arn
      Action: lambda:InvokeFunction
      Principal: sns.amazonaws.com
      SourceArn: !Ref Topic
  Subscription: {Type: AWS::SNS::Subscription, Properties: {TopicArn: !Ref Topic, Protocol: lambda, Endpoint: !GetAtt Function.Arn}}
""".replace("CODE", json.dumps(DRAIN))


def test_a_function_drains_the_instance_that_leaves(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral().start()
    cloudformation, ecs, autoscaling = (corral.client(name) for name in ("cloudformation", "ecs", "autoscaling"))
    cloudformation.create_stack(StackName="draining", TemplateBody=TEMPLATE, Capabilities=["CAPABILITY_IAM"])
    wait(cloudformation, "draining", "create")

    def instances() -> Any:
        arns = ecs.list_container_instances(cluster="drained")["containerInstanceArns"]
        return ecs.describe_container_instances(cluster="drained", containerInstances=arns)["containerInstances"] if arns else []

    [instance] = eventually(instances, "the instance joins")
    ecs.register_task_definition(family="busy", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    [task] = ecs.run_task(cluster="drained", taskDefinition="busy", launchType="EC2")["tasks"]

    def status() -> str:
        return ecs.describe_tasks(cluster="drained", tasks=[task["taskArn"]])["tasks"][0]["lastStatus"]

    eventually(lambda: status() == "RUNNING", "the task runs")
    autoscaling.set_desired_capacity(AutoScalingGroupName="drained", DesiredCapacity=0)
    eventually(lambda: instances()[0]["status"] == "DRAINING", "the function drains the instance")

    def member() -> Any:
        return autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=["drained"])["AutoScalingGroups"][0]["Instances"]

    assert [each["LifecycleState"] for each in member()] == ["Terminating:Wait"]  # the task still runs
    assert status() == "RUNNING"
    ecs.stop_task(cluster="drained", task=task["taskArn"])
    eventually(lambda: not member(), "the function completes the hook, and the instance leaves")
    logs = corral.client("logs").filter_log_events(logGroupName="/aws/lambda/drain")["events"]
    texts = [each["message"] for each in logs]
    assert f"completed {instance['ec2InstanceId']}" in texts
