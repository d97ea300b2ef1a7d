"""The AWS wire protocols: parse requests, verify signatures, serialize results and errors. `services/` implements the operations.

The head of a request is the method, the path, the query string and the headers. `lookup` returns the secret of an access key. The
server handles a request like this:

    call = recognise_unless_form(head)             # None if the body is a form; on ApiError respond with serialize_refusal
    pending = begin_verification(head, lookup, now_s)   # afterwards receive the body
    identity = pending.finish()                    # on ApiError respond with serialize_refusal or call.serialize_error
    call = call or recognise(request)              # decodes a form, which costs time: so verify the signature first
    result = handler(call.params())                # on ApiError respond with call.serialize_error
    response = call.serialize(result, request_id)

The body of an S3 request may be too large for memory. So the server recognises and verifies an S3 request from its head:

    call = recognise_head(head)                    # None if the request is not for S3: use the steps above
    identity, body = verify_head(head, lookup, now_s)   # PostObject: call verify_post_policy after reading the form
    payload = body.feed(data)                      # call for every chunk; if call.streams_in is set, write payload to a file
    trailers = body.finish()                       # raises if the body does not match its signature
    params = call.params()                         # does not include the body; to parse a small body: call.with_body(body).params()
    response = call.serialize(result, request_id)  # response.stream is the value of the result member call.streams_out
"""

from corral.aws.catalogue import SERVICE_BY_SIGNING_NAME
from corral.aws.console_calls import call_of_console
from corral.aws.form_encoding import PARAMETERS_MAX
from corral.aws.http import BODY_MAX_BYTES, Request, Response
from corral.aws.parse.effort import Effort, effort_of
from corral.aws.recognition import (
    ApiCall,
    load_model,
    not_served,
    presumed_protocol,
    recognise,
    recognise_head,
    recognise_object,
    recognise_unless_form,
    serialize_refusal,
    service_of,
)
from corral.aws.request_body import PlainBody, RequestBody
from corral.aws.s3 import normalize_s3_request
from corral.aws.s3_signatures import PostPolicy, is_unsigned, unsigned_body, verify_head, verify_post_policy
from corral.aws.signature_errors import expired_token
from corral.aws.sigv4 import Identity, PendingVerification, Secret, SecretLookup, begin_verification, verify, wrong_service
from corral.aws.wire_errors import NESTING_MAX, WrongResult

__all__ = [
    "BODY_MAX_BYTES",
    "NESTING_MAX",
    "PARAMETERS_MAX",
    "SERVICE_BY_SIGNING_NAME",
    "ApiCall",
    "Effort",
    "Identity",
    "PendingVerification",
    "PlainBody",
    "PostPolicy",
    "Request",
    "RequestBody",
    "Response",
    "Secret",
    "SecretLookup",
    "WrongResult",
    "begin_verification",
    "call_of_console",
    "effort_of",
    "expired_token",
    "is_unsigned",
    "load_model",
    "normalize_s3_request",
    "not_served",
    "presumed_protocol",
    "recognise",
    "recognise_head",
    "recognise_object",
    "recognise_unless_form",
    "serialize_refusal",
    "service_of",
    "unsigned_body",
    "verify",
    "verify_head",
    "verify_post_policy",
    "wrong_service",
]
