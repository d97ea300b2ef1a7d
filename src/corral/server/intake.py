"""Bodies on their way in: small ones to memory, large ones to a blob, in bounded memory and no faster than they are written."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from corral import aws
from corral.blobs import Arriving, Blobs
from corral.core import Tx
from corral.errors import ApiError, api_error
from corral.model.blob import Arrived, Slice
from corral.server.http_connection import HttpConnection
from corral.server.lanes import Lane
from corral.server.pulling import Pull
from corral.server.together import Owner, Together

SMALL_MAX_BYTES = 64 * 1024  # what is no larger and has come as a whole is written together with others
PIECE_BYTES = 512 * 1024  # handed to the threads at once, about
AHEAD_MAX_BYTES = 2 * 1024 * 1024  # received while they are busy
REST_MAX_BYTES = 1024 * 1024  # a body that is refused is read to its end, if it is no longer than this; a longer one is pulled
SKIPPED_MAX_BYTES = 64 * 1024 * 1024  # so much of one that is refused while it is pulled is read and thrown away
IDLE_MAX_S = 60.0  # a client that sends nothing for so long is not waited for
THREADS = 8
DIGESTERS = 4  # they wait for nobody, and others wait for them
TOO_SLOW = "Your socket connection to the server was not read from or written to within the timeout period."

T = TypeVar("T")
Receive = Callable[[], Awaitable[dict[str, Any]]]
MaxMessageLengthExceeded = api_error("MaxMessageLengthExceeded")
RequestTooLarge = api_error("RequestEntityTooLarge", 413)
RequestTimeout = api_error("RequestTimeout")


class ClientGone(Exception):
    """There is nobody to answer any more."""


class Intake:
    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._together = Together(blobs)
        self._digesters = ThreadPoolExecutor(DIGESTERS, thread_name_prefix="digests")
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="blobs")

    async def to_memory(self, receive: Receive, body: aws.RequestBody) -> tuple[bytes, dict[str, str]]:
        """The whole of a small body, and its trailers."""
        parts, size, more = [], 0, True
        while more:
            data, more = await next_piece(receive)
            size += len(data)
            if size > aws.BODY_MAX_BYTES:
                raise MaxMessageLengthExceeded("Your request was too large.")
            parts.append(body.feed(data))
        trailers = body.finish()
        return b"".join(parts), trailers

    async def store(
        self,
        receive: Receive,
        body: aws.RequestBody,
        algorithms: Collection[str],
        connection: HttpConnection | None,
        lane: Lane[Any],
        owner: Callable[[Mapping[str, str], Arrived, Tx[Any]], Any],
    ) -> Any:
        """A body of any size becomes a blob, which its owner takes, in the lane, and with its trailers.

        The owner's answer is ours. What went wrong leaves nothing behind.
        """
        waiting, size, more, left = list[bytes](), 0, True, None
        while more and left is None and size < PIECE_BYTES:
            data, more = await next_piece(receive, connection)
            waiting.append(data)
            size += len(data)
            if more and connection is not None and (length := connection.length or 0) > REST_MAX_BYTES:
                left = length - size
        if not more and size <= SMALL_MAX_BYTES:
            payload = b"".join([body.feed(piece) for piece in waiting])
            small = self._together.write(payload, algorithms, lane, partial(owner, body.finish()))
            return await self._taken(small.answer, lambda: small.arrived)
        if not more:
            arrived, trailers = await self._run(_all_at_once, self._blobs, body, waiting, algorithms)
        elif connection is not None and left is not None:
            arrived, trailers = await self._pulled(connection, receive, body, waiting, left, algorithms)
        else:
            arrived, trailers = await self._received(receive, body, waiting, algorithms)
        return await self.give(arrived, lane, partial(owner, trailers))

    async def give(self, arrived: Arrived, lane: Lane[Any], owner: Owner) -> Any:
        """A blob that is there, to an owner. Nobody else knows of it: whom the owner refuses, it does not outlive."""
        return await self._taken(lane.submit(partial(owner, arrived)), lambda: arrived)

    async def _taken(self, answer: Awaitable[Any], arrived: Callable[[], Arrived | None]) -> Any:
        """Whoever is cancelled here does not know whether the row will be there: the file stays, and a sweep will tell."""
        try:
            result = await answer
        except Exception:
            if (unwanted := arrived()) is not None:
                with suppress(OSError):  # then a sweep will
                    await self.erase([unwanted.blob])
            raise
        if (owned := arrived()) is not None:
            self._blobs.settled(owned.blob)
        return result

    async def _received(
        self, receive: Receive, body: aws.RequestBody, waiting: list[bytes], algorithms: Collection[str]
    ) -> tuple[Arrived, dict[str, str]]:
        work = await self._begin(algorithms, body)
        try:
            await _receive(receive, work, waiting)
            return await work.end()
        except BaseException:
            await work.stop()
            raise

    async def begin(self, algorithms: Collection[str]) -> Work:
        """A blob whose bytes come with several requests: `take` them, and then `end` or `stop` it."""
        return await self._begin(algorithms, aws.PlainBody(None))

    async def take(self, receive: Receive, work: Work) -> int:
        """The whole of a body: the next bytes of this blob. How many there were; they are in the file."""
        count = await _receive(receive, work, [])
        await work.written()
        return count

    async def _pulled(
        self,
        connection: HttpConnection,
        receive: Receive,
        body: aws.RequestBody,
        begun: list[bytes],
        left: int,
        algorithms: Collection[str],
    ) -> tuple[Arrived, dict[str, str]]:
        """A body of which `left` bytes are still to come, read by threads from the socket itself."""
        try:
            source, come = connection.take_over()
            pull = Pull(self._blobs, algorithms, body, [*begun, come], source, left - len(come), self._digesters)
            try:
                while (found := await self._turn(pull, pull.read)) is None:
                    await _readable(source)
                return found
            except RequestTimeout:
                raise
            except ApiError:
                await self._skip(pull, source)
                raise
            finally:
                pull.drop()
                os.close(source)
                if not pull.left:
                    connection.end_of_body()
        except ConnectionError:
            await next_piece(receive)  # it sees that, too
            raise

    async def _skip(self, pull: Pull, source: int) -> None:
        """A body is refused while it comes. Whoever sends it hears of that only if nothing is left unread when we hang up."""
        pull.drop()
        if pull.left > SKIPPED_MAX_BYTES:
            return
        with suppress(RequestTimeout):
            await self._turn(pull, pull.skip)
            while pull.left:
                await _readable(source)
                await self._turn(pull, pull.skip)

    async def _turn(self, pull: Pull, work: Callable[[], T]) -> T:
        """A turn of the thread. Whoever waits for it may be cancelled; files are not closed under its hands."""
        job = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            pull.stop()
            await asyncio.wait([job])
            raise

    async def copy(self, source: Sequence[Slice], algorithms: Collection[str]) -> Arrived:
        """A blob made of parts of others."""
        with self._blobs.reading([each.blob for each in source]):
            return await self._run(_copied, self._blobs, source, algorithms)

    async def erase(self, blobs: Sequence[str]) -> None:
        await self._run(self._blobs.erase, blobs)

    async def _begin(self, algorithms: Collection[str], body: aws.RequestBody) -> Work:
        return Work(self._threads, await self._run(self._blobs.begin, algorithms), body)

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


class Work:
    """What the threads do for one body: one piece at a time, its MD5 beside all the rest.

    Jobs are shielded: whoever waits for one may be cancelled, and the thread goes on all the same.
    """

    def __init__(self, threads: ThreadPoolExecutor, arriving: Arriving, body: aws.RequestBody) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._arriving = arriving
        self._body = body
        self._writing: asyncio.Future[list[bytes]] | None = None
        self._digesting: asyncio.Future[None] | None = None
        self._sealing: asyncio.Future[tuple[Arrived, dict[str, str]]] | None = None

    @property
    def is_idle(self) -> bool:
        return all(job is None or job.done() for job in (self._writing, self._digesting))

    async def give(self, pieces: list[bytes]) -> None:
        """The next pieces of the body, when those before them are written."""
        await self.written()
        self._writing = self._loop.run_in_executor(self._threads, self._write, pieces)

    async def end(self) -> tuple[Arrived, dict[str, str]]:
        """That was all: it counts if the body agrees."""
        await self.written()
        if self._digesting is not None:
            await asyncio.shield(self._digesting)
        self._sealing = self._loop.run_in_executor(self._threads, self._seal)
        return await asyncio.shield(self._sealing)

    async def stop(self) -> None:
        """Nothing of it is wanted; files are not closed under the hands of a thread."""
        jobs = (self._writing, self._digesting, self._sealing)
        await asyncio.gather(*(job for job in jobs if job is not None), return_exceptions=True)
        self._arriving.drop()

    def _write(self, pieces: list[bytes]) -> list[bytes]:
        payload = [self._body.feed(piece) for piece in pieces]
        self._arriving.write(payload)
        return payload

    def _seal(self) -> tuple[Arrived, dict[str, str]]:
        trailers = self._body.finish()
        return self._arriving.seal(), trailers

    async def written(self) -> None:
        """What was given is in the file; its digests may still be computed."""
        if self._writing is None:
            return
        payload = await asyncio.shield(self._writing)
        self._writing = None
        if self._digesting is not None:
            await asyncio.shield(self._digesting)
        self._digesting = self._loop.run_in_executor(self._threads, self._arriving.digest, payload)


async def _receive(receive: Receive, work: Work, waiting: list[bytes]) -> int:
    """The rest of a body after what is waiting, handed on in pieces of some size; how many bytes there were."""
    size, more = sum(map(len, waiting)), True
    count = size
    while more:
        data, more = await next_piece(receive)
        waiting.append(data)
        size += len(data)
        count += len(data)
        if size >= PIECE_BYTES and (work.is_idle or size >= AHEAD_MAX_BYTES):
            await work.give(waiting)
            waiting, size = [], 0
    await work.give(waiting)
    return count


async def _readable(source: int) -> None:
    """Until the client has sent something, or has gone."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(source, lambda: None if ready.done() else ready.set_result(None))
    try:
        async with asyncio.timeout(IDLE_MAX_S):
            await ready
    except TimeoutError:
        raise RequestTimeout(TOO_SLOW) from None
    finally:
        loop.remove_reader(source)


async def whole_body(headers: Mapping[str, str], receive: Receive) -> bytes:
    """The whole body of a request that is not S3's, up to BODY_MAX_BYTES. Waits without a timeout, which would cost too much."""
    declared = headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > aws.BODY_MAX_BYTES:
        raise _too_large()
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    parts, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > aws.BODY_MAX_BYTES:
            raise _too_large()
    return b"".join(parts)


def _too_large() -> ApiError:
    return RequestTooLarge(f"The body is larger than {aws.BODY_MAX_BYTES} bytes.")


async def next_piece(receive: Receive, connection: HttpConnection | None = None) -> tuple[bytes, bool]:
    """The next bytes of a body, and whether there are more."""
    try:
        if connection is not None and connection.has_news:
            message = await receive()  # a timeout would cost more than all this
        else:
            async with asyncio.timeout(IDLE_MAX_S):
                message = await receive()
    except TimeoutError:
        raise RequestTimeout(TOO_SLOW) from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


async def end_body(head: aws.Request, receive: Receive, connection: HttpConnection, response: aws.Response) -> None:
    """The answer is known. If all of its request is not, the connection ends with it: nobody could tell where the next begins."""
    if not connection.has_more:
        return
    length = head.headers.get("content-length", "")
    if connection.awaits_continue or not length.isdigit() or int(length) > REST_MAX_BYTES:
        response.headers.append(("Connection", "close"))
        return
    try:
        more = True
        while more:  # it is on its way
            _, more = await next_piece(receive)
    except RequestTimeout:
        response.headers.append(("Connection", "close"))


def _all_at_once(
    blobs: Blobs, body: aws.RequestBody, pieces: Sequence[bytes], algorithms: Collection[str]
) -> tuple[Arrived, dict[str, str]]:
    payload = [body.feed(piece) for piece in pieces]
    trailers = body.finish()
    arriving = blobs.begin(algorithms)
    try:
        arriving.write(payload)
        arriving.digest(payload)
        return arriving.seal(), trailers
    finally:
        arriving.drop()


def _copied(blobs: Blobs, source: Sequence[Slice], algorithms: Collection[str]) -> Arrived:
    arriving = blobs.begin(algorithms)
    try:
        for each in source:
            with open(blobs.path(each.blob), "rb", buffering=0) as file:
                at, end = each.start, each.start + each.size
                while at < end:
                    piece = os.pread(file.fileno(), min(PIECE_BYTES, end - at), at)
                    if not piece:
                        raise OSError(f"blob {each.blob} is shorter than it should be")
                    arriving.write([piece])
                    arriving.digest([piece])
                    at += len(piece)
        return arriving.seal()
    finally:
        arriving.drop()
