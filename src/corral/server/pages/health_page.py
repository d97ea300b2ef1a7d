"""The page `/_corral/health`, with which anybody can ask whether the server responds. Corral has no other pages below `/_corral/`,
except the page for objects (`objects_page.py`): its own operations are a service (`services/corral`).
"""

from __future__ import annotations

import orjson
from msgspec import Struct

import corral
from corral import aws
from corral.access.caller import Caller
from corral.core.errors import ApiError, api_error
from corral.server.authentication import ANONYMOUS, Authentication
from corral.server.task_permissions import RequiredOperation

PATH = "/_corral/health"
PageNotFound = api_error("NotFound", 404)


class HealthRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    action: str = "corral:Health"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return ANONYMOUS

    def required(self, caller: Caller) -> RequiredOperation | None:
        return None

    def denied(self, message: str) -> ApiError:
        raise AssertionError("this page needs no permission")

    async def run(self, caller: Caller) -> aws.Response:
        if self.request.path != PATH:
            raise PageNotFound(f"Corral has no page {self.request.path}: its pages are {PATH} and /_corral/objects.")
        content = {"status": "ok", "version": corral.__version__}
        return aws.Response(200, [("content-type", "application/json")], orjson.dumps(content))

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)
