"""Uploads of layers that are idle, cut off or too many, on the test's own clock."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from corral.blobs import Blobs
from corral.core.errors import ServiceUnavailable
from corral.core.ids import SeededIds
from corral.server.http.connection import ClientGone
from corral.server.http.request_body import BodyReceiver, Receive
from corral.server.registry.errors import BlobUploadUnknown, TooManyRequests
from corral.server.registry.layer_uploads import (
    CONTAINERS_MAX,
    EVICTABLE_S,
    IDLE_MAX_S,
    TASK_MAX,
    UPLOADS_MAX,
    LayerUpload,
    LayerUploads,
)
from eventually import soon

OWNER = "user/ann"


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock the test can advance."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def arriving(tmp_path: Path) -> Callable[[], list[str]]:
    return lambda: os.listdir(tmp_path / "blobs" / "arriving")


@pytest.fixture
def uploads(tmp_path: Path) -> LayerUploads:
    ids = SeededIds(Random(0))
    return LayerUploads(BodyReceiver(Blobs(tmp_path / "blobs", ids)), ids)


def unlimited(upload: LayerUpload) -> None:
    """The owner of the repository has no limit of stored bytes."""


def sends(*pieces: bytes, gone: bool = False) -> Receive:
    """The body of a request as it arrives. The client may disconnect before its end."""
    coming = iter(pieces)

    async def receive() -> tuple[bytes, bool]:
        piece = next(coming, None)
        if piece is None and gone:
            raise ClientGone
        return piece or b"", piece is not None

    return receive


def test_an_upload_that_is_idle_for_an_hour_is_dropped(loop: Loop, uploads: LayerUploads, arriving: Callable[[], list[str]]):
    async def go() -> None:
        upload = uploads.open(1, OWNER)
        loop.ahead_s += IDLE_MAX_S - 10
        await uploads.take(upload, sends(b"some"), None, unlimited)
        loop.ahead_s += IDLE_MAX_S - 10  # counted from the last bytes
        await asyncio.sleep(0)
        assert uploads.find(upload.id, 1) is upload
        assert len(arriving()) == 1
        loop.ahead_s += 20
        await soon(lambda: not arriving())
        with pytest.raises(BlobUploadUnknown):
            uploads.find(upload.id, 1)

    loop.run_until_complete(go())


def test_the_longest_idle_upload_is_evicted(loop: Loop, uploads: LayerUploads):
    async def go() -> None:
        opened: list[LayerUpload] = []
        for _ in range(UPLOADS_MAX):
            opened.append(uploads.open(1, OWNER))
        await uploads.take(opened[0], sends(b"some"), None, unlimited)
        with pytest.raises(TooManyRequests):
            uploads.open(1, OWNER)
        loop.ahead_s += EVICTABLE_S + 1
        uploads.open(1, OWNER)
        assert uploads.find(opened[0].id, 1)
        with pytest.raises(BlobUploadUnknown):
            uploads.find(opened[1].id, 1)

    loop.run_until_complete(go())


def test_containers_cannot_keep_others_from_uploads(loop: Loop, uploads: LayerUploads):
    async def go() -> None:
        opened = [uploads.open(1, OWNER, "t1") for _ in range(TASK_MAX)]
        with pytest.raises(TooManyRequests):
            uploads.open(1, OWNER, "t1")
        others = (CONTAINERS_MAX - TASK_MAX) // TASK_MAX
        for number in range(others):
            opened += [uploads.open(1, OWNER, f"o{number}") for _ in range(TASK_MAX)]
        with pytest.raises(TooManyRequests):
            uploads.open(1, OWNER, "t2")
        opened += [uploads.open(1, OWNER) for _ in range(UPLOADS_MAX - CONTAINERS_MAX)]
        assert all(uploads.find(upload.id, 1) for upload in opened), "each of them is still open"

    loop.run_until_complete(go())


def test_a_client_that_disconnects(loop: Loop, uploads: LayerUploads, arriving: Callable[[], list[str]]):
    async def go() -> None:
        upload = uploads.open(1, OWNER)
        await uploads.take(upload, sends(b"some"), None, unlimited)
        with pytest.raises(ClientGone):
            await uploads.take(upload, sends(bytes(3_000_000), gone=True), None, unlimited)
        assert not arriving()
        with pytest.raises(BlobUploadUnknown):
            uploads.find(upload.id, 1)

    loop.run_until_complete(go())


def test_a_folder_that_cannot_be_written(loop: Loop, uploads: LayerUploads, tmp_path: Path):
    async def go() -> None:
        upload, other = uploads.open(1, OWNER), uploads.open(1, OWNER)
        await uploads.take(other, sends(b"some"), None, unlimited)  # the first blob creates the folders
        await uploads.drop(other)
        os.rmdir(tmp_path / "blobs" / "arriving")
        with pytest.raises(ServiceUnavailable, match="Nothing was stored"):
            await uploads.take(upload, sends(b"some"), None, unlimited)

    loop.run_until_complete(go())
