"""Corral parses what botocore sends, for every operation of every served service and every protocol of its clients."""

from __future__ import annotations

import time
from typing import Any

import pytest

from corral.aws import recognise, verify
from each import check_each
from wire.generate import Generator
from wire.oracle import REGION, SERVED, as_datetimes, comparable, every_operation, examples_of, lookup, model_of, sent_by_botocore


@pytest.mark.parametrize("service", SERVED)
def test_corral_parses_what_botocore_sends(service: str) -> None:
    check_each(every_operation([service]), parses_what_botocore_sends)


def parses_what_botocore_sends(case: tuple[str, str, str]) -> None:
    service, protocol, operation = case
    model = model_of(service, protocol)
    shape = model.operation_model(operation).input_shape
    for example in examples_of(service, operation):
        seed = f"in {service} {protocol} {operation} {example}"
        params = Generator(seed, protocol, asked=True).value(shape) if shape is not None else {}
        if service == "s3":
            params = carried(shape, params)
        request = sent_by_botocore(service, protocol, operation, as_datetimes(shape, params) if shape else {})
        call = recognise(request)
        assert (call.service, call.operation, call.protocol) == (service, operation, protocol)
        read = call.codecs.parse(call.request, call.located)  # without constraints, since the values are random
        assert comparable(read) == comparable(params), seed
        identity = verify(request, lookup, time.time(), signing_name=call.signing_name)
        assert (identity.region, identity.service) == (REGION, model.signing_name)


def carried(shape: Any, params: dict[str, Any]) -> dict[str, Any]:
    """Remove an empty body, which cannot be transmitted, and set the length of the body."""
    params = {**params}
    payload = shape.serialization.get("payload")
    if "ContentLength" in shape.members:
        params["ContentLength"] = len(params.get(payload, b""))
    if payload in params and params[payload] in ("", b""):
        params.pop(payload)
        if payload in shape.required_members:
            params[payload] = "x" if shape.members[payload].type_name == "string" else b"x"
    return params


@pytest.mark.parametrize("service", ["autoscaling", "sqs", "sts", "iam", "cloudformation", "cloudwatch"])
def test_an_unsigned_form_is_recognised_by_action_and_version(service: str) -> None:
    for operation in model_of(service).operation_names:
        shape = model_of(service, "query").operation_model(operation).input_shape
        params = Generator(f"{service} {operation}", "query", asked=True).value(shape) if shape is not None else {}
        request = sent_by_botocore(service, "query", operation, as_datetimes(shape, params) if shape else {}, sign=False)
        call = recognise(request)
        assert (call.service, call.operation) == (service, operation)


def test_unsigned_batch_is_recognised_by_path() -> None:
    for operation in model_of("batch").operation_names:
        shape = model_of("batch").operation_model(operation).input_shape
        params = Generator(f"batch {operation}").value(shape)
        call = recognise(sent_by_botocore("batch", "rest-json", operation, params, sign=False))
        assert (call.service, call.operation) == ("batch", operation)


def test_values_that_a_form_cannot_contain_are_absent() -> None:
    """botocore sends nothing at all for an empty map or structure, and `Name=` for an empty list."""
    sent = {"AlarmNames": [], "StateValue": "OK"}
    assert recognise(sent_by_botocore("cloudwatch", "query", "DescribeAlarms", sent)).params() == sent
    sent = {"QueueName": "q", "Attributes": {}, "tags": {"a": ""}}
    read = recognise(sent_by_botocore("sqs", "query", "CreateQueue", sent)).params()
    assert read == {"QueueName": "q", "tags": {"a": ""}}
