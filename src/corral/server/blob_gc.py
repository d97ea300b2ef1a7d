"""Garbage collection of blobs: erases the files that no row refers to, in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from corral.blobs import Blobs
from corral.core import Tx, Wait
from corral.ids import Ids
from corral.model.blob import GARBAGE
from corral.model.settings import Settings
from corral.server.lanes import Lane
from corral.store import Store

BATCH_BLOBS = 200
WAIT_MAX_S = 10 * 365 * 86_400.0  # the wait for garbage ends only when there is some or the server stops
BATCH_DELAY_S = 0.25  # collects garbage before each batch: overwriting 1,000 objects a second must not cost 1,000 removals
RETRY_DELAY_S = 5.0

log = logging.getLogger("corral")


class BlobGc:
    def __init__(self, blobs: Blobs, state: Lane[Store], settings: Settings, ids: Ids) -> None:
        self._blobs = blobs
        self._state = state
        self._settings = settings
        self._ids = ids

    async def run(self) -> None:
        """Sweep the files that a crash has left, then erase garbage until the server stops."""
        while True:
            try:
                await self._sweep()
                while garbage := await self._state.submit(_garbage):
                    await self._remove(garbage)
                    if len(garbage) < BATCH_BLOBS:
                        await asyncio.sleep(BATCH_DELAY_S)
                return
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("blobs could not be erased")
                await asyncio.sleep(RETRY_DELAY_S)

    async def _sweep(self) -> None:
        """Erase orphans, one folder at a time. Files are listed before rows are read: a listed file without a row is an orphan."""
        folders = self._blobs.folders()
        while names := await asyncio.to_thread(self._blobs.names, folders):
            for at in range(0, len(names), BATCH_BLOBS):
                batch = names[at : at + BATCH_BLOBS]
                known = await self._state.read(partial(_known, batch), self._settings, self._ids)
                await self._erase(self._blobs.erasable([name for name in batch if name not in known]))

    async def _remove(self, blobs: Sequence[str]) -> None:
        """Erase the files of garbage, then delete its rows."""
        await self._erase(self._blobs.erasable(blobs))
        await self._state.submit(lambda tx: tx.store.objects.drop_garbage(blobs))

    async def _erase(self, blobs: Sequence[str]) -> None:
        if blobs:
            await asyncio.to_thread(self._blobs.erase, blobs)


def _known(blobs: Sequence[str], tx: Tx[Store]) -> set[str]:
    return tx.store.objects.known_blobs(blobs)


def _garbage(tx: Tx[Store]) -> list[str]:
    """The next blobs without references. Waits until there are some; empty when the server stops."""
    found = tx.store.objects.garbage(BATCH_BLOBS)
    if not found and not tx.final:
        raise Wait([GARBAGE], tx.now_s + WAIT_MAX_S)
    return found
