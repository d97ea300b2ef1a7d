"""What a program in a container may do: data is open, everything else needs a policy of its role."""

from __future__ import annotations

import gzip
import json
import sys
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from corral.access import aws_policies, sessions
from corral.decide.policies.policy import check_identity_policy, read_policy
from corral.model.principal import role_session
from corral.operations.services import SERVICES
from corral.worker.object_reader import OBJECTS_PATH, contents_of
from corral.worker.signed_http import SignedHttp
from harness import MAKING_A_CLIENT, REGION, SESSION, Corral, container, eventually

ACCOUNT = "123456789012"
LATER_S = 4_000_000_000
TRUST_TASKS = {"Effect": "Allow", "Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}
OPEN = {  # change it knowingly: every container may do this without a policy
    "application-autoscaling": "",
    "batch": "",
    "corral": "",
    "autoscaling": "",
    "cloudformation": "",
    "cloudtrail": "",
    "cloudwatch": "GetMetricData GetMetricStatistics ListMetrics PutMetricData",
    "ec2": "",
    "ecr": "",
    "ecs": "",
    "iam": "",
    "lambda": "",
    "logs": "CreateLogStream DescribeLogGroups DescribeLogStreams FilterLogEvents GetLogEvents ListLogGroups PutLogEvents",
    "s3": (
        "AbortMultipartUpload CompleteMultipartUpload CopyObject CreateMultipartUpload DeleteObject DeleteObjectTagging "
        "DeleteObjects GetBucketLocation GetObject GetObjectAttributes GetObjectTagging HeadBucket HeadObject "
        "ListBuckets ListMultipartUploads ListObjectVersions ListObjects ListObjectsV2 ListParts PostObject PutObject "
        "PutObjectTagging UploadPart UploadPartCopy"
    ),
    "secretsmanager": "",
    "sns": "",
    "sqs": (
        "ChangeMessageVisibility ChangeMessageVisibilityBatch DeleteMessage DeleteMessageBatch GetQueueAttributes GetQueueUrl "
        "ListQueues ReceiveMessage SendMessage SendMessageBatch"
    ),
    "ssm": "",
    "sts": "GetCallerIdentity",
}


def policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action: Any, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def deny(action: Any, resource: Any = "*", **more: Any) -> dict[str, Any]:
    return {**allow(action, resource, **more), "Effect": "Deny"}


class Inside:
    """Clients with the credentials of a task that runs in containers."""

    def __init__(self, corral: Corral, role: str, task_id: str) -> None:
        key = bytes.fromhex(json.loads((corral.data / "sessions.json").read_text())["key"])
        principal = role_session(ACCOUNT, role, task_id, "root")
        self.principal, self.task_id = principal.arn, task_id
        made = sessions.issue(key, b"inside", principal, LATER_S, task_id, confined=True)
        self.use(corral, made.session.access_key_id, made.secret_key, made.token)

    def use(self, corral: Corral, access_key_id: str, secret_key: str, token: str) -> None:
        self.corral, self.keys = corral, (access_key_id, secret_key, token)

    def client(self, service: str, **config: Any) -> Any:
        access_key_id, secret_key, token = self.keys
        with MAKING_A_CLIENT:
            return SESSION.client(
                service,
                region_name=REGION,
                endpoint_url=self.corral.url,
                aws_access_key_id=access_key_id,
                aws_secret_access_key=secret_key,
                aws_session_token=token,
                config=Config(retries={"max_attempts": 0}, **config),
            )

    def __getattr__(self, service: str) -> Any:
        return self.client(service)


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral that runs images in Docker, as every Corral whose containers send requests. No engine answers, so images wait."""
    running = Corral(tmp_path_factory.mktemp("corral") / "data", "sim:2", "--runtime", "docker").start()
    yield running
    running.clear()


@pytest.fixture(scope="module")
def task_id(corral: Corral) -> str:
    """A running task, to which the credentials belong."""
    ecs = corral.client("ecs")
    ecs.register_task_definition(family="holder", containerDefinitions=[container(["sleep", "600"])])
    arn = ecs.run_task(taskDefinition="holder", enableExecuteCommand=True)["tasks"][0]["taskArn"]
    eventually(lambda: ecs.describe_tasks(tasks=[arn])["tasks"][0]["lastStatus"] == "RUNNING", "running")
    return str(arn.rpartition("/")[2])


@pytest.fixture
def role(corral: Corral, task_id: str, request: pytest.FixtureRequest) -> Any:
    """Creates a role with inline policies, and returns clients of a container task with it."""
    iam = corral.client("iam")
    name = request.node.name[:60].replace("[", ".").replace("]", "").rstrip("-")

    def make(*statements: dict[str, Any], **more: Any) -> Inside:
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=policy(TRUST_TASKS), **more)
        if statements:
            iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=policy(*statements))
        return Inside(corral, name, task_id)

    make.name = name  # type: ignore[attr-defined]
    return make


@pytest.fixture
def bucket(corral: Corral) -> str:
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="data")
    for key in ("open/one", "secret/one", "secret/two"):
        s3.put_object(Bucket="data", Key=key, Body=b"x")
    return "data"


def refused(call: Any, **params: Any) -> tuple[str, str, int]:
    with pytest.raises(ClientError) as caught:
        call(**params)
    response = caught.value.response
    return response["Error"]["Code"], response["Error"]["Message"], response["ResponseMetadata"]["HTTPStatusCode"]


def test_the_operations_that_are_open_to_containers() -> None:
    assert {name: sorted(service.open_to_containers) for name, service in SERVICES.items()} == {
        name: sorted(listed.split()) for name, listed in OPEN.items()
    }
    assert all(service.open_to_containers <= service.operations.keys() for service in SERVICES.values())


def test_a_container_cannot_become_the_host(corral: Corral, task_id: str) -> None:
    inside = Inside(corral, "corral-host", task_id)
    evil = {"name": "x", "image": "corral/host", "memory": 64, "command": ["cat", str(corral.data / "credentials.json")]}
    code, text, status = refused(inside.ecs.register_task_definition, family="evil", containerDefinitions=[evil])
    assert (code, status) == ("AccessDeniedException", 400)
    resource = f"arn:aws:ecs:us-east-1:{ACCOUNT}:task-definition/evil:*"
    assert text == (
        f"User: {inside.principal} is not authorized to perform: ecs:RegisterTaskDefinition on resource: {resource} "
        "because no identity-based policy allows the ecs:RegisterTaskDefinition action"
    )
    assert refused(inside.ecs.run_task, taskDefinition="holder")[0] == "AccessDeniedException"
    assert refused(inside.ecs.execute_command, task=task_id, command="sh", interactive=True)[0] == "AccessDeniedException"


def test_data_is_open_without_a_role(corral: Corral, task_id: str, bucket: str) -> None:
    queue = corral.client("sqs").create_queue(QueueName="open")["QueueUrl"]
    corral.client("logs").create_log_group(logGroupName="/open")
    inside = Inside(corral, "corral-host", task_id)
    assert inside.sts.get_caller_identity()["Arn"] == inside.principal
    inside.s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    inside.s3.copy_object(Bucket=bucket, Key="b", CopySource={"Bucket": bucket, "Key": "a"})
    assert inside.s3.get_object(Bucket=bucket, Key="b")["Body"].read() == b"1"
    assert len(inside.s3.list_objects_v2(Bucket=bucket)["Contents"]) >= 2
    inside.s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "a"}, {"Key": "b"}]})
    inside.sqs.send_message(QueueUrl=queue, MessageBody="1")
    [message] = inside.sqs.receive_message(QueueUrl=queue)["Messages"]
    inside.sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    inside.cloudwatch.put_metric_data(Namespace="Mine", MetricData=[{"MetricName": "m", "Value": 1}])
    inside.logs.create_log_stream(logGroupName="/open", logStreamName="s")
    inside.logs.put_log_events(logGroupName="/open", logStreamName="s", logEvents=[{"timestamp": 1, "message": "m"}])


@pytest.mark.parametrize(
    ("service", "operation", "params", "code", "status"),
    [
        ("ssm", "get_parameter", {"Name": "/secret"}, "AccessDeniedException", 400),
        ("ecr", "get_authorization_token", {}, "AccessDeniedException", 400),
        ("logs", "delete_log_group", {"logGroupName": "/x"}, "AccessDeniedException", 400),
        ("sqs", "create_queue", {"QueueName": "x"}, "AccessDenied", 400),
        ("s3", "create_bucket", {"Bucket": "mine"}, "AccessDenied", 403),
        ("iam", "attach_role_policy", {"RoleName": "r", "PolicyArn": "arn:aws:iam::aws:policy/X"}, "AccessDenied", 403),
        ("sts", "assume_role", {"RoleArn": f"arn:aws:iam::{ACCOUNT}:role/r", "RoleSessionName": "me"}, "AccessDenied", 403),
        ("ec2", "describe_vpcs", {}, "UnauthorizedOperation", 403),
        ("cloudwatch", "delete_alarms", {"AlarmNames": ["a"]}, "AccessDenied", 400),
    ],
)
def test_the_code_of_a_refusal_is_that_of_the_protocol(
    corral: Corral, task_id: str, service: str, operation: str, params: dict[str, Any], code: str, status: int
) -> None:
    inside = Inside(corral, "corral-host", task_id)
    got, text, got_status = refused(getattr(inside.client(service), operation), **params)
    assert (got.removesuffix("Exception"), got_status) == (code.removesuffix("Exception"), status)
    assert f"User: {inside.principal} is not authorized to perform: {service}:" in text
    assert text.startswith("You are not authorized to perform this operation.") == (service == "ec2")


def test_the_operations_of_corral_are_closed(corral: Corral, task_id: str) -> None:
    own = Inside(corral, "corral-host", task_id).client("corral")
    for call, params in (
        (own.get_status, {}),
        (own.describe_instances, {}),
        (own.get_usage, {}),
        (own.revoke_sessions, {"all": True}),
    ):
        code, text, _ = refused(call, **params)
        assert code == "AccessDeniedException" and "is not authorized to perform: corral:" in text


def objects_of(inside: Inside, *names: tuple[str, str]) -> list[bytes | None] | None:
    """The objects that Corral's page for objects returns."""
    http = SignedHttp(inside.corral.url, REGION, "corral")
    body = http.post(OBJECTS_PATH, json.dumps({"objects": names}).encode(), Credentials(*inside.keys))
    return contents_of(body, len(names)) if body is not None else None


def test_the_page_for_objects_leaves_out_what_the_role_may_not_read(corral: Corral, role: Any, bucket: str) -> None:
    names = [(bucket, key) for key in ("open/one", "secret/one", "open/one", "missing")]
    inside = role()
    # On a busy machine, the page may leave out objects (READ_MAX_S), but it reads them in order.
    eventually(lambda: objects_of(inside, *names) == [b"x", b"x", b"x", None], "all objects are read")
    denied = deny("s3:GetObject", f"arn:aws:s3:::{bucket}/secret/*")
    corral.client("iam").put_role_policy(RoleName=role.name, PolicyName="own", PolicyDocument=policy(denied))
    eventually(lambda: objects_of(inside, *names) == [b"x", None, b"x", None], "the objects that the role may read are read")


def test_a_policy_opens_an_operation_on_its_resources(corral: Corral, role: Any) -> None:
    for name in ("/app/key", "/other/key"):
        corral.client("ssm").put_parameter(Name=name, Value="v", Type="String")
    inside = role(allow(["ssm:GetParameter", "ssm:GetParameters"], f"arn:aws:ssm:us-east-1:{ACCOUNT}:parameter/app/*"))
    assert inside.ssm.get_parameter(Name="/app/key")["Parameter"]["Value"] == "v"
    assert inside.ssm.get_parameter(Name=f"arn:aws:ssm:us-east-1:{ACCOUNT}:parameter/app/key:1")["Parameter"]["Value"] == "v"
    assert inside.ssm.get_parameters(Names=["/app/key"])["Parameters"]
    assert refused(inside.ssm.get_parameter, Name="/other/key")[0] == "AccessDeniedException"
    assert refused(inside.ssm.get_parameters, Names=["/app/key", "/other/key"])[0] == "AccessDeniedException"
    assert (
        refused(inside.ssm.put_parameter, Name="/app/key", Value="w", Type="String", Overwrite=True)[0] == "AccessDeniedException"
    )
    corral.client("iam").delete_role_policy(RoleName=role.name, PolicyName="own")
    assert refused(inside.ssm.get_parameter, Name="/app/key")[0] == "AccessDeniedException"


def test_an_explicit_deny_closes_what_is_open(role: Any, bucket: str) -> None:
    inside = role(allow("*"), deny("s3:*Object*", f"arn:aws:s3:::{bucket}/secret/*"))
    s3 = inside.s3
    assert s3.get_object(Bucket=bucket, Key="open/one")["Body"].read() == b"x"
    code, text, status = refused(s3.get_object, Bucket=bucket, Key="secret/one")
    assert (code, status) == ("AccessDenied", 403) and text.endswith("with an explicit deny in an identity-based policy")
    assert refused(s3.get_object, Bucket=bucket, Key="secret/one", VersionId="null")[0] == "AccessDenied"
    assert refused(s3.put_object, Bucket=bucket, Key="secret/new", Body=b"")[0] == "AccessDenied"
    assert refused(s3.create_multipart_upload, Bucket=bucket, Key="secret/new")[0] == "AccessDenied"
    assert refused(s3.copy_object, Bucket=bucket, Key="open/two", CopySource=f"{bucket}/secret/one")[0] == "AccessDenied"
    done = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "open/one"}, {"Key": "secret/one"}]})
    assert [each["Key"] for each in done["Deleted"]] == ["open/one"]
    assert [(each["Key"], each["Code"]) for each in done["Errors"]] == [("secret/one", "AccessDenied")]
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "secret/one"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url)


def test_managed_policies_and_their_versions(corral: Corral, role: Any) -> None:
    iam, inside = corral.client("iam"), role()
    arn = iam.create_policy(PolicyName="managed", PolicyDocument=policy(allow("sqs:CreateQueue")))["Policy"]["Arn"]
    iam.attach_role_policy(RoleName=role.name, PolicyArn=arn)
    inside.sqs.create_queue(QueueName="made")
    iam.create_policy_version(PolicyArn=arn, PolicyDocument=policy(allow("sqs:DeleteQueue")), SetAsDefault=True)
    assert refused(inside.sqs.create_queue, QueueName="made")[0].startswith("AccessDenied")
    iam.attach_role_policy(RoleName=role.name, PolicyArn="arn:aws:iam::aws:policy/AmazonSQSFullAccess")
    inside.sqs.create_queue(QueueName="made")


def test_a_container_that_starts_tasks(corral: Corral, role: Any, task_id: str) -> None:
    """AmazonECS_FullAccess includes PassRole, and does not include the host."""
    inside = role()
    corral.client("iam").attach_role_policy(RoleName=role.name, PolicyArn="arn:aws:iam::aws:policy/AmazonECS_FullAccess")
    plain = {"name": "main", "image": "busybox", "memory": 64, "command": ["true"]}
    inside.ecs.register_task_definition(family="child", containerDefinitions=[plain], taskRoleArn=role.name)
    assert inside.ecs.run_task(taskDefinition="child")["tasks"]
    code, text, _ = refused(
        inside.ecs.register_task_definition, family="child", containerDefinitions=[plain | {"image": "corral/host"}]
    )
    assert code == "AccessDeniedException" and "corral:RunOnHost" in text
    for setting in (
        {"networkMode": "host"}, {"pidMode": "host"}, {"ipcMode": "host"},
        {"volumes": [{"name": "v", "host": {"sourcePath": "/"}}]},
        {"containerDefinitions": [plain | {"privileged": True}]},
    ):  # fmt: skip
        params = {"family": "child", "containerDefinitions": [plain], **setting}
        assert "corral:RunOnHost" in refused(inside.ecs.register_task_definition, **params)[1], setting
    corral.client("ecs").register_task_definition(family="on-host", containerDefinitions=[plain | {"image": "corral/host"}])
    assert "corral:RunOnHost" in refused(inside.ecs.run_task, taskDefinition="on-host")[1]
    service = {"serviceName": "on-host", "desiredCount": 0}
    assert "corral:RunOnHost" in refused(inside.ecs.create_service, **service, taskDefinition="on-host")[1]
    inside.ecs.create_service(**service, taskDefinition="child")
    assert "corral:RunOnHost" in refused(inside.ecs.update_service, service="on-host", taskDefinition="on-host")[1]
    holder = {"task": task_id, "command": "id", "interactive": True}
    assert "corral:RunOnHost" in refused(inside.ecs.execute_command, **holder)[1]
    corral.client("ecs").update_service(service="on-host", taskDefinition="on-host")
    assert "corral:RunOnHost" in refused(inside.ecs.update_service, service="on-host", desiredCount=1)[1]
    assert "corral:RunOnHost" in refused(inside.ecs.update_service, service="on-host", forceNewDeployment=True)[1]
    corral.client("iam").put_role_policy(RoleName=role.name, PolicyName="host", PolicyDocument=policy(allow("corral:RunOnHost")))
    assert inside.ecs.run_task(taskDefinition="on-host")["tasks"]
    inside.ecs.update_service(service="on-host", forceNewDeployment=True)
    assert inside.ecs.execute_command(**holder)["session"]["tokenValue"]
    inside.ecs.delete_service(service="on-host")


def test_the_secrets_of_a_definition_need_a_permission(corral: Corral, role: Any) -> None:
    """Corral reads the secrets of a task, so who names them must be allowed to read them, or to pass a role that is."""
    parameter = f"arn:aws:ssm:us-east-1:{ACCOUNT}:parameter/ours/token"
    iam, inside = corral.client("iam"), role(allow(["ecs:*", "batch:*", "iam:PassRole"]))
    iam.create_role(RoleName="fetcher", AssumeRolePolicyDocument=policy(TRUST_TASKS))

    def attempt(call: Any) -> str:
        try:
            call()
        except ClientError as error:
            return str(error)
        return ""

    def register(given: str, **more: Any) -> list[str]:
        secret = {"secrets": [{"name": "X", "valueFrom": given}]}
        log = {"logConfiguration": {"logDriver": "json-file", "secretOptions": [{"name": "x", "valueFrom": given}]}}
        plain = {"name": "main", "image": "busybox", "memory": 64, "command": ["env"]}
        needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
        job = {"image": "busybox", "command": ["env"], "resourceRequirements": needs, **secret, **more}
        calls: list[Any] = [
            lambda: inside.ecs.register_task_definition(family="s", containerDefinitions=[plain | secret], **more),
            lambda: inside.ecs.register_task_definition(family="s", containerDefinitions=[plain | log], **more),
            lambda: inside.batch.register_job_definition(jobDefinitionName="s", type="container", containerProperties=job),
        ]
        return [attempt(call) for call in calls]

    for given in ("/ours/token", parameter, f"{parameter}:1"):
        for more in ({}, {"executionRoleArn": "fetcher"}, {"executionRoleArn": "no-such-role"}):
            assert all(f"ssm:GetParameters on resource: {parameter} " in text for text in register(given, **more)), (given, more)
    read = policy(allow("ssm:GetParameters", parameter))
    iam.put_role_policy(RoleName="fetcher", PolicyName="read", PolicyDocument=read)
    assert register("/ours/token", executionRoleArn="fetcher") == [""] * 3
    iam.put_role_policy(RoleName=role.name, PolicyName="read", PolicyDocument=read)
    assert register("/ours/token") == [""] * 3
    managed = corral.client("secretsmanager").create_secret(Name="ours/managed", SecretString='{"a": "b"}')["ARN"]
    as_parameter = "/aws/reference/secretsmanager/ours/managed"
    for given in (managed, managed[:-7], f"{managed}:a::", f"{managed}:a:AWSPREVIOUS:", as_parameter):
        for more in ({}, {"executionRoleArn": "fetcher"}):
            allowed = allow("ssm:*" if given == as_parameter else "ecs:RunTask")
            iam.put_role_policy(RoleName=role.name, PolicyName="read", PolicyDocument=policy(allowed))
            refused_texts = register(given, **more)
            assert all(f"secretsmanager:GetSecretValue on resource: {managed} " in text for text in refused_texts), refused_texts
    iam.put_role_policy(
        RoleName="fetcher", PolicyName="read", PolicyDocument=policy(allow("secretsmanager:GetSecretValue", managed[:-6] + "*"))
    )
    assert register(f"{managed}:a::", executionRoleArn="fetcher") == [""] * 3


def test_secrets_need_a_permission(corral: Corral, role: Any) -> None:
    root = corral.client("secretsmanager")
    arns = {name: root.create_secret(Name=name, SecretString="x")["ARN"] for name in ("inside/a", "inside/b")}
    inside = role(
        allow(["secretsmanager:GetSecretValue", "secretsmanager:CreateSecret"], "arn:aws:secretsmanager:*:*:secret:inside/a-*"),
        allow(["secretsmanager:BatchGetSecretValue", "ssm:GetParameter"]),
    )
    for name in ("inside/a", arns["inside/a"], arns["inside/a"][:-7]):
        assert inside.secretsmanager.get_secret_value(SecretId=name)["SecretString"] == "x"
    code, text, _ = refused(inside.secretsmanager.get_secret_value, SecretId="inside/b")
    assert code == "AccessDeniedException" and f"secretsmanager:GetSecretValue on resource: {arns['inside/b']}" in text
    assert refused(inside.secretsmanager.get_secret_value, SecretId="inside/none")[0] == "AccessDeniedException"
    assert refused(inside.secretsmanager.create_secret, Name="inside/c")[0] == "AccessDeniedException"
    assert refused(inside.secretsmanager.create_secret, Name="inside/a")[0] == "ResourceExistsException"
    batch = inside.secretsmanager.batch_get_secret_value(SecretIdList=list(arns))
    assert [each["Name"] for each in batch["SecretValues"]] == ["inside/a"]
    assert [(each["SecretId"], each["ErrorCode"]) for each in batch["Errors"]] == [("inside/b", "AccessDeniedException")]
    reference = "/aws/reference/secretsmanager/inside/{}"
    assert inside.ssm.get_parameter(Name=reference.format("a"), WithDecryption=True)["Parameter"]["Value"] == "x"
    assert arns["inside/b"] in refused(inside.ssm.get_parameter, Name=reference.format("b"), WithDecryption=True)[1]


def test_roles_must_be_passed(corral: Corral, role: Any) -> None:
    corral.client("iam").create_role(RoleName="admin", Path="/strong/", AssumeRolePolicyDocument=policy(TRUST_TASKS))
    inside = role(allow("ecs:*"), allow("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/weak/*"))
    plain = [{"name": "main", "image": "busybox", "memory": 64, "command": ["true"]}]
    for given in ("admin", f"arn:aws:iam::{ACCOUNT}:role/strong/admin", f"arn:aws:iam::{ACCOUNT}:role/weak/admin"):
        code, text, _ = refused(inside.ecs.register_task_definition, family="p", containerDefinitions=plain, taskRoleArn=given)
        assert code == "AccessDeniedException" and f"iam:PassRole on resource: arn:aws:iam::{ACCOUNT}:role/strong/admin" in text
    inside.ecs.register_task_definition(family="p", containerDefinitions=plain)
    overrides = {"taskRoleArn": f"arn:aws:iam::{ACCOUNT}:role/strong/admin"}
    assert "iam:PassRole" in refused(inside.ecs.run_task, taskDefinition="p", overrides=overrides)[1]


def test_the_cluster_and_the_definition_that_a_policy_names(corral: Corral, role: Any, task_id: str) -> None:
    """The resource is what the handler finds, not what an ARN in the request says."""
    corral.client("ecs").create_cluster(clusterName="theirs")
    inside = role(
        allow("ecs:DescribeTasks", "arn:aws:ecs:*:*:task/theirs/*"),
        allow("ecs:ListTasks", Condition={"ArnEquals": {"ecs:cluster": f"arn:aws:ecs:us-east-1:{ACCOUNT}:cluster/theirs"}}),
    )
    assert inside.ecs.list_tasks(cluster="theirs")["taskArns"] == []
    assert refused(inside.ecs.list_tasks)[0] == "AccessDeniedException"
    assert inside.ecs.describe_tasks(cluster="theirs", tasks=[task_id])["failures"]
    spoofed = f"arn:aws:ecs:us-east-1:{ACCOUNT}:task/theirs/{task_id}"
    assert refused(inside.ecs.describe_tasks, cluster="default", tasks=[spoofed])[0] == "AccessDeniedException"


def test_no_spelling_of_a_parameter_evades_a_policy(corral: Corral, role: Any) -> None:
    root = corral.client("ssm")
    for name in ("/hidden/one", "/hidden-two", "hidden-three"):
        root.put_parameter(Name=name, Value="secret", Type="String")
    here = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter"
    ssm = role(allow("ssm:GetParameter"), deny("ssm:GetParameter", f"{here}/hidden*")).ssm
    for name in ("/hidden/one", "/hidden-two", "/hidden-three"):
        for arn in (f"{here}{name}", f"{here}{name}:1", f"arn:aws-cn:ssm:{REGION}:{ACCOUNT}:parameter{name}"):
            assert f"{here}{name}" in refused(ssm.get_parameter, Name=arn)[1]
        assert refused(ssm.get_parameter, Name=f"{here}/{name}")[0] == "ParameterNotFound"
        assert refused(ssm.get_parameter, Name=f"arn:aws:ssm:{REGION}::parameter{name}")[0] == "AccessDeniedException"


def spellings(arn: str) -> set[str]:
    """Other texts that a careless look-up could accept for this ARN."""
    _, _, service, region, account, resource = arn.split(":", 5)
    start = f"arn:aws:{service}:{region}:{account}:"
    name = resource.rpartition("/")[2].rpartition(":")[2]
    return {
        f"arn:aws-cn:{service}:{region}:{account}:{resource}",
        f"arn:aws:{service}:eu-west-1:{account}:{resource}",
        f"arn:aws:{service}::{account}:{resource}",
        f"arn:aws:{service}:{region}:999999999999:{resource}",
        f"arn:aws:{service}:{region}::{resource}",
        f"{start}{arn}",
        f"{start}{resource.removesuffix(name)}{arn}",
        f"{start}{resource.removesuffix(name)}x/{name}",
        f"{start}{resource.removesuffix(name)}x:{name}",
        *(f"{start}{each}" for each in (f"{resource}/", f"{resource}:*", f"{resource}:x", f"/{resource}", resource.upper(), name)),
        arn.upper(),
        resource,
        name,
    } - {arn}


TAG = [{"Key": "a", "Value": "b"}]
TAGGED: dict[str, tuple[Any, str, str, dict[str, Any]]] = {
    # service → a function that creates a resource and returns its ARN, an operation, its parameter for the ARN, other parameters
    "batch": (
        lambda batch: batch.create_scheduling_policy(name="probed")["arn"],
        "tag_resource", "resourceArn", {"tags": {"a": "b"}},
    ),
    "cloudwatch": (
        lambda cloudwatch: cloudwatch.put_dashboard(DashboardName="probed", DashboardBody='{"widgets": []}')
        and f"arn:aws:cloudwatch::{ACCOUNT}:dashboard/probed",
        "tag_resource", "ResourceARN", {"Tags": TAG},
    ),
    "ecr": (
        lambda ecr: ecr.create_repository(repositoryName="probed")["repository"]["repositoryArn"],
        "tag_resource", "resourceArn", {"tags": TAG},
    ),
    "ecs": (
        lambda ecs: ecs.create_cluster(clusterName="probed")["cluster"]["clusterArn"],
        "tag_resource", "resourceArn", {"tags": [{"key": "a", "value": "b"}]},
    ),
    "iam": (
        lambda iam: iam.create_policy(PolicyName="probed", Path="/p/", PolicyDocument=policy(allow("*")))["Policy"]["Arn"],
        "tag_policy", "PolicyArn", {"Tags": TAG},
    ),
    "logs": (
        lambda logs: logs.create_log_group(logGroupName="probed") and f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:probed",
        "tag_resource", "resourceArn", {"tags": {"a": "b"}},
    ),
    "sns": (lambda sns: sns.create_topic(Name="probed")["TopicArn"], "tag_resource", "ResourceArn", {"Tags": TAG}),
}  # fmt: skip


@pytest.mark.parametrize("service", TAGGED)
def test_no_spelling_of_an_arn_evades_a_policy(corral: Corral, role: Any, service: str) -> None:
    create, operation, member, params = TAGGED[service]
    arn = create(corral.client(service))
    call = getattr(role(allow("*"), deny("*", arn)).client(service, parameter_validation=False), operation)
    assert refused(call, **{member: arn}, **params)[0].startswith(("AccessDenied", "AuthorizationError"))
    for spelling in spellings(arn):
        refused(call, **{member: spelling}, **params)


def test_no_spelling_of_a_queue_url_evades_a_policy(corral: Corral, role: Any) -> None:
    url = corral.client("sqs").create_queue(QueueName="probed")["QueueUrl"]
    sqs = role(allow("*"), deny("*", f"arn:aws:sqs:{REGION}:{ACCOUNT}:probed")).sqs
    for start in ("", "x", "http://elsewhere", corral.url):
        for end in ("", "/", "//", "?x", "#", "%20", ".fifo"):
            refused(sqs.tag_queue, QueueUrl=f"{start}/{ACCOUNT}/probed{end}", Tags={"a": "b"})
    assert "Tags" not in corral.client("sqs").list_queue_tags(QueueUrl=url)


def test_the_queues_of_a_message_move_task(corral: Corral, role: Any) -> None:
    """The resources are the queues that the handler finds, not what an ARN or a handle in the request says."""
    sqs, arns = corral.client("sqs"), {name: f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}" for name in ("grave", "secret")}
    for name, arn in arns.items():
        sqs.create_queue(QueueName=name)
        redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
        sqs.create_queue(QueueName=f"{name}-source", Attributes={"RedrivePolicy": redrive})
    inside = role(allow("sqs:*"), deny("sqs:*", arns["secret"]))
    for spelling in (arns["secret"], arns["secret"].replace("arn:aws:", "arn:aws-cn:")):
        move = {"SourceArn": arns["grave"], "DestinationArn": spelling}
        assert arns["secret"] in refused(inside.sqs.start_message_move_task, **move)[1]
        assert arns["secret"] in refused(inside.sqs.list_message_move_tasks, SourceArn=spelling)[1]
    handle = sqs.start_message_move_task(SourceArn=arns["secret"])["TaskHandle"]
    assert arns["secret"] in refused(inside.sqs.cancel_message_move_task, TaskHandle=handle)[1]
    forged = json.dumps(json.loads(b64decode(handle, b"-_")) | {"sourceArn": arns["grave"]}).encode()
    assert refused(inside.sqs.cancel_message_move_task, TaskHandle=b64encode(forged).decode())[0].startswith("AccessDenied")
    assert refused(sqs.cancel_message_move_task, TaskHandle=b64encode(forged).decode())[0] == "ResourceNotFoundException"


def test_a_session_of_another_role_is_confined_by_that_role(corral: Corral, role: Any, task_id: str) -> None:
    iam = corral.client("iam")
    inside = role(allow("sts:AssumeRole", f"arn:aws:iam::{ACCOUNT}:role/team/*"))
    me = f"arn:aws:iam::{ACCOUNT}:role/{role.name}"
    trust = {"Effect": "Allow", "Principal": {"AWS": me}, "Action": "sts:AssumeRole",
             "Condition": {"StringEquals": {"sts:ExternalId": "us"}}}  # fmt: skip
    iam.create_role(RoleName="other", Path="/team/", AssumeRolePolicyDocument=policy(trust))
    of_account = {**trust, "Principal": {"AWS": ACCOUNT}}  # then a policy of the caller must allow it, too
    iam.create_role(RoleName="chief", AssumeRolePolicyDocument=policy(of_account))
    iam.put_role_policy(RoleName="other", PolicyName="p", PolicyDocument=policy(allow("ssm:DescribeParameters")))
    given = {"RoleArn": f"arn:aws:iam::{ACCOUNT}:role/team/other", "RoleSessionName": "me"}
    assert refused(inside.sts.assume_role, **given)[0] == "AccessDenied"  # the trust policy wants the external id
    tagged = refused(inside.sts.assume_role, **given, ExternalId="us", Tags=[{"Key": "team", "Value": "blue"}])
    assert tagged[0] == "AccessDenied" and "sts:TagSession" in tagged[1]
    made = inside.sts.assume_role(**given, ExternalId="us")["Credentials"]
    session = Inside(corral, "unused", task_id)
    session.use(corral, made["AccessKeyId"], made["SecretAccessKey"], made["SessionToken"])
    assert session.sts.get_caller_identity()["Arn"].endswith("assumed-role/other/me")
    assert "Parameters" in session.ssm.describe_parameters()
    assert refused(inside.ssm.describe_parameters)[0] == "AccessDeniedException"
    assert refused(session.ecs.list_clusters)[0] == "AccessDeniedException"
    assert refused(session.sts.assume_role, **given, ExternalId="us")[0] == "AccessDenied"
    for arn in (f"arn:aws:iam::{ACCOUNT}:role/chief", f"arn:aws:iam::{ACCOUNT}:role/team/chief"):
        assert "role/chief" in refused(inside.sts.assume_role, RoleArn=arn, RoleSessionName="me", ExternalId="us")[1]
    missing = f"arn:aws:iam::{ACCOUNT}:role/team/missing"
    assert refused(inside.sts.assume_role, RoleArn=missing, RoleSessionName="me", ExternalId="us")[0] == "AccessDenied"


def test_conditions_and_variables(corral: Corral, role: Any, bucket: str) -> None:
    inside = role(
        allow("ssm:DescribeParameters", Condition={"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}),
        allow("iam:ListRoles", Condition={"StringEquals": {"aws:RequestedRegion": "eu-west-1"}}),
        allow("sqs:CreateQueue", "arn:aws:sqs:*:*:${aws:PrincipalTag/team}-*"),
        allow("ecs:ListClusters", Condition={"DateLessThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"}}),
        deny("s3:ListBucket", Condition={"StringLike": {"s3:prefix": "secret/*"}}),
        Tags=[{"Key": "team", "Value": "blue"}],
    )
    assert "Parameters" in inside.ssm.describe_parameters()
    assert refused(inside.iam.list_roles)[0] == "AccessDenied"
    inside.sqs.create_queue(QueueName="blue-1")
    assert refused(inside.sqs.create_queue, QueueName="red-1")[0].startswith("AccessDenied")
    assert refused(inside.ecs.list_clusters)[0] == "AccessDeniedException"
    assert inside.s3.list_objects_v2(Bucket=bucket, Prefix="open/")["KeyCount"] >= 0
    assert refused(inside.s3.list_objects_v2, Bucket=bucket, Prefix="secret/one")[0] == "AccessDenied"


def test_a_permissions_boundary_limits_the_policies(corral: Corral, role: Any) -> None:
    inside = role(allow("*"), PermissionsBoundary="arn:aws:iam::aws:policy/AmazonSQSFullAccess")
    inside.sqs.create_queue(QueueName="bounded")
    assert "because no permissions boundary allows the ecs:ListClusters action" in refused(inside.ecs.list_clusters)[1]


def test_a_registry_password_has_the_permissions_of_its_task(corral: Corral, role: Any) -> None:
    for name in ("mine", "theirs"):
        corral.client("ecr").create_repository(repositoryName=name)
    mine = f"arn:aws:ecr:us-east-1:{ACCOUNT}:repository/mine"
    inside = role(allow("ecr:GetAuthorizationToken"), allow(["ecr:BatchGetImage", "ecr:ListImages"], mine))
    token = inside.ecr.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    assert b64decode(token).startswith(b"AWS:")

    def status(path: str, method: str = "GET") -> int:
        request = urllib.request.Request(f"{corral.url}/v2/{path}", headers={"Authorization": f"Basic {token}"}, method=method)
        try:
            return int(urllib.request.urlopen(request).status)
        except urllib.error.HTTPError as error:
            return int(error.code)

    assert status("") == 200 and status("mine/tags/list") == 200
    assert status("theirs/tags/list") == 403 and status("mine/blobs/uploads/", "POST") == 403


def test_credentials_of_process_tasks_are_not_confined(corral: Corral) -> None:
    """They can read the root key anyway."""
    ecs = corral.client("ecs")
    program = "import boto3; print(len(boto3.client('iam').list_roles()['Roles']) >= 0)"
    ecs.register_task_definition(family="process", containerDefinitions=[container([sys.executable, "-c", program])])
    arn = ecs.run_task(taskDefinition="process")["tasks"][0]["taskArn"]
    task = eventually(
        lambda: (found := ecs.describe_tasks(tasks=[arn])["tasks"][0])["lastStatus"] == "STOPPED" and found, "stopped"
    )
    assert task["containers"][0]["exitCode"] == 0


def test_documents_of_aws_policies(corral: Corral) -> None:
    iam = corral.client("iam")
    arn = "arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
    found = iam.get_policy(PolicyArn=arn)["Policy"]
    version = iam.get_policy_version(PolicyArn=arn, VersionId=found["DefaultVersionId"])["PolicyVersion"]
    assert "ecr:GetAuthorizationToken" in version["Document"]["Statement"][0]["Action"] and version["IsDefaultVersion"]
    assert [each["VersionId"] for each in iam.list_policy_versions(PolicyArn=arn)["Versions"]] == [found["DefaultVersionId"]]
    assert refused(iam.get_policy_version, PolicyArn=arn, VersionId="v999")[0] == "NoSuchEntity"


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*"}]}, "resources"),
        ({"Version": "2012-10-17", "Statement": [{**TRUST_TASKS, "Resource": "*"}]}, "principal"),
        ({"Version": "2012-10-17", "Statement": [{"Effect": "Maybe", "Action": "*", "Resource": "*"}]}, "Syntax errors"),
        ({"Version": "2012-10-17", "Statement": [allow("*", Condition={"Nearly": {"aws:SourceIp": "1"}})]}, "Syntax errors"),
    ],
)
def test_policies_that_could_not_be_enforced_are_refused(corral: Corral, document: dict[str, Any], word: str) -> None:
    code, text, _ = refused(corral.client("iam").create_policy, PolicyName="bad", PolicyDocument=json.dumps(document))
    assert code == "MalformedPolicyDocument" and word in text


def test_the_file_of_aws_policies_is_readable() -> None:
    """Every document is a policy that can be evaluated."""
    lines = gzip.decompress(Path(aws_policies._FILE).read_bytes()).splitlines()
    assert {"source", "generated"} <= json.loads(lines[0]).keys() and len(lines) > 500
    for line in lines[1:]:
        check_identity_policy(read_policy.__wrapped__(json.dumps(json.loads(line)[4])))


def test_a_stack_has_the_permissions_of_its_creator(corral: Corral, role: Any) -> None:
    template = "Resources: {{Q: {{Type: AWS::SQS::Queue, Properties: {{QueueName: {}}}}}}}"
    stacks = f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/mine-*/*"
    inside = role(allow("cloudformation:*", stacks), allow("sqs:*", f"arn:aws:sqs:{REGION}:{ACCOUNT}:mine-*"))
    cloudformation = inside.cloudformation
    with pytest.raises(ClientError, match=r"not authorized to perform: cloudformation:CreateStack on resource: .*:stack/other/"):
        cloudformation.create_stack(StackName="other", TemplateBody=template.format("mine-1"))
    corral.client("s3").create_bucket(Bucket="guarded")
    corral.client("s3").put_object(Bucket="guarded", Key="t", Body=template.format("mine-1"))
    with pytest.raises(ClientError, match="not authorized to perform: s3:GetObject on resource: arn:aws:s3:::guarded/t"):
        cloudformation.create_stack(StackName="mine-url", TemplateURL=f"{corral.url}/guarded/t")
    for name, status in (("mine-1", "CREATE_COMPLETE"), ("theirs", "ROLLBACK_COMPLETE")):
        stack = cloudformation.create_stack(StackName=f"mine-{status[:3]}", TemplateBody=template.format(name))["StackId"]

        def found(stack: str = stack) -> str:
            return str(cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"])

        eventually(lambda: not found().endswith("_IN_PROGRESS"), "the operation ends")
        assert found() == status
    events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
    reasons = [each.get("ResourceStatusReason", "") for each in events]
    assert any("is not authorized to perform: sqs:CreateQueue" in reason for reason in reasons)


def test_the_stack_of_a_physical_resource(corral: Corral, role: Any) -> None:
    root = corral.client("cloudformation")
    template = "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: of-a-stack}}}"
    stack = root.create_stack(StackName="with-a-queue", TemplateBody=template)["StackId"]
    root.get_waiter("stack_create_complete").wait(StackName=stack, WaiterConfig={"Delay": 1})
    [queue] = root.describe_stack_resources(StackName=stack)["StackResources"]
    named = {"PhysicalResourceId": queue["PhysicalResourceId"]}
    inside = role(allow("cloudformation:*"), deny("cloudformation:DescribeStackResources", stack)).cloudformation
    assert stack in refused(inside.describe_stack_resources, **named)[1]
    allowed = policy(allow("cloudformation:DescribeStackResources", stack))
    corral.client("iam").put_role_policy(RoleName=role.name, PolicyName="own", PolicyDocument=allowed)
    assert inside.describe_stack_resources(**named)["StackResources"]


@pytest.mark.parametrize("version", [False, True])
def test_a_nested_template_needs_permissions(corral: Corral, role: Any, version: bool) -> None:
    s3, bucket = corral.client("s3"), f"nested-{version}".lower()
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    made = s3.put_object(Bucket=bucket, Key="t", Body="Resources: {T: {Type: AWS::SNS::Topic}}")
    action = "s3:GetObjectVersion" if version else "s3:GetObject"
    cloudformation = role(allow("cloudformation:*"), deny(action, f"arn:aws:s3:::{bucket}/t")).cloudformation
    url = f"{corral.url}/{bucket}/t" + (f"?versionId={made['VersionId']}" if version else "")
    template = f"Resources: {{Child: {{Type: AWS::CloudFormation::Stack, Properties: {{TemplateURL: '{url}'}}}}}}"
    stack = cloudformation.create_stack(StackName=bucket, TemplateBody=template)["StackId"]

    def ended() -> bool:
        return not cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"].endswith("_IN_PROGRESS")

    eventually(ended, "the operation ends")
    events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
    reasons = [each.get("ResourceStatusReason", "") for each in events]
    assert any(f"is not authorized to perform: {action} on resource: arn:aws:s3:::{bucket}/t" in reason for reason in reasons)
