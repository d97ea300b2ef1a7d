"""A boto3 client raises every modelled error as `client.exceptions.<name>`."""

from __future__ import annotations

import ast
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from botocore import xform_name
from botocore.awsrequest import HeadersDict
from botocore.exceptions import ClientError
from botocore.parsers import create_parser

import corral
from corral.aws import Request, Response, WrongResult, not_served, recognise, serialize_refusal
from corral.aws.error_classes import ModelledError
from corral.aws.sqs_query_names import SQS_QUERY_CODES
from corral.core.errors import ApiError, InternalFailure, api_error
from each import check_each
from wire.generate import Generator
from wire.oracle import SERVED, client, comparable, model_of, protocols_of, seen, sent_by_botocore

SERVICES = Path(corral.__file__).with_name("services")
MESSAGE = 'it is not there: <x> & "y" — ünïcode'
# One operation of each service, for which the tests raise all errors.
OPERATION = {
    "corral": "GetStatus",
    "application-autoscaling": "DescribeScalableTargets",
    "autoscaling": "DescribeAutoScalingGroups",
    "batch": "DescribeJobQueues",
    "cloudformation": "DescribeStacks",
    "cloudwatch": "DescribeAlarms",
    "ec2": "DescribeVpcs",
    "ecr": "DescribeRepositories",
    "ecs": "DescribeClusters",
    "iam": "ListRoles",
    "logs": "DescribeLogGroups",
    "s3": "ListBuckets",
    "sqs": "ListQueues",
    "secretsmanager": "ListSecrets",
    "ssm": "DescribeParameters",
    "sts": "GetCallerIdentity",
}


def raised_by_boto3(service: str, error: ApiError) -> tuple[Any, ClientError]:
    """Return the client, and the exception that it raises for this error."""
    made = client(service, lambda request: recognise(request).serialize_error(error, "request-1"))
    with pytest.raises(ClientError) as caught:
        getattr(made, xform_name(OPERATION[service]))()
    assert caught.value.response["ResponseMetadata"]["RequestId"] == "request-1"
    return made, caught.value


@pytest.mark.parametrize("service", SERVED)
def test_boto3_raises_every_modelled_error(service: str) -> None:
    model = model_of(service)
    current: list[ApiError] = []
    made = client(service, lambda request: recognise(request).serialize_error(current[0], "request-1"))
    call = getattr(made, xform_name(OPERATION[service]))
    for shape in model.error_shapes:
        current[:] = [api_error(shape.name)(MESSAGE)]
        with pytest.raises(ClientError) as caught:
            call()
        # Two errors of cloudwatch have the same code, for which boto3 has only one class, as on AWS.
        assert type(caught.value) is made.exceptions.from_code(shape.error_code), shape.name
        assert type(caught.value).__name__ == shape.name or shape.name == "DashboardNotFoundError"
        assert caught.value.response["Error"]["Message"] == MESSAGE
        modelled = shape.metadata.get("error", {}).get("httpStatusCode")
        status = caught.value.response["ResponseMetadata"]["HTTPStatusCode"]
        assert status == (modelled or status), shape.name


def test_services_raise_errors_that_they_declare_or_that_the_model_has() -> None:
    """A module `errors.py` has every error of the model (`error_classes`). A wrong name would fail only when it is raised."""
    for path in SERVICES.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        for node in nodes:
            if not isinstance(node, ast.ImportFrom) or not node.module or not re.match(r"corral\.services\.\w+", node.module):
                continue
            names, module = [alias.name for alias in node.names], node.module
            if "errors" in names:
                module = f"{module}.errors"
                uses = [use for use in nodes if isinstance(use, ast.Attribute) and isinstance(use.value, ast.Name)]
                names = [use.attr for use in uses if isinstance(use.value, ast.Name) and use.value.id == "errors"]
            elif not module.endswith(".errors"):
                continue
            for found in (getattr(import_module(module), name) for name in names):
                if isinstance(found, type) and issubclass(found, ModelledError):
                    assert 400 <= found("x").status < 600, path


@pytest.mark.parametrize("service", SERVED)
def test_a_service_may_raise_by_code_or_by_name(service: str) -> None:
    for shape in model_of(service).error_shapes:
        if shape.name == "DashboardNotFoundError":  # its code is another error's name, which takes precedence
            continue
        request = sent_by_botocore(service, protocols_of(service)[0], OPERATION[service], {})
        call = recognise(request)
        assert call.serialize_error(api_error(shape.error_code)("x"), "r") == call.serialize_error(api_error(shape.name)("x"), "r")


@pytest.mark.parametrize("service", SERVED)
def test_the_members_of_an_error_are_read(service: str) -> None:
    check_each(protocols_of(service), partial(members_are_read, service))


def members_are_read(service: str, protocol: str) -> None:
    model = model_of(service, protocol)
    call = recognise(sent_by_botocore(service, protocol, OPERATION[service], {}))
    for shape in model.error_shapes:
        members = Generator(f"error {service} {shape.name}").value(shape)
        members = {name: value for name, value in members.items() if name.lower() != "message"}
        response = call.serialize_error(api_error(shape.name)(MESSAGE, **members), "request-1")
        raw = {"status_code": response.status, "headers": HeadersDict(response.headers), "body": response.body}
        read = create_parser(protocol).parse(raw, shape)
        read = {name: value for name, value in read.items() if name.lower() != "message"}
        assert comparable(read) == comparable(seen(shape, members, protocol)), shape.name


def test_sqs_errors_have_their_old_codes_too() -> None:
    made, error = raised_by_boto3("sqs", api_error("QueueDoesNotExist")("The specified queue does not exist."))
    assert isinstance(error, made.exceptions.QueueDoesNotExist)
    assert error.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert error.response["Error"]["Type"] == "Sender"


@pytest.mark.parametrize(
    "service, protocol, call, params, result, shape",
    [
        ("sqs", "json", "list_queues", {}, {"QueueUrls": ["http://x/0/q"]}, "QueueDoesNotExist"),
        ("sqs", "query", "list_queues", {}, {"QueueUrls": ["http://x/0/q"]}, "QueueDoesNotExist"),
        ("cloudwatch", "json", "describe_alarms", {}, {"MetricAlarms": [{"AlarmName": "a"}]}, "ResourceNotFoundException"),
        ("cloudwatch", "query", "describe_alarms", {}, {"MetricAlarms": [{"AlarmName": "a"}]}, "ResourceNotFoundException"),
        (
            "cloudwatch",
            "smithy-rpc-v2-cbor",
            "describe_alarms",
            {},
            {"MetricAlarms": [{"AlarmName": "a"}]},
            "ResourceNotFoundException",
        ),
    ],
)
def test_a_real_client_in_each_protocol_of_its_service(
    service: str, protocol: str, call: str, params: dict[str, Any], result: dict[str, Any], shape: str
) -> None:
    """Responses and errors, with a client whose model has only this protocol."""
    answers: list[Any] = [lambda found: found.serialize(result, "request-1")]
    answers.append(lambda found: found.serialize_error(api_error(shape)(MESSAGE), "request-2"))

    def answer(request: Request) -> Response:
        found = recognise(request)
        assert found.protocol == protocol
        return answers.pop(0)(found)

    made = client(service, answer, protocol)
    read = getattr(made, call)(**params)
    assert read["ResponseMetadata"]["RequestId"] == "request-1"
    assert {name: read[name] for name in result} == result
    with pytest.raises(ClientError) as caught:
        getattr(made, call)(**params)
    assert type(caught.value).__name__ == shape or protocol == "query"  # the current sqs model does not have the query codes
    assert caught.value.response["Error"]["Message"] == MESSAGE
    old = "AWS.SimpleQueueService.NonExistentQueue" if service == "sqs" else "ResourceNotFound"
    assert caught.value.response["Error"]["Code"] in (old, shape)


def test_every_old_code_of_sqs_belongs_to_an_error() -> None:
    assert set(SQS_QUERY_CODES) <= {shape.name for shape in model_of("sqs").error_shapes}


def test_sqs_answers_old_clients_in_xml_with_the_old_code() -> None:
    call = recognise(sent_by_botocore("sqs", "query", "ListQueues", {}))
    response = call.serialize_error(api_error("QueueDoesNotExist")("no"), "request-1")
    raw = {"status_code": response.status, "headers": HeadersDict(response.headers), "body": response.body}
    parsed = create_parser("query").parse(raw, None)
    assert parsed["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"


@pytest.mark.parametrize("service", SERVED)
def test_an_error_that_no_model_has(service: str) -> None:
    _, error = raised_by_boto3(service, api_error("SomethingElse", 418)(MESSAGE))
    assert (error.response["Error"]["Code"], error.response["Error"]["Message"]) == ("SomethingElse", MESSAGE)
    assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 418


@pytest.mark.parametrize("service", SERVED)
def test_our_own_failure_is_a_500(service: str) -> None:
    _, error = raised_by_boto3(service, InternalFailure("disk full"))
    assert error.response["Error"]["Code"] == "InternalFailure"
    assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 500


def test_a_fault_of_the_server_is_a_500_even_if_raised_carelessly() -> None:
    _, error = raised_by_boto3("ecs", api_error("ServerException")("oops"))
    assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 500


@pytest.mark.parametrize("service", SERVED)
def test_what_is_not_served_is_named(service: str) -> None:
    def answer(request: Request) -> Response:
        call = recognise(request)
        return call.serialize_error(not_served(call), "request-1")

    made = client(service, answer)
    with pytest.raises(ClientError, match=f"Corral does not serve {service}:{OPERATION[service]}") as caught:
        getattr(made, xform_name(OPERATION[service]))()
    by_protocol = {"query": "InvalidAction", "ec2": "InvalidAction", "rest-xml": "NotImplemented"}
    protocol = "query" if service in ("sqs", "cloudwatch") else model_of(service).resolved_protocol
    assert caught.value.response["Error"]["Code"] == by_protocol.get(protocol, "UnknownOperationException")


@pytest.mark.parametrize(
    "headers, body, kind",
    [
        ({"x-amz-target": "Unknown.Target"}, b"{}", "json"),
        ({"content-type": "application/x-amz-json-1.0"}, b"{}", "json"),
        ({"content-type": "application/x-www-form-urlencoded"}, b"Action=Dance&Version=1999-01-01", "query"),
        ({}, b"", "json"),
    ],
)
def test_an_error_before_recognition_is_readable(headers: dict[str, str], body: bytes, kind: str) -> None:
    request = Request("POST", "/", "", headers, body)
    with pytest.raises(ApiError) as caught:
        recognise(request)
    response = serialize_refusal(request, caught.value, "request-1")
    raw = {"status_code": response.status, "headers": HeadersDict(response.headers), "body": response.body}
    parsed = create_parser(kind).parse(raw, None)
    assert parsed["Error"]["Code"] == caught.value.code
    assert parsed["Error"]["Message"] == caught.value.message
    assert parsed["ResponseMetadata"]["RequestId"] == "request-1"


def test_a_result_that_the_model_does_not_have_is_a_bug() -> None:
    call = recognise(sent_by_botocore("ecs", "json", "DescribeTasks", {"tasks": ["x"]}))
    for wrong in (
        {"task": []},
        {"tasks": "x"},
        {"tasks": [{"lastStatus": 1}]},
        {"tasks": [{"version": "1"}]},
        {"tasks": [{"createdAt": "yesterday"}]},
        {"tasks": {}},
        {"tasks": [None]},
    ):
        with pytest.raises(WrongResult):
            call.serialize(wrong, "r")
    call = recognise(sent_by_botocore("autoscaling", "query", "DescribeAutoScalingGroups", {}))
    for wrong in ({"groups": []}, {"AutoScalingGroups": [{"MinSize": "1"}]}, {"AutoScalingGroups": [1]}):
        with pytest.raises(WrongResult):
            call.serialize(wrong, "r")
    call = recognise(sent_by_botocore("autoscaling", "query", "DeletePolicy", {"PolicyName": "x"}))
    with pytest.raises(WrongResult):
        call.serialize({"PolicyName": "x"}, "r")


def test_what_is_none_is_left_out() -> None:
    call = recognise(sent_by_botocore("ecs", "json", "DescribeTasks", {"tasks": ["x"]}))
    assert call.serialize({"tasks": [{"taskArn": "a", "group": None}], "failures": None}, "r").body == (
        b'{"tasks":[{"taskArn":"a"}]}'
    )
