"""Starts what keeps the allocations of each lender. Its module is imported only if corral.toml has lenders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from corral.core.clock import Clock
from corral.model.lender_settings import LenderSettings, RaySettings, SlurmSettings
from corral.node.host import stored_host_id
from corral.server.lanes import Lane
from corral.store import Store
from corral.store.allocations import Allocations

if TYPE_CHECKING:
    from corral.server.lenders.keeper import LenderKeeper
    from corral.server.lenders.lender import Lender

LABEL_DIGITS = 12  # of the id of the server's host, in the names of its allocations


def lender_of(settings: LenderSettings) -> Lender:
    if isinstance(settings, RaySettings):
        from corral.server.lenders.ray import Ray  # imported here, because few servers have lenders

        return Ray(settings)
    from corral.server.lenders.slurm import Slurm

    assert isinstance(settings, SlurmSettings)
    return Slurm(settings)


class Lenders:
    def __init__(
        self, settings: Mapping[str, LenderSettings], data: Path, state: Lane[Store], allocations: Allocations, clock: Clock,
        open_door: Callable[[], Awaitable[dict[str, str]]],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._data = data
        self._state = state
        self._allocations = allocations
        self._clock = clock
        self._open_door = open_door
        self._keepers: dict[str, LenderKeeper] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, joined: asyncio.Event) -> None:
        """Begin to keep the allocations when the agent of this machine has joined: then the id of its host is stored."""
        if self._settings:
            self._tasks.append(asyncio.get_running_loop().create_task(self._start(joined)))

    async def _start(self, joined: asyncio.Event) -> None:
        await joined.wait()
        from corral.server.lenders.keeper import LenderKeeper

        server = stored_host_id(self._data / "node" / "host.json")[:LABEL_DIGITS]
        loop = asyncio.get_running_loop()
        for name, settings in self._settings.items():
            prefix = f"corral-{server}.{name}."  # several lenders may be one cluster, so each has labels of its own
            keeper = LenderKeeper(name, settings, lender_of(settings), prefix, self._state, self._clock, self._open_door)
            self._keepers[name] = keeper
            self._tasks.append(loop.create_task(keeper.run()))
        self._allocations.on_changed = lambda: loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for keeper in self._keepers.values():
            keeper.wake()

    def problems(self) -> dict[str, str]:
        """Return the lenders that do not answer, and why. Any thread may call this method."""
        return {name: keeper.problem for name, keeper in self._keepers.items() if keeper.problem}

    def advice(self) -> dict[str, list[str]]:
        """Return what the operators of the lenders should change. Any thread may call this method."""
        return {name: keeper.lender.advice() for name, keeper in self._keepers.items()}

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
