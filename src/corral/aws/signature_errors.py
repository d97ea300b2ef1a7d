"""The errors of refused signatures. Their codes and HTTP statuses depend on the protocol of the client."""

from __future__ import annotations

from corral.aws.wire_errors import error_class
from corral.core.errors import ApiError

MISMATCH = (
    "The request signature we calculated does not match the signature you provided. "
    "Check your AWS Secret Access Key and signing method."
)

# Protocol -> reason why the signature was refused -> error code and HTTP status. The reasons are:
# missing: there is no signature; incomplete: a part of the signature is missing or has the wrong form; unknown: the access key or
# the session token is unknown; expired: the temporary credentials have expired; skewed: the time of the request is too far from the
# server's time; lapsed: the presigned URL has expired; mismatch: the signature is wrong; payload: the body has another hash.
_CODES: dict[str, dict[str, tuple[str, int]]] = {
    "json": {
        "missing": ("MissingAuthenticationTokenException", 400),
        "incomplete": ("IncompleteSignatureException", 400),
        "unknown": ("UnrecognizedClientException", 400),
        "expired": ("ExpiredTokenException", 400),
        "skewed": ("InvalidSignatureException", 400),
        "lapsed": ("InvalidSignatureException", 400),
        "mismatch": ("InvalidSignatureException", 400),
        "payload": ("InvalidSignatureException", 400),
    },
    "rest-json": {
        "missing": ("MissingAuthenticationTokenException", 403),
        "incomplete": ("IncompleteSignatureException", 403),
        "unknown": ("UnrecognizedClientException", 403),
        "expired": ("ExpiredTokenException", 403),
        "skewed": ("InvalidSignatureException", 403),
        "lapsed": ("InvalidSignatureException", 403),
        "mismatch": ("InvalidSignatureException", 403),
        "payload": ("InvalidSignatureException", 403),
    },
    "query": {
        "missing": ("MissingAuthenticationToken", 403),
        "incomplete": ("IncompleteSignature", 400),
        "unknown": ("InvalidClientTokenId", 403),
        "expired": ("ExpiredToken", 403),
        "skewed": ("SignatureDoesNotMatch", 403),
        "lapsed": ("SignatureDoesNotMatch", 403),
        "mismatch": ("SignatureDoesNotMatch", 403),
        "payload": ("SignatureDoesNotMatch", 403),
    },
    "ec2": {
        "missing": ("AuthFailure", 401),
        "incomplete": ("IncompleteSignature", 400),
        "unknown": ("AuthFailure", 401),
        "expired": ("RequestExpired", 400),
        "skewed": ("RequestExpired", 400),
        "lapsed": ("RequestExpired", 400),
        "mismatch": ("AuthFailure", 401),
        "payload": ("AuthFailure", 401),
    },
    "rest-xml": {
        "missing": ("AccessDenied", 403),
        "incomplete": ("AuthorizationHeaderMalformed", 400),
        "unknown": ("InvalidAccessKeyId", 403),
        "expired": ("ExpiredToken", 400),
        "skewed": ("RequestTimeTooSkewed", 403),
        "lapsed": ("AccessDenied", 403),
        "mismatch": ("SignatureDoesNotMatch", 403),
        "payload": ("XAmzContentSHA256Mismatch", 400),
    },
}


S3_TEXTS = {  # S3 has its own texts for these reasons
    "missing": "Access Denied",
    "unknown": "The AWS Access Key Id you provided does not exist in our records.",
    "expired": "The provided token has expired.",
    "skewed": "The difference between the request time and the current time is too large.",
    "lapsed": "Request has expired",
}


class SignatureRefused(Exception):
    """The signature is not valid. `signature_error` converts this exception to an error response of the client's protocol."""

    def __init__(self, reason: str, message: str, **members: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.members = members  # members of the error, which only S3 shows


def signature_error(protocol: str, refused: SignatureRefused) -> ApiError:
    code, status = _CODES.get(protocol, _CODES["json"])[refused.reason]
    if protocol == "rest-xml":
        return error_class(code, status)(S3_TEXTS.get(refused.reason, refused.message), **refused.members)
    return error_class(code, status)(refused.message)


def expired_token() -> ApiError:
    """Return S3's error for temporary credentials that have expired."""
    return signature_error("rest-xml", SignatureRefused("expired", ""))
