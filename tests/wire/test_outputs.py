"""botocore parses Corral's responses, for every operation of every served service and every protocol of its clients."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral.aws import recognise
from corral.aws.protocols import PIECE_ITEMS
from corral.aws.wire_errors import WrongResult
from corral.core.errors import ApiError
from each import check_each
from wire.generate import Generator
from wire.oracle import (
    SERVED,
    as_datetimes,
    comparable,
    every_operation,
    examples_of,
    model_of,
    read_by_botocore,
    seen,
    sent_by_botocore,
)


def read_as_modelled(operation: tuple[str, str, str]) -> bool:
    service, protocol, name = operation
    shape = model_of(service, protocol).operation_model(name).output_shape
    return name != "GetBucketLocation" and (shape is None or shape.event_stream_name is None)


@pytest.mark.parametrize("service", SERVED)
def test_botocore_parses_the_response(service: str) -> None:
    check_each((case for case in every_operation([service]) if read_as_modelled(case)), parses_the_response)


def parses_the_response(case: tuple[str, str, str]) -> None:
    service, protocol, operation = case
    call = recognise(sent_by_botocore(service, protocol, operation, minimal(service, protocol, operation)))
    shape = model_of(service, protocol).operation_model(operation).output_shape
    for example in examples_of(service, operation):
        seed = f"out {service} {protocol} {operation} {example}"
        result = Generator(seed, protocol).value(shape) if shape is not None else {}
        given = as_datetimes(shape, result) if shape is not None and example % 2 else result
        response = call.serialize(given, "request-1")
        read = read_by_botocore(service, protocol, operation, response)
        metadata = read.pop("ResponseMetadata")
        if protocol != "smithy-rpc-v2-cbor" or shape is not None:  # botocore reads no request id if there is no output
            assert metadata["RequestId"] == "request-1"
        expected = made_up(shape) | seen(shape, result, protocol) if shape is not None else {}
        assert comparable(read) == comparable(expected), seed


def made_up(shape: Any) -> dict[str, Any]:
    """Return the members that botocore adds even if they are absent: maps of headers, and the payload."""
    found: dict[str, Any] = {n: {} for n, m in shape.members.items() if m.serialization.get("location") == "headers"}
    payload = shape.serialization.get("payload")
    if payload is not None:
        found[payload] = {"blob": b"", "string": ""}.get(shape.members[payload].type_name, {})
    return found


def minimal(service: str, protocol: str, operation: str) -> dict[str, Any]:
    """Return the parameters that botocore's serializer needs for a path, and S3 to recognise the operation."""
    shape = model_of(service, protocol).operation_model(operation).input_shape
    if shape is None:
        return {}
    located = {n: shape.members[n] for n in shape.required_members if "location" in shape.members[n].serialization}
    return {name: {"integer": 1, "list": ["x"]}.get(member.type_name, "x") for name, member in located.items()}


def test_an_event_stream_is_refused_by_name() -> None:
    call = recognise(sent_by_botocore("logs", "json", "StartLiveTail", {"logGroupIdentifiers": ["x"]}))
    with pytest.raises(ApiError, match="logs:StartLiveTail uses the event stream protocol"):
        call.serialize({}, "request-1")


@pytest.mark.parametrize("count", [PIECE_ITEMS, PIECE_ITEMS + 1, 3 * PIECE_ITEMS])
@pytest.mark.parametrize("others", [{}, {"nextToken": "more, [", "searchedLogStreams": []}])
def test_a_long_list_is_complete(count: int, others: dict[str, Any]) -> None:
    call = recognise(sent_by_botocore("logs", "json", "FilterLogEvents", {}))
    events = [{"message": f"[{number}], {{}}", "timestamp": number} for number in range(count)]
    for result in ({"events": events, **others}, {**others, "events": events}):
        response = call.serialize({**result, "absent": None}, "request-1")
        assert json.loads(response.body) == result
        with pytest.raises(WrongResult, match="has no member 'wrong'"):
            call.serialize({**result, "events": [*events, {"wrong": 1}]}, "request-1")
