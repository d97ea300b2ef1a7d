"""The timers of the spawner: functions that it calls at a time, in seconds since the boot of the machine."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from corral.node.procfs import boot_s


class Timers:
    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0  # of all timers so far; it sorts timers with the same time

    def at(self, due_boot_s: float, what: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._due, (due_boot_s, self._count, what))

    def fire(self) -> None:
        """Call the functions whose time has come."""
        while self._due and self._due[0][0] <= boot_s():
            heapq.heappop(self._due)[2]()

    @property
    def next_boot_s(self) -> float | None:
        """The time of the next timer. None if there is no timer."""
        return self._due[0][0] if self._due else None
