"""The calls of the page: exchanges with the identity of a session. They take the same way as requests to the API.

The identity is known before the exchange begins, so `authenticate` returns it. Everything after that is the same: permissions,
limits of requests, the checks of parameters, the handler, and the audit.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.aws.console_calls import has_stream
from corral.core.errors import ApiError, api_error
from corral.server.authentication import Authentication
from corral.server.authorization import RequiredOperation
from corral.server.http.request_body import Receive
from corral.server.s3_requests import S3Request
from corral.server.service_calls import CallRunner, served

# A session must not prolong itself.
NOT_IN_CONSOLE = frozenset({("corral", "CreateConsoleLink")})

NotInConsole = api_error("NotInConsole", 400)


def error_response(error: ApiError, request_id: str = "") -> aws.Response:
    content = {"error": {"code": error.code, "message": error.message}}
    headers = [("Content-Type", "application/json"), ("Cache-Control", "no-store")]
    if request_id:
        headers.append(("x-amzn-RequestId", request_id))
    return aws.Response(error.status, headers, orjson.dumps(content))


def json_response(content: Any, *more: tuple[str, str]) -> aws.Response:
    return aws.Response(200, [("Content-Type", "application/json"), ("Cache-Control", "no-store"), *more], orjson.dumps(content))


class ConsoleCall(Struct, eq=False):
    """A call of an operation of AWS or of Corral's own. Its body has arrived."""

    request: aws.Request
    call: aws.ApiCall
    identity: aws.Identity
    request_id: str
    receive: Receive
    calls: CallRunner
    parsed: dict[str, Any] | None = None

    @property
    def action(self) -> str:
        return f"{self.call.service}:{self.call.operation}"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return self.identity

    def required(self, caller: Caller) -> RequiredOperation:
        self._check_served()
        return RequiredOperation(*self.call.name, self.parsed if self.parsed is not None else lambda: self._params(caller))

    def denied(self, message: str) -> ApiError:
        return self.call.denied(message)

    async def run(self, caller: Caller) -> aws.Response:
        self._check_served()
        return await self.calls.run(self.call, caller, self.receive, await self._params(caller))

    def refuse(self, error: ApiError) -> aws.Response:
        return error_response(error, self.request_id)

    def _check_served(self) -> None:
        service, _ = served(self.call)
        if self.call.name in NOT_IN_CONSOLE:
            raise NotInConsole(f"The console cannot call {self.call.operation}: use the command line.")
        if self.call.operation in service.admit or has_stream(self.call):
            raise NotInConsole(f"{self.call.operation} has bytes of any size: use /object/BUCKET/KEY.")

    async def _params(self, caller: Caller) -> dict[str, Any]:
        if self.parsed is None:
            self.parsed = await self.calls.params(self.call, caller)
        return self.parsed


class ConsoleObject(S3Request, eq=False):
    """The download or the upload of an object."""

    identity: aws.Identity | None = None

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        assert self.identity is not None
        self._body = aws.unsigned_body(self.head)
        return self.identity

    def refuse(self, error: ApiError) -> aws.Response:
        return error_response(error, self.request_id)


def shown_identity(identity: aws.Identity, account: str) -> dict[str, str]:
    """Return what the page shows of its identity."""
    principal = identity.principal
    return {"account": account, "arn": principal.arn, "name": principal.name or "root", "kind": principal.kind}
