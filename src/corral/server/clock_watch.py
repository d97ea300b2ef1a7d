"""Notices that somebody sets the wall clock, and stores the steady time and these steps (`core/clock.py`) for the next server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from typing import NoReturn

import msgspec

from corral.core.clock import ClockRecord, SteadyClock
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.node.host import kernel_boot_id
from corral.server.lanes import Lane
from corral.server.step_timer import StepTimer
from corral.store import Store
from corral.telemetry import MetricStore

LOOK_S = 1.0  # during the start, and if the kernel cannot tell that the wall clock was set
SLEW_S = 60.0  # the kernel does not tell that the wall clock runs faster or slower
RECORD = ("corral", "clock", "", "steady")  # the place of the record among the stored resources

log = logging.getLogger("corral")


def open_clock(store: Store) -> SteadyClock:
    """Return the clock of a server, which continues the steady time of the last server."""
    document = store.stored.get(*RECORD)
    return SteadyClock(kernel_boot_id(), msgspec.convert(document, ClockRecord) if document is not None else None)


def keep_time(tx: Tx[Store], clock: SteadyClock) -> None:
    """Store the steady time."""
    tx.store.stored.put(*RECORD, msgspec.to_builtins(clock.record()), tx.now_s)


class ClockWatch:
    def __init__(self, state: Lane[Store], metrics: Lane[MetricStore], clock: SteadyClock) -> None:
        self._state = state
        self._metrics = metrics
        self._clock = clock

    async def run(self) -> None:
        await self._state.submit(self._follow)  # the wall clock may have been set while no server ran
        await asyncio.sleep(LOOK_S)  # until the server has started
        try:
            timer = StepTimer()
        except OSError:
            await self._look_again_and_again(LOOK_S, asyncio.sleep)
        with closing(timer):
            await self._look_again_and_again(SLEW_S, timer.wait)

    async def _look_again_and_again(self, pause_s: float, pause: Callable[[float], Awaitable[object]]) -> NoReturn:
        while True:
            try:
                await self.look()
            except ApiError as refusal:
                log.warning("the time could not be stored: %s", refusal)
            await pause(pause_s)

    async def look(self) -> None:
        before_s = self._clock.steps.ahead_s
        if self._clock.notice_step():
            by_s = self._clock.steps.ahead_s - before_s
            log.warning(
                "the wall clock was set %s by %.0f s. Timeouts do not change.", "back" if by_s < 0 else "forward", abs(by_s)
            )
            await self._metrics.submit(partial(_shift, by_s=by_s))
            await self._state.submit(self._follow)

    def _follow(self, tx: Tx[Store]) -> None:
        keep_time(tx, self._clock)
        if self._clock.steps.steps:
            tx.mark("wall-clock:")


def _shift(tx: Tx[MetricStore], by_s: float) -> None:
    tx.store.shift_due(by_s)
