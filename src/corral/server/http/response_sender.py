"""Sends responses. A small body is sent at once. A large body is sent from its file to the socket, as fast as the client reads."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from corral import aws
from corral.blobs import Blobs
from corral.model.blob import Slice
from corral.server.http.connection import HttpConnection
from corral.server.http.open_connections import STALLED_S
from corral.server.http.socket_reader import SOCKET_WAIT_MS

SMALL_BODY_MAX_BYTES = 128 * 1024  # the event loop reads a body up to this size, because the switch to a thread would take longer
SENDFILE_MAX_BYTES = 8 * 1024 * 1024  # bytes per call of `sendfile`
SEND_THREADS = 4


class Sender:
    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._threads = ThreadPoolExecutor(SEND_THREADS, thread_name_prefix="sending")

    async def send(self, response: aws.Response, connection: HttpConnection) -> None:
        """Send a response. The caller must protect the blobs of the response body from deletion."""
        slices: Sequence[Slice] = response.stream or ()
        size = sum(each.size for each in slices)
        if size <= SMALL_BODY_MAX_BYTES:
            body = self._blobs.read(slices) if slices else response.body
            await connection.respond(response.status, response.headers, body)
            return
        head = connection.head(response.status, response.headers, size)
        try:
            await _File(self._threads, connection).push(head, slices, self._blobs)
        except BaseException as error:
            connection.transport.abort()  # the body is incomplete, and the client must notice it
            if isinstance(error, ConnectionError):
                return  # the client has disconnected
            raise
        connection.finish()


class _File:
    """Sends files directly to a socket. The write buffer of the transport stays empty in the meantime."""

    def __init__(self, threads: ThreadPoolExecutor, connection: HttpConnection) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._connection = connection

    async def push(self, head: bytes, slices: Sequence[Slice], blobs: Blobs) -> None:
        out = self._connection.pause()  # until this response has been sent, the next request must not be read
        jobs: list[Future[int]] = []
        try:
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
    """Close a file when the last job that uses it has ended. The job continues in its thread even if the caller is cancelled."""
    if jobs and not jobs[-1].done():
        jobs[-1].add_done_callback(lambda _: close())
    else:
        close()
