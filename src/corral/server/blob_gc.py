"""Garbage collection of blobs: erases the files that no row refers to, in batches.

A start that finds many orphans does not erase them. No crash leaves that many, so this state.db probably belongs to other files.
The orphans are moved to blobs/quarantine/DATE and erased after a week; when rows refer to them again, they are moved back.
While a backup copies blobs, none is erased.
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
from corral.clock import Clock
from corral.core import Tx, Wait
from corral.data_folder import BLOBS_LOCK
from corral.ids import Ids
from corral.model.blob import GARBAGE
from corral.model.settings import Settings
from corral.server.lanes import Lane
from corral.store import Store

BATCH_BLOBS = 200
ERASED_ORPHANS_MAX = 16  # a crash leaves about as many as there were uploads
DAY_S = 86_400.0
QUARANTINE_S = 7 * DAY_S
HELD_DELAY_S = 1.0  # between two attempts while a backup is made
WAIT_MAX_S = 10 * 365 * 86_400.0  # the wait for garbage ends only when there is some or the server stops
BATCH_DELAY_S = 0.25  # collects garbage before each batch: overwriting 1,000 objects a second must not cost 1,000 removals
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
        """Sweep the files that a crash has left, then erase garbage until the server stops."""
        expiry = asyncio.create_task(self._expire_daily())
        try:
            await self._collect()
        finally:
            expiry.cancel()

    async def _expire_daily(self) -> None:
        while True:
            try:
                await asyncio.to_thread(expire_quarantine, self._blobs, self._clock.now_s())
            except OSError:
                log.exception("blobs in quarantine could not be erased")
            await asyncio.sleep(DAY_S)

    async def _collect(self) -> None:
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
        """Erase or quarantine orphans. Files are listed before rows are read: a listed file without a row is an orphan."""
        folders, orphans = self._blobs.folders(), list[str]()
        while names := await asyncio.to_thread(self._blobs.names, folders):
            for at in range(0, len(names), BATCH_BLOBS):
                batch = names[at : at + BATCH_BLOBS]
                known = await self._state.read(partial(_known, batch), self._settings, self._ids)
                orphans += [name for name in batch if name not in known]
        orphans = self._blobs.erasable(orphans)
        if not orphans:
            return
        if len(orphans) <= ERASED_ORPHANS_MAX and not await asyncio.to_thread(self._has_quarantine):
            await self._erase(orphans)
            return
        folder = await asyncio.to_thread(self._blobs.quarantine, orphans, date_of(self._clock.now_s()))
        log.warning(
            "no row of state.db refers to %d blobs: they were moved to %s and will be erased after a week. If this state.db is "
            "not the right one, stop Corral and put the right one back: the blobs are then moved back.", len(orphans), folder,
        )  # fmt: skip

    def _has_quarantine(self) -> bool:
        """Whether an earlier start quarantined orphans: it may have been killed before it had moved all of them."""
        return any(names for _, names in self._blobs.quarantined())

    async def _remove(self, blobs: Sequence[str]) -> None:
        """Erase the files of garbage, then delete its rows."""
        await self._erase(self._blobs.erasable(blobs))
        await self._state.submit(lambda tx: tx.store.objects.drop_garbage(blobs))

    async def _erase(self, blobs: Sequence[str]) -> None:
        if not blobs:
            return
        while (held := try_erasing(self._lock)) is None:
            await asyncio.sleep(HELD_DELAY_S)
        try:
            await asyncio.to_thread(self._blobs.erase, blobs)
        finally:
            os.close(held)


def take_back_quarantined(blobs: Blobs, store: Store) -> None:
    """At start: move the blobs that rows refer to back from the quarantine."""
    for date, names in blobs.quarantined():
        known = set[str]()
        for at in range(0, len(names), BATCH_BLOBS):
            known |= store.objects.known_blobs(names[at : at + BATCH_BLOBS])
        if known:
            blobs.take_back(date, known)
            log.warning("moved %d blobs back from quarantine: rows of state.db refer to them", len(known))


def expire_quarantine(blobs: Blobs, now_s: float) -> None:
    """Erase the blobs that have been in quarantine for a week."""
    for date, names in blobs.quarantined():
        if date <= date_of(now_s - QUARANTINE_S):
            blobs.erase_quarantine(date)
            log.warning("erased %d blobs that were in quarantine since %s", len(names), date)


def quarantine_of(blobs: Blobs) -> list[dict[str, Any]]:
    """What `corral status` shows of the quarantine."""
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
    """The next blobs without references. Waits until there are some; empty when the server stops."""
    found = tx.store.objects.garbage(BATCH_BLOBS)
    if not found and not tx.final:
        raise Wait([GARBAGE], tx.now_s + WAIT_MAX_S)
    return found
