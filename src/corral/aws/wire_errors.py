"""Errors of the wire protocols, and the AWS error code that each of them has in each service and protocol.

ParseError      the request does not match the service model; raised inside a codec, it collects its path on the way up
WrongResult     a handler's result does not match the service model, which is a bug of Corral
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from corral.errors import ApiError, api_error

NESTING_MAX = 64  # structures, lists and maps inside each other in one request
CONTENT_HASH_MISMATCH = "The provided 'x-amz-content-sha256' header does not match what was computed."

ParseErrorKind = Literal["type", "missing", "syntax", "argument"]

# The code for a missing required member. Services that are not listed use the code of their protocol.
MISSING_BY_SERVICE = {
    "batch": "ClientException",
    "cloudwatch": "ValidationException",  # in the query protocol its modelled code is ValidationError
    "ecr": "InvalidParameterException",
    "ecs": "InvalidParameterException",
    "logs": "InvalidParameterException",
    "s3": "InvalidRequest",
    "sqs": "MissingParameter",
}
MISSING_BY_PROTOCOL = {"query": "ValidationError", "ec2": "MissingParameter"}
MISSING_DEFAULT = "ValidationException"

MALFORMED_BY_PROTOCOL = {"query": "MalformedInput", "ec2": "MalformedInput", "rest-xml": "MalformedXML"}
MALFORMED_DEFAULT = "SerializationException"
ARGUMENT_BY_PROTOCOL = {"rest-xml": "InvalidArgument"}  # of the path, the query string or a header

UNKNOWN_BY_PROTOCOL = {"query": ("InvalidAction", 400), "ec2": ("InvalidAction", 400), "rest-xml": ("MethodNotAllowed", 405)}
UNKNOWN_DEFAULT = ("UnknownOperationException", 400)
UNSERVED_BY_PROTOCOL = {**UNKNOWN_BY_PROTOCOL, "rest-xml": ("NotImplemented", 501)}

# The code and status for an action that no policy allows.
DENIED_BY_PROTOCOL = {
    "query": ("AccessDenied", 403),
    "ec2": ("UnauthorizedOperation", 403),
    "rest-xml": ("AccessDenied", 403),
    "rest-json": ("AccessDeniedException", 403),
}
DENIED_DEFAULT = ("AccessDeniedException", 400)
DENIED_BY_EC2 = "You are not authorized to perform this operation. "

# Services with both json and query send the query code in a header. No model contains these codes.
QUERY_CODES = {
    "AccessDeniedException": "AccessDenied",
    "ExpiredTokenException": "ExpiredToken",
    "IncompleteSignatureException": "IncompleteSignature",
    "InvalidSignatureException": "SignatureDoesNotMatch",
    "MissingAuthenticationTokenException": "MissingAuthenticationToken",
    "SerializationException": "MalformedInput",
    "ThrottlingException": "Throttling",
    "UnknownOperationException": "InvalidAction",
    "UnrecognizedClientException": "InvalidClientTokenId",
}


class ParseError(Exception):
    """The request does not match the model. Each codec that the exception passes appends its member to `path`."""

    def __init__(self, kind: ParseErrorKind, detail: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.names = names
        self.path: list[str] = []

    @classmethod
    def wrong_type(cls, detail: str) -> ParseError:
        """A value has the wrong type."""
        return cls("type", detail)

    @classmethod
    def missing(cls, *names: str) -> ParseError:
        """A structure lacks required members."""
        return cls("missing", "required members are absent", names)

    @classmethod
    def syntax(cls, detail: str) -> ParseError:
        """The bytes are not valid in the format of the protocol."""
        return cls("syntax", detail)

    @classmethod
    def too_deep(cls) -> ParseError:
        return cls.syntax(f"the request is nested more than {NESTING_MAX} levels deep")

    def where(self) -> str:
        """Return the path as AWS writes it: `containerDefinitions.1.member.name`."""
        return ".".join(reversed(self.path))


error_class = cache(api_error)  # the tables here and in sigv4 have few codes, and creating a class takes 20 µs


class WrongResult(AssertionError):
    """A handler returned a value that does not match the operation's output shape."""

    @classmethod
    def wrong_type(cls, needed: str, value: object) -> WrongResult:
        return cls(f"{needed} is needed, not {type(value).__name__}")


def to_api_error(error: ParseError, service: str, protocol: str) -> ApiError:
    """Return the error response for a request that does not match the model."""
    if error.kind == "missing":
        code = MISSING_BY_SERVICE.get(service) or MISSING_BY_PROTOCOL.get(protocol, MISSING_DEFAULT)
        return error_class(code)(_missing_message(error, service))
    code = MALFORMED_BY_PROTOCOL.get(protocol, MALFORMED_DEFAULT)
    if error.kind == "argument":
        code = ARGUMENT_BY_PROTOCOL.get(protocol, code)
    where = f" (at '{error.where()}')" if error.path else ""
    return error_class(code)(error.detail + where)


def unknown_operation(service: str, operation: str, protocol: str) -> ApiError:
    """The service's model in botocore has no such operation."""
    return _unknown(protocol, f"{service} has no operation {operation}")


def unserved_operation(service: str, operation: str, protocol: str) -> ApiError:
    """The operation exists on AWS, but Corral does not implement it."""
    code, status = UNSERVED_BY_PROTOCOL.get(protocol, UNKNOWN_DEFAULT)
    return error_class(code, status)(f"Corral does not serve {service}:{operation}")


def unsupported_protocol(service: str, operation: str, protocol: str) -> ApiError:
    """The operation exists on AWS, in a protocol that Corral does not implement."""
    return _unknown(protocol, f"{service}:{operation} uses the {protocol} protocol, which Corral does not support")


def denied_action(protocol: str, message: str) -> ApiError:
    """The caller may not perform the action."""
    code, status = DENIED_BY_PROTOCOL.get(protocol, DENIED_DEFAULT)
    return error_class(code, status)((DENIED_BY_EC2 if protocol == "ec2" else "") + message)


def unrecognised_request(protocol: str, message: str) -> ApiError:
    """The request matches no service or operation."""
    return _unknown(protocol, message)


def _unknown(protocol: str, message: str) -> ApiError:
    code, status = UNKNOWN_BY_PROTOCOL.get(protocol, UNKNOWN_DEFAULT)
    return error_class(code, status)(message)


def _missing_message(error: ParseError, service: str) -> str:
    if service == "sqs":
        return f"The request must contain the parameter {error.names[0]}."
    prefix = f"{error.where()}." if error.path else ""
    found = [f"Value null at '{prefix}{name}' failed to satisfy constraint: Member must not be null" for name in error.names]
    count = "1 validation error" if len(found) == 1 else f"{len(found)} validation errors"
    return f"{count} detected: {'; '.join(found)}"
