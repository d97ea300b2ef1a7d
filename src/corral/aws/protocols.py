"""`PROTOCOLS` maps the name of each wire protocol to its parser and serializer. `serialize/errors.py` serializes errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from msgspec import Struct, field

from corral.aws import s3
from corral.aws.form_encoding import form_tree
from corral.aws.http import Request, Response, decompressed_body
from corral.aws.parse.json_body import check_depth, json_reader, unbounded, value_from_bytes
from corral.aws.parse.json_body import json_scalar as json_scalar_reader
from corral.aws.parse.query_form import EC2, QUERY, query_reader
from corral.aws.parse.rest import rest_json_parser, rest_xml_parser
from corral.aws.serialize.json_body import json_scalar as json_scalar_writer
from corral.aws.serialize.json_body import json_writer
from corral.aws.serialize.rest import ResponseParts, rest_json_writer, rest_xml_writer
from corral.aws.serialize.xml_body import XML_DECLARATION, XmlWriter, escaped, members_writer
from corral.aws.shapes import OperationModel, Shape
from corral.aws.timestamps import TEXT_TIMESTAMP_FORMAT, seconds_from_result, seconds_from_text, text_from_seconds
from corral.aws.wire_errors import WrongResult, unsupported_protocol

BOTO3 = "boto3"  # the name of the protocol of the console
PIECE_ITEMS = 500  # a longer list in a result is serialized in pieces of this length

LocatedParams = Mapping[str, str]  # `recognise` has already parsed these: path labels, or the parameters of a form
Parse = Callable[[Request, LocatedParams], dict[str, Any]]
Serialize = Callable[[Mapping[str, Any], str], Response]


class CompiledShapes(Struct, frozen=True):
    """The compiled readers and writers of shapes. All operations of a service share them if they use the same protocol."""

    readers: dict[Any, Any] = field(default_factory=dict)
    writers: dict[Any, Any] = field(default_factory=dict)


class WireProtocol(Struct, frozen=True):
    """Compiles the parser and the serializer of an operation."""

    parser: Callable[[Shape, dict[Any, Any]], Parse]  # (input shape, compiled readers) → parser
    serializer: Callable[[OperationModel, CompiledShapes], Serialize]


# --- json 1.0 and 1.1 -------------------------------------------------------------------------------------------------


def _json_parser(shape: Shape, readers: dict[Any, Any]) -> Parse:
    read = json_reader(shape, readers)
    deep = unbounded(shape)

    def parse(request: Request, located: LocatedParams) -> dict[str, Any]:
        body = request.body if "content-encoding" not in request.headers else decompressed_body(request)
        value = value_from_bytes(body)
        if deep:
            check_depth(value)
        params: dict[str, Any] = read(value)
        return params

    return parse


def _json_serializer(operation: OperationModel, compiled: CompiledShapes) -> Serialize:
    content_type = f"application/x-amz-json-{operation.metadata.get('jsonVersion', '1.1')}"
    shape = _output_shape(operation)
    write = json_writer(shape, compiled.writers) if shape is not None else _empty_writer(operation)

    def serialize(result: Mapping[str, Any], request_id: str) -> Response:
        headers = [("x-amzn-RequestId", request_id), ("Content-Type", content_type)]
        for item in result.values() if result.__class__ is dict else ():
            if item.__class__ is list and len(item) > PIECE_ITEMS:
                return Response(200, headers, _json_in_pieces(result, write))
        return Response(200, headers, orjson.dumps(write(result)))

    return serialize


def _json_in_pieces(result: Mapping[str, Any], write: Callable[[Any], Any]) -> bytes:
    """Serialize a result whose lists are long. While orjson runs, it stops all other threads, so each piece must be short."""
    parts: list[bytes] = []
    for name, item in result.items():
        if item is None:
            continue
        if item.__class__ is not list or len(item) <= PIECE_ITEMS:
            parts += (b",", orjson.dumps(write({name: item}))[1:-1])
            continue
        for at in range(0, len(item), PIECE_ITEMS):
            piece = orjson.dumps(write({name: item[at : at + PIECE_ITEMS]}))  # {"name":[...]}
            parts += (b",", piece[piece.index(b"[") + 1 if at else 1 : -2])
        parts.append(b"]")
    return b"".join((b"{", *parts[1:], b"}"))


# --- calls of the console ---------------------------------------------------------------------------------------------


def _boto3_parser(shape: Shape, readers: dict[Any, Any]) -> Parse:
    """Return the parser of JSON with the parameters as boto3 takes them, except that a timestamp is a text or a number."""
    read = json_reader(shape, readers, _boto3_scalar_reader)

    def parse(request: Request, located: LocatedParams) -> dict[str, Any]:
        value = value_from_bytes(request.body)
        check_depth(value)
        params: dict[str, Any] = read(value)
        return params

    return parse


def _boto3_scalar_reader(shape: Shape) -> Callable[[Any], Any]:
    if shape.type_name != "timestamp":
        return json_scalar_reader(shape)
    from_number = json_scalar_reader(shape)
    return lambda value: seconds_from_text(value, TEXT_TIMESTAMP_FORMAT) if value.__class__ is str else from_number(value)


def _boto3_serializer(operation: OperationModel, compiled: CompiledShapes) -> Serialize:
    """Return the serializer of what boto3 returns, as JSON: a timestamp is a text in ISO 8601, and bytes are in base64."""
    shape = _output_shape(operation)
    write = json_writer(shape, compiled.writers, _boto3_scalar_writer) if shape is not None else _empty_writer(operation)

    def serialize(result: Mapping[str, Any], request_id: str) -> Response:
        return Response(
            200, [("x-amzn-RequestId", request_id), ("Content-Type", "application/json")], _json_in_pieces(result, write)
        )

    return serialize


def _boto3_scalar_writer(shape: Shape) -> Callable[[Any], Any]:
    if shape.type_name != "timestamp":
        return json_scalar_writer(shape)
    return lambda value: text_from_seconds(seconds_from_result(value), TEXT_TIMESTAMP_FORMAT)


# --- query ------------------------------------------------------------------------------------------------------------


def _query_parser(shape: Shape, readers: dict[Any, Any]) -> Parse:
    read = query_reader(shape, readers, QUERY)
    wants_queue = "QueueUrl" in shape.members  # so only in SQS

    def parse(request: Request, located: LocatedParams) -> dict[str, Any]:
        tree = form_tree(located.items())
        if wants_queue and "QueueUrl" not in tree and request.path != "/":
            # boto2 sends requests to the queue's URL
            tree["QueueUrl"] = f"{request.scheme}://{request.headers.get('host', '')}{request.path}"
        params: dict[str, Any] = read(tree)
        return params

    return parse


def _query_serializer(operation: OperationModel, compiled: CompiledShapes) -> Serialize:
    name, shape = operation.name, _output_shape(operation)
    wrapper = shape.serialization.get("resultWrapper") if shape is not None else None
    namespace = operation.metadata.get("xmlNamespace", "")
    start = f'{XML_DECLARATION}<{name}Response xmlns="{namespace}">' + (f"<{wrapper}>" if wrapper else "")
    middle = (f"</{wrapper}>" if wrapper else "") + "<ResponseMetadata><RequestId>"
    end = f"</RequestId></ResponseMetadata></{name}Response>"
    check_empty = _empty_writer(operation)
    write = _xml_members(shape, compiled) if shape is not None else lambda result, out: check_empty(result)

    def serialize(result: Mapping[str, Any], request_id: str) -> Response:
        out = [start]
        write(result, out)
        out += (middle, escaped(request_id), end)
        headers = [("x-amzn-RequestId", request_id), ("Content-Type", "text/xml")]
        return Response(200, headers, "".join(out).encode())

    return serialize


def _xml_members(shape: Shape, compiled: CompiledShapes) -> XmlWriter:
    return members_writer(shape.name, shape.members.items(), compiled.writers)


# --- ec2 --------------------------------------------------------------------------------------------------------------


def _ec2_parser(shape: Shape, readers: dict[Any, Any]) -> Parse:
    read = query_reader(shape, readers, EC2)
    return lambda request, located: read(form_tree(located.items()))


def _ec2_serializer(operation: OperationModel, compiled: CompiledShapes) -> Serialize:
    name, shape = operation.name, _output_shape(operation)
    namespace = operation.metadata["xmlNamespace"].rstrip("/") + "/"
    start = f'{XML_DECLARATION}<{name}Response xmlns="{namespace}"><requestId>'
    check_empty = _empty_writer(operation)
    write = _xml_members(shape, compiled) if shape is not None else lambda result, out: check_empty(result)
    # If an operation has no output shape, AWS responds with <return>true</return>.
    end = f"</{name}Response>" if shape is not None else f"<return>true</return></{name}Response>"

    def serialize(result: Mapping[str, Any], request_id: str) -> Response:
        out = [start, escaped(request_id), "</requestId>"]
        write(result, out)
        out.append(end)
        headers = [("x-amzn-RequestId", request_id), ("Content-Type", "text/xml;charset=UTF-8")]
        return Response(200, headers, "".join(out).encode())

    return serialize


# --- rpc-v2-cbor ------------------------------------------------------------------------------------------------------
# CBOR is imported with the first operation that uses it, because few clients do.


def _cbor_parser(shape: Shape, readers: dict[Any, Any]) -> Parse:
    from corral.aws.cbor import cbor_scalar_reader, value_from_cbor

    read = json_reader(shape, readers, cbor_scalar_reader)
    return lambda request, located: read(value_from_cbor(decompressed_body(request)))


def _cbor_serializer(operation: OperationModel, compiled: CompiledShapes) -> Serialize:
    from corral.aws.cbor import cbor_from_value, cbor_scalar_writer

    shape = _output_shape(operation)
    write = json_writer(shape, compiled.writers, cbor_scalar_writer) if shape is not None else _empty_writer(operation)

    def serialize(result: Mapping[str, Any], request_id: str) -> Response:
        headers = [("x-amzn-RequestId", request_id), ("smithy-protocol", "rpc-v2-cbor"), ("Content-Type", "application/cbor")]
        return Response(200, headers, cbor_from_value(write(result)))

    return serialize


# --- rest-json --------------------------------------------------------------------------------------------------------


def _rest_json_serializer(operation: OperationModel, compiled: CompiledShapes) -> Serialize:
    ok = int(operation.http.get("responseCode", 200))
    shape = _output_shape(operation)
    check_empty = _empty_writer(operation)
    write = (
        rest_json_writer(shape, compiled.writers)
        if shape is not None
        else lambda result: ResponseParts(None, [], orjson.dumps(check_empty(result)))
    )

    def serialize(result: Mapping[str, Any], request_id: str) -> Response:
        headers = [("x-amzn-RequestId", request_id), ("Content-Type", "application/json")]
        parts = write(result)
        status = ok if parts.status is None else parts.status
        return Response(status, headers + parts.headers, b"" if status == 204 else parts.body)

    return serialize


# --- rest-xml, which only S3 uses ------------------------------------------------------------------------------------


def _rest_xml_serializer(operation: OperationModel, compiled: CompiledShapes) -> Serialize:
    ok = s3.STATUSES.get(operation.name) or int(operation.http.get("responseCode", 200))
    shape = _output_shape(operation)
    write: Callable[[Mapping[str, Any]], ResponseParts]
    if operation.name in s3.UNWRAPPED:
        write = _unwrapped_writer(s3.UNWRAPPED[operation.name])
    elif shape is not None:
        write = rest_xml_writer(shape, s3.root_name(operation.name), s3.XML_NAMESPACE, compiled.writers)
    else:
        write = _empty_parts_writer(operation)
    raw = shape is not None and _raw_payload(shape)

    def serialize(result: Mapping[str, Any], request_id: str) -> Response:
        parts = write(result)
        headers = [("x-amz-request-id", request_id), ("x-amz-id-2", request_id), *parts.headers]
        status = ok if parts.status is None else parts.status
        if result.get("ContentRange") is not None:
            status = 206  # S3 uses this status for a range, but the model does not contain it
        if status == 204:
            return Response(status, headers, b"")
        if parts.body and not raw:
            headers.append(("Content-Type", "application/xml"))
        return Response(status, headers, parts.body, parts.stream)

    return serialize


def _empty_parts_writer(operation: OperationModel) -> Callable[[Mapping[str, Any]], ResponseParts]:
    check_empty = _empty_writer(operation)

    def write(result: Mapping[str, Any]) -> ResponseParts:
        check_empty(result)
        return ResponseParts(None, [], b"")

    return write


def _raw_payload(shape: Shape) -> bool:
    payload = shape.serialization.get("payload")
    return payload is not None and shape.members[payload].type_name != "structure"


def _unwrapped_writer(member: str) -> Callable[[Mapping[str, Any]], ResponseParts]:
    """Return the writer of a response whose root element contains only a text: the value of the only member."""

    def write(result: Mapping[str, Any]) -> ResponseParts:
        if unknown := result.keys() - {member}:
            raise WrongResult(f"the output has no members {sorted(unknown)}")
        text = escaped(result.get(member) or "")
        return ResponseParts(None, [], f'{XML_DECLARATION}<{member} xmlns="{s3.XML_NAMESPACE}">{text}</{member}>'.encode())

    return write


# --- shared by the protocols ------------------------------------------------------------------------------------------


def _output_shape(operation: OperationModel) -> Shape | None:
    shape = operation.output_shape
    if shape is not None and shape.is_event_stream:
        raise unsupported_protocol(operation.service_model.service_name, operation.name, "event stream")
    return shape


def _empty_writer(operation: OperationModel) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return the writer for an operation that has no output shape."""

    def write(result: Mapping[str, Any]) -> dict[str, Any]:
        if result:
            raise WrongResult(f"{operation.name} has no output, but the handler returned {sorted(result)}")
        return {}

    return write


PROTOCOLS: dict[str, WireProtocol] = {
    "json": WireProtocol(_json_parser, _json_serializer),
    BOTO3: WireProtocol(_boto3_parser, _boto3_serializer),
    "query": WireProtocol(_query_parser, _query_serializer),
    "ec2": WireProtocol(_ec2_parser, _ec2_serializer),
    "rest-json": WireProtocol(rest_json_parser, _rest_json_serializer),
    "rest-xml": WireProtocol(rest_xml_parser, _rest_xml_serializer),
    "smithy-rpc-v2-cbor": WireProtocol(_cbor_parser, _cbor_serializer),
}
