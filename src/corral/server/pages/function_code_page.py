"""The page with the code of a function, at the `Code.Location` that GetFunction returns. It needs no signature."""

from __future__ import annotations

from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.ids import Ids
from corral.model.settings import Settings
from corral.server.authentication import ANONYMOUS, Authentication
from corral.server.lanes import Lane
from corral.services.lambda_.code_links import PATH, linked_code
from corral.store import Store


class FunctionCodeRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    state: Lane[Store]
    settings: Settings
    ids: Ids
    action: str = "lambda:GetFunctionCode"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return ANONYMOUS

    def required(self, caller: Caller) -> None:
        """Return None, because the link contains the permission."""

    def denied(self, message: str) -> ApiError:
        raise AssertionError("this page needs no permission")

    async def run(self, caller: Caller) -> aws.Response:
        token = self.request.path.removeprefix(PATH)
        code = await self.state.read(lambda tx: linked_code(tx, token), self.settings, self.ids)
        return aws.Response(200, [("content-type", "application/zip")], code)

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)
