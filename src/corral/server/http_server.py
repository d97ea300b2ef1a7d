"""The HTTP server: an ASGI application that calls `front_door.py`, and uvicorn on sockets that Corral has opened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import uvicorn

from corral import aws
from corral.blobs import Blobs
from corral.clock import Clock
from corral.server.connection_limits import ConnectionLimits
from corral.server.data_channel import WEBSOCKET_MAX_BYTES, DataChannel, websocket
from corral.server.front_door import FrontDoor
from corral.server.http_connection import IDLE_MAX_S, BoundedHttpProtocol
from corral.server.request_body import ClientGone, Receive, end_body
from corral.server.response_sender import Send, Sender

DATE_S = 1.0  # the Date header has the precision of a second

AsgiScope = dict[str, Any]
INVALID_REQUEST = "Invalid HTTP request received."


class AsgiApp:
    """The ASGI application. It passes HTTP requests to the front door and websockets to the data channel."""

    def __init__(self, front_door: FrontDoor, channel: DataChannel, blobs: Blobs, limits: ConnectionLimits) -> None:
        self._front_door = front_door
        self._channel = channel
        self._sender = Sender(blobs)
        self._memory = limits.memory

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._channel.serve(scope, receive, send)
            return
        connection = scope["connection"]
        request = aws.Request(
            method=scope["method"],
            path=scope["raw_path"].decode("latin-1"),
            query=scope["query_string"].decode("latin-1"),
            headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
            body=b"",
            address=scope["client"][0] if scope["client"] else "",
        )
        try:
            response = await self._front_door.respond(request, receive, connection)
            await end_body(request, receive, connection, self._memory, response)
            await self._sender.send(send, response, connection)
        except ClientGone:
            return
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            # Otherwise the client has disconnected while its call waited, and `service_calls.py` has cancelled the call.


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers. It wakes up once a second, instead of ten times a second."""

    def __init__(self, app: AsgiApp, limits: ConnectionLimits, clock: Clock) -> None:
        config = uvicorn.Config(
            app, loop="none", http=partial(BoundedHttpProtocol, limits),  # type: ignore[arg-type]  # it returns one
            lifespan="off", interface="asgi3", access_log=False, log_config=None,
            server_header=False, proxy_headers=False, timeout_keep_alive=IDLE_MAX_S, timeout_graceful_shutdown=3,
            ws=websocket, ws_max_size=WEBSOCKET_MAX_BYTES, ws_per_message_deflate=False,  # type: ignore[arg-type]  # it returns one
        )  # fmt: skip
        super().__init__(config)
        self._clock = clock
        self._exit_requested = asyncio.Event()
        logging.getLogger("uvicorn.error").addFilter(is_worth_logging)

    def exit(self) -> None:
        """Stop listening. Requests that were already received still get a response."""
        self.should_exit = True
        self._exit_requested.set()

    async def main_loop(self) -> None:
        """Once a second, update the Date header and close the connections of slow clients. Return after `exit` was called."""
        while not await self.on_tick(0):  # this call updates the Date header
            for connection in tuple(self.server_state.connections):
                if isinstance(connection, BoundedHttpProtocol):
                    connection.tick()
            with suppress(TimeoutError):
                async with asyncio.timeout(DATE_S - self._clock.now_s() % DATE_S):
                    await self._exit_requested.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Whether to log a message of uvicorn. The message about a request that is not HTTP is not logged.

    Only the client can correct such a request, and the client receives a 400. Docker sends such a request (a TLS handshake) before
    each pull from a registry on localhost.
    """
    return record.msg != INVALID_REQUEST
