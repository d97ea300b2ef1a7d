"""Determines the service, the operation and the protocol of a request.

It uses these parts of a request, the most reliable first: the X-Amz-Target header, the credential scope of the signature, the
parameters `Action` and `Version`, the method and the path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, cached_property
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from corral.aws import catalogue, unserved_services
from corral.aws.catalogue import AwsService
from corral.aws.form_encoding import FORM_TYPE, pairs_from_body, pairs_from_text
from corral.aws.http import BODY_MAX_BYTES, Request, Response, decompressed_body
from corral.aws.models import plain_model, service_model
from corral.aws.parse.effort import LARGE, SMALL, Effort, effort_of
from corral.aws.protocols import PROTOCOLS, CompiledShapes, LocatedParams, Parse, Serialize
from corral.aws.rest_routes import route, routes_of
from corral.aws.s3 import normalize_s3_request
from corral.aws.serialize.errors import serialize_error
from corral.aws.shapes import OperationModel, ServiceModel, Shape
from corral.aws.wall_times import in_wall_time
from corral.aws.wire_errors import (
    ParseError,
    denied_action,
    to_api_error,
    unknown_operation,
    unrecognised_request,
    unserved_operation,
)
from corral.core.clock import NO_STEPS, WallSteps
from corral.core.errors import ApiError

if TYPE_CHECKING:
    from corral.aws.constraints import Check

NO_PARAMS: LocatedParams = MappingProxyType({})
CBOR_PROTOCOL = "smithy-rpc-v2-cbor"
SMALL_MAX_PARAMETERS = 500  # converting the tree of a longer form takes milliseconds

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{2,62}")
_COMPILING = Lock()  # several threads compile shapes; a thread must not use a shape that another one still compiles


class OperationCodecs:
    """The parser, the constraint check and the serializer of one operation in one protocol. Each is compiled on first use.

    `protocol` is a protocol of the service. `wire` is the protocol of the request and the response. The two are equal, with two
    exceptions. If the X-Amz-Target header has a prefix of Corral's own (`catalogue.SERVICE_BY_OWN_PREFIX`), `wire` is `json`. In a
    call of the console (`console_calls.py`), `wire` is `boto3`. Error codes and constraints are always those of `protocol`.
    """

    def __init__(self, service: str, name: str, protocol: str, wire: str) -> None:
        self.service = service
        self.name = name
        self.protocol = protocol
        self.wire = wire

    @property
    def service_model(self) -> ServiceModel:
        return service_model(self.service, self.protocol) if self.wire == self.protocol else plain_model(self.service)

    @cached_property
    def parse(self) -> Parse:
        with _COMPILING:
            shape = self._model().input_shape
            if shape is None:
                return lambda request, located: {}
            return PROTOCOLS[self.wire].parser(shape, _compiled(self.service, self.wire).readers)

    @cached_property
    def check(self) -> Check | None:
        """The function that checks the constraints of the input, or None if the input has no constraints."""
        from corral.aws.constraints import compile_check, table_of  # imported here, so that the server starts faster

        with _COMPILING:
            model = service_model(self.service, self.protocol).operation_model(self.name)
            return compile_check(model, table_of(self.service, self.protocol))

    @cached_property
    def serialize(self) -> Serialize:
        with _COMPILING:
            return PROTOCOLS[self.wire].serializer(self._model(), _compiled(self.service, self.wire))

    @cached_property
    def streams_in(self) -> str | None:
        """The name of the input member that is the whole request body and may have any size. None if there is no such member."""
        return _streaming_payload(self._model().input_shape)

    @cached_property
    def streams_out(self) -> str | None:
        """The name of the output member that is the whole response body and may have any size. None if there is no such member."""
        return _streaming_payload(self._model().output_shape)

    @property
    def output_shape(self) -> Shape | None:
        return self._model().output_shape

    def _model(self) -> OperationModel:
        return self.service_model.operation_model(self.name)


class ApiCall(Struct, frozen=True):
    """A request whose service and operation are known. It parses its parameters and serializes the response."""

    service: str  # botocore's name for the service
    operation: str
    protocol: str  # see `OperationCodecs`
    request: Request  # an S3 request has been converted to path style
    located: LocatedParams  # path labels, or the parameters of a form
    codecs: OperationCodecs

    @property
    def name(self) -> tuple[str, str]:
        """The service and the operation."""
        return self.service, self.operation

    @property
    def signing_name(self) -> str:
        """The service name that the signature's credential scope must contain."""
        return catalogue.SERVICE_BY_NAME[self.service].signing_name

    @property
    def streams_in(self) -> str | None:
        """The name of the input member that the server streams, or None.

        `params` contains this member only if `with_body` was called.
        """
        return self.codecs.streams_in

    @property
    def streams_out(self) -> str | None:
        """The name of the result member that the server streams, or None. `serialize` copies its value to `Response.stream`."""
        return self.codecs.streams_out

    def with_body(self, body: bytes) -> ApiCall:
        """Return a copy with the request's body. Use it for small bodies after `recognise_head`, which needs no body."""
        return replace(self, request=replace(self.request, body=body))

    @property
    def is_compressed(self) -> bool:
        return "content-encoding" in self.request.headers and self.codecs.wire not in ("query", "ec2") and bool(self.request.body)

    def decompressed(self) -> ApiCall:
        """Return a copy whose body is not compressed. Raises an ApiError if the body is not valid."""
        request = self.request
        try:
            body = decompressed_body(request, catalogue.SERVICE_BY_NAME[self.service].body_max_bytes)
        except ParseError as error:
            raise to_api_error(error, self.service, self.protocol) from None
        headers = {name: value for name, value in request.headers.items() if name != "content-encoding"}
        return replace(self, request=replace(request, headers=headers, body=body))

    def effort(self) -> Effort:
        """Return how long `params` takes. The body must be decompressed. A form has been decoded before, by `recognise`."""
        if self.codecs.wire in ("query", "ec2"):
            return SMALL if len(self.located) <= SMALL_MAX_PARAMETERS else LARGE
        return effort_of(self.codecs.wire, self.request.body)

    def params(self) -> dict[str, Any]:
        """Parse the input. Raises an ApiError if the input does not match the model.

        The returned dictionary has all required members, and all values have the right types. Timestamps are float seconds since
        the epoch, and blobs are bytes. Lengths, ranges, enums and patterns are also checked (see `aws/constraints`).
        """
        try:
            params = self.codecs.parse(self.request, self.located)
        except ParseError as error:
            raise to_api_error(error, self.service, self.protocol) from None
        check = self.codecs.check
        if check is not None:
            check(params)
        return params

    def serialize(self, result: Mapping[str, Any], request_id: str, steps: WallSteps = NO_STEPS) -> Response:
        """Serialize a handler's result. `steps` converts its times to wall times.

        Raises WrongResult if the result does not match the model, because this is a bug of the handler.
        """
        shape = self.codecs.output_shape if steps.steps and self.service != "s3" else None  # the times of S3 are wall times
        if shape is not None:
            result = in_wall_time(self.service, shape, result, steps.wall_s)
        return self.codecs.serialize(result, request_id)

    def denied(self, message: str) -> ApiError:
        """Return the error for a caller who has no permission for the operation."""
        return denied_action(self.service, self.protocol, message)

    def serialize_error(self, error: ApiError, request_id: str) -> Response:
        """Serialize an error. If the model defines this error, boto3 raises it as `client.exceptions.<code>`."""
        return serialize_error(self.codecs.wire, self.codecs.service_model, self.request, error, request_id)


def codecs_of(service: str, operation: str, protocol: str, wire: str) -> OperationCodecs:
    """Return the parser and the serializer of an operation (`OperationCodecs` describes the two protocols)."""
    return _operation(service, operation, protocol, wire)


def recognise(request: Request) -> ApiCall:
    """Return the API call of a request. Raises an ApiError if the service or the operation is unknown."""
    target = request.headers.get("x-amz-target")
    if target is not None:
        return _call(_from_target(target), request, NO_PARAMS)
    try:
        return _from_signature_or_shape(request)
    except ParseError as error:
        raise to_api_error(error, "", presumed_protocol(request)) from None


def recognise_head(head: Request) -> ApiCall | None:
    """Return the API call of an S3 request. Its head (everything but the body) is sufficient. Return None for other services."""
    if "x-amz-target" in head.headers:
        return None
    service = _service(head, scope_service(head))
    if service is None or service.protocols[0] != "rest-xml":
        return None
    if unserved_services.is_s3_control(head):
        raise _unserved_rest(head, "s3")
    try:
        return _from_path(head, service)
    except ParseError as error:
        raise to_api_error(error, service.name, "rest-xml") from None


def recognise_object(head: Request) -> ApiCall:
    """Return the API call of a request without a signature whose path is `/BUCKET/KEY`."""
    try:
        return _from_path(head, catalogue.SERVICE_BY_NAME["s3"])
    except ParseError as error:
        raise to_api_error(error, "s3", "rest-xml") from None


def recognise_unless_form(head: Request) -> ApiCall | None:
    """Return the API call of a request, or None if the body may be a form. Do not use it for S3 requests.

    A form contains the name of the operation. So if the result is None, verify the signature, and then call `recognise` with the
    complete request. Verify first, because decompressing and decoding a form takes much more time than verifying a signature.
    """
    target = head.headers.get("x-amz-target")
    if target is not None:
        return _call(_from_target(target), head, NO_PARAMS)
    return None if _may_be_form(head) else recognise(head)


def _may_be_form(head: Request) -> bool:
    if "smithy-protocol" in head.headers:
        return False
    service = _service(head, scope_service(head))
    if service is not None:
        return "query" in service.protocols or "ec2" in service.protocols
    return head.headers.get("content-type", "").startswith(FORM_TYPE) or "Action=" in head.query


def service_of(head: Request) -> str | None:
    """Return the name of the service that the head of a request names, without loading its model. Return None if it names none."""
    target = head.headers.get("x-amz-target")
    if target is not None:
        prefix = target.rpartition(".")[0]
        found = catalogue.SERVICE_BY_TARGET_PREFIX.get(prefix) or catalogue.SERVICE_BY_OWN_PREFIX.get(prefix)
    else:
        found = _service(head, scope_service(head))
        if found is None and _may_be_unsigned_s3(head):
            return "s3"  # maybe: it could also be an unsigned request to another service with REST paths
    return found.name if found is not None else None


def load_model(service: str) -> None:
    """Load what the recognition of a request to this service needs. This may take 100 ms."""
    protocol = catalogue.SERVICE_BY_NAME[service].protocols[0]
    if protocol in ("rest-json", "rest-xml"):
        routes_of(service, protocol)
    else:
        service_model(service, protocol)


def not_served(call: ApiCall) -> ApiError:
    """Return the error for an operation that Corral does not implement."""
    return unserved_operation(call.service, call.operation, call.protocol)


def serialize_refusal(request: Request, error: ApiError, request_id: str) -> Response:
    """Serialize the error for a request whose operation is unknown.

    Use the format of the protocol that the client probably uses.
    """
    wire = "json" if "x-amz-target" in request.headers else presumed_protocol(request)
    return serialize_error(wire, None, request, error, request_id)


def presumed_protocol(request: Request) -> str:
    """Guess the protocol of a request without reading its body. It determines the codes of errors."""
    headers = request.headers
    content_type = headers.get("content-type", "")
    if "x-amz-target" in headers or "x-amz-json" in content_type:
        service = catalogue.SERVICE_BY_OWN_PREFIX.get(headers.get("x-amz-target", "").rpartition(".")[0])
        return service.protocols[0] if service is not None else "json"
    if headers.get("smithy-protocol") == "rpc-v2-cbor":
        return CBOR_PROTOCOL
    signed_for = scope_service(request) or ""
    service = catalogue.SERVICE_BY_SIGNING_NAME.get(signed_for)
    if service is None or unserved_services.is_s3_control(request):
        unserved, _ = unserved_services.of_request(request, signed_for)
        if unserved is not None:
            return unserved.error_protocol
    if service is not None and service.protocols[0] in ("ec2", "rest-xml", "rest-json"):
        return service.protocols[0]
    if content_type.startswith(FORM_TYPE) or "Action=" in request.query:
        return "query"
    if service is not None:
        return service.protocols[0]
    if content_type.startswith("application/json"):
        return "rest-json"
    # Browsers send OPTIONS only to S3.
    is_s3 = _has_signature_v2(request) or _is_form_upload(request) or request.method == "OPTIONS" or _may_be_unsigned_s3(request)
    return "rest-xml" if is_s3 else "json"


def scope_service(request: Request) -> str | None:
    """Return the signing name in the credential scope of the Authorization header or of a presigned URL, or None."""
    authorization = request.headers.get("authorization")
    text = authorization if authorization is not None else request.query
    if request.signed_for[0] is not text:
        request.signed_for = text, _scope_service(text, "," if authorization is not None else "&")
    return request.signed_for[1]


def _scope_service(text: str, separator: str) -> str | None:
    start = text.find("Credential=")
    if start < 0:
        return None
    end = text.find(separator, start)
    credential = text[start + 11 : end if end >= 0 else len(text)]
    if "%" in credential:
        credential = credential.replace("%2F", "/").replace("%2f", "/")
    parts = credential.strip().split("/")
    return parts[-2] if len(parts) >= 5 else None


def _service(request: Request, signed_for: str | None) -> AwsService | None:
    """Return the service in the signature. Return S3 for the kinds of signatures that only S3 accepts. Otherwise return None."""
    service = catalogue.SERVICE_BY_SIGNING_NAME.get(signed_for or "")
    if service is None and (_has_signature_v2(request) or _is_form_upload(request)):
        return catalogue.SERVICE_BY_NAME["s3"]
    return service


def _from_signature_or_shape(request: Request) -> ApiCall:
    signed_for = scope_service(request)
    service = _service(request, signed_for)
    if "smithy-protocol" in request.headers:
        return _from_rpc_path(request)
    action = _action(request) if service is None or {"query", "ec2"} & set(service.protocols) else None
    if action is not None:
        return _from_action(request, service, action)
    if service is not None:
        return _from_path(request, service)
    if signed_for is not None:
        raise _unserved_rest(request, signed_for)
    for known in catalogue.SERVICES:
        if known.protocols[0] == "rest-json":
            found = route(known.name, "rest-json", request)
            if found is not None:
                return _call(_operation(known.name, found.operation, "rest-json"), request, found.labels)
    if _may_be_unsigned_s3(request):
        return _from_path(request, catalogue.SERVICE_BY_NAME["s3"])
    message = f"{request.method} {request.path[:200]} matches no operation of an AWS service that Corral serves"
    raise unrecognised_request(presumed_protocol(request), message)


@cache  # the cache stays small, because an unknown target raises an exception, which is not cached
def _from_target(target: str) -> OperationCodecs:
    prefix, _, name = target.rpartition(".")
    service = catalogue.SERVICE_BY_TARGET_PREFIX.get(prefix) or catalogue.SERVICE_BY_OWN_PREFIX.get(prefix)
    if service is None:
        unserved = unserved_services.with_target(prefix)
        if unserved is not None:
            raise unserved_operation(unserved.name, name[:200], "json")
        raise unrecognised_request("json", f"no service that Corral serves has the X-Amz-Target {target[:200]!r}")
    return _operation(service.name, name, service.protocols[0], "json")


def _from_action(request: Request, service: AwsService | None, parameters: dict[str, str]) -> ApiCall:
    action, version = parameters["Action"][:200], parameters.get("Version", "")
    if service is None or version != service.api_version:
        unserved = unserved_services.with_version(version, scope_service(request))
        if unserved is not None:
            raise unserved_operation(unserved.name, action, unserved.error_protocol)
    if service is None:
        service = catalogue.SERVICE_BY_ACTION_VERSION.get(version)
        if service is None:
            message = f"no service that Corral serves has the Action {action!r} in Version {version[:50]!r}"
            raise unrecognised_request("query", message)
    protocol = "query" if "query" in service.protocols else "ec2"
    return _call(_operation(service.name, parameters["Action"], protocol), request, parameters)


def _from_path(request: Request, service: AwsService) -> ApiCall:
    protocol = service.protocols[0]
    if protocol in ("rest-json", "rest-xml"):
        try:
            if service.name == "s3":
                request = normalize_s3_request(request)
            found = route(service.name, protocol, request)
        except ParseError as error:
            error.kind = "argument"
            raise
        if found is None:
            other, name = unserved_services.of_request(request, service.signing_name)
            if other is not None and name is not None:
                raise unserved_operation(other.name, name, other.error_protocol)
            raise unknown_operation(service.name, f"at {request.method} {request.path[:200]}", protocol)
        return _call(_operation(service.name, found.operation, protocol), request, found.labels)
    wanted = "Action parameter" if protocol in ("query", "ec2") else "X-Amz-Target header"
    raise unrecognised_request(protocol, f"a request to {service.name} must have an {wanted}")


def _from_rpc_path(request: Request) -> ApiCall:
    parts = request.path.split("/")  # the path is /service/PREFIX/operation/NAME
    if len(parts) == 5 and (parts[1], parts[3]) == ("service", "operation"):
        service = catalogue.SERVICE_BY_TARGET_PREFIX.get(parts[2])
        if service is not None and CBOR_PROTOCOL in service.protocols:
            return _call(_operation(service.name, parts[4], CBOR_PROTOCOL), request, NO_PARAMS)
        if service is None and (unserved := unserved_services.with_target(parts[2])) is not None:
            raise unserved_operation(unserved.name, parts[4][:200], CBOR_PROTOCOL)
    raise unrecognised_request(CBOR_PROTOCOL, f"no service that Corral serves has the path {request.path[:200]}")


def _unserved_rest(request: Request, signed_for: str) -> ApiError:
    """Return the error for a request whose signature names a service that Corral does not serve, by its path if that is known."""
    service, operation = unserved_services.of_request(request, signed_for)
    if service is not None and operation is not None:
        return unserved_operation(service.name, operation, service.error_protocol)
    if service is not None:
        message = f"Corral does not serve the service {service.name!r}: {request.method} {request.path[:200]}"
        return unrecognised_request(service.error_protocol, message)
    message = f"the signature names the service {signed_for[:200]!r}, which Corral does not serve"
    return unrecognised_request(presumed_protocol(request), message)


def _action(request: Request) -> dict[str, str] | None:
    """Return the parameters of the query string and the form. Return None if they do not include `Action`."""
    pairs = pairs_from_text(request.query) if "Action=" in request.query else []
    if request.headers.get("content-type", "").startswith(FORM_TYPE) or request.body.startswith(b"Action="):
        service = catalogue.SERVICE_BY_SIGNING_NAME.get(scope_service(request) or "")
        pairs += pairs_from_body(decompressed_body(request, service.body_max_bytes if service is not None else BODY_MAX_BYTES))
    parameters = dict(pairs)
    return parameters if "Action" in parameters else None


def _has_signature_v2(request: Request) -> bool:
    """Return True if the request has a signature of version 2, in a header or in the URL."""
    if request.headers.get("authorization", "").startswith("AWS "):
        return True
    return "AWSAccessKeyId=" in request.query and "Signature=" in request.query


def _may_be_unsigned_s3(request: Request) -> bool:
    """Whether a request without a signature may be for a bucket or an object: S3 is the only service with such requests."""
    bucket = request.path.split("/", 2)[1] if request.path.startswith("/") else ""
    unsigned = "authorization" not in request.headers and "Credential=" not in request.query
    return unsigned and _BUCKET.fullmatch(bucket) is not None


def _is_form_upload(request: Request) -> bool:
    """Return True if the request is a form upload to S3. Its signature is a field of the form."""
    return request.method == "POST" and request.headers.get("content-type", "").startswith("multipart/form-data")


def _streaming_payload(shape: Shape | None) -> str | None:
    if shape is None or "payload" not in shape.serialization:
        return None
    payload = str(shape.serialization["payload"])
    return payload if shape.members[payload].serialization.get("streaming") else None


@cache  # the cache stays small, because an unknown operation raises an exception, which is not cached
def _operation(service: str, name: str, protocol: str, wire: str | None = None) -> OperationCodecs:
    if name not in service_model(service, protocol).operations:
        raise unknown_operation(service, repr(name[:200]), protocol)
    return OperationCodecs(service, name, protocol, wire or protocol)


@cache
def _compiled(service: str, wire: str) -> CompiledShapes:
    return CompiledShapes()


def _call(operation: OperationCodecs, request: Request, located: LocatedParams) -> ApiCall:
    return ApiCall(operation.service, operation.name, operation.protocol, request, located, operation)
