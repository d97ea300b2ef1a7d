"""`bench/attack_parsers.py [NAME…] [--seconds N]`: send the worst input of each parser with valid credentials.

It prints the table of `attack.py`: what other callers notice while four connections send such input without a pause. The inputs are
as large as Corral accepts, or just above a limit.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from attack import MIB, Arena, main, repeat
from client import Caller, Unanswered, head, signed

CONNECTIONS = 4
XML = {"content-type": "application/xml"}
Make = Callable[[int], bytes]  # port → a signed request


def numbered(form: bytes, count: int) -> bytes:
    return b"".join(form % number for number in range(count))


def document(path: str, body: bytes, port: int) -> bytes:
    return head(port, "s3", "POST", path, XML, body) + body


def delete(attributes: bytes, inside: bytes, port: int) -> bytes:
    return document("/bucket?delete", b"<Delete%s>%s</Delete>" % (attributes, inside), port)


def parts(port: int) -> bytes:
    listed = numbered(b"<Part><PartNumber>%d</PartNumber><ETag>&quot;a&quot;</ETag></Part>", 10_001)
    return document("/bucket/key?uploadId=x", b"<CompleteMultipartUpload>%s</CompleteMultipartUpload>" % listed, port)


def raw_json(target: str, name: str, body: bytes, port: int) -> bytes:
    headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": target}
    return head(port, name, "POST", "/", headers, body) + body


def entries(port: int) -> bytes:
    listed = [{"Id": str(number), "MessageBody": "x"} for number in range(200_000)]
    return signed(port, "sqs", "SendMessageBatch", {"QueueUrl": f"http://127.0.0.1:{port}/1/q", "Entries": listed})


def cbor(port: int) -> bytes:
    body, path = b"\x9f" + b"\x80" * (2 * MIB - 2) + b"\xff", "/service/GraniteServiceVersion20100801/operation/PutMetricData"
    return (
        head(port, "monitoring", "POST", path, {"smithy-protocol": "rpc-v2-cbor", "content-type": "application/cbor"}, body) + body
    )


def template(text: str, port: int) -> bytes:
    return signed(port, "cloudformation", "ValidateTemplate", {"TemplateBody": text})


def user_data(port: int) -> bytes:
    script = b64encode(gzip.compress(b"#!/bin/sh\n" + b"echo a;" * 35_000)).decode()
    image = {"ImageId": "resolve:ssm:/aws/service/ecs/optimized-ami/amazon-linux-2/recommended/image_id"}
    return signed(port, "ec2", "RunInstances", {"MinCount": 1, "MaxCount": 1, "DryRun": "true", "UserData": script, **image})


def expression(port: int) -> bytes:
    constraint = {"type": "memberOf", "expression": f"attribute:a =~ {'a{0,1000}' * 200}"}
    return signed(port, "ecs", "RunTask", {"taskDefinition": "x", "placementConstraints": [constraint]})


def one(make: Make, arena: Arena) -> None:
    repeat(arena, make(arena.port), CONNECTIONS)


def metric_line(keys: int, number: int) -> str:
    """A log event that declares a hundred metrics in `keys` dimension sets, all of them new."""
    names, sets = [f"m{n}" for n in range(100)], [f"k{n}" for n in range(keys)]
    directive = {"Namespace": "Attack", "Dimensions": [[key] for key in sets], "Metrics": [{"Name": name} for name in names]}
    body = {"_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}}
    return json.dumps({**body, **dict.fromkeys(names, 1), **{key: f"{key}-{number}" for key in sets}})


def long_values(number: int) -> str:
    """A log event in which 15,000 metrics refer to a list of 19,000 values."""
    directive: dict[str, Any] = {"Namespace": "Attack", "Metrics": [{"Name": "m"}] * 100}
    return json.dumps({"_aws": {"CloudWatchMetrics": [directive] * 30}, "m": [1] * 15_000, "number": number})


def log_events(line: Callable[[int], str], arena: Arena) -> None:
    """Four clients, one after the other in this process, because making the lines costs more than sending them."""
    call = Caller(arena.port)
    for operation, names in (("CreateLogGroup", {}), ("CreateLogStream", {"logStreamName": "s"})):
        with suppress(Unanswered):
            call("logs", operation, logGroupName="/attack", **names)
    number = 0
    while not arena.is_over():
        number += 1
        message = line(number)
        events = [{"timestamp": int(time.time() * 1000), "message": message}] * max(1, min(16, 900_000 // len(message)))
        request = {"logGroupName": "/attack", "logStreamName": "s", "logEvents": events}
        with suppress(OSError, Unanswered):
            call("logs", "PutLogEvents", **request)


LISTS = b'{"x":[' + b"[]," * (8 * MIB // 3 - 100) + b"[]]}"
ATTACKS: dict[str, Callable[[Arena], None]] = {
    "XML, 300,000 attributes": partial(one, partial(delete, numbered(b' a%d="1"', 300_000), b"")),
    "XML, 49,000 attributes": partial(one, partial(delete, numbered(b' a%d="1"', 49_000), b"")),
    "XML, 300,000 namespaces": partial(one, partial(delete, numbered(b' xmlns:a%d="b"', 300_000), b"")),
    "XML, 190,000 elements": partial(one, partial(delete, b"", b"<a/>" * 190_000)),
    "XML, a name of 8 MB": partial(one, partial(delete, b"", b"<" + b"a" * (8 * MIB - 100))),
    "CompleteMultipartUpload, 10,001 parts": partial(one, parts),
    "JSON, 8 MB of lists": partial(one, partial(raw_json, "Logs_20140328.PutLogEvents", "logs", LISTS)),
    "JSON, 200 KB of lists": partial(one, partial(raw_json, "AmazonSQS.SendMessage", "sqs", b'{"x":[' + b"[]," * 66_000 + b"[]]}")),
    "SendMessageBatch, 200,000 entries": partial(one, entries),
    "CBOR, 2 MB of lists": partial(one, cbor),
    "template, 50 KB of lists": partial(one, partial(template, '{"Metadata":[' + "[]," * 17_000 + "[]]}")),
    "user data, 250 KB in 400 bytes": partial(one, user_data),
    "memberOf, 200,000 repetitions": partial(one, expression),
    "EMF, lines of 60 KB": partial(log_events, partial(metric_line, 1500)),
    "EMF, long values": partial(log_events, long_values),
}


if __name__ == "__main__":
    sys.exit(main(ATTACKS, p99_max_ms=50.0))
