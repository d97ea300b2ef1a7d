"""CORS: answers preflight requests and adds CORS headers to responses, by the CORS rules of the bucket.

Preflight requests are not signed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.core.errors import ApiError, api_error
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.model.settings import Settings
from corral.server.authentication import ANONYMOUS, Authentication
from corral.server.lanes import Lane
from corral.store import Store

AccessForbidden = api_error("AccessForbidden", 403)
BadRequest = api_error("BadRequest")


class BucketCors:
    def __init__(self, state: Lane[Store], settings: Settings, ids: Ids) -> None:
        self._state = state
        self._settings = settings
        self._ids = ids

    def preflight(self, request: aws.Request, request_id: str) -> aws.Response:
        headers = request.headers
        origin, method = headers.get("origin"), headers.get("access-control-request-method")
        if origin is None or method is None:
            raise BadRequest("Insufficient information. Origin request header needed.")
        rules = self._rules(request)
        if rules is None:
            raise AccessForbidden("CORSResponse: CORS is not enabled for this bucket.", Method=method, ResourceType="BUCKET")
        requested = [name.strip() for name in headers.get("access-control-request-headers", "").split(",") if name.strip()]
        allowed = cors_headers(rules, origin, method, requested)
        if allowed is None:
            message = (
                "CORSResponse: This CORS request is not allowed. This is usually because the evalution of Origin, request method / "
                "Access-Control-Request-Method or Access-Control-Request-Headers are not whitelisted by the resource's CORS spec."
            )
            raise AccessForbidden(message, Method=method, ResourceType="OBJECT" if "/" in request.path.strip("/") else "BUCKET")
        return aws.Response(200, [*allowed, ("x-amz-request-id", request_id)], b"")

    def headers(self, request: aws.Request) -> list[tuple[str, str]]:
        """Return the CORS headers for the response to a request that has an Origin header."""
        rules = self._rules(request)
        return (cors_headers(rules, request.headers["origin"], request.method) or []) if rules is not None else []

    def _rules(self, request: aws.Request) -> list[dict[str, object]] | None:
        """Return the CORS rules of a bucket. Return None if the bucket does not exist or has no CORS configuration."""
        # Imported here because S3 is loaded on first use.
        from corral.services.s3.bucket_configurations import CORS, current_document

        name = aws.normalize_s3_request(request).path.lstrip("/").partition("/")[0]

        def find(tx: Tx[Store]) -> list[dict[str, object]] | None:
            bucket = tx.store.buckets.get(name)
            found = current_document(tx, bucket, CORS) if bucket is not None else None
            return None if found is None else found["CORSRules"]

        return self._state.read_now(find, self._settings, self._ids)


class Preflight(Struct, eq=False):
    """A preflight request of a browser, and its response."""

    head: aws.Request
    request_id: str
    cors: BucketCors
    action: str = "s3:Preflight"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return ANONYMOUS

    def required(self, caller: Caller) -> None:
        return None

    def denied(self, message: str) -> ApiError:
        return AccessForbidden(message)

    async def run(self, caller: Caller) -> aws.Response:
        return self.cors.preflight(self.head, self.request_id)

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.head, error, self.request_id)


# A rule of PutBucketCors: AllowedOrigins, AllowedMethods, AllowedHeaders, ExposeHeaders, MaxAgeSeconds.
CorsRule = Mapping[str, Any]


def cors_headers(
    rules: Sequence[CorsRule], origin: str, method: str, headers: Sequence[str] | None = None
) -> list[tuple[str, str]] | None:
    """Return the CORS headers of the response.

    Return None if no rule allows the request. For a preflight, `headers` are the requested headers.
    """
    for rule in rules:
        matched = next((each for each in rule["AllowedOrigins"] if _matches(each, origin)), None)
        if matched is None or method not in rule["AllowedMethods"]:
            continue
        allowed = [each.lower() for each in rule.get("AllowedHeaders", ())]
        if not all(any(_matches(each, name.lower()) for each in allowed) for name in headers or ()):
            continue
        return _headers(rule, "*" if matched == "*" else origin, headers)
    return None


def _headers(rule: CorsRule, origin: str, requested: Sequence[str] | None) -> list[tuple[str, str]]:
    found = [("Access-Control-Allow-Origin", origin), ("Access-Control-Allow-Methods", ", ".join(rule["AllowedMethods"]))]
    if requested:
        found.append(("Access-Control-Allow-Headers", ", ".join(name.lower() for name in requested)))
    if rule.get("ExposeHeaders"):
        found.append(("Access-Control-Expose-Headers", ", ".join(rule["ExposeHeaders"])))
    if "MaxAgeSeconds" in rule:
        found.append(("Access-Control-Max-Age", str(rule["MaxAgeSeconds"])))
    if origin != "*":
        found.append(("Access-Control-Allow-Credentials", "true"))
    return [*found, ("Vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method")]


def _matches(pattern: str, value: str) -> bool:
    return fnmatchcase(value, pattern.replace("[", "[[]").replace("?", "[?]"))
