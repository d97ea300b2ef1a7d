"""The wire: AWS requests to parameters, results and errors to responses, and who signed. No behaviour.

The life of a request, as the server sees it:

    call = recognise(request)                      # ApiError: answer with serialize_refusal
    identity = verify(request, lookup, now_s)      # likewise, or with call.serialize_error
    result = handler(call.params())                # ApiError: answer with call.serialize_error
    response = call.serialize(result, request_id)

S3's bodies are not waited for. Its requests are known and verified from their heads:

    call = recognise_head(head)                    # None: not S3's, read the body and go on as above
    identity, body = verify_head(head, lookup, now_s)   # PostObject: verify_post_policy, once its form is read
    payload = body.feed(data)                      # for all that arrives; to a file if call.streams_in, else to memory
    trailers = body.finish()                       # only now is any of it to be believed
    params = call.params()                         # without the member that streams; or call.with_body(whole).params()
    response = call.serialize(result, request_id)  # response.stream: what the handler gave for call.streams_out
"""

from corral.aws.body import Body, PlainBody
from corral.aws.faults import WrongResult
from corral.aws.form import NESTING_MAX, PARAMETERS_MAX
from corral.aws.http import BODY_MAX_BYTES, Request, Response
from corral.aws.recognise import Call, not_served, presumed_protocol, recognise, recognise_head, serialize_refusal
from corral.aws.s3 import normalize_s3_request
from corral.aws.s3_signatures import PostPolicy, verify_head, verify_post_policy
from corral.aws.sigv4 import Identity, Lookup, Secret, verify

__all__ = [
    "BODY_MAX_BYTES",
    "NESTING_MAX",
    "PARAMETERS_MAX",
    "Body",
    "Call",
    "Identity",
    "Lookup",
    "PlainBody",
    "PostPolicy",
    "Request",
    "Response",
    "Secret",
    "WrongResult",
    "normalize_s3_request",
    "not_served",
    "presumed_protocol",
    "recognise",
    "recognise_head",
    "serialize_refusal",
    "verify",
    "verify_head",
    "verify_post_policy",
]
