"""Who keeps the folder of blobs in step with the rows: files that no row refers to are erased, some at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from corral.blobs import Blobs
from corral.core import Tx, Wait
from corral.ids import Ids
from corral.model.settings import Settings
from corral.server.lanes import Lane
from corral.services.s3.contents import GARBAGE
from corral.store import Store

AT_ONCE = 200
PATIENCE_S = 10 * 365 * 86_400.0  # nobody asks in vain: only when the server goes down is there nothing to do
GATHERING_S = 0.25  # who overwrites a thousand objects a second should not pay for a thousand removals
PAUSE_S = 5.0  # after a failure

log = logging.getLogger("corral")


class Keeper:
    def __init__(self, blobs: Blobs, state: Lane[Store], settings: Settings, ids: Ids) -> None:
        self._blobs = blobs
        self._state = state
        self._settings = settings
        self._ids = ids

    async def keep(self) -> None:
        """For as long as the server lives: first what a crash has left, then what is thrown away."""
        while True:
            try:
                await self._sweep()
                while garbage := await self._state.submit(_garbage):
                    await self._remove(garbage)
                    if len(garbage) < AT_ONCE:
                        await asyncio.sleep(GATHERING_S)
                return
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("blobs could not be erased")
                await asyncio.sleep(PAUSE_S)

    async def _sweep(self) -> None:
        """One folder at a time. The names are read before the rows: who had no row by then, and is not fresh, gets none."""
        folders = self._blobs.folders()
        while names := await asyncio.to_thread(self._blobs.names, folders):
            for at in range(0, len(names), AT_ONCE):
                some = names[at : at + AT_ONCE]
                known = await self._state.read(partial(_known, some), self._settings, self._ids)
                await self._erase(self._blobs.not_read([name for name in some if name not in known]))

    async def _remove(self, blobs: Sequence[str]) -> None:
        """Their rows were dropped; the last of each goes when its file has."""
        await self._erase(self._blobs.not_read(blobs))
        await self._state.submit(lambda tx: tx.store.objects.drop_garbage(blobs))

    async def _erase(self, blobs: Sequence[str]) -> None:
        if blobs:
            await asyncio.to_thread(self._blobs.erase, blobs)


def _known(blobs: Sequence[str], tx: Tx[Store]) -> set[str]:
    return tx.store.objects.known_blobs(blobs)


def _garbage(tx: Tx[Store]) -> list[str]:
    """Blobs that nobody refers to; without one this waits. Nothing: we are going down."""
    found = tx.store.objects.garbage(AT_ONCE)
    if not found and not tx.final:
        raise Wait([GARBAGE], tx.now_s + PATIENCE_S)
    return found
