"""The garbage collection of blobs, with a lane that returns chosen garbage."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from corral.blobs import Blobs
from corral.blobs.blob_lock import hold_blobs, try_erasing
from corral.core.clock import VirtualClock
from corral.core.ids import SeededIds
from corral.model.settings import Settings
from corral.process.data_folder import BLOBS_LOCK
from corral.server import blob_gc
from corral.server.lanes import Lane
from corral.store import Store


class GarbageLane:
    """Answers the first command with garbage, and the second, which deletes the rows of the garbage, with nothing."""

    def __init__(self, garbage: list[str], on_drop: Callable[[], None]) -> None:
        self._garbage: list[str] | None = garbage
        self._on_drop = on_drop
        self._dropped = False

    async def submit(self, command: Callable[..., Any]) -> list[str]:
        if self._garbage is not None:
            found, self._garbage = self._garbage, None
            return found
        if self._dropped:
            await asyncio.Event().wait()
        self._dropped = True
        self._on_drop()
        return []


def test_a_blob_that_a_backup_needs_is_not_erased_after_its_last_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = SeededIds(Random(7))
    blobs = Blobs(tmp_path / "blobs", ids)
    (blob,) = blobs.store([(b"bytes", ())])
    assert not isinstance(blob, OSError)
    path = blobs.path(blob.blob)

    async def scenario() -> None:
        reached, dropped = asyncio.Event(), asyncio.Event()

        def try_lock(lock: Path) -> int | None:
            held = try_erasing(lock)
            if held is None:
                reached.set()
            return held

        def on_drop() -> None:
            reached.set()
            dropped.set()

        monkeypatch.setattr(blob_gc, "try_erasing", try_lock)
        monkeypatch.setattr(blob_gc, "HELD_DELAY_S", 0.0)
        backup = hold_blobs(tmp_path / BLOBS_LOCK)
        lane = cast(Lane[Store], GarbageLane([blob.blob], on_drop))
        with blobs.reading([blob.blob]):
            collecting = asyncio.create_task(blob_gc.BlobGc(tmp_path, blobs, lane, Settings(), ids, VirtualClock()).run())
            await asyncio.wait_for(reached.wait(), 10)
        assert os.path.exists(path) and not dropped.is_set()
        os.close(backup)
        await asyncio.wait_for(dropped.wait(), 10)
        assert not os.path.exists(path)
        collecting.cancel()

    asyncio.run(scenario())
