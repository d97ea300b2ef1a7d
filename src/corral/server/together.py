"""Small bodies on their way in: one thread writes all that have come while it was busy, and syncs them together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from corral.blobs import Blobs
from corral.model.blob import Arrived
from corral.server.gathering import Gathering

BATCH_MAX = 64


@dataclass(frozen=True, slots=True)
class _Body:
    data: bytes
    algorithms: Collection[str]
    future: asyncio.Future[Arrived]


class Together:
    """A lane for bytes: as `lanes` do with rows, so that many who write at once cost one hand-over and one sync."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._queue: SimpleQueue[list[_Body]] = SimpleQueue()
        self._gathering = Gathering[_Body](self._queue.put, BATCH_MAX)
        self._thread: threading.Thread | None = None

    def store(self, data: bytes, algorithms: Collection[str]) -> asyncio.Future[Arrived]:
        """Done when it is on disk. Call from the event loop."""
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, args=(loop,), name="small-blobs", daemon=True)
            self._thread.start()
        future: asyncio.Future[Arrived] = loop.create_future()
        self._gathering.add(_Body(data, algorithms, future))
        return future

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            bodies = self._queue.get()
            try:
                while len(bodies) < BATCH_MAX:
                    bodies += self._queue.get_nowait()
            except Empty:
                pass
            stored: Sequence[Arrived | Exception]
            try:
                stored = self._blobs.store([(body.data, body.algorithms) for body in bodies])
            except Exception as error:  # a fault of ours: whoever waits is told, and the next ones are served
                stored = [error] * len(bodies)
            try:
                loop.call_soon_threadsafe(_deliver, bodies, stored)
            except RuntimeError:  # the loop is closed: the process is going down, and nobody is listening
                return


def _deliver(bodies: Sequence[_Body], stored: Sequence[Arrived | Exception]) -> None:
    for body, found in zip(bodies, stored):
        if body.future.done():  # whoever asked has gone; the next start finds that no row refers to the file
            continue
        if isinstance(found, Exception):
            body.future.set_exception(found)
        else:
            body.future.set_result(found)
