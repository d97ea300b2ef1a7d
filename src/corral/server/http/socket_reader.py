"""Reads large request bodies from the socket into a file, in threads. `response_sender.py` sends large response bodies."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock

from corral import aws
from corral.blobs import Blobs, BlobWriter
from corral.model.blob import StoredBlob

BUFFER_BYTES = 256 * 1024  # so small that a buffer is still in the CPU cache when its digest is computed
BUFFERS = 6  # buffers per body
# A turn is the time in which a thread reads one body. After this time, the thread serves another body. Otherwise a few bodies
# would keep all threads busy.
TURN_S = 0.1
# A thread waits this long for more bytes. After that, the turn ends, and the event loop waits for the client without a thread.
SOCKET_WAIT_MS = 20


class SocketReader:
    """Reads one body. One thread reads, decodes and writes the body, and another thread computes its digests."""

    def __init__(
        self,
        blobs: Blobs,
        algorithms: Collection[str],
        body: aws.RequestBody,
        begun: Sequence[bytes],
        source: int,
        left: int,
        digesters: ThreadPoolExecutor,
    ) -> None:
        """`begun` contains the bytes that were received already. `left` more bytes must be read from the descriptor `source`."""
        self._blobs = blobs
        self._algorithms = algorithms
        self._body = body
        self._begun = begun
        self._source = source
        self._left = left
        self._digesters = digesters
        self._writer: BlobWriter | None = None
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        self._lock = Lock()
        self._undigested: deque[tuple[bytes, bytearray]] = deque()
        self._is_digesting = False
        self._failure: Exception | None = None
        self._stopped = False

    @property
    def left(self) -> int:
        """The number of bytes that must still be read. At 0, the next bytes on the socket belong to the next request."""
        return self._left

    def read(self) -> tuple[StoredBlob, dict[str, str]] | None:
        """Read for about TURN_S seconds. Return the blob and the trailers, or None if the body is not complete yet."""
        writer = self._writer or self._begin()
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        until = time.monotonic() + TURN_S
        while self._left and not self._stopped and time.monotonic() < until:
            buffer = self._free.get()
            view = memoryview(buffer)[: self._left]
            count = _fill(self._source, view, poll)
            self._left -= count
            payload = self._body.feed(view[:count])  # type: ignore[arg-type]  # a memoryview works too
            writer.write([payload])
            self._digest_later(writer, payload, buffer)
            if count < len(view):
                break
        return self._end(writer) if not self._left else None

    def _begin(self) -> BlobWriter:
        for _ in range(BUFFERS):
            self._free.put(bytearray(BUFFER_BYTES))
        writer = self._writer = self._blobs.begin(self._algorithms)
        payload = [self._body.feed(piece) for piece in self._begun]
        writer.write(payload)
        writer.digest(payload)
        return writer

    def _end(self, writer: BlobWriter) -> tuple[StoredBlob, dict[str, str]]:
        """Complete the blob. Raise an error if the signature or the trailers of the body are not valid."""
        writer.flush()  # while the other thread computes the last digests
        for _ in range(BUFFERS):  # all buffers are free when all digests are computed
            self._free.get()
        if self._failure is not None:
            raise self._failure
        trailers = self._body.finish()
        return writer.seal(), trailers

    def skip(self) -> None:
        """Read and discard bytes of the body, until no byte arrives for SOCKET_WAIT_MS or the body ends."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        buffer = memoryview(bytearray(BUFFER_BYTES))
        while self._left and not self._stopped:
            room = buffer[: self._left]
            count = _fill(self._source, room, poll)
            self._left -= count
            if count < len(room):
                return

    def drop(self) -> None:
        """Delete the blob if it is incomplete. Do not call this method while a thread reads."""
        if self._writer is not None:
            self._writer.drop()

    def stop(self) -> None:
        """Make `read` and `skip` return soon."""
        self._stopped = True

    def _digest_later(self, writer: BlobWriter, payload: bytes, buffer: bytearray) -> None:
        with self._lock:
            self._undigested.append((payload, buffer))
            if self._is_digesting:
                return
            self._is_digesting = True
        self._digesters.submit(self._digest, writer)

    def _digest(self, writer: BlobWriter) -> None:
        """Compute the digests of all pieces in the queue, then return.

        This method does not wait for more pieces, so a slow client does not keep the thread busy.
        """
        while True:
            with self._lock:
                if not self._undigested:
                    self._is_digesting = False
                    return
                payload, buffer = self._undigested.popleft()
            try:
                writer.digest([payload])
            except Exception as error:
                self._failure = error
            finally:
                self._free.put(buffer)


def _fill(source: int, view: memoryview, poll: select.poll) -> int:
    """Fill the view from the socket, and return the number of bytes. The view is not full if no byte arrived for SOCKET_WAIT_MS.

    Raise ConnectionAbortedError if the client has disconnected.
    """
    filled = 0
    while filled < len(view):
        try:
            count = os.readv(source, [view[filled:]])
        except BlockingIOError:
            if not poll.poll(SOCKET_WAIT_MS):
                return filled
            continue
        except OSError as error:
            raise ConnectionAbortedError("the client has disconnected") from error
        if not count:
            raise ConnectionAbortedError("the client has disconnected")
        filled += count
    return filled
