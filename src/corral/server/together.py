"""Small bodies on their way in: one thread writes all that have come while it was busy, and syncs them together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from corral.blobs import Blobs
from corral.core import Tx
from corral.model.blob import Arrived
from corral.server.gathering import Gathering
from corral.server.lanes import Lane

BATCH_MAX = 64
Owner = Callable[[Arrived, Tx[Any]], Any]  # gives a blob to somebody, in a transaction


@dataclass(slots=True, eq=False)
class Body:
    data: bytes
    algorithms: Collection[str]
    lane: Lane[Any]
    owner: Owner
    answer: asyncio.Future[Any]  # the owner's
    arrived: Arrived | None = None  # set by the thread, before the owner is asked


class Together:
    """A lane for bytes: as `lanes` do with rows, so that many who write at once cost one hand-over and one sync."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._queue: SimpleQueue[list[Body]] = SimpleQueue()
        self._gathering = Gathering[Body](self._queue.put, BATCH_MAX)
        self._thread: threading.Thread | None = None

    def write(self, data: bytes, algorithms: Collection[str], lane: Lane[Any], owner: Owner) -> Body:
        """When it is on disk its owner takes it, in the lane: the event loop has no part in that. Call from the event loop."""
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._work, args=(loop,), name="small-blobs", daemon=True)
            self._thread.start()
        body = Body(data, algorithms, lane, owner, lane.new_future())
        self._gathering.add(body)
        return body

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
            onward: dict[Lane[Any], list[tuple[Callable[[Tx[Any]], Any], asyncio.Future[Any]]]] = {}
            failed = []
            for body, found in zip(bodies, stored):
                if isinstance(found, Arrived):
                    body.arrived = found
                    onward.setdefault(body.lane, []).append((partial(body.owner, found), body.answer))
                else:
                    failed.append((body, found))
            for lane, commands in onward.items():
                lane.submit_from_thread(commands)
            if failed:
                try:
                    loop.call_soon_threadsafe(_tell, failed)
                except RuntimeError:  # the loop is closed: the process is going down, and nobody is listening
                    return


def _tell(failed: Sequence[tuple[Body, Exception]]) -> None:
    for body, error in failed:
        if not body.answer.done():  # whoever asked may have gone
            body.answer.set_exception(error)
