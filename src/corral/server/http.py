"""The life of a request: bounded, recognised, verified, handled, answered. Raw ASGI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import httptools
import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import corral
from corral import aws
from corral.blobs import Blobs
from corral.clock import Clock
from corral.core import Tx, Wait
from corral.errors import ApiError, api_error, our_fault
from corral.ids import Ids
from corral.model.settings import Settings
from corral.server.channel import MESSAGE_MAX_BYTES, Channel, websocket
from corral.server.inside import Inside
from corral.server.intake import ClientGone, Intake, end_body
from corral.server.lanes import Lane
from corral.server.origins import Origins
from corral.server.registry import is_for_registry
from corral.server.sending import Connection, Send, Sender
from corral.server.streams import Streams
from corral.services import SERVICES, Service
from corral.services.caller import Caller

if TYPE_CHECKING:
    from corral.server.registry.door import Registry

HEADERS_MAX_BYTES = 64 * 1024
DATE_S = 1.0  # how old the date of an answer may be
RequestTooLarge = api_error("RequestEntityTooLarge", 413)
HeadersTooLarge = api_error("RequestHeaderSectionTooLarge", 431)

log = logging.getLogger("corral")
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class App:
    """The ASGI application."""

    def __init__(
        self,
        settings: Settings,
        lanes: Mapping[str, Lane[Any]],
        lookup: aws.Lookup,
        clock: Clock,
        ids: Ids,
        status: Callable[[Tx[Any]], dict[str, Any]],
        inside: Inside,
        blobs: Blobs,
        live_tasks: Container[str],
        channel: Channel,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._lookup = lookup
        self._clock = clock
        self._ids = ids
        self._status = status
        self._inside = inside
        self._live_tasks = live_tasks
        self._intake = Intake(blobs)
        self._streams = Streams(settings, lanes, lookup, clock, ids, self._intake, self._caller)
        self._sender = Sender(blobs)
        self._origins = Origins(lanes["state"], settings, ids)
        self._channel = channel

    @cached_property
    def _registry(self) -> Registry:
        from corral.server.registry.door import Registry  # here: many never push an image, and all would wait for it at each start

        return Registry(self._settings, self._lanes["state"], self._clock, self._ids, self._intake, self._live_tasks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._channel.serve(scope, receive, send)
            return
        request_id, connection = self._ids.uuid(), scope["connection"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        head = aws.Request(
            method=scope["method"],
            path=scope["raw_path"].decode("latin-1"),
            query=scope["query_string"].decode("latin-1"),
            headers=headers,
            body=b"",
            address=scope["client"][0] if scope["client"] else "",
        )
        try:
            if sum(map(len, chain.from_iterable(scope["headers"]))) > HEADERS_MAX_BYTES:
                raise HeadersTooLarge(f"The request's headers are larger than {HEADERS_MAX_BYTES} bytes.")
            to_registry = is_for_registry(head)
            call = aws.recognise_head(head) if head.method != "OPTIONS" and not to_registry else None
            if to_registry:
                response = await self._registry.answer(head, request_id, receive)
            elif call is not None:
                response = await self._streams.answer(call, head, request_id, receive, connection)
                if "origin" in headers:
                    response.headers.extend(self._origins.headers(head))
            elif head.method == "OPTIONS":
                response = self._origins.preflight(head, request_id)
            else:
                body = await _body(headers, receive)
                if body is None:
                    return  # the client has gone
                request = aws.Request(head.method, head.path, head.query, headers, body, head.address)
                response = await self._answer(request, request_id, receive)
        except ClientGone:
            return
        except ApiError as error:
            response = aws.serialize_refusal(head, error, request_id)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return  # the client has gone while its answer was waited for
        except Exception:
            log.exception("request %s failed", request_id)
            response = aws.serialize_refusal(head, our_fault(), request_id)
        with suppress(ClientGone):
            await end_body(head, receive, connection, response)
            await self._sender.send(send, response, connection)

    async def _answer(self, request: aws.Request, request_id: str, receive: Receive) -> aws.Response:
        if request.path != "/":
            if request.path.startswith("/_corral/"):
                return await self._own_page(request)
            if (page := await self._inside.answer(request)) is not None:
                return page
        call = aws.recognise(request)
        try:
            identity = aws.verify(request, self._lookup, self._clock.now_s(), signing_name=call.signing_name)
            return await self._call(call, self._caller(identity, request, request_id), request_id, receive)
        except ApiError as error:
            return call.serialize_error(error, request_id)
        except Exception:
            log.exception("request %s: %s:%s failed", request_id, call.service, call.operation)
            return call.serialize_error(our_fault(), request_id)

    def _caller(self, identity: aws.Identity, request: aws.Request, request_id: str) -> Caller:
        headers = request.headers
        return Caller(
            account=self._settings.account,
            region=identity.region,
            principal=identity.principal,
            wait_s=_wait_s(headers),
            task_id=identity.task_id,
            access_key_id=identity.access_key_id,
            is_session=identity.is_session,
            seen=_seen(headers),
            request_id=request_id,
            source_ip=request.address,
            endpoint_url=f"http://{host}" if (host := headers.get("host")) else "",
        )

    async def _call(self, call: aws.Call, caller: Caller, request_id: str, receive: Receive) -> aws.Response:
        service = SERVICES.get(call.service, _UNSERVED)
        operation = service.operations.get(call.operation)
        if operation is None:
            raise aws.not_served(call)
        params = call.params()
        if call.operation in service.prepare:
            params = await asyncio.to_thread(service.prepare[call.operation], params)
        lane = self._lanes[service.lane]

        def handler(tx: Tx[Any]) -> dict[str, Any]:
            return operation(tx, params, caller)

        if call.operation in service.heavy:
            try:
                # Written out there too: a page of ten thousand events would keep everybody else waiting here.
                return await lane.read(lambda tx: call.serialize(handler(tx), request_id), self._settings, self._ids)
            except Wait:
                pass  # only the lane can wait without missing a change
        answer = lane.submit(handler, lambda: _drop_when_gone(receive, answer))
        return call.serialize(await answer, request_id)

    async def _own_page(self, request: aws.Request) -> aws.Response:
        """Our own two pages: is it up, and what is it doing."""
        if request.path == "/_corral/health":
            return _json({"status": "ok", "version": corral.__version__})
        if request.path == "/_corral/status":
            aws.verify(request, self._lookup, self._clock.now_s())
            return _json(await self._lanes["state"].submit(self._status))
        raise api_error("NotFound", 404)(f"Corral has no page {request.path}.")


_UNSERVED = Service("state", {})


def _json(value: dict[str, Any]) -> aws.Response:
    return aws.Response(200, [("content-type", "application/json")], orjson.dumps(value))


def _wait_s(headers: Mapping[str, str]) -> float:
    """X-Corral-Wait: seconds. AWS ignores it, so a client may always send it."""
    text = headers.get("x-corral-wait")
    try:
        return max(0.0, min(float(text), 60.0)) if text is not None else 0.0
    except ValueError:
        return 0.0


def _seen(headers: Mapping[str, str]) -> int | None:
    """X-Corral-Seen: the version of what the client has."""
    text = headers.get("x-corral-seen", "")
    return int(text) if text.isascii() and text.isdigit() else None


def _drop_when_gone(receive: Receive, answer: asyncio.Future[Any]) -> None:
    """While a request waits for its answer nothing comes from its client but the end of the connection."""
    gone = asyncio.ensure_future(receive())
    gone.add_done_callback(lambda _: answer.cancel())
    answer.add_done_callback(lambda _: gone.cancel())


async def _body(headers: Mapping[str, str], receive: Receive) -> bytes | None:
    """The whole body, bounded; None when the client left in the middle of it."""
    declared = headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > aws.BODY_MAX_BYTES:
        raise RequestTooLarge(f"The body is larger than {aws.BODY_MAX_BYTES} bytes.")
    message = await receive()
    if message["type"] == "http.disconnect":
        return None
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        return body
    parts, size = [message.get("body", b"")], len(message.get("body", b""))
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > aws.BODY_MAX_BYTES:
            raise RequestTooLarge(f"The body is larger than {aws.BODY_MAX_BYTES} bytes.")
    return b"".join(parts)


class Corked:
    """A transport that sends what is written in one turn of the loop in one piece.

    uvicorn writes head and body apart. A client that gets the head and then loses us should not be left with half an
    answer: botocore takes a 200 without its body for an empty result, and says nothing.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._flush)
        self._parts.append(data)

    def take(self) -> bytes:
        """What was written and has not left: whoever takes it sends it."""
        data, self._parts = b"".join(self._parts), []
        return data

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        data = self.take()
        if data and not self._transport.is_closing():
            self._transport.write(data)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol with a bound on request headers, which it leaves to whoever stands in front of it."""

    _head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(Corked(transport))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        if self._head_bytes >= 0:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEADERS_MAX_BYTES and not self.transport.is_closing():
            refusal = aws.serialize_refusal(
                aws.Request("POST", "/", "", {}, b""),
                HeadersTooLarge(f"The request's headers are larger than {HEADERS_MAX_BYTES} bytes."),
                "",
            )
            head = [b"HTTP/1.1 431 Request Header Fields Too Large", b"content-length: %d" % len(refusal.body)]
            head += [b"connection: close"]
            head += [f"{name}: {value}".encode("latin-1") for name, value in refusal.headers]
            self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + refusal.body)
            self.transport.close()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = -1  # the body has its own bound
        super().on_headers_complete()
        self.scope["connection"] = Connection(  # type: ignore[typeddict-unknown-key]
            self.transport, self.flow, self.cycle, self._end_of_body
        )

    def _end_of_body(self) -> None:
        """Somebody else has read the rest of it: what comes next is another request, and the parser begins anew."""
        if self.parser is not None:  # the client is still there
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's first one
            self.on_message_complete()

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()


class HttpServer(uvicorn.Server):
    """uvicorn on a socket of ours; signals are `server.main`'s."""

    def __init__(self, app: App, clock: Clock) -> None:
        config = uvicorn.Config(
            app, loop="none", http=BoundedHttp, lifespan="off", interface="asgi3", access_log=False, log_config=None,
            server_header=False, proxy_headers=False, timeout_keep_alive=75, timeout_graceful_shutdown=3,
            ws=websocket, ws_max_size=MESSAGE_MAX_BYTES, ws_per_message_deflate=False,  # type: ignore[arg-type]  # it makes one
        )  # fmt: skip
        super().__init__(config)
        self._clock = clock
        self._asked_to_exit = asyncio.Event()

    def exit(self) -> None:
        """Stop listening, and answer those who have asked."""
        self.should_exit = True
        self._asked_to_exit.set()

    async def main_loop(self) -> None:
        """uvicorn looks ten times a second whether to exit, most of what an idle Corral did. Here only the date is due."""
        while not await self.on_tick(0):  # which writes the date that answers carry
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S - self._clock.now_s() % DATE_S):  # when it changes
                    await self._asked_to_exit.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
