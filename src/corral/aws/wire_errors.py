"""Errors in requests and results, and the AWS error codes for them, which depend on the service and the protocol.

ParseError      the request does not match the service model
WrongResult     a handler's result does not match the service model: this is a bug of Corral
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from corral.aws.unserved_operations import reason_of
from corral.core.errors import ApiError, api_error

NESTING_MAX = 64  # the maximum depth of nested structures, lists and maps in a request
CONTENT_HASH_MISMATCH = "The provided 'x-amz-content-sha256' header does not match what was computed."

ParseErrorKind = Literal["type", "missing", "syntax", "argument"]

# Service -> the error code for a missing required member. Other services use the code of the protocol.
MISSING_BY_SERVICE = {
    "batch": "ClientException",
    "cloudwatch": "ValidationException",  # for the query protocol, `serialize/errors.py` replaces this code by ValidationError
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
ARGUMENT_BY_PROTOCOL = {"rest-xml": "InvalidArgument"}  # for an invalid path, query string or header

UNKNOWN_BY_PROTOCOL = {"query": ("InvalidAction", 400), "ec2": ("InvalidAction", 400), "rest-xml": ("MethodNotAllowed", 405)}
UNKNOWN_DEFAULT = ("UnknownOperationException", 400)
# For operations of AWS that Corral does not implement.
UNSERVED_BY_PROTOCOL = {**UNKNOWN_BY_PROTOCOL, "rest-xml": ("NotImplemented", 501)}

# Protocol -> the error code and HTTP status for an action that no policy allows.
DENIED_BY_PROTOCOL = {
    "query": ("AccessDenied", 403),
    "ec2": ("UnauthorizedOperation", 403),
    "rest-xml": ("AccessDenied", 403),
    "rest-json": ("AccessDeniedException", 403),
}
DENIED_BY_SERVICE = {"sns": ("AuthorizationError", 403)}
DENIED_DEFAULT = ("AccessDeniedException", 400)
DENIED_BY_EC2 = "You are not authorized to perform this operation. "

# Services with a json and a query protocol also send the error code of the query protocol, in a header. This table has the codes of
# errors that are not in the models: error code → its code in the query protocol.
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
    """The request does not match the model. `path` contains the names of the members around the error, innermost first."""

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
        """Required members of a structure are missing."""
        return cls("missing", "required members are absent", names)

    @classmethod
    def syntax(cls, detail: str) -> ParseError:
        """The bytes do not have the format of the protocol."""
        return cls("syntax", detail)

    @classmethod
    def too_deep(cls) -> ParseError:
        return cls.syntax(f"the request is nested more than {NESTING_MAX} levels deep")

    def where(self) -> str:
        """Return the path in AWS's notation, for example `containerDefinitions.1.member.name`."""
        return ".".join(reversed(self.path))


def lower_first(name: str) -> str:
    """Return the name of a member as AWS's texts about constraints write it."""
    return name[:1].lower() + name[1:]


error_class = cache(api_error)  # cached, because creating a class takes 20 µs; there are few codes


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
    """Return the error for an operation that botocore's model of the service does not have."""
    return _unknown(protocol, f"{service} has no operation {operation}")


def unserved_operation(service: str, operation: str, protocol: str) -> ApiError:
    """Return the error for an operation of AWS that Corral does not implement."""
    code, status = UNSERVED_BY_PROTOCOL.get(protocol, UNKNOWN_DEFAULT)
    reason = reason_of(service, operation)
    return error_class(code, status)(f"Corral does not serve {service}:{operation}" + (f": {reason}." if reason else ""))


def unsupported_protocol(service: str, operation: str, protocol: str) -> ApiError:
    return _unknown(protocol, f"{service}:{operation} uses the {protocol} protocol, which Corral does not support")


def denied_action(service: str, protocol: str, message: str) -> ApiError:
    """Return the error for a caller who has no permission for the action."""
    code, status = DENIED_BY_SERVICE.get(service) or DENIED_BY_PROTOCOL.get(protocol, DENIED_DEFAULT)
    return error_class(code, status)((DENIED_BY_EC2 if protocol == "ec2" else "") + message)


def unrecognised_request(protocol: str, message: str) -> ApiError:
    """Return the error for a request that matches no service or operation."""
    return _unknown(protocol, message)


def _unknown(protocol: str, message: str) -> ApiError:
    code, status = UNKNOWN_BY_PROTOCOL.get(protocol, UNKNOWN_DEFAULT)
    return error_class(code, status)(message)


def _missing_message(error: ParseError, service: str) -> str:
    if service == "sqs":
        return f"The request must contain the parameter {error.names[0]}."
    paths = [".".join(lower_first(part) for part in [*reversed(error.path), name]) for name in error.names]
    found = [f"Value null at '{path}' failed to satisfy constraint: Member must not be null" for path in paths]
    count = "1 validation error" if len(found) == 1 else f"{len(found)} validation errors"
    return f"{count} detected: {'; '.join(found)}"
