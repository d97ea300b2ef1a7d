"""The page `/_corral/spot`. The command `corral spot interrupt` uses it to interrupt a spot instance."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.server.authentication import Authentication
from corral.server.lanes import Lane
from corral.server.task_permissions import RequiredOperation
from corral.store import Store

SpotDenied = api_error("AccessDenied", 403)
InvalidSpotRequest = api_error("InvalidRequest", 400)
SpotMethodNotAllowed = api_error("MethodNotAllowed", 405)


class Interruption(Struct, frozen=True, forbid_unknown_fields=True):
    instance: str
    notice: float = 120.0  # the seconds between the notice and the termination


class SpotRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    state: Lane[Store]
    action: str = "corral:InterruptSpotInstance"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return authentication.signature(self.request)

    def required(self, caller: Caller) -> RequiredOperation:
        return RequiredOperation("corral", "InterruptSpotInstance", dict)

    def denied(self, message: str) -> ApiError:
        return SpotDenied(message)

    async def run(self, caller: Caller) -> aws.Response:
        if self.request.method != "POST":
            raise SpotMethodNotAllowed(f"{self.request.method} is not served here; use POST.")
        try:
            given = msgspec.json.decode(self.request.body, type=Interruption)
        except ValueError as error:  # also UnicodeDecodeError, which is no error of msgspec
            raise InvalidSpotRequest(f'Send {{"instance": ID}} or {{"instance": ID, "notice": SECONDS}} ({error}).') from None
        at_s = await self.state.submit(partial(_interrupt, given=given))
        return aws.Response(
            200, [("content-type", "application/json")], msgspec.json.encode({"instance": given.instance, "terminatesAtS": at_s})
        )

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)


def _interrupt(tx: Tx[Store], given: Interruption) -> float:
    from corral.fleet.spot_interruptions import interrupt  # imported here, because few servers interrupt instances

    return interrupt(tx, given.instance, given.notice)
