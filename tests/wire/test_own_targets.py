"""With a target of Corral's own, services accept AWS JSON that have another protocol. Errors are those of the other protocol."""

from __future__ import annotations

import json
import time
from base64 import b64decode, b64encode
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import create_request_object

from corral.aws import Request, Response, catalogue, not_served, recognise, recognise_unless_form, serialize_refusal, verify
from corral.core.errors import ApiError, api_error
from each import check_each
from wire.generate import Generator
from wire.oracle import (
    CREDENTIALS,
    ENDPOINT,
    REGION,
    as_received,
    comparable,
    lookup,
    mapped,
    model_of,
    operations_of,
    protocols_of,
    read_by_botocore,
    sent_by_botocore,
)

SERVICES = [service.name for service in catalogue.SERVICE_BY_OWN_PREFIX.values()]
ONE_OF_EACH_PROTOCOL = (
    ("ec2", "DescribeInstances"), ("autoscaling", "DescribeAutoScalingGroups"), ("cloudformation", "DescribeStacks"),
    ("batch", "DescribeJobs"), ("batch", "ListTagsForResource"), ("lambda", "GetFunction"),
)  # fmt: skip


def in_json(service: str, operation: str, params: Any, *, signing_name: str | None = None) -> Request:
    """A signed request in AWS JSON."""
    headers = {"X-Amz-Target": f"Corral.{service}.{operation}", "Content-Type": "application/x-amz-json-1.1"}
    about = {"method": "POST", "url": ENDPOINT, "headers": headers, "body": json.dumps(params).encode(), "context": {}}
    request = create_request_object(about)
    SigV4Auth(CREDENTIALS, signing_name or model_of(service).signing_name, REGION).add_auth(request)
    return as_received(request.prepare())


def encoded(leaf: Any, value: Any) -> Any:
    if leaf.type_name == "blob":
        return b64encode(value).decode()
    if leaf.type_name in ("float", "double") and json.dumps(value) in ("NaN", "Infinity", "-Infinity"):
        return json.dumps(value)
    return value


def decoded(leaf: Any, value: Any) -> Any:
    if leaf.type_name == "blob":
        return b64decode(value)
    return float(value) if leaf.type_name in ("float", "double") else value


def error_of(service: str, response: Response) -> tuple[int, str, str]:
    """The status, the code and the message of an error in the protocol of the service."""
    protocol = protocols_of(service)[0]
    operation = next(iter(model_of(service).operation_names))
    found = read_by_botocore(service, protocol, operation, response)["Error"]
    return response.status, found["Code"], found["Message"]


def json_error_of(response: Response) -> tuple[int, str, str]:
    found = json.loads(response.body)
    assert ("Content-Type", "application/x-amz-json-1.1") in response.headers
    return response.status, found["__type"], found.get("message") or found["Message"]


def test_every_service_but_s3_accepts_json() -> None:
    prefixes = catalogue.SERVICE_BY_OWN_PREFIX.keys() | catalogue.SERVICE_BY_TARGET_PREFIX.keys()
    assert len(prefixes) == len(catalogue.SERVICES) - 1 and "Corral.ec2" in prefixes


@pytest.mark.parametrize("service", SERVICES)
def test_parameters_and_results_have_the_names_of_the_model(service: str) -> None:
    check_each([(service, operation) for operation in operations_of(service)], reads_and_writes)


def reads_and_writes(case: tuple[str, str]) -> None:
    service, operation = case
    model, protocol = model_of(service).operation_model(operation), protocols_of(service)[0]
    shape = model.input_shape
    given = Generator(f"in {service} {operation}", protocol, asked=True).value(shape) if shape is not None else {}
    request = in_json(service, operation, mapped(shape, given, encoded) if shape is not None else {})
    call = recognise(request)
    assert (call.service, call.operation, call.protocol) == (service, operation, protocol)
    assert comparable(call.codecs.parse(call.request, call.located)) == comparable(given)
    shape = model.output_shape
    if shape is None or shape.event_stream_name is None:
        result = Generator(f"out {service} {operation}", protocol).value(shape) if shape is not None else {}
        answer = json.loads(call.serialize(result, "request-1").body)
        assert comparable(mapped(shape, answer, decoded) if shape is not None else answer) == comparable(result)


@pytest.mark.parametrize("service, operation", ONE_OF_EACH_PROTOCOL)
def test_errors_have_the_codes_of_the_own_protocol(service: str, operation: str) -> None:
    """Modelled errors, and those of requests that are refused before a handler runs."""
    mine = recognise(in_json(service, operation, {}))
    shape = model_of(service).operation_model(operation).input_shape
    needed = dict.fromkeys(shape.required_members, "x")
    theirs = recognise(sent_by_botocore(service, protocols_of(service)[0], operation, needed))
    errors = [api_error(each.name)("gone") for each in model_of(service).error_shapes]
    errors += [api_error("Unmodelled.Code", 409)("so"), mine.denied("no"), not_served(mine)]
    assert [(each.code, each.message) for each in (mine.denied("no"), not_served(mine))] == [
        (each.code, each.message) for each in (theirs.denied("no"), not_served(theirs))
    ]
    for error in errors:
        assert json_error_of(mine.serialize_error(error, "r")) == error_of(service, theirs.serialize_error(error, "r"))


@pytest.mark.parametrize(
    "service, operation, params",
    [
        ("autoscaling", "SetDesiredCapacity", {}),
        ("autoscaling", "SetDesiredCapacity", {"AutoScalingGroupName": "", "DesiredCapacity": 1}),
        ("cloudformation", "CreateStack", {"StackName": "9 lives"}),
        ("batch", "SubmitJob", {"jobName": "a"}),
        ("ec2", "TerminateInstances", {}),
        ("sts", "AssumeRole", {"RoleArn": "x", "RoleSessionName": "s"}),
    ],
)
def test_wrong_parameters_have_the_errors_of_the_own_protocol(service: str, operation: str, params: dict[str, Any]) -> None:
    refused = []
    for request in (in_json(service, operation, params), sent_by_botocore(service, protocols_of(service)[0], operation, params)):
        call = recognise(request)
        with pytest.raises(ApiError) as raised:
            call.params()
        refused.append((raised.value.code, raised.value.status, raised.value.message))
    assert refused[0] == refused[1]


@pytest.mark.parametrize("service", ["ec2", "autoscaling", "batch"])
def test_wrong_signatures_have_the_errors_of_the_own_protocol(service: str) -> None:
    operation = next(name for service_, name in ONE_OF_EACH_PROTOCOL if service_ == service)
    mine = in_json(service, operation, {})
    theirs = sent_by_botocore(service, protocols_of(service)[0], operation, {})
    found = []
    for request in (mine, theirs):
        request.headers = {**request.headers, "authorization": request.headers["authorization"][:-4] + "0000"}
        with pytest.raises(ApiError) as raised:
            verify(request, lookup, time.time(), signing_name=model_of(service).signing_name)
        found.append(serialize_refusal(request, raised.value, "r"))
    assert json_error_of(found[0]) == error_of(service, found[1])


def test_the_signature_must_be_for_the_service_of_the_target() -> None:
    request = in_json("ec2", "DescribeInstances", {}, signing_name="sts")
    call = recognise_unless_form(request)
    assert call is not None and call.service == "ec2"
    with pytest.raises(ApiError) as raised:
        verify(request, lookup, time.time(), signing_name=call.signing_name)
    assert raised.value.code == "AuthFailure"


@pytest.mark.parametrize(
    "target", ["Corral.s3.ListBuckets", "Corral.ecs.ListTasks", "Corral.ec3.X", "Corral..X", "corral.ec2.DescribeVpcs"]
)
def test_other_targets_are_unknown(target: str) -> None:
    with pytest.raises(ApiError, match="X-Amz-Target"):
        recognise(Request("POST", "/", "", {"x-amz-target": target}, b"{}"))


def test_an_unknown_operation_is_refused_in_json() -> None:
    request = in_json("ec2", "Fly", {})
    with pytest.raises(ApiError) as raised:
        recognise(request)
    assert json_error_of(serialize_refusal(request, raised.value, "r")) == (400, "InvalidAction", "ec2 has no operation 'Fly'")
