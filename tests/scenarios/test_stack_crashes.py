"""kill -9 of the server, the agent or both in the middle of stack operations: each ends as if nothing had happened.

Six kills; CORRAL_KILLS=60 is a long run.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from eventually import eventually
from harness import Corral

KILLS = int(os.environ.get("CORRAL_KILLS", "6"))
VICTIMS = (("corral.server",), ("corral.server", "corral.node"))
QUEUES = 40
STACK = "survivor"


def template(instance_type: str, timeout: int) -> str:
    """Queues in chains, a log group and an alarm in other lanes, and a group that waits for its instances."""
    queues = {
        f"Queue{at}": {
            "Type": "AWS::SQS::Queue",
            "Properties": {"VisibilityTimeout": timeout},
            **({"DependsOn": f"Queue{at - 4}"} if at >= 4 else {}),
        }
        for at in range(QUEUES)
    }
    resources: dict[str, Any] = {
        **queues,
        "Logs": {"Type": "AWS::Logs::LogGroup", "DependsOn": "Queue5"},
        "Alarm": {
            "Type": "AWS::CloudWatch::Alarm",
            "Properties": {
                "Namespace": "AWS/SQS", "MetricName": "NumberOfMessagesSent", "Statistic": "Sum", "Period": 60,
                "Threshold": timeout, "EvaluationPeriods": 1, "ComparisonOperator": "GreaterThanThreshold",
                "Dimensions": [{"Name": "QueueName", "Value": {"Fn::GetAtt": ["Queue9", "QueueName"]}}],
            },
        },
        "Cluster": {"Type": "AWS::ECS::Cluster"},
        "Launch": {
            "Type": "AWS::AutoScaling::LaunchConfiguration",
            "Properties": {
                "ImageId": "ami-1",
                "InstanceType": instance_type,
                "UserData": {"Fn::Base64": {"Fn::Sub": "#!/bin/sh\necho ECS_CLUSTER=${Cluster} >> /etc/ecs/ecs.config\n"}},
            },
        },
        "Group": {
            "Type": "AWS::AutoScaling::AutoScalingGroup",
            "CreationPolicy": {"ResourceSignal": {"Count": 2}},
            "UpdatePolicy": {"AutoScalingReplacingUpdate": {"WillReplace": True}},
            "Properties": {
                "AvailabilityZones": ["us-east-1a"], "LaunchConfigurationName": {"Ref": "Launch"}, "MinSize": "2", "MaxSize": "2",
            },
        },
    }  # fmt: skip
    return json.dumps({"Resources": resources})


class Survivor:
    def __init__(self, corral: Corral) -> None:
        self.corral = corral
        self.id = ""
        self._rng = random.Random(KILLS)

    def ask(self, service: str, operation: str, **params: Any) -> Any:
        """Call an operation. Return None if the server is not there."""
        try:
            return getattr(self.corral.client(service), operation)(**params)
        except (BotoCoreError, ClientError):
            return None

    def status(self) -> str:
        found = self.ask("cloudformation", "describe_stacks", StackName=self.id or STACK)
        return found["Stacks"][0]["StackStatus"] if found else ""

    def events(self) -> int:
        found = self.ask("cloudformation", "describe_stack_events", StackName=self.id or STACK)
        return len(found["StackEvents"]) if found else 0

    def until(self, status: str, kills: int) -> None:
        """Kill at moments that depend on the progress of the operation, and wait until the stack has this status."""
        for _ in range(kills):
            moment = self.events() + self._rng.randrange(1, 60)
            eventually(lambda moment=moment: self.events() >= moment or self.status() == status, "progress")
            victims = self._rng.choice(VICTIMS)
            self.corral.kill(*victims)
            self.corral.start()
        eventually(lambda: self.status() == status, f"the stack is {status}", 90)


def test_stack_operations_survive_kills(tmp_path: Path) -> None:
    corral = Corral(tmp_path / "data", "sim:2").start()
    try:
        stack, each = Survivor(corral), max(1, KILLS // 3)
        reply = stack.ask("cloudformation", "create_stack", StackName=STACK, TemplateBody=template("p3.2xlarge", 30))
        stack.id = reply["StackId"]
        stack.until("CREATE_COMPLETE", each)
        assert_complete(corral, 30, "p3.2xlarge")
        stack.ask("cloudformation", "update_stack", StackName=STACK, TemplateBody=template("g5.xlarge", 60))
        stack.until("UPDATE_COMPLETE", each)
        assert_complete(corral, 60, "g5.xlarge")
        stack.ask("cloudformation", "delete_stack", StackName=STACK)
        stack.until("DELETE_COMPLETE", each)
        assert corral.client("sqs").list_queues().get("QueueUrls", []) == []
        assert live(corral) == []
        assert corral.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
        assert corral.client("logs").describe_log_groups()["logGroups"] == []
        assert corral.client("cloudwatch").describe_alarms()["MetricAlarms"] == []
        corral.client("ec2").run_instances(ImageId="ami-1", InstanceType="p3.2xlarge", MinCount=2, MaxCount=2)  # both GPUs are free
    finally:
        corral.clear()


def live(corral: Corral) -> list[dict[str, Any]]:
    reply = corral.client("ec2").describe_instances(Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}])
    return [each for reservation in reply["Reservations"] for each in reservation["Instances"]]


def assert_complete(corral: Corral, timeout: int, instance_type: str) -> None:
    """Every resource exists exactly once, with the properties of the template."""
    sqs, cloudformation = corral.client("sqs"), corral.client("cloudformation")
    resources = {
        each["LogicalResourceId"]: each["PhysicalResourceId"]
        for page in cloudformation.get_paginator("list_stack_resources").paginate(StackName=STACK)
        for each in page["StackResourceSummaries"]
    }
    queues = {name for name in resources if name.startswith("Queue")}
    assert len(queues) == QUEUES and set(sqs.list_queues()["QueueUrls"]) == {resources[name] for name in queues}
    for name in ("Queue0", f"Queue{QUEUES - 1}"):
        got = sqs.get_queue_attributes(QueueUrl=resources[name], AttributeNames=["VisibilityTimeout"])["Attributes"]
        assert got == {"VisibilityTimeout": str(timeout)}
    [alarm] = corral.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert (alarm["AlarmName"], alarm["Threshold"]) == (resources["Alarm"], float(timeout))
    [logs] = corral.client("logs").describe_log_groups()["logGroups"]
    assert logs["logGroupName"] == resources["Logs"]
    [group] = corral.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
    assert group["AutoScalingGroupName"] == resources["Group"]
    eventually(lambda: [each["InstanceType"] for each in live(corral)] == [instance_type] * 2, "two instances")
