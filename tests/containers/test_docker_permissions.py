"""A program in a real container: its own credentials let it use data, and not become the host."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from containers.running import Containers, python, shell
from harness import Corral
from harness import container as host_container

pytestmark = pytest.mark.xdist_group("docker")

PROGRAM = """
import boto3, json, os, socket
from botocore.exceptions import ClientError

def attempt(call, **params):
    try:
        call(**params)
        return "done"
    except ClientError as error:
        return error.response["Error"]["Code"]

def spoof():
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
        return "done"
    except PermissionError:
        return "no raw packets"

evil = {"name": "x", "image": "corral/host", "memory": 64, "command": ["id"]}
ecs, s3 = boto3.client("ecs"), boto3.client("s3")
print(json.dumps([
    spoof(),
    attempt(s3.put_object, Bucket=os.environ["BUCKET"], Key="inside.env", Body=b"X_A=1"),
    attempt(ecs.register_task_definition, family="evil", containerDefinitions=[evil]),
    attempt(boto3.client("iam").list_roles),
    attempt(boto3.client("ssm").describe_parameters),
]))
"""
TRUST = {"Effect": "Allow", "Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}
ALLOW = {"Effect": "Allow", "Action": "ssm:DescribeParameters", "Resource": "*"}


def document(statement: dict[str, object]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def test_a_container_reads_and_writes_data_and_needs_policies_for_the_rest(corral: Corral, run: Containers) -> None:
    iam, bucket = corral.client("iam"), f"b{uuid4().hex}"
    corral.client("s3").create_bucket(Bucket=bucket)
    iam.create_role(RoleName="describer", AssumeRolePolicyDocument=document(TRUST))
    iam.put_role_policy(RoleName="describer", PolicyName="p", PolicyDocument=document(ALLOW))
    container, volumes = python(PROGRAM)
    container["environment"].append({"name": "BUCKET", "value": bucket})
    refused = ["no raw packets", "done", "AccessDeniedException", "AccessDenied"]
    for role, last in (("describer", "done"), (None, "AccessDeniedException")):
        task = run(container, volumes=volumes, **({"taskRoleArn": role} if role else {}))
        assert json.loads(run.printed(task)[-1]) == [*refused, last]
    raw = {"capabilities": {"add": ["NET_RAW"]}}
    assert run(shell("ping -c 1 127.0.0.1", linuxParameters=raw))["containers"][0]["exitCode"] == 0, "root may give it raw packets"
    files = {"environmentFiles": [{"type": "s3", "value": f"arn:aws:s3:::{bucket}/inside.env"}]}
    assert run.printed(run(shell("echo $X_A", **files))) == ["1"]
    iam.create_role(RoleName="admin", AssumeRolePolicyDocument=document(TRUST))
    iam.attach_role_policy(RoleName="admin", PolicyArn="arn:aws:iam::aws:policy/AdministratorAccess")
    for definition in (
        {"containerDefinitions": shell("true", **files, privileged=True)},
        {"containerDefinitions": shell("true", **files), "taskRoleArn": "admin"},
        {"containerDefinitions": host_container(["true"], **files)},
    ):
        task = run(definition.pop("containerDefinitions"), **definition)
        assert "assumed-role/corral-host/" in task["stoppedReason"] and "corral:RunOnHost" in task["stoppedReason"]


ATTACK = """
import boto3, json, os
from botocore.exceptions import ClientError

def attempt(call, **params):
    try:
        call(**params)
        return "done"
    except ClientError as error:
        return error.response["Error"]["Message"].partition("not authorized to perform: ")[2].partition(" ")[0]

ecs, plain = boto3.client("ecs"), {"name": "x", "image": "busybox", "memory": 64, "command": ["true"]}
print(json.dumps([
    attempt(ecs.register_task_definition, family="attack", containerDefinitions=[plain]),
    attempt(ecs.execute_command, task=os.environ["HOST_TASK"], command="id", interactive=True),
    attempt(ecs.update_service, service="on-host", desiredCount=1),
    attempt(ecs.run_task, taskDefinition="on-host"),
    attempt(ecs.run_task, taskDefinition="attack", overrides={"taskRoleArn": "takes-all"}),
    attempt(ecs.run_task, taskDefinition="attack"),
]))
"""


def test_a_container_with_full_access_to_ecs_does_not_get_the_host(corral: Corral, run: Containers) -> None:
    ecs, iam = corral.client("ecs"), corral.client("iam")
    for role, policy in (("operator", "AmazonECS_FullAccess"), ("takes-all", "AdministratorAccess")):
        iam.create_role(RoleName=role, AssumeRolePolicyDocument=document(TRUST))
        iam.attach_role_policy(RoleName=role, PolicyArn=f"arn:aws:iam::aws:policy/{policy}")
    ecs.register_task_definition(family="on-host", containerDefinitions=[host_container(["sleep", "600"])])
    ecs.create_service(serviceName="on-host", taskDefinition="on-host", desiredCount=0)
    task = ecs.run_task(taskDefinition="on-host", enableExecuteCommand=True)["tasks"][0]["taskArn"]
    container, volumes = python(ATTACK)
    container["environment"].append({"name": "HOST_TASK", "value": task})
    printed = run.printed(run(container, volumes=volumes, taskRoleArn="operator"))
    assert json.loads(printed[-1]) == ["done", *["corral:RunOnHost"] * 4, "done"]
    ecs.stop_task(task=task)
    ecs.delete_service(service="on-host")
