"""Verifies the signatures of S3 requests: of signed requests before their body arrives, of presigned URLs, and of form uploads."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import Any
from urllib.parse import unquote

import orjson
from msgspec import Struct

from corral.aws.form_encoding import pairs_from_text
from corral.aws.http import Request
from corral.aws.parse.text import blob_from_base64
from corral.aws.request_body import ChunkedBody, ChunkSigner, PlainBody, RequestBody
from corral.aws.s3 import DECODED_LENGTH, normalize_s3_request
from corral.aws.signature_errors import MISMATCH, SignatureRefused, signature_error
from corral.aws.sigv4 import (
    ALGORITHM,
    UNSIGNED_PAYLOAD,
    Identity,
    Secret,
    SecretLookup,
    SignatureClaim,
    check_signature,
    identity_of,
    known_secret,
    scope_of,
    signing_key,
)
from corral.aws.timestamps import seconds_from_text
from corral.aws.wire_errors import ParseError, error_class

SIGNED_CHUNKS = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_CHUNKS_AND_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_CHUNKS_AND_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
LENGTH_MAX_BYTES = 1 << 50  # a larger length is refused here; S3's own limits are checked by its handlers

_CHUNKED = frozenset({SIGNED_CHUNKS, SIGNED_CHUNKS_AND_TRAILER, UNSIGNED_CHUNKS_AND_TRAILER})
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NUMBER = re.compile(r"[0-9]{1,18}")
# In signature version 2, the signed resource contains only these query parameters. `Expires`, `content-md5`, `content-type` and
# `x-amz-*` are signed separately. A client can change all others without a new signature.
_SIGNED_PARAMETERS = frozenset(
    {
        "accelerate", "acl", "analytics", "cors", "defaultObjectAcl", "delete", "inventory", "lifecycle", "location", "logging",
        "metrics", "notification", "object-lock", "partNumber", "policy", "replication", "requestPayment",
        "response-cache-control", "response-content-disposition", "response-content-encoding", "response-content-language",
        "response-content-type", "response-expires", "restore", "select", "select-type", "storageClass", "tagging", "torrent",
        "uploadId", "uploads", "versionId", "versioning", "versions", "website",
    }
)  # fmt: skip


class PostPolicy(Struct, frozen=True):
    """The caller who signed the policy of a form upload, and the conditions of that policy. S3's handler checks the conditions."""

    identity: Identity
    conditions: list[Any]


def verify_head(head: Request, lookup: SecretLookup, now_s: float, *, signing_name: str = "s3") -> tuple[Identity, RequestBody]:
    """Verify the signature of a request before its body arrives.

    Return the caller's identity and a decoder that verifies the body.
    """
    try:
        if "authorization" not in head.headers and "AWSAccessKeyId=" in head.query:
            return _verify_old_url(head, lookup, now_s), PlainBody(None)
        if head.headers.get("authorization", "").startswith("AWS "):
            message = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
            raise error_class("InvalidRequest", 400)(message)
        stated = _stated_hash(head)
        identity, claim, secret = check_signature(head, lookup, now_s, signing_name, stated)
        return identity, _body(stated, head.headers, claim, secret)
    except SignatureRefused as refused:
        raise signature_error("rest-xml", refused) from None
    except ParseError as error:
        raise signature_error("rest-xml", SignatureRefused("incomplete", error.detail)) from None


def is_unsigned(head: Request) -> bool:
    """Whether the head of a request has no signature of any kind."""
    query = head.query
    return "authorization" not in head.headers and not any(
        f"{name}=" in query for name in ("X-Amz-Signature", "X-Amz-Credential", "AWSAccessKeyId", "Signature")
    )


def unsigned_body(head: Request) -> RequestBody:
    """Return the decoder for the body of a request without a signature."""
    stated = head.headers.get("x-amz-content-sha256", UNSIGNED_PAYLOAD)
    if stated in (SIGNED_CHUNKS, SIGNED_CHUNKS_AND_TRAILER):
        raise error_class("InvalidArgument", 400)("The chunks of a request without a signature cannot be signed.")
    if stated == UNSIGNED_CHUNKS_AND_TRAILER:
        return _chunked(head.headers, None, has_trailers=True)
    return PlainBody(stated if _SHA256.fullmatch(stated) is not None else None)


def verify_post_policy(fields: Mapping[str, str], lookup: SecretLookup, now_s: float) -> PostPolicy:
    """Verify the policy of a form upload. The names of the `fields` are in lower case."""
    policy = fields.get("policy")
    if not policy:
        raise error_class("AccessDenied", 403)("The form has no policy field: add a signed policy document to the form")
    try:
        identity = _policy_signer(policy, fields, lookup, now_s)
    except SignatureRefused as refused:
        raise signature_error("rest-xml", refused) from None
    return PostPolicy(identity, _conditions(policy, now_s))


# --- version 4 --------------------------------------------------------------------------------------------------------


def _stated_hash(head: Request) -> str:
    stated = head.headers.get("x-amz-content-sha256")
    if stated is None and "authorization" not in head.headers:
        if "X-Amz-Content-Sha256=" not in head.query:
            return UNSIGNED_PAYLOAD  # the client creates a presigned URL before it knows the body
        stated = dict(pairs_from_text(head.query)).get("X-Amz-Content-Sha256")
    if stated is None:
        raise error_class("InvalidRequest", 400)("Missing required header for this request: x-amz-content-sha256")
    if stated != UNSIGNED_PAYLOAD and stated not in _CHUNKED and _SHA256.fullmatch(stated) is None:
        kinds = ", ".join((UNSIGNED_PAYLOAD, *sorted(_CHUNKED)))
        raise error_class("InvalidArgument", 400)(f"x-amz-content-sha256 must be {kinds} or a valid sha256 value.")
    return stated


def _body(stated: str, headers: Mapping[str, str], claim: SignatureClaim, secret: Secret) -> RequestBody:
    if stated not in _CHUNKED:
        return PlainBody(stated if stated != UNSIGNED_PAYLOAD else None)
    signer = None
    if stated != UNSIGNED_CHUNKS_AND_TRAILER:
        scope = claim.scope
        key = signing_key(secret.secret_key, scope.date, scope.region, scope.service)
        signer = ChunkSigner(key, claim.timestamp, scope.text, claim.signature)
    return _chunked(headers, signer, has_trailers=stated != SIGNED_CHUNKS)


def _chunked(headers: Mapping[str, str], signer: ChunkSigner | None, *, has_trailers: bool) -> ChunkedBody:
    size = headers.get(DECODED_LENGTH, "")
    if _NUMBER.fullmatch(size) is None or int(size) > LENGTH_MAX_BYTES:
        raise error_class("MissingContentLength", 411)(f"You must provide the {DECODED_LENGTH} HTTP header.")
    declared = [name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",")]
    trailers = tuple(name for name in declared if name) if has_trailers else ()
    return ChunkedBody(int(size), trailers, signer)


# --- version 2, which boto3 still uses for presigned URLs -------------------------------------------------------------


def _verify_old_url(head: Request, lookup: SecretLookup, now_s: float) -> Identity:
    query = dict(pairs_from_text(head.query))
    request = normalize_s3_request(head)
    access_key_id, expires = query.get("AWSAccessKeyId", ""), query.get("Expires", "")
    if not query.get("Signature") or _NUMBER.fullmatch(expires) is None:
        message = "Query-string authentication requires the Signature, Expires and AWSAccessKeyId parameters"
        raise error_class("AccessDenied", 403)(message)
    secret = known_secret(access_key_id, request.headers.get("x-amz-security-token"), lookup, now_s)
    if now_s > int(expires):
        raise SignatureRefused("lapsed", "Request has expired", Expires=expires)
    standard = (request.headers.get(name) or query.get(name, "") for name in ("content-md5", "content-type"))
    extra = sorted((name, value) for name, value in request.headers.items() if name.startswith("x-amz-"))
    lines = [head.method, *standard, expires, *(f"{name}:{value.strip()}" for name, value in extra)]
    given = query["Signature"].replace(" ", "+")  # some clients do not encode plus signs, so they were decoded to spaces
    texts = ["\n".join((*lines, resource)) for resource in _resources(request)]
    # Refuse line breaks in values: with them, two different requests could have the same signature.
    if any("\n" in line for line in lines) or not any(_same(_old_signature(secret, text), given) for text in texts):
        shown = {"AWSAccessKeyId": access_key_id, "StringToSign": texts[0], "SignatureProvided": given}
        raise SignatureRefused("mismatch", MISMATCH, **shown, StringToSignBytes=texts[0].encode("utf-8", "replace").hex(" "))
    return identity_of(access_key_id, secret, "", "s3")


def _resources(request: Request) -> list[str]:
    """Return the resources that the client may have signed.

    For a bucket, boto3 signs a path with a trailing slash, but requests the path without it.
    """
    pairs = [item.split("=", 1) for item in request.query.split("&")]
    signed = sorted((pair for pair in pairs if pair[0] in _SIGNED_PARAMETERS), key=lambda pair: pair[0])
    parameters = "?" + "&".join("=".join((pair[0], *map(unquote, pair[1:]))) for pair in signed) if signed else ""
    bucket = request.path.count("/") == 1
    return [path + parameters for path in ((request.path, request.path + "/") if bucket else (request.path,))]


def _old_signature(secret: Secret, text: str) -> str:
    digest = hmac_digest(secret.secret_key.encode(), text.encode("utf-8", "replace"), "sha1")
    return b64encode(digest).decode("ascii")


def _same(expected: str, given: str) -> bool:
    return compare_digest(expected.encode(), given.encode("utf-8", "replace"))


# --- policies of forms ------------------------------------------------------------------------------------------------


def _policy_signer(policy: str, fields: Mapping[str, str], lookup: SecretLookup, now_s: float) -> Identity:
    token = fields.get("x-amz-security-token")
    if "x-amz-signature" not in fields:
        access_key_id = fields.get("awsaccesskeyid", "")
        secret = known_secret(access_key_id, token, lookup, now_s)
        if not _same(_old_signature(secret, policy), fields.get("signature", "")):
            raise SignatureRefused("mismatch", MISMATCH)
        return identity_of(access_key_id, secret, "", "s3")
    if fields.get("x-amz-algorithm") != ALGORITHM:
        raise SignatureRefused("incomplete", f"x-amz-algorithm must be {ALGORITHM}")
    scope = scope_of(fields.get("x-amz-credential", ""), "host")
    secret = known_secret(scope.access_key_id, token, lookup, now_s)
    if scope.service != "s3" or not fields.get("x-amz-date", "").startswith(scope.date):
        raise SignatureRefused("mismatch", MISMATCH)
    key = signing_key(secret.secret_key, scope.date, scope.region, scope.service)
    if not _same(key.hexdigest(policy.encode("utf-8", "replace")), fields["x-amz-signature"]):
        raise SignatureRefused("mismatch", MISMATCH)
    return identity_of(scope.access_key_id, secret, scope.region, scope.service)


def _conditions(policy: str, now_s: float) -> list[Any]:
    try:
        document = orjson.loads(blob_from_base64(policy))
        expires_at_s = seconds_from_text(document["expiration"], "iso8601")
        conditions = document["conditions"]
    except (ParseError, orjson.JSONDecodeError, KeyError, TypeError):
        conditions, expires_at_s = None, 0.0
    if not isinstance(conditions, list):
        message = "The content of the form does not meet the conditions specified in the policy document."
        raise error_class("InvalidPolicyDocument", 400)(message)
    if now_s > expires_at_s:
        raise error_class("AccessDenied", 403)("Invalid according to Policy: Policy expired.")
    return conditions
