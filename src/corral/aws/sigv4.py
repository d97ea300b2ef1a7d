"""Verifies AWS Signature Version 4.

Corral does not use botocore.auth, because botocore.auth can only sign requests, and takes five times as long as this module. An
attacker can change everything that the signature does not cover. Therefore the client must sign every `x-amz-*` header, and the
signed hash is always compared with the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest

from msgspec import Struct

from corral.aws.canonical_request import canonical_headers, canonical_targets
from corral.aws.form_encoding import pairs_from_text
from corral.aws.http import Request
from corral.aws.recognition import presumed_protocol
from corral.aws.signature_errors import MISMATCH, SignatureRefused, signature_error
from corral.aws.wire_errors import CONTENT_HASH_MISMATCH, ParseError
from corral.core.errors import ApiError
from corral.model.http_dates import parse_http_date
from corral.model.principal import Principal
from corral.model.session import SessionTerms

SHOWN_MAX_BYTES = 4096  # a longer canonical request is not shown to a client whose signature is wrong
SKEW_MAX_S = 15 * 60
EXPIRES_MAX_S = 7 * 24 * 3600
SIGNING_KEYS_MAX = 1024
SCOPES_MAX = 1024
SCOPE_CACHED_MAX_CHARS = 2048  # longer texts are not cached, because unknown callers could fill the cache with them
CREDENTIAL_MAX_CHARS = 1024
ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"

_NEED_NO_SIGNATURE = frozenset({"x-amz-user-agent"})
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_EMPTY_SHA256 = sha256().hexdigest()


class Secret(Struct, frozen=True):
    """The secret key of an access key. Temporary credentials also have a session token and an expiry."""

    secret_key: str
    session_token: str | None
    expires_at_s: float | None
    principal: Principal
    task_id: str | None = None  # the task that received these temporary credentials
    confined: bool = False  # True if that task runs in containers
    terms: SessionTerms | None = None  # of a session

    def __repr__(self) -> str:
        return f"Secret(principal={self.principal!r})"  # contains no secrets, because a repr may be logged


class Identity(Struct, frozen=True):
    """The verified caller, and the region and service in the signature."""

    access_key_id: str
    principal: Principal
    region: str  # empty for S3's signature version 2, which contains no region
    service: str  # the signing name of the service
    task_id: str | None = None  # the task whose credentials the caller uses
    confined: bool = False  # True if that task runs in containers: then the policies of its role restrict the caller
    terms: SessionTerms | None = None  # of a session


class CredentialScope(Struct, frozen=True):
    """The scope of a signature. A client uses the same scope for all requests to one service on one day."""

    access_key_id: str
    date: str
    region: str
    service: str
    text: str  # DATE/REGION/SERVICE/aws4_request
    signed_headers: str
    names: tuple[str, ...]  # the names in `signed_headers`, in the same order
    signed: frozenset[str]


class SignatureClaim(Struct, frozen=True):
    """The signature of a request and its parameters, before they are verified."""

    scope: CredentialScope
    signature: str
    timestamp: str
    token: str | None
    expires_s: int | None  # set only for a presigned URL


SecretLookup = Callable[[str, str | None], Secret | None]  # called with the access key id and the session token


def verify(
    request: Request, lookup: SecretLookup, now_s: float, *, body_sha256: str | None = None, signing_name: str | None = None
) -> Identity:
    """Return the identity of the caller who signed a complete request. Raises an ApiError if the signature is not valid.

    `body_sha256` is the hash of a streamed body. If `signing_name` is set, the signature must be for this service.
    """
    return begin_verification(request, lookup, now_s, signing_name).finish(body_sha256)


def begin_verification(head: Request, lookup: SecretLookup, now_s: float, signing_name: str | None = None) -> PendingVerification:
    """Verify a signature as far as possible before the body arrives: the access key, the date and the signed headers.

    If a header contains the hash of the body, the signature itself is verified, too. Raises an ApiError if anything is not valid.
    """
    try:
        claim, secret = check_claim(head, lookup, now_s, signing_name)
        stated = head.headers.get("x-amz-content-sha256")
        if stated is None or stated.startswith("STREAMING-"):
            return PendingVerification(head, claim, secret, is_compared=False)
        _compare(claim, secret, head, stated)
        return PendingVerification(head, claim, secret, is_compared=True)
    except (SignatureRefused, ParseError) as error:
        raise _api_error(head, error) from None


class PendingVerification(Struct, frozen=True):
    """The state of a verification between `begin_verification` and the arrival of the body. `finish` completes the verification."""

    request: Request
    claim: SignatureClaim
    secret: Secret
    is_compared: bool  # True if the signature was already verified, with the body's hash from the header

    def finish(self, body_sha256: str | None = None) -> Identity:
        """Verify the body and return the identity of the caller. Call this when the body has arrived.

        Raises an ApiError if the body or the signature is not valid.
        """
        claim, secret, scope = self.claim, self.secret, self.claim.scope
        try:
            payload_hash = _payload_hash(claim, self.request, body_sha256)
            if not self.is_compared:
                _compare(claim, secret, self.request, payload_hash)
        except (SignatureRefused, ParseError) as error:
            raise _api_error(self.request, error) from None
        return identity_of(scope.access_key_id, secret, scope.region, scope.service)


def wrong_service(request: Request, signing_name: str) -> ApiError:
    return signature_error(presumed_protocol(request), _wrong_service(signing_name))


def check_signature(
    head: Request, lookup: SecretLookup, now_s: float, signing_name: str | None, payload_hash: str
) -> tuple[Identity, SignatureClaim, Secret]:
    """Verify the signature of a request without its body. The signature must cover `payload_hash`. Raises `SignatureRefused`."""
    claim, secret = check_claim(head, lookup, now_s, signing_name)
    _compare(claim, secret, head, payload_hash)
    scope = claim.scope
    return identity_of(scope.access_key_id, secret, scope.region, scope.service), claim, secret


def check_claim(head: Request, lookup: SecretLookup, now_s: float, signing_name: str | None) -> tuple[SignatureClaim, Secret]:
    """Parse a signature, and check its service, access key, date and signed headers. Raises `SignatureRefused`."""
    claim = _claim(head)
    scope = claim.scope
    if signing_name is not None and scope.service != signing_name:
        raise _wrong_service(signing_name)
    secret = known_secret(scope.access_key_id, claim.token, lookup, now_s)
    _check_time(claim, now_s)
    _check_signed(claim, head.headers)
    return claim, secret


def _wrong_service(signing_name: str) -> SignatureRefused:
    return SignatureRefused("mismatch", f"Credential should be scoped to correct service: '{signing_name}'.")


def _api_error(request: Request, error: SignatureRefused | ParseError) -> ApiError:
    refused = SignatureRefused("incomplete", error.detail) if isinstance(error, ParseError) else error
    return signature_error(presumed_protocol(request), refused)


def identity_of(access_key_id: str, secret: Secret, region: str, service: str) -> Identity:
    return Identity(access_key_id, secret.principal, region, service, secret.task_id, secret.confined, secret.terms)


# --- parse the signature ----------------------------------------------------------------------------------------------


def _claim(request: Request) -> SignatureClaim:
    authorization = request.headers.get("authorization")
    if authorization is not None:
        return _header_claim(authorization, request.headers)
    if "X-Amz-Signature=" in request.query:
        return _presigned_claim(dict(pairs_from_text(request.query)))
    raise SignatureRefused("missing", "Missing Authentication Token")


def _header_claim(authorization: str, headers: Mapping[str, str]) -> SignatureClaim:
    before, _, after = authorization.partition("Signature=")
    signature, _, rest = after.partition(",")
    timestamp = headers.get("x-amz-date") or _iso_basic(headers.get("date"))
    text = before + rest
    scope = _header_scope(text) if len(text) <= SCOPE_CACHED_MAX_CHARS else _header_scope.__wrapped__(text)
    return SignatureClaim(scope, signature.strip(), timestamp, headers.get("x-amz-security-token"), None)


@lru_cache(maxsize=SCOPES_MAX)
def _header_scope(text: str) -> CredentialScope:
    """Parse the Authorization header without the signature. The result is cached, because many requests have the same header."""
    algorithm, _, rest = text.partition(" ")
    if algorithm != ALGORITHM:
        raise SignatureRefused("incomplete", f"Authorization must use {ALGORITHM}")
    fields = {}
    for item in rest.split(","):
        name, _, value = item.strip().partition("=")
        fields[name] = value
    for name in ("Credential", "SignedHeaders"):
        if not fields.get(name):
            raise SignatureRefused("incomplete", f"Authorization header requires '{name}' parameter.")
    return scope_of(fields["Credential"], fields["SignedHeaders"])


def _presigned_claim(query: Mapping[str, str]) -> SignatureClaim:
    for name in ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-SignedHeaders", "X-Amz-Signature"):
        if not query.get(name):
            raise SignatureRefused("incomplete", f"AWS query-string parameters must include '{name}'.")
    if query["X-Amz-Algorithm"] != ALGORITHM:
        raise SignatureRefused("incomplete", f"X-Amz-Algorithm must be {ALGORITHM}")
    expires = query.get("X-Amz-Expires", "")
    if not (len(expires) <= 7 and expires.isascii() and expires.isdigit() and 1 <= int(expires) <= EXPIRES_MAX_S):
        raise SignatureRefused("incomplete", f"X-Amz-Expires must be between 1 and {EXPIRES_MAX_S} seconds")
    credential, signed_headers = query["X-Amz-Credential"], query["X-Amz-SignedHeaders"]
    is_short = len(credential) + len(signed_headers) <= SCOPE_CACHED_MAX_CHARS
    scope = (_presigned_scope if is_short else scope_of)(credential, signed_headers)
    token = query.get("X-Amz-Security-Token")
    return SignatureClaim(scope, query["X-Amz-Signature"], query["X-Amz-Date"], token, int(expires))


def scope_of(credential: str, signed_headers: str) -> CredentialScope:
    """Parse a credential and the list of signed headers."""
    if len(credential) > CREDENTIAL_MAX_CHARS:
        raise SignatureRefused("incomplete", f"Credential must not be longer than {CREDENTIAL_MAX_CHARS} characters")
    parts = credential.rsplit("/", 4)  # the user may have chosen an access key that contains a slash
    if len(parts) != 5 or parts[4] != "aws4_request" or not all(parts):
        raise SignatureRefused("incomplete", "Credential must have the form KEY/DATE/REGION/SERVICE/aws4_request")
    names = tuple(signed_headers.split(";"))
    if "host" not in names:
        raise SignatureRefused("mismatch", "'Host' must be a 'SignedHeader' in the AWS Authorization.")
    access_key_id, date, region, service, _ = parts
    text = f"{date}/{region}/{service}/aws4_request"
    return CredentialScope(access_key_id, date, region, service, text, signed_headers, names, frozenset(names))


_presigned_scope = lru_cache(maxsize=SCOPES_MAX)(scope_of)  # a client uses the same scope for many URLs


def _iso_basic(date: str | None) -> str:
    """Convert the Date header to the format YYYYMMDDTHHMMSSZ, which clients sign."""
    if date is None:
        raise SignatureRefused("incomplete", "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header.")
    if _TIMESTAMP.fullmatch(date):
        return date
    try:
        return parse_http_date(date).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    except (ValueError, TypeError, OverflowError, IndexError):
        raise SignatureRefused("incomplete", "the Date header is not a date") from None


# --- verify the signature ---------------------------------------------------------------------------------------------


def known_secret(access_key_id: str, token: str | None, lookup: SecretLookup, now_s: float) -> Secret:
    """Return the secret of an access key after checking its session token and expiry."""
    secret = lookup(access_key_id, token)
    if secret is None or not _same_token(token, secret.session_token):
        message = "The security token included in the request is invalid."
        raise SignatureRefused("unknown", message, AWSAccessKeyId=access_key_id)
    if secret.expires_at_s is not None and now_s >= secret.expires_at_s:
        raise SignatureRefused("expired", "The security token included in the request is expired")
    return secret


def _same_token(given: str | None, expected: str | None) -> bool:
    if given is None or expected is None:
        return given is expected
    return compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


def _check_time(claim: SignatureClaim, now_s: float) -> None:
    signed_at_s = _epoch(claim.timestamp)
    if claim.scope.date != claim.timestamp[:8]:
        message = f"Date in Credential scope does not match {claim.timestamp[:8]}, the date of the request"
        raise SignatureRefused("mismatch", message)
    if signed_at_s > now_s + SKEW_MAX_S:
        limit, now = _stamp(now_s + SKEW_MAX_S), _stamp(now_s)
        message = f"Signature not yet current: {claim.timestamp} is still later than {limit} ({now} + 15 min.)"
        raise SignatureRefused("skewed", message, **_skew(claim, now_s))
    if claim.expires_s is not None:
        expires_at_s = signed_at_s + claim.expires_s
        if now_s > expires_at_s:
            raise SignatureRefused(
                "lapsed",
                f"Request has expired: it was valid for {claim.expires_s} s from {claim.timestamp}",
                **{"X-Amz-Expires": str(claim.expires_s), "Expires": _iso(expires_at_s), "ServerTime": _iso(now_s)},
            )
    elif signed_at_s < now_s - SKEW_MAX_S:
        limit, now = _stamp(now_s - SKEW_MAX_S), _stamp(now_s)
        message = f"Signature expired: {claim.timestamp} is now earlier than {limit} ({now} - 15 min.)"
        raise SignatureRefused("skewed", message, **_skew(claim, now_s))


def _skew(claim: SignatureClaim, now_s: float) -> dict[str, str]:
    most_ms = str(round(1000 * SKEW_MAX_S))
    return {"RequestTime": claim.timestamp, "ServerTime": _iso(now_s), "MaxAllowedSkewMilliseconds": most_ms}


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=64)  # most requests of one second have the same timestamp
def _epoch(timestamp: str) -> float:
    if _TIMESTAMP.fullmatch(timestamp) is None:
        raise SignatureRefused("incomplete", "the date must have the form YYYYMMDDTHHMMSSZ")
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        raise SignatureRefused("incomplete", f"{timestamp} is not a valid date") from None


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y%m%dT%H%M%SZ")


def _check_signed(claim: SignatureClaim, headers: Mapping[str, str]) -> None:
    """Refuse `x-amz-*` headers that are not signed, because an attacker could have added them."""
    for name in headers.keys() - claim.scope.signed:
        if name.startswith("x-amz-") and name not in _NEED_NO_SIGNATURE:
            if claim.expires_s is not None and name == "x-amz-content-sha256":
                continue  # `_payload_hash` compares this header with the body
            raise SignatureRefused("mismatch", f"'{name}' must be a 'SignedHeader' in the AWS Authorization.")


def _payload_hash(claim: SignatureClaim, request: Request, body_sha256: str | None) -> str:
    """Compare the body with the hash in the header, if there is one. Return the payload hash that the signature must cover."""
    stated = request.headers.get("x-amz-content-sha256")
    if claim.scope.service == "s3":
        if stated is None and claim.expires_s is not None:
            return UNSIGNED_PAYLOAD  # the client creates a presigned URL before it knows the body
        if stated == UNSIGNED_PAYLOAD:
            return stated
    if stated is not None and stated.startswith("STREAMING-"):
        raise SignatureRefused("payload", "only S3 accepts a body that is signed chunk by chunk")  # see verify_head
    if body_sha256 is None:
        body_sha256 = sha256(request.body).hexdigest() if request.body else _EMPTY_SHA256
    if stated is not None and not compare_digest(stated.encode("utf-8", "replace"), body_sha256.encode()):
        raise SignatureRefused("payload", CONTENT_HASH_MISMATCH)
    return body_sha256


def _compare(claim: SignatureClaim, secret: Secret, request: Request, payload_hash: str) -> None:
    scope = claim.scope
    keyed = signing_key(secret.secret_key, scope.date, scope.region, scope.service)
    tail = f"{canonical_headers(scope.names, request.headers)}\n{scope.signed_headers}\n{payload_hash}"
    head = f"{ALGORITHM}\n{claim.timestamp}\n{scope.text}\n"
    given = claim.signature.encode("utf-8", "replace")
    is_root = request.path == "/" and not request.query
    for target in _ROOT if is_root else canonical_targets(request, scope.service, is_presigned=claim.expires_s is not None):
        canonical = f"{request.method}\n{target}\n{tail}".encode("latin-1", "replace")  # headers were decoded as latin-1
        to_sign = head + sha256(canonical).hexdigest()
        if compare_digest(keyed.hexdigest(to_sign.encode("utf-8", "replace")).encode(), given):
            return
    raise SignatureRefused("mismatch", MISMATCH, **_calculated(claim, to_sign, canonical))


def _calculated(claim: SignatureClaim, to_sign: str, canonical: bytes) -> dict[str, str]:
    """Return what S3 shows of the signature that it has calculated, so that the client can compare it with its own."""
    shown = {
        "AWSAccessKeyId": claim.scope.access_key_id,
        "StringToSign": to_sign,
        "SignatureProvided": claim.signature,
        "StringToSignBytes": to_sign.encode("utf-8", "replace").hex(" "),
    }
    if len(canonical) <= SHOWN_MAX_BYTES:
        shown |= {"CanonicalRequest": canonical.decode("latin-1"), "CanonicalRequestBytes": canonical.hex(" ")}
    return shown


_ROOT = ("/\n",)  # the canonical path and query of most requests


class _HmacKey:
    """HMAC-SHA256 with a precomputed key. For short texts it takes half the time of `hmac`."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(64, b"\0")  # a derived key has 32 bytes, and HMAC needs a block of 64
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))

    def hexdigest(self, text: bytes) -> str:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return outer.hexdigest()


@lru_cache(maxsize=SIGNING_KEYS_MAX)
def signing_key(secret_key: str, date: str, region: str, service: str) -> _HmacKey:
    """Derive the signing key of one day, region and service."""
    key = f"AWS4{secret_key}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac_digest(key, part.encode("utf-8", "replace"), "sha256")
    return _HmacKey(key)
