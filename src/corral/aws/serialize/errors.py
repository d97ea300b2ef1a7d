"""Serializes errors in the format of each protocol, so that boto3 raises `client.exceptions.<code>`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from corral.aws.http import Request, Response
from corral.aws.models import error_shape, query_code
from corral.aws.serialize.json_body import json_writer
from corral.aws.serialize.rest import rest_json_writer
from corral.aws.serialize.xml_body import XML_DECLARATION, escaped, members_writer
from corral.aws.shapes import ServiceModel, Shape
from corral.aws.sqs_query_names import SQS_ERROR_PREFIX, SQS_JSON_NAMES
from corral.aws.wire_errors import QUERY_CODES
from corral.core.errors import ApiError

SerializeError = Callable[[ServiceModel | None, Request, ApiError, str], Response]


def serialize_error(protocol: str, model: ServiceModel | None, request: Request, error: ApiError, request_id: str) -> Response:
    """Serialize an error in the format of a protocol. `model` is None if the service was not recognised."""
    return ERRORS.get(protocol, _json_error)(model, request, error, request_id)


def _json_error(model: ServiceModel | None, request: Request, error: ApiError, request_id: str) -> Response:
    shape = error_shape(model, error.code) if model is not None else None
    status = _status(error, shape)
    code = shape.name if shape is not None else error.code
    if model is not None and shape is not None and model.metadata["protocol"] == "query":
        code = query_code(model, shape)
    version = model.metadata.get("jsonVersion") if model is not None else _json_version(request)
    headers = [("x-amzn-RequestId", request_id), ("Content-Type", f"application/x-amz-json-{version or '1.1'}")]
    headers += _query_error_header(model, shape, request, code, status)
    if model is not None and model.service_name == "sqs":
        code = SQS_ERROR_PREFIX + SQS_JSON_NAMES.get(code, code)
    body = {"__type": code, _message_name(shape): _sendable(error.message), **_members(shape, error)}
    return Response(status, headers, orjson.dumps(body))


def _json_version(request: Request) -> str | None:
    _, _, version = request.headers.get("content-type", "").partition("x-amz-json-")
    return version if version in ("1.0", "1.1") else None


def _query_error(model: ServiceModel | None, request: Request, error: ApiError, request_id: str) -> Response:
    shape = error_shape(model, error.code) if model is not None else None
    status = _status(error, shape)
    code = query_code(model, shape) if model is not None and shape is not None else error.code
    namespace = model.metadata.get("xmlNamespace", "") if model is not None else ""
    out = [
        XML_DECLARATION,
        f'<ErrorResponse xmlns="{namespace}"><Error><Type>{_fault(status)}</Type><Code>{escaped(code)}</Code>',
        f"<Message>{escaped(error.message)}</Message>",
    ]
    if shape is not None and error.members:
        members_writer(shape.name, shape.members.items(), {})(error.members, out)
    out.append(f"</Error><RequestId>{escaped(request_id)}</RequestId></ErrorResponse>")
    headers = [("x-amzn-RequestId", request_id), ("Content-Type", "text/xml")]
    return Response(status, headers, "".join(out).encode())


def _rest_json_error(model: ServiceModel | None, request: Request, error: ApiError, request_id: str) -> Response:
    shape = error_shape(model, error.code) if model is not None else None
    headers = [
        ("x-amzn-RequestId", request_id),
        ("x-amzn-ErrorType", shape.name if shape is not None else error.code),
        ("Content-Type", "application/json"),
    ]
    body: dict[str, Any] = {_message_name(shape): _sendable(error.message)}
    if shape is not None and error.members:
        parts = rest_json_writer(shape, {})(error.members)
        headers += parts.headers
        body |= orjson.loads(parts.body)
    status = _status(error, shape)
    if shape is not None and "Type" in shape.members:  # who is to blame; only Lambda's errors have this member
        body.setdefault("Type", "User" if status < 500 else "Service")
    return Response(status, headers, orjson.dumps(body))


def _ec2_error(model: ServiceModel | None, request: Request, error: ApiError, request_id: str) -> Response:
    text = (
        f"{XML_DECLARATION}<Response><Errors><Error><Code>{escaped(error.code)}</Code>"
        f"<Message>{escaped(error.message)}</Message></Error></Errors>"
        f"<RequestID>{escaped(request_id)}</RequestID></Response>"
    )
    headers = [("x-amzn-RequestId", request_id), ("Content-Type", "text/xml")]
    return Response(error.status, headers, text.encode())


def _rest_xml_error(model: ServiceModel | None, request: Request, error: ApiError, request_id: str) -> Response:
    """Serialize an error of S3.

    It has no XML namespace and may have members that the model lacks. A response to HEAD has no body.
    """
    shape = error_shape(model, error.code) if model is not None else None
    status = _status(error, shape)
    headers = [("x-amz-request-id", request_id), ("x-amz-id-2", request_id), *error.headers.items()]
    if request.method == "HEAD" or status == 304:
        return Response(status, headers, b"")
    out = [XML_DECLARATION, f"<Error><Code>{escaped(error.code)}</Code><Message>{escaped(error.message)}</Message>"]
    if error.code == "MethodNotAllowed":
        out.append(f"<Method>{escaped(request.method)}</Method>")
    out += [f"<{name}>{escaped(str(value))}</{name}>" for name, value in error.members.items() if value is not None]
    out.append(f"<RequestId>{escaped(request_id)}</RequestId><HostId>{escaped(request_id)}</HostId></Error>")
    return Response(status, [*headers, ("Content-Type", "application/xml")], "".join(out).encode())


def _cbor_error(model: ServiceModel | None, request: Request, error: ApiError, request_id: str) -> Response:
    from corral.aws.cbor import cbor_from_value, cbor_scalar_writer  # imported here, because few clients use CBOR

    shape = error_shape(model, error.code) if model is not None else None
    status = _status(error, shape)
    code = shape.name if shape is not None else error.code
    headers = [("x-amzn-RequestId", request_id), ("smithy-protocol", "rpc-v2-cbor"), ("Content-Type", "application/cbor")]
    headers += _query_error_header(model, shape, request, code, status)
    members = json_writer(shape, {}, cbor_scalar_writer)(error.members) if shape is not None and error.members else {}
    body = {"__type": code, _message_name(shape): _sendable(error.message), **members}
    return Response(status, headers, cbor_from_value(body))


def _query_error_header(
    model: ServiceModel | None, shape: Shape | None, request: Request, code: str, status: int
) -> list[tuple[str, str]]:
    """Return the header with the error code of the query protocol, if the client requests it."""
    if request.headers.get("x-amzn-query-mode") != "true":
        return []
    old = query_code(model, shape) if model is not None and shape is not None else QUERY_CODES.get(code, code)
    return [("x-amzn-query-error", f"{old};{_fault(status)}")]


def _status(error: ApiError, shape: Shape | None) -> int:
    if shape is None:
        return error.status
    modelled = shape.error.get("httpStatusCode")
    if modelled is not None:
        return int(modelled)
    return 500 if shape.is_fault and error.status < 500 else error.status


def _fault(status: int) -> str:
    return "Sender" if status < 500 else "Receiver"


def _message_name(shape: Shape | None) -> str:
    return "Message" if shape is not None and "Message" in shape.members else "message"


def _sendable(message: str) -> str:
    """Replace unpaired surrogates, which UTF-8 cannot encode. A message that quotes the request may contain them."""
    return message.encode("utf-8", "replace").decode()


def _members(shape: Shape | None, error: ApiError) -> dict[str, Any]:
    if shape is None or not error.members:
        return {}
    members: dict[str, Any] = json_writer(shape, {})(error.members)
    return members


ERRORS: dict[str, SerializeError] = {
    "json": _json_error,
    "query": _query_error,
    "rest-json": _rest_json_error,
    "ec2": _ec2_error,
    "rest-xml": _rest_xml_error,
    "smithy-rpc-v2-cbor": _cbor_error,
}
