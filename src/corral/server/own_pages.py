"""Corral's own pages: `/_corral/health`, which is public, and `/_corral/status`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

import corral
from corral import aws
from corral.core import Tx
from corral.errors import ApiError, api_error
from corral.server.authentication import ANONYMOUS, Authentication
from corral.server.lanes import Lane
from corral.services.caller import Caller
from corral.store import Store

NotFound = api_error("NotFound", 404)
Page = Callable[[], Awaitable[dict[str, Any]]]


class OwnPages:
    def __init__(self, state: Lane[Store], status: Callable[[Tx[Store]], dict[str, Any]]) -> None:
        self._state = state
        self._status_of = status

    def exchange(self, request: aws.Request, request_id: str) -> PageRequest:
        if request.path == "/_corral/health":
            return PageRequest("corral:Health", request, request_id, _health)
        if request.path == "/_corral/status":
            return PageRequest("corral:Status", request, request_id, self._status)
        raise NotFound(f"Corral has no page {request.path}.")

    async def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = await self._state.submit(self._status_of)
        return status


@dataclass(slots=True, eq=False)
class PageRequest:
    action: str
    request: aws.Request
    request_id: str
    page: Page

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return ANONYMOUS if self.page is _health else authentication.signature(self.request)

    async def run(self, caller: Caller) -> aws.Response:
        return aws.Response(200, [("content-type", "application/json")], orjson.dumps(await self.page()))

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)


async def _health() -> dict[str, Any]:
    return {"status": "ok", "version": corral.__version__}
