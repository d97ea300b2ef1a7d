"""The CPU time of the server for one typical request of each service, with a few resources in each.

A row is the least of some rounds, in each of which one connection sends the same requests, so other work on the machine changes it
little. A service that the measured checkout does not serve has no row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice, repeat
from typing import Any

from client import Caller, Unanswered, Wire, head, replay, signed
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA1
from local import Local, corral, definition
from rows import Bench, Row

ROUNDS = 20
WARM = 50  # requests before the first round
SIGNATURES = 20  # in each round
RAW, SIGNED = "sns Publish to a queue, raw delivery", "sns Publish to a queue"
RESOURCES = 10  # of each kind
ALARM = {"MetricName": "m", "Namespace": "bench", "Statistic": "Sum", "Period": 60, "EvaluationPeriods": 1, "Threshold": 1.0}
TRUST = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": "*"}]}
ALLOW = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
TEMPLATE = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}, "Outputs": {"Name": {"Value": {"Ref": "Topic"}}}}

Operation = tuple[str, Iterable[bytes]]  # what, and its requests


def rows(bench: Bench) -> list[Row]:
    count = bench.size(100, 25)
    with corral(bench, "operations", "none") as local:
        call = Caller(local.port)
        found = [_measured(local, *operation, count) for service in SERVICES for operation in _served(service, local.port, call)]
        call.close()
    return [_with_floor(row, found) for row in found]


def _with_floor(row: Row, found: list[Row]) -> Row:
    """Compare a signed delivery with its floor, the same delivery without a signature and one signature."""
    raw = next((each.corral for each in found if each.what == _what(RAW)), None)
    if row.what != _what(SIGNED) or raw is None:
        return row
    signature_us = _signature_us()
    return replace(row, peer=raw + signature_us, peer_name=f"raw delivery, and {signature_us:.0f} µs for one RSA signature")


def _signature_us() -> float:
    """The CPU time of one signature as SNS makes it."""
    key, padding, algorithm, took = generate_private_key(65537, 2048), PKCS1v15(), SHA1(), []
    for _ in range(ROUNDS):
        began_s = time.thread_time()
        for _ in range(SIGNATURES):
            key.sign(b"x" * 400, padding, algorithm)
        took.append((time.thread_time() - began_s) / SIGNATURES * 1e6)
    return min(took)


def _served(service: Any, port: int, call: Caller) -> Iterator[Operation]:
    with suppress(Unanswered):
        yield from service(port, call)


def _measured(local: Local, what: str, requests: Iterable[bytes], count: int) -> Row:
    todo, rounds = iter(requests), []
    replay(local.port, islice(todo, WARM), 1)
    for _ in range(ROUNDS):
        before = local.cpu_s()["server"]
        outcome = replay(local.port, islice(todo, count), 1)
        rounds.append((local.cpu_s()["server"] - before) / outcome.answers * 1e6)
    note = f"the least of {ROUNDS} rounds of {outcome.answers:,}; the most {max(rounds):,.0f} µs; {outcome.body_bytes:,} B"
    return Row(_what(what), min(rounds), "µs", note=note)


def _what(operation: str) -> str:
    return f"CPU of the server: {operation}"


def _same(port: int, service: str, operation: str, **params: Any) -> Operation:
    """The same request again and again."""
    return f"{service} {operation}", repeat(signed(port, service, operation, params))


def _several(operation: Operation) -> Operation:
    return f"{operation[0]}, {RESOURCES} of them", operation[1]


def _sqs(port: int, call: Caller) -> Iterator[Operation]:
    url = call("sqs", "CreateQueue", QueueName="bench")["QueueUrl"]
    yield _same(port, "sqs", "SendMessage", QueueUrl=url, MessageBody="x" * 200)
    yield _same(port, "sqs", "ReceiveMessage", QueueUrl=url, VisibilityTimeout=3600)
    yield _same(port, "sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])


def _sns(port: int, call: Caller) -> Iterator[Operation]:
    call("sns", "CreateTopic", Name="bench")
    topic = "arn:aws:sns:us-east-1:123456789012:bench"
    yield _same(port, "sns", "Publish", TopicArn=topic, Message="x" * 200)
    queue = {"TopicArn": topic, "Protocol": "sqs", "Endpoint": "arn:aws:sqs:us-east-1:123456789012:bench"}
    raw = {"Attributes.entry.1.key": "RawMessageDelivery", "Attributes.entry.1.value": "true"}
    answer = call("sns", "Subscribe", **queue, **raw, ReturnSubscriptionArn="true")
    yield RAW, _same(port, "sns", "Publish", TopicArn=topic, Message="x" * 200)[1]
    subscription = answer.partition(b"<SubscriptionArn>")[2].partition(b"<")[0].decode()
    call("sns", "Unsubscribe", SubscriptionArn=subscription)
    call("sns", "Subscribe", **queue)
    yield SIGNED, _same(port, "sns", "Publish", TopicArn=topic, Message="x" * 200)[1]


def _iam(port: int, call: Caller) -> Iterator[Operation]:
    for number in range(RESOURCES):
        call("iam", "CreateRole", RoleName=f"bench{number}", AssumeRolePolicyDocument=json.dumps(TRUST))
    call("iam", "PutRolePolicy", RoleName="bench0", PolicyName="p", PolicyDocument=json.dumps(ALLOW))
    yield _same(port, "iam", "GetRole", RoleName="bench0")
    yield _same(port, "iam", "ListRoles")


def _sts(port: int, call: Caller) -> Iterator[Operation]:
    yield _same(port, "sts", "GetCallerIdentity")
    yield _same(port, "sts", "AssumeRole", RoleArn="arn:aws:iam::123456789012:role/bench0", RoleSessionName="bench")


def _ssm(port: int, call: Caller) -> Iterator[Operation]:
    for number in range(RESOURCES):
        call("ssm", "PutParameter", Name=f"/bench/{number}", Value="v", Type="SecureString" if number else "String")
    yield _same(port, "ssm", "GetParameter", Name="/bench/0")
    yield _same(port, "ssm", "GetParametersByPath", Path="/bench", WithDecryption=True)


def _secrets(port: int, call: Caller) -> Iterator[Operation]:
    call("secretsmanager", "CreateSecret", Name="bench", SecretString="v", ClientRequestToken="t" * 32)
    yield _same(port, "secretsmanager", "GetSecretValue", SecretId="bench")


def _autoscaling(port: int, call: Caller) -> Iterator[Operation]:
    call("autoscaling", "CreateLaunchConfiguration", LaunchConfigurationName="bench", ImageId="ami-1", InstanceType="t3.micro")
    zones = {"AvailabilityZones.member.1": "us-east-1a"}
    for number in range(RESOURCES):
        sizes = {"MinSize": 0, "MaxSize": 1, "LaunchConfigurationName": "bench", **zones}
        call("autoscaling", "CreateAutoScalingGroup", AutoScalingGroupName=f"bench{number}", **sizes)
    yield _same(port, "autoscaling", "DescribeAutoScalingGroups", **{"AutoScalingGroupNames.member.1": "bench0"})
    yield _several(_same(port, "autoscaling", "DescribeAutoScalingGroups"))
    capacity = {"AutoScalingGroupName": "bench0", "DesiredCapacity": 0}
    yield _same(port, "autoscaling", "SetDesiredCapacity", **capacity)


def _ec2(port: int, call: Caller) -> Iterator[Operation]:
    sizes = {"ImageId": "ami-1", "InstanceType": "t3.micro", "MinCount": RESOURCES, "MaxCount": RESOURCES}
    call("ec2", "RunInstances", **sizes)
    yield _same(port, "ec2", "DescribeInstances")
    yield _same(port, "ec2", "DescribeSubnets")
    vpc = call("ec2", "DescribeVpcs").partition(b"<vpcId>")[2].partition(b"<")[0].decode()
    yield _same(port, "ec2", "CreateTags", **{"ResourceId.1": vpc, "Tag.1.Key": "a", "Tag.1.Value": "b"})


def _batch(port: int, call: Caller) -> Iterator[Operation]:
    """Jobs of an unmanaged environment without instances, so they wait."""
    call("batch", "CreateComputeEnvironment", computeEnvironmentName="bench", type="UNMANAGED")
    order = [{"order": 1, "computeEnvironment": "bench"}]
    call("batch", "CreateJobQueue", jobQueueName="bench", priority=1, computeEnvironmentOrder=order)
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    container = {"image": "corral/host", "command": ["true"], "resourceRequirements": needs}
    call("batch", "RegisterJobDefinition", jobDefinitionName="bench", type="container", containerProperties=container)
    submit = {"jobName": "bench", "jobQueue": "bench", "jobDefinition": "bench"}
    job = call("batch", "SubmitJob", **submit)["jobId"]
    yield _same(port, "batch", "DescribeJobs", jobs=[job])
    yield _same(port, "batch", "SubmitJob", **submit)
    yield _same(port, "batch", "ListJobs", jobQueue="bench", jobStatus="RUNNABLE", maxResults=10)


def _ecs(port: int, call: Caller) -> Iterator[Operation]:
    call("ecs", "RegisterTaskDefinition", **definition("bench", ["/bin/true"]))
    yield _same(port, "ecs", "DescribeTaskDefinition", taskDefinition="bench")
    yield _same(port, "ecs", "ListTasks")
    yield _same(port, "ecs", "DescribeClusters")


def _ecr(port: int, call: Caller) -> Iterator[Operation]:
    for number in range(RESOURCES):
        call("ecr", "CreateRepository", repositoryName=f"bench{number}")
    yield _same(port, "ecr", "DescribeRepositories")
    yield _same(port, "ecr", "GetAuthorizationToken")


def _logs(port: int, call: Caller) -> Iterator[Operation]:
    call("logs", "CreateLogGroup", logGroupName="bench")
    call("logs", "CreateLogStream", logGroupName="bench", logStreamName="s")
    yield _same(port, "logs", "DescribeLogGroups")
    yield _same(port, "logs", "GetLogEvents", logGroupName="bench", logStreamName="s")


def _cloudwatch(port: int, call: Caller) -> Iterator[Operation]:
    for number in range(RESOURCES):
        call("cloudwatch", "PutMetricAlarm", AlarmName=f"bench{number}", ComparisonOperator="GreaterThanThreshold", **ALARM)
    yield _same(port, "cloudwatch", "PutMetricData", Namespace="bench", MetricData=[{"MetricName": "m", "Value": 0.0}])
    yield _same(port, "cloudwatch", "DescribeAlarms")


def _cloudformation(port: int, call: Caller) -> Iterator[Operation]:
    for number in range(RESOURCES):
        call("cloudformation", "CreateStack", StackName=f"bench{number}", TemplateBody=json.dumps(TEMPLATE))
    yield _same(port, "cloudformation", "DescribeStacks", StackName="bench0")
    yield _several(_same(port, "cloudformation", "DescribeStacks"))
    yield _same(port, "cloudformation", "DescribeStackEvents", StackName="bench0")


def _application_autoscaling(port: int, call: Caller) -> Iterator[Operation]:
    yield _same(port, "application-autoscaling", "DescribeScalableTargets", ServiceNamespace="ecs")


def _lambda(port: int, call: Caller) -> Iterator[Operation]:
    yield "lambda ListFunctions", repeat(head(port, "lambda", "GET", "/2015-03-31/functions/", {}))


def _s3(port: int, call: Caller) -> Iterator[Operation]:
    wire = Wire(port)
    for path, body in (("/bench", b""), ("/bench/key", b"x" * 200)):
        wire.ask(head(port, "s3", "PUT", path, {}, body) + body)
    wire.close()
    yield "s3 PutObject, 200 B", repeat(head(port, "s3", "PUT", "/bench/put", {}, b"x" * 200) + b"x" * 200)
    yield "s3 GetObject, 200 B", repeat(head(port, "s3", "GET", "/bench/key", {}))
    yield "s3 ListObjectsV2", repeat(head(port, "s3", "GET", "/bench?list-type=2", {}))


SERVICES = (
    _sqs, _sns, _iam, _sts, _ssm, _secrets, _autoscaling, _ec2, _batch, _ecs, _ecr, _logs, _cloudwatch, _cloudformation,
    _application_autoscaling, _lambda, _s3,
)  # fmt: skip
