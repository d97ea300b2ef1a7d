"""Downloads and uploads of objects through the console. Their responses never become pages of the console's origin."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from msgspec import Struct

from corral import aws
from corral.core.errors import api_error

TICKET_S = 60.0
TICKETS_MAX = 20  # of one session; a new one above this number ends the oldest
# The headers of the browser that concern an object, and those of the response that the page needs.
ASKED = ("range", "content-length", "transfer-encoding", "content-type", "expect", "if-match", "if-none-match", "user-agent")
ANSWERED = frozenset(
    {"accept-ranges", "content-length", "content-range", "etag", "last-modified", "x-amz-request-id", "x-amz-version-id"}
)
DOWNLOAD_POLICY = "sandbox; default-src 'none'; frame-ancestors 'none'"

InvalidObject = api_error("InvalidRequest", 400)
TicketEnded = api_error("TicketEnded", 403)


class WantedObject(Struct, frozen=True):
    path: str  # BUCKET/KEY, percent-encoded
    query: str
    cookie: str
    expires_at_s: float


class Tickets:
    """Downloads that the page has asked for, and the browser has not begun. Each is for one session, and works once."""

    def __init__(self) -> None:
        self._wanted: dict[str, WantedObject] = {}

    def issue(self, wanted: Mapping[str, Any], cookie: str, now_s: float) -> str:
        bucket, key, version = (wanted.get(name) or "" for name in ("bucket", "key", "versionId"))
        if not all(isinstance(each, str) for each in (bucket, key, version)) or not bucket or not key:
            raise InvalidObject('Send {"bucket": BUCKET, "key": KEY, "versionId": ID or null}.')
        self._wanted = {name: each for name, each in self._wanted.items() if each.expires_at_s > now_s}
        same = [name for name, each in self._wanted.items() if each.cookie == cookie]
        for name in same[: max(0, len(same) + 1 - TICKETS_MAX)]:
            del self._wanted[name]
        ticket = secrets.token_urlsafe(24)
        query = f"versionId={quote(version, safe='')}" if version else ""
        self._wanted[ticket] = WantedObject(f"{quote(bucket, safe='')}/{quote(key)}", query, cookie, now_s + TICKET_S)
        return ticket

    def take(self, ticket: str, cookie: str, now_s: float) -> WantedObject:
        wanted = self._wanted.pop(ticket, None)
        if wanted is None or wanted.expires_at_s <= now_s or not secrets.compare_digest(wanted.cookie.encode(), cookie.encode()):
            raise TicketEnded("This download has begun already, or has expired: begin it again in the console.")
        return wanted


def object_request(request: aws.Request, path: str, query: str, host: str) -> aws.Request:
    """Return the request to S3 for the object at a path `BUCKET/KEY`."""
    bucket, _, key = path.partition("/")
    given = [each for each in query.split("&") if each]
    if not bucket or not key or any(not each.startswith("versionId=") for each in given):
        raise InvalidObject("Use /object/BUCKET/KEY, with ?versionId=ID for a version.")
    headers = {name: request.headers[name] for name in ASKED if name in request.headers}
    headers["host"] = host
    return aws.Request(request.method, f"/{path}", query, headers, b"", request.address, request.is_secure)


def with_download_headers(response: aws.Response, head: aws.Request) -> aws.Response:
    """Return the response with headers that make browsers store the object, and never show or run it."""
    if response.status >= 400:
        return response
    name = quote(unquote(head.path.rpartition("/")[2]) or "object", safe="")
    headers = [(each, value) for each, value in response.headers if each.lower() in ANSWERED]
    headers += [
        ("Content-Type", "application/octet-stream"),
        ("Content-Disposition", f"attachment; filename*=UTF-8''{name}"),
        ("Content-Security-Policy", DOWNLOAD_POLICY),
        ("Cache-Control", "no-store"),
    ]
    return aws.Response(response.status, headers, response.body, response.stream)
