"""Garbage collection of blobs, which are the files with the bytes of objects and image layers.

A blob that no object and no layer needs any more is garbage. Garbage is deleted by the hundred. A blob without a database row is an
orphan. A crash during an upload leaves an orphan. At start, up to ERASED_ORPHANS_MAX orphans are deleted. If there are more
orphans, they are not deleted, because no crash leaves so many: this state.db probably belongs to another data folder. These orphans
are moved to blobs/quarantine/DATE, and deleted after a week. If rows refer to them at a later start, they are moved back. While a
backup copies blobs, no blob is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from corral.blobs import Blobs
from corral.blobs.blob_lock import try_erasing
from corral.core.clock import Clock
from corral.core.commands import Wait
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.model.blob import GARBAGE
from corral.model.settings import Settings
from corral.process.data_folder import BLOBS_LOCK
from corral.server.lanes import Lane
from corral.store import Store

BLOBS_AT_ONCE = 200
ERASED_ORPHANS_MAX = 16  # a crash leaves about as many orphans as uploads were in progress
DAY_S = 86_400.0
QUARANTINE_S = 7 * DAY_S
HELD_DELAY_S = 1.0  # the time between two attempts while a backup copies blobs
WAIT_MAX_S = 10 * 365 * 86_400.0  # practically without end: the wait ends when garbage exists or the server stops
# If there is less garbage than BLOBS_AT_ONCE, the collector waits this long for more. Without this wait, 1,000 overwritten
# objects a second would cause 1,000 small transactions.
MORE_GARBAGE_WAIT_S = 0.25
RETRY_DELAY_S = 5.0

log = logging.getLogger("corral")


class BlobGc:
    def __init__(self, data: Path, blobs: Blobs, state: Lane[Store], settings: Settings, ids: Ids, clock: Clock) -> None:
        self._lock = data / BLOBS_LOCK
        self._blobs = blobs
        self._clock = clock
        self._state = state
        self._settings = settings
        self._ids = ids

    async def run(self) -> None:
        """Handle the orphans that a crash has left, then delete garbage until the server stops."""
        expiry = asyncio.create_task(self._expire_daily())
        try:
            await self._collect()
        finally:
            expiry.cancel()

    async def _expire_daily(self) -> None:
        while True:
            try:
                await asyncio.to_thread(expire_quarantine, self._blobs, min(self._clock.now_s(), self._clock.wall_s()))
            except OSError:
                log.exception("blobs in quarantine could not be erased")
            await asyncio.sleep(DAY_S)

    async def _collect(self) -> None:
        while True:
            try:
                await self._sweep()
                while garbage := await self._state.submit(_garbage):
                    await self._remove(garbage)
                    if len(garbage) < BLOBS_AT_ONCE:
                        await asyncio.sleep(MORE_GARBAGE_WAIT_S)
                return
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("blobs could not be erased")
                await asyncio.sleep(RETRY_DELAY_S)

    async def _sweep(self) -> None:
        """Delete orphans, or move them to the quarantine.

        The files are listed before the rows are read, and the list omits files whose rows are not committed yet. So a listed file
        without a row is really an orphan.
        """
        folders, orphans = self._blobs.folders(), list[str]()
        while names := await asyncio.to_thread(self._blobs.names, folders):
            for at in range(0, len(names), BLOBS_AT_ONCE):
                some = names[at : at + BLOBS_AT_ONCE]
                known = await self._state.read(partial(_known, some), self._settings, self._ids)
                orphans += [name for name in some if name not in known]
        orphans = self._blobs.erasable(orphans)
        if not orphans:
            return
        if len(orphans) <= ERASED_ORPHANS_MAX and not await asyncio.to_thread(self._has_quarantine):
            await self._erase(orphans)
            return
        folder = await asyncio.to_thread(self._blobs.quarantine, orphans, date_of(self._clock.wall_s()))
        log.warning(
            "no row of state.db refers to %d blobs: they were moved to %s and will be erased after a week. If this state.db is "
            "wrong, stop Corral and put the right file back: Corral then moves the blobs back.", len(orphans), folder,
        )  # fmt: skip

    def _has_quarantine(self) -> bool:
        """Whether the quarantine has blobs, which an earlier start has moved there.

        Corral may have been killed before it had moved all orphans. So the remaining orphans must also be moved, even if they are
        few.
        """
        return any(names for _, names in self._blobs.quarantined())

    async def _remove(self, blobs: Sequence[str]) -> None:
        """Delete the files of garbage, then the rows that list them as garbage."""
        await self._erase(blobs)
        await self._state.submit(lambda tx: tx.store.objects.drop_garbage(blobs))

    async def _erase(self, blobs: Sequence[str]) -> None:
        """Delete files. If a file has readers, it is deleted when its last reader is done.

        A backup holds the lock while it copies blobs, because its snapshot of the rows may refer to these blobs. A later backup
        does not need them.
        """
        while (held := try_erasing(self._lock)) is None:
            await asyncio.sleep(HELD_DELAY_S)
        try:
            if erasable := self._blobs.erasable(blobs):
                await asyncio.to_thread(self._blobs.erase, erasable)
        finally:
            os.close(held)


def take_back_quarantined(blobs: Blobs, store: Store) -> None:
    """Move blobs back from the quarantine if rows refer to them. The server calls this function at start."""
    for date, names in blobs.quarantined():
        known = set[str]()
        for at in range(0, len(names), BLOBS_AT_ONCE):
            known |= store.objects.known_blobs(names[at : at + BLOBS_AT_ONCE])
        if known:
            blobs.take_back(date, known)
            log.warning("moved %d blobs back from quarantine: rows of state.db refer to them", len(known))


def expire_quarantine(blobs: Blobs, now_s: float) -> None:
    """Delete the blobs that have been in the quarantine for a week."""
    for date, names in blobs.quarantined():
        if date <= date_of(now_s - QUARANTINE_S):
            blobs.erase_quarantine(date)
            log.warning("erased %d blobs that were in quarantine since %s", len(names), date)


def quarantine_of(blobs: Blobs) -> list[dict[str, Any]]:
    """Return what `corral status` shows of the quarantine."""
    return [{"date": date, "blobs": number, "erasedOn": _erased_on(date)} for date, number in blobs.count_quarantined().items()]


def _erased_on(date: str) -> str:
    try:
        return (datetime.fromisoformat(date) + timedelta(seconds=QUARANTINE_S)).date().isoformat()
    except (ValueError, OverflowError):  # a folder that Corral did not create
        return date


def date_of(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


def _known(blobs: Sequence[str], tx: Tx[Store]) -> set[str]:
    return tx.store.objects.known_blobs(blobs)


def _garbage(tx: Tx[Store]) -> list[str]:
    """Return the next blobs that nothing refers to. Wait until there are some. Return an empty list when the server stops."""
    found = tx.store.objects.garbage(BLOBS_AT_ONCE)
    if not found and not tx.final:
        raise Wait([GARBAGE], tx.now_s + WAIT_MAX_S)
    return found
