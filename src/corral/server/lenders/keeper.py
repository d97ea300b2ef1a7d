"""Keeps the allocations of a lender as Corral wants them: requests them, reports what the lender says, and ends them.

A lender sends no notifications, so this module polls it every few seconds while it has allocations of Corral. It also polls it once
at the start of the server, because an earlier server may have left some.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from corral.core.clock import Clock
from corral.core.errors import ApiError, Refused
from corral.decide.allocations import LenderMemory, plan
from corral.model.allocation import Allocation
from corral.model.instance import Instance
from corral.model.lender_settings import LenderSettings
from corral.model.units import CPU_UNITS_PER_CORE
from corral.server.lanes import Lane
from corral.server.lenders.lender import AllocationRequest, Lender, LenderFailed, LenderRefused
from corral.services.corral import lending
from corral.store import Store

LINGER_S = 300.0  # after the last allocation, the lender is polled for this time: a request without an answer may still arrive
LINGER_POLL_S = 15.0

log = logging.getLogger("corral")


class LenderKeeper:
    def __init__(
        self, name: str, settings: LenderSettings, lender: Lender, label_prefix: str, state: Lane[Store], clock: Clock,
        open_door: Callable[[], Awaitable[dict[str, str]]],
    ) -> None:  # fmt: skip
        """`label_prefix` begins the names of all allocations of this server."""
        self._name = name
        self._settings = settings
        self.lender = lender
        self._prefix = label_prefix
        self._state = state
        self._clock = clock
        self._open_door = open_door
        self._changed = asyncio.Event()
        self._memory = LenderMemory(label_prefix)
        self.problem = ""  # why the lender does not answer; empty: it does

    def wake(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Keep the allocations until this task is cancelled. Whatever fails is tried again, because nothing else would do it."""
        is_first, lingers_until_s, wanted = True, 0.0, list[Allocation]()
        while True:
            self._changed.clear()
            try:
                wanted = await self._state.submit(lambda tx: tx.store.allocations.of_lender(self._name), read_only=True)
                if wanted:
                    lingers_until_s = self._clock.now_s() + LINGER_S
                if wanted or self._clock.now_s() < lingers_until_s or is_first or self.problem:
                    await self._round(wanted)
                    is_first, self.problem = False, ""
            except Exception as failure:
                self._failed(failure)
            lingers = self._clock.now_s() < lingers_until_s
            pause_s = (
                self._settings.poll_s if wanted or self.problem else max(self._settings.poll_s, LINGER_POLL_S) if lingers else None
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    def _failed(self, failure: Exception) -> None:
        if self.problem != (why := str(failure) or type(failure).__name__):
            is_known = isinstance(failure, (LenderFailed, Refused, ApiError))
            log.warning("the lender %s waits: %s", self._name, why, exc_info=None if is_known else failure)
        self.problem = why

    async def _round(self, wanted: list[Allocation]) -> None:
        """Compare what Corral wants with what the lender has, and act on it. A request that fails does not prevent the others."""
        found = await asyncio.to_thread(self.lender.found, self._prefix)
        missing = self._memory.missing_too_long(wanted, found, time.monotonic())
        ask = self.lender.phase_of_missing
        phases = {each.instance_id: await asyncio.to_thread(ask, each.handle, each.machine) for each in missing}
        found = found + self._memory.still_counted(wanted, found, phases)
        planned = plan(self._prefix, wanted, found)
        if planned.reports:
            again = await self._state.submit(partial(lending.report, reports=planned.reports))
            self._memory.repeat_later(again, self._clock.now_s())
        failures = list[LenderFailed]()
        if planned.terminate:
            try:
                await asyncio.to_thread(self.lender.terminate, planned.terminate)
            except LenderFailed as failure:
                failures.append(failure)
        for allocation in planned.launch:
            if self._memory.may_launch(allocation.instance_id, self._clock.now_s()):
                await self._launch(allocation)
        if failures:
            raise failures[0]

    async def _launch(self, allocation: Allocation) -> None:
        secret = secrets.token_hex(16)
        request = await self._state.submit(partial(lending.request_of, instance_id=allocation.instance_id, secret=secret))
        if request is None:
            return
        _, instance = request
        door = await self._open_door()
        token = f"{instance.id}.{secret}.{door['pin']}"
        prefix = f"{self._settings.kind}-"
        options = {name.removeprefix(prefix): value for name, value in allocation.options.items() if name.startswith(prefix)}
        wanted = AllocationRequest(
            self._prefix + instance.id, instance.gpus, _cpus(instance), instance.memory_mib, options,
            self._settings.address or door["address"], token,
        )  # fmt: skip
        try:
            handle = await asyncio.to_thread(self.lender.launch, wanted)
        except LenderRefused as refusal:
            self._memory.repeat_later([instance.id], self._clock.now_s())
            why = f"the lender {self._name} refuses it: {refusal}"
            await self._state.submit(partial(lending.refused, instance_id=instance.id, why=why))
            return
        await self._state.submit(partial(lending.requested, instance_id=instance.id, handle=handle))


def _cpus(instance: Instance) -> int:
    return max(1, instance.cpu_units // CPU_UNITS_PER_CORE)
