"""Sends responses. A small body is sent at once. A large body is sent from its file to the socket, as fast as the client reads."""

from __future__ import annotations

import asyncio
import os
import re
import select
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from corral import aws
from corral.blobs import Blobs
from corral.model.blob import Slice
from corral.server.http_connection import HttpConnection
from corral.server.socket_reader import SOCKET_WAIT_MS

SMALL_BODY_MAX_BYTES = 128 * 1024  # such a body is read on the event loop, because a thread would take longer
SENDFILE_MAX_BYTES = 8 * 1024 * 1024  # bytes per call of `sendfile`
STALLED_S = 600.0  # a client that reads nothing for this long is disconnected
SEND_THREADS = 4

_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Sender:
    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._threads = ThreadPoolExecutor(SEND_THREADS, thread_name_prefix="sending")

    async def send(self, send: Send, response: aws.Response, connection: HttpConnection) -> None:
        slices: Sequence[Slice] = response.stream or ()
        size = sum(each.size for each in slices)
        if size <= SMALL_BODY_MAX_BYTES:
            body = self._blobs.read(slices) if slices else response.body
            await send({"type": "http.response.start", "status": response.status, "headers": _headers(response, len(body))})
            await send({"type": "http.response.body", "body": body})
            return
        # No other coroutine has run since the rows were read, so the files still exist. `reading` protects them from deletion.
        with self._blobs.reading([each.blob for each in slices]):
            await send({"type": "http.response.start", "status": response.status, "headers": _headers(response, size)})
            try:
                await _File(self._threads, connection).push(slices, self._blobs)
            except BaseException as error:
                connection.transport.abort()  # the body is incomplete, and the client must notice it
                if isinstance(error, ConnectionError):
                    return  # the client has disconnected
                raise
        connection.body_was_sent()
        await send({"type": "http.response.body", "body": b""})


def _headers(response: aws.Response, size: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of the response. Content-Length is added unless the handler has set it, as it does for HEAD."""
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1") if value.isascii() and value.isprintable() else _sendable(value))
        for name, value in response.headers
    ]
    if response.status not in (204, 304) and not any(name == b"content-length" for name, _ in headers):
        headers.append((b"content-length", str(size).encode()))
    return headers


def _sendable(value: str) -> bytes:
    """Replace characters that are not valid in a header.

    Query parameters of S3 such as `response-content-type` set response headers, so their values come from clients.
    """
    return _CONTROL.sub(b" ", value.encode("latin-1", "replace"))


class _File:
    """Sends files directly to a socket. The write buffer of the transport stays empty in the meantime."""

    def __init__(self, threads: ThreadPoolExecutor, connection: HttpConnection) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._connection = connection

    async def push(self, slices: Sequence[Slice], blobs: Blobs) -> None:
        out = self._connection.pause()  # until this response has been sent, the next request must not be read
        jobs: list[Future[int]] = []
        try:
            head = self._connection.transport.take()
            await self._emptied()
            if self._connection.transport.is_closing():
                raise ConnectionAbortedError("the client has disconnected")
            for each in slices:
                fd = blobs.open(each.blob)
                try:
                    await self._push_one(jobs, out, head, fd, each)
                finally:
                    _after(jobs, partial(os.close, fd))
                head = b""
        finally:
            _after(jobs, partial(os.close, out))

    async def _push_one(self, jobs: list[Future[int]], out: int, head: bytes, fd: int, piece: Slice) -> None:
        sent, total = 0, len(head) + piece.size
        while sent < total:
            jobs[:] = [self._threads.submit(_push, out, head, fd, piece, sent)]
            sent = await asyncio.wrap_future(jobs[0])
            if sent < total:
                await self._writable(out)

    async def _emptied(self) -> None:
        """Wait until the transport has passed all buffered bytes to the kernel."""
        transport = self._connection.transport
        if not transport.get_write_buffer_size():
            return
        transport.set_write_buffer_limits(high=0)
        try:
            while transport.get_write_buffer_size() and not transport.is_closing():
                await asyncio.sleep(0)
                await self._connection.drain()
        finally:
            transport.set_write_buffer_limits()

    async def _writable(self, out: int) -> None:
        ready = self._loop.create_future()
        self._loop.add_writer(out, _set, ready)
        try:
            async with asyncio.timeout(STALLED_S):
                await ready
        except TimeoutError:
            raise ConnectionAbortedError("the client does not read") from None
        finally:
            self._loop.remove_writer(out)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _push(out: int, head: bytes, fd: int, piece: Slice, sent: int) -> int:
    """Send the head and the file from the offset `sent` on, until everything is sent or the socket is full.

    Offsets count the bytes of the head too. Return the new offset.
    """
    poll = select.poll()
    poll.register(out, select.POLLOUT)
    total = len(head) + piece.size
    while sent < total:
        try:
            if sent < len(head):
                sent += os.write(out, head[sent:])
                continue
            at = sent - len(head)
            count = os.sendfile(out, fd, piece.start + at, min(piece.size - at, SENDFILE_MAX_BYTES))
            if count == 0:
                raise OSError(f"blob {piece.blob} is shorter than its row says")
            sent += count
        except BlockingIOError:
            if not poll.poll(SOCKET_WAIT_MS):
                return sent
    return sent


def _after(jobs: Sequence[Future[int]], close: Callable[[], None]) -> None:
    """Close a file when the last thread that uses it has ended. The thread continues even if the caller is cancelled."""
    if jobs and not jobs[-1].done():
        jobs[-1].add_done_callback(lambda _: close())
    else:
        close()
