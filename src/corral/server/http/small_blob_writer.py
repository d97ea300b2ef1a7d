"""Writes small request bodies to blobs, which are files of the object storage.

One thread writes the bodies. Those that arrived while it was busy share one sync.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from msgspec import Struct

from corral.blobs import Blobs
from corral.core.transactions import Tx
from corral.model.blob import StoredBlob
from corral.server.lanes import Lane
from corral.server.thread_feed import ThreadFeed

BODIES_MAX = 64  # the number of bodies that share a sync; further bodies wait for the next sync
CommitBlob = Callable[[StoredBlob, Tx[Any]], Any]  # the command that commits the row of a blob and returns the response


class PendingBlob(Struct, eq=False):
    data: bytes
    algorithms: Collection[str]
    lane: Lane[Any]
    commit: CommitBlob
    response: asyncio.Future[Any]  # the result of `commit`
    stored: StoredBlob | None = None  # the thread sets this before it submits `commit`


class SmallBlobWriter:
    """Writes blobs, several with one sync. The first write starts the thread."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._queue: SimpleQueue[list[PendingBlob]] = SimpleQueue()
        self._feed = ThreadFeed[PendingBlob](self._queue.put, BODIES_MAX)
        self._thread: threading.Thread | None = None

    def write(self, data: bytes, algorithms: Collection[str], lane: Lane[Any], commit: CommitBlob) -> PendingBlob:
        """Queue a blob. When the thread has written it, the thread submits `commit` to the lane.

        Call this method from the event loop.
        """
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._work, args=(loop,), name="small-blobs", daemon=True)
            self._thread.start()
        blob = PendingBlob(data, algorithms, lane, commit, lane.new_future())
        self._feed.add(blob)
        return blob

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            pending = self._queue.get()
            try:
                while len(pending) < BODIES_MAX:
                    pending += self._queue.get_nowait()
            except Empty:
                pass
            results: Sequence[StoredBlob | Exception]
            try:
                results = self._blobs.store([(blob.data, blob.algorithms) for blob in pending])
            except Exception as error:  # an unexpected error fails only these blobs; the thread continues
                results = [error] * len(pending)
            commands_by_lane: dict[Lane[Any], list[tuple[Callable[[Tx[Any]], Any], asyncio.Future[Any]]]] = {}
            failed = []
            for blob, found in zip(pending, results):
                if isinstance(found, StoredBlob):
                    blob.stored = found
                    commands_by_lane.setdefault(blob.lane, []).append((partial(blob.commit, found), blob.response))
                else:
                    failed.append((blob, found))
            for lane, commands in commands_by_lane.items():
                lane.submit_from_thread(commands)
            if failed:
                try:
                    loop.call_soon_threadsafe(_fail, failed)
                except RuntimeError:  # the event loop is closed, because the process is shutting down
                    return


def _fail(failed: Sequence[tuple[PendingBlob, Exception]]) -> None:
    for blob, error in failed:
        if not blob.response.done():  # the client may have disconnected
            blob.response.set_exception(error)
