"""Layers on their way in, over one request or several. None is durable until it is whole.

An upload that is cut, that nobody goes on with for an hour, or whose server dies leaves nothing: Docker sends the layer again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from corral.ids import Ids
from corral.model.blob import StoredBlob
from corral.server.registry.errors import BlobUploadInvalid, BlobUploadUnknown, SizeInvalid, TooManyRequests
from corral.server.request_body import BodyReceiver, Receive, ThreadedBlobWriter, not_written

SHA256 = "SHA256"
UPLOADS_MAX = 256
SILENT_MAX_S = 3600.0  # nobody sends to it for so long: it is forgotten
GIVES_WAY_S = 60.0  # after so long it is forgotten for the sake of another, when there are too many

log = logging.getLogger("corral")


@dataclass(slots=True, eq=False)
class Upload:
    id: str
    repository_id: int
    work: ThreadedBlobWriter | None = None  # there once the first bytes are
    size: int = 0
    is_busy: bool = False  # a request is sending
    silent_since_s: float = 0.0  # by the event loop's clock
    forgetting: asyncio.TimerHandle | None = field(default=None, repr=False)


class Uploads:
    def __init__(self, intake: BodyReceiver, ids: Ids) -> None:
        self._intake = intake
        self._ids = ids
        self._open: dict[str, Upload] = {}
        self._dropping: set[asyncio.Task[None]] = set()

    def open(self, repository_id: int) -> Upload:
        if len(self._open) >= UPLOADS_MAX:
            self._make_room()
        upload = Upload(self._ids.uuid(), repository_id)
        self._open[upload.id] = upload
        self._is_silent(upload)
        return upload

    def find(self, upload_id: str, repository_id: int) -> Upload:
        """One that nobody is sending to."""
        upload = self._open.get(upload_id)
        if upload is None or upload.repository_id != repository_id:
            why = "This upload is not known: it was completed, cut off, or not gone on with for an hour. Begin again."
            raise BlobUploadUnknown(why)
        if upload.is_busy:
            raise BlobUploadInvalid("Another request is sending to this upload.")
        return upload

    async def take(self, upload: Upload, receive: Receive, announced: int | None) -> None:
        """The bytes of a request, of which so many were announced. What goes wrong ends the upload."""
        async with self._sending(upload):
            await self._take(upload, receive, announced)

    async def finish(self, upload: Upload, receive: Receive, announced: int | None) -> StoredBlob:
        """The last bytes of it, if any, and it is whole: a row must follow, or `Intake.erase`."""
        async with self._sending(upload):
            work = await self._take(upload, receive, announced)
            arrived, _ = await work.end()
        self._close(upload)
        return arrived

    async def drop(self, upload: Upload) -> None:
        """Nothing of it is wanted."""
        self._close(upload)
        if upload.work is not None:
            await upload.work.stop()

    async def _take(self, upload: Upload, receive: Receive, announced: int | None) -> ThreadedBlobWriter:
        if upload.work is None:
            upload.work = await self._intake.begin({SHA256})
        count = await self._intake.take(receive, upload.work)
        if announced is not None and count != announced:
            raise SizeInvalid(f"The chunk has {count} bytes, its Content-Range says {announced}. Begin the upload again.")
        upload.size += count
        return upload.work

    @asynccontextmanager
    async def _sending(self, upload: Upload) -> AsyncIterator[None]:
        upload.is_busy = True
        try:
            yield
        except OSError as error:
            log.exception("a layer could not be written")
            await self.drop(upload)
            raise not_written(error) from None
        except BaseException:
            await self.drop(upload)
            raise
        upload.is_busy = False
        self._is_silent(upload)

    def _close(self, upload: Upload) -> None:
        self._open.pop(upload.id, None)
        if upload.forgetting is not None:
            upload.forgetting.cancel()

    def _is_silent(self, upload: Upload) -> None:
        loop = asyncio.get_running_loop()
        upload.silent_since_s = loop.time()
        if upload.forgetting is not None:
            upload.forgetting.cancel()
        upload.forgetting = loop.call_later(SILENT_MAX_S, self._forget, upload)

    def _forget(self, upload: Upload) -> None:
        if not upload.is_busy:
            self._close(upload)  # at once: another has its place
            task = asyncio.get_running_loop().create_task(self.drop(upload))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    def _make_room(self) -> None:
        """Whoever was killed in the middle of a push has left uploads that nobody goes on with."""
        idle = [upload for upload in self._open.values() if not upload.is_busy]
        oldest = min(idle, key=lambda upload: upload.silent_since_s, default=None)
        if oldest is None or asyncio.get_running_loop().time() < oldest.silent_since_s + GIVES_WAY_S:
            raise TooManyRequests(f"{UPLOADS_MAX} uploads are open, and no more are taken. Push fewer layers at a time.")
        self._forget(oldest)
