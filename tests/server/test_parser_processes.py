"""Large bodies: which of them are parsed in another process, what is refused before it is parsed, and the death of a parser."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from corral import aws
from corral.aws import Effort
from corral.aws.cbor import BODY_MAX_BYTES as CBOR_MAX_BYTES
from corral.aws.form_encoding import form_tree
from corral.aws.wire_errors import ParseError
from corral.core.errors import ApiError
from corral.decide.templates import TemplateError, read_template
from corral.model.json_documents import FAULT, json_fault, read_json
from corral.server.parser_processes import ParserProcesses

KIB, MIB = 1024, 1024 * 1024
SCOPE = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"


def json_call(target: str, body: Any) -> aws.ApiCall:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return aws.recognise(aws.Request("POST", "/", "", {"x-amz-target": target}, text))


def xml_call(query: str, body: bytes, path: str = "/bucket") -> aws.ApiCall:
    call = aws.recognise_head(aws.Request("POST", path, query, {"host": "localhost", "authorization": SCOPE}, b""))
    assert call is not None
    return call.with_body(body)


def cbor_call(body: bytes) -> aws.ApiCall:
    path = "/service/GraniteServiceVersion20100801/operation/PutMetricData"
    return aws.recognise(aws.Request("POST", path, "", {"smithy-protocol": "rpc-v2-cbor"}, body))


def events(count: int, message: str = "x") -> aws.ApiCall:
    listed = [{"timestamp": number, "message": message} for number in range(count)]
    return json_call("Logs_20140328.PutLogEvents", {"logGroupName": "a", "logStreamName": "b", "logEvents": listed})


def entries(count: int) -> aws.ApiCall:
    listed = [{"Id": str(number), "MessageBody": "x"} for number in range(count)]
    return json_call("AmazonSQS.SendMessageBatch", {"QueueUrl": "http://x/1/q", "Entries": listed})


def parts(count: int) -> aws.ApiCall:
    listed = b"".join(b'<Part><PartNumber>%d</PartNumber><ETag>"a"</ETag></Part>' % number for number in range(1, count + 1))
    root = b"CompleteMultipartUpload"
    return xml_call("uploadId=x", b"<%s>%s</%s>" % (root, listed, root), "/bucket/key")


def deletion(attributes: bytes = b"", inside: bytes = b"<Object><Key>a</Key></Object>") -> aws.ApiCall:
    return xml_call("delete", b"<Delete%s>%s</Delete>" % (attributes, inside))


def numbered(form: bytes, count: int) -> bytes:
    return b"".join(form % number for number in range(count))


def test_the_effort_is_estimated_before_a_body_is_parsed() -> None:
    cases = (
        (json_call("AmazonSQS.SendMessage", {"QueueUrl": "http://x/1/q", "MessageBody": "x" * 200 * KIB}), Effort.SMALL),
        (json_call("AmazonSQS.SendMessage", {"QueueUrl": "http://x/1/q", "MessageBody": "x" * MIB}), Effort.LARGE),
        (json_call("AmazonSQS.SendMessage", {"QueueUrl": "http://x/1/q", "MessageBody": "x" * 3 * MIB}), Effort.HUGE),
        (events(1_000), Effort.SMALL),
        (events(10_000), Effort.LARGE),
        (events(3, "[" * 100 * KIB), Effort.HUGE),  # the text of a message is not parsed, but the estimate cannot know that
        (json_call("AmazonSQS.SendMessage", b'{"x":[' + b"[]," * 60_000 + b"[]]}"), Effort.HUGE),
        (entries(200_000), Effort.HUGE),
        (parts(100), Effort.SMALL),
        (parts(1_000), Effort.LARGE),
        (parts(10_000), Effort.HUGE),
        (deletion(numbered(b' a%d="1"', 10_000)), Effort.HUGE),
        (deletion(b' x="' + b"y" * 300 * KIB + b'"'), Effort.HUGE),
        (cbor_call(b"\x80" * 8 * KIB), Effort.SMALL),
        (cbor_call(b"\x80" * 200 * KIB), Effort.LARGE),
        (cbor_call(b"\x80" * 300 * KIB), Effort.HUGE),
    )
    for call, effort in cases:
        assert call.effort() is effort
    assert aws.effort_of("query", b"Action=X&A=" + b"%41" * 60_000) is Effort.LARGE
    assert aws.effort_of("query", b"Action=X&A=" + b"x" * 60_000) is Effort.SMALL


def test_a_name_with_many_dots_is_refused_before_it_is_split() -> None:
    with pytest.raises(ParseError):
        form_tree([("." * MIB, "x")])


LAMBDA_SCOPE = "AWS4-HMAC-SHA256 Credential=A/20260101/us-east-1/lambda/aws4_request, "


def parsed(call: aws.ApiCall, parsers: ParserProcesses) -> dict[str, Any] | ApiError:
    try:
        return asyncio.run(parsers.params(call))
    except ApiError as error:
        return error


@pytest.fixture(scope="module")
def parsers():
    found = ParserProcesses()
    yield found
    found.close()


def test_another_process_parses_as_this_one_does(parsers: ParserProcesses) -> None:
    metrics = [{"MetricName": "m", "Values": [1.5] * 150, "Counts": [2] * 150, "Timestamp": 1e9 + n} for n in range(300)]
    cases = (
        events(10_000),
        parts(10_000),
        json_call("GraniteServiceVersion20100801.PutMetricData", {"Namespace": "n", "MetricData": metrics}),
        json_call("AmazonSQS.SendMessage", {"QueueUrl": "http://x/1/q", "MessageBody": "\x01é" * MIB}),
        deletion(inside=b"<Object><Key>a</Key></Object>" * 1_000 + b"<Quiet>true</Quiet>"),
    )
    for call in cases:
        assert parsed(call, parsers) == call.params()


def test_refusals_are_typed(parsers: ParserProcesses) -> None:
    """Counts above AWS's limits get AWS's error; documents that no limit of AWS bounds are refused before they are parsed."""
    long_command = {"taskDefinition": "x", "overrides": {"containerOverrides": [{"command": ["x"] * 100_000}]}}
    cases = (
        (entries(200_000), "TooManyEntriesInBatchRequest", "You have sent 200000."),
        (deletion(numbered(b' a%d="1"', 300_000)), "MalformedXML", "more than 50000 attributes"),
        (deletion(numbered(b' xmlns:a%d="b"', 300_000)), "MalformedXML", "more than 50000 attributes"),
        (deletion(inside=b"<Object><Key>a</Key></Object>" * 110_000), "MalformedXML", "more than 200000 elements"),
        (cbor_call(b"\x80" * (CBOR_MAX_BYTES + 1)), "SerializationException", "larger than"),
        (json_call("AmazonSQS.SendMessage", b'{"x":[' + b"[]," * 90_000), "SerializationException", "not valid JSON"),
        (
            json_call("AmazonEC2ContainerServiceV20141113.DescribeTasks", {"tasks": ["x"] * 100_000}),
            "InvalidParameterException",
            "100",
        ),
        (json_call("AmazonEC2ContainerServiceV20141113.RunTask", long_command), "SerializationException", "the maximum is 10000"),
    )
    for call, code, text in cases:
        error = parsed(call, parsers)
        assert isinstance(error, ApiError) and error.code == code and text in error.message, error


def test_the_payload_of_a_function_is_checked_where_it_is_parsed(parsers: ParserProcesses) -> None:
    for payload, fault in ((b"[" + b"[]," * MIB + b"[]]", ""), (b"[]," * MIB, "trailing characters"), (b"[" * MIB, "too deep")):
        head = aws.Request("POST", "/2015-03-31/functions/f/invocations", "", {"authorization": LAMBDA_SCOPE}, payload)
        call = aws.recognise(head)
        assert call.effort() is aws.Effort.HUGE
        found = asyncio.run(parsers.params(call))
        assert found["Payload"] == payload and (fault in found[FAULT] if fault else found[FAULT] == "")


def test_a_killed_parser_is_replaced(parsers: ParserProcesses) -> None:
    call = events(10_000)
    assert parsed(call, parsers) == call.params()
    (pid,) = parsers.pids
    os.kill(pid, signal.SIGKILL)
    error = parsed(call, parsers)
    assert isinstance(error, ApiError) and (error.code, error.status) == ("ServiceUnavailable", 503)
    assert parsed(call, parsers) == call.params()
    assert parsers.pids != [pid]


def test_documents_in_a_text_have_a_limited_number_of_values() -> None:
    """Policies, manifests and dashboards are parsed by orjson, which stops all other threads."""
    for text in ("[" + "[]," * 90_000 + "[]]", json.dumps({str(number): 1 for number in range(50_000)}), json.dumps([1] * 200_000)):
        with pytest.raises(ValueError, match="too many values"):
            read_json(text)
        assert not json_fault(text.encode())  # the payload of a function may have any number of values
        assert json_fault(text[:-1].encode())
    assert read_json(json.dumps(["," * 100_000])) == ["," * 100_000]
    template = {"Description": ":" * 90_000, "Resources": {}}
    assert read_template(json.dumps(template)) == template  # the values of a template are counted without its texts
    with pytest.raises(TemplateError, match="too many values"):
        read_template(json.dumps({"Metadata": [[]] * 40_000}))
