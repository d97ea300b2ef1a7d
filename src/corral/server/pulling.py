"""Large bodies on their way in: from the socket to the file by threads, past the event loop. The mirror of `sending`."""

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
from corral.blobs import Arriving, Blobs
from corral.model.blob import Arrived

PIECE_BYTES = 256 * 1024  # read and written at once: it is still in the cache when it is digested
PIECES = 6  # of one body in memory
TURN_S = 0.1  # then somebody else may have the thread: senders on a slow network are many, and keep it busy with little
PATIENCE_MS = 20  # how long a thread waits for a client that sends nothing; then the event loop waits, without a thread


class Pull:
    """One body: a thread reads, decodes and writes it, another one digests what is written."""

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
        """What has `begun` to come is here; `left` bytes are still to be read from the descriptor `source`."""
        self._blobs = blobs
        self._algorithms = algorithms
        self._body = body
        self._begun = begun
        self._source = source
        self._left = left
        self._digesters = digesters
        self._arriving: Arriving | None = None
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        self._lock = Lock()
        self._undigested: deque[tuple[bytes, bytearray]] = deque()
        self._is_digesting = False
        self._failure: Exception | None = None
        self._stopped = False

    @property
    def left(self) -> int:
        """Bytes that are still to be read. Without any, what the socket gives next is not of this body."""
        return self._left

    def read(self) -> tuple[Arrived, dict[str, str]] | None:
        """Read on. None: there is nothing to read for now, or it is somebody else's turn."""
        arriving = self._arriving or self._begin()
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        until = time.monotonic() + TURN_S
        while self._left and not self._stopped and time.monotonic() < until:
            buffer = self._free.get()
            view = memoryview(buffer)[: self._left]
            count = _fill(self._source, view, poll)
            self._left -= count
            payload = self._body.feed(view[:count])  # type: ignore[arg-type]  # a view will do
            arriving.write([payload])
            self._digest_later(arriving, payload, buffer)
            if count < len(view):
                break
        return self._end(arriving) if not self._left else None

    def _begin(self) -> Arriving:
        for _ in range(PIECES):
            self._free.put(bytearray(PIECE_BYTES))
        arriving = self._arriving = self._blobs.begin(self._algorithms)
        payload = [self._body.feed(piece) for piece in self._begun]
        arriving.write(payload)
        arriving.digest(payload)
        return arriving

    def _end(self, arriving: Arriving) -> tuple[Arrived, dict[str, str]]:
        """That was all: it counts if the body agrees."""
        arriving.flush()  # while the last pieces are digested
        for _ in range(PIECES):
            self._free.get()
        if self._failure is not None:
            raise self._failure
        trailers = self._body.finish()
        return arriving.seal(), trailers

    def skip(self) -> None:
        """Read on and keep nothing of it, until there is nothing to read for now."""
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        buffer = memoryview(bytearray(PIECE_BYTES))
        while self._left and not self._stopped:
            room = buffer[: self._left]
            count = _fill(self._source, room, poll)
            self._left -= count
            if count < len(room):
                return

    def drop(self) -> None:
        """If it has not arrived, nothing of it is wanted. No thread may be reading."""
        if self._arriving is not None:
            self._arriving.drop()

    def stop(self) -> None:
        """Whoever reads returns soon."""
        self._stopped = True

    def _digest_later(self, arriving: Arriving, payload: bytes, buffer: bytearray) -> None:
        with self._lock:
            self._undigested.append((payload, buffer))
            if self._is_digesting:
                return
            self._is_digesting = True
        self._digesters.submit(self._digest, arriving)

    def _digest(self, arriving: Arriving) -> None:
        """All that waits, and nothing for as long as nothing does: a slow client must not keep a thread."""
        while True:
            with self._lock:
                if not self._undigested:
                    self._is_digesting = False
                    return
                payload, buffer = self._undigested.popleft()
            try:
                arriving.digest([payload])
            except Exception as error:
                self._failure = error
            finally:
                self._free.put(buffer)


def _fill(source: int, view: memoryview, poll: select.poll) -> int:
    """How many bytes came; fewer than there is room for: the client sends nothing more for now."""
    filled = 0
    while filled < len(view):
        try:
            count = os.readv(source, [view[filled:]])
        except BlockingIOError:
            if not poll.poll(PATIENCE_MS):
                return filled
            continue
        except OSError as error:
            raise ConnectionAbortedError("the client has gone") from error
        if not count:
            raise ConnectionAbortedError("the client has gone")
        filled += count
    return filled
