"""Keeps the allocations of a lender as Corral wants them: requests them, reports what the lender says, and ends them.

A lender sends no notifications, so this module polls it every few seconds while it has allocations of Corral. It also polls it once
at the start of the server, because an earlier server may have left some.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shlex
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from corral.core.clock import Clock
from corral.decide.allocations import plan
from corral.model.allocation import Allocation, Found, Phase
from corral.model.instance import Instance
from corral.model.lender_settings import SlurmSettings
from corral.model.units import CPU_UNITS_PER_CORE
from corral.server.lanes import Lane
from corral.server.lenders.slurm import LenderFailed, LenderRefused, Slurm
from corral.services.corral import lending
from corral.store import Store

EPILOG_S = 60.0  # an allocation that the lender does not know any more counts as ended after this time
AGAIN_MIN_S, AGAIN_MAX_S = 5.0, 300.0  # a refused request is repeated after this time, which doubles each time

log = logging.getLogger("corral")


class LenderKeeper:
    def __init__(
        self, name: str, settings: SlurmSettings, label_prefix: str, state: Lane[Store], clock: Clock,
        open_door: Callable[[], Awaitable[dict[str, str]]],
    ) -> None:  # fmt: skip
        """`label_prefix` begins the names of all allocations of this server."""
        self._name = name
        self._settings = settings
        self._lender = Slurm(settings)
        self._prefix = label_prefix
        self._state = state
        self._clock = clock
        self._open_door = open_door
        self._changed = asyncio.Event()
        self._missing: dict[str, float] = {}  # instance → since when the lender does not know it
        self._again: dict[str, tuple[float, float]] = {}  # instance → when its refused request is repeated, and the pause before it
        self.problem = ""  # why the lender does not answer; empty: it does

    def wake(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        is_first = True
        while True:
            self._changed.clear()
            wanted = await self._state.submit(lambda tx: tx.store.allocations.of_lender(self._name), read_only=True)
            if wanted or is_first or self.problem:
                try:
                    await self._round(wanted)
                    is_first, self.problem = False, ""
                except LenderFailed as failure:
                    if self.problem != str(failure):
                        log.warning("the lender %s has not answered: %s", self._name, failure)
                    self.problem = str(failure)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.poll_s if wanted or self.problem else None):
                    await self._changed.wait()

    async def _round(self, wanted: list[Allocation]) -> None:
        found = await asyncio.to_thread(self._lender.found, self._prefix)
        planned = plan(self._prefix, wanted, self._with_missing(wanted, found))
        if planned.reports:
            await self._state.submit(partial(lending.report, reports=planned.reports))
        for handle in planned.terminate:
            await asyncio.to_thread(self._lender.terminate, handle)
        for allocation in planned.launch:
            await self._launch(allocation)

    def _with_missing(self, wanted: list[Allocation], found: list[Found]) -> list[Found]:
        """Add the allocations that the lender has forgotten a moment ago: the programs that clean up after them may still run.

        A controller of Slurm that was killed can forget a job, and give its id to another job. So the label counts, too.
        """
        known, now_s = {(each.label, each.handle) for each in found}, time.monotonic()
        labels = {each.instance_id: (self._prefix + each.instance_id, each.handle) for each in wanted if each.handle}
        missing = [each for each in wanted if each.handle and labels[each.instance_id] not in known]
        self._missing = {each.instance_id: self._missing.get(each.instance_id, now_s) for each in missing}
        return found + [
            Found(*labels[each.instance_id], Phase.UNKNOWN, each.reason)
            for each in missing
            if now_s - self._missing[each.instance_id] < EPILOG_S
        ]

    async def _launch(self, allocation: Allocation) -> None:
        at_s, pause_s = self._again.get(allocation.instance_id, (0.0, AGAIN_MIN_S / 2))
        if self._clock.now_s() < at_s:
            return
        secret = secrets.token_hex(16)
        request = await self._state.submit(partial(lending.request_of, instance_id=allocation.instance_id, secret=secret))
        if request is None:
            return
        _, instance = request
        door = await self._open_door()
        token = f"{instance.id}.{secret}.{door['pin']}"
        script = pilot_script(self._settings, self._settings.address or door["address"], token)
        try:
            handle = await asyncio.to_thread(
                self._lender.launch, self._prefix + instance.id, instance.gpus, _cpus(instance), instance.memory_mib,
                allocation.options, script,
            )  # fmt: skip
        except LenderRefused as refusal:
            pause_s = min(2 * pause_s, AGAIN_MAX_S)
            self._again[instance.id] = (self._clock.now_s() + pause_s, pause_s)
            why = f"the lender {self._name} refuses it: {refusal}"
            await self._state.submit(partial(lending.refused, instance_id=instance.id, why=why))
            return
        self._again.pop(instance.id, None)
        await self._state.submit(partial(lending.requested, instance_id=instance.id, handle=handle))


def _cpus(instance: Instance) -> int:
    return max(1, instance.cpu_units // CPU_UNITS_PER_CORE)


def pilot_script(settings: SlurmSettings, address: str, token: str) -> str:
    """Return the batch script of an allocation. Slurm shows it only to the account of the job and to administrators."""
    python = settings.python or sys.executable
    words = [python, "-m", "corral.node.pilot", "--server", address, "--gpus", settings.gpus]
    return (
        "#!/bin/sh\n"
        f"{settings.setup}\n"
        f"folder=$(mktemp -d {shlex.quote(settings.folder)}/corral-pilot.XXXXXX) || exit 1\n"
        f'{shlex.join(words)} --data "$folder" <<END\n{token}\nEND\n'
        'code=$?\nrm -rf "$folder"\nexit $code\n'
    )
