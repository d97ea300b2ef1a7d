"""The client of everyday commands gives the same answers as botocore, and needs no import of it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

from clients import stack_help
from command import UNTIL_TOLD
from corral.cli.client.endpoint import Endpoint, signing_keys
from corral.cli.client.http import ConnectionFailed, ConnectionPool, SigningKeys, is_supported
from corral.cli.client.json_client import SERVICES, ApiRefusal, LeanClient, operation_name
from corral.cli.client.s3 import LeanS3Writer
from corral.cli.commands import SUMMARIES, main
from corral.cli.printing.errors import error_line
from eventually import eventually
from harness import REGION, Corral

USED = {
    "ecs": [
        "DeleteAttributes", "DeleteService", "DescribeCapacityProviders", "DescribeClusters", "DescribeContainerInstances",
        "DescribeServices",
        "DescribeTaskDefinition", "DescribeTasks", "ExecuteCommand", "ListAttributes", "ListClusters", "ListContainerInstances",
        "ListServices", "ListTagsForResource", "ListTasks", "PutAttributes", "RegisterTaskDefinition", "RunTask", "StopTask",
        "TagResource", "UntagResource",
    ],
    "cloudwatch": ["DescribeAlarmHistory", "DescribeAlarms", "GetMetricData"],
    "logs": ["DescribeLogStreams", "GetLogEvents"],
    "cloudtrail": ["LookupEvents"],
    "iam": [
        "AddUserToGroup", "CreateUser", "DeleteAccessKey", "GetAccessKeyLastUsed", "GetGroup", "ListAccessKeys",
        "ListGroupsForUser", "ListUsers",
    ],
    "sts": ["GetCallerIdentity"],
    "ecr": ["CreateRepository", "DescribeImages", "DescribeRepositories", "GetAuthorizationToken"],
    "sqs": ["GetQueueAttributes", "GetQueueUrl"],
    "batch": [
        "DescribeComputeEnvironments", "DescribeJobDefinitions", "DescribeJobQueues", "DescribeJobs", "ListJobs",
        "RegisterJobDefinition", "SubmitJob", "TagResource", "TerminateJob", "UntagResource",
    ],
    "ec2": ["DescribeInstances", "DescribeInstanceTypes", "DescribeLaunchTemplateVersions"],
    "autoscaling": [
        "DescribeAutoScalingGroups", "DescribeLaunchConfigurations", "DescribePolicies", "DescribeScalingActivities",
    ],
    "application-autoscaling": ["DescribeScalableTargets", "DescribeScalingActivities", "DescribeScalingPolicies"],
    "cloudformation": [
        "CreateChangeSet", "DeleteChangeSet", "DescribeChangeSet", "DescribeStackEvents", "DescribeStacks", "ListStackResources",
        "ValidateTemplate",
    ],
}  # fmt: skip


def lean(corral: Corral, service: str) -> LeanClient:
    keys = SigningKeys(corral.keys["access_key"], corral.keys["secret_key"], REGION)
    return LeanClient(service, ConnectionPool(corral.url, connect_s=5, read_s=30), keys, attempts=1)


# The tables of json_client.py are those of botocore's models.


@pytest.mark.parametrize("service", SERVICES)
def test_the_tables_agree_with_the_models(service: str) -> None:
    """The tables are complete for the operations that commands use. A new botocore may have more operations."""
    model, about = botocore.session.get_session().get_service_model(service), SERVICES[service]
    target = model.metadata.get("targetPrefix", f"Corral.{service}")
    assert (about.target, about.signing_name or service) == (target, model.signing_name)
    assert model.metadata.get("jsonVersion", "1.1") == about.version
    assert about.in_utc == (model.resolved_protocol in ("query", "ec2"))
    assert about.has_query_codes == ("awsQueryCompatible" in model.metadata)
    shapes = [model.shape_for(name) for name in model.shape_names]
    types: dict[str, set[str]] = {}
    for shape in shapes:
        for name, member in shape.members.items() if shape.type_name == "structure" else ():
            types.setdefault(name, set()).update({member.type_name, _element(member)})
    for name in about.timestamps:
        assert "timestamp" in types[name] and not types[name] & {"integer", "long", "float", "double"}, name
    for operation in map(model.operation_model, USED[service]):
        assert timestamps_in(operation.output_shape) <= about.timestamps
        assert bool(operation.idempotent_members) == (operation.name in about.tokens)
        assert operation.idempotent_members in ([], ["clientToken"])
        assert operation_name(xform_name(operation.name)) == operation.name


def _element(shape: Any) -> str:
    return str(shape.member.type_name) if shape.type_name == "list" else ""


def timestamps_in(shape: Any, above: tuple[str, ...] = ()) -> set[str]:
    """The names of all timestamps in a shape."""
    if shape is None or shape.name in above:
        return set()
    if shape.type_name == "list":
        return timestamps_in(shape.member, (*above, shape.name))
    if shape.type_name == "map":
        return timestamps_in(shape.value, (*above, shape.name))
    members = shape.members.items() if shape.type_name == "structure" else ()
    found = {name for name, member in members if "timestamp" in (member.type_name, _element(member))}
    return found.union(*(timestamps_in(member, (*above, shape.name)) for _, member in members))


# Answers of a real server


@pytest.fixture(scope="module")
def task(corral: Corral) -> Iterator[dict[str, Any]]:
    """A task that runs and has written to its log, with a name and a tag."""
    ecs = lean(corral, "ecs")
    log = {"awslogs-group": "/lean", "awslogs-region": REGION, "awslogs-stream-prefix": "l", "awslogs-create-group": "true"}
    container = {
        "name": "main", "image": "corral/host", "command": ["sh", "-c", UNTIL_TOLD], "memory": 6,
        "logConfiguration": {"logDriver": "awslogs", "options": log},
    }  # fmt: skip
    registered = ecs.register_task_definition(family="lean", containerDefinitions=[container])["taskDefinition"]
    tags = [{"key": "corral:name", "value": "größe 日本"}]
    [started] = ecs.run_task(taskDefinition="lean", tags=tags, startedBy="me", enableExecuteCommand=True)["tasks"]
    task_id = started["taskArn"].rpartition("/")[2]
    logs = lean(corral, "logs")

    def written() -> Any:
        with suppress(logs.exceptions.ResourceNotFoundException):
            return logs.get_log_events(logGroupName="/lean", logStreamName=f"l/main/{task_id}")["events"]

    eventually(written)
    eventually(lambda: ecs.describe_tasks(tasks=[task_id])["tasks"][0]["lastStatus"] == "RUNNING")
    yield {"id": task_id, "arn": started["taskArn"], "definition": registered["taskDefinitionArn"]}
    corral.stop_tasks()


STACK = """
Resources:
  Template:
    Type: AWS::EC2::LaunchTemplate
    Properties: {LaunchTemplateName: lean, LaunchTemplateData: {ImageId: ami-1, InstanceType: m5.large, UserData: YQ==}}
  Group:
    Type: AWS::AutoScaling::AutoScalingGroup
    Properties:
      {AutoScalingGroupName: lean, MinSize: 0, MaxSize: 1, AvailabilityZones: !GetAZs '', LaunchTemplate:
        {LaunchTemplateId: !Ref Template, Version: !GetAtt Template.LatestVersionNumber}}
  Policy:
    Type: AWS::AutoScaling::ScalingPolicy
    Properties: {AutoScalingGroupName: !Ref Group, AdjustmentType: ChangeInCapacity, ScalingAdjustment: 1, Cooldown: 7}
  Definition:
    Type: AWS::Batch::JobDefinition
    Properties:
      {JobDefinitionName: lean, Type: container, ContainerProperties: {Image: corral/host, ResourceRequirements:
        [{Type: VCPU, Value: "1"}, {Type: MEMORY, Value: "64"}]}}
Outputs: {Size: {Value: !Ref Group}}
"""


@pytest.fixture(scope="module")
def stack(corral: Corral) -> Iterator[None]:
    """A stack and an instance."""
    formation, ec2 = corral.client("cloudformation"), corral.client("ec2")
    formation.create_stack(StackName="lean", TemplateBody=STACK, Tags=[{"Key": "a", "Value": "größe"}])
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "lean", "Value": "a & b"}]}]
    [launched] = ec2.run_instances(
        ImageId="ami-1", InstanceType="m5.large", MinCount=1, MaxCount=1, TagSpecifications=tags
    )["Instances"]  # fmt: skip
    ec2.get_waiter("instance_running").wait(InstanceIds=[launched["InstanceId"]])
    stack_help.wait(formation, "lean", "create")
    yield
    ec2.terminate_instances(InstanceIds=[launched["InstanceId"]])
    formation.delete_stack(StackName="lean")
    stack_help.wait(formation, "lean", "delete")


Call = Callable[[Any, dict[str, Any]], Any]
CALLS: dict[str, tuple[str, Call]] = {
    "DescribeClusters": ("ecs", lambda ecs, task: ecs.describe_clusters(clusters=["default", "nowhere"])),
    "ListClusters": ("ecs", lambda ecs, task: list(ecs.get_paginator("list_clusters").paginate())),
    "ListTasks": ("ecs", lambda ecs, task: list(ecs.get_paginator("list_tasks").paginate(desiredStatus="RUNNING"))),
    "DescribeTasks": ("ecs", lambda ecs, task: ecs.describe_tasks(tasks=[task["id"], "0" * 32], include=["TAGS"])),
    "DescribeTaskDefinition": ("ecs", lambda ecs, task: ecs.describe_task_definition(taskDefinition=task["definition"])),
    "ListTagsForResource": ("ecs", lambda ecs, task: ecs.list_tags_for_resource(resourceArn=task["arn"])),
    "ListContainerInstances": ("ecs", lambda ecs, task: ecs.list_container_instances(cluster="default")),
    "ListAttributes": ("ecs", lambda ecs, task: list(
        ecs.get_paginator("list_attributes").paginate(targetType="container-instance"))),
    "ListServices": ("ecs", lambda ecs, task: list(ecs.get_paginator("list_services").paginate(cluster="default"))),
    "ListAccountSettings": ("ecs", lambda ecs, task: ecs.list_account_settings(effectiveSettings=True)),
    "GetMetricData": ("cloudwatch", lambda cloudwatch, task: list(
        cloudwatch.get_paginator("get_metric_data").paginate(**_query(cloudwatch), MaxDatapoints=1))),
    "DescribeAlarms": ("cloudwatch", lambda cloudwatch, task: _new_alarm(cloudwatch)),
    "GetLogEvents": ("logs", lambda logs, task: logs.get_log_events(
        logGroupName="/lean", logStreamName=f"l/main/{task['id']}", startFromHead=True)),
    "DescribeLogStreams": ("logs", lambda logs, task: list(
        logs.get_paginator("describe_log_streams").paginate(logGroupName="/lean"))),
    "DescribeRepositories": ("ecr", lambda ecr, task: ecr.describe_repositories()),
    "CreateRepository": ("ecr", lambda ecr, task: _new_repository(ecr)),
    "GetQueueAttributes": ("sqs", lambda sqs, task: _new_queue(sqs)),
    "DescribeInstances": ("ec2", lambda ec2, task: list(ec2.get_paginator("describe_instances").paginate(
        Filters=[{"Name": "tag:lean", "Values": ["a & b"]}]))),
    "DescribeInstanceTypes": ("ec2", lambda ec2, task: ec2.describe_instance_types(InstanceTypes=["p5.48xlarge"])),
    "DescribeLaunchTemplateVersions": ("ec2", lambda ec2, task: ec2.describe_launch_template_versions(
        LaunchTemplateName="lean", Versions=["$Latest"])),
    "DescribeAutoScalingGroups": ("autoscaling", lambda scaling, task: scaling.describe_auto_scaling_groups(
        AutoScalingGroupNames=["lean"])),
    "DescribePolicies": ("autoscaling", lambda scaling, task: list(
        scaling.get_paginator("describe_policies").paginate(AutoScalingGroupName="lean"))),
    "DescribeStacks": ("cloudformation", lambda formation, task: list(formation.get_paginator("describe_stacks").paginate())),
    "DescribeStackEvents": ("cloudformation", lambda formation, task: list(
        formation.get_paginator("describe_stack_events").paginate(StackName="lean"))),
    "DescribeJobQueues": ("batch", lambda batch, task: batch.describe_job_queues(jobQueues=["lean"])),
    "DescribeJobDefinitions": ("batch", lambda batch, task: list(
        batch.get_paginator("describe_job_definitions").paginate(jobDefinitionName="lean", status="ACTIVE"))),
}  # fmt: skip


def _query(cloudwatch: Any) -> dict[str, Any]:
    """Put three values, and return a query for them."""
    last = datetime.now(UTC).replace(second=0, microsecond=0, minute=30)
    minutes = [last - timedelta(hours=3, minutes=before) for before in (3, 2, 1, 0)]
    data = [{"MetricName": "m", "Timestamp": at, "Value": 0.1 * number} for number, at in enumerate(minutes[:3])]
    cloudwatch.put_metric_data(Namespace="lean", MetricData=data)
    stat = {"Metric": {"Namespace": "lean", "MetricName": "m"}, "Period": 60, "Stat": "Maximum"}
    return {"MetricDataQueries": [{"Id": "m", "MetricStat": stat}], "StartTime": minutes[0], "EndTime": minutes[3]}


def _new_alarm(cloudwatch: Any) -> Any:
    about = {"Namespace": "lean", "MetricName": "n", "Period": 60, "EvaluationPeriods": 1, "Threshold": 1.5, "Statistic": "Sum"}
    cloudwatch.put_metric_alarm(AlarmName="lean", ComparisonOperator="GreaterThanThreshold", ActionsEnabled=False, **about)
    [alarm] = cloudwatch.describe_alarms(AlarmNames=["lean"])["MetricAlarms"]
    changed = [alarm.pop(name) for name in list(alarm) if name.endswith("Timestamp")]
    assert len(changed) >= 2 and all(isinstance(at, datetime) for at in changed)
    return {name: alarm[name] for name in alarm if not name.startswith("State")}


def _new_repository(ecr: Any) -> Any:
    with suppress(ecr.exceptions.RepositoryNotFoundException):
        ecr.delete_repository(repositoryName="lean")
    created = ecr.create_repository(repositoryName="lean")
    assert isinstance(created["repository"].pop("createdAt"), datetime)
    return created


def _new_queue(sqs: Any) -> Any:
    url = sqs.create_queue(QueueName="lean")["QueueUrl"]
    assert sqs.get_queue_url(QueueName="lean")["QueueUrl"] == url
    return sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.usefixtures("stack")
def test_answers_are_those_of_botocore(corral: Corral, task: dict[str, Any], operation: str) -> None:
    service, call = CALLS[operation]
    assert comparable(call(lean(corral, service), task)) == comparable(call(corral.client(service), task))


def comparable(answer: Any) -> Any:
    """Without what differs from request to request. Times keep their text, which contains the time zone."""
    if isinstance(answer, dict):
        about = answer.get("ResponseMetadata", {})
        assert not about or (about["HTTPStatusCode"] == 200 and about["RequestId"] and "date" in about["HTTPHeaders"])
        return {name: comparable(value) for name, value in answer.items() if name != "ResponseMetadata"}
    if isinstance(answer, list):
        return [comparable(each) for each in answer]
    return answer.isoformat() if isinstance(answer, datetime) else answer


def test_calls_that_change_something(corral: Corral, task: dict[str, Any]) -> None:
    """Both clients change tags and attributes, execute commands and stop tasks."""
    ecs, other = lean(corral, "ecs"), corral.client("ecs")
    for mine, theirs in ((ecs, other), (other, ecs)):
        mine.tag_resource(resourceArn=task["arn"], tags=[{"key": "k", "value": "v"}])
        assert {"key": "k", "value": "v"} in theirs.list_tags_for_resource(resourceArn=task["arn"])["tags"]
        mine.untag_resource(resourceArn=task["arn"], tagKeys=["k"])
        assert {"key": "k", "value": "v"} not in theirs.list_tags_for_resource(resourceArn=task["arn"])["tags"]
        session = mine.execute_command(cluster="default", task=task["id"], command="true", interactive=False)["session"]
        assert set(session) == {"sessionId", "streamUrl", "tokenValue"}
        [started] = mine.run_task(taskDefinition="lean")["tasks"]
        stopped = theirs.stop_task(task=started["taskArn"], reason="a test")["task"]
        assert stopped["taskArn"] == started["taskArn"] and stopped["stoppedReason"] == "a test"


@pytest.mark.parametrize(
    "service, call",
    [
        ("ecs", lambda ecs: ecs.describe_tasks(cluster="nowhere", tasks=["1"])),
        ("ecs", lambda ecs: ecs.stop_task(task="0" * 32)),
        ("ecs", lambda ecs: ecs.describe_task_definition(taskDefinition="absent")),
        ("ecs", lambda ecs: ecs.list_tasks(cluster="default", maxResults=1_000)),
        ("sqs", lambda sqs: sqs.get_queue_url(QueueName="absent")),
        ("ec2", lambda ec2: ec2.describe_instances(InstanceIds=["i-0123456789abcdef0"])),
        ("ec2", lambda ec2: ec2.describe_instance_types(InstanceTypes=["x.large"])),
        ("autoscaling", lambda scaling: scaling.describe_policies(AutoScalingGroupName="absent")),
        ("cloudformation", lambda formation: formation.describe_stacks(StackName="absent")),
        ("batch", lambda batch: batch.submit_job(jobName="a", jobQueue="absent", jobDefinition="absent")),
    ],
    ids=["cluster", "task", "definition", "limit", "queue", "instance", "type", "group", "stack", "job"],
)
def test_errors_are_those_of_botocore(corral: Corral, service: str, call: Callable[[Any], Any]) -> None:
    caught: list[Any] = []
    for client in (lean(corral, service), corral.client(service)):
        with pytest.raises(client.exceptions.ClientError) as raised:
            call(client)
        caught.append(raised.value)
    mine, theirs = caught
    about = theirs.response["Error"]  # some services also have the key `Type` there
    assert mine.response["Error"] == {name: about[name] for name in ("Message", "Code")}
    assert mine.operation_name == theirs.operation_name
    assert str(mine) == str(theirs).replace(" (reached max retries: 0)", "") and error_line(mine) == error_line(theirs)
    assert mine.response["ResponseMetadata"]["HTTPStatusCode"] == theirs.response["ResponseMetadata"]["HTTPStatusCode"]
    assert type(mine).__name__ == mine.response["Error"]["Code"]


def test_errors_of_cloudwatch_keep_their_old_codes(corral: Corral) -> None:
    codes = []
    for cloudwatch in (lean(corral, "cloudwatch"), corral.client("cloudwatch")):
        with pytest.raises(cloudwatch.exceptions.ClientError) as raised:
            cloudwatch.put_metric_data(
                Namespace="lean", MetricData=[{"MetricName": "m", "Timestamp": datetime(2001, 1, 1, tzinfo=UTC)}]
            )
        codes.append(raised.value.response["Error"]["Code"])
    assert codes == ["MissingParameter"] * 2


def test_a_wrong_key_is_refused(corral: Corral) -> None:
    keys = SigningKeys(corral.keys["access_key"], "wrong", REGION)
    ecs = LeanClient("ecs", ConnectionPool(corral.url, connect_s=5, read_s=30), keys, attempts=3)
    with pytest.raises(ecs.exceptions.InvalidSignatureException):
        ecs.list_clusters()


def test_the_headers_of_a_call_are_sent_and_signed(corral: Corral, task: dict[str, Any]) -> None:
    """A long poll for a version that the task no longer has is answered at once."""
    keys = SigningKeys(corral.keys["access_key"], corral.keys["secret_key"], REGION)
    pool = ConnectionPool(corral.url, connect_s=5, read_s=5)
    ecs = LeanClient("ecs", pool, keys, attempts=1, more_headers=lambda: {"X-Corral-Wait": "20", "X-Corral-Seen": "0"})
    assert ecs.describe_tasks(tasks=[task["id"]])["tasks"][0]["version"] > 0


def test_objects_and_buckets_are_written(corral: Corral) -> None:
    keys = SigningKeys(corral.keys["access_key"], corral.keys["secret_key"], "eu-west-1")
    s3, other = LeanS3Writer(ConnectionPool(corral.url, connect_s=5, read_s=30), keys, attempts=1), corral.client("s3", "eu-west-1")
    with pytest.raises(s3.exceptions.NoSuchBucket, match="The specified bucket does not exist"):
        s3.put_object(Bucket="lean-bucket", Key="k", Body=b"")
    s3.create_bucket(Bucket="lean-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    with pytest.raises(s3.exceptions.BucketAlreadyOwnedByYou):
        s3.create_bucket(Bucket="lean-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    assert other.get_bucket_location(Bucket="lean-bucket")["LocationConstraint"] == s3.meta.region_name == "eu-west-1"
    key, content = "a b/größe+%.env", "A=1\nB=größe\n".encode()
    etag = s3.put_object(Bucket="lean-bucket", Key=key, Body=content)["ETag"]
    found = other.get_object(Bucket="lean-bucket", Key=key)
    assert found["Body"].read() == content and found["ETag"] == etag


def test_tasks_are_listed_by_the_beginning_of_their_ids(corral: Corral, task: dict[str, Any]) -> None:
    keys = SigningKeys(corral.keys["access_key"], corral.keys["secret_key"], REGION)
    pool = ConnectionPool(corral.url, connect_s=5, read_s=5)

    def listed(prefix: str, **filters: Any) -> list[str]:
        ecs = LeanClient("ecs", pool, keys, attempts=1, more_headers=lambda: {"X-Corral-Prefix": prefix})
        pages = ecs.get_paginator("list_tasks").paginate(**filters)
        return [arn.rpartition("/")[2] for page in pages for arn in page["taskArns"]]

    ecs = lean(corral, "ecs")
    more = [each["taskArn"].rpartition("/")[2] for each in ecs.run_task(taskDefinition="lean", count=10)["tasks"]]
    every = listed("")
    assert {task["id"], *more} <= set(every)
    for prefix in (task["id"], task["id"][:6], *"0123456789abcdef"):
        expected = [task_id for task_id in every if task_id.startswith(prefix)]
        for filters in ({}, {"maxResults": 1}, {"family": "lean"}, {"family": "lean", "maxResults": 1}):
            assert listed(prefix, **filters) == expected
    assert listed(task["id"][:6], family="other") == [] == listed(task["id"], desiredStatus="STOPPED")
    for task_id in more:
        ecs.stop_task(task=task_id)


# Connections


class Peer:
    """A server that answers each connection with the next of some texts, and closes it. An empty text is no answer."""

    def __init__(self, *answers: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.requests: list[bytes] = []
        self._answers = answers
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        for answer in self._answers:
            connection, _ = self._listener.accept()
            with connection:
                received = b""
                while b"\r\n\r\n" not in received or len(received.partition(b"\r\n\r\n")[2]) < _length(received):
                    received += connection.recv(65_536)
                self.requests.append(received)
                connection.sendall(answer.encode())

    def client(self, attempts: int = 3) -> LeanClient:
        return LeanClient("ecs", ConnectionPool(self.url, connect_s=5, read_s=5), SigningKeys("a", "b", REGION), attempts=attempts)

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


def _length(request: bytes) -> int:
    [line] = [line for line in request.partition(b"\r\n\r\n")[0].split(b"\r\n") if line.startswith(b"content-length:")]
    return int(line.partition(b":")[2])


def answer(body: str, status: int = 200, *, header: str = "") -> str:
    return f"HTTP/1.1 {status} X\r\n{header or f'content-length: {len(body)}'}\r\n\r\n{body}"


def test_a_lost_answer_of_run_task_is_requested_again_with_the_same_token() -> None:
    peer = Peer("", answer('{"message": "later"}', 503), answer('{"tasks": []}'))
    reply = peer.client().run_task(taskDefinition="t")
    peer.close()
    assert reply["tasks"] == [] and reply["ResponseMetadata"]["RetryAttempts"] == 2
    tokens = {json.loads(request.partition(b"\r\n\r\n")[2])["clientToken"] for request in peer.requests}
    assert len(peer.requests) == 3 and len(tokens) == 1


@pytest.mark.parametrize(
    "text",
    [
        answer('7\r\n{"a":1,\r\n6;x=y\r\n"b":2}\r\n0\r\n\r\n', header="transfer-encoding: chunked"),
        answer('{"a":1,"b":2}', header="server: x"),
        answer('{"a":1,"b":2}'),
    ],
    ids=["chunks", "until the end", "length"],
)
def test_bodies_of_every_form_are_read(text: str) -> None:
    peer = Peer(text)
    reply = peer.client().list_clusters()
    peer.close()
    assert (reply["a"], reply["b"]) == (1, 2)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "closed the connection before it responded"),
        (answer('{"a":', header="content-length: 99"), "closed the connection before it responded"),
        ("SSH-2.0-x\r\n\r\n", "not HTTP/1.1"),
        (answer("<html>"), "not JSON"),
    ],
    ids=["nothing", "half", "ssh", "html"],
)
def test_wrong_answers_are_one_line(text: str, message: str) -> None:
    peer = Peer(text)
    with pytest.raises(ConnectionFailed, match=message):
        peer.client(attempts=1).list_clusters()
    peer.close()


def test_an_error_without_json_has_a_code() -> None:
    peer = Peer(answer("<h1>gone</h1>", 404))
    with pytest.raises(ApiRefusal) as raised:
        peer.client(attempts=1).list_clusters()
    peer.close()
    assert raised.value.response["Error"] == {"Code": "404", "Message": "<h1>gone</h1>"}


def test_a_closed_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectionFailed, match=f"cannot connect to {url}: start Corral with"):
        LeanClient("ecs", ConnectionPool(url, connect_s=1, read_s=1), SigningKeys("a", "b", REGION), attempts=1).list_clusters()


# The endpoints with a lean client

ENVIRONMENT = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:4566", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_DEFAULT_REGION": REGION, "HOME": "/nowhere",
}  # fmt: skip


@pytest.mark.parametrize(
    "more, is_lean",
    [
        ({}, True),
        ({"AWS_SESSION_TOKEN": "t"}, True),
        ({"AWS_ENDPOINT_URL": "https://127.0.0.1:4566"}, True),
        ({"AWS_ENDPOINT_URL": "https://127.0.0.1:4566", "https_proxy": "http://proxy"}, False),
        ({"https_proxy": "http://proxy"}, True),
        ({"AWS_ENDPOINT_URL": "http://ecs.us-east-1.amazonaws.com"}, False),
        ({"AWS_ENDPOINT_URL": ""}, False),
        ({"AWS_ENDPOINT_URL_ECS": "http://127.0.0.1:1"}, False),
        ({"AWS_PROFILE": "work"}, False),
        ({"AWS_DEFAULT_REGION": ""}, False),
        ({"AWS_SECRET_ACCESS_KEY": ""}, False),
        ({"http_proxy": "http://proxy"}, False),
    ],
)
def test_only_endpoints_in_variables_are_lean(monkeypatch: pytest.MonkeyPatch, more: dict[str, str], is_lean: bool) -> None:
    for name in (
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "AWS_SESSION_TOKEN",
        "AWS_PROFILE",
        "AWS_CONFIG_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in (ENVIRONMENT | more).items():
        monkeypatch.setenv(name, value)
    signing_keys.cache_clear()
    found = signing_keys(Endpoint())
    signing_keys.cache_clear()
    assert (found is not None) == is_lean
    if found is not None:
        url = (ENVIRONMENT | more)["AWS_ENDPOINT_URL"]
        assert found == (url, SigningKeys("a", "b", REGION, more.get("AWS_SESSION_TOKEN")))


@pytest.mark.parametrize(
    "url", ["http://h", "http://h/", "http://127.0.0.1:80", "http://[::1]:4566", "http://a.b-c:1/", "https://h", "https://h:443/"]
)
def test_urls_of_servers_are_supported(url: str) -> None:
    assert is_supported(url)


@pytest.mark.parametrize("url", ["https://h/path", "ftp://h", "http://h/path", "http://u@h", "http://h?q", "h:80", "", "http://"])
def test_other_urls_are_not_supported(url: str) -> None:
    assert not is_supported(url)


# What commands import


def test_the_table_of_commands_has_their_summaries() -> None:
    assert {name: command.get_short_help_str(200) for name, command in main.commands.items()} == SUMMARIES


PRINTS_MODULES = """
import runpy, sys
try:
    runpy.run_module("corral", run_name="__main__")
finally:
    print(*sys.modules, file=sys.stderr)
"""
HEAVY = ("botocore", "boto3", "urllib3", "http.client", "email", "ssl", "asyncio")


@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize(
    "verb, drawing",
    [
        (["run", "-d", "--", "true"], False),
        (["ps", "--all"], False),
        (["logs", "TASK"], False),
        (["exec", "TASK", "--", "true"], False),
        (["stop", "TASK"], False),  # the last command that needs the task to run
        (["wait", "TASK"], False),
        (["status"], False),
        (["top", "--once"], True),
        (["hold"], False),
        (["instances"], False),
        (["stack"], False),
        (["stack", "lean"], True),
        (["pipeline", "list"], False),
        (["config"], False),
        (["images"], False),
        (["--help"], False),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_everyday_commands_do_not_import_botocore(
    corral: Corral, task: dict[str, Any], tmp_path: Path, verb: list[str], drawing: bool
) -> None:
    words = [task["id"][:8] if word == "TASK" else word for word in verb]
    done = subprocess.run(
        [sys.executable, "-c", PRINTS_MODULES, *words],
        env={**corral.environment, "HOME": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == (7 if verb[0] == "wait" else 0), done.stderr
    loaded = {name for name in done.stderr.split() if name in HEAVY or name == "rich"}
    assert loaded <= ({"rich"} if drawing else set())
