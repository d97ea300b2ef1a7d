"""Values that match the model or do not, and the errors for those that do not."""

from __future__ import annotations

import json
from email.utils import formatdate
from typing import Any

import pytest

from corral.aws import NESTING_MAX, Request, recognise
from corral.aws.timestamps import EPOCH_MAX_S, EPOCH_MIN_S
from corral.core.errors import ApiError
from corral.model.http_dates import http_date, parse_http_date
from wire.oracle import model_of, sent_by_botocore

FORM = {"content-type": "application/x-www-form-urlencoded"}


def json_call(service: str, operation: str, body: Any) -> Any:
    target = f"{model_of(service).metadata['targetPrefix']}.{operation}"
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return recognise(Request("POST", "/", "", {"x-amz-target": target}, raw))


def refused(call: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call.params()
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "service, operation, body, code, where",
    [
        ("ecs", "RunTask", {}, "InvalidParameterException", "taskDefinition"),
        ("ecs", "RunTask", {"taskDefinition": None}, "InvalidParameterException", "taskDefinition"),
        ("logs", "CreateLogGroup", {}, "InvalidParameterException", "logGroupName"),
        ("ecr", "CreateRepository", {}, "InvalidParameterException", "repositoryName"),
        ("ssm", "GetParameter", {}, "ValidationException", "name"),
        ("application-autoscaling", "DescribeScalingPolicies", {}, "ValidationException", "serviceNamespace"),
        ("cloudwatch", "DeleteAlarms", {}, "ValidationException", "alarmNames"),
    ],
)
def test_a_missing_member_is_the_services_own_error(service: str, operation: str, body: Any, code: str, where: str) -> None:
    error = refused(json_call(service, operation, body))
    assert error.code == code
    assert error.message == (
        f"1 validation error detected: Value null at '{where}' failed to satisfy constraint: Member must not be null"
    )


def test_missing_members_elsewhere() -> None:
    error = refused(json_call("sqs", "SendMessage", {"QueueUrl": "u"}))
    assert (error.code, error.message) == ("MissingParameter", "The request must contain the parameter MessageBody.")
    error = refused(recognise(sent_by_botocore("batch", "rest-json", "SubmitJob", {"jobName": "x"})))
    assert error.code == "ClientException"
    assert "2 validation errors detected: Value null at 'jobQueue'" in error.message
    for service, operation in (("autoscaling", "SetDesiredCapacity"), ("iam", "CreateRole"), ("sts", "AssumeRole")):
        assert refused(recognise(sent_by_botocore(service, "query", operation, {}))).code == "ValidationError"
    error = refused(recognise(sent_by_botocore("cloudwatch", "query", "DeleteAlarms", {})))
    assert error.code == "ValidationException"  # the model names it ValidationError in the query protocol


def test_the_path_to_a_missing_member_is_given() -> None:
    body = {"family": "f", "containerDefinitions": [{"name": "a"}, {"secrets": [{"name": "x"}]}]}
    error = refused(json_call("ecs", "RegisterTaskDefinition", body))
    assert "Value null at 'containerDefinitions.2.member.secrets.1.member.valueFrom'" in error.message
    error = refused(json_call("ecs", "DescribeTasks", {"tasks": ["a", None]}))
    assert "Value null at 'tasks.2.member'" in error.message


@pytest.mark.parametrize(
    "operation, body",
    [
        ("RunTask", {"taskDefinition": 1}),
        ("RunTask", {"taskDefinition": True}),
        ("RunTask", {"taskDefinition": ["x"]}),
        ("RunTask", {"taskDefinition": "x", "count": "1"}),
        ("RunTask", {"taskDefinition": "x", "count": 1.0}),
        ("RunTask", {"taskDefinition": "x", "count": True}),
        ("RunTask", {"taskDefinition": "x", "count": 2**31}),
        ("RunTask", {"taskDefinition": "x", "count": -(2**31) - 1}),
        ("RunTask", {"taskDefinition": "x", "count": 10**40}),
        ("RunTask", {"taskDefinition": "x", "enableECSManagedTags": "true"}),
        ("RunTask", {"taskDefinition": "x", "enableECSManagedTags": 1}),
        ("RunTask", {"taskDefinition": "x", "overrides": "x"}),
        ("RunTask", {"taskDefinition": "x", "overrides": []}),
        ("RunTask", {"taskDefinition": "x", "tags": {}}),
        ("DescribeTasks", {"tasks": "x"}),
        ("DescribeTasks", {"tasks": [1]}),
        ("RegisterTaskDefinition", {"family": "x", "containerDefinitions": [{"dockerLabels": ["a"]}]}),
        ("RegisterTaskDefinition", {"family": "x", "containerDefinitions": [{"dockerLabels": {"a": 1}}]}),
        ("UpdateTaskProtection", []),
        ("UpdateTaskProtection", "x"),
        ("UpdateTaskProtection", None),
    ],
)
def test_a_wrong_type_is_a_serialization_exception(operation: str, body: Any) -> None:
    assert refused(json_call("ecs", operation, body)).code == "SerializationException"


def test_a_wrong_type_says_where() -> None:
    error = refused(json_call("ecs", "RunTask", {"overrides": {"containerOverrides": [{"command": ["a", 1]}]}}))
    assert "NUMBER_VALUE can not be converted to a String" in error.message
    assert "overrides.containerOverrides.1.member.command.2.member" in error.message


def test_unknown_members_and_nulls_are_ignored() -> None:
    body = {"taskDefinition": "x", "cluster": None, "later": {"a": [1]}, "overrides": {"containerOverrides": None}}
    assert json_call("ecs", "RunTask", body).params() == {"taskDefinition": "x", "overrides": {}}
    assert json_call("ecs", "ListClusters", b"").params() == {}


def test_json_timestamps_and_blobs() -> None:
    body = {"StateValue": "OK", "AlarmName": "a", "StartDate": 1700000000.25, "EndDate": 1700000001}
    assert json_call("cloudwatch", "DescribeAlarmHistory", body).params() == {
        "AlarmName": "a",
        "StartDate": 1700000000.25,
        "EndDate": 1700000001.0,
    }
    for wrong in (True, "2026-01-01T00:00:00Z", "1700000000", 1e300, -1e300, [], {}):
        error = refused(json_call("cloudwatch", "DescribeAlarmHistory", {"StartDate": wrong}))
        assert error.code == "SerializationException"
    entry = {"DataType": "Binary", "BinaryValue": "AAH/"}
    call = json_call("sqs", "SendMessage", {"QueueUrl": "u", "MessageBody": "b", "MessageAttributes": {"a": entry}})
    assert call.params()["MessageAttributes"]["a"]["BinaryValue"] == b"\x00\x01\xff"
    for wrong in ("A", "AAH", "A A=", "é", 1, "AAH_"):
        entry = {"DataType": "Binary", "BinaryValue": wrong}
        body = {"QueueUrl": "u", "MessageBody": "b", "MessageAttributes": {"a": entry}}
        assert refused(json_call("sqs", "SendMessage", body)).code == "SerializationException"


@pytest.mark.parametrize(
    "given, read",
    [
        ("2026-01-02T03:04:05Z", 1767323045.0),
        ("2026-01-02T03:04:05.250Z", 1767323045.25),
        ("2026-01-02T05:04:05+02:00", 1767323045.0),
        ("2026-01-02T03:04:05", 1767323045.0),
        ("2026-01-02", 1767312000.0),
    ],
)
def test_form_timestamps(given: str, read: float) -> None:
    body = f"Action=DescribeAlarmHistory&Version=2010-08-01&StartDate={given.replace('+', '%2B')}"
    assert recognise(Request("POST", "/", "", FORM, body.encode())).params() == {"StartDate": read}


def test_http_dates() -> None:
    for seconds in (int(EPOCH_MIN_S), -1, 0, *range(1767312000, 1767312000 + 366 * 86_400, 97_531), int(EPOCH_MAX_S)):
        assert http_date(seconds) == formatdate(seconds, usegmt=True)
        if seconds >= 0:  # a year with two digits at the beginning is ambiguous
            assert parse_http_date(http_date(seconds)).timestamp() == seconds


@pytest.mark.parametrize(
    "parameter",
    [
        "MaxRecords=ten",
        "MaxRecords=1_0",
        "MaxRecords=1.0",
        "MaxRecords=",
        "MaxRecords=%D9%A1",
        "MaxRecords=2147483648",
        "MaxRecords=" + "9" * 5000,
        "StartDate=yesterday",
        "StartDate=99999999999999999999",
        "StartDate=2026-13-01T00:00:00Z",
        "MaxRecords.member.1=1",
        "AlarmTypes=x",
        "AlarmTypes.member.x=1",
        "AlarmTypes.member.-1=1",
        "AlarmTypes.member.1.x=1",
        "AlarmTypes.member." + "9" * 5000 + "=1",
    ],
)
def test_a_form_with_wrong_values_is_refused(parameter: str) -> None:
    body = f"Action=DescribeAlarmHistory&Version=2010-08-01&{parameter}"
    assert refused(recognise(Request("POST", "/", "", FORM, body.encode()))).code == "MalformedInput"


def test_form_lists_are_in_the_order_of_their_indices() -> None:
    body = b"Action=DeleteAlarms&Version=2010-08-01&AlarmNames.member.10=c&AlarmNames.member.2=b&AlarmNames.member.1=a"
    assert recognise(Request("POST", "/", "", FORM, body)).params() == {"AlarmNames": ["a", "b", "c"]}


def test_depth_is_bounded_where_a_shape_contains_itself() -> None:
    """Other shapes limit the depth themselves, and unknown members are skipped."""

    def nested(depth: int) -> bytes:
        attribute: Any = {"S": "x"}
        for _ in range(depth):
            attribute = {"L": [attribute]}
        return json.dumps({"TableName": "t", "Item": {"a": attribute}}).encode()

    assert json_call("dynamodb", "PutItem", nested(NESTING_MAX // 2 - 3)).params()["TableName"] == "t"
    for depth in (NESTING_MAX, 300, 500, 5000):
        assert refused(json_call("dynamodb", "PutItem", _deep(depth))).code == "SerializationException"


def _deep(depth: int) -> bytes:
    return b'{"TableName":"t","Item":{"a":' + b'{"L":[' * depth + b'{"S":"x"}' + b"]}" * depth + b"}}"
