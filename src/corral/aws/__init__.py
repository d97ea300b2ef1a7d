"""The wire: AWS requests to parameters, results and errors to responses, and who signed. No behaviour.

The life of a request, as the server sees it:

    call = recognise(request)                      # ApiError: answer with serialize_refusal
    identity = verify(request, lookup, now_s)      # likewise, or with call.serialize_error
    result = handler(call.params())                # ApiError: answer with call.serialize_error
    response = call.serialize(result, request_id)
"""

from corral.aws.faults import WrongResult
from corral.aws.form import NESTING_MAX, PARAMETERS_MAX
from corral.aws.http import BODY_MAX_BYTES, Request, Response
from corral.aws.recognise import Call, not_served, presumed_protocol, recognise, recognise_head, serialize_refusal
from corral.aws.sigv4 import Identity, Lookup, Secret, verify

__all__ = [
    "BODY_MAX_BYTES",
    "NESTING_MAX",
    "PARAMETERS_MAX",
    "Call",
    "Identity",
    "Lookup",
    "Request",
    "Response",
    "Secret",
    "WrongResult",
    "not_served",
    "presumed_protocol",
    "recognise",
    "recognise_head",
    "serialize_refusal",
    "verify",
]
