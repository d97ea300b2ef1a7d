"""Runs the handler of an AWS operation in the lane of its store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from corral import aws
from corral.core import Tx, Wait
from corral.errors import ApiError
from corral.ids import Ids
from corral.model.settings import Settings
from corral.server.authentication import Authentication
from corral.server.lanes import Lane
from corral.server.request_body import Receive
from corral.server.task_permissions import RequiredOperation
from corral.services import SERVICES, Handler, Service
from corral.services.caller import Caller


class CallRunner:
    def __init__(self, settings: Settings, lanes: Mapping[str, Lane[Any]], ids: Ids) -> None:
        self._settings = settings
        self._lanes = lanes
        self._ids = ids

    async def run(self, call: aws.ApiCall, caller: Caller, receive: Receive) -> aws.Response:
        """Run a call whose body is complete, and return its response."""
        service, operation = served(call)
        params = call.params()
        if call.operation in service.prepare:
            params = await asyncio.to_thread(service.prepare[call.operation], params)
        lane = self._lanes[service.lane]

        def handler(tx: Tx[Any]) -> dict[str, Any]:
            return operation(tx, params, caller)

        if call.operation in service.quick:
            return call.serialize(lane.read_now(handler, self._settings, self._ids), caller.request_id)
        if call.operation in service.heavy:
            try:
                # The reader thread also serializes: serializing ten thousand events would block the event loop.
                return await lane.read(
                    lambda tx: call.serialize(handler(tx), caller.request_id),
                    self._settings,
                    self._ids,
                    caller.task_id or caller.principal,
                    lambda answer: _cancel_when_gone(receive, answer),
                )
            except Wait:
                pass  # run it again in the lane, which can wait without missing a change
        if call.operation in service.pieces:
            result = await _in_pieces(lane, operation, service.pieces[call.operation](params), caller)
            return call.serialize(result, caller.request_id)
        answer = lane.submit(handler, lambda: _cancel_when_gone(receive, answer))
        return call.serialize(await answer, caller.request_id)


class ServiceCall(Struct, eq=False):
    """The exchange of a service other than S3. Its operation and its signature are determined from the whole request."""

    call: aws.ApiCall
    request_id: str
    receive: Receive
    calls: CallRunner

    @property
    def action(self) -> str:
        return f"{self.call.service}:{self.call.operation}"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return authentication.signature(self.call.request, self.call.signing_name)

    def required(self, caller: Caller) -> RequiredOperation:
        served(self.call)  # refuse an operation that is not served as such
        return RequiredOperation(self.call.service, self.call.operation, self.call.params, len(self.call.request.body))

    def denied(self, message: str) -> ApiError:
        return self.call.denied(message)

    async def run(self, caller: Caller) -> aws.Response:
        return await self.calls.run(self.call, caller, self.receive)

    def refuse(self, error: ApiError) -> aws.Response:
        return self.call.serialize_error(error, self.request_id)


def served(call: aws.ApiCall) -> tuple[Service, Handler]:
    """Return the service of a call and the handler of its operation. Raises an ApiError if the operation is not served."""
    found = _find(call.service, call.operation)
    if found is None:
        raise aws.not_served(call)
    return found


@cache  # bounded by the models: recognise refuses unknown operations
def _find(service: str, operation: str) -> tuple[Service, Handler] | None:
    handlers = SERVICES.get(service)
    return (handlers, handlers.operations[operation]) if handlers is not None and operation in handlers.operations else None


async def _in_pieces(lane: Lane[Any], operation: Handler, pieces: list[dict[str, Any]], caller: Caller) -> dict[str, Any]:
    """Run each piece in a separate command, so that other callers are served in between, and concatenate their lists."""
    whole: dict[str, list[Any]] = {}
    for piece in pieces:
        answer = await lane.submit(lambda tx, piece=piece: operation(tx, piece, caller))  # type: ignore[misc]
        for name, found in answer.items():
            whole.setdefault(name, []).extend(found)
    return whole


def _cancel_when_gone(receive: Receive, answer: asyncio.Future[Any]) -> None:
    """Cancel a waiting call if its client disconnects. Before the response, `receive` returns only for a disconnect."""
    gone = asyncio.ensure_future(receive())
    gone.add_done_callback(lambda _: answer.cancel())
    answer.add_done_callback(lambda _: gone.cancel())
