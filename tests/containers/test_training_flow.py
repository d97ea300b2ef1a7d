"""A GPU training stack end to end: its image in the stack's repository, its log, its results in the stack's bucket.

The template is written as older templates are: resources in alphabetical order, numbers and booleans as text, a GPU by privilege
instead of a requirement. The image has only links, so the container runs programs of this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import forkserver
from containers.test_container_gpus import NEEDS_CAPABILITIES
from containers.test_docker_push_pull import Docker
from engines.dockerd import SYSTEM, SYSTEM_VOLUMES, Dockerd
from harness import Corral, eventually

pytestmark = [pytest.mark.xdist_group("docker"), NEEDS_CAPABILITIES]

STACK = "machine-learning"
LIBRARIES = str(Path(boto3.__file__).parent.parent)
PYTHON = os.path.realpath(sys.executable)
MOUNTED = [*SYSTEM_VOLUMES, LIBRARIES, *([] if sys.base_prefix.startswith("/usr") else [sys.base_prefix])]
UPLOAD = "import boto3, os; boto3.client('s3').upload_file('/tmp/recs', os.environ['S3BUCKETRESULTS'], os.environ['RESULTSFILE'])"
BUILD = ["docker build -t trainer /opt/trainer", "docker push trainer"]


def ref(name: str) -> dict[str, Any]:
    return {"Ref": name}


def get(resource: str, attribute: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [resource, attribute]}


def role(service: str, *policies: dict[str, Any]) -> dict[str, Any]:
    trust = {"Effect": "Allow", "Principal": {"Service": [service]}, "Action": ["sts:AssumeRole"]}
    return {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {"Statement": [trust]}, "Policies": [*policies]}}


def template() -> str:
    signal = ["cfn-signal -e $? --stack ", ref("AWS::StackName"), " --resource EcsInstanceAsg --region ", ref("AWS::Region"), "\n"]
    join = ["echo ECS_CLUSTER=", ref("EcsCluster"), " >> /etc/ecs/ecs.config\n"]
    user_data = ["#!/bin/bash -xe\n", *join, *(f"{line}\n" for line in BUILD), *signal]
    environment = {
        "TRAINCMD": "echo trained on $NVIDIA_VISIBLE_DEVICES > /tmp/model",
        "PREDICTCMD": "cp /tmp/model /tmp/recs",
        "RESULTSFILE": "recs.txt",
        "S3BUCKETRESULTS": ref("ResultsBucket"),
        "PYTHONPATH": LIBRARIES,
    }
    command = f'eval "$TRAINCMD" && eval "$PREDICTCMD" && cat /tmp/recs && {PYTHON} -c "{UPLOAD}"'
    registry = [ref("AWS::AccountId"), ".dkr.ecr.", ref("AWS::Region"), ".amazonaws.com/"]
    image = {"Fn::Join": ["", [*registry, ref("Repository"), ":latest"]]}
    container = {
        "Name": "trainer",
        "Image": image,
        "Cpu": "1024",
        "Memory": "15000",
        "Privileged": "true",
        "EntryPoint": ["/bin/bash", "-c"],
        "Command": [command],
        "Environment": [{"Name": name, "Value": value} for name, value in environment.items()],
        "MountPoints": [{"SourceVolume": f"v{at}", "ContainerPath": path, "ReadOnly": "true"} for at, path in enumerate(MOUNTED)],
        "LogConfiguration": {
            "LogDriver": "awslogs",
            "Options": {"awslogs-group": ref("LogGroup"), "awslogs-region": ref("AWS::Region")},
        },
    }
    resources = {
        "EcsCluster": {"Type": "AWS::ECS::Cluster"},
        "EcsInstanceAsg": {
            "Type": "AWS::AutoScaling::AutoScalingGroup",
            "CreationPolicy": {"ResourceSignal": {"Count": "1", "Timeout": "PT45M"}},
            "Properties": {
                "AvailabilityZones": {"Fn::GetAZs": ""},
                "LaunchConfigurationName": ref("EcsInstanceLc"),
                "MinSize": "0",
                "MaxSize": "1",
                "DesiredCapacity": "1",
            },
        },
        "EcsInstanceLc": {
            "Type": "AWS::AutoScaling::LaunchConfiguration",
            "Properties": {
                "ImageId": "ami-2e5e9c43",
                "InstanceType": ref("InstanceType"),
                "IamInstanceProfile": ref("EcsInstanceProfile"),
                "UserData": {"Fn::Base64": {"Fn::Join": ["", user_data]}},
            },
        },
        "EcsInstanceProfile": {"Type": "AWS::IAM::InstanceProfile", "Properties": {"Roles": [ref("EcsInstanceRole")]}},
        "EcsInstanceRole": role("ec2.amazonaws.com"),
        "LogGroup": {"Type": "AWS::Logs::LogGroup", "Properties": {"RetentionInDays": "7"}},
        "Repository": {"Type": "AWS::ECR::Repository"},
        "ResultsBucket": {"Type": "AWS::S3::Bucket"},
        "TaskDefinition": {
            "Type": "AWS::ECS::TaskDefinition",
            "Properties": {
                "ContainerDefinitions": [container],
                "TaskRoleArn": get("TaskRole", "Arn"),
                "Volumes": [{"Name": f"v{at}", "Host": {"SourcePath": path}} for at, path in enumerate(MOUNTED)],
            },
        },
        "TaskRole": role("ecs-tasks.amazonaws.com"),
    }
    outputs = {"Cluster": "EcsCluster", "Task": "TaskDefinition", "Bucket": "ResultsBucket"}
    outputs |= {"LogGroup": "LogGroup", "Repository": "Repository"}
    return json.dumps(
        {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Parameters": {"InstanceType": {"Type": "String", "Default": "g2.2xlarge"}},
            "Resources": resources,
            "Outputs": {name: {"Value": ref(resource)} for name, resource in outputs.items()},
        }
    )


@pytest.fixture
def outputs(corral: Corral, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The outputs of the deployed stack."""
    file = tmp_path / "machinelearning.template"
    file.write_text(template())
    words = ["cloudformation", "deploy", "--stack-name", STACK, "--template-file", str(file), "--capabilities", "CAPABILITY_IAM"]
    subprocess.run([forkserver.program("aws"), *words], env=corral.environment, check=True, timeout=120)
    [stack] = corral.client("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
    yield {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}


def train(corral: Corral, outputs: dict[str, str], **environment: str) -> tuple[dict[str, Any], str]:
    """Run the task, and return it and the result file that it wrote to the bucket."""
    ecs, name = corral.client("ecs"), environment.get("RESULTSFILE", "recs.txt")
    changed = [{"name": key, "value": value} for key, value in environment.items()]
    overrides = {"containerOverrides": [{"name": "trainer", "environment": changed}]}
    reply = ecs.run_task(cluster=outputs["Cluster"], taskDefinition=outputs["Task"], overrides=overrides)
    assert not reply["failures"], reply["failures"]
    arn = reply["tasks"][0]["taskArn"]

    def stopped() -> Any:
        [task] = ecs.describe_tasks(cluster=outputs["Cluster"], tasks=[arn])["tasks"]
        return task if task["lastStatus"] == "STOPPED" else None

    task = eventually(stopped, "the task stopped", 60)
    assert task["containers"][0].get("exitCode") == 0, task
    body = corral.client("s3").get_object(Bucket=outputs["Bucket"], Key=name)["Body"].read().decode()
    return task, body.strip()


def test_train_collect_and_delete(corral: Corral, dockerd: Dockerd, tmp_path: Path, outputs: dict[str, str]) -> None:
    assert outputs["Repository"].islower() and outputs["Bucket"].islower()
    Docker(dockerd, tmp_path, corral).push(outputs["Repository"], "latest", SYSTEM)
    ec2, logs = corral.client("ec2"), corral.client("logs")
    [instance] = [
        each["InstanceId"]
        for reservation in ec2.describe_instances(Filters=[{"Name": "instance-type", "Values": ["g2.2xlarge"]}])["Reservations"]
        for each in reservation["Instances"]
    ]
    console = ec2.get_console_output(InstanceId=instance)["Output"]
    skipped = {line.partition(":")[2].strip() for line in console.splitlines() if line.startswith("skipped:")}
    assert set(BUILD) <= skipped, console

    task, result = train(corral, outputs)
    [gpu] = task["containers"][0]["gpuIds"]
    assert result == f"trained on {gpu}"
    stream = task["containers"][0]["runtimeId"]  # without a stream prefix
    events = logs.get_log_events(logGroupName=outputs["LogGroup"], logStreamName=stream, startFromHead=True)["events"]
    assert [event["message"] for event in events] == [f"trained on {gpu}"]
    _, result = train(corral, outputs, TRAINCMD="echo benchmark > /tmp/model", RESULTSFILE="benchmark.txt")
    assert result == "benchmark"

    cloudformation, s3, ecr = corral.client("cloudformation"), corral.client("s3"), corral.client("ecr")
    stack_id = cloudformation.describe_stacks(StackName=STACK)["Stacks"][0]["StackId"]

    def status() -> str:
        return cloudformation.describe_stacks(StackName=stack_id)["Stacks"][0]["StackStatus"]

    cloudformation.delete_stack(StackName=STACK)
    eventually(lambda: status() == "DELETE_FAILED", "the delete fails, because bucket and repository are not empty", 60)
    resources = cloudformation.describe_stack_resources(StackName=stack_id)["StackResources"]
    failed = {each["LogicalResourceId"] for each in resources if each["ResourceStatus"] == "DELETE_FAILED"}
    assert failed == {"ResultsBucket", "Repository"}
    for each in s3.list_objects_v2(Bucket=outputs["Bucket"])["Contents"]:
        s3.delete_object(Bucket=outputs["Bucket"], Key=each["Key"])
    ids = ecr.list_images(repositoryName=outputs["Repository"])["imageIds"]
    ecr.batch_delete_image(repositoryName=outputs["Repository"], imageIds=ids)
    cloudformation.delete_stack(StackName=STACK)
    eventually(lambda: status() == "DELETE_COMPLETE", "the stack is deleted", 60)
    assert outputs["Bucket"] not in [each["Name"] for each in s3.list_buckets()["Buckets"]]
