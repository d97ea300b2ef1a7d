"""Receives request bodies into memory or into a blob, which is a file of the object storage.

The use of memory is bounded: Corral does not read a body faster than the disk writes it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from corral import aws
from corral.blobs import Blobs, BlobWriter
from corral.core.errors import ApiError, ServiceUnavailable, api_error
from corral.core.transactions import Tx
from corral.model.blob import Slice, StoredBlob
from corral.server.http.connection import HttpConnection
from corral.server.http.small_blob_writer import CommitBlob, SmallBlobWriter
from corral.server.http.socket_reader import SocketReader
from corral.server.http.unverified_memory import UnverifiedMemory
from corral.server.lanes import Lane

# A body up to this size is written together with other such bodies.
SMALL_MAX_BYTES = 64 * 1024
WRITE_BYTES = 512 * 1024  # the approximate number of bytes that a thread writes at a time
AHEAD_MAX_BYTES = 2 * 1024 * 1024  # the most bytes of a body that are received while the threads still write earlier bytes
PULLED_MIN_BYTES = 1024 * 1024  # threads read a body with a larger Content-Length directly from the socket
# Corral reads the rest of a refused body if the whole body has at most this size, so that the connection can be used again.
REST_MAX_BYTES = aws.BODY_MAX_BYTES
REST_MAX_S = 30.0  # the maximum time for the rest of a refused body
# If a body is refused while a thread reads it, up to this number of remaining bytes is read and discarded.
SKIPPED_MAX_BYTES = 64 * 1024 * 1024
IDLE_MAX_S = 60.0  # a client that sends nothing for this long gets the error RequestTimeout
UNVERIFIED_IDLE_MAX_S = 20.0  # the same limit for a body that is not verified yet and takes memory
UNVERIFIED_MIN_BYTES_PER_S = 64 * 1024  # the minimum rate of an unverified body, after UNVERIFIED_IDLE_MAX_S
# An unverified body above this size, and the rest of a refused body, are received at a limited rate.
UNPACED_MAX_BYTES = 1024 * 1024
# A body up to this size does not wait for memory, because the number of connections limits the total.
UNCOUNTED_MAX_BYTES = 16 * 1024
DOCUMENT_MAX_BYTES = aws.SERVICE_BY_SIGNING_NAME["s3"].body_max_bytes  # the maximum size of an XML document
WRITE_THREADS = 8
DIGEST_THREADS = 4  # separate threads, because the write threads wait for digests
TOO_SLOW = "Your socket connection to the server was not read from or written to within the timeout period."

T = TypeVar("T")
Receive = Callable[[], Awaitable[tuple[bytes, bool]]]  # `HttpConnection.receive`
MaxMessageLengthExceeded = api_error("MaxMessageLengthExceeded")
RequestTooLarge = api_error("RequestEntityTooLarge", 413)
RequestTimeout = api_error("RequestTimeout")


class BodyReceiver:
    """Receives bodies of all sizes and stores them as blobs."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._small_blobs = SmallBlobWriter(blobs)
        self._digesters = ThreadPoolExecutor(DIGEST_THREADS, thread_name_prefix="digests")
        self._threads = ThreadPoolExecutor(WRITE_THREADS, thread_name_prefix="blobs")

    async def to_memory(self, receive: Receive, body: aws.RequestBody) -> tuple[bytes, dict[str, str]]:
        """Return a whole body of at most DOCUMENT_MAX_BYTES, and its trailers."""
        parts, size, more = [], 0, True
        while more:
            data, more = await next_piece(receive)
            size += len(data)
            if size > DOCUMENT_MAX_BYTES:
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
        commit: Callable[[Mapping[str, str], StoredBlob, Tx[Any]], Any],
    ) -> Any:
        """Store a body of any size as a blob.

        Then run `commit` in a transaction of the lane, and return its result. `commit` gets the trailers and the blob. If an error
        occurs, no blob is left.
        """
        waiting, size, more, left = list[bytes](), 0, True, None
        while more and left is None and size < WRITE_BYTES:
            data, more = await next_piece(receive, connection)
            waiting.append(data)
            size += len(data)
            if more and connection is not None and (length := connection.length or 0) > PULLED_MIN_BYTES:
                left = length - size
        if not more and size <= SMALL_MAX_BYTES:
            payload = b"".join([body.feed(piece) for piece in waiting])
            small = self._small_blobs.write(payload, algorithms, lane, partial(commit, body.finish()))
            return await self._committed(small.response, lambda: small.stored)
        if not more:
            blob, trailers = await self._run(_write_at_once, self._blobs, body, waiting, algorithms)
        elif connection is not None and left is not None:
            blob, trailers = await self._read_from_socket(connection, receive, body, waiting, left, algorithms)
        else:
            blob, trailers = await self._stream(receive, body, waiting, algorithms)
        return await self.commit(blob, lane, partial(commit, trailers))

    async def commit(self, blob: StoredBlob, lane: Lane[Any], commit: CommitBlob) -> Any:
        """Commit the row of a stored blob. Delete the blob if the command fails."""
        return await self._committed(lane.submit(partial(commit, blob)), lambda: blob)

    async def _committed(self, response: Awaitable[Any], stored: Callable[[], StoredBlob | None]) -> Any:
        """Wait for the commit. If the command fails, delete the blob.

        If this wait is cancelled, the row may still be committed. So the file is not deleted here. If the row is not committed, the
        file is an orphan, which the next start of the server deletes (`blob_gc.py`).
        """
        try:
            result = await response
        except Exception:
            if (orphan := stored()) is not None:
                with suppress(OSError):  # the next start of the server will delete the file
                    await self.erase([orphan.blob])
            raise
        if (blob := stored()) is not None:
            self._blobs.committed(blob.blob)
        return result

    async def _stream(
        self, receive: Receive, body: aws.RequestBody, waiting: list[bytes], algorithms: Collection[str]
    ) -> tuple[StoredBlob, dict[str, str]]:
        writer = await self._begin(algorithms, body)
        try:
            await _receive(receive, writer, waiting)
            return await writer.end()
        except BaseException:
            await writer.stop()
            raise

    async def begin(self, algorithms: Collection[str]) -> ThreadedBlobWriter:
        """Start a blob whose bytes arrive with several requests.

        Call `take` for each body. Then call `end` or `stop` of the returned writer.
        """
        return await self._begin(algorithms, aws.PlainBody(None))

    async def take(self, receive: Receive, writer: ThreadedBlobWriter) -> int:
        """Append a whole body to the blob. Wait until it is written, and return its size."""
        count = await _receive(receive, writer, [])
        await writer.written()
        return count

    async def _read_from_socket(
        self,
        connection: HttpConnection,
        receive: Receive,
        body: aws.RequestBody,
        begun: list[bytes],
        left: int,
        algorithms: Collection[str],
    ) -> tuple[StoredBlob, dict[str, str]]:
        """Receive the last `left` bytes of a body. Threads read these bytes directly from the socket."""
        try:
            source, buffered = connection.take_over()
            reader = SocketReader(self._blobs, algorithms, body, [*begun, buffered], source, left - len(buffered), self._digesters)
            try:
                while (found := await self._turn(reader, reader.read)) is None:
                    await _readable(source)
                return found
            except RequestTimeout:
                raise
            except ApiError:
                await self._skip(reader, source)
                raise
            finally:
                reader.drop()
                os.close(source)
                if not reader.left:
                    connection.end_of_body()
        except ConnectionError:
            await next_piece(receive)  # this call raises ClientGone
            raise

    async def _skip(self, reader: SocketReader, source: int) -> None:
        """Read and discard the rest of a refused body.

        If the connection were closed with unread bytes, the client would not receive the response.
        """
        reader.drop()
        if reader.left > SKIPPED_MAX_BYTES:
            return
        with suppress(RequestTimeout):
            await self._turn(reader, reader.skip)
            while reader.left:
                await _readable(source)
                await self._turn(reader, reader.skip)

    async def _turn(self, reader: SocketReader, turn: Callable[[], T]) -> T:
        """Run one turn of the reader (`reader.read` or `reader.skip`) in a thread.

        If the caller is cancelled, it still waits for the end of the turn, because the turn uses open files.
        """
        job = asyncio.get_running_loop().run_in_executor(self._threads, turn)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            reader.stop()
            await asyncio.wait([job])
            raise

    async def copy(self, source: Sequence[Slice], algorithms: Collection[str]) -> StoredBlob:
        """Store a new blob that contains the bytes of other blobs."""
        with self._blobs.reading([each.blob for each in source]):
            return await self._run(_copied, self._blobs, source, algorithms)

    async def erase(self, blobs: Sequence[str]) -> None:
        await self._run(self._blobs.erase, blobs)

    async def _begin(self, algorithms: Collection[str], body: aws.RequestBody) -> ThreadedBlobWriter:
        return ThreadedBlobWriter(self._threads, await self._run(self._blobs.begin, algorithms), body)

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


class ThreadedBlobWriter:
    """Writes one body in threads, one part at a time. The digests of a part are computed while the next part is written.

    If the caller is cancelled, the thread continues.
    """

    def __init__(self, threads: ThreadPoolExecutor, writer: BlobWriter, body: aws.RequestBody) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._writer = writer
        self._body = body
        self._writing: asyncio.Future[list[bytes]] | None = None
        self._digesting: asyncio.Future[None] | None = None
        self._sealing: asyncio.Future[tuple[StoredBlob, dict[str, str]]] | None = None

    @property
    def is_idle(self) -> bool:
        return all(job is None or job.done() for job in (self._writing, self._digesting))

    async def give(self, pieces: list[bytes]) -> None:
        """Wait until the previous pieces are written, then start to write these pieces."""
        await self.written()
        self._writing = self._loop.run_in_executor(self._threads, self._write, pieces)

    async def end(self) -> tuple[StoredBlob, dict[str, str]]:
        """Complete the blob. Raise an error if the signature or the trailers of the body are not valid."""
        await self.written()
        if self._digesting is not None:
            await asyncio.shield(self._digesting)
        self._sealing = self._loop.run_in_executor(self._threads, self._seal)
        return await asyncio.shield(self._sealing)

    async def stop(self) -> None:
        """Wait until the threads have ended, then delete the incomplete blob."""
        jobs = (self._writing, self._digesting, self._sealing)
        await asyncio.gather(*(job for job in jobs if job is not None), return_exceptions=True)
        self._writer.drop()

    def _write(self, pieces: list[bytes]) -> list[bytes]:
        payload = [self._body.feed(piece) for piece in pieces]
        self._writer.write(payload)
        return payload

    def _seal(self) -> tuple[StoredBlob, dict[str, str]]:
        trailers = self._body.finish()
        return self._writer.seal(), trailers

    async def written(self) -> None:
        """Wait until the pieces of the last `give` are written. Their digests may not be complete yet."""
        if self._writing is None:
            return
        payload = await asyncio.shield(self._writing)
        self._writing = None
        if self._digesting is not None:
            await asyncio.shield(self._digesting)
        self._digesting = self._loop.run_in_executor(self._threads, self._writer.digest, payload)


async def _receive(receive: Receive, writer: ThreadedBlobWriter, waiting: list[bytes]) -> int:
    """Write the pieces in `waiting` and the rest of a body, in large parts. Return the number of bytes."""
    size, more = sum(map(len, waiting)), True
    count = size
    while more:
        data, more = await next_piece(receive)
        waiting.append(data)
        size += len(data)
        count += len(data)
        if size >= WRITE_BYTES and (writer.is_idle or size >= AHEAD_MAX_BYTES):
            await writer.give(waiting)
            waiting, size = [], 0
    await writer.give(waiting)
    return count


async def _readable(source: int) -> None:
    """Wait until the client has sent bytes or has disconnected."""
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


async def whole_body(headers: Mapping[str, str], receive: Receive, connection: HttpConnection, max_bytes: int) -> tuple[bytes, int]:
    """Return the whole body of a request that must be complete before it can be verified. Its maximum size is `max_bytes`.

    Also return the number of bytes of memory that were taken for the body. The caller calls `give_back` with this number after it
    has verified the request. No memory is taken for a body up to UNCOUNTED_MAX_BYTES, or for a body that has arrived together with
    the head.
    """
    declared = headers.get("content-length", "")
    if declared.isdigit() and (len(declared) > 18 or int(declared) > max_bytes):
        raise _too_large(max_bytes)
    if not connection.has_more:
        body, _ = await receive()
        check_size(body, max_bytes)
        return body, 0
    size = int(declared) if declared.isdigit() else max_bytes
    memory, holder = connection.place.memory, connection.place
    if size <= UNCOUNTED_MAX_BYTES:
        return await _unverified_body(receive, memory, max_bytes), 0
    if not memory.try_take(holder, size):
        connection.hold()
        await memory.take(holder, size)
    try:
        return await _unverified_body(receive, memory, max_bytes), size
    except BaseException:
        memory.give_back(holder, size)
        raise


def give_back(connection: HttpConnection, taken: int) -> None:
    """Give back the memory that `whole_body` has taken. Call this before `connection.authenticated`."""
    if taken:
        connection.place.memory.give_back(connection.place, taken)


async def _unverified_body(receive: Receive, memory: UnverifiedMemory, max_bytes: int) -> bytes:
    loop = asyncio.get_running_loop()
    until_s = loop.time() + UNVERIFIED_IDLE_MAX_S
    body, more = bytearray(), True
    while more:
        left_s = until_s + len(body) / UNVERIFIED_MIN_BYTES_PER_S - loop.time()
        data, more = await next_piece(receive, within_s=min(UNVERIFIED_IDLE_MAX_S, left_s))
        body += data
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if more and len(body) > UNPACED_MAX_BYTES:
            await memory.pace(len(data))
    return bytes(body)


def check_size(body: bytes, max_bytes: int) -> None:
    if len(body) > max_bytes:
        raise _too_large(max_bytes)


def _too_large(max_bytes: int) -> ApiError:
    return RequestTooLarge(f"The body is larger than the maximum of {max_bytes} bytes.")


def not_written(error: OSError) -> ApiError:
    """Return the error for a client whose body could not be written to disk."""
    return ServiceUnavailable(f"Nothing was stored: the bytes could not be written ({error.strerror or error}).")


async def next_piece(
    receive: Receive, connection: HttpConnection | None = None, within_s: float = IDLE_MAX_S
) -> tuple[bytes, bool]:
    """Return the next bytes of a body, and whether more bytes follow. Raise RequestTimeout if no bytes arrive in time."""
    try:
        if connection is not None and connection.has_news:
            return await receive()  # without a timeout, which would cost more time than the rest of this function
        async with asyncio.timeout(within_s):
            return await receive()
    except TimeoutError:
        raise RequestTimeout(TOO_SLOW) from None


async def end_body(connection: HttpConnection, response: aws.Response) -> None:
    """Read the rest of the body before the response is sent, or make the response close the connection.

    Otherwise the server would take the rest of the body for the next request. The connection is also closed if the client still
    waits for `100 Continue`, even if the body is empty. Otherwise botocore 1.42 would never get a response to its next request on
    the same connection.
    """
    if connection.awaits_continue:
        response.headers.append(("Connection", "close"))
        return
    if not connection.has_more:
        return
    length = connection.request.headers.get("content-length", "")
    max_bytes = PULLED_MIN_BYTES if connection.is_taken_over else REST_MAX_BYTES
    if not length.isdigit() or len(length) > 18 or int(length) > max_bytes:
        response.headers.append(("Connection", "close"))
        return
    try:
        async with asyncio.timeout(REST_MAX_S):
            more = True
            while more:
                data, more = await next_piece(connection.receive, within_s=REST_MAX_S)
                if more:
                    await connection.place.memory.pace(len(data))
    except (RequestTimeout, TimeoutError):
        response.headers.append(("Connection", "close"))


def _write_at_once(
    blobs: Blobs, body: aws.RequestBody, pieces: Sequence[bytes], algorithms: Collection[str]
) -> tuple[StoredBlob, dict[str, str]]:
    payload = [body.feed(piece) for piece in pieces]
    trailers = body.finish()
    writer = blobs.begin(algorithms)
    try:
        writer.write(payload)
        writer.digest(payload)
        return writer.seal(), trailers
    finally:
        writer.drop()


def _copied(blobs: Blobs, source: Sequence[Slice], algorithms: Collection[str]) -> StoredBlob:
    writer = blobs.begin(algorithms)
    try:
        for each in source:
            with open(blobs.open(each.blob), "rb", buffering=0) as file:
                at, end = each.start, each.start + each.size
                while at < end:
                    piece = os.pread(file.fileno(), min(WRITE_BYTES, end - at), at)
                    if not piece:
                        raise OSError(f"blob {each.blob} is shorter than its row says")
                    writer.write([piece])
                    writer.digest([piece])
                    at += len(piece)
        return writer.seal()
    finally:
        writer.drop()
