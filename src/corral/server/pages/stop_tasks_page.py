"""The page `/_corral/stop-tasks`. The command `corral down --stop-tasks` uses it to stop all tasks before it stops the server."""

from __future__ import annotations

from functools import partial
from typing import Any

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

PAUSE_MAX_S = 600.0

StopTasksDenied = api_error("AccessDenied", 403)
InvalidStopTasksRequest = api_error("InvalidRequest", 400)
StopTasksMethodNotAllowed = api_error("MethodNotAllowed", 405)


class StopTasks(Struct, frozen=True, forbid_unknown_fields=True):
    pause: float  # no task starts for this many seconds. 0: stop nothing, and end an earlier pause
    reason: str = "all tasks were stopped"


class StopTasksRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    state: Lane[Store]
    action: str = "corral:StopTasks"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return authentication.signature(self.request)

    def required(self, caller: Caller) -> RequiredOperation:
        return RequiredOperation("corral", "StopTasks", dict)

    def denied(self, message: str) -> ApiError:
        return StopTasksDenied(message)

    async def run(self, caller: Caller) -> aws.Response:
        if self.request.method != "POST":
            raise StopTasksMethodNotAllowed(f"{self.request.method} is not served here; use POST.")
        try:
            given = msgspec.json.decode(self.request.body, type=StopTasks)
        except ValueError as error:  # also UnicodeDecodeError, which is no error of msgspec
            raise InvalidStopTasksRequest(f'Send {{"pause": SECONDS, "reason": TEXT}} ({error}).') from None
        if not 0 <= given.pause <= PAUSE_MAX_S:
            raise InvalidStopTasksRequest(f"pause {given.pause:g} is not valid: pass 0 to {PAUSE_MAX_S:.0f} seconds.")
        result = await self.state.submit(partial(_stop, given=given))
        return aws.Response(200, [("content-type", "application/json")], msgspec.json.encode(result))

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)


def _stop(tx: Tx[Store], given: StopTasks) -> dict[str, Any]:
    from corral.services.ecs.stop_all import pause, stop_all  # imported here, because most servers stop without their tasks

    if not given.pause:
        pause(tx, 0.0)
        return {}
    return stop_all(tx, given.reason, given.pause)
