"""From a request to a call: which service, which operation, which protocol.

The order is that of certainty: the target header, the credential scope of the signature, `Action` and `Version`, and
last the method and path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from corral.aws import catalogue
from corral.aws.catalogue import Service
from corral.aws.faults import Misfit, refusal, unknown_operation, unrecognised, unserved_operation
from corral.aws.form import pairs_from_body, pairs_from_text
from corral.aws.http import Request, Response, plain_body
from corral.aws.models import service_model
from corral.aws.protocols import PROTOCOLS, Compiled, Located, Parse, Serialize
from corral.aws.routes import route
from corral.aws.s3 import normalize_s3_request
from corral.aws.serialize.errors import serialize_error
from corral.aws.shapes import OperationModel, Shape
from corral.errors import ApiError

if TYPE_CHECKING:
    from corral.aws.constraints import Check

NOTHING: Located = MappingProxyType({})
FORM_TYPE = "application/x-www-form-urlencoded"
CBOR_PROTOCOL = "smithy-rpc-v2-cbor"

_COMPILING = Lock()  # another thread must not use a shape that is half compiled: heavy reads run outside the core


class Operation:
    """One operation in one protocol; its codecs are compiled when first used, and kept."""

    def __init__(self, service: str, name: str, protocol: str) -> None:
        self.service = service
        self.name = name
        self.protocol = protocol

    @cached_property
    def parse(self) -> Parse:
        """The parser of its input."""
        with _COMPILING:
            return PROTOCOLS[self.protocol].parser(self._model(), _compiled(self.service, self.protocol))

    @cached_property
    def check(self) -> Check | None:
        """The check of its input's constraints; None if it has none."""
        from corral.aws.constraints import compile_check, table_of  # here: a start need not wait for it

        with _COMPILING:
            return compile_check(self._model(), table_of(self.service, self.protocol))

    @cached_property
    def serialize(self) -> Serialize:
        """The serializer of its output."""
        with _COMPILING:
            return PROTOCOLS[self.protocol].serializer(self._model(), _compiled(self.service, self.protocol))

    @cached_property
    def streams_in(self) -> str | None:
        """The member that is the request's body and may be of any size."""
        return _streaming_payload(self._model().input_shape)

    @cached_property
    def streams_out(self) -> str | None:
        """The same of the answer."""
        return _streaming_payload(self._model().output_shape)

    def _model(self) -> OperationModel:
        return service_model(self.service, self.protocol).operation_model(self.name)


@dataclass(slots=True)  # see Request
class Call:
    """A recognised request: everything the wire can say about it, and the way back."""

    service: str  # botocore's name
    operation: str
    protocol: str
    request: Request  # as the service means it: S3's is in path style
    located: Located = field(repr=False)  # path labels, or the form's parameters
    codecs: Operation = field(repr=False)

    @property
    def signing_name(self) -> str:
        """What the credential scope of its signature must name."""
        return catalogue.BY_NAME[self.service].signing_name

    @property
    def streams_in(self) -> str | None:
        """The member whose bytes are the body itself and of any size: the server streams them, `params` has it only if small."""
        return self.codecs.streams_in

    @property
    def streams_out(self) -> str | None:
        """The member of the result that may be anything the server knows to send; it comes back as `Response.stream`."""
        return self.codecs.streams_out

    def with_body(self, body: bytes) -> Call:
        """The call that `recognise_head` made, once a small body is there."""
        return replace(self, request=replace(self.request, body=body))

    def params(self) -> dict[str, Any]:
        """The input; raises an ApiError for anything that does not fit the model.

        Required members are there and types are right: timestamps are float seconds since the epoch, blobs are bytes.
        Lengths, ranges, enums and patterns are those of the model and of the service's table in `aws/constraints`.
        """
        try:
            params = self.codecs.parse(self.request, self.located)
        except Misfit as misfit:
            raise refusal(misfit, self.service, self.protocol) from None
        check = self.codecs.check
        if check is not None:
            check(params)
        return params

    def serialize(self, result: Mapping[str, Any], request_id: str) -> Response:
        """A handler's result; raises WrongResult when it does not fit the model, which is a bug."""
        return self.codecs.serialize(result, request_id)

    def serialize_error(self, error: ApiError, request_id: str) -> Response:
        """A refusal, so that boto3 raises `client.exceptions.<code>` where the model has it."""
        model = service_model(self.service, self.protocol)
        return serialize_error(self.protocol, model, self.request, error, request_id)


def recognise(request: Request) -> Call:
    """The call that a request makes, or an ApiError that names what was not understood."""
    target = request.headers.get("x-amz-target")
    if target is not None:
        return _call(_from_target(target), request, NOTHING)
    try:
        return _from_signature_or_shape(request)
    except Misfit as misfit:
        raise refusal(misfit, "", presumed_protocol(request)) from None


def recognise_head(head: Request) -> Call | None:
    """The call, where the head alone tells it and the body may be too large to wait for: S3's. None: read the body first."""
    if "x-amz-target" in head.headers:
        return None
    service = _service(head, scope_service(head))
    if service is None or service.protocols[0] != "rest-xml":
        return None
    try:
        return _from_path(head, service)
    except Misfit as misfit:
        raise refusal(misfit, service.name, "rest-xml") from None


def not_served(call: Call) -> ApiError:
    """What to raise for a call that nothing here answers."""
    return unserved_operation(call.service, call.operation, call.protocol)


def serialize_refusal(request: Request, error: ApiError, request_id: str) -> Response:
    """An error from before a call was recognised, in the form its sender most likely reads."""
    return serialize_error(presumed_protocol(request), None, request, error, request_id)


def presumed_protocol(request: Request) -> str:
    """The protocol that a request seems to speak, without looking into its body."""
    headers = request.headers
    content_type = headers.get("content-type", "")
    if "x-amz-target" in headers or "x-amz-json" in content_type:
        return "json"
    if headers.get("smithy-protocol") == "rpc-v2-cbor":
        return CBOR_PROTOCOL
    service = catalogue.BY_SIGNING_NAME.get(scope_service(request) or "")
    if service is not None and service.protocols[0] in ("ec2", "rest-xml", "rest-json"):
        return service.protocols[0]
    if content_type.startswith(FORM_TYPE) or "Action=" in request.query:
        return "query"
    if service is not None:
        return service.protocols[0]
    if content_type.startswith("application/json"):
        return "rest-json"
    is_of_s3 = _signed_the_old_way(request) or _uploads_a_form(request) or request.method == "OPTIONS"  # only it answers browsers
    return "rest-xml" if is_of_s3 else "json"


def scope_service(request: Request) -> str | None:
    """The signing name in the credential scope, of the header or of a presigned URL."""
    authorization = request.headers.get("authorization")
    text = authorization if authorization is not None else request.query
    start = text.find("Credential=")
    if start < 0:
        return None
    end = text.find("," if authorization is not None else "&", start)
    credential = text[start + 11 : end if end >= 0 else len(text)]
    if "%" in credential:
        credential = credential.replace("%2F", "/").replace("%2f", "/")
    parts = credential.strip().split("/")
    return parts[-2] if len(parts) >= 5 else None


def _service(request: Request, signed_for: str | None) -> Service | None:
    """The service that the signature names, or S3 where only S3 is signed in this way."""
    service = catalogue.BY_SIGNING_NAME.get(signed_for or "")
    if service is None and (_signed_the_old_way(request) or _uploads_a_form(request)):
        return catalogue.BY_NAME["s3"]
    return service


def _from_signature_or_shape(request: Request) -> Call:
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
        raise unrecognised(presumed_protocol(request), f"Corral does not know the service {signed_for!r}")
    for known in catalogue.SERVICES:
        if known.protocols[0] == "rest-json":
            found = route(known.name, "rest-json", request)
            if found is not None:
                return _call(_operation(known.name, found.operation, "rest-json"), request, found.labels)
    message = f"cannot tell which AWS operation {request.method} {request.path[:200]} is meant to be"
    raise unrecognised(presumed_protocol(request), message)


@cache  # holds only targets that exist: an unknown one raises, and that is not kept
def _from_target(target: str) -> Operation:
    prefix, _, name = target.rpartition(".")
    service = catalogue.BY_TARGET_PREFIX.get(prefix)
    if service is None:
        raise unrecognised("json", f"no service of Corral's has the target {target[:200]!r}")
    return _operation(service.name, name, "json")


def _from_action(request: Request, service: Service | None, parameters: dict[str, str]) -> Call:
    if service is None:
        version = parameters.get("Version", "")
        service = catalogue.BY_ACTION_VERSION.get(version)
        if service is None:
            message = f"no service of Corral's has the action {parameters['Action'][:200]!r} in version {version[:50]!r}"
            raise unrecognised("query", message)
    protocol = "query" if "query" in service.protocols else "ec2"
    return _call(_operation(service.name, parameters["Action"], protocol), request, parameters)


def _from_path(request: Request, service: Service) -> Call:
    protocol = service.protocols[0]
    if protocol in ("rest-json", "rest-xml"):
        try:
            if service.name == "s3":
                request = normalize_s3_request(request)
            found = route(service.name, protocol, request)
        except Misfit as misfit:
            misfit.kind = "argument"
            raise
        if found is None:
            raise unknown_operation(service.name, f"at {request.method} {request.path[:200]}", protocol)
        return _call(_operation(service.name, found.operation, protocol), request, found.labels)
    wanted = "Action parameter" if protocol in ("query", "ec2") else "X-Amz-Target header"
    raise unrecognised(protocol, f"a request to {service.name} needs an {wanted}")


def _from_rpc_path(request: Request) -> Call:
    parts = request.path.split("/")  # /service/PREFIX/operation/NAME
    if len(parts) == 5 and (parts[1], parts[3]) == ("service", "operation"):
        service = catalogue.BY_TARGET_PREFIX.get(parts[2])
        if service is not None and CBOR_PROTOCOL in service.protocols:
            return _call(_operation(service.name, parts[4], CBOR_PROTOCOL), request, NOTHING)
    raise unrecognised(CBOR_PROTOCOL, f"no service of Corral's answers at {request.path[:200]}")


def _action(request: Request) -> dict[str, str] | None:
    """All parameters of query string and form when there is an Action among them."""
    pairs = pairs_from_text(request.query) if "Action=" in request.query else []
    if request.headers.get("content-type", "").startswith(FORM_TYPE) or request.body.startswith(b"Action="):
        pairs += pairs_from_body(plain_body(request))
    parameters = dict(pairs)
    return parameters if "Action" in parameters else None


def _signed_the_old_way(request: Request) -> bool:
    """Signature version 2, which only S3's presigned URLs still use."""
    if request.headers.get("authorization", "").startswith("AWS "):
        return True
    return "AWSAccessKeyId=" in request.query and "Signature=" in request.query


def _uploads_a_form(request: Request) -> bool:
    """S3's form uploads, whose signature is in the form."""
    return request.method == "POST" and request.headers.get("content-type", "").startswith("multipart/form-data")


def _streaming_payload(shape: Shape | None) -> str | None:
    if shape is None or "payload" not in shape.serialization:
        return None
    payload = str(shape.serialization["payload"])
    return payload if shape.members[payload].serialization.get("streaming") else None


@cache  # bounded by the models: an unknown operation raises, and that is not kept
def _operation(service: str, name: str, protocol: str) -> Operation:
    if name not in service_model(service, protocol).operations:
        raise unknown_operation(service, repr(name[:200]), protocol)
    return Operation(service, name, protocol)


@cache
def _compiled(service: str, protocol: str) -> Compiled:
    return Compiled()


def _call(operation: Operation, request: Request, located: Located) -> Call:
    return Call(operation.service, operation.name, operation.protocol, request, located, operation)
