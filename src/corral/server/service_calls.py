"""Runs the handler of an AWS operation in the lane of its service.

There are two exceptions: quick operations run on the event loop, and heavy operations run in reader threads. `Service`
(`services/__init__.py`) lists both kinds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.aws.parse.effort import SMALL
from corral.blobs import Blobs
from corral.core.commands import Wait
from corral.core.database import NeedsWriter
from corral.core.errors import ApiError
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.model.settings import Settings
from corral.operations.services import SERVICES, Fetch, Handler, Service, Settle
from corral.server.audit.recording import Audit
from corral.server.authentication import Authentication
from corral.server.authorization import RequiredOperation
from corral.server.http.connection import ClientGone, HttpConnection
from corral.server.http.request_body import Receive, check_size, give_back, whole_body
from corral.server.http.unverified_memory import UnverifiedMemory
from corral.server.lanes import Lane

if TYPE_CHECKING:
    from corral.server.parser_processes import ParserProcesses

IN_TURN_BYTES = 16 * 1024  # larger bodies of a caller are prepared one after the other
LARGE_BODY_BYTES = 256 * 1024  # a larger body is hashed in a thread
SHARED_S = 0.25  # so long, equal requests of clients that poll may share a response
SHARED_MAX = 16  # the number of responses that are kept for this
DECODERS = 2  # the number of these threads

T = TypeVar("T")


class CallRunner:
    def __init__(
        self, settings: Settings, lanes: Mapping[str, Lane[Any]], ids: Ids, memory: UnverifiedMemory, blobs: Blobs, audit: Audit
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._ids = ids
        self._blobs = blobs
        self.memory = memory
        self.audit = audit
        self._decoders: ThreadPoolExecutor | None = None
        # Restricted caller, operation, protocol, region and body of a request → `Lane.writes` when it arrived, when it arrived, and
        # its response, maybe to come.
        self._shared: dict[tuple[str, str, str, str, bytes], tuple[int, float, asyncio.Future[aws.Response]]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # caller → the lock for its large bodies

    async def off_loop(self, function: Callable[[], T]) -> T:
        """Run a slow function in a thread, so that the event loop can serve other requests in the meantime."""
        if self._decoders is None:
            self._decoders = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoding")
        return await asyncio.get_running_loop().run_in_executor(self._decoders, function)

    async def recognise(self, request: aws.Request) -> aws.ApiCall:
        """Decode the form of a verified request. Use a thread if that takes long."""
        if "content-encoding" not in request.headers and aws.effort_of("query", request.body) is SMALL:
            return aws.recognise(request)
        return await self._decoded(self.off_loop(partial(aws.recognise, request)))

    async def params(self, call: aws.ApiCall, caller: Caller) -> dict[str, Any]:
        """Parse the body of a verified request: here, in a thread or in another process, depending on how long it takes.

        A caller's large bodies are parsed one after the other, so that callers take turns.
        """
        effort = None if call.is_compressed else call.effort()
        if effort is SMALL:
            return call.params()
        async with self._turn(caller):
            if effort is None:
                call = await self.off_loop(call.decompressed)
                effort = call.effort()
            if effort is aws.Effort.HUGE:
                return await self._decoded(self._parsers.params(call))
            return await self._decoded(self.off_loop(call.params))

    def _turn(self, caller: Caller) -> asyncio.Lock:
        """Return the lock for the large bodies of a caller."""
        return self._turns.setdefault(caller.task_id or caller.principal.arn, asyncio.Lock())

    @cached_property
    def _parsers(self) -> ParserProcesses:
        from corral.server.parser_processes import ParserProcesses  # imported here, because few requests need it

        return ParserProcesses()

    async def _decoded(self, result: Awaitable[T]) -> T:
        try:
            return await result
        finally:
            self.memory.trim_soon()

    async def run(self, call: aws.ApiCall, caller: Caller, receive: Receive, params: dict[str, Any] | None = None) -> aws.Response:
        """Run a call whose body has arrived completely, and return the response. `params` are its parameters, if already parsed."""
        service, operation = served(call)
        if params is None:
            params = await self.params(call, caller)
        lane = self._lanes[service.lanes.get(call.operation, service.lane)]
        if call.operation in service.fetch:
            params = await self._fetched(service.fetch[call.operation], lane, params, caller)
        if call.operation in service.prepare:
            prepare = partial(service.prepare[call.operation], params)
            if len(call.request.body) <= IN_TURN_BYTES:
                params = await self.off_loop(prepare)
            else:
                async with self._turn(caller):
                    params = await self.off_loop(prepare)

        if call.operation in service.steps:
            result = await _in_steps(lane, service.steps[call.operation](params, caller), receive, caller.owner)
            self.audit.succeeded(call.request, caller, call.name, params, result)
            return call.serialize(result, caller.request_id, lane.steps)

        if caller.sees is not None:
            operation = _limited(call, operation)

        def handler(tx: Tx[Any]) -> dict[str, Any]:
            return operation(tx, params, caller)

        if call.operation in service.quick:
            return call.serialize(lane.read_without_snapshot(handler, self._settings, self._ids), caller.request_id, lane.steps)
        if call.operation in service.heavy:
            if call.operation in service.reads_fleet:
                return await self._read_fleet(call, lane, handler, caller)
            try:
                return await self._read(call, lane, handler, caller, receive)
            except (Wait, NeedsWriter):
                pass  # run it again in the lane, where it cannot miss a change, and where all that is in memory can be read
        if call.operation in service.pieces:
            result = await _in_pieces(lane, operation, service.pieces[call.operation](params), caller)
            self.audit.succeeded(call.request, caller, call.name, params, result)
            return call.serialize(result, caller.request_id, lane.steps)
        read_only = call.operation in service.heavy
        answer = lane.submit(handler, lambda: cancel_when_gone(receive, answer), read_only=read_only, owner=caller.owner)
        result = await answer
        self.audit.succeeded(call.request, caller, call.name, params, result)
        if call.operation in service.settle:
            await self._settled(service.settle[call.operation], lane, params, caller, receive)
        return call.serialize(result, caller.request_id, lane.steps)

    async def _read(
        self, call: aws.ApiCall, lane: Lane[Any], handler: Callable[[Tx[Any]], Any], caller: Caller, receive: Receive
    ) -> aws.Response:
        """Run a heavy read in a reader thread. This thread also serializes the response, because that may take long."""
        return await lane.read(
            lambda tx: call.serialize(handler(tx), caller.request_id, lane.steps),
            self._settings,
            self._ids,
            caller.task_id or caller.principal.arn,
            lambda answer: cancel_when_gone(receive, answer),
        )

    async def _read_fleet(
        self, call: aws.ApiCall, lane: Lane[Any], handler: Callable[[Tx[Any]], Any], caller: Caller
    ) -> aws.Response:
        """Run a heavy read that needs what the writer has in memory.

        Many clients may poll such an operation. So equal requests within SHARED_S share one read, unless something has been
        committed in between. If a client disconnects, the read continues, because others may wait for its response.
        """

        def read(tx: Tx[Any]) -> aws.Response:
            tx.store.show_published()
            return call.serialize(handler(tx), caller.request_id)

        async def answer() -> aws.Response:
            await lane.publish()
            return await lane.read(read, self._settings, self._ids, caller.task_id or caller.principal.arn)

        viewer = caller.principal.arn if caller.is_restricted else ""
        key = viewer, call.operation, call.codecs.wire, caller.region, call.request.body
        writes, now_s = lane.writes, time.monotonic()
        shared = self._shared.get(key)
        if shared is None or shared[0] != writes or now_s - shared[1] > SHARED_S:
            if len(self._shared) >= SHARED_MAX:
                self._shared.clear()
            shared = self._shared[key] = writes, now_s, asyncio.ensure_future(answer())
        found = await asyncio.shield(shared[2])
        return aws.Response(found.status, [("x-amzn-RequestId", caller.request_id), *found.headers[1:]], found.body)

    async def _settled(self, settle: Settle, lane: Lane[Any], params: dict[str, Any], caller: Caller, receive: Receive) -> None:
        """Delay the response until the work that the request has begun, for example a new stack, is complete.

        `settle` limits this wait to a short time. The request itself has already succeeded, so errors of the wait are ignored.
        """
        waiting = lane.submit(lambda tx: settle(tx, params, caller), lambda: cancel_when_gone(receive, waiting), owner=caller.owner)
        with suppress(ApiError):
            await waiting

    async def _fetched(self, fetch: Fetch, lane: Lane[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Return the parameters, with the bytes of the objects to which they refer."""
        found = lane.read_now(lambda tx: fetch(tx, params, caller), self._settings, self._ids)
        with self._blobs.reading([each.blob for slices in found.values() for each in slices]):
            return {**params, **{name: await asyncio.to_thread(self._blobs.read, slices) for name, slices in found.items()}}


class ServiceCall(Struct, eq=False):
    """A request to a service other than S3.

    The signature covers the body as it was sent. So the signature is verified first, and then the body is decompressed and decoded.
    """

    request: aws.Request  # has no body until `authenticate` has read it from the connection
    # None: the name of the operation is in the form body, which is decoded after the signature has been verified.
    call: aws.ApiCall | None
    request_id: str
    receive: Receive
    connection: HttpConnection
    calls: CallRunner
    parsed: dict[str, Any] | None = None  # the parameters, as soon as they are known

    @property
    def action(self) -> str:
        return f"{self.call.service}:{self.call.operation}" if self.call is not None else "unknown"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        request, call, calls = self.request, self.call, self.calls
        pending = authentication.begin_signature(request, call.signing_name if call is not None else None)
        if self.connection.has_more and not self.connection.place.is_verified:
            self.connection.place.claim()
        body, taken = await whole_body(request.headers, self.receive, self.connection, aws.BODY_MAX_BYTES)
        request.body = body
        try:
            body_sha256 = (await calls.off_loop(lambda: sha256(body).hexdigest())) if len(body) > LARGE_BODY_BYTES else None
            identity = pending.finish(body_sha256)
        finally:
            give_back(self.connection, taken)
        service = aws.SERVICE_BY_SIGNING_NAME.get(identity.service)
        check_size(body, service.body_max_bytes if service is not None else aws.BODY_MAX_BYTES)
        if call is None:
            call = self.call = await calls.recognise(request)
            if call.signing_name != identity.service:
                raise aws.wrong_service(request, call.signing_name)
        return identity

    def required(self, caller: Caller) -> RequiredOperation:
        call = self._recognised()
        served(call)  # raise an error if the operation is not served
        return RequiredOperation(*call.name, self.parsed if self.parsed is not None else partial(self._params, caller))

    def denied(self, message: str) -> ApiError:
        return self._recognised().denied(message)

    async def run(self, caller: Caller) -> aws.Response:
        call = self._recognised()
        served(call)  # raise an error if the operation is not served, before its parameters are checked
        params = self.parsed if self.parsed is not None else await self.calls.params(call, caller)
        return await self.calls.run(call, caller, self.receive, params)

    async def _params(self, caller: Caller) -> dict[str, Any]:
        self.parsed = await self.calls.params(self._recognised(), caller)
        return self.parsed

    def _recognised(self) -> aws.ApiCall:
        assert self.call is not None, "authenticate must be called before this"
        return self.call

    def refuse(self, error: ApiError) -> aws.Response:
        if self.call is None:
            return aws.serialize_refusal(self.request, error, self.request_id)
        return self.call.serialize_error(error, self.request_id)


def served(call: aws.ApiCall) -> tuple[Service, Handler]:
    """Return the service of a call, and the handler of its operation. Raise an ApiError if the operation is not served."""
    found = _find(call.service, call.operation)
    if found is None:
        raise aws.not_served(call)
    return found


@cache  # the number of entries is bounded, because `recognise` refuses unknown operations
def _find(service: str, operation: str) -> tuple[Service, Handler] | None:
    handlers = SERVICES.get(service)
    return (handlers, handlers.operations[operation]) if handlers is not None and operation in handlers.operations else None


def _limited(call: aws.ApiCall, operation: Handler) -> Handler:
    """Return the handler of a listing, whose response has only the elements that the caller may see."""
    # imported with the first listing of a restricted caller
    from corral.operations.listings import listing_of, visible, with_hidden_tokens, with_open_tokens

    listing = listing_of(call.service, call.operation)

    def limited(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        if listing is None or caller.sees is None:
            return operation(tx, params, caller)
        params = with_open_tokens(tx, caller, params)
        response = operation(tx, params, caller)
        return with_hidden_tokens(tx, caller, visible(tx, listing, caller, params, response, caller.sees))

    return limited


async def _in_steps(lane: Lane[Any], steps: Generator[Callable[[Tx[Any]], Any], Any, T], receive: Receive, owner: str) -> T:
    """Run an operation in several commands. Other callers are served between the commands."""
    command = next(steps)
    while True:
        answer = lane.submit(
            command,
            lambda: cancel_when_gone(receive, answer),  # noqa: B023  (awaited before the next step)
            owner=owner,
        )
        try:
            command = steps.send(await answer)
        except StopIteration as finished:
            returned: T = finished.value
            return returned


async def _in_pieces(lane: Lane[Any], operation: Handler, pieces: list[dict[str, Any]], caller: Caller) -> dict[str, Any]:
    """Run an operation in several commands, one for each piece of its parameters, and concatenate the lists in the results.

    Other callers are served between the commands.
    """
    whole: dict[str, list[Any]] = {}
    for piece in pieces:
        answer = await lane.submit(lambda tx, piece=piece: operation(tx, piece, caller), owner=caller.owner)  # type: ignore[misc]
        for name, found in answer.items():
            whole.setdefault(name, []).extend(found)
    return whole


def cancel_when_gone(receive: Receive, answer: asyncio.Future[Any]) -> None:
    """Cancel a waiting call if its client disconnects.

    The body of the request has already arrived. `receive` returns its end, unless that was received before. Then it waits, and
    raises an exception when the client disconnects.
    """

    async def wait_for_disconnect() -> None:
        with suppress(ClientGone):
            while True:
                await receive()
        answer.cancel()

    gone = asyncio.ensure_future(wait_for_disconnect())
    answer.add_done_callback(lambda _: gone.cancel())
