"""The protocols by name: how each reads a request and writes a result. Errors are in `serialize.errors`.

Known but without codecs yet: ec2, rest-xml and smithy-rpc-v2-cbor. Their requests are recognised, their errors are
written, and `protocol_named` refuses what would need a codec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from botocore.model import OperationModel

from corral.aws.faults import WrongResult, unspoken_protocol
from corral.aws.form import tree_of
from corral.aws.http import Request, Response, plain_body
from corral.aws.models import Shape
from corral.aws.parse.json_body import check_depth, json_reader, unbounded, value_from_bytes
from corral.aws.parse.query_form import query_reader
from corral.aws.parse.rest import rest_json_parser
from corral.aws.serialize.json_body import json_writer
from corral.aws.serialize.rest import Parts, rest_json_writer
from corral.aws.serialize.xml_body import XML_DECLARATION, escaped, members_writer

Located = Mapping[str, str]  # what recognition already took out of the request: path labels, or the form's parameters
Parse = Callable[[Request, Located], dict[str, Any]]
Serialize = Callable[[Mapping[str, Any], str], Response]


@dataclass(frozen=True, slots=True)
class Compiled:
    """The closures that one service's operations share in one protocol."""

    readers: dict[Any, Any] = field(default_factory=dict)
    writers: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol's compilers."""

    parser: Callable[[OperationModel, Compiled], Parse]
    serializer: Callable[[OperationModel, Compiled], Serialize]


def protocol_named(name: str, service: str, operation: str) -> Protocol:
    """The codecs of a protocol, or a refusal that names it."""
    protocol = PROTOCOLS.get(name)
    if protocol is None:
        raise unspoken_protocol(service, operation, name)
    return protocol


# --- json 1.0 and 1.1 -------------------------------------------------------------------------------------------------


def _json_parser(operation: OperationModel, compiled: Compiled) -> Parse:
    shape = operation.input_shape
    if shape is None:
        return lambda request, located: {}
    read = json_reader(shape, compiled.readers)
    deep = unbounded(shape)

    def parse(request: Request, located: Located) -> dict[str, Any]:
        body = request.body if "content-encoding" not in request.headers else plain_body(request)
        value = value_from_bytes(body)
        if deep:
            check_depth(value)
        params: dict[str, Any] = read(value)
        return params

    return parse


def _json_serializer(operation: OperationModel, compiled: Compiled) -> Serialize:
    content_type = f"application/x-amz-json-{operation.metadata.get('jsonVersion', '1.1')}"
    shape = _output_shape(operation)
    write = json_writer(shape, compiled.writers) if shape is not None else _nothing(operation)

    def serialize(result: Mapping[str, Any], request_id: str) -> Response:
        headers = [("x-amzn-RequestId", request_id), ("Content-Type", content_type)]
        return Response(200, headers, orjson.dumps(write(result)))

    return serialize


# --- query ------------------------------------------------------------------------------------------------------------


def _query_parser(operation: OperationModel, compiled: Compiled) -> Parse:
    shape = operation.input_shape
    if shape is None:
        return lambda request, located: {}
    read = query_reader(shape, compiled.readers)
    wants_queue = operation.service_model.service_name == "sqs" and "QueueUrl" in shape.members

    def parse(request: Request, located: Located) -> dict[str, Any]:
        tree = tree_of(located.items())
        if wants_queue and "QueueUrl" not in tree and request.path != "/":
            tree["QueueUrl"] = f"http://{request.headers.get('host', '')}{request.path}"  # boto2 posts to the queue
        params: dict[str, Any] = read(tree)
        return params

    return parse


def _query_serializer(operation: OperationModel, compiled: Compiled) -> Serialize:
    name, shape = operation.name, _output_shape(operation)
    wrapper = shape.serialization.get("resultWrapper") if shape is not None else None
    namespace = operation.metadata.get("xmlNamespace", "")
    start = f'{XML_DECLARATION}<{name}Response xmlns="{namespace}">' + (f"<{wrapper}>" if wrapper else "")
    middle = (f"</{wrapper}>" if wrapper else "") + "<ResponseMetadata><RequestId>"
    end = f"</RequestId></ResponseMetadata></{name}Response>"
    check_nothing = _nothing(operation)
    write = members_writer(shape, compiled.writers) if shape is not None else lambda result, out: check_nothing(result)

    def serialize(result: Mapping[str, Any], request_id: str) -> Response:
        out = [start]
        write(result, out)
        out += (middle, escaped(request_id), end)
        headers = [("x-amzn-RequestId", request_id), ("Content-Type", "text/xml")]
        return Response(200, headers, "".join(out).encode())

    return serialize


# --- rest-json --------------------------------------------------------------------------------------------------------


def _rest_json_parser(operation: OperationModel, compiled: Compiled) -> Parse:
    shape = operation.input_shape
    if shape is None:
        return lambda request, located: {}
    return rest_json_parser(shape, compiled.readers)


def _rest_json_serializer(operation: OperationModel, compiled: Compiled) -> Serialize:
    ok = int(operation.http.get("responseCode", 200))
    shape = _output_shape(operation)
    check_nothing = _nothing(operation)
    write = (
        rest_json_writer(shape, compiled.writers)
        if shape is not None
        else lambda result: Parts(None, [], orjson.dumps(check_nothing(result)))
    )

    def serialize(result: Mapping[str, Any], request_id: str) -> Response:
        headers = [("x-amzn-RequestId", request_id), ("Content-Type", "application/json")]
        parts = write(result)
        status = ok if parts.status is None else parts.status
        return Response(status, headers + parts.headers, b"" if status == 204 else parts.body)

    return serialize


# --- what they share --------------------------------------------------------------------------------------------------


def _output_shape(operation: OperationModel) -> Shape | None:
    shape = operation.output_shape
    if shape is not None and shape.event_stream_name is not None:
        raise unspoken_protocol(operation.service_model.service_name, operation.name, "event stream")
    return shape


def _nothing(operation: OperationModel) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The writer of an output that the model does not have."""

    def write(result: Mapping[str, Any]) -> dict[str, Any]:
        if result:
            raise WrongResult(f"{operation.name} has no output, yet {sorted(result)} was given")
        return {}

    return write


PROTOCOLS: dict[str, Protocol] = {
    "json": Protocol(_json_parser, _json_serializer),
    "query": Protocol(_query_parser, _query_serializer),
    "rest-json": Protocol(_rest_json_parser, _rest_json_serializer),
}
