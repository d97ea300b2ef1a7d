"""What is recorded of calls: every served operation has a kind, and no secret is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from corral.aws.catalogue import SERVICE_BY_NAME
from corral.aws.models import service_model
from corral.aws.shapes import Shape
from corral.operations.services import SERVICES
from corral.server.audit.rules import HIDDEN, CallKind, identifiers, kind_of, without_secrets
from each import check_each

SECRET = "a-secret"
VARIABLES = [{"name": "A", "value": SECRET}]
CONTAINER = {"name": "main", "environment": VARIABLES, "command": ["sleep", "1"]}
SECRET_PARAMETERS: dict[tuple[str, str], dict[str, Any]] = {
    ("batch", "RegisterJobDefinition"): {"containerProperties": {"image": "x", "environment": VARIABLES}},
    ("batch", "SubmitJob"): {"containerOverrides": {"environment": VARIABLES}},
    ("cloudformation", "CreateStack"): {
        "TemplateBody": SECRET, "Parameters": [{"ParameterKey": "Password", "ParameterValue": SECRET}],
    },
    ("ec2", "RunInstances"): {"UserData": SECRET},
    ("ec2", "CreateLaunchTemplate"): {"LaunchTemplateData": {"UserData": SECRET}},
    ("autoscaling", "CreateLaunchConfiguration"): {"UserData": SECRET},
    ("ecs", "RegisterTaskDefinition"): {"family": "f", "containerDefinitions": [CONTAINER]},
    ("ecs", "RunTask"): {"overrides": {"containerOverrides": [CONTAINER]}},
    ("lambda", "CreateFunction"): {"Code": {"ZipFile": SECRET.encode()}, "Environment": {"Variables": {"A": SECRET}}},
    ("secretsmanager", "CreateSecret"): {"Name": "n", "SecretString": SECRET},
    ("secretsmanager", "PutSecretValue"): {"SecretBinary": SECRET.encode()},
    ("sns", "Publish"): {"Message": SECRET},
    ("sqs", "SendMessage"): {"MessageBody": SECRET},
    ("ssm", "PutParameter"): {"Name": "n", "Value": SECRET},
}  # fmt: skip
KINDS = {
    "ecs:DescribeTasks": CallKind.READ, "ecs:RunTask": CallKind.MANAGEMENT, "ecs:SubmitTaskStateChange": CallKind.DATA,
    "s3:CreateBucket": CallKind.MANAGEMENT, "s3:PutObject": CallKind.DATA, "s3:GetObject": CallKind.DATA,
    "s3:PutObjectLockConfiguration": CallKind.MANAGEMENT, "s3:PutBucketPolicy": CallKind.MANAGEMENT,
    "s3:HeadBucket": CallKind.READ, "sqs:ReceiveMessage": CallKind.DATA, "sqs:PurgeQueue": CallKind.MANAGEMENT,
    "sts:AssumeRole": CallKind.MANAGEMENT, "sts:GetCallerIdentity": CallKind.READ, "logs:PutLogEvents": CallKind.DATA,
    "logs:PutRetentionPolicy": CallKind.MANAGEMENT, "iam:SimulateCustomPolicy": CallKind.READ, "lambda:Invoke": CallKind.DATA,
    "cloudwatch:PutMetricData": CallKind.DATA, "cloudwatch:PutMetricAlarm": CallKind.MANAGEMENT,
    "corral:SignalTask": CallKind.MANAGEMENT, "corral:ListRuns": CallKind.READ, "corral:PauseTask": CallKind.MANAGEMENT,
    "corral:DescribeTaskPause": CallKind.READ,
}  # fmt: skip
# The first words of the operations that change something. A new word is a decision: add it here, or to READS of the rules.
CHANGES = re.compile(
    "Abort|Accept|Add|Allocate|Assign|Associate|Assume|Attach|Authorize|Cancel|Change|Complete|Confirm|Continue|"
    "Copy|Create|Delete|Deregister|Detach|Disable|Disassociate|Drain|Enable|End|Enter|Execute|Exit|Forget|Import|"
    "Interrupt|Invoke|Label|Modify|Monitor|Pause|Post|Publish|Purge|Put|Reboot|Receive|Record|Register|Release|Remove|"
    "Rename|Replace|Reset|Restore|Resume|Revoke|Rollback|Rotate|Run|Send|Set|Signal|Start|Stop|Submit|Subscribe|"
    "Suspend|Tag|Terminate|Unlabel|Unmonitor|Unsubscribe|Untag|Update|Upgrade|Upload|Batch|Join"
)


def test_every_served_operation_has_a_kind() -> None:
    for service, served in SERVICES.items():
        for operation in served.operations:
            assert kind_of(service, operation) is not CallKind.MANAGEMENT or CHANGES.match(operation), (
                f"{service}:{operation}: does it change something?"
            )
    assert {name: kind_of(*name.split(":")) for name in KINDS} == KINDS


def test_secrets_are_not_recorded() -> None:
    def check(case: tuple[tuple[str, str], dict[str, Any]]) -> None:
        call, params = case
        recorded = orjson.dumps(without_secrets(*call)(params)).decode()
        assert SECRET not in recorded and HIDDEN in recorded, recorded

    check_each(list(SECRET_PARAMETERS.items()), check)
    found = without_secrets("ecs", "RunTask")({"overrides": {"containerOverrides": [CONTAINER]}, "count": 2})
    assert found["count"] == 2 and found["overrides"]["containerOverrides"][0]["command"] == ["sleep", "1"]


def test_no_member_that_a_model_marks_as_sensitive_is_recorded() -> None:
    """A value is made for each operation, with all members of its input."""
    marked = 0
    for service, served in SERVICES.items():
        model = service_model(service, SERVICE_BY_NAME[service].protocols[0])
        for operation in served.operations:
            shape = model.operation_model(operation).input_shape
            if shape is None:
                continue
            text = orjson.dumps(without_secrets(service, operation)(dict(_filled(shape, 0)))).decode()
            assert "sensitive" not in text, f"{service}:{operation}"
            marked += HIDDEN in text
    assert marked > 20


def _filled(shape: Shape, depth: int) -> Any:
    if shape.is_sensitive:
        return "sensitive"
    if shape.type_name == "structure":
        return dict(_members(shape, depth)) if depth < 5 else {}
    if shape.type_name == "list":
        return [_filled(shape.member, depth + 1)] if depth < 5 else []
    if shape.type_name == "map":
        return {"key": _filled(shape.value, depth + 1)} if depth < 5 else {}
    return "plain"


def _members(shape: Shape, depth: int) -> Iterator[tuple[str, Any]]:
    for name, member in shape.members.items():
        yield name, _filled(member, depth + 1)


def test_names_and_ids_of_results_are_recorded_and_secrets_are_not() -> None:
    made = {"AccessKey": {"UserName": "ann", "AccessKeyId": "AKIA", "SecretAccessKey": SECRET, "Status": "Active"}}
    assert identifiers("iam", "CreateAccessKey")(made) == {"AccessKey": {"UserName": "ann", "AccessKeyId": "AKIA"}}
    assert identifiers("sqs", "CreateQueue")({"QueueUrl": "http://q"}) == {"QueueUrl": "http://q"}
    started = {"tasks": [{"taskArn": "arn:t", "lastStatus": "PENDING", "containers": []}], "failures": []}
    assert identifiers("ecs", "RunTask")(started) == {"tasks": [{"taskArn": "arn:t"}]}
    session = {"session": {"sessionId": "s", "streamUrl": "ws://x", "tokenValue": SECRET}, "taskArn": "arn:t"}
    assert SECRET not in str(identifiers("ecs", "ExecuteCommand")(session))
    token = {"id": "abc", "token": SECRET, "address": "host:1", "uses": 1}
    assert identifiers("corral", "CreateJoinToken")(token) == {"id": "abc"}
