"""The page with which `corral connect` redeems a code for an access key. It needs no signature: the code is the permission."""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from corral import aws
from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.principal import iam_user
from corral.model.settings import Settings
from corral.server.audit.recording import Audit
from corral.server.authentication import ANONYMOUS, Authentication
from corral.server.lanes import Lane
from corral.services.corral.errors import InvalidRequestException
from corral.services.corral.people import redeem
from corral.store import Store


class ConnectRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    state: Lane[Store]
    settings: Settings
    audit: Audit
    action: str = "corral:Connect"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return ANONYMOUS

    def required(self, caller: Caller) -> None:
        """Return None, because the code contains the permission."""

    def denied(self, message: str) -> ApiError:
        raise AssertionError("this page needs no permission")

    async def run(self, caller: Caller) -> aws.Response:
        code = _code(self.request)

        def connect(tx: Tx[Store]) -> dict[str, Any]:
            return redeem(tx, code, caller)

        found = await self.state.submit(connect)
        name, key = found["userName"], found["accessKeyId"]
        user = replace(caller, principal=iam_user(self.settings.account, name))
        made = {"AccessKey": {"UserName": name, "AccessKeyId": key}}
        self.audit.succeeded(self.request, user, ("iam", "CreateAccessKey"), {"UserName": name}, made)
        return aws.Response(200, [("content-type", "application/json"), ("cache-control", "no-store")], orjson.dumps(found))

    def refuse(self, error: ApiError) -> aws.Response:
        content = {"code": error.code, "message": error.message}
        return aws.Response(error.status, [("content-type", "application/json")], orjson.dumps(content))


def _code(request: aws.Request) -> str:
    try:
        content = orjson.loads(request.body)
    except ValueError:
        content = None
    if request.method != "POST" or not isinstance(content, dict) or not isinstance(content.get("code"), str):
        raise InvalidRequestException('Send POST with {"code": "…"}: `corral connect` does it.')
    return str(content["code"])
