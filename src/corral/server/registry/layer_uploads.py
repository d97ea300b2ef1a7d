"""Uploads of layers. An upload takes one request or several.

A layer is durable when its upload is complete. An incomplete upload is deleted if it fails, if the client cancels it, if it gets no
request for an hour (IDLE_MAX_S), or if the server stops. If too many uploads are open, a new upload replaces the upload that has
been idle for the longest time, if this time is at least a minute (EVICTABLE_S). Docker then sends the layer of the replaced upload
again. Programs in containers cannot keep others from pushing: a task, and all containers together, have only a part of the uploads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from msgspec import Struct

from corral.core.ids import Ids
from corral.model.blob import StoredBlob
from corral.server.http.request_body import BodyReceiver, Receive, ThreadedBlobWriter, not_written
from corral.server.registry.errors import BlobUploadInvalid, BlobUploadUnknown, SizeInvalid, TooManyRequests

SHA256 = "SHA256"
UPLOADS_MAX = 256
CONTAINERS_MAX = UPLOADS_MAX // 2  # the most uploads of all programs in containers
TASK_MAX = 32  # the most uploads of the containers of one task; Docker sends five layers at a time
IDLE_MAX_S = 3600.0  # an upload that has been idle for this long is deleted
# If UPLOADS_MAX uploads are open, an upload that has been idle for this long may be deleted to make room for a new upload.
EVICTABLE_S = 60.0
CHECKED_BYTES = 2**20  # after so many bytes, the owner's limit of stored bytes is checked again

log = logging.getLogger("corral")


class LayerUpload(Struct, eq=False):
    id: str
    repository_id: int
    owner: str = ""  # of the repository
    task_id: str = ""  # the task whose container has begun the upload
    work: ThreadedBlobWriter | None = None  # None until the first bytes arrive
    size: int = 0
    arriving: int = 0  # bytes of the present request
    checked: int = 0  # the bytes that the upload had when its owner's limit was checked
    is_busy: bool = False  # whether a request is sending bytes now
    idle_since_s: float = 0.0  # by the clock of the event loop
    idle_timer: asyncio.TimerHandle | None = None


Check = Callable[[LayerUpload], None]  # raises an error if the owner of an upload may not store its bytes


class LayerUploads:
    def __init__(self, intake: BodyReceiver, ids: Ids) -> None:
        self._intake = intake
        self._ids = ids
        self._open: dict[str, LayerUpload] = {}
        self._dropping: set[asyncio.Task[None]] = set()

    def open(self, repository_id: int, owner: str, task_id: str = "") -> LayerUpload:
        """Begin an upload to a repository of `owner`.

        `task_id` is the task of a program in a container, and empty for all other callers.
        """
        everyone = list(self._open.values())
        containers = [upload for upload in everyone if upload.task_id and task_id]
        task = [upload for upload in containers if upload.task_id == task_id]
        for rivals, most in ((task, TASK_MAX), (containers, CONTAINERS_MAX), (everyone, UPLOADS_MAX)):
            if len(rivals) >= most:
                self._make_room(rivals)
                break
        upload = LayerUpload(self._ids.uuid(), repository_id, owner, task_id)
        self._open[upload.id] = upload
        self._mark_idle(upload)
        return upload

    def find(self, upload_id: str, repository_id: int) -> LayerUpload:
        """Find an open upload. Raise an error if it does not exist, or if another request is sending bytes to it."""
        upload = self._open.get(upload_id)
        if upload is None or upload.repository_id != repository_id:
            why = "This upload does not exist: it was completed or cancelled, failed, or was idle for too long. Begin a new upload."
            raise BlobUploadUnknown(why)
        if upload.is_busy:
            raise BlobUploadInvalid("Another request is sending to this upload. Wait for it to finish.")
        return upload

    def unfinished(self, owners: Collection[str]) -> int:
        """Return the bytes of all uploads to the repositories of these owners."""
        return sum([upload.size + upload.arriving for upload in self._open.values() if upload.owner in owners])

    async def take(self, upload: LayerUpload, receive: Receive, announced: int | None, check: Check) -> None:
        """Append the bytes of a request. Any failure deletes the upload.

        `announced` is the number of bytes according to the Content-Range header, or None if the request has no such header.
        """
        async with self._sending(upload):
            await self._take(upload, receive, announced, check)

    async def finish(self, upload: LayerUpload, receive: Receive, announced: int | None, check: Check) -> StoredBlob:
        """Append the last bytes and complete the blob. The caller must then commit a row for the blob, or erase the blob."""
        async with self._sending(upload):
            work = await self._take(upload, receive, announced, check)
            arrived, _ = await work.end()
        self._close(upload)
        return arrived

    async def drop(self, upload: LayerUpload) -> None:
        """Delete an upload and its bytes."""
        self._close(upload)
        if upload.work is not None:
            await upload.work.stop()

    async def _take(self, upload: LayerUpload, receive: Receive, announced: int | None, check: Check) -> ThreadedBlobWriter:
        async def checked() -> tuple[bytes, bool]:
            data, more = await receive()
            upload.arriving += len(data)
            arrived = upload.size + upload.arriving
            if arrived - upload.checked >= CHECKED_BYTES:
                check(upload)
                upload.checked = arrived
            return data, more

        if upload.work is None:
            upload.work = await self._intake.begin({SHA256})
        count = await self._intake.take(checked, upload.work)
        upload.arriving = 0
        if announced is not None and count != announced:
            raise SizeInvalid(f"The chunk has {count} bytes, but its Content-Range has {announced}. Begin a new upload.")
        upload.size += count
        return upload.work

    @asynccontextmanager
    async def _sending(self, upload: LayerUpload) -> AsyncIterator[None]:
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
        self._mark_idle(upload)

    def _close(self, upload: LayerUpload) -> None:
        self._open.pop(upload.id, None)
        if upload.idle_timer is not None:
            upload.idle_timer.cancel()

    def _mark_idle(self, upload: LayerUpload) -> None:
        loop = asyncio.get_running_loop()
        upload.idle_since_s = loop.time()
        if upload.idle_timer is not None:
            upload.idle_timer.cancel()
        upload.idle_timer = loop.call_later(IDLE_MAX_S, self._drop_idle, upload)

    def _drop_idle(self, upload: LayerUpload) -> None:
        if not upload.is_busy:
            self._close(upload)  # now, because `drop` runs only later, and a new upload may need the room now
            task = asyncio.get_running_loop().create_task(self.drop(upload))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    def _make_room(self, rivals: list[LayerUpload]) -> None:
        """Delete the upload that has been idle for the longest time. Raise TooManyRequests if no upload is idle for EVICTABLE_S.

        A client that was killed during a push leaves idle uploads.
        """
        idle = [upload for upload in rivals if not upload.is_busy]
        oldest = min(idle, key=lambda upload: upload.idle_since_s, default=None)
        if oldest is None or asyncio.get_running_loop().time() < oldest.idle_since_s + EVICTABLE_S:
            raise TooManyRequests(f"{len(rivals)} uploads are open, which is the maximum. Push fewer layers at a time.")
        self._drop_idle(oldest)
