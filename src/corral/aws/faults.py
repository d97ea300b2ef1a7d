"""Refusals of the wire itself, and the AWS error code that each of them has in each service and protocol.

Misfit          the caller's bytes do not fit the model; found deep inside a codec, so it collects its path on the way up
WrongResult     our own result does not fit the model: a bug of ours, never a caller's
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from corral.errors import ApiError, api_error

Kind = Literal["type", "missing", "form", "argument"]

# The code for a missing required member. A service that is not named here uses the one of its protocol.
MISSING_BY_SERVICE = {
    "batch": "ClientException",
    "cloudwatch": "ValidationException",  # on the query wire its modelled code is ValidationError
    "ecr": "InvalidParameterException",
    "ecs": "InvalidParameterException",
    "logs": "InvalidParameterException",
    "s3": "InvalidRequest",
    "sqs": "MissingParameter",
}
MISSING_BY_PROTOCOL = {"query": "ValidationError", "ec2": "MissingParameter"}
MISSING_OTHERWISE = "ValidationException"

MALFORMED_BY_PROTOCOL = {"query": "MalformedInput", "ec2": "MalformedInput", "rest-xml": "MalformedXML"}
MALFORMED_OTHERWISE = "SerializationException"
ARGUMENT_BY_PROTOCOL = {"rest-xml": "InvalidArgument"}  # of the path, the query string or a header

UNKNOWN_BY_PROTOCOL = {"query": ("InvalidAction", 400), "ec2": ("InvalidAction", 400), "rest-xml": ("MethodNotAllowed", 405)}
UNKNOWN_OTHERWISE = ("UnknownOperationException", 400)
UNSERVED_BY_PROTOCOL = {**UNKNOWN_BY_PROTOCOL, "rest-xml": ("NotImplemented", 501)}

# Services that speak both json and query name the old code in a header; these codes are in no model.
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


class Misfit(Exception):
    """The request does not fit the model; `path` is filled from the inside out while the exception rises."""

    def __init__(self, kind: Kind, detail: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.names = names
        self.path: list[str] = []

    @classmethod
    def type(cls, detail: str) -> Misfit:
        """A value of the wrong type."""
        return cls("type", detail)

    @classmethod
    def missing(cls, *names: str) -> Misfit:
        """Required members that are absent from one structure."""
        return cls("missing", "required members are absent", names)

    @classmethod
    def form(cls, detail: str) -> Misfit:
        """Bytes that are not even the language of the protocol."""
        return cls("form", detail)

    def where(self) -> str:
        """The path as AWS writes it: `containerDefinitions.1.member.name`."""
        return ".".join(reversed(self.path))


error_class = cache(api_error)  # the codes are those of the tables here and in sigv4: few, and a class costs 20 µs


class WrongResult(AssertionError):
    """A handler returned something that the operation's output shape does not have."""


def refusal(misfit: Misfit, service: str, protocol: str) -> ApiError:
    """What the caller is told about a request that does not fit the model."""
    if misfit.kind == "missing":
        code = MISSING_BY_SERVICE.get(service) or MISSING_BY_PROTOCOL.get(protocol, MISSING_OTHERWISE)
        return error_class(code)(_missing_message(misfit, service))
    code = MALFORMED_BY_PROTOCOL.get(protocol, MALFORMED_OTHERWISE)
    if misfit.kind == "argument":
        code = ARGUMENT_BY_PROTOCOL.get(protocol, code)
    where = f" (at '{misfit.where()}')" if misfit.path else ""
    return error_class(code)(misfit.detail + where)


def unknown_operation(service: str, operation: str, protocol: str) -> ApiError:
    """The service has no such operation, as far as botocore knows."""
    return _unknown(protocol, f"{service} has no operation {operation}")


def unserved_operation(service: str, operation: str, protocol: str) -> ApiError:
    """The operation exists, but Corral has nothing behind it."""
    code, status = UNSERVED_BY_PROTOCOL.get(protocol, UNKNOWN_OTHERWISE)
    return error_class(code, status)(f"Corral does not serve {service}:{operation}")


def unspoken_protocol(service: str, operation: str, protocol: str) -> ApiError:
    """The operation exists, in a protocol for which there are no codecs here."""
    return _unknown(protocol, f"Corral does not speak the {protocol} protocol, which {service}:{operation} needs")


def unrecognised(protocol: str, message: str) -> ApiError:
    """No telling which service or operation is meant."""
    return _unknown(protocol, message)


def _unknown(protocol: str, message: str) -> ApiError:
    code, status = UNKNOWN_BY_PROTOCOL.get(protocol, UNKNOWN_OTHERWISE)
    return error_class(code, status)(message)


def _missing_message(misfit: Misfit, service: str) -> str:
    if service == "sqs":
        return f"The request must contain the parameter {misfit.names[0]}."
    prefix = f"{misfit.where()}." if misfit.path else ""
    found = [f"Value null at '{prefix}{name}' failed to satisfy constraint: Member must not be null" for name in misfit.names]
    count = "1 validation error" if len(found) == 1 else f"{len(found)} validation errors"
    return f"{count} detected: {'; '.join(found)}"
