"""Calls of the console: JSON with the parameters as boto3 takes them, and with the result as boto3 returns it."""

from __future__ import annotations

from corral.aws.catalogue import SERVICE_BY_NAME
from corral.aws.http import Request
from corral.aws.protocols import BOTO3
from corral.aws.recognition import NO_PARAMS, ApiCall, codecs_of
from corral.aws.wire_errors import unrecognised_request


def has_stream(call: ApiCall) -> bool:
    """Return whether the input or the output of the operation has a member of any size, which is no JSON."""
    codecs = codecs_of(call.service, call.operation, call.protocol, call.protocol)
    return codecs.streams_in is not None or codecs.streams_out is not None


def call_of_console(service: str, operation: str, request: Request) -> ApiCall:
    """Return the API call of a request. `service` is botocore's name. Raise an ApiError if there is no such operation."""
    found = SERVICE_BY_NAME.get(service)
    if found is None:
        raise unrecognised_request("json", f"Corral has no service {service[:200]!r}")
    protocol = found.protocols[0]
    return ApiCall(service, operation, protocol, request, NO_PARAMS, codecs_of(service, operation, protocol, BOTO3))
