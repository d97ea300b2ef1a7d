"""What we answer, botocore reads: every operation of every served service, in every protocol its clients use."""

from __future__ import annotations

from typing import Any

import pytest

from corral.aws import recognise
from corral.errors import ApiError
from wire.generate import EXAMPLES, Generator
from wire.oracle import as_datetimes, comparable, every_operation, model_of, read_by_botocore, seen, sent_by_botocore


def streams(operation: tuple[str, str, str]) -> bool:
    service, protocol, name = operation
    shape = model_of(service, protocol).operation_model(name).output_shape
    return shape is not None and shape.event_stream_name is not None


@pytest.mark.parametrize("service, protocol, operation", [o for o in every_operation() if not streams(o)])
def test_botocore_reads_what_we_answer(service: str, protocol: str, operation: str) -> None:
    call = recognise(sent_by_botocore(service, protocol, operation, minimal(service, protocol, operation)))
    shape = model_of(service, protocol).operation_model(operation).output_shape
    for example in range(EXAMPLES):
        seed = f"out {service} {protocol} {operation} {example}"
        result = Generator(seed).value(shape) if shape is not None else {}
        given = as_datetimes(shape, result) if shape is not None and example % 2 else result
        response = call.serialize(given, "request-1")
        read = read_by_botocore(service, protocol, operation, response)
        assert read.pop("ResponseMetadata")["RequestId"] == "request-1"
        expected = seen(shape, result, protocol) if shape is not None else {}
        assert comparable(read) == comparable(expected), seed


def minimal(service: str, protocol: str, operation: str) -> dict[str, Any]:
    """Enough for botocore's serializer to make a path."""
    shape = model_of(service, protocol).operation_model(operation).input_shape
    labels = {n for n, m in shape.members.items() if m.serialization.get("location") == "uri"} if shape else set()
    return dict.fromkeys(labels, "x")


def test_an_event_stream_is_refused_by_name() -> None:
    call = recognise(sent_by_botocore("logs", "json", "StartLiveTail", {"logGroupIdentifiers": ["x"]}))
    with pytest.raises(ApiError, match=r"event stream.*logs:StartLiveTail"):
        call.serialize({}, "request-1")
